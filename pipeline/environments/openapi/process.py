"""A server of the user's own, started for one session and ended with it: the cleanest reset there is.

Decides: `{port}` and `{seed}` in the command are filled in; the server is ready when it accepts connections
on that port; it is ended with its whole process group. Not covered: it is no sandbox (the command is the
user's own).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from typing import IO

from pipeline.errors import ConfigError, EnvironmentFailure

_POLL_SECONDS = 0.02
_ATTEMPTS = 3


class LocalServer:
    """One running server on a free loopback port."""

    def __init__(self, command: Sequence[str], *, start_seconds: float = 30.0) -> None:
        self._command, self._start_seconds = tuple(command), start_seconds
        self._child: asyncio.subprocess.Process | None = None
        self._errors: IO[bytes] | None = None
        self.url = ""

    async def start(self, *, seed: int) -> None:
        """Start it and wait until it answers. Raises EnvironmentFailure with the end of its error output."""
        for attempt in range(1, _ATTEMPTS + 1):
            port = _free_port()
            try:
                await self._spawn(port, seed)
                if await self._is_ready(port):
                    self.url = f"http://127.0.0.1:{port}"
                    return
            except BaseException:
                await self.stop()
                raise
            said = self._last_words()
            await self.stop()
            if attempt == _ATTEMPTS:
                raise EnvironmentFailure(f"{self._command[0]} did not serve port {port}: {said}")

    async def stop(self) -> None:
        """End it and everything it started. Idempotent."""
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    async def _spawn(self, port: int, seed: int) -> None:
        filled = [part.replace("{port}", str(port)).replace("{seed}", str(seed)) for part in self._command]
        if filled[0] == "python":
            filled[0] = sys.executable
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `stop`
        try:
            self._child = await asyncio.create_subprocess_exec(
                *filled,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(f"start command {list(self._command)} cannot be run: {error}") from error

    async def _is_ready(self, port: int) -> bool:
        """False where it ended or stayed silent for too long."""
        assert self._child is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._start_seconds):
                while self._child.returncode is None:
                    with contextlib.suppress(OSError):
                        _, writer = await asyncio.open_connection("127.0.0.1", port)
                        writer.close()
                        await writer.wait_closed()
                        return True
                    await asyncio.sleep(_POLL_SECONDS)
        return False

    def _last_words(self) -> str:
        if self._errors is None:
            return ""
        self._errors.seek(0)
        return self._errors.read()[-300:].decode("utf-8", errors="replace").strip()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
