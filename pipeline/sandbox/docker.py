"""Programs in containers, through the `docker` (or `podman`) command: a fresh container each, no network.

UNTESTED against a Docker daemon by us: its tests drive a stand-in for the command and check every argument;
by hand it was tried with Podman 4.3 (docs/sandbox.md says what was seen).
Isolation is the container's: no network, read-only root, all capabilities dropped, no new privileges, an
unprivileged user, memory, process and CPU limits, writable memory file systems only. The image of each
language is in its YAML file and must be there already: nothing is pulled. Not covered: what containers do
not cover (kernel bugs), warm starts (some 300 ms each), one run's files from a compile step that needs more
disk than `disk_mib`.
"""

from __future__ import annotations

import asyncio
import io
import os
import secrets
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pipeline.errors import ConfigError, EnvironmentFailure
from pipeline.sandbox.base import Execution, Limits, Program
from pipeline.sandbox.exchange import Capture, gather
from pipeline.sandbox.toolchains import Language, compile_limits, find_language
from pipeline.sandbox.verdicts import checked, compile_failure, judge

_USER = "65534:65534"
_START_SECONDS = 60.0
_KILLED = (128 + signal.SIGKILL, -signal.SIGKILL)
_OOM_COUNTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""Of the container's own control group, version 2 and version 1."""


@dataclass(frozen=True, slots=True)
class _Step:
    status: int | None
    stdout: Capture
    stderr: Capture
    seconds: float
    flooded: bool


