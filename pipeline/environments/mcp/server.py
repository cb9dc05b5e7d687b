"""Where an MCP server is and how a client of it is made: in this process, a command, or a URL.

Environment variables and headers are given by the NAME of a variable; their values are read when a server is
started and stand in no version, error or log, and those of headers in no answer either. Not covered: OAuth;
a tool that shows a variable (the cassette's `scrub_env` keeps it out of records); servers that ask the client
for sampling, roots or elicitation (they are refused by the protocol).
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data import canonical
from data.messages import ToolSpec
from pipeline.checks.credentials import (
    blotted,
    check_variable,
    header_secrets,
    read_variable,
    shown_url,
    url_secrets,
)
from pipeline.dotted import load_dotted
from pipeline.environments.mcp.stdio import stdio_transport
from pipeline.environments.schemas import compact
from pipeline.errors import ConfigError, MissingExtraError


@dataclass(frozen=True, kw_only=True)
class McpServer:
    """Exactly one of `server` (`package.module:factory`), `command` and `url`.

    `server` names a function that makes a fresh server, one per session. A server object itself is shared by
    all sessions and taken only with `shared=True`, which says that it keeps no state.
    """

    server: str = ""
    command: Sequence[str] = ()
    url: str = ""
    env: Sequence[str] = ()
    """Names of variables handed to the command, besides PATH, HOME and the like."""
    headers: dict[str, str] = field(default_factory=dict)
    """HTTP header to name of the variable that holds its value."""
    cwd: str = ""
    log: str = ""
    """File the command's standard error is appended to; "" = thrown away."""
    shared: bool = False

    def __post_init__(self) -> None:
        given = [name for name in ("server", "command", "url") if getattr(self, name)]
        if len(given) != 1:
            raise ConfigError(
                f"an MCP environment needs exactly one of server, command and url, got {given or 'none'}"
            )
        if isinstance(self.command, str):
            raise ConfigError(
                f"command is a list of words, got {self.command!r}; write {self.command.split()}"
            )

    @property
    def label(self) -> str:
        """How errors call it."""
        return self.server or shown_url(self.url) or Path(self.command[0]).name

    def identity(self) -> Any:
        """What distinguishes it, as JSON, without a value of any variable."""
        return [
            self.server,
            list(self.command),
            shown_url(self.url),
            sorted(self.env),
            sorted(self.headers),
        ]

    def header_secrets(self) -> tuple[str, ...]:
        """What its headers keep secret."""
        return header_secrets(filter(None, map(os.environ.get, self.headers.values())))

    def blotted(self, text: str) -> str:
        """What the server says of a failure, without what it was told in confidence."""
        variables = filter(None, map(os.environ.get, self.env))
        return blotted(text, [*self.header_secrets(), *variables, *url_secrets(self.url)])

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        """A connected `mcp.Client`, entered and left by one task. Raises ConfigError, and what it raises."""
        mcp = _package()
        if self.server:
            async with mcp.Client(self._in_process()) as client:
                yield client
        elif self.command:
            cwd, log = Path(self.cwd) if self.cwd else None, Path(self.log) if self.log else None
            transport = stdio_transport(self.command, env=self._variables(), cwd=cwd, log=log)
            # The handshake of old also works with servers of today, and costs one round trip less to fail.
            async with mcp.Client(transport, mode="legacy") as client:
                yield client
        else:
            async with self._http() as client:
                yield client

    def _in_process(self) -> Any:
        with _own_logging():
            found = load_dotted(self.server, what="MCP server")
            made = found() if callable(found) else found
        if made is found and not self.shared:
            raise ConfigError(
                f"{self.server} is one server for all sessions, so they would see each other's changes; name "
                "a function that makes a server, or say shared: true where it keeps no state"
            )
        return made

    @asynccontextmanager
    async def _http(self) -> AsyncIterator[Any]:
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        headers = {
            header: read_variable(name, where=f"MCP server: header {header}")
            for header, name in self.headers.items()
        }
        async with create_mcp_http_client(headers=headers) as http:
            transport = streamable_http_client(self.url, http_client=http)
            # Only the handshake gives a session id, which is what a server can keep an episode's state by.
            async with _package().Client(transport, mode="legacy") as client:
                yield client

    def _variables(self) -> dict[str, str]:
        from mcp.client.stdio import get_default_environment

        return get_default_environment() | {name: _variable(name) for name in self.env}


@dataclass(frozen=True, slots=True)
class Description:
    """What a server says of itself."""

    specs: dict[str, ToolSpec]
    reads: frozenset[str]
    """Tools that the server says change nothing."""
    version: str


async def describe(client: Any) -> Description:
    """All tools of a connected server, in its order."""
    found, cursor = [], None
    while True:
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if not cursor:
            break
    specs = {
        tool.name: ToolSpec(
            name=tool.name,
            description=" ".join((tool.description or "").split("\n\n")[0].split()),
            parameters=canonical.dumps(compact(tool.input_schema)),
        )
        for tool in found
    }
    reads = {tool.name for tool in found if tool.annotations and tool.annotations.read_only_hint}
    info = client.server_info
    return Description(specs, frozenset(reads), f"{info.name} {info.version}" if info else "")


def _variable(name: str) -> str:
    check_variable(name, where="MCP server: each of env")
    value = os.environ.get(name)
    if value is None:
        raise ConfigError(f"environment variable {name} is not set; the MCP server needs it")
    return value


def _package() -> Any:
    try:
        import mcp
    except ImportError as error:
        raise MissingExtraError("MCP servers need the package mcp: pip install 'trajsmith[mcp]'") from error
    # What goes wrong is in the results; a traceback of every tool that refuses would drown everything else.
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    return mcp


@contextmanager
def _own_logging() -> Iterator[None]:
    """Put the root logger back: a server object sets it up as if the process were its own."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
