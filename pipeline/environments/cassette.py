"""Recorded answers of live tools: `with_cassette` makes any environment repeatable.

A live tool (`deterministic=False`, or named here) answers from a cassette: a JSONL file, one answer a line,
keyed by task, tool, canonical arguments and how often the session has asked that before.

- `record`: every call is made, and the file gets its answer; the last answer recorded for a key is the one
  that counts. `replay`: no call is made; an answer that is missing is an infrastructure failure that names
  the call. `auto`: what is recorded is replayed, what is missing is recorded, so all rollouts of a task see
  one world.
- Infrastructure errors are never recorded.
- What is a secret, and what the file holds: `tape`.

Not covered: effects of a live tool on the session's own state (a replay does not repeat them), several
processes recording into one file, and the bytes of media (they are in the run's media folder).
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from data.messages import ToolResult, ToolSpec, ToolStatus, Turn
from data.tasks import Task
from data.trajectories import Reward, Trajectory
from pipeline.environments.base import Environment, Session
from pipeline.environments.tape import SCRUB, Cassette, CassetteMode
from pipeline.environments.wrapped import PassesOn, WrappedEnvironment
from pipeline.errors import ConfigError, EnvironmentFailure


def with_cassette(
    environment: Environment,
    path: str | Path,
    *,
    mode: str = CassetteMode.AUTO,
    tools: Collection[str] = (),
    scrub: Sequence[str] = SCRUB,
    scrub_env: Sequence[str] = (),
    per_task: bool = True,
) -> CassetteEnvironment:
    """`environment` with its live tools on the cassette at `path`.

    `tools` names live tools besides those that say so; `per_task=False` shares answers between tasks.
    Raises ConfigError for an unknown mode, a replay without a file, or a file that is no cassette.
    """
    if mode not in list(CassetteMode):
        raise ConfigError(f"cassette mode {mode!r}; choose one of {', '.join(CassetteMode)}")
    cassette = Cassette(Path(path), CassetteMode(mode), scrub=scrub, scrub_env=scrub_env)
    return CassetteEnvironment(environment, cassette, tools=frozenset(tools), per_task=per_task)


class CassetteEnvironment(WrappedEnvironment):
    """The same tasks, gold, verifier and version; live tools answer from the cassette."""

    def __init__(
        self, inner: Environment, cassette: Cassette, *, tools: frozenset[str], per_task: bool
    ) -> None:
        super().__init__(inner, version=inner.version)
        self.cassette, self.live, self.per_task = cassette, tools, per_task

    async def open(self, task: Task, *, seed: int = 0) -> CassetteSession:
        """The inner session with its live tools on the cassette."""
        inner = await self.inner.open(task, seed=seed)
        live = self.live | frozenset(getattr(inner, "live_tools", ()))
        return CassetteSession(
            inner, self.cassette, live=live, task_key=task.task_id if self.per_task else ""
        )


class CassetteSession(PassesOn):
    """One episode of the inner session."""

    inner: Session

    def __init__(self, inner: Session, cassette: Cassette, *, live: frozenset[str], task_key: str) -> None:
        self.inner, self.cassette, self.live, self._task_key = inner, cassette, live, task_key
        self._asked: Counter[tuple[str, str]] = Counter()
        self._results: dict[str, ToolResult] = {}

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The inner session's."""
        return self.inner.tools

    @property
    def live_tools(self) -> tuple[str, ...]:
        """None is left: their answers are recorded."""
        return ()

    async def call(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        """The recorded answer of a live tool, else the inner session's.

        EnvironmentFailure where a replay has no answer.
        """
        if name not in self.live or name not in {spec.name for spec in self.inner.tools}:
            return await self.inner.call(name, arguments, call_id)
        if call_id not in self._results:
            self._results[call_id] = await self._taped(name, arguments, call_id)
        return self._results[call_id]

    async def _taped(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        text, secrets = self.cassette.scrubbed(arguments)
        key = (self._task_key, name, text, self._asked[name, text])
        found = self.cassette.find(key)
        if found is None and self.cassette.mode is CassetteMode.REPLAY:
            raise EnvironmentFailure(
                f"cassette {self.cassette.path.name} has no answer for {name}({text[:200]}), asked for the "
                f"{key[3] + 1}. time in task {self._task_key or 'any'}; record it (mode auto)"
            )
        if found is None:
            result = await self.inner.call(name, arguments, call_id)
            if result.status is ToolStatus.INFRA_ERROR:
                return result
            found = self.cassette.add(key, self.cassette.clean_result(result, secrets))
        self._asked[name, text] += 1
        return found.model_copy(update={"call_id": call_id, "name": name})

    async def next_user(self, turns: Sequence[Turn]) -> Turn | None:
        """The inner session's."""
        return await self.inner.next_user(turns)

    def snapshot(self) -> bytes:
        """The inner snapshot, the recorded answers given, and how often each call was made."""
        return pickle.dumps((self.inner.snapshot(), self._asked, self._results))

    def restore(self, snapshot: bytes) -> None:
        """Return to a snapshot; the answers after it are asked for again."""
        inner, asked, results = pickle.loads(snapshot)
        self.inner.restore(inner)
        self._asked, self._results = Counter(asked), dict(results)

    async def verify(self, trajectory: Trajectory) -> Reward:
        """The inner verdict."""
        return await self.inner.verify(trajectory)

    async def close(self) -> None:
        """Close the inner session."""
        await self.inner.close()
