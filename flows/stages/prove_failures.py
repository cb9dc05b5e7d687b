"""The proof of what failures and searches are worth: each against its plain counterpart, at equal compute.

All arms start from one supervised model (`sft`). Online, every arm ends with the step in which trainer row
tokens + sampled tokens, dropped candidates included, reach the recipe's `token_budget`: `grpo` (plain
rollouts), `grpo_roc` (GRPO-RoC: twice the rollouts, chosen), `grpo_beam` (rollouts by beam search, drawn
softly, so that weights keep the gradient the policy's own) and `grpo_beam_top` (the same search as published,
whose bias nothing corrects). Offline, both arms have the same rollouts and as many trainer row tokens: `rft`
trains on those that succeeded, `rft_hindsight` also on what the failed ones reached. Re-executing failures
samples nothing. Not covered: chats in hindsight's roles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.stages.proof import EXAMPLES, Proof, World
from pipeline.errors import ConfigError

_BEAM = {"kind": "beam", "candidates": 3, "width": 2}
ONLINE: Mapping[str, Mapping[str, Any]] = {
    "grpo": {},
    "grpo_roc": {"selection": {"kind": "roc", "oversample": 2}},
    "grpo_beam": {"search": _BEAM | {"pick": "soft"}},
    "grpo_beam_top": {"search": _BEAM | {"pick": "top"}},
}
"""Arm to what its settings have beyond the recipe's."""


async def _arms(world: World) -> dict[str, dict[str, float]]:
    """The supervised model, the online arms, then the offline ones; what data the latter had."""
    synth = world.recipe.synth
    await world.sft("sft", await world.demonstrations(synth["demonstrations"].tasks), start="base")
    await world.evaluate("sft")
    for arm, changes in ONLINE.items():
        await world.grpo(arm, start="sft", changes=changes)
        await world.evaluate(arm)
    await world.policy.load(world.model("sft"))
    own = await world.rollouts(synth["rollouts"])
    reached = await world.rollouts(synth["reached"])
    solved = [row for row in own if row.success]
    if not solved or not reached:
        raise ConfigError(
            f"{len(solved)} rollouts succeeded and {len(reached)} goals were reached; see verdicts"
        )
    sampled = sum(row.usage.generated_tokens for row in own)
    budget = world.recipe.grpo.settings["token_budget"] - sampled
    if budget <= 0:
        raise ConfigError(f"the rollouts alone took {sampled} tokens, more than grpo.settings.token_budget")
    for arm, rows in {"rft": solved, "rft_hindsight": [*solved, *reached]}.items():
        await world.sft(arm, rows, start="sft", budget=budget, sampled=sampled)
        await world.evaluate(arm)
    failed = sum(row.success is False for row in own)
    counts = {"rollouts": len(own), "failed": failed, "solved": len(solved), "reached": len(reached)}
    return {"rft_hindsight": {name: float(count) for name, count in counts.items()}}


FAILURES = Proof(
    EXAMPLES / "prove-failures.yaml",
    _arms,
    against={"grpo_roc": "grpo", "grpo_beam": "grpo", "grpo_beam_top": "grpo", "rft_hindsight": "rft"},
)
