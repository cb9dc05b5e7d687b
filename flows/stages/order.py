"""The order of a whole job: which stage comes when, and which model acts in it.

Follows from what supervised training reads: that is made with the base model; what GRPO and the filters
measure is made with the supervised one. So a finished run stays as it is, however often it is run again.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from flows.stages.recipe import Recipe
from pipeline.errors import ConfigError

Step = Literal["synthesis", "curation", "sft", "grpo", "evaluation"]


class Planned(NamedTuple):
    """A step; of a synthesis, its stage ("" = all) and the model that acts ("" = the newest)."""

    step: Step
    stage: str = ""
    model: str = ""


def whole_job(recipe: Recipe) -> list[Planned]:
    """What supervised training reads, that training, the other syntheses with its model, GRPO, evaluation.

    Syntheses keep the recipe's order, as one may read another: all up to the last one that is trained on are
    made with the base. Curation comes before the training that reads `curated`, else after all syntheses.
    ConfigError where training reads what no synthesis makes.
    """
    names = list(recipe.synth)
    if recipe.sft.data == "curated":
        made = [Planned("synthesis", model="base"), Planned("curation"), Planned("sft")]
    else:
        read = [name for name in names if recipe.synth[name].synthesizer == recipe.sft.data]
        if not read:
            makes = ", ".join(sorted({section.synthesizer for section in recipe.synth.values()})) or "none"
            raise ConfigError(
                f"sft.data names {recipe.sft.data!r}, and no synthesis of recipe {recipe.name} is of that "
                f"synthesizer; its synthesizers: {makes}. Name one of them, or curated"
            )
        last = names.index(read[-1]) + 1
        made = [
            *(Planned("synthesis", name, "base") for name in names[:last]),
            Planned("sft"),
            *(Planned("synthesis", name, "sft") for name in names[last:]),
            Planned("curation"),
        ]
    return [*made, Planned("grpo"), Planned("evaluation")]
