"""One session at a time on a shared server: waiting instead of two episodes in one world."""

from __future__ import annotations

import asyncio

from pipeline.errors import EnvironmentFailure

_POLL_SECONDS = 0.02


class Lease:
    """Held by one session. It polls, because an environment outlives event loops and a lock does not."""

    def __init__(self, *, wait_seconds: float = 60.0) -> None:
        self._wait_seconds, self._taken = wait_seconds, False

    async def take(self) -> None:
        """Wait for it. Raises EnvironmentFailure where the holder does not end."""
        try:
            async with asyncio.timeout(self._wait_seconds):
                while self._taken:
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError as error:
            raise EnvironmentFailure(
                f"the shared server was in use for {self._wait_seconds:g} s; with `reset` one session "
                "runs at a time: lower max_in_flight, or use `start` or `session_header`"
            ) from error
        self._taken = True

    def give(self) -> None:
        """Let the next one in."""
        self._taken = False
