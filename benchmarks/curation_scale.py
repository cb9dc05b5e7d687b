"""What curation needs for many trajectories, and for long ones: peak memory and rows a second.

Run: python -m benchmarks.curation_scale [--rows 20000 80000] [--tokens 200] [--work DIR] [--keep]. For every
number of rows a run directory is written, then a process of its own does what the stage does: the digest of
the pool, six filters (three of which read the pool once more), verdicts, `curated/`. Printed is that
process's peak. What it grows by from the fewest to the most rows is held per row (ids, digests, counts); the
rest does not depend on their number. Rows are made up: eight rollouts and a demonstration a task, one rollout
in six a copy, random token ids of which a fifth are sampled. Not covered: filters that score with a reward
(they hold the tasks).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from data import canonical, schema, shards
from data.messages import ToolCall, ToolResult, ToolSpec, Turn, assistant, system, text_parts, tool, user
from data.schema import Kind
from data.store import Store
from data.tasks import Budget, Task
from data.trajectories import (
    EnvironmentRef,
    Origin,
    Policy,
    Reward,
    Segment,
    Span,
    SpanKind,
    Termination,
    Trajectory,
    make_group_id,
)

GROUP = 8
GROUPS_PER_SHARD, SHARDS_PER_SEAL = 1_000, 5
RECIPE = {"made_up": True}
FILTERS = ("difficulty", "valid_calls", "verified_outcome", "exact_duplicate", "efficiency", "mix")
POLICY = Policy(name="made up", weights="w0", logprobs_of="processed")
GOLD = Policy(name="gold")
WORLD = EnvironmentRef(name="made_up", version="1", seed=0)
FIND = ToolSpec(
    name="find",
    description="Find",
    parameters='{"type":"object","properties":{"key":{"type":"integer"}},"required":["key"]}',
)
MIB = 1 << 20


def make_task(number: int) -> Task:
    """A task of its own words."""
    return Task(
        environment=WORLD.name,
        split="train",
        template=f"t{number % 12}",
        prompt=(system("Be brief."), user(f"Find item {number} and say where it is.")),
        private=canonical.dumps({"answer": number}),
        verifier="made_up/1",
        budget=Budget(max_turns=8, max_tokens=4000, max_seconds=60),
    )


def make_trajectories(task: Task, number: int, tokens: int, rng: np.random.Generator) -> Iterator[Trajectory]:
    """A demonstration and a group of rollouts, whose solve rates differ from task to task."""
    key = number * 10
    yield _trajectory(task, key, 0, tokens, rng, policy=GOLD, success=True)
    for index in range(GROUP):
        copied = index and (number * GROUP + index) % 6 == 0
        key = number * 10 + (0 if copied else index + 1)
        success = (index + number) % GROUP > number % 7
        yield _trajectory(task, key, index, tokens, rng, policy=POLICY, success=success)


def _trajectory(
    task: Task, key: int, index: int, tokens: int, rng: np.random.Generator, *, policy: Policy, success: bool
) -> Trajectory:
    synthesizer = "demonstration" if policy is GOLD else "rejection_sampling"
    turns = _turns(task, key, tokens, rng)
    return Trajectory(
        task_id=task.task_id,
        group_id=make_group_id(task.task_id, synthesizer, policy, 0),
        rollout_index=index,
        synthesizer=synthesizer,
        template=task.template,
        policy=policy,
        environment=WORLD,
        turns=turns,
        segments=(_segment(tokens, rng, sampled=policy is POLICY),),
        termination=Termination.FINISHED,
        reward=Reward(total=float(success), verifier=task.verifier),
    )


def _turns(task: Task, key: int, tokens: int, rng: np.random.Generator) -> tuple[Turn, ...]:
    call = ToolCall(call_id="call_0", name="find", arguments=canonical.dumps({"key": key}))
    text = rng.bytes(tokens).hex()
    found = ToolResult(call_id="call_0", name="find", parts=text_parts(text))
    return (*task.prompt, assistant("", call), tool(found), assistant(f"It is at {key}."))


def _segment(tokens: int, rng: np.random.Generator, *, sampled: bool) -> Segment:
    """Prompt, call, observation, answer; a fifth of the tokens is generated."""
    ids = rng.integers(0, 49_152, tokens).tolist()
    half, tenth = tokens // 2, tokens // 10
    spans = (
        Span(0, tenth, SpanKind.PROMPT, -1),
        Span(tenth, 2 * tenth, SpanKind.GENERATED, 2, "", "w0"),
        Span(2 * tenth, half + 3 * tenth, SpanKind.OBSERVATION, 3, "call_0"),
        Span(half + 3 * tenth, half + 4 * tenth, SpanKind.GENERATED, 4, "", "w0"),
        Span(half + 4 * tenth, tokens, SpanKind.OBSERVATION, 4),
    )
    logprobs = (-rng.random(2 * tenth)).tolist() if sampled else ()
    origin = Origin.SAMPLED if sampled else Origin.RENDERED
    return Segment(origin=origin, tools=(FIND,), token_ids=ids, spans=spans, logprobs=logprobs)


def generate(root: Path, *, rows: int, tokens: int) -> None:
    """Write a run of about `rows` trajectories as the sealed shards that a long synthesis leaves."""
    rng = np.random.default_rng(rows)
    groups = range(max(1, rows // (GROUP + 1)))
    for number, start in enumerate(range(0, len(groups), GROUPS_PER_SHARD)):
        tasks = {group: make_task(group) for group in groups[start : start + GROUPS_PER_SHARD]}
        made = (row for group, task in tasks.items() for row in make_trajectories(task, group, tokens, rng))
        name = shards.shard_name(number // SHARDS_PER_SEAL, number % SHARDS_PER_SEAL)
        shards.write_shard(root / Kind.TRAJECTORIES / name, Kind.TRAJECTORIES, map(schema.to_json, made))
        shards.write_shard(root / Kind.TASKS / name, Kind.TASKS, map(schema.to_json, tasks.values()))
    Store.create_or_open(root, RECIPE).close()


def curate_run(root: Path) -> dict[str, Any]:
    """Digest and curate the run in this process; seconds and peak of each step."""
    from flows.stages.curate import curate
    from flows.stages.recipe import CurateSection
    from pipeline.environments.registry import load_environment
    from pipeline.renderers.base import Renderer

    section = CurateSection(
        filters=tuple({"name": name} for name in FILTERS), synthesizers=("rejection_sampling",)
    )
    environment = load_environment("counter")
    renderer: Renderer = None  # type: ignore[assignment]  # gold is demonstrated, so nothing is rendered
    found: dict[str, Any] = {"start": peak()}
    with Store.create_or_open(root, RECIPE) as store:
        began = time.perf_counter()
        store.digest("trajectories")
        found |= {"digest_seconds": time.perf_counter() - began, "digest": peak()}
        began = time.perf_counter()
        work = curate(store, section, environment=environment, renderer=renderer, policy_name=POLICY.name)
        done = asyncio.run(work)
        found |= {"curate_seconds": time.perf_counter() - began, "peak": peak()}
    return found | {"seen": done.seen, "kept": done.kept}


def peak() -> float:
    """MiB this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(root: Path, *, rows: int, tokens: int) -> dict[str, Any]:
    """Generate here in a child, curate in another; prints one line."""
    began = time.perf_counter()
    _child("generate", str(root), str(rows), str(tokens))
    made = time.perf_counter() - began
    size = sum(path.stat().st_size for path in (root / "trajectories").iterdir()) / MIB
    found: dict[str, Any] = json.loads(_child("curate", str(root)))
    total = found["seen"] / GROUP * (GROUP + 1)
    print(
        f"{total:10,.0f} trajectories of {tokens:,} tokens, {size:,.0f} MiB stored: "
        f"written at {total / made:,.0f} rows/s; digest at {total / found['digest_seconds']:,.0f} rows/s; "
        f"curated at {total / found['curate_seconds']:,.0f} rows/s, {found['kept']:,} kept; "
        f"peak {found['start']:.0f} MiB at the start, {found['digest']:.0f} after the digest, "
        f"{found['peak']:.0f} at the end",
        flush=True,
    )
    return found | {"rows": total}


