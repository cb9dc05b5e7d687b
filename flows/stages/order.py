"""The order of a whole job: which stage comes when, and which model acts in it.

Follows from what supervised training reads: that is made with the base model; what GRPO and the filters
measure is made with the supervised one. So a finished run stays as it is, however often it is run again.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from flows.stages.recipe import Recipe

Step = Literal["synthesis", "curation", "sft", "grpo", "evaluation"]


class Planned(NamedTuple):
    """A step; of a synthesis, its stage ("" = all) and the model that acts ("" = the newest)."""

    step: Step
    stage: str = ""
    model: str = ""


def whole_job(recipe: Recipe) -> list[Planned]:
    """What supervised training reads, that training, the other syntheses with its model, GRPO, evaluation.

    Curation comes before the training that reads `curated`, else after all syntheses.
    """
    read = [name for name, section in recipe.synth.items() if section.synthesizer == recipe.sft.data]
    if recipe.sft.data == "curated":
        made = [Planned("synthesis", model="base"), Planned("curation"), Planned("sft")]
    else:
        rest = [name for name in recipe.synth if name not in read]
        made = [
            *(Planned("synthesis", name, "base") for name in read),
            Planned("sft"),
            *(Planned("synthesis", name, "sft") for name in rest),
            Planned("curation"),
        ]
    return [*made, Planned("grpo"), Planned("evaluation")]
