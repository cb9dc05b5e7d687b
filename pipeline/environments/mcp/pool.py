"""Connections to an MCP server: one per session, leased from a bounded pool, never handed on dirty.

A connection that answered no call is clean and may be leased again. One that did is closed, unless the server
declares a reset tool; where the reset fails it is closed, too. Idle ones are pruned after `idle_seconds`.
A connection is owned by one task, which enters and leaves it, so cancellation takes the same way out.
Not covered: limits across several processes of ours.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from pipeline.environments.mcp.server import McpServer
from pipeline.errors import EnvironmentFailure, TrajsmithError

CLOSE_SECONDS = 5.0


class Connection:
    """One live connection. `is_used` once a call was sent."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self.is_used = False
        self.client: Any = None
        self._stop = asyncio.Event()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own())

    @property
    def is_open(self) -> bool:
        """Whether it is connected, as far as we know."""
        return self.client is not None and not self._stop.is_set()

    async def ready(self) -> None:
        """Wait for the handshake. Raises EnvironmentFailure, ConfigError; closes where it is cut."""
        try:
            await asyncio.shield(self._ready)
        except BaseException:
            self._owner.cancel()
            await self.close()
            raise

    async def close(self) -> None:
        """Leave the connection; a server that does not end in time is killed by its owner."""
        self._stop.set()
        await asyncio.wait({self._owner}, timeout=CLOSE_SECONDS)
        if not self._owner.done():
            self._owner.cancel()
            await asyncio.wait({self._owner})

    def stop(self) -> None:
        """`close` without waiting."""
        self._stop.set()

    async def _own(self) -> None:
        try:
            async with self.server.connect() as client:
                self.client = client
                if not self._ready.done():
                    self._ready.set_result(None)
                await self._stop.wait()
        except TrajsmithError as error:
            self._fail(error)
        except Exception as error:
            said = self.server.blotted(_named(error))
            self._fail(EnvironmentFailure(f"MCP server {self.server.label} is gone or did not start: {said}"))
        finally:
            self.client = None
            self._stop.set()
            if not self._ready.done():
                self._ready.cancel()

    def _fail(self, error: TrajsmithError) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # it is raised where it is awaited, if anybody still does


class Pool:
    """At most `size` connections at once, leased and idle together; belongs to one event loop."""

    def __init__(
        self, server: McpServer, *, size: int, idle_seconds: float, reset_tool: str, timeout_seconds: float
    ) -> None:
        self.server, self.idle_seconds = server, idle_seconds
        self.reset_tool, self.timeout_seconds = reset_tool, timeout_seconds
        self.num_started = 0
        self._slots = asyncio.Semaphore(size)
        self._idle: list[tuple[float, Connection]] = []

    async def lease(self) -> Connection:
        """A clean connection; waits for a free place. Raises EnvironmentFailure, ConfigError."""
        await self._slots.acquire()
        try:
            while self._idle:
                _, connection = self._idle.pop()
                if await self._lives(connection):
                    return connection
            self.num_started += 1
            connection = Connection(self.server)
            await connection.ready()
        except BaseException:
            self._slots.release()
            raise
        return connection

    async def give_back(self, connection: Connection, *, broken: bool) -> None:
        """End a lease: keep the connection where it is clean or can be made so, close it otherwise."""
        kept = False
        try:
            kept = not broken and connection.is_open and await self._cleaned(connection)
        finally:
            # Closing goes on in the connection's own task, even where this one is cancelled meanwhile.
            connection.stop() if not kept else self._keep(connection)
            self._slots.release()
        if not kept:
            await connection.close()

    async def aclose(self) -> None:
        """Close what is idle."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(connection.close() for _, connection in idle))

    def prune(self) -> None:
        """Let go of connections that were idle for too long."""
        limit = time.monotonic() - self.idle_seconds
        for since, connection in self._idle:
            if since <= limit:
                connection.stop()
        self._idle = [item for item in self._idle if item[0] > limit]

    def _keep(self, connection: Connection) -> None:
        self._idle.append((time.monotonic(), connection))
        asyncio.get_running_loop().call_later(self.idle_seconds, self.prune)

    async def _lives(self, connection: Connection) -> bool:
        """Whether an idle connection still answers; a server may end while nobody asks it anything."""
        try:
            async with asyncio.timeout(self.timeout_seconds):
                await connection.client.list_tools(cache_mode="bypass")
        except Exception:  # whatever it was, another connection is started instead
            await connection.close()
            return False
        return connection.is_open

    async def _cleaned(self, connection: Connection) -> bool:
        if not connection.is_used:
            return True
        if not self.reset_tool:
            return False
        try:
            async with asyncio.timeout(self.timeout_seconds):
                answer = await connection.client.call_tool(self.reset_tool, {})
        except Exception:
            return False  # whatever it was, a connection that cannot be reset is closed
        connection.is_used = False
        return not answer.is_error


def _named(error: BaseException) -> str:
    """The innermost error's type and text; groups of one say nothing themselves."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
