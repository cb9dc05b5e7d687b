"""The synthesis stage: tasks of a split through one synthesizer into the store, resumable at any row.

What is done is what is on disk: ids in the store are not made again, recorded infrastructure failures
get a new attempt. Evaluation uses it too, into another directory. Not covered: which synthesizers
exist (`synthesizers`).
"""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from data.schema import Kind, kind_of, record_id
from data.store import Store
from data.tasks import Task
from data.trajectories import Trajectory
from data.verdicts import Pair, Verdict
from flows.stages.policy import LivePolicy
from flows.stages.progress import Meter, Say, silent
from flows.stages.recipe import EvalSection, GrpoSection, SynthSection
from pipeline.checks.options import check_options
from pipeline.environments.base import Environment
from pipeline.errors import ConfigError, EnvironmentFailure, TrajsmithError
from synthesizers import load_synthesizer
from synthesizers.base import Synthesizer, is_given_up
from synthesizers.role_chats import CHATS, POLICY, check_chats

_SAY_EVERY_SECONDS = 5.0
_GIVEN = {
    *("environment", "engine", "renderer", "sampling", "settings"),
    *("max_in_flight", "seed", "run_id", "load", "chat_dir", "store"),
}
"""What the stage gives a synthesizer; everything else it takes is an option of the recipe."""


def select_tasks(environment: Environment, split: str, *, count: int, skip: int = 0) -> list[Task]:
    """`count` tasks of a split after the first `skip`, in its order. ConfigError where it has too few."""
    if split not in environment.splits:
        splits = ", ".join(environment.splits)
        raise ConfigError(f"environment {environment.name} has no split {split!r}; it has {splits}")
    listed, tasks = 0, list[Task]()
    try:
        for listed, task in enumerate(itertools.islice(environment.tasks(split), skip + count), 1):
            if listed > skip:
                tasks.append(task)
    except TrajsmithError:
        raise
    except Exception as error:
        raise EnvironmentFailure(
            f"environment {environment.name} could not list its split {split!r}: {error!r}"
        ) from error
    if len(tasks) < count:
        raise ConfigError(
            f"split {split!r} of {environment.name} ends after {listed} tasks; "
            f"asked for {count} from number {skip} on"
        )
    return tasks


def section_tasks(
    section: GrpoSection | EvalSection, *, environment: Environment, store: Store, skip: int = 0
) -> list[Task]:
    """The tasks a section acts on: of its split, or what a synthesizer planned from it (`tasks_of`)."""
    if not section.tasks_of:
        return select_tasks(environment, section.split, count=section.tasks, skip=skip)
    return planned_tasks(
        store, section.tasks_of, environment=environment, split=section.split, count=section.tasks, skip=skip
    )


def planned_tasks(
    store: Store, synthesizer: str, *, environment: Environment, split: str, count: int, skip: int = 0
) -> list[Task]:
    """At most `count` tasks that a synthesizer planned from a split, by id, after the first `skip`.

    How many plans become tasks is known only afterwards; ConfigError where the store has none of them.
    """
    there = [task for task in store.tasks() if task.synthesizer and task.environment == environment.name]
    wanted = [task for task in there if (task.synthesizer, task.split) == (synthesizer, split)]
    chosen = sorted(wanted, key=lambda task: task.task_id)[skip : skip + count]
    if not chosen:
        found = Counter(f"{task.synthesizer} from {task.split}" for task in there)
        held = ", ".join(f"{number} of {name}" for name, number in sorted(found.items())) or "none at all"
        after = f" after the first {skip}" if skip else ""
        raise ConfigError(
            f"{store.root} holds no task of {environment.name} that {synthesizer!r} planned from split "
            f"{split!r}{after}; planned tasks there: {held}. Run `trajsmith synth` with that synthesizer "
            f"first, or name in tasks_of and split what is there"
        )
    return chosen


