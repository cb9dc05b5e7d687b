"""The host's half of a run: reads two pipes and a socket under deadlines, and believes nothing they say.

Output beyond the limit is read and dropped; at `FLOOD` times the limit the run is ended, because reading
costs the host. A frame longer than what may be handed back ends the run as well.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

FLOOD = 256
_CHUNK = 65_536
_COLLECT_SECONDS = 10.0
_MAX_STARVED = 9
"""A starved program gets at most this many times its limit on top."""


class Ending(StrEnum):
    """Why the conversation ended."""

    DONE = "done"
    DEADLINE = "deadline"
    FLOOD = "flood"
    MEMORY = "memory"
    """Seen by polling, where no control group holds the limit."""
    GONE = "gone"
    """The other side closed without a report."""


class Kept:
    """One output stream, kept up to a limit."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.total = 0
        self.cut = False
        """Whether more than space was dropped."""
        self._kept = bytearray()

    def take(self, data: bytes) -> None:
        """What came, in order."""
        self.total += len(data)
        room = max(self.keep - len(self._kept), 0)
        self._kept += data[:room]
        self.cut = self.cut or bool(data[room:].strip())

    @property
    def flooded(self) -> bool:
        """Whether more has come than anybody means to print."""
        return self.total > max(self.keep, _CHUNK) * FLOOD

    @property
    def truncated(self) -> bool:
        """Whether something was dropped."""
        return self.total > self.keep

    @property
    def content(self) -> bytes:
        """What was kept."""
        return bytes(self._kept)

    @property
    def text(self) -> str:
        """What was kept; bytes that are no UTF-8 become U+FFFD."""
        return self._kept.decode("utf-8", errors="replace")


