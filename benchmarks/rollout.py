"""How much the rollout loop costs: wall time over the ideal makespan of the same trace, CPU and memory.

    python -m benchmarks.rollout             # every scenario and the comparison, about two minutes
    python -m benchmarks.rollout fast        # one scenario in this process
    python -m benchmarks.rollout compare     # 64 trajectories: this loop, then TRL's tool loop

Engine and tools only wait, so what a ratio shows above 1 is the loop's own. `ideal` is a discrete-event
run of the same trace without overhead, `bound` what no scheduler can beat. `own CPU` is the process's
CPU time less that of bare coroutines making the same waits.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.trace import Rate, SimulatedServer, Step, ideal_makespan, lower_bound, make_trace
from data import canonical
from data.messages import ToolResult, ToolSpec, Turn, system, text_parts, user
from data.tasks import Budget, Task
from data.trajectories import Reward, Trajectory
from pipeline.engines.base import Completion, FinishReason, Sampling
from pipeline.renderers.chatml import ChatMLRenderer
from pipeline.rollout import Job, RolloutSettings, rollouts
from pipeline.rollout_author import Draw
from tests.tiny import make_tiny_tokenizer

GROUP = 8
WAIT = ToolSpec(
    name="wait",
    description="Wait.",
    parameters=canonical.dumps(
        {
            "type": "object",
            "properties": {"seconds": {"type": "number"}, "note": {"type": "string"}},
            "required": ["seconds", "note"],
        }
    ),
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A trace and the server it meets."""

    about: str
    count: int
    in_flight: int
    rate: Rate
    longest: float = 5.0


SCENARIOS = {
    "batch": Scenario(
        "server 4,000 n/(n+32) tokens/s, tools 1 ms to 5 s", 160, 64, lambda n: 4000.0 * n / (n + 32)
    ),
    "fast": Scenario("server 100,000 tokens/s, tools 1 ms to 5 s", 1024, 1024, lambda n: 1e5),
    "busy": Scenario("server 100,000 tokens/s, tools 1 to 50 ms", 1024, 1024, lambda n: 1e5, 0.05),
    "compare": Scenario("server 100,000 tokens/s, tools 1 ms to 0.5 s", 64, 64, lambda n: 1e5, 0.5),
}


def load_renderer() -> ChatMLRenderer:
    """Our renderer over a tokenizer made on the spot."""
    with tempfile.TemporaryDirectory() as scratch:
        return ChatMLRenderer.load(make_tiny_tokenizer(Path(scratch), tags=True))