def checked_synthesizer(section: SynthSection) -> type[Any]:
    """The synthesizer a section names. ConfigError where there is none, or it does not take its options."""
    kind = load_synthesizer(section.synthesizer)
    allowed = sorted(set(inspect.signature(kind).parameters) - _GIVEN)
    if unknown := sorted(set(section.options) - set(allowed)):
        options = ", ".join(allowed)
        raise ConfigError(
            f"synthesizer {section.synthesizer} has no option {', '.join(unknown)}; its options: {options}"
        )
    check_options(kind, section.options, where=f"options of {section.synthesizer}")
    if "chats" in allowed:
        chat, chats = section.options.get("chat"), section.options.get("chats", {})
        check_chats(chat, chats, known=kind.role_names, method=section.synthesizer)
    return kind


def refuse_script(section: SynthSection) -> None:
    """ConfigError where a synthesis needs a model: the scripted policy plays an environment's own tasks."""
    options = section.options
    speakers = {"chat": options.get("chat")}
    speakers |= {f"chats.{role}": setting for role, setting in options.get("chats", {}).items()}
    asked = [where for where, setting in speakers.items() if setting == POLICY]
    asked += ["teacher"] if options.get("teacher", "gold") != "gold" else []
    if asked:
        raise ConfigError(
            f"{asked[0]} of {section.synthesizer} needs a model, and policy.engine is scripted: it plays the "
            f"gold of the environment's own tasks and says nothing else. Set policy.engine: vllm, or leave "
            f"{asked[0]} out"
        )


def make_synthesizer(
    section: SynthSection, *, environment: Environment, policy: LivePolicy, store: Store, seed: int
) -> Synthesizer:
    """The synthesizer a section names, with its options. ConfigError names what it takes."""
    kind = checked_synthesizer(section)
    parameters = inspect.signature(kind).parameters
    given: dict[str, Any] = {
        "environment": environment,
        "engine": policy.engine,
        "renderer": policy.renderer,
        "sampling": policy.sampling,
        "settings": policy.settings,
        "max_in_flight": policy.max_in_flight,
        "seed": seed,
        "run_id": store.root.name,
        "chat_dir": store.root / CHATS / section.synthesizer,
        "load": lambda trajectory_id: store.get("trajectories", trajectory_id),
        "store": store,
    }
    given = {name: value for name, value in given.items() if name in parameters}
    synthesizer: Synthesizer = kind(**given, **section.options)
    return synthesizer


async def synthesize(
    store: Store,
    synthesizer: Synthesizer,
    tasks: Sequence[Task],
    *,
    planned: int,
    at_most: bool = False,
    give_up_after: int = 64,
    say: Say = silent,
) -> Meter:
    """Make the missing trajectories of `tasks`, append each as it finishes, seal at the end.

    `planned` is the number of episodes of the whole stage, or a bound (`at_most`), for the progress line.
    Where infrastructure breaks `give_up_after` episodes in a row, it is down: raises EngineError (or whose
    error it is).
    """
    kept = {kind: store.ids(kind) for kind in (Kind.TASKS, Kind.PAIRS, Kind.VERDICTS)}
    for task in tasks:
        _keep(store, task, kept)
    done, failed = store.ids("trajectories"), store.ids("failures")
    meter, next_line = Meter(planned, at_most), _SAY_EVERY_SECONDS
    async with aclosing(synthesizer.synthesize(tasks, done=done, failed=failed)) as made:
        async for record in made:
            if isinstance(record, Trajectory):
                store.append(record)
                meter.add(record)
                if meter.broken_in_a_row >= give_up_after:
                    raise meter.failure()
            else:
                _keep(store, record, kept)
                if is_given_up(record):
                    meter.give_up(record.reason)
            if meter.seconds >= next_line:
                say(meter.line())
                next_line = meter.seconds + _SAY_EVERY_SECONDS
    store.seal()
    if meter.cut():
        meter.let_go({row.group_id for row in store.trajectories()})
    say(meter.line())
    return meter


def _keep(store: Store, record: Task | Pair | Verdict, kept: dict[Kind, set[str]]) -> None:
    """Append what is not there yet: planning is repeated when a synthesis resumes, and makes the same."""
    key, there = record_id(record), kept[kind_of(record)]
    if key not in there:
        store.append(record)
        there.add(key)
