"""What the default sandbox does for honest programs, and that nothing of it piles up."""

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError, EnvironmentFailure
from pipeline.sandbox import exchange
from pipeline.sandbox.base import Limits, Outcome, Program, Sandbox
from pipeline.sandbox.bubblewrap import BubblewrapSandbox
from pipeline.sandbox.exchange import Ending, Report
from pipeline.sandbox.load import load_sandbox
from pipeline.sandbox.spawn import Jail, JailStartError, _children
from tests.pipeline.sandbox.conftest import cold, descendants, groups_left, open_files, run

LONG = Limits(seconds=50)


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        (Program("print(6 * 7)", expected="42"), Outcome.OK),
        (Program("print(6 * 7)", expected="42\n\n"), Outcome.OK),
        (Program("print(6 * 9)", expected="42"), Outcome.WRONG_OUTPUT),
        (Program("print(42); 1 / 0", expected="42"), Outcome.RUNTIME_ERROR),
        (Program("raise SystemExit(3)"), Outcome.RUNTIME_ERROR),
        (Program("def f(:"), Outcome.RUNTIME_ERROR),
        (Program("int main(void) { return x; }", "c"), Outcome.COMPILE_ERROR),
        (Program("int main(void) { volatile int *p = 0; return *p; }", "c"), Outcome.RUNTIME_ERROR),
        (Program("raise MemoryError"), Outcome.OUT_OF_MEMORY),
    ],
)
def test_outcomes(program: Program, outcome: Outcome, bubblewrap: Sandbox) -> None:
    assert run(bubblewrap, program, LONG).outcome is outcome


def test_a_program_finds_what_it_was_given(bubblewrap: Sandbox) -> None:
    code = """
        import json, os, sys
        from lib import helper
        names = [sys.argv, __name__, __file__, os.getcwd()]
        print(json.dumps([*names, sys.stdin.read(), helper.VALUE, sorted(os.environ)]))
        print("on stderr", file=sys.stderr)
        os.makedirs("out/deep")
        open("out/deep/data.bin", "wb").write(bytes(range(256)))
        exit()
    """
    program = Program(
        textwrap.dedent(code),
        files={"lib/__init__.py": b"", "lib/helper.py": b"VALUE = 7"},
        stdin="grüße\n",
        args=("a", "b c"),
        collect=("out/deep/data.bin", "absent"),
    )
    done = run(bubblewrap, program, LONG)
    expected = '[["main.py", "a", "b c"], "__main__", "/box/main.py", "/box", "gr\\u00fc\\u00dfe\\n", 7, '
    assert done.stdout == expected + '["HOME", "LANG", "PATH", "TMPDIR"]]\n'
    assert (done.stderr, done.exit_code, done.outcome) == ("on stderr\n", 0, Outcome.OK)
    assert done.files == {"out/deep/data.bin": bytes(range(256))}


def test_a_traceback_is_the_programs_own(bubblewrap: Sandbox) -> None:
    code = "def f():\n    return 1 / 0\n\nf()\n"
    done = run(bubblewrap, Program(code), LONG)
    assert done.stderr.splitlines()[:3] == [
        "Traceback (most recent call last):",
        '  File "/box/main.py", line 4, in <module>',
        "    f()",
    ]
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n") and "run_python" not in done.stderr


def test_threads_children_and_exit_handlers_work_as_usual(bubblewrap: Sandbox) -> None:
    code = """
        import atexit, multiprocessing, subprocess, sys, threading, time
        atexit.register(print, "at exit")
        def late():
            go.wait()
            time.sleep(0.05)
            print("late thread")
        go = threading.Event()
        threading.Thread(target=late).start()
        with multiprocessing.Pool(2) as pool:
            print(pool.map(abs, [-1, -2]))
        print(subprocess.run([sys.executable, "-c", "print('child')"], capture_output=True, text=True).stdout)
        go.set()
    """
    done = run(bubblewrap, Program(textwrap.dedent(code)), LONG)
    assert done.stdout == "[1, 2]\nchild\n\nlate thread\nat exit\n", done