def make_tasks(count: int) -> list[Task]:
    """One task per group of 8 rollouts."""
    return [
        Task(
            environment="waiting_room",
            split="train",
            template="wait",
            prompt=(system("Call wait as often as you like."), user(f"Request {index}.")),
            verifier="waiting_room/1",
            budget=Budget(max_turns=16, max_tokens=4000),
        )
        for index in range(-(-count // GROUP))
    ]


class WaitingRoom:
    """An environment whose tool only waits, and its own session."""

    name = "waiting_room"
    version = "1"
    splits: tuple[str, ...] = ("train",)
    tools = (WAIT,)

    def tasks(self, split: str) -> Iterator[Task]:
        return iter(make_tasks(GROUP))

    async def open(self, task: Task, *, seed: int = 0) -> WaitingRoom:
        return self

    def gold(self, task: Task) -> Any:
        raise NotImplementedError("a benchmark has no gold")

    async def call(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        await asyncio.sleep(arguments["seconds"])
        return ToolResult(call_id=call_id, name=name, parts=text_parts(f"waited {arguments['seconds']}"))

    async def next_user(self, turns: Sequence[Turn]) -> Turn | None:
        return None

    def snapshot(self) -> bytes:
        return b""

    def restore(self, snapshot: bytes) -> None:
        return None

    async def verify(self, trajectory: Trajectory) -> Reward:
        return Reward(total=1.0, verifier="waiting_room/1")

    async def close(self) -> None:
        return None


class TraceEngine:
    """Returns the completions of a trace, recognised by their seed, after the server's time for them."""

    name = "trace"
    weights_version = "0"

    def __init__(self, completions: dict[int, Completion], rate: Rate) -> None:
        self.completions, self.server = completions, SimulatedServer(rate)

    async def generate(
        self, token_ids: list[int], sampling: Sampling, *, n: int = 1, affinity: str = ""
    ) -> list[Completion]:
        completion = self.completions[sampling.seed or 0]
        await self.server.spend(len(completion.token_ids))
        return [completion]

    async def score(self, token_ids: list[int]) -> list[float]:
        raise NotImplementedError("the trace engine only generates")

    async def close(self) -> None:
        return None


def as_completion(renderer: ChatMLRenderer, step: Step) -> Completion:
    """The step's text as sampled tokens with made-up log-probs."""
    token_ids = (*renderer.encode(step.text), renderer.stop_token_ids[0])
    return Completion(token_ids, tuple(-0.001 * i for i in range(len(token_ids))), FinishReason.STOP)


def _spent() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


async def run_loop(
    trace: list[list[Step]], sampled: list[list[Completion]], scenario: Scenario
) -> dict[str, float]:
    """The trace through `pipeline.rollout.rollouts`: wall seconds, CPU seconds, trajectories."""
    tasks, renderer = make_tasks(len(trace)), load_renderer()
    jobs = [Job(tasks[i // GROUP], rollout_index=i % GROUP) for i in range(len(trace))]
    by_seed = {
        Draw(job.task.task_id, 0, job.rollout_index).turn_seed(turn): completion
        for job, completions in zip(jobs, sampled, strict=True)
        for turn, completion in enumerate(completions)
    }
    assert len(by_seed) == sum(map(len, sampled)), "two turns share a seed; choose another trace"
    stream = rollouts(
        jobs,
        environment=WaitingRoom(),
        engine=TraceEngine(by_seed, scenario.rate),
        renderer=renderer,
        sampling=Sampling(max_tokens=512),
        settings=RolloutSettings(),
        max_in_flight=scenario.in_flight,
    )
    done, memory = 0, _peak_mib()
    wall, cpu = _spent()
    async for trajectory in stream:
        assert trajectory.success, trajectory.error
        done += 1
    wall_end, cpu_end = _spent()
    assert done == len(trace)
    return {"wall": wall_end - wall, "cpu": cpu_end - cpu, "mib": _peak_mib() - memory}


async def run_bare(sampled: list[list[Completion]], trace: list[list[Step]], scenario: Scenario) -> float:
    """CPU seconds of bare coroutines that make the same waits."""
    server, slots = SimulatedServer(scenario.rate), asyncio.Semaphore(scenario.in_flight)

    async def one(completions: list[Completion], steps: list[Step]) -> None:
        async with slots:
            for completion, step in zip(completions, steps, strict=True):
                await server.spend(len(completion.token_ids))
                if step.seconds is not None:
                    await asyncio.sleep(step.seconds)

    start = time.process_time()
    await asyncio.gather(*(one(*pair) for pair in zip(sampled, trace, strict=True)))
    return time.process_time() - start


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(name: str, *, seed: int = 0) -> dict[str, Any]:
    """One row of the table."""
    scenario, renderer = SCENARIOS[name], load_renderer()
    trace = make_trace(scenario.count, seed=seed, longest=scenario.longest)
    sampled = [[as_completion(renderer, step) for step in steps] for steps in trace]
    work = [
        [(len(completion.token_ids), step.seconds) for completion, step in zip(*pair, strict=True)]
        for pair in zip(sampled, trace, strict=True)
    ]
    ideal = ideal_makespan(work, scenario.rate, scenario.in_flight)
    bound = lower_bound(work, scenario.rate, scenario.in_flight)
    ours = asyncio.run(run_loop(trace, sampled, scenario))
    bare = asyncio.run(run_bare(sampled, trace, scenario))
    return {
        "scenario": name,
        "about": scenario.about,
        "trajectories": len(trace),
        "turns": sum(map(len, trace)),
        "tokens": sum(tokens for steps in work for tokens, _ in steps),
        "ideal_s": round(ideal, 3),
        "bound_s": round(bound, 3),
        "wall_s": round(ours["wall"], 3),
        "wall_over_ideal": round(ours["wall"] / ideal, 4),
        "wall_over_bound": round(ours["wall"] / bound, 4),
        "cpu_ms_per_trajectory": round(1000 * ours["cpu"] / len(trace), 3),
        "own_cpu_ms_per_trajectory": round(1000 * (ours["cpu"] - bare) / len(trace), 3),
        "memory_mib": round(ours["mib"], 1),
    }


def _in_own_process(module: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", module, *arguments], check=True)


def main(names: Sequence[str]) -> None:
    """Print a JSON row per scenario; without names, all of them in processes of their own."""
    if not names:
        for name in SCENARIOS:
            _in_own_process("benchmarks.rollout", name)
        _in_own_process("benchmarks.rollout_trl")
    for name in names:
        print(json.dumps(measure(name)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
