"""The transport to an MCP server that is a process of ours: lines of JSON over its standard streams.

The package's own stdio transport leaves what a dead server had started; this one ends the server's whole
process group, whatever happened before, cancellation included. Standard error goes to a file or nowhere,
never into a record. Not covered: a child that left the process group on purpose.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

GRACE_SECONDS = 1.0
"""How long a server may take to end by itself once its standard input is closed."""

_POLL_SECONDS = 0.01
_GONE = (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream, OSError)


@asynccontextmanager
async def stdio_transport(
    command: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, log: Path | None = None
) -> AsyncIterator[tuple[Any, Any]]:
    """Start the server; yield its read and write streams; end it and all it started. Raises OSError."""
    with open(log or os.devnull, "ab") as errors:
        process = await anyio.open_process(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    to_client, incoming = anyio.create_memory_object_stream[Any](0)
    outgoing, from_client = anyio.create_memory_object_stream[Any](0)
    async with anyio.create_task_group() as group:
        try:
            group.start_soon(_read, process, to_client)
            group.start_soon(_write, process, from_client, to_client)
            yield incoming, outgoing
        finally:
            with anyio.CancelScope(shield=True):
                incoming.close()
                outgoing.close()
                await _end(process)
                for stream in (incoming, outgoing, to_client, from_client):
                    stream.close()
            group.cancel_scope.cancel()


async def _read(process: Process, to_client: Any) -> None:
    """Lines of the server as messages; the stream ends where the server's output does."""
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    assert process.stdout is not None
    rest = ""
    with suppress(*_GONE):
        async with to_client:
            async for chunk in TextReceiveStream(process.stdout, errors="replace"):
                *lines, rest = (rest + chunk).split("\n")
                for line in lines:
                    try:
                        message = SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
                    except ValueError as error:  # the session reports what is no message
                        await to_client.send(error)
                    else:
                        await to_client.send(message)


async def _write(process: Process, from_client: Any, to_client: Any) -> None:
    assert process.stdin is not None
    try:
        async with from_client:
            async for message in from_client:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.stdin.send(line.encode() + b"\n")
    except _GONE:
        to_client.close()  # else a request to a server that is gone would wait for ever


async def _end(process: Process) -> None:
    """Close its input, wait a little, then kill the group; the group goes even where the server is gone."""
    assert process.stdin is not None and process.stdout is not None
    with suppress(*_GONE):
        await process.stdin.aclose()
    with anyio.move_on_after(GRACE_SECONDS):
        await _ended(process)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await _ended(process)
    with suppress(*_GONE):
        await process.stdout.aclose()
    # A grandchild that holds the pipe would keep the event loop's transport open; nothing public closes it.
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    if transport is not None:
        transport.close()


async def _ended(process: Process) -> None:
    while process.returncode is None:
        await anyio.sleep(_POLL_SECONDS)
