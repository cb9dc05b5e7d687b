"""Programs in containers, through the Docker SDK for Python: a fresh container each, no network.

UNTESTED where no daemon runs, which is everywhere our tests do: they put the real SDK before a small server
that answers the Engine API's calls. By hand it ran once, on Docker 20.10 (docs/sandbox.md: what was seen).
Isolation is the container's: no network, read-only root, all capabilities dropped, no new privileges, an
unprivileged user, memory, process and CPU limits, writable memory file systems only, nothing of the client's
configuration. The image of each language is in its YAML file, has `sh` and `tar`, and must be there already:
nothing is pulled. A daemon is reached at `unix://` or at `tcp://` without TLS. Not covered: what containers
do not cover (kernel bugs), warm starts (some 300 ms each), time in which a busy machine gave the program no
core (it counts), one run's files from a compile step that needs more disk than `disk_mib`.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import math
import os
import secrets
import signal
import tarfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ConfigError, EnvironmentFailure, MissingExtraError
from pipeline.sandbox.attached import converse
from pipeline.sandbox.base import Execution, Limits, Program
from pipeline.sandbox.exchange import Ending, Kept
from pipeline.sandbox.toolchains import Language, compile_limits, find_language
from pipeline.sandbox.verdicts import checked, compile_failure, judge

_USER = "65534:65534"
_DEFAULT_URL = "unix:///var/run/docker.sock"
_API_SECONDS = 60
_GRACE_SECONDS = 300
"""A container outlives its program's limits by this much at most, should this process die."""
_TOLD_SECONDS = 30.0
"""What a daemon may take to notice that a command has ended."""
_POLL_SECONDS = 0.02
_KILLED = (128 + signal.SIGKILL, -signal.SIGKILL)
_OOM_COUNTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""Of the container's own control group, version 2 and version 1."""
_GATE = ("sh", "-c", 'IFS= read -r _; exec "$@"', "sh")
"""Starts a command at the first line of its input: output that comes before the SDK hands over the socket
could be read, and lost, together with the answer's head."""


@dataclass(frozen=True, slots=True)
class _Step:
    status: int | None
    """None where a limit ended it."""
    stdout: Kept
    stderr: Kept
    seconds: float
    flooded: bool


