"""The host's half of a run: reads two pipes and a socket under deadlines, and believes nothing they say.

Output beyond the limit is read and dropped; at `FLOOD` times the limit the run is ended, because reading
costs the host. A frame longer than what may be handed back ends the run as well. A program's clock runs from
the moment at which it is known to run until its end is known: a jail that is slow to begin or to hand back
files is not a slow program.
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
_SLICE = 0.1
"""Seconds after which the host looks up from waiting; what it overslept, the machine took from both sides."""
_MAX_STARVED = 9
"""A starved program gets at most this many times its limit on top; a jail that stands still for longer is
given up. What the host overslept has no bound: it is the host's own measure, and no program can cause it."""
_LONGEST_LOOK = 1.0
PATIENCE = 30.0
"""Seconds a jail may take to come up, to begin a program, or to hand back its files."""


class Ending(StrEnum):
    """Why the conversation ended."""

    DONE = "done"
    DEADLINE = "deadline"
    STALLED = "stalled"
    """The machine kept the jail from running for too long to go on."""
    FLOOD = "flood"
    MEMORY = "memory"
    """Seen by polling, where no control group holds the limit."""
    GONE = "gone"
    """The other side closed without a report."""
    SILENT = "silent"
    """The jail did not begin the program, or did not hand back its files."""


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
    """How much of so many seconds the machine kept the program from running; asked when its time is up."""
    stands_still: Callable[[], bool]
    """Whether the machine kept the jail from running since the last time; asked in every slice of a run."""
    poll_seconds: float = 0.02


class Exchange:
    """One conversation with one jail."""

    def __init__(self, control: socket.socket, streams: Sequence[Capture], watch: Watch) -> None:
        self._control, self._streams, self._watch = control, streams, watch
        self._buffer = bytearray()
        self._received = 0
        self._report = Report()
        self._done = False
        self._enter(PATIENCE)

    def _enter(self, seconds: float, *, running: bool = False) -> None:
        """The next phase: the jail's own work, or (`running`) the compiler's or the program's."""
        self._seconds, self._running = seconds, running
        self._began = self._looked = time.monotonic()
        self._overslept = self._stalled = self._asked = 0.0

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
        if self._report.status is None and self._running:
            self._report.seconds = time.monotonic() - self._began
        return self._report

    def _patience(self) -> float:
        left = self._began + self._seconds - time.monotonic()
        patience = min(left, _SLICE) if left > 0 else _SLICE
        return min(patience, self._watch.poll_seconds) if self._watch.too_much_memory else patience

    def _check(self) -> None:
        if self._done:
            return
        now = time.monotonic()
        self._overslept += max(now - self._looked - _SLICE, 0.0)
        self._looked = now
        awake = now - self._began - self._overslept
        if self._running and awake - self._asked >= _SLICE:
            if self._watch.stands_still():
                self._stalled += awake - self._asked
            self._asked = awake
        if any(stream.flooded for stream in self._streams):
            self._end(Ending.FLOOD)
        elif self._stalled > _MAX_STARVED * self._seconds:
            self._end(Ending.STALLED)
        elif self._overdue(awake - self._stalled):
            self._end(Ending.DEADLINE if self._running else Ending.SILENT)
        elif self._watch.too_much_memory and self._watch.too_much_memory():
            self._end(Ending.MEMORY)
        # Looking is not sleeping: a program could make its processes slow to look at, though never that slow.
        self._looked = min(time.monotonic(), now + _LONGEST_LOOK)

    def _overdue(self, elapsed: float) -> bool:
        if elapsed < self._seconds:
            return False
        starved = self._watch.starved_seconds(elapsed) if self._running else 0.0
        return elapsed >= self._seconds + min(starved, _MAX_STARVED * self._seconds)

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
            self._end(Ending.GONE)
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
        report, watch = self._report, self._watch
        building = watch.compile_seconds if report.compile_status is None else None
        if letter == b"S" and not self._running and report.status is None:
            self._enter(building or watch.run_seconds, running=True)
        elif letter == b"C" and len(payload) >= 4 and building:
            (report.compile_status,) = struct.unpack(">i", payload[:4])
            report.compile_output = payload[4:]
            if report.compile_status:
                self._end(Ending.DONE)
            elif not watch.before_run():
                self._end(Ending.MEMORY)
            else:
                self._enter(PATIENCE)
                self._control.send(b"G")
        elif letter == b"E" and len(payload) == 4 and not building and report.status is None:
            (report.status,) = struct.unpack(">i", payload)
            report.seconds = time.monotonic() - self._began if self._running else 0.0
            self._enter(PATIENCE)
        elif letter == b"F" and len(payload) >= 2:
            report.files[int.from_bytes(payload[:2], "big")] = payload[2:]
        elif letter == b"D" and report.status is not None:
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
