"""A small server that speaks Sandbox-Fusion's `POST /run_code`, over any sandbox of ours (bubblewrap by
default).

Run: python -m pipeline.sandbox.server --port 8080. It binds to 127.0.0.1 unless told otherwise: whoever
reaches it can run programs. At most `parallel` run at once; who waits longer than `queue_seconds` gets 504
and asks again. Memory beyond `max_memory_mib` and times beyond `max_seconds` are cut to those. Not covered:
users, TLS (put a proxy in front), Sandbox-Fusion's other endpoints.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pipeline.errors import ConfigError, EnvironmentFailure
from pipeline.sandbox.base import Execution, Limits, Outcome, Program, Sandbox
from pipeline.sandbox.load import load_sandbox

_MAX_REQUEST = 64 << 20
_MALFORMED = (
    ConfigError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What one server grants."""

    parallel: int = 8
    queue_seconds: float = 30.0
    max_seconds: float = 120.0
    max_memory_mib: int = 4096


class RunCodeServer(ThreadingHTTPServer):
    """Serves until `shutdown`; the sandbox belongs to the caller."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(
        self, address: tuple[str, int], sandbox: Sandbox, settings: ServerSettings | None = None
    ) -> None:
        super().__init__(address, _Handler)
        self.sandbox = sandbox
        self.settings = settings or ServerSettings()
        self.slots = threading.BoundedSemaphore(self.settings.parallel)

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"


class _Handler(BaseHTTPRequestHandler):
    server: RunCodeServer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_POST(self) -> None:
        """One program."""
        said = self.headers.get("Content-Length") or ""
        size = int(said) if said.isascii() and said.isdigit() and len(said) < 12 else 0
        if self.path != "/run_code" or not 0 < size <= _MAX_REQUEST:
            self.close_connection = True
            return self._answer(
                404 if self.path != "/run_code" else 413, {"detail": "POST /run_code, 64 MiB at most"}
            )
        body = self.rfile.read(size)
        if len(body) < size:
            self.close_connection = True
            return self._answer(400, {"detail": f"{len(body)} bytes instead of {size}"})
        if not self.server.slots.acquire(timeout=self.server.settings.queue_seconds):
            return self._answer(504, {"detail": f"no free slot in {self.server.settings.queue_seconds:g} s"})
        try:
            self._answer(*self._run(body))
        finally:
            self.server.slots.release()

    def _run(self, body: bytes) -> tuple[int, dict[str, Any]]:
        try:
            program, limits = _request(json.loads(body), self.server.settings)
            return 200, _response(asyncio.run(self.server.sandbox.run(program, limits)))
        except EnvironmentFailure as error:
            return 200, {
                "status": "SandboxError",
                "message": str(error),
                "compile_result": None,
                "run_result": None,
            }
        except _MALFORMED as error:
            return 422, {"detail": f"{type(error).__name__}: {error}"}

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(OSError):  # nobody waits for it any more
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: programs and their output are nobody else's business."""


def _request(raw: dict[str, Any], settings: ServerSettings) -> tuple[Program, Limits]:
    memory = int(raw.get("memory_limit_MB") or -1)
    limits = Limits(
        seconds=min(float(raw.get("run_timeout") or 10.0), settings.max_seconds),
        memory_mib=min(memory, settings.max_memory_mib) if memory > 0 else settings.max_memory_mib,
        output_bytes=1 << 20,
    )
    files = {name: base64.b64decode(data or "") for name, data in (raw.get("files") or {}).items()}
    program = Program(
        code=raw["code"],
        language=raw["language"],
        files=files,
        stdin=raw.get("stdin") or "",
        collect=tuple(raw.get("fetch_files") or ()),
    )
    return program, limits


def _response(execution: Execution) -> dict[str, Any]:
    compiling = execution.outcome is Outcome.COMPILE_ERROR or execution.detail == "while compiling"
    late = execution.outcome is Outcome.TIMEOUT
    code = -9 if execution.outcome is Outcome.OUT_OF_MEMORY else execution.exit_code
    result = {
        "status": "TimeLimitExceeded" if late else "Finished",
        "execution_time": execution.seconds,
        "return_code": None if late else (1 if code is None else code),
        "stdout": execution.stdout,
        "stderr": execution.stderr,
    }
    return {
        "status": "Success" if execution.ok else "Failed",
        "message": execution.detail,
        "compile_result": result if compiling else None,
        "run_result": None if compiling else result,
        "executor_pod_name": None,
        "files": {name: base64.b64encode(data).decode() for name, data in execution.files.items()},
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Run programs for others: POST /run_code")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--parallel", type=int, default=8)
    options = parser.parse_args()
    sandbox = load_sandbox("bubblewrap", parallel=options.parallel)
    server = RunCodeServer((options.host, options.port), sandbox, ServerSettings(parallel=options.parallel))
    print(f"{server.url}/run_code: {sandbox.describe()}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print("stopped")
    finally:
        server.server_close()
        asyncio.run(sandbox.close())


if __name__ == "__main__":
    main()