def _child(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks.curation_scale", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """Measure every number of rows and print what is held per row."""
    parser = argparse.ArgumentParser(description="memory and speed of curation")
    parser.add_argument("--rows", type=int, nargs="+", default=[20_000, 80_000])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--work", type=Path, help="where the runs are written; a temporary directory")
    parser.add_argument("--keep", action="store_true", help="leave the runs there")
    options = parser.parse_args()
    results = []
    for rows in options.rows:
        root = Path(tempfile.mkdtemp(prefix="curation-scale-", dir=options.work))
        try:
            results.append(measured(root / "run", rows=rows, tokens=options.tokens))
        finally:
            if not options.keep:
                shutil.rmtree(root)
    few, many = (end(results, key=lambda result: result["rows"]) for end in (min, max))
    if many["rows"] > few["rows"]:
        grown = (many["peak"] - few["peak"]) * MIB / (many["rows"] - few["rows"])
        print(f"held per trajectory: {grown:.0f} bytes (from {few['rows']:,.0f} to {many['rows']:,.0f})")


if __name__ == "__main__":
    if sys.argv[1:2] == ["generate"]:
        generate(Path(sys.argv[2]), rows=int(sys.argv[3]), tokens=int(sys.argv[4]))
    elif sys.argv[1:2] == ["curate"]:
        print(json.dumps(curate_run(Path(sys.argv[2]))))
    else:
        main()
