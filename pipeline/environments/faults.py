"""`with_faults`: any environment with tools that break now and then, as tools in the wild do.

Two families, and they must not be confused. `timeout` and `server_error` are infrastructure: the call answers
`infra_error`, the session is unusable from then on, and the episode has no reward. `busy`, `empty`, `drift`
and `slow` are the world's: the agent sees them and may recover, and what it then reaches is its own doing.
`busy` refuses without executing; `empty` and `drift` execute and spoil the answer; `slow` waits first, on the
tool's deadline. Every injected fault stands in the result's metrics as `fault/<kind>`.

A draw depends on the seed, the task, the session's seed, how often that session was opened before (so that a
retry does not meet the same fault for ever) and the number of the call. Not covered: a model server that
breaks (`pipeline.engines`), a simulated user that breaks, faults inside a tool's own work.
"""

from __future__ import annotations

import asyncio
import pickle
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from data import canonical
from data.messages import NamedValue, ToolResult, ToolSpec, ToolStatus, Turn, text_parts
from data.tasks import Task
from data.trajectories import Reward, Trajectory
from pipeline.environments.base import Environment, Session
from pipeline.environments.guarded import GuardedSession
from pipeline.environments.wrapped import PassesOn, WrappedEnvironment
from pipeline.errors import ConfigError


class Fault(StrEnum):
    """What can go wrong with a call."""

    TIMEOUT = "timeout"
    """Executed, but the answer never came: infrastructure."""
    SERVER_ERROR = "server_error"
    """Not executed, the tool's server is broken: infrastructure."""
    BUSY = "busy"
    """Not executed; the tool asks to be called again."""
    EMPTY = "empty"
    """Executed; the answer is empty."""
    DRIFT = "drift"
    """Executed; the keys of a JSON answer are spelt another way (`flight_id` as `flightId`)."""
    SLOW = "slow"
    """Executed after a wait."""


_INFRASTRUCTURE = {
    Fault.TIMEOUT: "no answer within the deadline (injected)",
    Fault.SERVER_ERROR: "HTTP 500 (injected)",
}
_BUSY = "error: the service is busy, try again"


def with_faults(
    environment: Environment, rates: Mapping[str, float], *, seed: int = 0, slow_seconds: float = 1.0
) -> Environment:
    """`environment` with faults at `rates` per call (kind to probability; together at most 1).

    ConfigError names an unknown kind or an impossible rate.
    """
    return FaultyEnvironment(environment, rates, seed=seed, slow_seconds=slow_seconds)


class FaultyEnvironment(WrappedEnvironment):
    """The same tasks, gold and verifier; other tools. Its version differs from the environment's own."""

    def __init__(
        self, inner: Environment, rates: Mapping[str, float], *, seed: int, slow_seconds: float
    ) -> None:
        self.rates, self.seed, self.slow_seconds = _checked(rates), seed, slow_seconds
        version = canonical.digest(inner.version, self.rates, seed, slow_seconds, length=12)
        super().__init__(inner, version=version)
        self._opened: Counter[tuple[str, int]] = Counter()

    async def open(self, task: Task, *, seed: int = 0) -> FaultySession:
        """A fresh session whose calls draw faults of their own."""
        key = (task.task_id, seed)
        opening = self._opened[key]
        self._opened[key] += 1
        inner = await self.inner.open(task, seed=seed)
        return FaultySession(inner, self, task=task, opening=opening, seed=seed)


class FaultySession(PassesOn, GuardedSession):
    """One episode of the inner session, with faults between it and the agent."""

    inner: Session

    def __init__(
        self, inner: Session, environment: FaultyEnvironment, *, task: Task, opening: int, seed: int
    ) -> None:
        super().__init__(task, seed=seed)
        self.inner, self._environment, self._opening = inner, environment, opening

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The inner session's."""
        return self.inner.tools

    async def next_user(self, turns: Sequence[Turn]) -> Turn | None:
        """The inner session's."""
        return await self.inner.next_user(turns)

    def snapshot(self) -> bytes:
        """The inner snapshot and the answers given; refused after an infrastructure fault."""
        self._refuse_if_poisoned()
        return pickle.dumps((self.inner.snapshot(), self._results))

    def restore(self, snapshot: bytes) -> None:
        """Return to a snapshot; faults are drawn again by the number of the call."""
        self._refuse_if_poisoned()
        inner, self._results = pickle.loads(snapshot)
        self.inner.restore(inner)

    async def verify(self, trajectory: Trajectory) -> Reward:
        """The inner verdict; after an infrastructure fault there is none (EnvironmentFailure)."""
        self._refuse_if_poisoned()
        return await self.inner.verify(trajectory)

    async def _release(self) -> None:
        await self.inner.close()

    async def _execute(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        fault = self._draw(len(self._results))
        if fault in (Fault.TIMEOUT, Fault.SERVER_ERROR):
            if fault is Fault.TIMEOUT:
                await self.inner.call(name, arguments, call_id)
            text = _INFRASTRUCTURE[fault]
            return _marked(self._failed(call_id, name, ToolStatus.INFRA_ERROR, text), fault)
        if fault is Fault.BUSY:
            return _marked(self._failed(call_id, name, ToolStatus.TOOL_ERROR, _BUSY), fault)
        if fault is Fault.SLOW:
            await asyncio.sleep(self._environment.slow_seconds)
        result = await self.inner.call(name, arguments, call_id)
        if result.status is ToolStatus.INFRA_ERROR:
            self._poison = self._poison or result.text
        if fault is None or result.status is not ToolStatus.OK:
            return result
        if fault is Fault.EMPTY:
            result = result.model_copy(update={"parts": ()})
        if fault is Fault.DRIFT:
            result = result.model_copy(update={"parts": text_parts(drifted(result.text))})
        return _marked(result, fault)

    def _draw(self, number: int) -> Fault | None:
        """The fault of the call with this number, in this opening of this session."""
        drawn_from = (self._environment.seed, self.task.task_id, self.seed, self._opening, number)
        draw = random.Random(canonical.digest(*drawn_from)).random()
        for fault, rate in self._environment.rates.items():
            draw -= rate
            if draw < 0:
                return Fault(fault)
        return None


def drifted(text: str) -> str:
    """A JSON answer with its keys in the other of snake_case and camelCase; any other text as it is."""
    try:
        value = canonical.loads(text)
    except ValueError:
        return text
    return canonical.dumps(_renamed(value))


def _renamed(value: Any) -> Any:
    if isinstance(value, dict):
        return {_other_case(key): _renamed(item) for key, item in value.items()}
    return [_renamed(item) for item in value] if isinstance(value, list) else value


def _other_case(key: str) -> str:
    head, *rest = key.split("_")
    if rest:
        return head + "".join(word.capitalize() for word in rest)
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key).lstrip("_")


def _checked(rates: Mapping[str, float]) -> dict[str, float]:
    known = ", ".join(Fault)
    for kind, rate in rates.items():
        if kind not in set(Fault):
            raise ConfigError(f"there is no fault {kind!r}; kinds: {known}")
        if not 0 <= rate <= 1:
            raise ConfigError(f"the rate of fault {kind} must be between 0 and 1, got {rate}")
    if sum(rates.values()) > 1:
        raise ConfigError(f"fault rates are per call and add up to {sum(rates.values()):g}; at most 1")
    return dict(sorted(rates.items()))


def _marked(result: ToolResult, fault: Fault) -> ToolResult:
    metric = NamedValue(name=f"fault/{fault}", value=1.0)
    return result.model_copy(update={"metrics": (*result.metrics, metric)})
