"""One round of one arm of a loop: its folder, its arrows, and whether its model is kept.

`rounds/<n>/<arm>/` is laid out as a run is. Every arrow ends with a manifest whose key covers its options and
the manifest of the arrow before it, so a killed loop goes on at the arrow it died in. Weights are continued
from the model kept so far, the optimizer starts anew. Not covered: what an arm's data is (`looptool`,
`baselines`) and when there is another round (`rules`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from data import canonical, faults
from data.files import write_atomically
from data.manifests import stage_key
from data.messages import Record
from data.store import Store
from data.summaries import read_summary
from data.trajectories import Trajectory
from flows.stages import run as runs_
from flows.stages.evaluate import Evaluation
from flows.stages.loop.rules import Finished, Gate, Guarded, gate
from flows.stages.loop.training import Tasks, train_round, training_key
from flows.stages.policy import LivePolicy
from flows.stages.progress import Say
from flows.stages.recipe import GROWING, VOLATILE, EvalSection, Recipe, default_recipe
from flows.stages.scripted import ScriptedPolicy
from flows.stages.synthesize import section_tasks
from flows.stages.verbs import evaluation_stage
from pipeline.diagnosis.capabilities import capabilities_of
from pipeline.environments.base import Environment
from pipeline.errors import ConfigError
from pipeline.reporting.content import ReasonCount
from rl.results import finished_result
from synthesizers.demonstration import Demonstration

ARROWS = ("probe", "repair", "expand", "curate", "sample", "train", "evaluate")
POINTS = tuple(f"loop.{arrow}.{when}" for arrow in ARROWS for when in ("before", "worked", "after"))
"""Where a loop can be killed on purpose (`data.faults`), beside the store's own points."""
RESULT = "round.json"
MODEL = Path("models") / "sft"


class RoundResult(Record):
    """What one round made of one arm."""

    round: int
    arm: str
    accepted: bool
    reason: str
    """Why its model is kept or not."""
    weights: str
    """Digest of what was trained; "" where nothing was."""
    steps: int = 0
    row_tokens: int = 0
    computed_tokens: int = 0
    sampled_tokens: int = 0
    train_seconds: float = 0.0
    data: tuple[ReasonCount, ...] = ()
    """What it was trained on and what was found on the way, in numbers."""
    dev: Evaluation
    """Of the trained model, kept or not."""
    guarded: tuple[Guarded, ...] = ()

    @property
    def finished(self) -> Finished:
        """What the rules of a loop look at."""
        success = self.dev.success.value or 0.0
        tokens = self.row_tokens + self.sampled_tokens
        return Finished(dev=success, accepted=self.accepted, tokens=tokens)


@dataclass(frozen=True)
class Kept:
    """The model an arm goes on from, and its dev evaluation (None before the first)."""

    model_dir: Path
    weights: str
    dev: Evaluation | None = None


@dataclass
class LoopWork:
    """What every round works with."""

    recipe: Recipe
    store: Store
    """The run's own; rounds have stores of their own."""
    environment: Environment
    policy: LivePolicy
    base: Path
    say: Say
    _capabilities: dict[str, tuple[str, ...]] = field(default_factory=dict)

    async def act_with(self, kept: Kept) -> None:
        """Put a model under the policy. The scripted policy plays what it plays, whatever was trained."""
        engine = self.policy.engine
        if not isinstance(engine, ScriptedPolicy) and engine.weights_version != kept.weights:
            await self.policy.load(kept.model_dir)

    def place(self, number: int, arm: str) -> Path:
        """The folder of a round of an arm."""
        return self.store.root / "rounds" / str(number) / arm

    def open_round(self, number: int, arm: str) -> Store:
        """Its store, open for writing."""
        identity = self.recipe.model_dump(mode="json") | {"round": number, "arm": arm}
        return Store.create_or_open(
            self.place(number, arm), identity, volatile=VOLATILE, growing=GROWING, defaults=default_recipe()
        )

    async def evaluate(
        self, arm: str, section: EvalSection, *, store: Store | None = None, say: Say | None = None
    ) -> Evaluation:
        """Evaluate what acts now; beside the run's own data unless a round's `store` is given.

        EngineError where infrastructure broke episodes: arms are compared on all tasks.
        """
        found = await evaluation_stage(
            store or self.store,
            self.recipe,
            arm,
            environment=self.environment,
            policy=self.policy,
            section=section,
            say=say or self.say,
        )
        found.refuse_broken()
        return found

    async def capabilities(self) -> Mapping[str, tuple[str, ...]]:
        """Dev task to what it exercises, by the gold that is played once; the same for every model."""
        if not self._capabilities:
            found = section_tasks(self.recipe.loop.dev, environment=self.environment, store=self.store)
            tasks = {task.task_id: task for task in found}
            gold = Demonstration(environment=self.environment, renderer=self.policy.renderer)
            async for played in gold.synthesize(found):
                names = capabilities_of(played, tasks[played.task_id], played.turns)
                self._capabilities[played.task_id] = names
        return self._capabilities


