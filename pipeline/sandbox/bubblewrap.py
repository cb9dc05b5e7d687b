"""The default sandbox: a bubblewrap jail per program, from a warm pool, never used twice.

Covered: no network (own name space, loopback only); empty environment; a read-only system and one small
writable file system in memory, gone with the jail; no /etc, home, checkout or host process in sight; own
user (where we are root, a user id no account has, dropped before bubblewrap starts) in an own user name
space without capabilities and without new ones; a system-call filter (`seccomp`); memory, processes and CPU
by control group or the best the host has (`describe` says which); clock, output and file limits by the
host. When the program ends, everything it started is killed with it; nothing of it reaches the next
program.

Not covered: bugs in the kernel or the CPU (use `remote` with machines of its own against those); what the
kernel says about itself (/proc/cpuinfo, /proc/meminfo, mount sources); reading what any user may read below
/usr; timing. Without a memory control group, memory is polled every 20 ms, and
memory that belongs to no process is refused (memfd, System V) or bounded (file systems; pipes and sockets by
their number only). Tests that run in the same interpreter as the code they test can
be fooled by that code: give the verdict to a process of its own, or compare output.

Where bubblewrap cannot run, creating this sandbox fails with the fix; nothing falls back to `unsafe`.
"""

from __future__ import annotations

import asyncio
import atexit
import marshal
import os
import resource
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from pipeline.errors import ConfigError, EnvironmentFailure
from pipeline.sandbox import cgroups
from pipeline.sandbox.base import Execution, Limits, Program
from pipeline.sandbox.exchange import PATIENCE, Ending, Report, Watch
from pipeline.sandbox.spawn import Jail, JailStartError, Shape, Spawner, find_bubblewrap
from pipeline.sandbox.toolchains import Toolchain, compile_limits, python_executable, toolchain
from pipeline.sandbox.verdicts import checked, compile_failure, judge

_SHAPES = 4
"""Kinds of jail kept warm at once; the least recently used kind is let go."""
_START_TRIES = 3
_OVERHEAD_MIB = 24
"""The supervisor and bubblewrap itself."""
_OVERHEAD_PROCESSES = 3
_HELP = (
    "needed: name spaces (as an ordinary user: sysctl kernel.unprivileged_userns_clone=1 and "
    "user.max_user_namespaces > 0, on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0; in a "
    "container --cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt "
    "systempaths=unconfined), or use the remote or docker sandbox"
)
_T = TypeVar("_T")


class _Run:
    """One program on its way; `cancel` may come from another thread."""

    def __init__(self, program: Program, limits: Limits) -> None:
        self.program, self.limits = program, limits
        self._lock = threading.Lock()
        self._jail: Jail | None = None
        self._cancelled = False

    def enter(self, jail: Jail) -> None:
        """From now on a cancellation kills this jail."""
        with self._lock:
            self._jail = jail
            if self._cancelled:
                jail.kill()

    def cancel(self) -> None:
        """End it wherever it is."""
        with self._lock:
            self._cancelled = True
            if self._jail is not None:
                self._jail.kill()


