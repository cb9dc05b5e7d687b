"""The tasks of code_repair: which defect, under which names, among which code, and how the user puts it.

A defect belongs to one split by the digest of its mutations, a pair to the split of both or to none; so
nothing broken in one split is broken that way in another. The programs of `heldout_unseen` are broken nowhere
else. Tasks of one defect differ in level, names, neighbours and wording. Not covered: bugs that nobody wrote
an operator for.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence
from typing import Any

from data import canonical
from data.messages import system, user
from data.tasks import Budget, Task
from pipeline.environments.code_repair.mutants import DATA_FILE, Defect, defects_of
from pipeline.environments.code_repair.programs import SEEN, UNSEEN
from pipeline.environments.code_repair.runs import PlannedCall
from pipeline.environments.code_repair.session import RepairSession
from pipeline.environments.code_repair.workspace import (
    Level,
    Workspace,
    make_workspace,
    mapping,
    name_choices,
    repairs,
)
from pipeline.environments.gold import Plan, PlannedGold, call
from pipeline.environments.sandboxed import SandboxRunner
from pipeline.environments.splits import NUM_TASKS, split_of
from pipeline.environments.splits import UNSEEN as UNSEEN_SPLIT
from pipeline.environments.toolkit import ToolEnvironment, ToolSession
from pipeline.environments.tools import ToolLimits
from pipeline.errors import ConfigError
from pipeline.sandbox.load import SandboxChoice

SYSTEM = "Fix the code with the tools. Hidden tests decide. End with finish."
_ASKED = {
    Level.FUNCTION: "{0} has a bug. Fix it.",
    Level.FILE: "A function in {0} is wrong. Fix it.",
    Level.FILES: "A function in {0}, {1} or {2} is wrong. Fix it.",
}
_TOKENS = {Level.FUNCTION: 1536, Level.FILE: 3072, Level.FILES: 3072}
_MAX_TURNS = 12
_STRIDE = 7
"""Levels begin at other places of a program's defects, so that neighbours in a split are other bugs."""


class CodeRepair(ToolEnvironment):
    """`levels`: only these (see `Level`); `bugs`: 1, 2 or both; `sandbox`: what runs the code, a name or
    `{name: remote, url: ...}`.

    `levels` and `bugs` choose among tasks and change none.
    """

    name = "code_repair"
    splits = tuple(NUM_TASKS)
    session = RepairSession

    def __init__(
        self,
        *,
        levels: Sequence[str] = tuple(Level),
        bugs: Sequence[int] = (1, 2),
        sandbox: SandboxChoice = "bubblewrap",
        limits: ToolLimits | None = None,
    ) -> None:
        super().__init__(limits=limits or ToolLimits(max_tool_response_length=4000))
        unknown = [level for level in levels if level not in tuple(Level)]
        if unknown or not levels or not bugs or not {1, 2}.issuperset(bugs):
            raise ConfigError(
                f"code_repair has no levels {list(levels)} with bugs {list(bugs)}; "
                f"levels are {', '.join(Level)}, bugs 1 and 2"
            )
        self.levels, self.bugs = tuple(Level(level) for level in levels), tuple(bugs)
        self.runner = SandboxRunner(sandbox)
        self.version = canonical.digest(self.version, DATA_FILE.read_text(encoding="utf-8"), length=12)

    def tasks(self, split: str) -> Iterator[Task]:
        """`NUM_TASKS[split]` tasks at most; programs take turns, then levels, then numbers of bugs."""
        self.check_split(split)
        names = UNSEEN if split == UNSEEN_SPLIT else SEEN
        seen: set[str] = set()
        for index in range(NUM_TASKS[split]):
            number, program = divmod(index, len(names))
            number, level = divmod(number, len(self.levels))
            number, bugs = divmod(number, len(self.bugs))
            pool = pools(names[program], split)[self.bugs[bugs] - 1]
            if not pool:
                continue
            variant, place = divmod(number, len(pool))
            defect = pool[(place + _STRIDE * list(Level).index(self.levels[level])) % len(pool)]
            task = make_task(names[program], defect, split, level=self.levels[level], variant=variant)
            if task.task_id not in seen:
                seen.add(task.task_id)
                yield task

    async def open(self, task: Task, *, seed: int = 0) -> ToolSession:
        """See `ToolEnvironment.open`."""
        session = await super().open(task, seed=seed)
        assert isinstance(session, RepairSession)
        session.runner = self.runner
        return session

    def gold(self, task: Task) -> PlannedGold:
        """Read, undo each mutation and test, submit; where there are several files, the tests come first."""
        return PlannedGold(_plan(task))


