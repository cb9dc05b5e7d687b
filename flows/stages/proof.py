"""What the proofs share: arms trained from one world's runs at a counted cost, and their rows.

An arm is one way of training; its cost is the tokens of its training rows and those sampled for it. Proofs
say which arms there are (`prove`, `prove_methods`); one repetition makes one JSON row, and
`flows.stages.prove_table` joins them. Nothing is tuned here, and the held-out splits are read only by the
evaluations.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from data.files import write_atomically
from data.store import Store
from data.trajectories import Trajectory
from flows.stages import run as runs_
from flows.stages.evaluate import Evaluation, unseen_section
from flows.stages.policy import LivePolicy, open_policy
from flows.stages.progress import Say
from flows.stages.recipe import EvalSection, Recipe, SynthSection, load_recipe
from flows.stages.synthesize import select_tasks
from flows.stages.train import run_grpo, sft_settings
from flows.stages.verbs import evaluation_stage, synthesis_stage
from pipeline.environments.base import Environment
from pipeline.errors import ConfigError
from rl.models import model_label, resolve_model
from rl.results import TrainResult
from rl.rows import Row, sft_rows

if TYPE_CHECKING:
    from rl.sft import SftConfig

EXAMPLES = Path(__file__).parents[2] / "examples"
_TEMPERATURES = (0.0, 1.0)


@dataclass
class Arm:
    """One way of training, and what it cost beyond the model it started from."""

    row_tokens: int = 0
    """Tokens of the training rows, shared prefixes counted for every row."""
    computed_tokens: int = 0
    """Tokens the trainer computed, shared prefixes counted once."""
    sampled_tokens: int = 0
    seconds: float = 0.0
    evaluations: list[Evaluation] = field(default_factory=list)

    @property
    def compute(self) -> int:
        """Trainer row tokens + sampled tokens."""
        return self.row_tokens + self.sampled_tokens


@dataclass
class World:
    """One environment's half of a proof: its run, its arms so far."""

    recipe: Recipe
    store: Store
    environment: Environment
    policy: LivePolicy
    base: Path
    say: Say
    arms: dict[str, Arm] = field(default_factory=dict)

    def model(self, arm: str) -> Path:
        """Where an arm's model is."""
        return self.base if arm == "base" else self.store.root / "models" / arm

    async def demonstrations(self, count: int, *, skip: int = 0) -> list[Trajectory]:
        """Demonstrations of `count` train tasks after the first `skip`, the unsuccessful ones included."""
        section = self.recipe.synth["demonstrations"].model_copy(update={"tasks": count, "skip": skip})
        return await self._synthesised(section)

    async def rollouts(self, section: SynthSection) -> list[Trajectory]:
        """Rollouts of the model that acts now."""
        return await self._synthesised(section)

    async def sft(
        self, arm: str, rows: Sequence[Trajectory], *, start: str, budget: int = 0, sampled: int = 0
    ) -> None:
        """Train `arm` from the model of `start`: one epoch, or steps that add up to `budget` row tokens."""
        from rl.sft import train_sft

        config = sft_settings(self.recipe.sft)
        if budget:
            config = within(config, sft_rows(rows), budget)
        result = train_sft(
            rows,
            model_dir=self.model(start),
            out_dir=self.model(arm),
            config=config,
            stop_token_ids=self.policy.renderer.stop_token_ids,
            on_progress=lambda step: self.say(
                f"{arm} step {step.step}/{step.total_steps}: loss {step.loss:.3f}"
            ),
        )
        self._record(arm, result, sampled=sampled)

    async def grpo(self, arm: str, *, start: str, changes: Mapping[str, Any] | None = None) -> int:
        """Train `arm` online from the model of `start`, with `changes` to the recipe's settings; returns the
        compute it used."""
        section = self.recipe.grpo
        section = section.model_copy(update={"settings": section.settings | dict(changes or {})})
        tasks = select_tasks(self.environment, section.split, count=section.tasks, skip=section.skip)
        result = await run_grpo(
            tasks,
            section,
            model_dir=self.model(start),
            out_dir=self.model(arm),
            environment=self.environment,
            policy=self.policy,
            on_trajectory=self.store.append,
            on_candidate=self.store.append,
            run_id=self.store.root.name,
            say=named(self.say, arm),
        )
        self.store.seal()
        self._record(arm, result, sampled=result.generated_tokens)
        return self.arms[arm].compute

    async def evaluate(self, arm: str) -> None:
        """Evaluate an arm on the held-out split at both temperatures, and on unseen templates greedily.

        All the tasks at the recipe's temperature, where the arms are told apart best, half at the other, a
        tenth of as many unseen ones.
        """
        await self.policy.load(self.model(arm))
        known = self.arms.setdefault(arm, Arm())
        for section in self._evaluations():
            found = await evaluation_stage(
                self.store,
                self.recipe,
                arm,
                environment=self.environment,
                policy=self.policy,
                section=section,
                say=self.say,
            )
            found.refuse_broken()
            known.evaluations.append(found)

    def _evaluations(self) -> list[EvalSection]:
        section = self.recipe.evaluate
        sections = []
        for temperature in _TEMPERATURES:
            tasks = section.tasks if temperature == section.temperature else section.tasks // 2
            sections.append(section.model_copy(update={"temperature": temperature, "tasks": tasks}))
        greedy = section.model_copy(update={"temperature": 0.0})
        unseen = unseen_section(greedy, self.environment, most=max(1, section.tasks // 10))
        return sections if unseen is None else [*sections, unseen]

    async def _synthesised(self, section: SynthSection) -> list[Trajectory]:
        name = f"{section.synthesizer}-{section.skip}-{section.tasks}"
        await synthesis_stage(
            self.store,
            name,
            section,
            environment=self.environment,
            policy=self.policy,
            seed=self.recipe.seed,
            say=self.say,
        )
        return made_by(section, store=self.store, environment=self.environment)

    def _record(self, arm: str, result: TrainResult, *, sampled: int) -> None:
        self.arms[arm] = Arm(
            row_tokens=result.row_tokens,
            computed_tokens=result.computed_tokens,
            sampled_tokens=sampled,
            seconds=result.seconds,
        )


class Proof(NamedTuple):
    """A comparison of arms in one environment."""

    recipe: Path
    arms: Callable[[World], Awaitable[Mapping[str, Mapping[str, float]]]]
    """Trains and evaluates every arm; returns what an arm's row says beside its cost and outcomes."""
    baseline: str = "sft"
    """The arm that the others are compared with,"""
    against: Mapping[str, str] = MappingProxyType({})
    """but for these: arm to the arm it is compared with."""


async def run_proof(proof: Proof, seed: int, *, runs: Path, results: Path, say: Say) -> Path:
    """One repetition; returns the row it wrote, `results/seed-<n>.json`. Resumes."""
    started = time.monotonic()
    recipe = seeded_recipe(load_recipe(proof.recipe), seed)
    base, label = resolve_model(recipe.policy.model), model_label(recipe.policy.model)
    with runs_.open_run(recipe, runs) as store:
        environment = runs_.environment_of(recipe, root=store.root)
        async with open_policy(
            recipe.policy, model_dir=base, label=label, environment=environment, say=say
        ) as policy:
            world = World(recipe, store, environment, policy, base, say)
            said = await proof.arms(world)
    row = {
        "seed": seed,
        "model": label,
        "versions": runs_.versions(),
        "baseline": proof.baseline,
        "environment": recipe.environment.name,
        "arms": {arm: arm_row(found) | dict(said.get(arm, {})) for arm, found in world.arms.items()},
        "seconds": round(time.monotonic() - started),
    }
    if proof.against:
        row["against"] = dict(proof.against)
    path = results / f"seed-{seed}.json"
    write_atomically(path, json.dumps(row, sort_keys=True) + "\n")
    say(f"wrote {path}")
    return path


def seeded_recipe(recipe: Recipe, seed: int) -> Recipe:
    """The recipe of one repetition: its own run directory, and the seed in every stage that draws."""
    sft = recipe.sft.model_copy(update={"settings": recipe.sft.settings | {"seed": seed}})
    grpo = recipe.grpo.model_copy(update={"settings": recipe.grpo.settings | {"seed": seed}})
    changes = {"name": f"{recipe.name}-{seed}", "seed": seed, "sft": sft, "grpo": grpo}
    return recipe.model_copy(update=changes)


def made_by(section: SynthSection, *, store: Store, environment: Environment) -> list[Trajectory]:
    """What a finished synthesis made, the unsuccessful ones included."""
    tasks = select_tasks(environment, section.split, count=section.tasks, skip=section.skip)
    wanted = {task.task_id for task in tasks}
    planned = [task for task in store.tasks() if task.synthesizer == section.synthesizer]
    wanted |= {task.task_id for task in planned if wanted.intersection(task.parents)}
    made = [row for row in store.trajectories() if row.task_id in wanted]
    return [row for row in made if row.synthesizer == section.synthesizer]


def arm_row(arm: Arm) -> dict[str, Any]:
    """An arm as JSON: cost, and per evaluation the rates and the outcome of every task in id order."""
    return {
        "row_tokens": arm.row_tokens,
        "computed_tokens": arm.computed_tokens,
        "sampled_tokens": arm.sampled_tokens,
        "seconds": round(arm.seconds, 1),
        "evaluations": [_evaluation_row(found) for found in arm.evaluations],
    }


def _evaluation_row(found: Evaluation) -> dict[str, Any]:
    return {
        "split": found.split,
        "temperature": found.temperature,
        "success": [found.success.successes, found.success.trials],
        "valid_calls": [found.valid_calls.successes, found.valid_calls.trials],
        "infra_failures": found.infra_failures,
        "generated_tokens": found.generated_tokens,
        "outcomes": outcomes_by_template(found),
    }


def outcomes_by_template(found: Evaluation) -> dict[str, dict[str, float]]:
    """Template to the first 10 digits of a task's id to its success: what rows are joined on."""
    outcomes: dict[str, dict[str, float]] = {}
    for outcome in found.outcomes:
        outcomes.setdefault(outcome.template, {})[outcome.task_id[:10]] = outcome.success
    return outcomes


def within(config: SftConfig, rows: Sequence[Row], budget: int) -> SftConfig:
    """The config with as many steps over `rows`, again and again, as come nearest to `budget` row tokens."""
    from rl.sft import plan_steps

    # A step is at least this large, but for the last of an epoch; twice as many are surely enough.
    least = min(config.tokens_per_step, sum(len(row.token_ids) for row in rows))
    config = replace(config, epochs=10_000, max_steps=2 * budget // least + 2)
    return replace(config, max_steps=steps_for(plan_steps(rows, config), budget))


def steps_for(steps: Iterable[Sequence[Row]], budget: int) -> int:
    """The number of first steps whose row tokens come nearest to `budget`; at least 1."""
    total = 0
    for number, rows in enumerate(steps, start=1):
        size = sum(len(row.token_ids) for row in rows)
        if total + size >= budget:
            return max(1, number if total + size - budget <= budget - total else number - 1)
        total += size
    raise ConfigError(f"the steps end after {total} tokens, the budget is {budget}; allow more epochs")


def named(say: Say, name: str) -> Say:
    """`say` with a name before each line."""
    return lambda line: say(f"{name}: {line}")
