"""A small HTTP/1.1 server on asyncio and h11: whole requests in, whole or streamed answers out.

Decides: bound to 127.0.0.1 unless told otherwise, bodies up to `max_body` bytes, connections kept alive for
`idle` seconds. Nothing of a request is ever logged. Not covered: TLS, HTTP/2, uploads in pieces.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus

import h11

from pipeline.errors import ConfigError

_CHUNK = 1 << 16
_LINGER_SECONDS = 1.0
_log = logging.getLogger("trajsmith.gateway")


@dataclass(frozen=True, slots=True)
class Request:
    """One request; header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Response:
    """One answer; `stream` instead of `body` is sent in chunks."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    stream: Iterable[bytes] | None = None


Handle = Callable[[Request], Awaitable[Response]]


class HttpServer:
    """Serves `handle` between `start` and `stop`."""

    def __init__(
        self,
        handle: Handle,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        max_body: int = 32 << 20,
        idle: float = 120.0,
    ) -> None:
        self._handle, self._host, self._port = handle, host, port
        self._max_body, self._idle = max_body, idle
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """`http://host:port` of the running server."""
        assert self._server is not None, "start comes first"
        return f"http://{self._host}:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> str:
        """Listen; the URL. Raises ConfigError where the port is taken."""
        try:
            self._server = await asyncio.start_server(
                self._connected, self._host, self._port, limit=1 << 20, backlog=1024
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {self._host}:{self._port}: {error.strerror}; choose another port"
            ) from error
        return self.url

    async def stop(self) -> None:
        """Stop listening and end all connections."""
        if self._server is None:
            return
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs connections as tasks"
        self._connections.add(task)
        try:
            await _Connection(reader, writer, self._max_body, self._idle).serve(self._handle)
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client went away
        except asyncio.CancelledError:
            pass  # the server is being stopped
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()


class _Connection:
    """One client connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_body: int, idle: float
    ) -> None:
        self._reader, self._writer = reader, writer
        self._max_body, self._idle = max_body, idle
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 16)

    async def serve(self, handle: Handle) -> None:
        while True:
            try:
                request = await self._request()
                if request is None:
                    return
                response = await _answer(handle, request)
                if request.method == "HEAD":  # the same answer, its body left out
                    response = replace(response, body=b"", stream=None)
            except h11.RemoteProtocolError as error:
                status = error.error_status_hint
                response = Response(status, b'{"error":{"message":"not a valid HTTP request"}}')
            if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                return
            await self._send(response)
            if self._http.their_state is h11.ERROR:
                await self._linger()
            if {self._http.our_state, self._http.their_state} != {h11.DONE}:
                return
            self._http.start_next_cycle()

    async def _request(self) -> Request | None:
        head = await self._event()
        if not isinstance(head, h11.Request):
            return None
        pieces: list[bytes] = []
        size = 0
        while isinstance(event := await self._event(), h11.Data):
            size += len(event.data)
            if size > self._max_body:
                raise h11.RemoteProtocolError("body too large", error_status_hint=413)
            pieces.append(bytes(event.data))
        if not isinstance(event, h11.EndOfMessage):
            return None
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
        target = head.target.decode("latin-1")
        return Request(head.method.decode("ascii"), target.split("?")[0], headers, b"".join(pieces))

    async def _event(self) -> object:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                await self._write(h11.InformationalResponse(status_code=100, headers=[]))
            async with asyncio.timeout(self._idle):
                self._http.receive_data(await self._reader.read(_CHUNK))

    async def _send(self, response: Response) -> None:
        headers = [
            ("content-type", response.content_type),
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            *response.headers,
        ]
        if response.stream is None:
            headers.append(("content-length", str(len(response.body))))
        reason = HTTPStatus(response.status).phrase
        data = self._http.send(
            h11.Response(status_code=response.status, headers=headers, reason=reason.encode())
        )
        pieces = [response.body] if response.stream is None else response.stream
        self._writer.write(data or b"")
        for piece in pieces:
            await self._write(h11.Data(data=piece))
        await self._write(h11.EndOfMessage())

    async def _linger(self) -> None:
        """Take what the client still sends: closing at once would lose it the answer."""
        self._writer.write_eof()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while await self._reader.read(_CHUNK):
                    pass

    async def _write(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            self._writer.write(data)
            await self._writer.drain()


async def _answer(handle: Handle, request: Request) -> Response:
    """What `handle` answers; a bug of ours is a 500 without any of the request in log or answer."""
    try:
        return await handle(request)
    except Exception as error:
        _log.error("a request failed: %s", type(error).__name__)
        return Response(500, b'{"error":{"message":"internal error of the gateway","type":"server_error"}}')
