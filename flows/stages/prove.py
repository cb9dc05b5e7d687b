"""The proofs of training: what each way of training is worth at equal compute, on tasks it never saw.

`TRAINING`, on travel_desk, all arms but the first from one supervised model: base, sft, sft_same (the same
demonstrations again), sft_fresh (new ones), rft (train on own verified rollouts), grpo. Compute =
trainer row tokens + sampled tokens; GRPO goes first and what it used is every other arm's budget.
`CONTROL`, on counter, whose demonstrator slips on purpose: base, sft, sft_same, grpo.
"""

from __future__ import annotations

from flows.stages.proof import EXAMPLES, Proof, World
from pipeline.errors import ConfigError


async def _training(world: World) -> dict[str, dict[str, float]]:
    """All six arms."""
    demonstrated, rollouts = world.recipe.synth["demonstrations"], world.recipe.synth["rollouts"]
    await world.evaluate("base")
    first = await world.demonstrations(demonstrated.tasks)
    await world.sft("sft", first, start="base")
    await world.evaluate("sft")
    budget = await world.grpo("grpo", start="sft")
    await world.evaluate("grpo")
    await world.policy.load(world.model("sft"))
    own = await world.rollouts(rollouts)
    sampled = sum(row.usage.generated_tokens for row in own)
    if sampled >= budget:
        raise ConfigError(f"rejection sampling alone took {sampled} of {budget} tokens; lower its tasks or k")
    solved = [row for row in own if row.success]
    await world.sft("rft", solved, start="sft", budget=budget - sampled, sampled=sampled)
    await world.evaluate("rft")
    await world.sft("sft_same", first, start="sft", budget=budget)
    await world.evaluate("sft_same")
    row_tokens = sum(len(segment.token_ids) for row in first for segment in row.segments)
    needed = round(demonstrated.tasks * budget / row_tokens) + 1
    fresh = await world.demonstrations(needed, skip=rollouts.skip + rollouts.tasks)
    await world.sft("sft_fresh", fresh, start="sft", budget=budget)
    await world.evaluate("sft_fresh")
    return {}


async def _control(world: World) -> dict[str, dict[str, float]]:
    """The positive control: imitation of a slipping demonstrator against reinforcement."""
    await world.evaluate("base")
    demonstrated = await world.demonstrations(world.recipe.synth["demonstrations"].tasks)
    await world.sft("sft", demonstrated, start="base")
    await world.evaluate("sft")
    budget = await world.grpo("grpo", start="sft")
    await world.evaluate("grpo")
    await world.sft("sft_same", demonstrated, start="sft", budget=budget)
    await world.evaluate("sft_same")
    return {}


TRAINING = Proof(EXAMPLES / "prove.yaml", _training)
CONTROL = Proof(EXAMPLES / "prove-counter.yaml", _control)
