"""The embedded model, untrained, on held-out BFCL multi-turn tasks through the real rollout loop.

    python -m benchmarks.bfcl_real_model [--tasks 10] [--model smollm2]

Starts a vLLM server, plays the first held-out tasks at temperature 0 with `tools="gold"` (gold tools and
three more, because all tools of a task fill a small context), prints one line per task and a summary. Not
covered: the benchmark's own prompt and tool list, so the score is not comparable with its leaderboard.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from itertools import islice

from data.messages import ParseStatus
from data.trajectories import Trajectory
from pipeline.engines.base import Sampling
from pipeline.engines.vllm import VllmEngine
from pipeline.environments.registry import load_environment
from pipeline.renderers.load import load_renderer
from pipeline.rollout import Job, RolloutSettings, rollouts
from pipeline.server import ModelServer, ServerSettings
from rl.models import model_label, resolve_model

CONTEXT = 8192


async def play(options: argparse.Namespace, url: str, served_name: str) -> list[Trajectory]:
    """One episode per task; printed as they finish, returned in the order of the tasks."""
    environment = load_environment("bfcl_multi_turn", tools="gold", max_tokens=CONTEXT)
    tasks = list(islice(environment.tasks("heldout"), options.tasks))
    engine = VllmEngine([url], model=served_name, name=model_label(options.model))
    played: dict[str, Trajectory] = {}
    try:
        async for trajectory in rollouts(
            [Job(task) for task in tasks],
            environment=environment,
            engine=engine,
            renderer=load_renderer(resolve_model(options.model)),
            sampling=Sampling(temperature=0.0, max_tokens=options.max_tokens),
            settings=RolloutSettings(max_context_tokens=CONTEXT),
            max_in_flight=options.tasks,
        ):
            played[trajectory.task_id] = trajectory
            print_line(trajectory)
    finally:
        await engine.close()
    return [played[task.task_id] for task in tasks]


def print_line(trajectory: Trajectory) -> None:
    """Ending, score, share of user turns right, calls by parse status."""
    calls = Counter(str(call.status) for turn in trajectory.turns for call in turn.tool_calls)
    reward = trajectory.reward
    parts = {part.name: part.value for part in reward.components} if reward else {}
    print(
        f"{trajectory.template:34} {trajectory.termination:14} score {reward.total if reward else None} "
        f"turns right {parts.get('turns', 0.0):.2f} calls {dict(calls)} "
        f"tokens {trajectory.usage.prompt_tokens}+{trajectory.usage.generated_tokens} {trajectory.error}",
        flush=True,
    )


def summarise(played: list[Trajectory], seconds: float, label: str) -> None:
    """Two lines over all episodes."""
    calls = [call for trajectory in played for turn in trajectory.turns for call in turn.tool_calls]
    valid = sum(call.status is ParseStatus.OK for call in calls)
    generated = sum(trajectory.usage.generated_tokens for trajectory in played)
    endings = dict(Counter(str(one.termination) for one in played))
    print(f"{label}: success {sum(bool(one.success) for one in played)}/{len(played)}")
    print(f"calls {len(calls)}, valid {valid}; endings {endings}; {generated} tokens in {seconds:.0f} s")


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(description="the embedded model on held-out BFCL multi-turn tasks")
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--max-tokens", type=int, default=256, help="new tokens per assistant turn")
    parser.add_argument("--model", default="smollm2", help="a known name or a model directory")
    options = parser.parse_args()
    settings = ServerSettings(max_model_len=CONTEXT, max_num_seqs=options.tasks)
    with ModelServer(resolve_model(options.model), settings=settings) as server:
        started = time.perf_counter()
        played = asyncio.run(play(options, server.url, server.settings.served_name))
        summarise(played, time.perf_counter() - started, model_label(options.model))


if __name__ == "__main__":
    main()
