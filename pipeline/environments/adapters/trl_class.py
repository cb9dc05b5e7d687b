"""A TRL environment class as an environment of ours: `reset(**row)`, tools as public methods, `get_reward()`.

    trl_class: {factory: "my_project.envs:MyEnv", rows: "my_project/rows.jsonl"}

A row is what TRL's dataset row is: `prompt` (text or messages) and whatever `reset` takes. As in TRL, what
`reset` returns is appended to the last user message, and results are shown as `str(result)`. Unlike TRL, a
method that breaks is infrastructure (`infra_error`), unless what it raises is a ToolError, ValueError,
LookupError or ArithmeticError.

Not covered: image observations, several classes in one dataset, `reset` that answers differently each time
(it is called once for the task and once for every episode, and a difference ends the episode).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from data import canonical
from data.files import user_path
from data.messages import Turn, user
from data.tasks import Task
from data.trajectories import Reward, Trajectory
from pipeline.dotted import load_dotted
from pipeline.environments.adapters.rows import Row, gold_of, parted, read_rows, splits_of, turns_of
from pipeline.environments.gold import PlannedGold
from pipeline.environments.responses import as_response
from pipeline.environments.toolkit import ToolEnvironment, ToolSession
from pipeline.environments.tools import ToolLimits, tool
from pipeline.errors import ConfigError, EnvironmentFailure, JudgeError


class TrlSession(ToolSession):
    """One instance of the user's class. The state that snapshots keep is the instance's attributes."""

    factory: Callable[[], Any]

    async def start(self) -> None:
        """Make the instance and `reset` it with the row. EnvironmentFailure where it is not as it was."""
        await super().start()
        self.inner = self.factory()
        row = self.task.state_value() | self.task.private_value()["row"]
        said = self.inner.reset(**row) or ""
        if self.task.prompt != _prompt(row["prompt"], said):
            raise EnvironmentFailure(
                f"reset() of task {self.task.task_id} said {str(said)[:80]!r}, which is not what the task's "
                f"prompt ends in; make it depend on the row alone"
            )
        self.reward = 0.0

    async def verify(self, trajectory: Trajectory) -> Reward:
        """The reward is what `get_reward` returns; None or an exception is a failed verifier."""
        self._refuse_if_poisoned()
        try:
            given = self.inner.get_reward()
            self.reward = float(await given if inspect.isawaitable(given) else given)
        except Exception as error:
            raise JudgeError(f"get_reward() failed on task {self.task.task_id}: {error!r}") from error
        return await super().verify(trajectory)

    def judge(self, trajectory: Trajectory) -> Mapping[str, float]:
        """Its `get_reward`, as it is."""
        return {"success": self.reward}

    def snapshot(self) -> bytes:
        """The attributes of the instance, pickled."""
        self.state = vars(self.inner)
        return super().snapshot()

    def restore(self, snapshot: bytes) -> None:
        """Put the attributes back."""
        super().restore(snapshot)
        vars(self.inner).clear()
        vars(self.inner).update(self.state)

    def end_state(self) -> Any:
        """As the artefact: `state` is only what snapshots keep."""
        return self.artefact()

    def artefact(self) -> Any:
        """The attributes as text; they need not be JSON."""
        return repr(sorted(vars(self.inner).items()))


class TrlClassEnvironment(ToolEnvironment):
    """`factory`: dotted path of the class; `rows`: a JSONL file, or a dotted path of a list or function.

    `private`: columns that only `reset` may see, such as the answer: they are never published.
    """

    name = "trl_class"

    def __init__(
        self,
        *,
        factory: str,
        rows: str,
        private: Sequence[str] = (),
        limits: ToolLimits | None = None,
    ) -> None:
        super().__init__(limits=limits)
        self.private = tuple(private)
        made = load_dotted(factory, what="factory")
        self.rows = _read_rows(rows)
        self.splits = splits_of(self.rows)
        self.session = _session_class(made)
        self._factory = made
        self.version = canonical.digest(
            self.version, factory, _source(made), self.rows, self.private, length=12
        )

    def tasks(self, split: str) -> Iterator[Task]:
        """The rows of the split, in order."""
        self.check_split(split)
        for row in self.rows:
            if row.get("split", "train") == split:
                yield self._task(split, row)

    def gold(self, task: Task) -> PlannedGold:
        """The row's `gold`. ConfigError where it has none."""
        return gold_of(task)

    def _task(self, split: str, row: Row) -> Task:
        shown, hidden = parted(row, self.private)
        said = self._factory().reset(**shown, **hidden) or ""
        if not isinstance(said, str):
            raise ConfigError(f"reset() returned {type(said).__name__}; only text is taken here")
        return Task(
            environment=self.name,
            split=split,
            template=str(row.get("template", "row")),
            prompt=_prompt(row["prompt"], said),
            state=canonical.dumps(shown),
            private=canonical.dumps({"row": hidden, "gold": row.get("gold")}),
            verifier="trl_class/get_reward/1",
        )


def load(**options: Any) -> TrlClassEnvironment:
    """The environment; options are those of TrlClassEnvironment."""
    return TrlClassEnvironment(**options)


def _session_class(factory: Callable[[], Any]) -> type[TrlSession]:
    """A session class with the public methods of what `factory` makes as its tools."""
    kind = factory if inspect.isclass(factory) else type(factory())
    for needed in ("reset", "get_reward"):
        if not callable(getattr(kind, needed, None)):
            raise ConfigError(f"{kind.__name__} has no {needed}(); a TRL environment class defines it")
    methods = {
        name: tool(_delegate(method))
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if name not in ("reset", "get_reward") and not name.startswith("_")
    }
    if not methods:
        raise ConfigError(f"{kind.__name__} has no public methods besides reset and get_reward, so no tools")
    return type(f"{kind.__name__}Session", (TrlSession,), {"factory": staticmethod(factory), **methods})


def _delegate(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method of the instance inside the session, its result as TRL shows it."""

    @functools.wraps(method)
    async def waiting(session: TrlSession, **arguments: Any) -> Any:
        return as_response(str(await method(session.inner, **arguments)))

    @functools.wraps(method)
    def plain(session: TrlSession, **arguments: Any) -> Any:
        return as_response(str(method(session.inner, **arguments)))

    return waiting if inspect.iscoroutinefunction(method) else plain


def _read_rows(rows: str) -> list[Row]:
    if rows.endswith(".jsonl"):
        return read_rows(user_path(rows), check=lambda row: turns_of(row["prompt"]))
    found = load_dotted(rows, what="rows")
    return [dict(row) for row in (found() if callable(found) else found)]


def _prompt(prompt: Any, said: str) -> tuple[Turn, ...]:
    """The row's prompt, with what `reset` said at the end of the last user message."""
    *before, last = turns_of(prompt)
    return (*before, user(last.text + said) if said else last)


def _source(factory: Callable[[], Any]) -> str:
    try:
        return inspect.getsource(factory)
    except (OSError, TypeError):
        return repr(factory)
