"""An MCP server that counts, answers in every form and breaks on request.

In this process through `build`; `python bench_server.py stdio` or `python bench_server.py http`,
which prints the port that it chose.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import uuid
from collections import defaultdict
from typing import Annotated, Literal

import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.types import CallToolResult, ResourceLink
from pydantic import Field

PNG = b"\x89PNG\r\n\x1a\nnot really"


def build() -> MCPServer:
    """A fresh server; over HTTP it counts per session."""
    server = MCPServer("bench")
    totals: dict[str, int] = defaultdict(int)
    identity = uuid.uuid4().hex

    def key(context: Context) -> str:
        request = context.request_context.request
        return request.headers.get("mcp-session-id", "") if request is not None else ""

    @server.tool()
    def add(
        amount: Annotated[int, Field(ge=1, le=9, description="How much.")],
        context: Context,
        unit: Literal["one", "ten"] = "one",
        note: str | None = None,
    ) -> int:
        """Raise the total."""
        totals[key(context)] += amount * (10 if unit == "ten" else 1)
        return totals[key(context)]

    @server.tool()
    def total(context: Context) -> dict[str, int]:
        """The total."""
        return {"total": totals[key(context)]}

    @server.tool()
    def reset(context: Context) -> str:
        """Begin again; fails where the total is 13."""
        if totals[key(context)] == 13:
            raise RuntimeError("unlucky")
        totals[key(context)] = 0
        return "ok"

    @server.tool()
    def refuse(reason: str) -> str:
        """Refuse."""
        raise ValueError(reason)

    @server.tool()
    def picture(size: int = 1) -> list[str | Image]:
        """A picture and a word."""
        return ["look", Image(data=PNG * size, format="png")]

    @server.tool()
    def link() -> CallToolResult:
        """A resource link."""
        item = ResourceLink(name="log", uri="file:///log.txt", mime_type="text/plain")
        return CallToolResult(content=[item])

    @server.tool()
    def structured() -> CallToolResult:
        """Structured content only."""
        return CallToolResult(content=[], structured_content={"b": 1, "a": None})

    @server.tool()
    def die() -> str:
        """End the process."""
        os._exit(3)

    @server.tool()
    async def hang() -> str:
        """Never answer."""
        await asyncio.sleep(3600)
        return "late"

    @server.tool()
    def spawn() -> int:
        """Start a child that outlives us; its process id."""
        print("spawning, secret of standard error", file=sys.stderr)
        return subprocess.Popen(["sleep", "3600"]).pid

    @server.tool()
    def variable(name: str) -> str:
        """Value of an environment variable."""
        return os.environ.get(name, "not set")

    @server.tool()
    def server_id() -> str:
        """Another one for each server object."""
        return identity

    @server.tool()
    def process_id() -> int:
        """Process id of the server."""
        return os.getpid()

    return server


SHARED = build()

if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        build().run()
    else:
        listening = socket.create_server(("127.0.0.1", 0))
        print(listening.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(build().streamable_http_app())).run(sockets=[listening])
