"""Tasks from a file a person writes: YAML (a list, or `defaults:` and `tasks:`) or JSONL, one task a line.

```yaml
- prompt: Order two lamps for customer 7.        # or turns: [first request, later request, ...]
  tools: [find_item, create_order]               # names, in prompt order; all of them where absent
  gold:                                          # executed, never assumed
    - {name: find_item, arguments: {text: lamp}}
    - {name: create_order, arguments: {item: {$result: 0/id}, count: 2}}
    - {say: Ordered.}
  checks:                                        # absent: the gold calls, as a multiset
    - {calls: [{name: create_order, arguments: {item: {$any: true}, count: 2}}]}
    - {answer: {contains: Ordered}}
  split: train
  template: order
  tags: [call]
```

`{$result: N/pointer}` in a gold argument is what the N-th gold call answered (a JSON pointer into it); in a
check, like `{$any: true}`, it matches anything. Gold, checks and later turns are private; gold and checks are
kept there as one text each, because their words (a name in the request, a tool's name) are public ones.
Decides the format, knows no kind of tool: an environment says which tools exist and which further checks it
knows. `task_checks` judges what is generic. Not covered: tasks from a generator (write an environment).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from data import canonical
from data.files import numbered_lines
from data.messages import Turn, assistant, system, user
from data.tasks import Budget, Task
from pipeline.environments.gold import Plan, PlannedGold, call
from pipeline.environments.plain_yaml import parse_document, parse_items, read_text
from pipeline.environments.task_checks import COMMON_CHECKS, CheckKind, resolve
from pipeline.errors import ConfigError

SUFFIXES = (".yaml", ".yml", ".jsonl")
Written = TypeVar("Written", bound=BaseModel)


class GoldStep(BaseModel):
    """One assistant turn of gold: a call, or words that end the turn."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict)
    say: str | None = None

    @model_validator(mode="after")
    def _one_of(self) -> GoldStep:
        if bool(self.name) == (self.say is not None):
            raise ValueError("a gold step is either {name, arguments} or {say}")
        return self


class TaskRow(BaseModel):
    """One task as written."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: str = ""
    turns: list[str] = Field(default_factory=list)
    system: str = ""
    tools: list[str] | None = None
    state: dict[str, Any] = Field(default_factory=dict)
    """The initial state, for environments that take one."""
    gold: list[GoldStep] = Field(min_length=1)
    checks: list[dict[str, Any]] = Field(default_factory=list)
    split: str = "train"
    template: str = "task"
    tags: list[str] = Field(default_factory=list)
    budget: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _complete(self) -> TaskRow:
        if bool(self.prompt) == bool(self.turns):
            raise ValueError("write either `prompt` (one request) or `turns` (a list of requests)")
        if not self.checks and not any(step.name for step in self.gold):
            raise ValueError("gold calls nothing, so `checks` must say what passes, e.g. an `answer`")
        return self

    @property
    def requests(self) -> list[str]:
        """What the user says, in order."""
        return self.turns or [self.prompt]

    def all_checks(self) -> list[dict[str, Any]]:
        """The checks; without any, the gold calls."""
        calls = [{"name": step.name, "arguments": step.arguments} for step in self.gold if step.name]
        return self.checks or [{"calls": calls}]


@dataclass(frozen=True, kw_only=True)
class TaskRules:
    """What an environment tells the reader of its task files."""

    environment: str
    verifier: str
    tools: Sequence[str]
    """Every tool there is."""
    checks: Mapping[str, CheckKind] = field(default_factory=dict)
    """Further kinds of check by name; each says what is wrong with a check's value, "" for nothing."""
    budget: Budget = field(default_factory=Budget)


def read_tasks(path: Path, rules: TaskRules) -> tuple[Task, ...]:
    """The tasks of a file, in its order. Raises ConfigError naming the file, the line and what is wrong."""
    return made_tasks(path, lambda value, where: _task(validated(TaskRow, value, where), rules, where))


def made_tasks(path: Path, make: Callable[[Any, str], Task], *, shown_in: str = __name__) -> tuple[Task, ...]:
    """What `make` makes of every row and of where it stands; none twice. Raises ConfigError.

    `shown_in` is the module whose docstring shows such a file.
    """
    tasks: dict[str, tuple[int, Task]] = {}
    for line, value in _rows(path):
        where = f"{path}, line {line}"
        task = make(value, where)
        first, _ = tasks.setdefault(task.task_id, (line, task))
        if first != line:
            raise ConfigError(f"{where}: the same task as in line {first}; change or remove one")
    if not tasks:
        raise ConfigError(f"{path} holds no tasks; the docstring of {shown_in} shows one")
    return tuple(task for _, task in tasks.values())


