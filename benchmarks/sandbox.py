"""What a sandboxed run costs beyond the program: the same programs bare, warm and cold, side by side.

Run: python -m benchmarks.sandbox [ROUNDS]. In each round every way runs once, so that a busy machine burdens
all alike; medians are compared. "Bare" is the interpreter or binary as a plain child process. For Python the
warm jail has started its interpreter already, so the difference may be negative; Bash shows the price of the
walls. Not covered: what the programs do to each other's caches.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

from pipeline.sandbox.base import Limits, Program, Sandbox
from pipeline.sandbox.load import load_sandbox
from pipeline.sandbox.toolchains import python_executable

PYTHON = "print(sum(range(1000)))"
BASH = "echo 499500"
LIMITS = Limits(seconds=60)
PAUSE = 0.25
"""Seconds between rounds: time for the pool to fill again."""


def bare(command: list[str]) -> float:
    """Milliseconds of a plain child process."""
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={})
    assert done.stdout == "499500\n"
    return (time.perf_counter() - began) * 1000


async def jailed(sandbox: Sandbox, program: Program) -> float:
    """Milliseconds of a run."""
    began = time.perf_counter()
    done = await sandbox.run(program, LIMITS)
    assert done.stdout == "499500\n", done
    return (time.perf_counter() - began) * 1000


async def latency(rounds: int) -> dict[str, list[float]]:
    """Milliseconds by way."""
    warm, cold = load_sandbox("bubblewrap", warm=2), load_sandbox("bubblewrap", warm=0)
    programs = {"python": Program(PYTHON), "bash": Program(BASH, "bash")}
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for name, code in (("main.py", PYTHON), ("main.sh", BASH)):
            Path(directory, name).write_text(code)
        commands = {
            "python": [python_executable(), f"{directory}/main.py"],
            "bash": ["/bin/bash", f"{directory}/main.sh"],
        }
        for _ in range(rounds):
            for language, program in programs.items():
                found.setdefault(f"{language} bare", []).append(bare(commands[language]))
                found.setdefault(f"{language} cold", []).append(await jailed(cold, program))
                await asyncio.sleep(PAUSE)
                found.setdefault(f"{language} warm", []).append(await jailed(warm, program))
                await asyncio.sleep(PAUSE)
    await warm.close()
    await cold.close()
    return found


async def throughput(runs: int) -> float:
    """Runs a second, as many at once as the sandbox likes."""
    sandbox = load_sandbox("bubblewrap")
    await sandbox.run(Program(PYTHON), LIMITS)
    began = time.perf_counter()
    await asyncio.gather(*(jailed(sandbox, Program(PYTHON)) for _ in range(runs)))
    seconds = time.perf_counter() - began
    await sandbox.close()
    return runs / seconds


def main() -> None:
    """Print the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    found = asyncio.run(latency(rounds))
    print(f"{'way':12} {'median ms':>10} {'p90 ms':>8} {'beyond bare':>12} {'ratio':>6}")
    for way, times in found.items():
        plain = median(found[f"{way.split()[0]} bare"])
        beyond = median(times) - plain
        tenth = quantiles(times, n=10)[-1]
        print(f"{way:12} {median(times):10.1f} {tenth:8.1f} {beyond:+12.1f} {median(times) / plain:6.2f}")
    print(f"throughput: {asyncio.run(throughput(5 * rounds)):.1f} fresh jails a second")


if __name__ == "__main__":
    main()
