"""The filter as a program, control groups on a made-up tree, no sandbox, and the loader."""

import asyncio
import os
import struct
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError
from pipeline.sandbox import cgroups, seccomp
from pipeline.sandbox.base import Limits, Outcome, Program
from pipeline.sandbox.load import SANDBOXES, load_sandbox, parted_choice
from pipeline.sandbox.toolchains import find_language
from pipeline.sandbox.verdicts import checked, judge, same_output
from tests.pipeline.sandbox.conftest import run

ALLOW, EPERM, ENOSYS, EAFNOSUPPORT, KILL = 0x7FFF0000, 0x50001, 0x50026, 0x50061, 0x80000000
X86, ARM = 0xC000003E, 0xC00000B7


def verdict(machine: str, arch: int, number: int, *arguments: int) -> int:
    """Run the filter on one call, as the kernel would."""
    call = struct.pack("=IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    lines = list(struct.iter_unpack("=HBBI", seccomp.program(machine)))
    at, register = 0, 0
    while True:
        code, if_true, if_false, value = lines[at]
        at += 1
        if code == 0x20:
            register = struct.unpack_from("=I", call, value)[0]
        elif code == 0x06:
            return int(value)
        else:
            holds = {0x15: register == value, 0x35: register >= value, 0x45: bool(register & value)}[code]
            at += if_true if holds else if_false


@pytest.mark.parametrize(
    ("number", "arguments", "expected"),
    [
        (0, (), ALLOW), (59, (), ALLOW), (101, (), EPERM), (165, (), EPERM), (321, (), EPERM),
        (425, (), EPERM),
        (435, (), ENOSYS), (56, (0x11,), ALLOW), (56, (0x3D0F00,), ALLOW), (56, (0x10000011,), EPERM),
        (56, (0x20000,), EPERM), (41, (1,), ALLOW), (41, (2,), ALLOW), (41, (10,), ALLOW),
        (41, (16,), EAFNOSUPPORT),
        (41, (17,), EAFNOSUPPORT), (41, (40,), EAFNOSUPPORT), (16, (1, 0x5412), EPERM),
        (16, (1, 0x541C), EPERM),
        (16, (1, 0x5423), EPERM), (53, (1, 1, 0), ALLOW), (53, (30, 1, 0), EAFNOSUPPORT),
        (41, (2, 1, 6), ALLOW), (41, (2, 1, 132), 0x5005D), (41, (10, 2, 17), ALLOW), (302, (0, 7), ALLOW),
        (302, (1, 7), EPERM), (294, (), EPERM), (462, (), ALLOW), (463, (), ENOSYS), (2000, (), ENOSYS),
        (16, (1, 0x5401), ALLOW), (0x40000000 | 59, (), KILL),
    ],
)  # fmt: skip
def test_the_filter_on_x86(number: int, arguments: tuple[int, ...], expected: int) -> None:
    assert verdict("x86_64", X86, number, *arguments) == expected


def test_the_filter_on_arm_and_for_foreign_conventions() -> None:
    assert verdict("aarch64", ARM, 117) == EPERM and verdict("aarch64", ARM, 63) == ALLOW
    assert (
        verdict("aarch64", ARM, 220, 0x10000000) == EPERM and verdict("aarch64", ARM, 198, 16) == EAFNOSUPPORT
    )
    assert verdict("x86_64", 0x40000003, 20) == KILL and verdict("aarch64", X86, 0) == KILL


def test_an_unknown_machine_is_named() -> None:
    with pytest.raises(ConfigError, match="'sparc'; known: x86_64, aarch64"):
        seccomp.program("sparc")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that answers like a control group file system: a new group has a `cgroup.procs`."""
    make, remove = Path.mkdir, Path.rmdir

    def mkdir(self: Path, *args: object, **options: object) -> None:
        make(self)
        (self / "cgroup.procs").write_text("")

    def rmdir(self: Path) -> None:
        for file in self.iterdir():
            file.unlink()
        remove(self)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "rmdir", rmdir)
    return tmp_path


def lay(
    tree: Path, groups: str, *directories: str, control: dict[str, str] | None = None
) -> tuple[Path, Path]:
    for directory in directories:
        os.makedirs(tree / directory)
    for directory, offered in (control or {}).items():
        (tree / directory / "cgroup.subtree_control").write_text(offered)
    proc = tree / "proc"
    proc.write_text(groups)
    return tree, proc


def test_version_1_is_found_below_our_own_groups(tree: Path) -> None:
    root, proc = lay(tree, "8:pids:/\n4:memory:/us\n1:cpu,cpuacct:/\n0::/\n", "pids", "memory/us", "cpu")
    found = cgroups.host.__wrapped__(root, proc)
    assert (found.version, found.parents) == (
        1, {"memory": root / "memory/us", "pids": root / "pids", "cpu": root / "cpu"})  # fmt: skip
    assert found.describe() == "control groups v1: memory, pids, cpu"


def test_version_2_is_found_beside_a_group_that_may_have_no_children(tree: Path) -> None:
    control = {"user": "memory pids", "user/session": ""}
    root, proc = lay(tree, "0::/user/session\n", "user/session", control=control)
    found = cgroups.host.__wrapped__(root, proc)
    assert found.version == 2 and set(found.parents.values()) == {root / "user"}
    assert found.describe() == "control groups v2: memory, pids; by resource limits and polling: cpu"


def test_without_any_it_says_so(tree: Path) -> None:
    root, proc = lay(tree, "0::/\n")
    assert "resource limits and polling" in cgroups.host.__wrapped__(root, proc).describe()


def test_version_2_limits_are_written_and_deaths_read(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = cgroups.Host(2, dict.fromkeys(("memory", "pids", "cpu"), tree))
    monkeypatch.setattr(cgroups, "host", lambda: found)
    group = cgroups.Group()
    group.limit(Limits(memory_mib=100, processes=5), 0.5, 24, 3)
    [path] = [Path(entry).parent for entry in group.entries]
    assert (path / "memory.max").read_text() == str(124 << 20) and (path / "pids.max").read_text() == "8"
    assert (path / "cpu.max").read_text() == "50000 100000" and (path / "memory.swap.max").read_text() == "0"
    (path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    assert group.cpu_seconds() == 2.5
    (path / "memory.events").write_text("oom 1\noom_kill 0\n")
    assert not group.out_of_memory()
    (path / "memory.events").write_text("oom 1\noom_kill 2\n")
    assert group.out_of_memory()
    assert group.remove() and not path.exists()


def test_version_1_does_not_hold_a_limit_that_a_swap_file_got_around(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lowering the limit moves what is above it to the swap file; the limit of both is then refused."""
    found = cgroups.Host(1, {"memory": tree})
    monkeypatch.setattr(cgroups, "host", lambda: found)
    group = cgroups.Group()
    folder = Path(group.entries[0]).parent
    both = folder / "memory.memsw.limit_in_bytes"
    assert group.limit(Limits(memory_mib=100), 1.0, 24, 3) and not both.exists()
    both.mkdir()  # cannot be written
    assert not group.limit(Limits(memory_mib=50), 1.0, 24, 3)
    assert (folder / "memory.limit_in_bytes").read_text() == str(74 << 20)


def test_groups_of_dead_processes_are_swept(tree: Path) -> None:
    for name in (f"trajsmith-{os.getpid()}-0", "trajsmith-999999999-0", "other"):
        (tree / name).mkdir()
    cgroups.sweep(tree)
    assert sorted(path.name for path in tree.iterdir()) == ["other", f"trajsmith-{os.getpid()}-0"]


def test_a_group_of_another_name_space_is_no_reason_to_kill_ourselves(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    (tree / "trajsmith-999999999-0").mkdir()
    (tree / "trajsmith-999999999-0/cgroup.procs").write_text("0\n77\n")
    cgroups.sweep(tree)
    assert killed == [77]


def test_processor_time_of_children_that_are_gone_counts() -> None:
    group = cgroups.Group()
    try:
        before = group.cpu_seconds()
        if before is None:
            pytest.skip("no control group counts processor time here")
        burn = "(i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done)"
        join = f"for f in $FILES; do echo 0 > $f; done; trap '' CHLD; {burn}"
        subprocess.run(["sh", "-c", join], env={"FILES": " ".join(group.entries)}, check=True)
        assert (group.cpu_seconds() or 0.0) > before + 0.005
    finally:
        assert group.remove()


@pytest.mark.parametrize(
    ("expected", "found", "same"),
    [
        ("1\n2", "1 \r\n2\n\n", True), ("", "\n \n", True), ("1\n2", "1\v2", False),
        ("1\n2", "1\u20282", False),
        ("1", "1\u00a0", False), ("1", " 1", False), ("a\n\nb", "a\nb", False), ("é", "e\u0301", False),
    ],
)  # fmt: skip
def test_only_space_at_ends_is_forgiven(expected: str, found: str, same: bool) -> None:
    assert same_output(expected, found) is same


def test_a_program_whose_process_was_killed_for_memory_is_out_of_memory_however_it_ended() -> None:
    python = find_language("python")
    for code, timed_out in ((None, True), (-9, False), (0, False)):
        found = judge(
            Program(""), python, code=code, stdout="", stderr="", timed_out=timed_out, out_of_memory=True
        )
        assert found == (Outcome.OUT_OF_MEMORY, code)


@pytest.mark.parametrize(
    "limits",
    [
        {"seconds": float("nan")}, {"seconds": float("inf")}, {"seconds": 0.0}, {"seconds": -1.0},
        {"memory_mib": -100}, {"memory_mib": 0}, {"processes": 0}, {"output_bytes": -1}, {"disk_mib": 0},
    ],
)  # fmt: skip
def test_limits_that_limit_nothing_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"limit {next(iter(limits))}="):
        checked(Program(""), find_language("python"), Limits(**limits))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (Program("", files={"a": b"", "a/b": b""}), "'a' of a program is a file and the directory"),
        (Program("", files={"main.py/b": b""}), "is a file and the directory"),
        (Program("", files={".": b""}), "file name"),
        (Program("", files={"x" * 256: b""}), "file name"),
        (Program("", files={"x/" * 600 + "x": b""}), "file name"),
        (Program("", files={"\ud800": b""}), "file name"),
        (Program("", files={f"{n}": b"x" for n in range(8_193)}), "disk_mib"),
        (Program("", args=("a\0b",)), "argument"),
        (Program("", args=("\ud800",)), "argument"),
        (Program(3), "code of a program is 3; allowed: a text"),  # type: ignore[arg-type]
        (Program("", stdin=b"1"), "stdin of a program is b'1'; allowed: a text"),  # type: ignore[arg-type]
        (Program("", files={"a": "x"}), "file 'a' of a program is 'x'; allowed: bytes"),  # type: ignore[dict-item]
        (Program("", files={3: b""}), "a file name 3 of a program is 3"),  # type: ignore[dict-item]
    ],
)
def test_what_no_program_can_be_given_is_refused(program: Program, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(program, find_language("python"), Limits())


def test_unsafe_warns_and_only_by_name() -> None:
    with pytest.warns(UserWarning, match="all rights of this process"):
        sandbox = load_sandbox("unsafe")
    assert sandbox.describe() == "no isolation at all"
    asyncio.run(sandbox.close())
    with pytest.raises(ConfigError, match=f"unknown sandbox 'none'; known: {', '.join(SANDBOXES)}"):
        load_sandbox("none")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "bubblewrap",
            {"colour": 1},
            "sandbox bubblewrap has no option colour; its options are warm",
        ),
        ("remote", {}, "sandbox remote needs url; its options are url, concurrency"),
        ("bubblewrap", {"cores": "a"}, "sandbox bubblewrap.cores"),
        ("bubblewrap", {"cores": 0}, "sandbox bubblewrap.cores must be at least 0.01, got 0"),
        ("unsafe", {"parallel": -1}, "sandbox unsafe.parallel must be at least 1, got -1"),
        ("bubblewrap", {"python_paths": "/tmp"}, "python_paths must be a list, each a text"),
        ("docker", {"url": 3}, "sandbox docker.url"),
    ],
)
def test_wrong_options_of_a_sandbox_are_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_sandbox(name, **options)
    with pytest.raises(ConfigError, match=message):
        parted_choice({"name": name, **options})


def test_a_limit_that_is_no_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="limit seconds='3'"):
        checked(Program(""), find_language("python"), Limits(seconds="3"))  # type: ignore[arg-type]


def test_unsafe_outcomes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sandbox = load_sandbox("unsafe")
    long = Limits(seconds=50)
    assert run(sandbox, Program("print(input())", stdin="1", expected="1"), long).ok
    assert run(sandbox, Program("int main(", "c"), long).outcome is Outcome.COMPILE_ERROR
    assert run(sandbox, Program("import time; time.sleep(99)"), Limits(seconds=1)).outcome is Outcome.TIMEOUT
    flood = run(sandbox, Program("while True: print('x' * 999)"), Limits(seconds=50, output_bytes=100))
    assert (flood.outcome, flood.detail, len(flood.stdout)) == (Outcome.RUNTIME_ERROR, "output flood", 100)
    linked = Program(
        "import os\nos.symlink('/etc/passwd', 'a')\nopen('b', 'w').write('x')", collect=("a", "b")
    )
    assert run(sandbox, linked, long).files == {"b": b"x"}
    asyncio.run(sandbox.close())
