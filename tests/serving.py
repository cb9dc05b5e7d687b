"""Model servers for tests: scripted ones on the loopback, and one real vLLM server per session."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pipeline.server import ModelServer, ServerSettings, serve_python
from tests.processes import group_survivors


@dataclass(frozen=True)
class Received:
    """One request as the scripted server saw it."""

    path: str
    body: Any
    number: int
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What it answers; `raw` is sent instead of `body`; `cut` ends the connection inside the answer."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    cut: bool = False


class PatientServer(ThreadingHTTPServer):
    """Lets hundreds of clients knock at once."""

    daemon_threads = True
    request_queue_size = 512


class ScriptedServer:
    """An HTTP server on a free loopback port that answers by function; a context manager."""

    def __init__(self, answer: Callable[[Received], Reply]) -> None:
        self.received: list[Received] = []
        self._answer, self._lock = answer, threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                owner._handle(self)

            def do_GET(self) -> None:
                owner._handle(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = PatientServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("content-length") or 0)
        body = json.loads(handler.rfile.read(length)) if length else None
        with self._lock:
            received = Received(handler.path, body, len(self.received), dict(handler.headers.items()))
            self.received.append(received)
        reply = self._answer(received)
        payload = reply.raw if reply.raw is not None else json.dumps(reply.body).encode()
        handler.send_response(reply.status)
        for name, value in {"content-type": "application/json", **reply.headers}.items():
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(payload) + (10 if reply.cut else 0)))
        handler.end_headers()
        handler.wfile.write(payload)
        if reply.cut:
            handler.close_connection = True


class FakeClock:
    """A clock that only moves when somebody sleeps; `slept` holds every pause."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Move the clock and let others run."""
        import asyncio

        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


@pytest.fixture(scope="session")
def vllm_server() -> Iterator[ModelServer]:
    """The embedded model behind a real vLLM server; a test that reloads weights puts the original back."""
    from rl.models import fetch_smollm2

    serve_python()
    settings = ServerSettings(served_name="policy", max_model_len=1024, max_num_seqs=32, lora=True)
    with ModelServer(fetch_smollm2(), settings=settings) as server:
        group = server.process_group
        yield server
    left = group_survivors(group)
    assert left == set(), f"processes left behind by the model server: {left}"
