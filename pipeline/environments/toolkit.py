"""ToolSession and ToolEnvironment: what a world inherits so that it fits in one file.

A world subclasses ToolSession (tools as `@tool` methods, plus `functions` and `stateful` lists; `judge` as
the verifier) and ToolEnvironment (`tasks`, `gold`). Decided here, once for every world:

- what a call's exception means: ToolError and ORDINARY_ERRORS (ValueError, LookupError, ArithmeticError) are
  `tool_error` observations, since arguments can cause them; everything else (TypeError, OSError, ...) says
  the tool is broken, not the agent wrong: `infra_error`;
- step rewards and metrics of a call stand in its ToolResult; `verify` adds the rewards' sum per tool
  (`step/NAME`) and each stateful tool's `calc_reward` (`tool/NAME`) to the components of the reward, which
  filters and training read;
- stateful tools are released whatever happens: after a failed or cut `create`, a cancelled episode, and even
  where another tool's `release` fails, hangs or is cut.

What poisons a session, and what a repeated `call_id` does: `guarded`; media: `responses`. Not covered:
undoing what a tool changed before it raised (raise first, change after); recorded answers for live tools
(`cassette`; `live_tools` names them); restoring snapshots from untrusted bytes (they are pickles).
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from data import canonical
from data.media import MediaStore, MediaTooLargeError
from data.messages import Part, Role, ToolResult, ToolSpec, ToolStatus, Turn, user
from data.tasks import Task
from data.trajectories import Reward, RewardComponent, RewardWhen, Trajectory
from pipeline.environments.base import GoldScript
from pipeline.environments.guarded import GuardedSession, pickled, said
from pipeline.environments.host import HostEnvironment
from pipeline.environments.responses import NoMediaStoreError
from pipeline.environments.schemas import ArgumentsError
from pipeline.environments.tools import (
    ORDINARY_ERRORS,
    DeadlineMissed,
    StatefulTool,
    Tool,
    ToolError,
    ToolLimits,
    ToolResponse,
    function_tool,
    stateful_tool,
    tool_limits,
    truncate,
)
from pipeline.errors import ConfigError, EnvironmentFailure, JudgeError, TrajsmithError

_SHARED = (
    "annotations.py",
    "benchmark.py",
    "docstrings.py",
    "guarded.py",
    "host.py",
    "replayed.py",
    "responses.py",
    "schemas.py",
    "templated.py",
    "tools.py",
    "toolkit.py",
)


class ToolSession(GuardedSession):
    """One episode. `state` starts as the task's decoded state and is what snapshots keep.

    `user_turns` are scripted later user turns, said in order after each assistant turn without calls.
    """

    functions: ClassVar[tuple[Callable[..., Any], ...]] = ()
    stateful: ClassVar[tuple[type[StatefulTool], ...]] = ()
    user_turns: Sequence[str] = ()

    def __init__(
        self,
        task: Task,
        *,
        seed: int = 0,
        limits: ToolLimits | None = None,
        rename: Mapping[str, str] | None = None,
        on_close: Callable[[], None] | None = None,
        media: MediaStore | None = None,
    ) -> None:
        """`rename` maps a tool's own name to the name shown; `task.tools` holds shown names."""
        super().__init__(task, seed=seed)
        self.state: Any = task.state_value()
        self._limits = limits or ToolLimits()
        self._shown = _shown_tools(type(self), tuple(sorted((rename or {}).items())), task.tools)
        self._instances = {kind.name: kind() for kind in self.stateful}
        self._created: list[StatefulTool] = []
        self._on_close, self._media = on_close, media
        self.tool_scores: dict[str, float] = {}
        """What the stateful tools' `calc_reward` said, by tool name; there when `judge` is asked."""

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools shown, in the task's order."""
        return tuple(spec for spec, _ in self._shown.values())

    @property
    def live_tools(self) -> tuple[str, ...]:
        """Shown tools that declare `deterministic=False`."""
        return tuple(name for name, (_, tool) in self._shown.items() if not tool.options.deterministic)

    async def start(self) -> None:
        """Create the stateful tools. Raises EnvironmentFailure, after releasing all that was begun."""
        for instance in self._instances.values():
            self._created.append(instance)
            try:
                await instance.create(self.task)
            except BaseException as error:
                # A deadline cancels the wait; what was made before must be released then, too.
                await self._close_noting(error)
                if not isinstance(error, Exception):
                    raise
                raise EnvironmentFailure(f"tool {instance.name} could not be created: {error!r}") from error

    async def _close_noting(self, error: BaseException) -> None:
        """Close; what fails is a note on `error`, which is what the caller must hear of."""
        try:
            await self.close()
        except EnvironmentFailure as failure:
            error.add_note(str(failure))

    async def next_user(self, turns: Sequence[Turn]) -> Turn | None:
        """The next of `user_turns`; how many were said is read from `turns`, so asking twice is harmless."""
        said = self.num_user_turns(turns)
        return user(self.user_turns[said]) if said < len(self.user_turns) else None

    def num_user_turns(self, turns: Sequence[Turn]) -> int:
        """User turns said after the prompt."""
        opening = sum(turn.role is Role.USER for turn in self.task.prompt)
        return sum(turn.role is Role.USER for turn in turns) - opening

    def snapshot(self) -> bytes:
        """State, stored results and stateful tools, pickled.

        Raises EnvironmentFailure on a poisoned session, ConfigError for what cannot be pickled.
        """
        self._refuse_if_poisoned()
        tools = {name: vars(instance) for name, instance in self._instances.items()}
        parts = {"the state": self.state} | {f"tool {name}": kept for name, kept in tools.items()}
        whole = (self.task.task_id, self.state, self._results, tools)
        return pickled(whole, parts=parts, environment=self.task.environment)

    def restore(self, snapshot: bytes) -> None:
        """Return to a snapshot of a session of the same task. A poisoned session cannot be restored."""
        self._refuse_if_poisoned()
        task_id, state, results, tools = pickle.loads(snapshot)
        self._refuse_foreign(task_id)
        self.state, self._results = state, results
        for name, values in tools.items():
            vars(self._instances[name]).clear()
            vars(self._instances[name]).update(values)

    @abstractmethod
    def judge(self, trajectory: Trajectory) -> Mapping[str, float]:
        """Unweighted outcome components by name; `success` (0 or 1 for most worlds) becomes the total."""

    async def verify(self, trajectory: Trajectory) -> Reward:
        """The judge's components, then the stateful tools' own scores. Raises JudgeError."""
        self._refuse_if_poisoned()
        try:
            for name, made in self._instances.items():
                score = await made.calc_reward()
                if score is not None:
                    self.tool_scores[name] = float(score)
            outcome = self.judge(trajectory)
            return self._reward(outcome, step_rewards(trajectory))
        except Exception as error:
            raise JudgeError(
                f"verifier {self.task.verifier} failed on task {self.task.task_id}: {said(error, shown=repr)}"
            ) from error

    def _reward(self, outcome: Mapping[str, float], steps: dict[str, float]) -> Reward:
        components = [RewardComponent(name=name, value=float(value)) for name, value in outcome.items()]
        process = {f"tool/{name}": score for name, score in self.tool_scores.items()} | steps
        components += [
            RewardComponent(name=name, value=value, when=RewardWhen.PROCESS)
            for name, value in process.items()
        ]
        return Reward(
            total=float(outcome["success"]),
            components=tuple(components),
            verifier=self.task.verifier,
            artefact_digest=canonical.digest(self.artefact()),
        )

    def end_state(self) -> Any:
        """What of the state matters when two sessions are compared, as JSON; all of it by default."""
        return self.state

    def artefact(self) -> Any:
        """What was judged, as JSON; the state unless a world says otherwise."""
        return self.state

    async def _release(self) -> None:
        """Release the stateful tools, all of them, whatever one of them does."""
        if self._on_close is not None:
            self._on_close()
        failures, cut = [], None
        while self._created:
            made = self._created.pop()
            try:
                async with asyncio.timeout(self._limits.timeout_seconds):
                    await made.release()
            except asyncio.CancelledError as error:
                cut = error
            except Exception as error:
                failures.append(f"{made.name}: {error!r}")
        if cut is not None:
            raise cut
        if failures:
            raise EnvironmentFailure(
                f"tools of task {self.task.task_id} could not be released: {'; '.join(failures)}"
            )

    async def _execute(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        entry = self._shown.get(name)
        if entry is None:
            known = ", ".join(self._shown)
            return self._failed(call_id, name, ToolStatus.TOOL_ERROR, f"no tool {name}; tools: {known}")
        tool = entry[1]
        target = self._instances.get(tool.name, self)
        try:
            bound = tool.signature.bind(arguments)
            response = await tool.run(target, bound, timeout_seconds=self._limits.timeout_seconds)
        except (ArgumentsError, ToolError) as error:
            return self._failed(call_id, name, ToolStatus.TOOL_ERROR, said(error))
        except DeadlineMissed as error:
            return self._failed(call_id, name, error.status, str(error))
        except TrajsmithError as error:  # an answer that cannot be stored is no fault of the agent's
            return self._broken(call_id, name, said(error))
        except ORDINARY_ERRORS as error:
            text = f"{type(error).__name__}: {said(error)}"
            return self._failed(call_id, name, ToolStatus.TOOL_ERROR, text)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return self._broken(call_id, name, "CancelledError(), and nobody had cancelled it")
        except (Exception, SystemExit) as error:
            return self._broken(call_id, name, said(error, shown=repr))
        return await self._answered(response, call_id, name)

    async def _answered(self, response: ToolResponse, call_id: str, name: str) -> ToolResult:
        """The response as the record keeps it; what cannot be kept says that the tool is broken."""
        try:
            parts, cut = truncate(await stored_content(response, self._media), self._limits)
            return ToolResult(
                call_id=call_id,
                name=name,
                parts=parts,
                reward=response.reward,
                metrics=response.named_metrics(),
                truncated=cut,
            )
        except NoMediaStoreError:
            raise
        except MediaTooLargeError as error:
            return self._failed(call_id, name, ToolStatus.TOOL_ERROR, str(error))
        except TrajsmithError as error:
            return self._broken(call_id, name, str(error))
        except Exception as error:
            return self._broken(call_id, name, " ".join(said(error, shown=repr).split()))

    def _broken(self, call_id: str, name: str, why: str) -> ToolResult:
        return self._failed(call_id, name, ToolStatus.INFRA_ERROR, f"tool {name} is broken: {why}")


class ToolEnvironment(HostEnvironment, ABC):
    """A world. Subclasses set `name`, `splits`, `session` and write `tasks` and `gold`."""

    session: type[ToolSession]

    def __init__(self, *, limits: ToolLimits | Mapping[str, Any] | None = None) -> None:
        self.limits = tool_limits(limits)
        self.media: MediaStore | None = None
        """Where tools' images, video, audio and files go; set by whoever owns the run directory."""
        self.version = canonical.digest(source_digest(type(self).__module__), repr(self.limits), length=12)

    @abstractmethod
    def tasks(self, split: str) -> Iterator[Task]:
        """See `Environment.tasks`."""

    @abstractmethod
    def gold(self, task: Task) -> GoldScript:
        """See `Environment.gold`."""

    def rename(self, task: Task) -> Mapping[str, str]:
        """The tool names of this task, own name to shown name; none are renamed by default."""
        return {}

    async def open(self, task: Task, *, seed: int = 0) -> ToolSession:
        """A fresh, isolated session. Raises ConfigError for a foreign task, EnvironmentFailure on a crash."""
        self.check_task(task)
        session = self.session(
            task,
            seed=seed,
            limits=self.limits,
            rename=self.rename(task),
            on_close=self._session_closed,
            media=self.media,
        )
        self.num_open += 1
        await session.start()
        return session


async def stored_content(response: ToolResponse, media: MediaStore | None) -> tuple[Part, ...]:
    """The response's parts; media are written in a thread, for a disk may be slow."""
    if not response.media:
        return response.content()
    return await asyncio.to_thread(response.content, media)


def step_rewards(trajectory: Trajectory) -> dict[str, float]:
    """Sum of the step rewards of each tool that gave any, as `step/NAME`."""
    sums: dict[str, float] = {}
    for turn in trajectory.turns:
        if turn.result is not None and turn.result.reward is not None:
            name = f"step/{turn.result.name}"
            sums[name] = sums.get(name, 0.0) + turn.result.reward
    return sums


@functools.cache
def source_digest(module_name: str) -> str:
    """Digest of the source of the module's file, or of its whole package where it lives in one of its own.

    Blank lines and comment lines do not count, so that a remark does not make a new version. The shared files
    of this package are included.
    """
    path = Path(str(importlib.import_module(module_name).__file__))
    here = Path(__file__).parent
    files = (
        [path]
        if path.parent == here or not (path.parent / "__init__.py").exists()
        else path.parent.glob("*.py")
    )
    shared = [here / name for name in _SHARED]
    lines = []
    for file in sorted({*files, *shared}):
        stripped = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
        lines.append([file.name, *(line for line in stripped if line and not line.startswith("#"))])
    return canonical.digest(lines, length=12)


@functools.cache
def all_tools(kind: type[ToolSession]) -> dict[str, Tool]:
    """Every tool of a session class by its own name: methods in written order, functions, stateful."""
    members = {name: value for base in reversed(kind.__mro__) for name, value in vars(base).items()}
    tools = [
        function_tool(value, is_method=True)
        for value in members.values()
        if hasattr(value, "__tool_options__")
    ]
    tools += [function_tool(function) for function in kind.functions]
    tools += [stateful_tool(stateful) for stateful in kind.stateful]
    named = {tool.name: tool for tool in tools}
    if len(named) < len(tools):
        raise ConfigError(f"{kind.__name__} has two tools of one name among {[tool.name for tool in tools]}")
    return named


@functools.lru_cache(maxsize=4096)
def _shown_tools(
    kind: type[ToolSession], rename: tuple[tuple[str, str], ...], chosen: tuple[str, ...] | None
) -> dict[str, tuple[ToolSpec, Tool]]:
    """Shown name to (spec, tool), in the task's order. Cached, shared and never changed."""
    names = dict(rename)
    shown = {names.get(name, name): tool for name, tool in all_tools(kind).items()}
    unknown = [name for name in chosen or () if name not in shown]
    if unknown:
        raise ConfigError(f"task shows tools {unknown} that {kind.__name__} lacks; it has {', '.join(shown)}")
    picked = chosen if chosen is not None else tuple(shown)
    return {
        name: (shown[name].signature.spec.model_copy(update={"name": name}), shown[name]) for name in picked
    }
