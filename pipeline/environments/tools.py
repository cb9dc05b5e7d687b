"""The two kinds of tool, and how one call of either is run against its deadline.

Stateless: any function (or session method) marked `@tool`; its schema is its signature and docstring.
Stateful: a StatefulTool subclass, one instance per episode: create, execute, calc_reward, release.

How a call runs decides what a missed deadline means:
- async: cancelled; `infra_error` unless `on_timeout` says the agent is to blame (`tool_error`);
- `isolate=True` (blocking, module-level function): its process is ended; `tool_error` unless `on_timeout`
  differs;
- `blocking=True`: runs in a thread that cannot be ended, so the session is poisoned;
- plain: runs on the event loop (quick in-memory work); a deadline noticed afterwards poisons the session too.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, TypeVar, overload

from data.messages import Part, ToolStatus, text_parts
from data.tasks import Task
from pipeline.environments.isolation import IsolatedTimeout, call_isolated
from pipeline.environments.responses import Media as Media
from pipeline.environments.responses import ToolResponse as ToolResponse
from pipeline.environments.responses import as_response
from pipeline.environments.schemas import Signature, signature_of
from pipeline.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

ORDINARY_ERRORS = (ValueError, LookupError, ArithmeticError)
"""What a tool may raise because of its arguments: an observation for the agent, like ToolError."""


class ToolError(Exception):
    """Raised by a tool to tell the agent what is wrong; the text is the observation."""


class DeadlineMissed(Exception):
    """A call was not done in time. `status` is what the agent's record shows."""

    def __init__(self, message: str, status: ToolStatus = ToolStatus.INFRA_ERROR) -> None:
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class TruncateSide(StrEnum):
    """Which part of an over-long tool response is cut away."""

    LEFT = "left"
    RIGHT = "right"
    MIDDLE = "middle"


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """What holds for every tool of an environment. Lengths are characters, times seconds."""

    max_tool_response_length: int = 2000
    truncate_side: TruncateSide = TruncateSide.RIGHT
    timeout_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.truncate_side not in list(TruncateSide):
            raise ConfigError(
                f"truncate_side {self.truncate_side!r}; choose one of {', '.join(TruncateSide)}"
            )
        object.__setattr__(self, "truncate_side", TruncateSide(self.truncate_side))
        if self.max_tool_response_length < 8 or self.timeout_seconds <= 0:
            raise ConfigError(
                f"{self}: max_tool_response_length must be at least 8 and timeout_seconds above 0"
            )


def tool_limits(given: ToolLimits | Mapping[str, Any] | None) -> ToolLimits:
    """Limits as an environment takes them, also as written in a recipe. Raises ConfigError."""
    if isinstance(given, ToolLimits):
        return given
    try:
        return ToolLimits(**(given or {}))
    except TypeError as error:
        known = ", ".join(ToolLimits.__dataclass_fields__)
        raise ConfigError(f"limits {given!r}: {error}; limits are {known}") from error