class BubblewrapSandbox:
    """Runs programs in bubblewrap jails; may be shared by threads and event loops."""

    name = "bubblewrap"

    def __init__(
        self,
        *,
        warm: int | None = None,
        parallel: int | None = None,
        cores: float = 1.0,
        python_paths: tuple[str, ...] = (),
    ) -> None:
        """`warm` jails wait ready (default one a core, 2 at least), `parallel` programs run at once (default
        4 a core), each on at most `cores`. `python_paths` (directories of packages) are shown read-only and
        importable. Raises ConfigError with the fix where jails do not work here.
        """
        cpus = os.cpu_count() or 1
        self._warm = max(2, cpus) if warm is None else warm
        self._cores = cores
        self._python_paths = tuple(os.path.realpath(path) for path in python_paths)
        self._spawner = Spawner(find_bubblewrap())
        self._workers = ThreadPoolExecutor(parallel or 4 * cpus, thread_name_prefix="sandbox")
        # A jail dies with the thread that started it, so one that lives as long as we do starts them all.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="sandbox-start")
        self._janitor = ThreadPoolExecutor(1, thread_name_prefix="sandbox-clean")
        self._lock = threading.Lock()
        self._pool: OrderedDict[Shape, deque[Future[Jail]]] = OrderedDict()
        self._closed = False
        self._owner = os.getpid()
        atexit.register(self._close)
        self._probe()

    def _probe(self) -> None:
        try:
            _insist(self._try)
        except JailStartError as error:
            self._close()
            raise ConfigError(f"bubblewrap cannot make a jail here: {error}; {_HELP}") from error
        except BaseException:
            self._close()
            raise

    def _try(self) -> None:
        jail = self._starter.submit(self._spawner.start, self._shape((), Limits().disk_mib)).result()
        try:
            jail.wait_ready()
        finally:
            jail.destroy()

    def describe(self) -> str:
        """What holds the limits on this machine."""
        user = "user id dropped" if os.geteuid() == 0 else "own user name space"
        return f"{self._spawner.binary}; {cgroups.host().describe()}; seccomp filter; {user}"

    async def run(self, program: Program, limits: Limits | None = None) -> Execution:
        """Raises ConfigError (language, file names, an absent tool), EnvironmentFailure (the jail)."""
        if self._closed:
            raise EnvironmentFailure("this sandbox is closed; open another")
        if os.getpid() != self._owner:
            raise EnvironmentFailure("this sandbox belongs to the process that forked this one; open another")
        run = _Run(program, limits or Limits())
        future = self._workers.submit(self._run, run)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            run.cancel()
            raise

    def _run(self, run: _Run) -> Execution:
        chain = toolchain(run.program.language)
        request_files = checked(run.program, chain.language, run.limits)
        if "memory" not in cgroups.host().parents and len(run.program.stdin) > run.limits.disk_mib << 18:
            raise ConfigError(
                f"standard input of {len(run.program.stdin):,} characters; without a memory control group "
                f"allowed by disk_mib: {run.limits.disk_mib << 18:,}"
            )
        building = compile_limits(chain.language, run.limits) if chain.compile else run.limits
        request = self._request(chain, run, request_files, building)
        shape = self._shape(chain.mounts, building.disk_mib)
        try:
            return _insist(lambda: self._in_jail(shape, request, run, chain, building))
        except JailStartError as error:
            raise EnvironmentFailure(f"no jail would start: {error}") from error

    def _in_jail(
        self, shape: Shape, request: bytes, run: _Run, chain: Toolchain, building: Limits
    ) -> Execution:
        """Raises EnvironmentFailure; JailStartError where the program never began."""
        jail = self._take(shape).result()
        try:
            jail.wait_ready()
            if not jail.group.limit(building, self._cores, _OVERHEAD_MIB, _OVERHEAD_PROCESSES):
                raise EnvironmentFailure(f"an empty jail takes more than {building.memory_mib} MiB here")
            run.enter(jail)
            report = jail.converse(
                request, self._watch(jail, chain, run.limits, building), run.limits.output_bytes
            )
            return self._execution(jail, report, chain, run.program)
        except OSError as error:
            raise EnvironmentFailure(f"the jail broke: {error}") from error
        finally:
            self._janitor.submit(jail.destroy)

    def _shape(self, mounts: tuple[str, ...], disk_mib: int) -> Shape:
        python = python_executable()
        own = () if python.startswith("/usr/") else (os.path.dirname(os.path.dirname(python)),)
        return Shape(tuple(dict.fromkeys((*own, *self._python_paths, *mounts))), disk_mib)

    def _request(self, chain: Toolchain, run: _Run, files: dict[str, bytes], building: Limits) -> bytes:
        program, limits = run.program, run.limits
        base = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/box", "LANG": "C.UTF-8", "TMPDIR": "/tmp"}
        return marshal.dumps(
            {
                "files": files,
                "compile": list(chain.compile) or None,
                "run": [*chain.run, *program.args],
                "interpreter": chain.language.interpreter,
                "stdin": program.stdin.encode("utf-8", errors="surrogatepass"),
                "env": {**base, **chain.language.env},
                "collect": list(program.collect),
                "limits": self._resources(limits),
                "compile_limits": self._resources(building),
                "output_bytes": limits.output_bytes,
                "python_paths": list(self._python_paths),
            }
        )

    def _resources(self, limits: Limits) -> dict[str, int]:
        """Resource limits of a phase; the ones a control group holds better are left out."""
        found = {
            # 0 would still start the host's crash handler where /proc/sys/kernel/core_pattern names one.
            "RLIMIT_CORE": 1,
            "RLIMIT_FSIZE": limits.disk_mib << 20,
            "RLIMIT_NOFILE": min(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        }
        held = cgroups.host().parents
        cores = self._cores if "cpu" in held else os.cpu_count() or 1
        found["RLIMIT_CPU"] = int(limits.seconds * max(cores, 1.0)) + 2
        if "pids" not in held:
            found["RLIMIT_NPROC"] = limits.processes + _OVERHEAD_PROCESSES
        if "memory" not in held:
            found["RLIMIT_AS"] = 4 * limits.memory_mib << 20
        return found

    def _watch(self, jail: Jail, chain: Toolchain, limits: Limits, building: Limits) -> Watch:
        def lower() -> bool:
            jail.begin()
            return jail.group.limit(limits, self._cores, _OVERHEAD_MIB, _OVERHEAD_PROCESSES)

        def too_much() -> bool:
            return jail.resident_mib() > limits.memory_mib + _OVERHEAD_MIB

        return Watch(
            compile_seconds=building.seconds if chain.compile else None,
            run_seconds=limits.seconds,
            max_report_bytes=(2 * building.disk_mib << 20) + limits.output_bytes + 65_536,
            before_run=lower,
            starved_seconds=jail.starved_seconds,
            stands_still=jail.stands_still,
            too_much_memory=None if jail.group.has("memory") else too_much,
        )

    def _execution(self, jail: Jail, report: Report, chain: Toolchain, program: Program) -> Execution:
        ended_by_memory = jail.group.out_of_memory() or report.ending is Ending.MEMORY
        timed_out = report.ending is Ending.DEADLINE
        if report.ending is Ending.SILENT:
            if report.status is None:
                raise JailStartError(f"it did not begin the program in {PATIENCE:.0f} s")
            raise EnvironmentFailure(f"the jail did not hand back the program's files in {PATIENCE:.0f} s")
        if report.ending is Ending.STALLED and not ended_by_memory:
            raise EnvironmentFailure(
                f"the machine kept the jail from running; given up after {report.seconds:.0f} s"
            )
        if report.ending is Ending.GONE and not ended_by_memory:
            said = jail.stderr.text[-500:]
            raise EnvironmentFailure(
                f"the jail was ended from outside before it had told all; it said: {said!r}"
            )
        if chain.compile and report.compile_status != 0:
            said = report.compile_output.decode("utf-8", errors="replace")
            return compile_failure(said, timed_out=timed_out, out_of_memory=ended_by_memory)
        stdout, stderr = jail.stdout.text, jail.stderr.text
        outcome, code = judge(
            program,
            chain.language,
            code=None if report.status is None else os.waitstatus_to_exitcode(report.status),
            stdout=stdout,
            stderr=stderr,
            timed_out=timed_out,
            out_of_memory=ended_by_memory,
            cut=jail.stdout.cut,
        )
        return Execution(
            outcome,
            stdout=stdout,
            stderr=stderr,
            exit_code=code,
            seconds=report.seconds,
            truncated=jail.stdout.truncated or jail.stderr.truncated,
            files={
                program.collect[at]: data for at, data in report.files.items() if at < len(program.collect)
            },
            detail="output flood" if report.ending is Ending.FLOOD else "",
        )

    def _take(self, shape: Shape) -> Future[Jail]:
        with self._lock:
            if self._closed:
                raise EnvironmentFailure("this sandbox was closed while a program waited for its jail")
            waiting = self._pool.setdefault(shape, deque())
            self._pool.move_to_end(shape)
            taken = waiting.popleft() if waiting else self._starter.submit(self._spawner.start, shape)
            while len(waiting) < self._warm:
                waiting.append(self._starter.submit(self._spawner.start, shape))
            dropped = self._pool.popitem(last=False)[1] if len(self._pool) > _SHAPES else deque()
        for future in dropped:
            self._janitor.submit(_destroy, future)
        return taken

    async def close(self) -> None:
        """End what runs and remove every trace; idempotent."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        if os.getpid() != self._owner:
            return  # a fork ends; the jails are its parent's
        with self._lock:
            if self._closed:
                return
            self._closed = True
            waiting = [future for futures in self._pool.values() for future in futures]
            self._pool.clear()
        self._spawner.kill_all()
        self._workers.shutdown(cancel_futures=True)
        self._spawner.kill_all()
        for future in waiting:
            _destroy(future)
        self._starter.shutdown()
        self._janitor.shutdown()
        atexit.unregister(self._close)


def _insist(attempt: Callable[[], _T]) -> _T:
    """What the first attempt gives whose jail comes up. Raises JailStartError."""
    problem: JailStartError | None = None
    for _ in range(_START_TRIES):
        try:
            return attempt()
        except JailStartError as error:
            problem = error
    raise JailStartError(f"{problem} (tried {_START_TRIES} times)")


def _destroy(future: Future[Jail]) -> None:
    if not future.cancel() and future.exception() is None:
        future.result().destroy()
