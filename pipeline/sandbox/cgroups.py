"""Memory, process and CPU limits by control groups: version 1, version 2, or none.

A group is made below this process's own group (version 2: beside it where that one may not have children
with controllers), so what holds for us holds for every jail. Which controllers were found is in `describe`;
where one is missing, the sandbox falls back to resource limits and polling and says so. Groups are named
after our process id, and what a killed process left behind is swept up by the next one. Not covered: disk
and network bandwidth.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.sandbox.base import Limits

_ROOT = Path("/sys/fs/cgroup")
_WANTED = ("memory", "pids", "cpu")
_ACCOUNT = "cpuacct"
"""Version 1: counts processor time; version 2 does so in every group."""
_PERIOD = 100_000
_PREFIX = "trajsmith-"
_MEMORY_AND_SWAP = "memory.memsw.limit_in_bytes"
_counter = itertools.count()


@dataclass(frozen=True, slots=True)
class Host:
    """Where groups can be made: controller to parent directory, and the version."""

    version: int
    parents: dict[str, Path]

    def describe(self) -> str:
        """One line for people."""
        if not self.parents:
            return "no control group is writable: resource limits and polling instead"
        missing = [name for name in _WANTED if name not in self.parents]
        text = f"control groups v{self.version}: {', '.join(n for n in _WANTED if n in self.parents)}"
        return f"{text}; by resource limits and polling: {', '.join(missing)}" if missing else text


@functools.cache
def host(root: Path = _ROOT, proc: Path = Path("/proc/self/cgroup")) -> Host:
    """What this machine offers, tried by making a group. Looked at once per process."""
    own = _own_groups(proc)
    first = {name: root / name / own[name].lstrip("/") for name in (*_WANTED, _ACCOUNT) if name in own}
    parents = {name: path for name, path in first.items() if _usable(path)}
    if set(parents) - {_ACCOUNT}:
        return Host(1, parents)
    unified = root / own.get("", "/").lstrip("/")
    for parent in (unified, unified.parent):
        control = parent / "cgroup.subtree_control"
        offered = control.read_text().split() if control.is_file() else []
        if "memory" in offered and "pids" in offered and _usable(parent):
            return Host(2, {name: parent for name in _WANTED if name in offered})
    return Host(0, {})


def _own_groups(proc: Path) -> dict[str, str]:
    """Controller to this process's group; "" is the unified one."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return {}
    triples = [line.split(":", 2) for line in lines]
    return {name: path for _, names, path in triples for name in names.split(",")}


def _usable(parent: Path) -> bool:
    probe = parent / f"{_PREFIX}{os.getpid()}-probe"
    try:
        probe.mkdir()
        usable = os.access(probe / "cgroup.procs", os.W_OK)
        probe.rmdir()
    except OSError:
        return False
    sweep(parent)
    return usable


def sweep(parent: Path) -> None:
    """Remove the groups of processes that are gone, and what they left in them.

    A host killed in the very moment in which bubblewrap forks leaves one half waiting for the other.
    """
    for path in parent.glob(f"{_PREFIX}*"):
        owner = path.name.removeprefix(_PREFIX).split("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            _kill(path)
            with contextlib.suppress(OSError):
                path.rmdir()


def _kill(group: Path) -> None:
    with contextlib.suppress(OSError):
        for pid in map(int, (group / "cgroup.procs").read_text().split()):
            # 0 is a process of another process name space; to us it would mean our own group.
            if pid:
                os.kill(pid, signal.SIGKILL)


class Group:
    """The groups of one jail, one directory per controller (version 2: one for all)."""

    def __init__(self) -> None:
        self._host = host()
        name = f"{_PREFIX}{os.getpid()}-{next(_counter)}"
        self._paths = {controller: parent / name for controller, parent in self._host.parents.items()}
        for path in set(self._paths.values()):
            path.mkdir(exist_ok=True)  # two names of controllers that are mounted together

    @property
    def entries(self) -> list[str]:
        """Files into which a process writes 0 to join."""
        return [str(path / "cgroup.procs") for path in sorted(set(self._paths.values()))]

    def has(self, controller: str) -> bool:
        """Whether this limit is held by the kernel."""
        return controller in self._paths

    def limit(self, limits: Limits, cores: float, overhead_mib: int, overhead_processes: int) -> bool:
        """Set or lower the limits; False where more memory is in use than that. What the jail itself needs
        comes on top.
        """
        memory = str((limits.memory_mib + overhead_mib) << 20)
        processes = str(limits.processes + overhead_processes)
        quota = int(cores * _PERIOD)
        held = True
        if self._host.version == 2:
            self._write("memory", "memory.max", memory)
            self._write("memory", "memory.swap.max", "0", optional=True)
            self._write("cpu", "cpu.max", f"{quota} {_PERIOD}")
        else:
            # Version 2 ends what is above its new limit; version 1 refuses it, or moves what is above it
            # to a swap file and refuses the limit of both together.
            held = self._write("memory", "memory.limit_in_bytes", memory, optional=True)
            if self._offers("memory", _MEMORY_AND_SWAP):
                held &= self._write("memory", _MEMORY_AND_SWAP, memory, optional=True)
            self._write("cpu", "cpu.cfs_quota_us", str(quota), optional=True)
        self._write("pids", "pids.max", processes)
        return held

    def cpu_seconds(self) -> float | None:
        """Processor time of everything that was ever in it; None where nobody counts."""
        if self._host.version == 2:
            path = next(iter(self._paths.values())) / "cpu.stat"
            with contextlib.suppress(OSError, IndexError, ValueError):
                return int(path.read_text().split()[1]) / 1e6
        elif _ACCOUNT in self._paths:
            with contextlib.suppress(OSError, ValueError):
                return int((self._paths[_ACCOUNT] / "cpuacct.usage").read_text()) / 1e9
        return None

    def _offers(self, controller: str, name: str) -> bool:
        return controller in self._paths and (self._paths[controller] / name).exists()

    def _write(self, controller: str, name: str, value: str, optional: bool = False) -> bool:
        if controller not in self._paths:
            return True
        try:
            (self._paths[controller] / name).write_text(value)
        except OSError:
            # A lower limit than what is in use, or a kernel built without the file (swap, quota).
            if not optional:
                raise
            return False
        return True

    def out_of_memory(self) -> bool:
        """Whether the kernel has killed a process of this jail for memory."""
        if "memory" not in self._paths:
            return False
        name = "memory.events" if self._host.version == 2 else "memory.oom_control"
        lines = (self._paths["memory"] / name).read_text().splitlines()
        return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in lines)

    def remove(self, patience: float = 10.0) -> bool:
        """End what is still in it and remove the directories; False if that is impossible."""
        deadline = time.monotonic() + patience
        left = set(self._paths.values())
        while left and time.monotonic() < deadline:
            for path in list(left):
                _kill(path)
                with contextlib.suppress(OSError):
                    path.rmdir()
                if not path.exists():
                    left.discard(path)
            if left:
                time.sleep(0.002)
        return not left
