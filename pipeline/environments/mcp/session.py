"""One episode on one leased connection to an MCP server.

Decides what an answer means: `is_error` and a refusal of the arguments are `tool_error`; a connection that
ends, any other protocol error, a broken result and a missed deadline are `infra_error`: poison.
A server's state is its own, so a snapshot is the calls made so far and a restore makes them again on a clean
connection before the next call; answers that differ then poison the session.
Not covered: a server whose Python exceptions say that it is broken itself: MCP calls them `is_error`, too.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from data import canonical
from data.media import MediaStore, MediaTooLargeError
from data.messages import Role, ToolResult, ToolSpec, ToolStatus, Turn, user
from data.tasks import Task
from data.trajectories import Reward, RewardComponent, Trajectory
from pipeline.dotted import load_dotted
from pipeline.environments.mcp.pool import Connection, Pool
from pipeline.environments.mcp.results import response_of
from pipeline.environments.replayed import ReplayedSession
from pipeline.environments.responses import ToolResponse
from pipeline.environments.task_checks import check_answer, check_calls, fits
from pipeline.environments.task_file import file_checks, later_turns
from pipeline.environments.toolkit import stored_content
from pipeline.environments.tools import ToolLimits, truncate
from pipeline.errors import EnvironmentFailure, JudgeError

if TYPE_CHECKING:
    from mcp import MCPError

_INVALID_PARAMS = -32602


class McpSession(ReplayedSession):
    """`specs` are the tools shown; every tool of the server can be asked by checks."""

    def __init__(
        self,
        task: Task,
        *,
        seed: int,
        pool: Pool,
        specs: dict[str, ToolSpec],
        limits: ToolLimits,
        reads: frozenset[str],
        media: MediaStore | None,
        on_close: Callable[[], None],
    ) -> None:
        super().__init__(task, seed=seed)
        self._pool, self._limits, self._reads = pool, limits, reads
        self.tools = tuple(specs.values())
        self._media, self._on_close = media, on_close
        self._server = pool.server
        self._connection: Connection | None = None

    async def start(self) -> None:
        """Lease a connection, make the task's `state.setup` calls. Raises EnvironmentFailure, ConfigError."""
        try:
            self._connection = await self._pool.lease()
            for step in self.task.state_value().get("setup", []):
                await self.read(step["name"], step.get("arguments", {}))
        except BaseException:
            await self.close()
            raise

    async def next_user(self, turns: Sequence[Turn]) -> Turn | None:
        """The task's next request; how many were said is read from `turns`."""
        later = later_turns(self.task)
        said = sum(turn.role is Role.USER for turn in turns) - 1
        return user(later[said]) if said < len(later) else None

    async def read(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        """What a tool answers a check: its JSON value, its text where that is no JSON.

        Raises EnvironmentFailure where the tool answers an error: a check that cannot look is no verdict.
        """
        await self._catch_up()
        text = self._response(await self._ask(name, arguments or {}, refuse_errors=True)).text
        try:
            return canonical.loads(text)
        except ValueError:
            return text

    async def verify(self, trajectory: Trajectory) -> Reward:
        """1 where every check of the task holds, else 0; each check is a component. Raises JudgeError."""
        self._refuse_if_poisoned()
        components = []
        try:
            for index, check in enumerate(file_checks(self.task)):
                kind = next(iter(check))
                value = float(await self._check(kind, check, trajectory))
                components.append(RewardComponent(name=f"{kind}_{index}", value=value))
        except Exception as error:
            text = str(error) if isinstance(error, EnvironmentFailure) else repr(error)
            raise JudgeError(f"checks of task {self.task.task_id} could not be made: {text}") from error
        success = float(all(part.value >= 1.0 for part in components))
        calls = [[name, arguments] for _, name, arguments in self._history]
        return Reward(
            total=success,
            components=(RewardComponent(name="success", value=success), *components),
            verifier=self.task.verifier,
            artefact_digest=canonical.digest(calls),
        )

    async def _check(self, kind: str, check: dict[str, Any], trajectory: Trajectory) -> bool | float:
        if kind == "answer":
            return check_answer(check, trajectory.turns)
        if kind == "calls":
            return check_calls(check, trajectory.turns, self.tools, reads=self._reads)
        if kind == "state":
            return await self._check_state(check["state"])
        judged = load_dotted(check["verifier"], what="verifier")(self, trajectory)
        return float(await judged if inspect.isawaitable(judged) else judged)

    async def _check_state(self, wanted: dict[str, Any]) -> bool:
        value = await self.read(wanted["tool"], wanted.get("arguments"))
        if "equals" in wanted:
            return fits(wanted["equals"], value)
        if isinstance(wanted["contains"], str) and isinstance(value, str):
            return wanted["contains"] in value
        return fits(wanted["contains"], value, partly=True)

    async def _answered(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        from mcp import MCPError

        try:
            answer = await self._ask(name, arguments)
        except MCPError as error:
            if error.code != _INVALID_PARAMS:
                raise EnvironmentFailure(f"{name}: {self._refusal(error)}") from error
            said = self._server.blotted(error.message)
            return self._failed(call_id, name, ToolStatus.TOOL_ERROR, said)
        try:
            parts, cut = truncate(await self._stored(self._response(answer)), self._limits)
        except MediaTooLargeError as error:
            return self._failed(call_id, name, ToolStatus.TOOL_ERROR, str(error))
        status = ToolStatus.TOOL_ERROR if answer.is_error else ToolStatus.OK
        return ToolResult(call_id=call_id, name=name, parts=parts, status=status, truncated=cut)

    def _response(self, answer: Any) -> ToolResponse:
        return response_of(answer, secrets=self._server.header_secrets())

    def _refusal(self, error: MCPError) -> str:
        said = self._server.blotted(error.message)
        return f"MCP server {self._server.label}: {said} ({error.code})"

    async def _stored(self, response: ToolResponse) -> Any:
        return await stored_content(response, self._media)

    async def _ask(self, name: str, arguments: dict[str, Any], *, refuse_errors: bool = False) -> Any:
        """The server's raw answer. Raises MCPError, EnvironmentFailure."""
        from mcp import MCPError

        connection, limit, label = self._connection, self._limits.timeout_seconds, self._server.label
        if connection is None or not connection.is_open:
            raise EnvironmentFailure(f"{name}: MCP server {label} is gone")
        connection.is_used = True
        try:
            async with asyncio.timeout(limit):
                answer = await connection.client.call_tool(name, arguments)
        except TimeoutError as error:
            raise EnvironmentFailure(f"{name} took longer than {limit:g} s") from error
        except MCPError as error:
            if not refuse_errors:
                raise
            raise EnvironmentFailure(f"{name}: {self._refusal(error)}") from error
        except Exception as error:
            said = self._server.blotted(repr(error))
            raise EnvironmentFailure(f"{name}: MCP server {label} broke: {said}") from error
        if refuse_errors and answer.is_error:
            said = self._server.blotted(self._response(answer).text)
            raise EnvironmentFailure(f"{name} answers an error: {said[:200]}")
        return answer

    async def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._pool.give_back(connection, broken=bool(self._poison))

    async def _release(self) -> None:
        self._on_close()
        await self._leave()
