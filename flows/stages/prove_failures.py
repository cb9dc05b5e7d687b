"""The proofs of what failures and searches are worth: each against its plain counterpart, at equal compute.

All arms start from one supervised model (`sft`). `FAILURES`, on counter. Online, every arm ends with the step
in which trainer row tokens + sampled tokens, dropped candidates included, reach the recipe's `token_budget`:
`grpo` (plain rollouts), `grpo_roc` (GRPO-RoC: twice the rollouts, chosen), `grpo_beam` (rollouts by beam
search, drawn softly, so that weights keep the gradient the policy's own) and `grpo_beam_top` (the same search
as published, whose bias nothing corrects). Offline, both arms have the same rollouts and as many trainer row
tokens: `rft` trains on those that succeeded, `rft_hindsight` also on what the failed ones reached.
Re-executing failures samples nothing. `HINDSIGHT`, on travel_desk, has the offline arms alone, whose budget
is one pass over what `rft_hindsight` trains on. Not covered: chats in hindsight's roles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.stages.proof import EXAMPLES, Proof, World
from pipeline.errors import ConfigError
from rl.rows import sft_rows

_BEAM = {"kind": "beam", "candidates": 3, "width": 2}
ONLINE: Mapping[str, Mapping[str, Any]] = {
    "grpo": {},
    "grpo_roc": {"selection": {"kind": "roc", "oversample": 2}},
    "grpo_beam": {"search": _BEAM | {"pick": "soft"}},
    "grpo_beam_top": {"search": _BEAM | {"pick": "top"}},
}
"""Arm to what its settings have beyond the recipe's."""


async def _failures(world: World) -> dict[str, dict[str, float]]:
    """The supervised model, the online arms, then the offline ones; what data the latter had."""
    await _start(world)
    for arm, changes in ONLINE.items():
        await world.grpo(arm, start="sft", changes=changes)
        await world.evaluate(arm)
    await world.policy.load(world.model("sft"))
    return await _offline(world, compute=world.recipe.grpo.settings["token_budget"])


async def _hindsight(world: World) -> dict[str, dict[str, float]]:
    """The supervised model and the offline arms; what data the latter had."""
    await _start(world)
    return await _offline(world)


async def _start(world: World) -> None:
    demonstrated = await world.demonstrations(world.recipe.synth["demonstrations"].tasks)
    await world.sft("sft", demonstrated, start="base")
    await world.evaluate("sft")


async def _offline(world: World, *, compute: int | None = None) -> dict[str, dict[str, float]]:
    """Rollouts of the model that acts now, and both arms trained on them.

    Each arm ends where row tokens + sampled tokens reach `compute`; None is one pass over all there is.
    """
    synth = world.recipe.synth
    own = await world.rollouts(synth["rollouts"])
    reached = await world.rollouts(synth["reached"])
    solved = [row for row in own if row.success]
    if not solved or not reached:
        raise ConfigError(
            f"{len(solved)} rollouts succeeded and {len(reached)} goals were reached; see verdicts"
        )
    data = {"rft": solved, "rft_hindsight": [*solved, *reached]}
    sampled = sum(row.usage.generated_tokens for row in own)
    if compute is None:
        budget = sum(len(row.token_ids) for row in sft_rows(data["rft_hindsight"]))
    else:
        budget = compute - sampled
    if budget <= 0:
        raise ConfigError(f"the rollouts alone took {sampled} tokens, more than grpo.settings.token_budget")
    for arm, rows in data.items():
        await world.sft(arm, rows, start="sft", budget=budget, sampled=sampled)
        await world.evaluate(arm)
    failed = sum(row.success is False for row in own)
    counts = {"rollouts": len(own), "failed": failed, "solved": len(solved), "reached": len(reached)}
    return {"rft_hindsight": {name: float(count) for name, count in counts.items()}}


FAILURES = Proof(
    EXAMPLES / "prove-failures.yaml",
    _failures,
    against={"grpo_roc": "grpo", "grpo_beam": "grpo", "grpo_beam_top": "grpo", "rft_hindsight": "rft"},
)
HINDSIGHT = Proof(EXAMPLES / "prove-hindsight.yaml", _hindsight, against={"rft_hindsight": "rft"})
