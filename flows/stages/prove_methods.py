"""The proof of the methods: what data of each synthesizer is worth, at equal trained tokens, from one model.

One supervised model comes first (`sft`: demonstrations). Then every synthesizer of the recipe makes data on
its own train tasks, the successful trajectories train one arm each from `sft` for the same number of row
tokens, and all are evaluated on held-out tasks, unseen templates with renamed tools apart. An arm with less
data goes over it more than once, which its row says (`passes`). What sampling cost stands beside the trained
tokens. Not covered: methods whose data needs a model in every role.
"""

from __future__ import annotations

from collections.abc import Sequence

from data.trajectories import Origin, Trajectory
from flows.stages.proof import EXAMPLES, Proof, World, named
from pipeline.errors import ConfigError

WARM_UP = "demonstrations"
TRAINED_TOKENS = 60_000
"""Row tokens that every arm trains on after the warm-up."""


async def _arms(world: World) -> dict[str, dict[str, float]]:
    """Warm up, then one arm after the other; what data each arm had."""
    await world.evaluate("base")
    await world.sft("sft", await world.demonstrations(world.recipe.synth[WARM_UP].tasks), start="base")
    await world.evaluate("sft")
    data = {}
    for name, section in world.recipe.synth.items():
        if name == WARM_UP:
            continue
        await world.policy.load(world.model("sft"))
        made = await world.rollouts(section)
        good = [row for row in made if row.success]
        if not good:
            raise ConfigError(f"synthesis {name}: none of {len(made)} trajectories succeeded; see verdicts")
        say = named(world.say, name)
        say(f"{len(good)} of {len(made)} trajectories are successful")
        # What gold says was rendered, not sampled.
        rolled = (row for row in made if any(part.origin is Origin.SAMPLED for part in row.segments))
        sampled = sum(row.usage.generated_tokens for row in rolled)
        await world.sft(name, good, start="sft", budget=TRAINED_TOKENS, sampled=sampled)
        data[name] = _data(made, good)
        await world.evaluate(name)
    return data


def _data(made: Sequence[Trajectory], good: Sequence[Trajectory]) -> dict[str, float]:
    """How much there was, and how often the arm went over it."""
    tokens = sum(len(segment.token_ids) for row in good for segment in row.segments)
    return {"made": len(made), "successful": len(good), "passes": round(TRAINED_TOKENS / tokens, 2)}


METHODS = Proof(EXAMPLES / "prove-methods.yaml", _arms, baseline="demonstration")
