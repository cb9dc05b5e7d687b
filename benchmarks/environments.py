"""What the environments cost: tokens of a gold episode per template, time of an open+close and of a call.

Run: python -m benchmarks.environments [MODEL_DIR]. Token counts need a model directory with a tokenizer (by
default the embedded model's); without one only the times are printed. Not covered: a model's own episodes.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import mean

from pipeline.environments.base import Environment
from pipeline.environments.play import play
from pipeline.environments.registry import BROUGHT, ENVIRONMENTS, load_environment
from pipeline.renderers.load import load_renderer

MODEL_DIR = Path.home() / ".cache/trajsmith/models/smollm2-135m-instruct"
NUM_TASKS = 400
NUM_CALLS = 5000


async def count_tokens(
    environment: Environment, model_dir: Path
) -> list[tuple[str, float, float, float, int]]:
    """Per template: mean tokens of prompt, generated and all; calls made. Sorted by all."""
    renderer = load_renderer(model_dir)
    rows: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
    for split in environment.splits:
        for task in itertools.islice(
            environment.tasks(split), NUM_TASKS if split == environment.splits[0] else 60
        ):
            played = await play(environment, task, environment.gold(task))
            session = await environment.open(task)
            rendered = renderer.render(played.turns, session.tools, generation_prompt=False)
            await session.close()
            by_kind: dict[str, int] = defaultdict(int)
            for span in rendered.spans:
                by_kind[span.kind] += span.end - span.start
            num_calls = sum(len(turn.tool_calls) for turn in played.turns)
            rows[task.template].append(
                (by_kind["prompt"], by_kind["generated"], len(rendered.token_ids), num_calls)
            )
    table = [
        (name, mean(r[0] for r in seen), mean(r[1] for r in seen), mean(r[2] for r in seen), seen[0][3])
        for name, seen in rows.items()
    ]
    return sorted(table, key=lambda row: row[3])


async def time_session(environment: Environment) -> tuple[float, float]:
    """Seconds of one open+close, seconds of one call (the first gold call that changes something)."""
    task = next(iter(environment.tasks(environment.splits[0])))
    turn = environment.gold(task).next_turn(task.prompt)
    assert turn is not None
    [call] = turn.tool_calls
    started = time.perf_counter()
    for _ in range(NUM_CALLS):
        await (await environment.open(task)).close()
    opened = (time.perf_counter() - started) / NUM_CALLS
    session = await environment.open(task)
    arguments = call.parsed_arguments()
    started = time.perf_counter()
    for index in range(NUM_CALLS):
        await session.call(call.name, arguments, str(index))
    called = (time.perf_counter() - started) / NUM_CALLS
    await session.close()
    return opened, called


async def main(model_dir: Path) -> None:
    """Print both tables."""
    for name in sorted(set(ENVIRONMENTS) - BROUGHT):
        environment = load_environment(name)
        opened, called = await time_session(environment)
        print(f"{name}: open+close {opened * 1e6:.1f} us, call {called * 1e6:.1f} us")
        if (model_dir / "tokenizer.json").exists():
            print(f"  {'template':18}{'prompt':>8}{'generated':>11}{'all':>7}{'calls':>7}")
            for template, prompt, generated, total, calls in await count_tokens(environment, model_dir):
                print(f"  {template:18}{prompt:8.0f}{generated:11.0f}{total:7.0f}{calls:7}")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else MODEL_DIR))
