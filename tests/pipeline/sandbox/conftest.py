"""One bubblewrap sandbox for the whole directory, and a host with things to steal, reach, kill and spoil."""

import asyncio
import contextlib
import gc
import os
import socket
import subprocess
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import MissingExtraError
from pipeline.sandbox import cgroups
from pipeline.sandbox.base import Execution, Limits, Program, Sandbox
from pipeline.sandbox.bubblewrap import BubblewrapSandbox
from pipeline.sandbox.load import load_sandbox

SECRET = "host-secret-5f1c"


def run(sandbox: Sandbox, program: Program, limits: Limits | None = None) -> Execution:
    """One program, in an event loop of its own."""
    return asyncio.run(sandbox.run(program, limits))


def descendants(pid: int | None = None) -> set[int]:
    """Every process below this one."""
    found = set()
    for task in Path(f"/proc/{pid or os.getpid()}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found |= {child} | descendants(child)
    return found


def left_since(before: set[int], naming: str = "") -> list[str]:
    """Command lines of the processes below this one that are new, once what is ending had time to."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not (left := [command for command in commands(descendants() - before) if naming in command]):
            break
        time.sleep(0.05)
    return left


def commands(pids: set[int]) -> list[str]:
    """Command lines of those that live, but multiprocessing's own: they stay for the whole test run."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/cmdline").read_text(errors="replace"))
    return [command for command in found if "multiprocessing" not in command]


def groups_left() -> list[str]:
    """Control groups of this process that still exist."""
    parents = set(cgroups.host().parents.values())
    return [str(path) for parent in parents for path in parent.glob(f"trajsmith-{os.getpid()}-*")]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextlib.contextmanager
def cold() -> Iterator[BubblewrapSandbox]:
    """A sandbox of the test's own, without warm jails."""
    sandbox = BubblewrapSandbox(warm=0)
    try:
        yield sandbox
    finally:
        asyncio.run(sandbox.close())


@pytest.fixture(scope="package", autouse=True)
def _alone() -> None:
    """Worlds that earlier tests played in keep warm jails; what is counted here must be ours."""
    for found in gc.get_objects():
        if (
            type(found) is BubblewrapSandbox
        ):  # isinstance would ask deprecated proxies of torch for their class
            asyncio.run(found.close())


@pytest.fixture(scope="package")
def bubblewrap(_alone: None) -> Iterator[Sandbox]:
    before = descendants()
    try:
        sandbox = load_sandbox("bubblewrap", warm=2, parallel=8)
    except MissingExtraError as error:  # installed but unable is a failure
        pytest.skip(str(error))
    yield sandbox
    asyncio.run(sandbox.close())
    assert not left_since(before)
    assert groups_left() == []


@pytest.fixture(scope="session")
def unsafe() -> Iterator[Sandbox]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sandbox = load_sandbox("unsafe")
    yield sandbox
    asyncio.run(sandbox.close())


class Host:
    """What an escape could reach: files, sockets and a process of this machine."""

    def __init__(self, directory: Path) -> None:
        directory.chmod(0o755)
        self.directory = directory
        self.secret = directory / "secret.txt"
        self.secret.write_text(SECRET)
        self.secret.chmod(0o644)
        self.drop = directory / "drop"
        self.drop.mkdir(mode=0o777)
        self.drop.chmod(0o777)
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(str(directory / "s"))
        (directory / "s").chmod(0o777)
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind(f"\0trajsmith-{os.getpid()}")
        for listener in (self.unix, self.abstract):
            listener.listen()
        for listener in (self.tcp, self.udp, self.unix, self.abstract):
            listener.setblocking(False)
        self.victim = subprocess.Popen(["sleep", "600"], env={"VICTIM": SECRET})

    def facts(self) -> dict[str, object]:
        """What a program is told, so that only the walls are in its way."""
        return {
            "secret": str(self.secret),
            "drop": str(self.drop),
            "tcp": self.tcp.getsockname()[1],
            "udp": self.udp.getsockname()[1],
            "unix": str(self.directory / "s"),
            "abstract": f"\0trajsmith-{os.getpid()}",
            "victim": self.victim.pid,
            "home": str(Path.home()),
            "checkout": str(Path(__file__).resolve().parents[3]),
            "net": os.readlink("/proc/self/ns/net"),
        }

    def reached(self) -> list[str]:
        """Everything that was touched since the last look; emptied by looking."""
        found = []
        for name in ("tcp", "unix", "abstract"):
            with contextlib.suppress(BlockingIOError):
                getattr(self, name).accept()[0].close()
                found.append(name)
        with contextlib.suppress(BlockingIOError):
            self.udp.recv(100)
            found.append("udp")
        found += [f"planted {path.name}" for path in self.drop.iterdir()]
        for path in self.drop.iterdir():
            path.unlink()
        if self.secret.read_text() != SECRET:
            found.append("secret changed")
        if self.victim.poll() is not None:
            found.append("victim dead")
        return found

    def close(self) -> None:
        self.victim.kill()
        self.victim.wait()
        for listener in (self.tcp, self.udp, self.unix, self.abstract):
            listener.close()


@pytest.fixture(scope="package")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    directory = tmp_path_factory.mktemp("host")
    for parent in (directory.parent, directory.parent.parent):
        with contextlib.suppress(PermissionError):
            parent.chmod(0o755)
    os.environ["TRAJSMITH_TEST_SECRET"] = SECRET
    host = Host(directory)
    yield host
    host.close()
    del os.environ["TRAJSMITH_TEST_SECRET"]
