"""The process of `verifiers_worker`: started in .venv-verifiers, spoken to over a Unix socket.

Decides whose fault a silence is: a process that dies or answers no JSON is an EnvironmentFailure that names
its last words. It ends with its owner, whatever becomes of that (its standard input ends). Not covered:
several machines.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from data import canonical
from data.errors import RecordError
from pipeline.errors import ConfigError, EnvironmentFailure, MissingExtraError

_LINE_LIMIT = 64 * 2**20
_GRACE_SECONDS = 5.0
_STDERR_SHOWN = 600


class RefusedError(Exception):
    """The worker answered with an error of the taskset's or of ours; its text is the message."""


def verifiers_python() -> Path:
    """The interpreter of .venv-verifiers: $TRAJSMITH_VERIFIERS_PYTHON, else the checkout's."""
    configured = os.environ.get("TRAJSMITH_VERIFIERS_PYTHON")
    python = (
        Path(configured) if configured else Path(__file__).parents[3] / ".venv-verifiers" / "bin" / "python"
    )
    if not python.exists():
        raise MissingExtraError(
            f"verifiers lives in an environment of its own (it pins mcp 2.0.0), and there is no {python}; "
            "run: make verifiers-setup (or set TRAJSMITH_VERIFIERS_PYTHON)"
        )
    return python


class VerifiersProcess:
    """One worker for one taskset. `about` is what it says of the taskset. Raises ConfigError."""

    def __init__(self, taskset: str, config: Mapping[str, Any]) -> None:
        python = verifiers_python()
        folder = tempfile.mkdtemp(prefix="trajsmith-verifiers-")
        self._address, self._log = f"{folder}/socket", Path(folder) / "log"
        worker = str(Path(__file__).with_name("verifiers_worker.py"))
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [str(python), "-P", worker, self._address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
            )
        self.close = weakref.finalize(self, _end, self._process, folder)
        spec = canonical.dumps({"taskset": taskset, "config": dict(config), "folder": folder})
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(spec.encode() + b"\n")
            self._process.stdin.flush()
        try:
            self.about = self._read(self._process.stdout.readline())
        except RefusedError as error:
            self.close()
            raise ConfigError(f"verifiers taskset {taskset!r}: {error}") from error

    def ask(self, request: Mapping[str, Any]) -> Iterator[Any]:
        """The answers to one request, until one is None. Raises RefusedError, EnvironmentFailure."""
        with socket.socket(socket.AF_UNIX) as connection:
            self._reach(connection)
            connection.sendall(canonical.dumps(dict(request)).encode() + b"\n")
            with connection.makefile("rb") as lines:
                while (answer := self._read(lines.readline())) is not None:
                    yield answer

    async def episode(self) -> EpisodeProcess:
        """A process of one's own for an episode."""
        try:
            streams = await asyncio.open_unix_connection(self._address, limit=_LINE_LIMIT)
        except OSError as error:
            raise self._gone(error) from error
        return EpisodeProcess(self, *streams)

    def _reach(self, connection: socket.socket) -> None:
        try:
            connection.connect(self._address)
        except OSError as error:
            raise self._gone(error) from error

    def _read(self, line: bytes) -> Any:
        try:
            answer = canonical.loads(line.decode())
            if "error" in answer:
                raise RefusedError(answer["error"])
            return answer["ok"]
        except (ValueError, LookupError, TypeError, RecordError) as error:
            raise self._gone(error) from error

    def _gone(self, error: Exception) -> EnvironmentFailure:
        said = self._log.read_text(errors="replace")[-_STDERR_SHOWN:] if self._log.exists() else ""
        return EnvironmentFailure(f"the verifiers process does not answer ({error}); it last said: {said!r}")


class EpisodeProcess:
    """The asynchronous side of one connection."""

    def __init__(
        self, owner: VerifiersProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._owner, self._reader, self._writer = owner, reader, writer
        self._pid = 0
        self._busy = False

    async def ask(self, do: str, **request: Any) -> Any:
        """The answer. Raises RefusedError, EnvironmentFailure."""
        self._busy = True
        self._writer.write(canonical.dumps({"do": do} | request).encode() + b"\n")
        try:
            await self._writer.drain()
            line = await self._reader.readline()
        except (ConnectionError, ValueError) as error:
            raise EnvironmentFailure(f"the verifiers process of an episode is gone: {error!r}") from error
        self._busy = False
        answer = self._owner._read(line)
        if do == "open":
            self._pid = answer["pid"]
        return answer

    async def close(self) -> None:
        """Hang up and wait until the process has ended its tool servers; a process that is busy is ended."""
        with suppress(ConnectionError, TimeoutError):
            if self._writer.can_write_eof():
                self._writer.write_eof()
            async with asyncio.timeout(0.0 if self._busy else _GRACE_SECONDS):
                await self._reader.read()
        if not self._reader.at_eof() and self._pid:
            with suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


def _end(process: subprocess.Popen[bytes], folder: str) -> None:
    """Standard input ends, and with it the worker; its episodes end with their connections."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)
