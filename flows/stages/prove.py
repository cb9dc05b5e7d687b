"""The proof: what each way of training is worth at equal compute, on tasks it never saw.

Arms on travel_desk, all but the first from one supervised model: base, sft, sft_same (the same
demonstrations again), sft_fresh (new ones), rft (train on own verified rollouts), grpo. Compute =
trainer row tokens + sampled tokens; GRPO goes first and what it used is every other arm's budget. On
`counter`, whose demonstrator slips on purpose: base, sft, sft_same, grpo. One seed makes one JSON row;
`flows.stages.prove_table` joins them. Nothing is tuned here, and the held-out splits are read only by
the evaluations.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from flows.stages import run as runs_
from flows.stages.policy import open_policy
from flows.stages.progress import Say
from flows.stages.proof import World, arm_row, named, seeded_recipe, write_row
from flows.stages.recipe import load_recipe
from pipeline.errors import ConfigError
from rl.models import model_label, resolve_model

EXAMPLES = Path(__file__).parents[2] / "examples"
RECIPES = {"travel_desk": EXAMPLES / "prove.yaml", "counter": EXAMPLES / "prove-counter.yaml"}


async def run_prove(seed: int, *, runs: Path, results: Path, say: Say) -> Path:
    """One repetition of the whole proof; returns the row it wrote, `seed-<n>.json`. Resumes."""
    started = time.monotonic()
    recipes = {name: load_recipe(path) for name, path in RECIPES.items()}
    first = next(iter(recipes.values()))
    base, label = resolve_model(first.policy.model), model_label(first.policy.model)
    row: dict[str, Any] = {"seed": seed, "model": label, "versions": runs_.versions(), "worlds": {}}
    async with open_policy(first.policy, model_dir=base, label=label, say=say) as policy:
        for name, recipe in recipes.items():
            seeded = seeded_recipe(recipe, seed)
            with runs_.open_run(seeded, runs) as store:
                world = World(
                    seeded,
                    store,
                    runs_.environment_of(seeded, root=store.root),
                    policy,
                    base,
                    named(say, name),
                )
                await (_travel_desk(world) if name == "travel_desk" else _counter(world))
            row["worlds"][name] = {arm: arm_row(found) for arm, found in world.arms.items()}
    return write_row(row, results, started=started, say=say)


async def _travel_desk(world: World) -> None:
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


async def _counter(world: World) -> None:
    """The positive control: imitation of a slipping demonstrator against reinforcement."""
    await world.evaluate("base")
    demonstrated = await world.demonstrations(world.recipe.synth["demonstrations"].tasks)
    await world.sft("sft", demonstrated, start="base")
    await world.evaluate("sft")
    budget = await world.grpo("grpo", start="sft")
    await world.evaluate("grpo")
    await world.sft("sft_same", demonstrated, start="sft", budget=budget)
    await world.evaluate("sft_same")
