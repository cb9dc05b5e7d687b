"""All 200 BFCL multi-turn tasks through the real rollout loop with scripted policies: gold and doing nothing.

    python -m benchmarks.bfcl_scripted

Nothing but the model is replaced: the renderer writes gold's turns as tokens, the loop parses them back,
checks them against the shown schemas and executes them. Gold must score 1 on every task; the score of a
policy that says "Done." to everything is the floor of this world. Not covered: a model, see
`benchmarks.bfcl_real_model`.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence

from data.messages import Turn, assistant
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.engines.base import Sampling
from pipeline.engines.scripted import ScriptedEngine, continue_turns
from pipeline.environments.bfcl import BfclEnvironment
from pipeline.renderers.base import Renderer
from pipeline.renderers.load import load_renderer
from pipeline.rollout import RolloutSettings, rollout
from rl.models import resolve_model

CONTEXT = 32_768


async def play_task(
    environment: BfclEnvironment, task: Task, *, renderer: Renderer, gold: bool
) -> Trajectory:
    """One episode of gold, or of a policy that says "Done." whenever it is asked."""
    script = environment.gold(task)

    def policy(prompt: Sequence[int], rng: random.Random) -> Turn:
        said = script.next_turn(task.prompt) if gold else None
        return said or assistant("Done.")

    return await rollout(
        task,
        environment=environment,
        engine=ScriptedEngine(continue_turns(policy, renderer)),
        renderer=renderer,
        sampling=Sampling(temperature=0.0, max_tokens=2048),
        settings=RolloutSettings(max_context_tokens=CONTEXT),
    )


async def score_all(renderer: Renderer, *, gold: bool, tools: str) -> None:
    """Play all tasks with one policy and print the sum, the endings and the time."""
    environment = BfclEnvironment(tools=tools, max_tokens=CONTEXT)  # type: ignore[arg-type]
    started = time.perf_counter()
    tasks = list(environment.tasks("all"))
    played = [await play_task(environment, task, renderer=renderer, gold=gold) for task in tasks]
    endings = dict(Counter(str(one.termination) for one in played))
    calls = sum(one.usage.tool_calls for one in played)
    longest = max(one.usage.prompt_tokens + one.usage.generated_tokens for one in played)
    solved = sum(bool(one.success) for one in played)
    print(
        f"tools={tools:4} {'gold' if gold else 'null'}: {solved}/{len(played)} score 1, "
        f"{calls} calls, endings {endings}, longest episode {longest} tokens, "
        f"{time.perf_counter() - started:.1f} s",
        flush=True,
    )


async def main(model: str) -> None:
    """Both policies, with all tools and with gold's."""
    renderer = load_renderer(resolve_model(model))
    for tools in ("all", "gold"):
        for gold in (True, False):
            await score_all(renderer, gold=gold, tools=tools)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "smollm2"))
