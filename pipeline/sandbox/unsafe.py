"""Programs as plain child processes of ours: a time limit and an output limit, and nothing else.

Not covered: everything a sandbox is for. The program sees this machine's files, network, processes and
environment with our rights. For programs of your own only, and only by name.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline.sandbox.base import Execution, Limits, Program
from pipeline.sandbox.exchange import Capture, gather
from pipeline.sandbox.toolchains import Toolchain, compile_limits, toolchain
from pipeline.sandbox.verdicts import checked, compile_failure, judge


class UnsafeSandbox:
    """No sandbox at all. Creating one warns."""

    name = "unsafe"

    def __init__(self, *, parallel: int | None = None) -> None:
        """`parallel` programs run at once (default 4 a core)."""
        warnings.warn(
            "the unsafe sandbox runs programs with all rights of this process; "
            "use bubblewrap for what a model wrote",
            stacklevel=2,
        )
        self._workers = ThreadPoolExecutor(parallel or 4 * (os.cpu_count() or 1), thread_name_prefix="unsafe")

    def describe(self) -> str:
        """What holds the limits: nothing."""
        return "no isolation at all"

    async def run(self, program: Program, limits: Limits | None = None) -> Execution:
        """Raises ConfigError (language, file names, a tool that is not installed)."""
        return await asyncio.wrap_future(self._workers.submit(self._run, program, limits or Limits()))

    def _run(self, program: Program, limits: Limits) -> Execution:
        chain = toolchain(program.language)
        files = checked(program, chain.language, limits)
        directory = Path(tempfile.mkdtemp(prefix="trajsmith-"))
        try:
            for name, content in files.items():
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                (directory / name).write_bytes(content)
            return self._inside(directory, program, chain, limits)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _inside(self, directory: Path, program: Program, chain: Toolchain, limits: Limits) -> Execution:
        env = {**os.environ, **chain.language.env}
        if chain.compile:
            building = compile_limits(chain.language, limits)
            try:
                done = subprocess.run(
                    chain.compile,
                    cwd=directory,
                    env=env,
                    capture_output=True,
                    timeout=building.seconds,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return compile_failure("", timed_out=True)
            if done.returncode:
                return compile_failure(
                    (done.stdout + done.stderr).decode(errors="replace")[: limits.output_bytes]
                )
        return self._execute(directory, [*chain.run, *program.args], env, program, chain, limits)

    def _execute(
        self,
        directory: Path,
        command: list[str],
        env: dict[str, str],
        program: Program,
        chain: Toolchain,
        limits: Limits,
    ) -> Execution:
        began = time.monotonic()
        with tempfile.TemporaryFile() as stdin:
            stdin.write(program.stdin.encode(errors="surrogatepass"))
            stdin.seek(0)
            process = subprocess.Popen(
                command,
                cwd=directory,
                env=env,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        assert process.stdout is not None and process.stderr is not None
        with process.stdout, process.stderr:
            streams = [
                Capture(pipe.fileno(), limits.output_bytes) for pipe in (process.stdout, process.stderr)
            ]
            status, flooded = gather(process, streams, limits.seconds)
        stdout, stderr = (stream.text for stream in streams)
        outcome, code = judge(
            program,
            chain.language,
            code=status,
            stdout=stdout,
            stderr=stderr,
            timed_out=status is None and not flooded,
            cut=streams[0].cut,
        )
        return Execution(
            outcome,
            stdout=stdout,
            stderr=stderr,
            exit_code=code,
            seconds=time.monotonic() - began,
            truncated=any(stream.truncated for stream in streams),
            files=_collected(directory, program.collect),
            detail="output flood" if flooded else "",
        )

    async def close(self) -> None:
        """Wait for what runs; idempotent."""
        await asyncio.to_thread(self._workers.shutdown)


def _collected(directory: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    found = {}
    for name in names:
        path = directory / name
        if path.is_file() and path.resolve() == directory.resolve() / name:
            found[name] = path.read_bytes()
    return found