def load(**options: Any) -> CodeRepair:
    """The code_repair environment; options are those of CodeRepair."""
    return CodeRepair(**options)


@functools.cache
def pools(name: str, split: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Indices into `defects_of(name)` of the split's defects: single ones and pairs, each shuffled."""
    found: tuple[list[int], list[int]] = ([], [])
    for index, defect in enumerate(defects_of(name)):
        if split_of_defect(defect) == split:
            found[len(defect.mutations) - 1].append(index)
    for indices in found:
        random.Random(f"code_repair/{split}/{name}").shuffle(indices)
    return tuple(found[0]), tuple(found[1])


def split_of_defect(defect: Defect) -> str | None:
    """The one split where this defect occurs."""
    if defect.program.unseen:
        return UNSEEN_SPLIT
    splits = {split_of(canonical.dumps([defect.program.name, mutation])) for mutation in defect.mutations}
    return splits.pop() if len(splits) == 1 else None


def make_task(name: str, index: int, split: str, *, level: Level, variant: int = 0) -> Task:
    """The task of repairing a program's `index`-th defect; `variant` draws names, neighbours and words."""
    defect = defects_of(name)[index]
    rng = random.Random(f"code_repair/{name}/{index}/{level}/{variant}")
    choices = name_choices(defect.program, rng)
    made = make_workspace(defect, choices, level, rng)
    state = {
        "files": made.files,
        "functions": made.functions,
        "tests": [case for case, _ in made.public],
        "public": [value for _, value in made.public],
        "submitted": False,
        "paid": [],
    }
    private = {
        "calls": [case for case, _ in made.hidden],
        "values": [value for _, value in made.hidden],
        "broken": made.broken,
        "red": made.red,
        "defect": index,
        "choices": choices,
    }
    return Task(
        environment="code_repair",
        split=split,
        template=name,
        tags=_tags(defect, level),
        prompt=(system(SYSTEM), user(_asked(made, level, rng))),
        state=canonical.dumps(state),
        private=canonical.dumps(private),
        verifier="code_repair/hidden_cases/1",
        budget=Budget(max_turns=_MAX_TURNS, max_tokens=_TOKENS[level]),
    )


def _tags(defect: Defect, level: Level) -> tuple[str, ...]:
    several = ("two_bugs",) if len(defect.mutations) > 1 else ()
    silent = () if defect.red else ("silent",)
    return ("repair", level.value, *several, *silent)


def _asked(made: Workspace, level: Level, rng: random.Random) -> str:
    """What the user says; half of them name a test that fails."""
    asked = _ASKED[level].format(*made.files)
    if not made.red or rng.random() < 0.5:
        return asked
    (index, arguments), value = made.public[rng.choice(made.red)]
    return f"{asked} {PlannedCall(*made.functions[index], arguments)} should be {value!r}."


def _plan(task: Task) -> Plan:
    private, files = task.private_value(), task.state_value()["files"]
    defect = defects_of(task.template)[private["defect"]]
    path = list(files)[private["broken"]]
    where = {"path": path} if len(files) > 1 else {}
    if Level.FUNCTION not in task.tags:
        yield call("run_tests")
    yield call("read_file", path=path)
    for edit in repairs(defect, mapping(defect.program, private["choices"]), files[path]):
        yield call("edit", old=edit.old, new=edit.new, **where)
        yield call("run_tests")
    yield call("finish")
