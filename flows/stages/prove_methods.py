"""The proof of the methods: what data of each synthesizer is worth, at equal trained tokens, from one model.

One supervised model comes first (`sft`: demonstrations). Then every synthesizer of the recipe makes data on
its own train tasks, the successful trajectories train one arm each from `sft` for the same number of row
tokens, and all are evaluated on held-out tasks, unseen templates with renamed tools apart. An arm with less
data goes over it more than once, which its row says (`passes`). What sampling cost stands beside the trained
tokens. Not covered: methods whose data needs a model in every role.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.trajectories import Trajectory
from flows.stages import run as runs_
from flows.stages.policy import open_policy
from flows.stages.progress import Say
from flows.stages.proof import World, arm_row, named, seeded_recipe, write_row
from flows.stages.recipe import load_recipe
from pipeline.errors import ConfigError
from rl.models import model_label, resolve_model

RECIPE = Path(__file__).parents[2] / "examples" / "prove-methods.yaml"
WARM_UP = "demonstrations"
BASELINE = "demonstration"
"""The arm that the others are compared with."""
TRAINED_TOKENS = 60_000
"""Row tokens that every arm trains on after the warm-up."""


async def run_methods(seed: int, *, runs: Path, results: Path, say: Say) -> Path:
    """One repetition; returns the row it wrote, `seed-<n>.json`. Resumes."""
    started = time.monotonic()
    recipe = seeded_recipe(load_recipe(RECIPE), seed)
    base, label = resolve_model(recipe.policy.model), model_label(recipe.policy.model)
    row: dict[str, Any] = {"seed": seed, "model": label, "versions": runs_.versions(), "baseline": BASELINE}
    async with open_policy(recipe.policy, model_dir=base, label=label, say=say) as policy:
        with runs_.open_run(recipe, runs) as store:
            environment = runs_.environment_of(recipe, root=store.root)
            world = World(recipe, store, environment, policy, base, say)
            data = await _arms(world)
    arms = {arm: arm_row(found) | data.get(arm, {}) for arm, found in world.arms.items()}
    row["worlds"] = {recipe.environment.name: arms}
    return write_row(row, results, started=started, say=say)


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
        sampled = sum(row.usage.generated_tokens for row in made)
        await world.sft(name, good, start="sft", budget=TRAINED_TOKENS, sampled=sampled)
        data[name] = _data(made, good)
        await world.evaluate(name)
    return data


def _data(made: Sequence[Trajectory], good: Sequence[Trajectory]) -> dict[str, float]:
    """How much there was, and how often the arm went over it."""
    tokens = sum(len(segment.token_ids) for row in good for segment in row.segments)
    return {"made": len(made), "successful": len(good), "passes": round(TRAINED_TOKENS / tokens, 2)}