async def arrow(
    store: Store,
    name: str,
    work: Callable[[], Awaitable[Mapping[str, int]]],
    *,
    config: Any,
    inputs: Mapping[str, str],
    say: Say,
) -> str:
    """Do `work` (it returns counts) unless it was done for this config and these inputs; the arrow's key."""
    if runs_.stage_done(store, name, config=config, inputs=inputs):
        say(f"{name}: done before")
    else:
        faults.kill_point(f"loop.{name}.before")
        counts = await work()
        faults.kill_point(f"loop.{name}.worked")
        runs_.finish(store, name, config=config, inputs=inputs, counts=counts)
        faults.kill_point(f"loop.{name}.after")
    return stage_key(config, inputs, runs_.CODE_VERSION)


def rows_digest(rows: Iterable[Trajectory]) -> str:
    """Digest of what is trained on or probed, whatever its order."""
    return canonical.digest(sorted(row.content_digest() for row in rows))


def counts_of(store: Store, name: str) -> dict[str, int]:
    """What a finished arrow counted."""
    manifest = store.manifest(name)
    if manifest is None:
        raise ConfigError(f"{store.root}: {name} has not finished; run the same loop again")
    return dict(manifest["counts"])


async def train_and_judge(
    work: LoopWork,
    store: Store,
    rows: Callable[[], Iterable[Trajectory]],
    *,
    tasks: Tasks = dict,
    number: int,
    arm: str,
    kept: Kept,
    data_key: str,
    steps: int = 0,
    sampled_tokens: int = 0,
    data: Sequence[ReasonCount] = (),
    say: Say,
) -> tuple[RoundResult, Kept]:
    """The last two arrows of every arm: train from the kept model, evaluate on dev, keep or refuse.

    `rows` and their `tasks` are read where training is not done; `steps`: optimiser steps, 0 = as the recipe
    says.
    """
    out = store.root / MODEL

    async def train() -> dict[str, int]:
        trained = await train_round(
            work.recipe,
            work.policy,
            list(rows()),
            tasks,
            number=number,
            arm=arm,
            start=kept.model_dir,
            out=out,
            steps=steps,
            say=say,
        )
        return {"steps": trained.steps, "row_tokens": trained.row_tokens}

    config = training_key(work.recipe, number, arm, steps=steps)
    inputs = {"data": data_key, "weights": kept.weights}
    if finished_result(out, {}) is None:
        store.forget_stage("train")  # a model that was deleted is trained anew
    key = await arrow(store, "train", train, config=config, inputs=inputs, say=say)
    trained = finished_result(out, {})
    assert trained is not None, "a finished training leaves its result"
    fresh = Kept(out, trained.weights_digest)

    async def evaluate() -> dict[str, int]:
        await work.act_with(fresh)
        found = await work.evaluate(arm, work.recipe.loop.dev, store=store, say=say)
        judged = await _judge(work, kept.dev, found)
        result = RoundResult(
            round=number,
            arm=arm,
            accepted=judged.accepted,
            reason=judged.reason,
            weights=trained.weights_digest,
            steps=trained.steps,
            row_tokens=trained.row_tokens,
            computed_tokens=trained.computed_tokens,
            sampled_tokens=sampled_tokens + trained.generated_tokens,
            train_seconds=trained.train_seconds,
            data=tuple(data),
            dev=found,
            guarded=judged.guarded,
        )
        write_result(store, result)
        return {"tasks": len(found.outcomes), "accepted": int(judged.accepted)}

    section, inputs = work.recipe.loop, {"model": key, "kept": kept.weights}
    config = {"dev": section.dev.model_dump(mode="json"), "gate": section.gate.model_dump(mode="json")}
    await arrow(store, "evaluate", evaluate, config=config, inputs=inputs, say=say)
    result = read_result(store.root)
    kept_or_not = "kept" if result.accepted else "refused"
    say(f"dev {result.dev.success.value or 0.0:.1%}, {kept_or_not}: {result.reason}")
    return result, replace(fresh, dev=result.dev) if result.accepted else kept


def write_result(store: Store, result: RoundResult) -> None:
    """Keep a round's result in its folder."""
    write_atomically(store.root / RESULT, result.model_dump_json(indent=1) + "\n")


def read_result(root: Path) -> RoundResult:
    """The result of the finished round in a folder. StoreError where its file is damaged."""
    again = "delete it and manifests/evaluate.json beside it, and run the same loop again"
    return read_summary(RoundResult, root / RESULT, of="a round of `trajsmith loop`", again=again)


async def _judge(work: LoopWork, before: Evaluation | None, after: Evaluation) -> Gate:
    if before is None:
        return Gate(accepted=True, reason="the model that the loop starts from", guarded=())
    was, now = ({row.task_id: row.success for row in found.outcomes} for found in (before, after))
    return gate(was, now, await work.capabilities(), work.recipe.loop.gate)