def test_output_is_cut_and_said_to_be(bubblewrap: Sandbox) -> None:
    done = run(bubblewrap, Program("print('x' * 5000)\nprint('é')"), Limits(seconds=50, output_bytes=1000))
    assert (done.stdout, done.truncated, done.outcome) == ("x" * 1000, True, Outcome.OK)
    flood = run(
        bubblewrap, Program("while True:\n    print('x' * 9999)"), Limits(seconds=50, output_bytes=100)
    )
    assert (flood.outcome, flood.detail, flood.exit_code) == (Outcome.RUNTIME_ERROR, "output flood", None)


def test_bytes_that_are_no_text_do_no_harm(bubblewrap: Sandbox) -> None:
    done = run(bubblewrap, Program("import os\nos.write(1, b'\\xff\\x00a')"), LONG)
    assert done.stdout == "\ufffd\x00a"


def test_the_time_limit_is_of_the_run_and_of_the_compiler(bubblewrap: Sandbox) -> None:
    done = run(bubblewrap, Program("print('begun', flush=True)\nwhile True:\n    pass"), Limits(seconds=2))
    assert (done.outcome, done.stdout, done.exit_code) == (Outcome.TIMEOUT, "begun\n", None)
    assert done.seconds >= 2
    endless = '#include "/dev/zero"\nint main(void) { return 0; }'
    stuck = run(bubblewrap, Program(endless, "c"), Limits(seconds=0.5))
    assert stuck.outcome in (Outcome.TIMEOUT, Outcome.COMPILE_ERROR, Outcome.OUT_OF_MEMORY)


def test_processor_time_beyond_the_limit_is_a_timeout_even_where_the_host_does_not_look(
    bubblewrap: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Jail, "starved_seconds", lambda *_: 1000.0)
    done = run(bubblewrap, Program("while True:\n    pass"), Limits(seconds=0.9))
    assert (done.outcome, done.exit_code) == (Outcome.TIMEOUT, None)