class StatefulTool(ABC):
    """A tool with state of its own, one instance per episode. The schema is the signature of `execute`.

    Everything the instance must keep lives in its attributes: snapshots pickle them.
    """

    name: ClassVar[str]
    timeout_seconds: ClassVar[float | None] = None
    deterministic: ClassVar[bool] = True

    async def create(self, task: Task) -> None:  # noqa: B027 - optional step
        """Set up for one episode."""

    @abstractmethod
    async def execute(self, *args: Any, **kwargs: Any) -> ToolResponse:
        """One call; subclasses name and annotate the parameters."""

    async def calc_reward(self) -> float | None:
        """The tool's own score of the episode, a component of the reward; None for none."""
        return None

    async def release(self) -> None:  # noqa: B027 - optional step
        """Give back what `create` took: after every episode, also one that was cut, also a cut `create`."""


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """What `@tool` was told."""

    name: str = ""
    timeout_seconds: float | None = None
    isolate: bool = False
    blocking: bool = False
    deterministic: bool = True
    on_timeout: ToolStatus | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A callable tool of either kind: what is shown, how it runs."""

    signature: Signature
    function: Callable[..., Any]
    options: ToolOptions
    is_async: bool
    is_method: bool

    @property
    def name(self) -> str:
        """The name it was defined with."""
        return self.signature.spec.name

    async def run(self, target: object, arguments: dict[str, Any], *, timeout_seconds: float) -> ToolResponse:
        """One call on `target` (session or stateful tool) with bound arguments. Raises DeadlineMissed."""
        limit = self.options.timeout_seconds or timeout_seconds
        function = functools.partial(self.function, target) if self.is_method else self.function
        late = f"{self.name} took longer than {limit:g} s"
        if self.is_async or self.options.isolate or self.options.blocking:
            return as_response(await self._run_waiting(function, arguments, limit, late))
        started = time.perf_counter()
        value = function(**arguments)
        if time.perf_counter() - started > limit:
            raise DeadlineMissed(late)
        return as_response(value)

    async def _run_waiting(
        self, function: Callable[..., Any], arguments: dict[str, Any], limit: float, late: str
    ) -> Any:
        default = ToolStatus.TOOL_ERROR if self.options.isolate else ToolStatus.INFRA_ERROR
        status = ToolStatus.INFRA_ERROR if self.options.blocking else self.options.on_timeout or default
        try:
            if self.options.isolate:
                return await call_isolated(self.function, arguments, timeout_seconds=limit)
            async with asyncio.timeout(limit) as deadline:
                if self.is_async:
                    return await function(**arguments)
                return await asyncio.to_thread(function, **arguments)
        except IsolatedTimeout as error:
            raise DeadlineMissed(late, status) from error
        except TimeoutError as error:
            if deadline.expired():
                raise DeadlineMissed(late, status) from error
            raise


@overload
def tool(function: F) -> F: ...
@overload
def tool(
    *,
    name: str = "",
    timeout_seconds: float | None = None,
    isolate: bool = False,
    blocking: bool = False,
    deterministic: bool = True,
    on_timeout: ToolStatus | None = None,
) -> Callable[[F], F]: ...
def tool(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Mark a function or session method as a tool; it stays callable as before.

    `isolate`, `blocking`, `on_timeout`: see the module docstring. `deterministic=False` marks a live tool.
    """

    def mark(marked: Callable[..., Any]) -> Callable[..., Any]:
        chosen = ToolOptions(**options)
        if inspect.iscoroutinefunction(marked) and (chosen.isolate or chosen.blocking):
            raise ConfigError(
                f"tool {marked.__name__} is async; isolate and blocking are for plain functions"
            )
        if chosen.isolate and (marked.__module__ == "__main__" or "<locals>" in marked.__qualname__):
            raise ConfigError(
                f"isolated tool {marked.__qualname__} must be importable: move it to a module's top level"
            )
        marked.__tool_options__ = chosen  # type: ignore[attr-defined]
        return marked

    return mark if function is None else mark(function)


@functools.cache
def function_tool(function: Callable[..., Any], *, is_method: bool = False) -> Tool:
    """The tool made from a function marked `@tool` (or any plain function)."""
    options: ToolOptions = getattr(function, "__tool_options__", ToolOptions())
    if options.isolate and is_method:
        raise ConfigError(
            f"isolated tool {function.__qualname__} cannot be a method: it runs in another process"
        )
    signature = signature_of(function, name=options.name)
    return Tool(signature, function, options, inspect.iscoroutinefunction(function), is_method)


@functools.cache
def stateful_tool(kind: type[StatefulTool]) -> Tool:
    """The tool made from a StatefulTool class: docstring of the class, parameters of `execute`."""
    description = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
    signature = signature_of(kind.execute, name=kind.name, description=description)
    options = ToolOptions(
        name=kind.name, timeout_seconds=kind.timeout_seconds, deterministic=kind.deterministic
    )
    return Tool(signature, kind.execute, options, is_async=True, is_method=True)


def truncate(parts: tuple[Part, ...], limits: ToolLimits) -> tuple[tuple[Part, ...], bool]:
    """Text parts cut to the limit (all text together, "..." marks the cut), and whether anything was cut."""
    limit, mark = limits.max_tool_response_length, "..."
    text = "".join(part.text for part in parts if not part.media_sha256)
    if len(text) <= limit:
        return parts, False
    room = limit - len(mark)
    if limits.truncate_side is TruncateSide.RIGHT:
        text = text[:room] + mark
    elif limits.truncate_side is TruncateSide.LEFT:
        text = mark + text[-room:]
    else:
        text = text[: room - room // 2] + mark + text[len(text) - room // 2 :]
    return text_parts(text) + tuple(part for part in parts if part.media_sha256), True
