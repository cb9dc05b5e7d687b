"""The comparison trace of `benchmarks.rollout` through TRL's GRPOTrainer tool loop with async tools.

    python -m benchmarks.rollout_trl

Only generation is replaced: a scripted function returns the same tokens after the same simulated
server time. Tokenising, parsing, tool calls and masks are TRL's own. Its qwen3 template is used,
because TRL parses only the templates it knows; the prompt differs, the sampled turns do not.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.rollout import GROUP, SCENARIOS, as_completion, load_renderer, make_tasks
from benchmarks.trace import SharedServer, Step, ideal_makespan, make_trace
from pipeline.engines.base import Completion
from tests.tiny import make_tiny_model


async def wait(seconds: float, note: str) -> str:
    """Wait.

    Args:
        seconds: How long.
        note: What for.
    """
    await asyncio.sleep(seconds)
    return f"waited {seconds}"


def make_trainer(scratch: Path, count: int) -> Any:
    """A GRPOTrainer on a tiny model, built only for its rollout half."""
    import trl
    from datasets import Dataset
    from transformers import AutoTokenizer

    model = str(make_tiny_model(scratch / "model", tags=True))
    tokenizer = AutoTokenizer.from_pretrained(model)
    templates = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (templates / "qwen3.jinja").read_text(encoding="utf-8")
    rows = [{"prompt": messages(index)} for index in range(count)]
    config = trl.GRPOConfig(
        output_dir=str(scratch / "out"),
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=count,
        num_generations=GROUP,
        max_completion_length=4000,
        report_to="none",
    )
    return trl.GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **columns: [1.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        tools=[wait],
    )


def messages(index: int) -> list[dict[str, str]]:
    """The prompt of rollout `index` in the wire form."""
    task = make_tasks(index + 1)[-1]
    return [{"role": str(turn.role), "content": turn.text} for turn in task.prompt]


def script(sampled: list[list[Completion]], server: SharedServer) -> Any:
    """A stand-in for `_generate_single_turn`: next turn of each rollout, after the batch's server time."""
    turn = [0] * len(sampled)

    def generate(
        prompt_ids: list[list[int]], *_: Any, **__: Any
    ) -> tuple[list[list[int]], list[list[float]]]:
        left = [index for index in range(len(sampled)) if turn[index] < len(sampled[index])]
        assert len(left) == len(prompt_ids), "the rollouts still in the loop are those with turns left"
        completions = [sampled[index][turn[index]] for index in left]
        for index in left:
            turn[index] += 1
        for key, completion in enumerate(completions):
            server.add(0.0, len(completion.token_ids), key)
        seconds = 0.0
        while (at := server.next_finish()) < float("inf"):
            seconds = at
            server.advance(at)
        server.advance(0.0)
        time.sleep(seconds)
        return [list(c.token_ids) for c in completions], [list(c.logprobs) for c in completions]

    return generate


def main() -> None:
    """Print one JSON row shaped like those of `benchmarks.rollout`."""
    os.environ.update({"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"})
    scenario, renderer = SCENARIOS["compare"], load_renderer()
    trace: list[list[Step]] = make_trace(scenario.count, seed=0, longest=scenario.longest)
    sampled = [[as_completion(renderer, step) for step in steps] for steps in trace]
    work = [
        [(len(completion.token_ids), step.seconds) for completion, step in zip(*pair, strict=True)]
        for pair in zip(sampled, trace, strict=True)
    ]
    ideal = ideal_makespan(work, scenario.rate, scenario.in_flight)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = make_trainer(Path(scratch), scenario.count)
        trainer._generate_single_turn = script(sampled, SharedServer(scenario.rate))
        trainer._sync_tool_dicts = [{} for _ in trace]
        trainer._async_tool_dicts = [{"wait": wait} for _ in trace]
        prompts = [messages(index) for index in range(scenario.count)]
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        wall, cpu = time.perf_counter(), time.process_time()
        trainer._generate(prompts)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    row = {
        "scenario": "TRL tool loop, trace 'compare'",
        "trajectories": len(trace),
        "ideal_s": round(ideal, 3),
        "wall_s": round(wall, 3),
        "wall_over_ideal": round(wall / ideal, 4),
        "cpu_ms_per_trajectory": round(1000 * cpu / len(trace), 3),
        "memory_mib": round(memory / 1024, 1),
    }
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