def test_a_jail_that_is_held_up_before_its_program_begins_is_not_a_slow_program(
    bubblewrap: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    converse = Jail.converse

    def held_up(jail: Jail, *said: Any) -> Report:
        supervisor = next(_children(jail.process.pid))
        os.kill(supervisor, signal.SIGSTOP)
        resume = threading.Timer(3.0, os.kill, (supervisor, signal.SIGCONT))
        resume.start()
        report = converse(jail, *said)
        resume.join()
        return report

    monkeypatch.setattr(Jail, "converse", held_up)
    done = run(bubblewrap, Program("print(1)"), Limits(seconds=2))
    assert (done.outcome, done.stdout) == (Outcome.OK, "1\n") and done.seconds < 3


@pytest.mark.parametrize("falls_silent", [1, 99])
def test_a_program_that_never_began_begins_in_another_jail(
    bubblewrap: Sandbox, monkeypatch: pytest.MonkeyPatch, falls_silent: int
) -> None:
    converse, silent = Jail.converse, [Report(Ending.SILENT)] * falls_silent
    monkeypatch.setattr(
        Jail, "converse", lambda jail, *said: silent.pop() if silent else converse(jail, *said)
    )
    if falls_silent == 1:
        assert run(bubblewrap, Program("print(1)"), LONG).stdout == "1\n"
    else:
        with pytest.raises(
            EnvironmentFailure, match="no jail would start: it did not begin the program in 30 s"
        ):
            run(bubblewrap, Program("print(1)"), LONG)
        assert len(silent) == falls_silent - 3


def test_files_that_do_not_come_back_are_no_outcome_of_the_program(
    bubblewrap: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Jail, "converse", lambda *_: Report(Ending.SILENT, status=0))
    with pytest.raises(EnvironmentFailure, match="did not hand back the program's files in 30 s"):
        run(bubblewrap, Program(""), LONG)


@pytest.mark.parametrize(
    ("code", "stopped", "starves"),
    [
        ("sleep 500", False, False),
        ("sleep 500", True, True),
        ("sleep 500 & while true; do true; done", False, True),
    ],
)
def test_who_is_kept_from_running_is_starved_and_who_sleeps_is_not(
    bubblewrap: Sandbox, monkeypatch: pytest.MonkeyPatch, code: str, stopped: bool, starves: bool
) -> None:
    """Of 1,000 s, in which the program can have used next to nothing, most count as waiting or none does."""
    converse, used = Jail.converse, list[Jail]()

    def kept(jail: Jail, *said: Any) -> Report:
        used.append(jail)
        return converse(jail, *said)

    async def look() -> None:
        task = asyncio.create_task(bubblewrap.run(Program(code, "bash"), Limits(seconds=500)))
        while not used or sleeper(descendants(used[0].process.pid)) is None:
            await asyncio.sleep(0.01)
        (jail,) = used
        if stopped:
            os.kill(next(_children(jail.process.pid)), signal.SIGSTOP)
        while (jail.starved_seconds(1000) > 900) is not starves:  # whoever just began is still at work
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    monkeypatch.setattr(Jail, "converse", kept)
    asyncio.run(look())


def test_who_waits_for_a_child_of_vfork_sleeps(bubblewrap: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it taken for starved, it would end by itself, long after this test's own limit."""
    monkeypatch.setattr(exchange, "_MAX_STARVED", 1000)
    code = "#include <unistd.h>\nint main(void) { if (vfork() == 0) { sleep(500); _exit(0); } return 0; }"
    assert run(bubblewrap, Program(code, "c"), Limits(seconds=1)).outcome is Outcome.TIMEOUT


def test_a_jail_that_is_stopped_for_too_long_is_no_outcome_of_the_program(
    bubblewrap: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def stop() -> None:
        while not ended.wait(0.01):
            for pid in sleepers(descendants()):
                with contextlib.suppress(OSError):
                    os.kill(parent(pid), signal.SIGSTOP)

    monkeypatch.setattr(exchange, "_MAX_STARVED", 0.001)
    thread = threading.Thread(target=stop)
    thread.start()
    try:
        with pytest.raises(EnvironmentFailure, match="kept the jail from running"):
            run(bubblewrap, Program("exec sleep 500", "bash"), Limits(seconds=500))
    finally:
        ended.set()
        thread.join()


def test_files_beyond_the_disk_limit_are_refused_before_they_cost_anything(bubblewrap: Sandbox) -> None:
    with pytest.raises(ConfigError, match="disk_mib: 1 MiB"):
        run(bubblewrap, Program("", files={"x": bytes(2 << 20)}), Limits(disk_mib=1))


def test_a_cancelled_run_is_ended(bubblewrap: Sandbox) -> None:
    async def cancel() -> None:
        task = asyncio.create_task(bubblewrap.run(Program("sleep 500", "bash"), Limits(seconds=500)))
        while sleeper(descendants()) is None:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while sleeper(descendants()) is not None:
            await asyncio.sleep(0.01)

    asyncio.run(cancel())
    assert run(bubblewrap, Program("print(1)"), LONG).ok


def test_a_jail_that_is_shot_from_outside_is_no_outcome_of_the_program(bubblewrap: Sandbox) -> None:
    def shoot() -> None:
        while (pid := sleeper(descendants())) is None:
            time.sleep(0.01)
        while parent(pid) != os.getpid():
            pid, child = parent(pid), pid
        os.kill(child, signal.SIGKILL)  # the supervisor, below bubblewrap

    thread = threading.Thread(target=shoot)
    thread.start()
    code = "sleep 500 & wait"
    with pytest.raises(EnvironmentFailure, match="ended from outside"):
        run(bubblewrap, Program(code, "bash"), Limits(seconds=500))
    thread.join()


def test_warm_jails_that_died_are_replaced(bubblewrap: Sandbox) -> None:
    run(bubblewrap, Program("print(1)"), LONG)
    while not (standing := bwraps()):
        time.sleep(0.01)
    for pid in standing:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while standing & bwraps():
        time.sleep(0.01)
    assert run(bubblewrap, Program("print(2)"), LONG).stdout == "2\n"


def test_a_first_jail_that_does_not_stand_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    wait, failing = Jail.wait_ready, ["no answer in 30 s"] * 2

    def late(jail: Jail) -> None:
        if failing:
            raise JailStartError(failing.pop())
        wait(jail)

    monkeypatch.setattr(Jail, "wait_ready", late)
    with cold() as sandbox:
        assert not failing and run(sandbox, Program("print(1)"), LONG).stdout == "1\n"


def test_packages_can_be_shown(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)  # what others may not read, a jail may not either
    (tmp_path / "shown.py").write_text("VALUE = 5")
    sandbox = load_sandbox("bubblewrap", warm=0, python_paths=(str(tmp_path),))
    try:
        code = f"import shown\nprint(shown.VALUE)\nopen({str(tmp_path / 'x')!r}, 'w')"
        done = run(sandbox, Program(code), LONG)
    finally:
        asyncio.run(sandbox.close())
    assert done.stdout == "5\n" and "Read-only file system" in done.stderr


def test_closing_ends_what_runs_and_leaves_nothing() -> None:
    sandbox = BubblewrapSandbox(warm=2)

    async def close_while_running() -> None:
        program = Program("sleep 500", "bash")
        runs = [asyncio.create_task(sandbox.run(program, Limits(seconds=500))) for _ in "ab"]
        while len(sleepers(descendants())) < 2:
            await asyncio.sleep(0.01)
        await sandbox.close()
        await sandbox.close()
        for ended in await asyncio.gather(*runs, return_exceptions=True):
            assert isinstance(ended, EnvironmentFailure | asyncio.CancelledError), ended

    asyncio.run(close_while_running())
    with pytest.raises(EnvironmentFailure, match="closed"):
        run(sandbox, Program(""))
    jails = sandbox._spawner._jails
    assert len(jails) >= 2 and all(jail.process.returncode is not None for jail in jails)
    assert not any(Path(entry).exists() for jail in jails for entry in jail.group.entries)


def test_two_hundred_at_once_and_each_its_own(bubblewrap: Sandbox) -> None:
    code = "import os\nassert os.listdir() == ['main.py']\nopen('m', 'w').write(input())\n"
    code += "print(open('m').read())"

    async def batch() -> list[str]:
        runs = (bubblewrap.run(Program(code, stdin=f"{n}\n"), LONG) for n in range(200))
        return [done.stdout for done in await asyncio.gather(*runs)]

    before = open_files()
    assert asyncio.run(batch()) == [f"{n}\n" for n in range(200)]
    deadline = time.monotonic() + 60
    while open_files() > before + 30 and time.monotonic() < deadline:  # the last jails may still be ending
        time.sleep(0.01)
    assert open_files() <= before + 30  # at most the warm jails' own: three each


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hundreds_of_runs_leave_nothing() -> None:
    before = set(groups_left())
    sandbox = load_sandbox("bubblewrap", warm=2, parallel=8)

    async def batch(count: int) -> None:
        for done in await asyncio.gather(*(sandbox.run(Program("print(1)"), LONG) for _ in range(count))):
            assert done.stdout == "1\n"

    asyncio.run(batch(30))
    files, threads = open_files(), threading.active_count()
    asyncio.run(batch(400))
    deadline = time.monotonic() + 60
    while open_files() > files + 10 and time.monotonic() < deadline:  # the last jails may still be ending
        asyncio.run(batch(1))
    assert open_files() <= files + 10 and threading.active_count() <= threads
    asyncio.run(sandbox.close())
    assert set(groups_left()) <= before


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def sleeper(family: set[int]) -> int | None:
    """A process among them that is a `sleep 500`, if any."""
    return min(sleepers(family), default=None)


def sleepers(family: set[int]) -> set[int]:
    return {pid for pid in family if read(pid, "cmdline") == "sleep\x00500\x00"}


def bwraps() -> set[int]:
    """Those of ours that live: what has ended has an empty command line."""
    return {pid for pid in descendants() if read(pid, "comm") == "bwrap\n" and read(pid, "cmdline")}


def supervisors(family: set[int]) -> set[int]:
    """Those who wait in a jail for a program, or for its end."""
    return {pid for pid in family if "What runs inside a jail" in read(pid, "cmdline")}


def read(pid: int, name: str) -> str:
    """A file of a process in /proc, empty for one that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text()
    return ""


def test_a_killed_host_takes_its_jails_along() -> None:
    script = """
        import asyncio, sys
        from pipeline.sandbox.base import Limits, Program
        from pipeline.sandbox.load import load_sandbox
        sandbox = load_sandbox("bubblewrap", warm=1)
        print("up", flush=True)
        asyncio.run(sandbox.run(Program("sleep 500", "bash"), Limits(seconds=500)))
    """
    root = Path(__file__).resolve().parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        cwd=root,
        env={"PATH": os.environ["PATH"]},
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"up\n"
        # A warm jail that is still being made would be another case.
        while sleeper(family := descendants(process.pid)) is None or len(supervisors(family)) < 2:
            time.sleep(0.01)
        process.kill()
        process.wait()
    deadline = time.monotonic() + 60
    while (left := [pid for pid in family if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left == []


def test_what_was_cut_is_not_what_was_expected(bubblewrap: Sandbox) -> None:
    limits = Limits(seconds=50, output_bytes=100)
    for tail, outcome in (("'43'", Outcome.WRONG_OUTPUT), ("''", Outcome.OK)):
        code = f"print('42' + ' ' * 200 + {tail})"
        done = run(bubblewrap, Program(code, expected="42"), limits)
        assert (done.outcome, done.truncated) == (outcome, True)


def test_files_come_back_where_memory_is_short(bubblewrap: Sandbox) -> None:
    limits = Limits(seconds=50, memory_mib=48)
    code = "f = open('a', 'wb')\nfor _ in range(28):\n    f.write(b'x' * (1 << 20))"
    done = run(bubblewrap, Program(code, collect=("a",)), limits)
    assert done.ok and done.files == {"a": b"x" * (28 << 20)}


def test_many_files_come_back() -> None:
    names = tuple(f"d/{n}" for n in range(600))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with cold() as sandbox:
            code = "import os\nos.mkdir('d')\nfor n in range(600):\n    open(f'd/{n}', 'w').write(str(n))"
            done = run(sandbox, Program(code, collect=names), Limits(seconds=50))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert done.files == {f"d/{n}": str(n).encode() for n in range(600)}


def test_a_large_binary_does_not_keep_the_compilers_memory(bubblewrap: Sandbox) -> None:
    code = """
        #include <stdlib.h>
        char x[100 << 20] = {1};
        int main(void) {
            volatile char *p = malloc(600 << 20);
            for (long i = 0; i < 600 << 20; i += 4096) p[i] = x[i / 8] + 1;
            return 0;
        }"""
    done = run(bubblewrap, Program(textwrap.dedent(code), "c"), Limits(seconds=50, memory_mib=32))
    assert done.outcome is Outcome.OUT_OF_MEMORY


def test_it_says_what_holds_the_limits(bubblewrap: Sandbox) -> None:
    text = bubblewrap.describe()
    assert "bwrap" in text and ("control groups v" in text or "polling" in text) and "seccomp" in text