def validated(kind: type[Written], value: Any, where: str) -> Written:
    """A row as its model. Raises ConfigError that says where and what is wrong."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = ".".join(str(step) for step in first["loc"])
        raise ConfigError(f"{where}: {at + ': ' if at else ''}{first['msg']}") from error


def splits_of(tasks: Sequence[Task]) -> tuple[str, ...]:
    """The splits in use, in order of appearance."""
    return tuple(dict.fromkeys(task.split for task in tasks))


def file_gold(task: Task) -> PlannedGold:
    """The gold script of a task read here."""
    steps = [GoldStep(**step) for step in canonical.loads(task.private_value()["gold"])]
    return PlannedGold(_plan(steps))


def file_checks(task: Task) -> list[dict[str, Any]]:
    """What must hold at the end; all of it."""
    checks: list[dict[str, Any]] = canonical.loads(task.private_value()["checks"])
    return checks


def later_turns(task: Task) -> list[str]:
    """The user's requests after the first."""
    return list(task.private_value()["turns"])


def _plan(steps: Sequence[GoldStep]) -> Plan:
    results: list[str] = []
    for step in steps:
        if step.say is not None:
            yield assistant(step.say)
            continue
        turns = yield call(step.name, **resolve(step.arguments, results))
        results.append(turns[-1].text)
    if steps[-1].say is None:
        yield assistant("DONE")


def _rows(path: Path) -> list[tuple[int, Any]]:
    """Line and value of every task, the file's defaults merged in."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"task file {path}: the name must end in {', '.join(SUFFIXES)}")
    text = read_text(path)
    if path.suffix == ".jsonl":
        return [(at, _json_line(line, f"{path}, line {at}")) for at, line in numbered_lines(text)]
    whole = parse_document(text, where=str(path))
    defaults = whole.get("defaults", {}) if isinstance(whole, dict) else {}
    if isinstance(whole, dict) and (whole.keys() - {"defaults", "tasks"} or not isinstance(defaults, dict)):
        raise ConfigError(f"{path}: a task file is a list of tasks, or the keys `defaults` and `tasks`")
    rows = parse_items(text, where=str(path), under="tasks")
    return [(line, defaults | row if isinstance(row, dict) else row) for line, row in rows]


def _json_line(line: str, where: str) -> Any:
    try:
        return canonical.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON: {error}") from error


def _task(row: TaskRow, rules: TaskRules, where: str) -> Task:
    known = {*rules.tools}
    named = [*(row.tools or ()), *(step.name for step in row.gold if step.name)]
    unknown = [name for name in named if name not in known]
    unshown = [step.name for step in row.gold if step.name and row.tools and step.name not in row.tools]
    if unknown or unshown:
        what = f"no tool {unknown[0]!r}" if unknown else f"gold calls {unshown[0]!r}, which `tools` hides"
        raise ConfigError(f"{where}: {what}; tools: {', '.join(rules.tools)}")
    for check in row.all_checks():
        _refuse_bad_check(check, {**COMMON_CHECKS, **rules.checks}, where)
    private = {
        "gold": canonical.dumps([step.model_dump(exclude_defaults=True) for step in row.gold]),
        "checks": canonical.dumps(row.all_checks()),
        "turns": row.requests[1:],
    }
    opening: tuple[Turn, ...] = (system(row.system),) if row.system else ()
    return Task(
        environment=rules.environment,
        split=row.split,
        template=row.template,
        tags=tuple(row.tags),
        prompt=(*opening, user(row.requests[0])),
        tools=None if row.tools is None else tuple(row.tools),
        state=canonical.dumps(row.state),
        private=canonical.dumps(private),
        verifier=rules.verifier,
        budget=_budget(row, rules, where),
    )


def _refuse_bad_check(check: dict[str, Any], kinds: Mapping[str, CheckKind], where: str) -> None:
    name = next(iter(check), "")
    if name not in kinds:
        raise ConfigError(f"{where}: no check {name!r}; a check starts with one of {', '.join(kinds)}")
    problem = kinds[name](check)
    if problem:
        raise ConfigError(f"{where}: check {name}: {problem}")


def _budget(row: TaskRow, rules: TaskRules, where: str) -> Budget:
    return validated(Budget, rules.budget.model_dump() | row.budget, f"{where}, budget")
