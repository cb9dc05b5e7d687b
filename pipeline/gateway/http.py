"""A small HTTP/1.1 server on asyncio and h11: whole requests in, whole or streamed answers out.

Decides: bound to 127.0.0.1 unless told otherwise; a body has at most `max_body` bytes (else 413) and all that
are held at once MAX_BODIES times as many (else 503); a request has arrived `arrival` seconds after its first
byte (else 408), a piece of an answer is taken within `idle` seconds, and a connection is kept alive as long.
Nothing of a request is ever logged. Not covered: TLS, HTTP/2, uploads in pieces.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus

import h11

from data import canonical
from pipeline.errors import ConfigError

MAX_BODIES = 8
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
        arrival: float = 60.0,
    ) -> None:
        self._handle, self._host, self._port = handle, host, port
        self._limits = _Limits(max_body, idle, arrival)
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
                self._connected, self._host, self._port, limit=_CHUNK, backlog=1024
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
            await _Connection(reader, writer, self._limits).serve(self._handle)
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client went away
        except asyncio.CancelledError:
            pass  # the server is being stopped
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()


@dataclass(slots=True)
class _Limits:
    """What all connections of a server share; `held` counts the bytes of bodies that are held now."""

    max_body: int
    idle: float
    arrival: float
    held: int = 0


class _RefusedError(Exception):
    """A request that is answered without having been read to its end."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        error = {"message": message, "type": "server_error" if status >= 500 else "invalid_request_error"}
        self.response = Response(status, canonical.dumps({"error": error}).encode("ascii"))


class _Connection:
    """One client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: _Limits) -> None:
        self._reader, self._writer, self._limits = reader, writer, limits
        self._held, self._due = 0, 0.0
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 16)

    async def serve(self, handle: Handle) -> None:
        while await self._exchange(handle):
            self._http.start_next_cycle()

    async def _exchange(self, handle: Handle) -> bool:
        """One request and its answer; whether another may follow. Nothing of them is kept while it waits."""
        try:
            response = await self._response(handle)
        finally:
            self._hold(-self._held)
        if response is None or self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return False
        await self._send(response)
        if self._http.their_state is not h11.DONE:
            await self._linger()
        return {self._http.our_state, self._http.their_state} == {h11.DONE}

    async def _response(self, handle: Handle) -> Response | None:
        """The answer to the next request; None where none comes."""
        try:
            request = await self._request()
        except _RefusedError as refused:
            return refused.response
        except h11.RemoteProtocolError as error:
            return Response(error.error_status_hint, b'{"error":{"message":"not a valid HTTP request"}}')
        if request is None:
            return None
        response = await _answer(handle, request)
        # HEAD: the same answer, its body left out
        return replace(response, body=b"", stream=None) if request.method == "HEAD" else response

    async def _request(self) -> Request | None:
        self._due = self._now() + self._limits.arrival if self._http.trailing_data[0] else 0.0
        head = await self._event()
        if not isinstance(head, h11.Request):
            return None
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
        self._refuse_large(int(headers.get("content-length", 0)))
        pieces: list[bytes] = []
        while isinstance(event := await self._event(), h11.Data):
            self._hold(len(event.data))
            self._refuse_large(self._held)
            pieces.append(bytes(event.data))
        if not isinstance(event, h11.EndOfMessage):
            return None
        target = head.target.decode("latin-1")
        return Request(head.method.decode("ascii"), target.split("?")[0], headers, b"".join(pieces))

    async def _event(self) -> object:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                await self._write(h11.InformationalResponse(status_code=100, headers=[]))
            self._http.receive_data(await self._read())

    async def _read(self) -> bytes:
        """What comes next, b"" at the end. TimeoutError where nothing of a request came."""
        try:
            async with asyncio.timeout_at(self._due or self._now() + self._limits.idle):
                data = await self._reader.read(_CHUNK)
        except TimeoutError:
            if not self._due:
                raise
            message = f"the request did not arrive within {self._limits.arrival:g} s"
            raise _RefusedError(408, message) from None
        self._due = self._due or self._now() + self._limits.arrival
        return data

    def _refuse_large(self, size: int) -> None:
        """Raise for a body of `size` bytes, announced or already there."""
        limits = self._limits
        if size > limits.max_body:
            raise _RefusedError(413, f"the body is larger than {limits.max_body} bytes")
        if limits.held - self._held + size > MAX_BODIES * limits.max_body:
            raise _RefusedError(503, "too many large requests at once; try again")

    def _hold(self, size: int) -> None:
        self._held += size
        self._limits.held += size

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

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
            async with asyncio.timeout(self._limits.idle):
                await self._writer.drain()


async def _answer(handle: Handle, request: Request) -> Response:
    """What `handle` answers; a bug of ours is a 500 without any of the request in log or answer."""
    try:
        return await handle(request)
    except Exception as error:
        _log.error("a request failed: %s", type(error).__name__)
        return Response(500, b'{"error":{"message":"internal error of the gateway","type":"server_error"}}')