class DockerSandbox:
    """One container per program, removed after it."""

    name = "docker"

    def __init__(self, *, url: str | None = None, parallel: int | None = None, cores: float = 1.0) -> None:
        """`url` of the daemon, else DOCKER_HOST, else Docker's own socket.

        Raises ConfigError where no daemon answers, MissingExtraError without the SDK.
        """
        self._url, self._cores = url or os.environ.get("DOCKER_HOST") or _DEFAULT_URL, cores
        parallel = parallel or 2 * (os.cpu_count() or 1)
        self._client = _connect(self._url, parallel)
        with _daemon("version"):
            self._version = str(self._client.version()["Version"])
        self._workers = ThreadPoolExecutor(parallel, thread_name_prefix="docker")

    def describe(self) -> str:
        """What holds the limits."""
        return (
            f"containers of {self._url} (version {self._version}); see docs/sandbox.md for what is untested"
        )

    async def run(self, program: Program, limits: Limits | None = None) -> Execution:
        """Raises ConfigError (language, file names, an image that is not there), EnvironmentFailure."""
        return await asyncio.wrap_future(self._workers.submit(self._run, program, limits or Limits()))

    def _run(self, program: Program, limits: Limits) -> Execution:
        language = find_language(program.language)
        files = checked(program, language, limits)
        building = compile_limits(language, limits) if language.compile else limits
        container = self._create(language, building, limits.seconds)
        try:
            with _daemon("start"):
                container.start()
            taken = self._exec(container, ["tar", "-xf", "-", "-C", "/box"], _API_SECONDS, stdin=_tar(files))
            if taken.status != 0:
                raise EnvironmentFailure(f"the container did not take the files: {taken.stderr.text[:300]}")
            return self._phases(container, program, language, limits, building)
        finally:
            self._remove(container)

    def _create(self, language: Language, limits: Limits, run_seconds: float) -> Any:
        from docker.errors import ImageNotFound

        # The container itself gets no working directory: Docker would make it, as root's, and the memory file
        # system mounted there takes over its mode.
        writable = f"rw,exec,nosuid,nodev,mode=1777,size={limits.disk_mib}m"
        lifetime = math.ceil(limits.seconds + run_seconds) + _GRACE_SECONDS
        try:
            with _daemon("create"):
                return self._client.containers.create(
                    language.image,
                    [str(lifetime)],
                    name=f"trajsmith-{secrets.token_hex(8)}",
                    entrypoint=["sleep"],
                    auto_remove=True,
                    init=True,
                    network_mode="none",
                    read_only=True,
                    cap_drop=["ALL"],
                    security_opt=["no-new-privileges"],
                    user=_USER,
                    pids_limit=limits.processes + 4,
                    nano_cpus=int(self._cores * 1e9),
                    mem_limit=f"{limits.memory_mib}m",
                    memswap_limit=f"{limits.memory_mib}m",
                    ipc_mode="none",
                    tmpfs={"/box": writable, "/tmp": writable},
                    use_config_proxy=False,
                )
        except EnvironmentFailure as error:
            if not isinstance(error.__cause__, ImageNotFound):
                raise
            fix = f"docker pull {language.image}"
            message = f"the image {language.image} for {language.name} is not on {self._url}; run: {fix}"
            raise ConfigError(message) from error

    def _remove(self, container: Any) -> None:
        from docker.errors import NotFound

        try:
            with _daemon("remove"):
                container.remove(force=True)
        except EnvironmentFailure as error:
            if not isinstance(error.__cause__, NotFound):  # it has removed itself
                raise

    def _phases(
        self, container: Any, program: Program, language: Language, limits: Limits, building: Limits
    ) -> Execution:
        if language.compile:
            step = self._exec(container, _words(language.compile), building.seconds, keep=limits.output_bytes)
            if step.status != 0:
                killed = self._out_of_memory(container, step.status)
                said = step.stdout.text + step.stderr.text
                late = step.status is None and not step.flooded
                return compile_failure(said, timed_out=late, out_of_memory=killed)
            memory = f"{limits.memory_mib}m"
            with _daemon("update"):
                container.update(mem_limit=memory, memswap_limit=memory)
        step = self._exec(
            container,
            [*_words(language.run), *program.args],
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
        container: Any,
        command: Sequence[str],
        seconds: float,
        *,
        stdin: bytes = b"",
        keep: int = 65_536,
    ) -> _Step:
        api = self._client.api
        stdout, stderr = Kept(keep), Kept(keep)
        with _daemon("exec"):
            exec_id = api.exec_create(container.id, [*_GATE, *command], stdin=True, workdir="/box")["Id"]
            attached = api.exec_start(exec_id, socket=True)

        def ended() -> bool:
            with _daemon("exec"):
                return not api.exec_inspect(exec_id)["Running"]

        began = time.monotonic()
        try:
            ending = converse(
                attached._sock, b"\n" + stdin, stdout=stdout, stderr=stderr, seconds=seconds, ended=ended
            )
        finally:
            attached._response.close()  # closing the socket object alone leaves its connection open
        took = time.monotonic() - began
        status = self._exit_code(container, exec_id, began + seconds) if ending is Ending.DONE else None
        return _Step(status, stdout, stderr, took, ending is Ending.FLOOD)

    def _exit_code(self, container: Any, exec_id: str, deadline: float) -> int | None:
        """None where the program runs on. Raises EnvironmentFailure where only the daemon says so.

        The streams end before the daemon knows, or long before: a program may close them itself.
        """
        told_by = time.monotonic() + _TOLD_SECONDS
        while True:
            with _daemon("exec"):
                found = self._client.api.exec_inspect(exec_id)
            if not found["Running"] and found["ExitCode"] is not None:
                return int(found["ExitCode"])
            now = time.monotonic()
            if now >= deadline and str(found["Pid"]) in self._running(container):
                return None
            if now >= max(deadline, told_by):
                raise EnvironmentFailure(
                    f"docker exec failed: no exit code {_TOLD_SECONDS:.0f} s after the end"
                )
            time.sleep(_POLL_SECONDS)

    def _running(self, container: Any) -> list[str]:
        with _daemon("top"):
            return [process[0] for process in container.top(ps_args="-eo pid")["Processes"]]

    def _out_of_memory(self, container: Any, status: int | None) -> bool:
        with _daemon("inspect"):
            container.reload()
        if container.attrs["State"].get("OOMKilled"):
            return True
        if status not in _KILLED:
            return False
        # Some daemons say so of a container's first process only, and the program is another one.
        counts = self._exec(container, ["cat", *_OOM_COUNTS], _API_SECONDS).stdout.text
        found = (line.partition(" ") for line in counts.splitlines())
        return any(name == "oom_kill" and value.strip() not in ("", "0") for name, _, value in found)

    def _collect(self, container: Any, names: Sequence[str], limits: Limits) -> dict[str, bytes]:
        found = {}
        for name in names:
            # Not the Engine's own archive call: it does not see memory file systems.
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
        self._client.close()


def _connect(url: str, parallel: int) -> Any:
    if "@" in url or not url.startswith(("unix://", "tcp://", "http://")):
        raise ConfigError(
            f"docker daemon at {url.split('@')[-1]!r}; allowed: unix://PATH, or tcp://HOST:PORT without TLS"
        )
    try:
        import docker
        from docker.errors import DockerException
    except ImportError as error:
        raise MissingExtraError(
            "the docker sandbox needs the Docker SDK: pip install 'trajsmith[docker]'"
        ) from error
    fix = "start it, or use the bubblewrap sandbox"
    if url.startswith("unix://") and not os.path.exists(url.removeprefix("unix://")):
        raise ConfigError(f"no docker daemon at {url}: there is none; {fix}")
    try:
        return docker.DockerClient(base_url=url, timeout=_API_SECONDS, max_pool_size=parallel)
    except DockerException as error:
        raise ConfigError(f"no docker daemon answers at {url} ({str(error)[:300]}); {fix}") from error


@contextlib.contextmanager
def _daemon(verb: str) -> Iterator[None]:
    """What the daemon refuses, or does not answer, says nothing about a program."""
    from docker.errors import DockerException

    try:
        yield
    except (DockerException, OSError) as error:  # a connection that fails is an OSError
        raise EnvironmentFailure(f"docker {verb} failed: {str(error)[:300]}") from error


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