class Capture(Kept):
    """A stream read from a pipe. Owns the descriptor."""

    def __init__(self, descriptor: int, keep: int) -> None:
        super().__init__(keep)
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.open = True

    def read(self) -> bool:
        """Take what is there, at most one chunk; False when there is nothing (left)."""
        try:
            data = os.read(self.descriptor, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self.open = False
            return False
        self.take(data)
        return True

    def close(self) -> None:
        """Release the descriptor; idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor, self.open = -1, False

    def drain(self) -> None:
        """Take what is buffered, a flood at most."""
        while not self.flooded and self.read():
            pass


@dataclass(slots=True)
class Report:
    """What a jail said. Statuses as of `waitpid`; None where that phase never ended."""

    ending: Ending = Ending.DONE
    compile_status: int | None = None
    compile_output: bytes = b""
    status: int | None = None
    seconds: float = 0.0
    """Of the run, compiling left out."""
    files: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What the host looks at while a jail works."""

    compile_seconds: float | None
    """None: nothing to compile."""
    run_seconds: float
    max_report_bytes: int
    before_run: Callable[[], bool]
    """Called between compiling and running: lowers the limits; False where more memory is in use."""
    too_much_memory: Callable[[], bool] | None = None
    """Polled where the kernel does not hold the memory limit."""
    starved_seconds: Callable[[float], float]
    """How much of so many seconds the program was ready to run without a core; asked when its time is up."""
    poll_seconds: float = 0.02


class Exchange:
    """One conversation with one jail."""

    def __init__(self, control: socket.socket, streams: Sequence[Capture], watch: Watch) -> None:
        self._control, self._streams, self._watch = control, streams, watch
        self._buffer = bytearray()
        self._received = 0
        self._report = Report()
        self._began = time.monotonic()
        self._deadline = self._began + (watch.compile_seconds or watch.run_seconds)
        self._done = False

    def hold(self) -> Report:
        """Until the report is complete, a limit is hit or the jail is gone."""
        self._control.setblocking(False)
        poller = select.poll()
        for descriptor in (self._control.fileno(), *(stream.descriptor for stream in self._streams)):
            poller.register(descriptor, select.POLLIN)
        streams = {stream.descriptor: stream for stream in self._streams}
        while not self._done:
            for descriptor, _ in poller.poll(self._patience() * 1000):
                if descriptor not in streams:
                    self._listen()
                elif not streams[descriptor].read() and not streams[descriptor].open:
                    poller.unregister(descriptor)
            self._check()
        for stream in self._streams:
            stream.drain()
        if self._report.status is None:
            self._report.seconds = time.monotonic() - self._began
        return self._report

    def _patience(self) -> float:
        left = max(self._deadline - time.monotonic(), 0.0)
        return min(left, self._watch.poll_seconds) if self._watch.too_much_memory else left

    def _check(self) -> None:
        if self._done:
            return
        if any(stream.flooded for stream in self._streams):
            self._end(Ending.FLOOD)
        elif time.monotonic() >= self._deadline and not self._extended():
            # The program has ended and only its files are slow: what came is what there is.
            self._end(Ending.DEADLINE if self._report.status is None else Ending.DONE)
        elif self._watch.too_much_memory and self._watch.too_much_memory():
            self._end(Ending.MEMORY)

    def _extended(self) -> bool:
        if self._report.status is not None:
            return False
        compiling = self._watch.compile_seconds is not None and self._report.compile_status is None
        seconds = (self._watch.compile_seconds or 0.0) if compiling else self._watch.run_seconds
        starved = self._watch.starved_seconds(time.monotonic() - self._began)
        granted = self._began + seconds + min(starved, _MAX_STARVED * seconds)
        self._deadline = max(self._deadline, granted)
        return time.monotonic() < self._deadline

    def _end(self, ending: Ending) -> None:
        self._report.ending, self._done = ending, True

    def _listen(self) -> None:
        try:
            data = self._control.recv(1 << 20)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self._end(Ending.GONE if self._report.status is None else Ending.DONE)
            return
        self._buffer += data
        self._received += len(data)
        if self._received > self._watch.max_report_bytes:
            self._end(Ending.FLOOD)
            return
        while not self._done and len(self._buffer) >= 5:
            size = int.from_bytes(self._buffer[1:5], "big")
            if len(self._buffer) < 5 + size:
                return
            letter, payload = bytes(self._buffer[:1]), bytes(self._buffer[5 : 5 + size])
            del self._buffer[: 5 + size]
            self._take(letter, payload)

    def _take(self, letter: bytes, payload: bytes) -> None:
        now = time.monotonic()
        if letter == b"C" and len(payload) >= 4 and self._watch.compile_seconds is not None:
            (self._report.compile_status,) = struct.unpack(">i", payload[:4])
            self._report.compile_output = payload[4:]
            if self._report.compile_status:
                self._end(Ending.DONE)
                return
            if not self._watch.before_run():
                self._end(Ending.MEMORY)
                return
            self._began, self._deadline = time.monotonic(), time.monotonic() + self._watch.run_seconds
            self._control.send(b"G")
        elif letter == b"E" and len(payload) == 4 and self._report.status is None:
            (self._report.status,) = struct.unpack(">i", payload)
            self._report.seconds, self._deadline = now - self._began, now + _COLLECT_SECONDS
        elif letter == b"F" and len(payload) >= 2:
            self._report.files[int.from_bytes(payload[:2], "big")] = payload[2:]
        elif letter == b"D" and self._report.status is not None:
            self._end(Ending.DONE)
        else:
            self._end(Ending.GONE)


def gather(
    process: subprocess.Popen[bytes], streams: Sequence[Capture], seconds: float
) -> tuple[int | None, bool]:
    """Wait for a child in a session of its own, reading its output; then end its whole process group.

    Returns its exit code (minus the signal's number; None where the time or the output limit ended it), and
    whether it was the output limit.
    """
    deadline = time.monotonic() + seconds
    flooded = False
    ended = os.pidfd_open(process.pid)
    try:
        poller = select.poll()
        for descriptor in (ended, *(stream.descriptor for stream in streams)):
            poller.register(descriptor, select.POLLIN)
        by_descriptor = {stream.descriptor: stream for stream in streams}
        while not flooded and (left := deadline - time.monotonic()) > 0:
            events = [descriptor for descriptor, _ in poller.poll(left * 1000)]
            for descriptor in events:
                stream = by_descriptor.get(descriptor)
                if stream is not None and not stream.read() and not stream.open:
                    poller.unregister(descriptor)
            flooded = any(stream.flooded for stream in streams)
            if ended in events:
                break
        status = process.poll() if not flooded else None
    finally:
        os.close(ended)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for stream in streams:
        stream.drain()
    return status, flooded