class DockerSandbox:
    """One container per program, removed after it."""

    name = "docker"

    def __init__(self, *, command: str = "docker", parallel: int | None = None, cores: float = 1.0) -> None:
        """Raises ConfigError where no daemon answers."""
        found = shutil.which(command)
        if found is None:
            raise ConfigError(
                f"{command!r} is not on this machine; install it, or use the bubblewrap sandbox"
            )
        self._command, self._cores = found, cores
        answer = subprocess.run(
            [found, "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True, check=False
        )
        if answer.returncode:
            raise ConfigError(
                f"{command} reaches no daemon ({answer.stderr.strip()[:300]}); start it, or use bubblewrap"
            )
        self._version = answer.stdout.strip()
        self._workers = ThreadPoolExecutor(parallel or 2 * (os.cpu_count() or 1), thread_name_prefix="docker")

    def describe(self) -> str:
        """What holds the limits."""
        return f"{self._command} (daemon {self._version}); see docs/sandbox.md for what is untested"

    async def run(self, program: Program, limits: Limits | None = None) -> Execution:
        """Raises ConfigError (language, file names, an image that is not there), EnvironmentFailure."""
        return await asyncio.wrap_future(self._workers.submit(self._run, program, limits or Limits()))

    def _run(self, program: Program, limits: Limits) -> Execution:
        language = find_language(program.language)
        files = checked(program, language, limits)
        building = compile_limits(language, limits) if language.compile else limits
        container = f"trajsmith-{secrets.token_hex(8)}"
        try:
            self._start(container, language, building)
            self._check(
                self._exec(container, ["tar", "-xf", "-", "-C", "/box"], _START_SECONDS, stdin=_tar(files))
            )
            return self._phases(container, program, language, limits, building)
        finally:
            subprocess.run([self._command, "rm", "-f", container], capture_output=True, check=False)

    def _start(self, container: str, language: Language, limits: Limits) -> None:
        writable = f"rw,exec,nosuid,nodev,mode=1777,size={limits.disk_mib}m"
        words = ["run", "-d", "--rm", "--name", container, "--pull", "never", "--init"]
        words += [
            "--network",
            "none",
            "--read-only",
            "--cap-drop",
            "ALL",
            "--security-opt",
            "no-new-privileges",
        ]
        words += ["--user", _USER, "--pids-limit", str(limits.processes + 4), "--cpus", f"{self._cores:g}"]
        words += [
            "--memory",
            f"{limits.memory_mib}m",
            "--memory-swap",
            f"{limits.memory_mib}m",
            "--ipc",
            "none",
        ]
        words += ["--tmpfs", f"/box:{writable}", "--tmpfs", f"/tmp:{writable}", "--workdir", "/box"]
        words += [language.image, "sleep", "3600"]
        try:
            self._docker(*words)
        except EnvironmentFailure as error:
            if "No such image" in str(error) or "image not known" in str(error):
                fix = f"{self._command} pull {language.image}"
                message = f"the image {language.image} for {language.name} is not on this machine; {fix}"
                raise ConfigError(message) from error
            raise

    def _phases(
        self, container: str, program: Program, language: Language, limits: Limits, building: Limits
    ) -> Execution:
        if language.compile:
            step = self._exec(container, _words(language.compile), building.seconds, keep=limits.output_bytes)
            if step.status != 0:
                killed = self._out_of_memory(container, step.status)
                said = step.stdout.text + step.stderr.text
                return compile_failure(said, timed_out=step.status is None, out_of_memory=killed)
            memory = f"{limits.memory_mib}m"
            self._docker("update", "--memory", memory, "--memory-swap", memory, container)
        command = [*_words(language.run), *program.args]
        step = self._exec(
            container,
            command,
            limits.seconds,
            stdin=program.stdin.encode(errors="surrogatepass"),
            keep=limits.output_bytes,
        )
        stdout, stderr = step.stdout.text, step.stderr.text
        outcome, code = judge(
            program,
            language,
            code=step.status,
            stdout=stdout,
            stderr=stderr,
            timed_out=step.status is None and not step.flooded,
            out_of_memory=self._out_of_memory(container, step.status),
            cut=step.stdout.cut,
        )
        files = {} if step.status is None else self._collect(container, program.collect, limits)
        truncated = step.stdout.truncated or step.stderr.truncated
        detail = "output flood" if step.flooded else ""
        return Execution(outcome, stdout, stderr, code, step.seconds, truncated, files, detail)

    def _exec(
        self,
        container: str,
        command: Sequence[str],
        seconds: float,
        *,
        stdin: bytes = b"",
        keep: int = 65_536,
    ) -> _Step:
        began = time.monotonic()
        with tempfile.TemporaryFile() as source:
            source.write(stdin)
            source.seek(0)
            process = subprocess.Popen(
                [self._command, "exec", "-i", container, *command],
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        assert process.stdout is not None and process.stderr is not None
        with process.stdout, process.stderr:
            stdout, stderr = (Capture(pipe.fileno(), keep) for pipe in (process.stdout, process.stderr))
            status, flooded = gather(process, (stdout, stderr), seconds)
        return _Step(status, stdout, stderr, time.monotonic() - began, flooded)

    def _docker(self, *words: str) -> str:
        command = [self._command, *words]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_START_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise EnvironmentFailure(f"{self._command} {words[0]} hangs") from error
        if done.returncode:
            raise EnvironmentFailure(f"{self._command} {words[0]} failed: {done.stderr.strip()[:300]}")
        return done.stdout.strip()

    def _check(self, step: _Step) -> None:
        if step.status != 0:
            raise EnvironmentFailure(f"the container did not take the files: {step.stderr.text[:300]}")

    def _out_of_memory(self, container: str, status: int | None) -> bool:
        if self._docker("inspect", "--format", "{{.State.OOMKilled}}", container) == "true":
            return True
        if status not in _KILLED:
            return False
        # Podman says so of a container's first process only, and the program is another one.
        counts = self._exec(container, ["cat", *_OOM_COUNTS], _START_SECONDS).stdout.text
        found = (line.partition(" ") for line in counts.splitlines())
        return any(name == "oom_kill" and value.strip() not in ("", "0") for name, _, value in found)

    def _collect(self, container: str, names: Sequence[str], limits: Limits) -> dict[str, bytes]:
        found = {}
        for name in names:
            step = self._exec(
                container, ["tar", "-cf", "-", "-C", "/box", "--", name], 30, keep=limits.disk_mib << 20
            )
            if step.status != 0 or step.stdout.truncated:
                continue
            with tarfile.open(fileobj=io.BytesIO(step.stdout.content)) as archive:
                member = archive.next()
                # The caller asked for a file of the program; a link could lead to one of the container.
                content = archive.extractfile(member) if member is not None and member.isreg() else None
                if content is not None:
                    found[name] = content.read()
        return found

    async def close(self) -> None:
        """Wait for what runs; idempotent."""
        await asyncio.to_thread(self._workers.shutdown)


def _words(command: Sequence[str]) -> list[str]:
    """In an image every tool is on the path."""
    return [word.replace("{root}/bin/", "") for word in command]


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
