"""McpEnvironment: the tools of an MCP server, tasks from a file, checks that ask the server.

Decides: the server is asked once for its tools when the environment is made (so a wrong command fails there,
and the version covers the tools); each session has a connection of its own (a process for a command, a
session for a URL, a fresh server object in this process). Task files: `task_file`; beyond its checks a task
may say `{state: {tool: NAME, arguments: {...}, equals|contains: VALUE}}` and
`{verifier: package.module:function}` (called with session and trajectory, plain or async, 0 to 1), and in
`state` what is called before the agent acts: `{setup: [{name, arguments}, ...]}`.
Not covered: a server at a URL that shares its state between its sessions (`env check` shows it); tools that
change during an episode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from data import canonical
from data.media import MediaStore
from data.messages import ToolSpec
from data.tasks import Task
from pipeline.checks.options import check_options
from pipeline.dotted import load_dotted
from pipeline.environments.host import FileHost
from pipeline.environments.mcp.pool import Connection, Pool
from pipeline.environments.mcp.server import Description, McpServer, describe
from pipeline.environments.mcp.session import McpSession
from pipeline.environments.task_file import TaskRules, read_tasks, splits_of
from pipeline.environments.toolkit import source_digest
from pipeline.environments.tools import ToolLimits, tool_limits
from pipeline.errors import ConfigError, EnvironmentFailure

_STATE_KEYS = {"tool", "arguments", "equals", "contains"}


class McpEnvironment(FileHost):
    """`tasks`: the task file; the server's options are those of `McpServer`.

    `pool_size` bounds connections at once; idle ones end after `idle_seconds`. `reset_tool`: a tool of the
    server that returns it to its beginning; with it connections are used again. `hidden`: tools the agent is
    not shown (checks may use them). `reads`: tools that change nothing, besides those the server says.
    """

    def __init__(
        self,
        *,
        tasks: str,
        name: str = "mcp",
        pool_size: int = 8,
        idle_seconds: float = 60.0,
        start_seconds: float = 60.0,
        reset_tool: str = "",
        hidden: Sequence[str] = (),
        reads: Sequence[str] = (),
        limits: Mapping[str, Any] | ToolLimits | None = None,
        **server: Any,
    ) -> None:
        self.name = name
        self.media: MediaStore | None = None
        self.limits = tool_limits(limits)
        self.server = _server(server)
        if pool_size < 1 or idle_seconds < 0:
            raise ConfigError(
                f"pool_size {pool_size} must be at least 1, idle_seconds {idle_seconds} at least 0"
            )
        self._make_pool = partial(
            Pool,
            self.server,
            size=pool_size,
            idle_seconds=idle_seconds,
            reset_tool=reset_tool,
            timeout_seconds=self.limits.timeout_seconds,
        )
        self._pools: dict[asyncio.AbstractEventLoop, Pool] = {}
        said = _ask_for_tools(self.server, start_seconds)
        for option, names in (
            ("reset_tool", [reset_tool] * bool(reset_tool)),
            ("hidden", hidden),
            ("reads", reads),
        ):
            _refuse_unknown(option, names, said)
        self._reads = said.reads | frozenset(reads)
        self._specs = {key: spec for key, spec in said.specs.items() if key not in {*hidden, reset_tool}}
        self._tasks = read_tasks(Path(tasks), self._rules(said))
        self.splits = splits_of(self._tasks)
        self.version = canonical.digest(
            source_digest(__name__),
            self.server.identity(),
            said.version,
            [spec.model_dump() for spec in said.specs.values()],
            [task.task_id for task in self._tasks],
            [repr(self.limits), reset_tool, sorted(hidden), sorted(self._reads)],
            length=12,
        )

    async def open(self, task: Task, *, seed: int = 0) -> McpSession:
        """A session with a connection of its own; waits while the pool is full."""
        self.check_task(task)
        session = McpSession(
            task,
            seed=seed,
            pool=self.pool(),
            specs=self._shown(task),
            limits=self.limits,
            reads=self._reads,
            media=self.media,
            on_close=self._session_closed,
        )
        self.num_open += 1
        await session.start()
        return session

    def pool(self) -> Pool:
        """The running event loop's pool; the connections of a loop that ended are gone with it."""
        loop = asyncio.get_running_loop()
        self._pools = {key: pool for key, pool in self._pools.items() if not key.is_closed()}
        if loop not in self._pools:
            self._pools[loop] = self._make_pool()
        return self._pools[loop]

    def _shown(self, task: Task) -> dict[str, ToolSpec]:
        if task.tools is None:
            return self._specs
        unknown = [name for name in task.tools if name not in self._specs]
        if unknown:
            raise ConfigError(
                f"task {task.task_id} shows tools {unknown}; there are {', '.join(self._specs)}"
            )
        return {name: self._specs[name] for name in task.tools}

    def _rules(self, said: Description) -> TaskRules:
        def state_problem(check: dict[str, Any]) -> str:
            wanted = check["state"]
            if not isinstance(wanted, dict) or wanted.keys() - _STATE_KEYS or "tool" not in wanted:
                return "write {state: {tool: NAME, arguments: {...}, equals|contains: VALUE}}"
            if ("equals" in wanted) == ("contains" in wanted):
                return "say either equals or contains"
            return "" if wanted["tool"] in said.specs else f"the server has no tool {wanted['tool']!r}"

        return TaskRules(
            environment=self.name,
            verifier=f"{self.name}/checks/1",
            tools=tuple(self._specs),
            checks={"state": state_problem, "verifier": _verifier_problem},
        )


def load(**options: Any) -> McpEnvironment:
    """The environment; options are those of McpEnvironment."""
    return McpEnvironment(**options)


def _server(options: Mapping[str, Any]) -> McpServer:
    try:
        server = McpServer(**options)
    except TypeError as error:
        known = ", ".join(McpServer.__dataclass_fields__)
        raise ConfigError(f"MCP environment: {error}; options of a server are {known}") from error
    check_options(McpServer, options, where="MCP server")
    return server


def _refuse_unknown(option: str, names: Sequence[str], said: Description) -> None:
    unknown = [name for name in names if name not in said.specs]
    if unknown:
        raise ConfigError(f"{option} names {unknown}; the server's tools are {', '.join(said.specs)}")


def _verifier_problem(check: dict[str, Any]) -> str:
    try:
        found = load_dotted(str(check["verifier"]), what="verifier")
    except ConfigError as error:
        return str(error)
    return "" if callable(found) else f"{check['verifier']} cannot be called"


def _ask_for_tools(server: McpServer, seconds: float) -> Description:
    """Connect once, in a thread of its own because an event loop may be running here. Raises ConfigError."""

    async def ask() -> Description:
        connection = Connection(server)
        try:
            async with asyncio.timeout(seconds):
                await connection.ready()
                return await describe(connection.client)
        finally:
            await connection.close()

    with ThreadPoolExecutor(1) as executor:
        try:
            return executor.submit(asyncio.run, ask()).result()
        except (EnvironmentFailure, TimeoutError) as error:
            why = str(error) or f"no answer within {seconds:g} s"
            raise ConfigError(
                f"MCP server {server.label} does not answer: {why}; run it by hand to see what it says"
            ) from error
