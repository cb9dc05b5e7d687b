"""A command in a container, attached by one socket: its input goes in, its two output streams come out.

The daemon sends both streams in frames of eight bytes of header (which stream, three zeros, the length) and
that many bytes. What the command prints cannot forge a frame. Not covered: terminals, which have no frames.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable

from pipeline.errors import EnvironmentFailure
from pipeline.sandbox.exchange import Ending, Kept

_CHUNK = 65_536
_QUIET = 0.5
"""Seconds without a byte after which it is asked whether the command has ended: what it started and left
behind may hold the streams open."""
_LAST_QUIET = 3.0
"""As many seconds without a byte, once it has: what it printed may still be on its way through the daemon."""
_LAST_WORDS = 30.0
"""Seconds after which whatever it left behind is listened to no longer."""
_HEADER = 8


class Frames:
    """Bytes of the socket in, in pieces of any size; bytes of each stream out."""

    def __init__(self, stdout: Kept, stderr: Kept) -> None:
        self._streams = {1: stdout, 2: stderr}
        self._header = bytearray()
        self._stream = stdout
        self._left = 0

    def take(self, data: bytes) -> None:
        """Raises EnvironmentFailure for a stream that no daemon sends."""
        while data:
            if self._left:
                piece, data = data[: self._left], data[self._left :]
                self._left -= len(piece)
                self._stream.take(piece)
                continue
            missing = _HEADER - len(self._header)
            self._header += data[:missing]
            data = data[missing:]
            if len(self._header) == _HEADER:
                self._open(bytes(self._header))
                self._header.clear()

    def _open(self, header: bytes) -> None:
        stream = self._streams.get(header[0])
        if stream is None or any(header[1:4]):
            raise EnvironmentFailure(f"the container daemon sent no output frame but {header!r}")
        self._stream, self._left = stream, int.from_bytes(header[4:], "big")


def converse(
    attached: socket.socket,
    data: bytes,
    *,
    stdout: Kept,
    stderr: Kept,
    seconds: float,
    ended: Callable[[], bool],
) -> Ending:
    """Send `data` and its end while reading, until both streams end, the command has, or a limit is hit.

    A connection that is reset has ended: daemons do that to input that nobody read. Whether the command has
    is for the caller to ask.
    """
    attached.setblocking(False)
    deadline = time.monotonic() + seconds
    frames, unsent = Frames(stdout, stderr), memoryview(data)
    poller = select.poll()
    poller.register(attached, select.POLLIN | select.POLLOUT)
    sending, over = True, False
    with contextlib.suppress(ConnectionResetError):
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            events = poller.poll(min(left, _LAST_QUIET if over else _QUIET) * 1000)
            quiet = not events or not left
            if quiet and over:
                return Ending.DONE
            if quiet and ended():
                over, deadline = True, time.monotonic() + _LAST_WORDS
            elif not left:
                return Ending.DEADLINE
            for _, event in events:
                if sending and event & select.POLLOUT:
                    unsent, sending = _send(attached, unsent)
                if event & ~select.POLLOUT:
                    chunk = attached.recv(_CHUNK)
                    if not chunk:
                        return Ending.DONE
                    frames.take(chunk)
            if not sending:
                poller.modify(attached, select.POLLIN)
            if stdout.flooded or stderr.flooded:
                return Ending.FLOOD
    return Ending.DONE


def _send(attached: socket.socket, data: memoryview) -> tuple[memoryview, bool]:
    """What is left to send, and whether anything is. A command that reads no more loses the rest."""
    try:
        data = data[attached.send(data[:_CHUNK]) :] if data else data
        if not data:
            attached.shutdown(socket.SHUT_WR)
    except (BrokenPipeError, ConnectionResetError):
        return data[:0], False
    return data, bool(data)
