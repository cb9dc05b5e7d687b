"""One writer per run directory: an advisory lock that dies with its process.

Not covered: network file systems without flock, and two machines sharing one.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from data.errors import StoreError

FILE = ".lock"


class WriterLock:
    """Holds the lock from construction to `release`. StoreError names the holder where it is taken."""

    def __init__(self, root: Path) -> None:
        self.path = root / FILE
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise StoreError(
                f"{root} is being written by process {holder}; wait for it, end it, or name another directory"
            ) from None
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        """Let the next writer in."""
        os.close(self._descriptor)
