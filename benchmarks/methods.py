"""The planning synthesizers without a model, each beside its ablation: what its distinctive part is worth.

    python -m benchmarks.methods --world travel_desk --tasks 100 [--plans 5] [--json]

Every method plans from the same base tasks with the same seeds (one for each of `--plans`), once as it is
and once with `random_choice`, which replaces its distinctive choice by a random one and leaves the rest of
the code alone. Kept is a gold trajectory that its verifier scored a success; `replayed` says how many of
those show the same observations and succeed in a fresh session. Differences are paired by base task.
Diversity is counted at equal tokens: trajectories of the larger arm are left out, in a fixed random order,
until both hold as many; once as rows of tool names, and once as what feeds what (`flows_of`), because
unrelated calls in a row are as many different ones as one likes. Edge coverage is over one graph for all
arms, learnt from gold. No token is sampled and no chat is asked. Not covered: roles played by a model, and
what a learner makes of the data.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, islice, pairwise
from typing import Any, cast

from data.messages import ToolStatus
from data.tasks import Task
from data.trajectories import Trajectory
from data.verdicts import Verdict
from pipeline.checks.stats import paired_bootstrap
from pipeline.engines.base import Engine
from pipeline.environments.base import Environment
from pipeline.environments.blueprint import PlannedCall, read_blueprint
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment
from pipeline.renderers.base import Renderer
from pipeline.renderers.load import load_renderer
from rl.models import resolve_model
from synthesizers import load_synthesizer
from synthesizers.base import Synthesizer
from synthesizers.demonstration import Demonstration
from synthesizers.graph.dependency import SignatureGraph
from synthesizers.magnet.knowledge import learn

METHODS = ("director_actor", "magnet", "astra_chains")
ALONE = {"magnet": {"paths": 1}}
"""Options of both arms: Magnet's later paths would make up for those that do not work."""
OBSERVED = 64
MEASURES = ("yield", "calls", "fed calls", "edges walked")
"""Per base task; a fed call uses what an earlier call answered."""
EQUAL_TOKENS = ("sequences at equal tokens", "flows at equal tokens")


@dataclass(slots=True)
class Arm:
    """What one method made of the base tasks."""

    name: str
    plans: int = 1
    """Of each base task."""
    seconds: float = 0.0
    kept: list[Trajectory] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    """Of each kept trajectory: that of its plan and sessions."""
    base_of: dict[str, str] = field(default_factory=dict)
    """Planned task -> base task."""
    fed: Counter[str] = field(default_factory=Counter)
    """Planned task -> planned calls that use what an earlier call answered."""
    flows: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Planned task -> its dependencies, see `flows_of`."""
    sources: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    replayed: int = 0

    def flow_of(self, trajectory: Trajectory) -> tuple[str, ...]:
        """The dependencies of a kept trajectory's plan."""
        return self.flows.get(trajectory.task_id, ())

    def by_base(self, bases: Sequence[Task], value: Any) -> list[float]:
        """`value` summed over the kept trajectories of each base task, per plan; 0 where there is none."""
        found: Counter[str] = Counter()
        for trajectory in self.kept:
            base = self.base_of.get(trajectory.task_id, trajectory.task_id)
            found[base] += value(trajectory)
        return [found[base.task_id] / self.plans for base in bases]


def names_of(trajectory: Trajectory) -> tuple[str, ...]:
    """The tools of the calls that worked, in order."""
    results = (turn.result for turn in trajectory.turns if turn.result is not None)
    return tuple(result.name for result in results if result.status is ToolStatus.OK)


def flows_of(calls: Sequence[PlannedCall]) -> tuple[str, ...]:
    """Which tool's answer gave which argument, in order: ("flights > book.flight",)."""
    return tuple(
        f"{source.of.split('#')[0]} > {call.name}.{source.argument}"
        for call in calls
        for source in call.sources
        if source.provenance == "output"
    )


def tokens_of(trajectory: Trajectory) -> int:
    """Prompt and generated tokens."""
    return trajectory.usage.prompt_tokens + trajectory.usage.generated_tokens


async def made_by(
    name: str,
    environment: Environment,
    renderer: Renderer,
    bases: Sequence[Task],
    *,
    randomly: bool,
    plans: int,
) -> Arm:
    """One arm: its kept trajectories, and how many of them replay."""
    arm = Arm(f"{name} (random)" if randomly else name, plans=plans)
    tasks = {base.task_id: base for base in bases}
    started = time.perf_counter()
    for seed in range(plans):
        synthesizer = _synthesizer(name, environment, renderer, seed=seed, randomly=randomly)
        async for record in synthesizer.synthesize(bases):
            if isinstance(record, Task):
                tasks[record.task_id] = record
                arm.base_of[record.task_id] = record.parents[0]
            elif isinstance(record, Verdict):
                if not record.keep and "/" in record.trajectory_id:
                    arm.reasons[record.reason] += 1
            elif isinstance(record, Trajectory) and record.success:
                arm.kept.append(record)
                arm.seeds.append(seed)
    arm.seconds = time.perf_counter() - started
    for trajectory, seed in zip(arm.kept, arm.seeds, strict=True):
        task = tasks[trajectory.task_id]
        arm.replayed += await replays(environment, task, trajectory, seed=seed)
        if task.parents:
            turns = read_blueprint(task).turns
            calls = [call for turn in turns for call in turn.calls]
            arm.sources.update(source.provenance for call in calls for source in call.sources)
            arm.fed[task.task_id] = sum(any(s.provenance == "output" for s in call.sources) for call in calls)
            arm.flows[task.task_id] = flows_of(calls)
    return arm


def _synthesizer(
    name: str, environment: Environment, renderer: Renderer, *, seed: int, randomly: bool
) -> Synthesizer:
    if name == "demonstration":
        return Demonstration(environment=environment, renderer=renderer, seed=seed)
    made: Synthesizer = load_synthesizer(name)(
        environment=environment,
        engine=cast(Engine, None),
        renderer=renderer,
        seed=seed,
        random_choice=randomly,
        **ALONE.get(name, {}),
    )
    return made


async def replays(environment: Environment, task: Task, trajectory: Trajectory, *, seed: int = 0) -> bool:
    """Whether gold, in a fresh session, sees what the trajectory shows and succeeds."""
    again = await play(environment, task, environment.gold(task), seed=seed)
    seen = [turn.result.text for turn in trajectory.turns if turn.result is not None]
    return bool(again.success) and seen == [
        turn.result.text for turn in again.turns if turn.result is not None
    ]


def row_of(arm: Arm, bases: Sequence[Task], graph: SignatureGraph) -> dict[str, Any]:
    """The figures of one arm."""
    kept = len(arm.kept)
    given = sum(arm.sources.values())
    return {
        "arm": arm.name,
        "yield": sum(arm.by_base(bases, lambda _: 1)) / len(bases),
        "replayed": f"{arm.replayed}/{kept}",
        "calls": sum(len(names_of(each)) for each in arm.kept) / max(1, kept),
        "user turns": sum(sum(t.role == "user" for t in each.turns) for each in arm.kept) / max(1, kept),
        "sequences": len({names_of(each) for each in arm.kept}),
        "edges": graph.coverage([names_of(each) for each in arm.kept]),
        "from outputs": arm.sources["output"] / given if given else None,
        "tokens": sum(map(tokens_of, arm.kept)),
        "given up": dict(arm.reasons.most_common()),
        "seconds": round(arm.seconds, 1),
    }


def at_equal_tokens(arm: Arm, budget: int, shown: Callable[[Trajectory], tuple[str, ...]]) -> int:
    """Distinct values of `shown`, but (), within `budget` tokens, in a fixed random order."""
    order = random.Random("methods/equal_tokens").sample(arm.kept, len(arm.kept))
    spent, found = 0, set()
    for trajectory in order:
        spent += tokens_of(trajectory)
        if spent > budget:
            break
        found.add(shown(trajectory))
    return len(found - {()})


def compared(plain: Arm, other: Arm, bases: Sequence[Task], graph: SignatureGraph) -> dict[str, Any]:
    """The method minus its ablation, paired by base task, with 95 % intervals."""

    def value(arm: Arm, trajectory: Trajectory, label: str) -> float:
        names = names_of(trajectory)
        known = [pair for pair in pairwise(names) if set(pair) <= set(graph.signatures)]
        counts = {
            "yield": 1,
            "calls": len(names),
            "fed calls": arm.fed[trajectory.task_id],
            "edges walked": sum(graph.edge(*pair) is not None for pair in known),
        }
        return float(counts[label])

    budget = min(sum(map(tokens_of, arm.kept)) for arm in (plain, other))
    found: dict[str, Any] = {"method": plain.name}
    for label in MEASURES:
        scores = [arm.by_base(bases, partial(value, arm, label=label)) for arm in (other, plain)]
        result = paired_bootstrap(*scores, clusters=None, num_samples=2_000)
        found[label] = [round(number, 3) for number in (result.difference, result.low, result.high)]
    both = (plain, other)
    counts = [Counter(arm.seeds) for arm in both]
    found["by plan"] = [
        round((counts[0][seed] - counts[1][seed]) / len(bases), 3) for seed in range(plain.plans)
    ]
    found["sequences at equal tokens"] = [at_equal_tokens(arm, budget, names_of) for arm in both]
    found["flows at equal tokens"] = [at_equal_tokens(arm, budget, arm.flow_of) for arm in both]
    return found


def jaccard(arms: Sequence[Arm]) -> list[tuple[str, str, float]]:
    """Overlap of the sets of tool sequences, pair by pair."""
    sets = {arm.name: {names_of(each) for each in arm.kept} for arm in arms}
    return [(a, b, len(sets[a] & sets[b]) / max(1, len(sets[a] | sets[b]))) for a, b in combinations(sets, 2)]


async def measure(world: str, num_tasks: int, model: str, *, plans: int = 1) -> dict[str, Any]:
    """All arms on one world."""
    environment = load_environment(world)
    renderer = load_renderer(resolve_model(model))
    bases = list(islice(environment.tasks(environment.splits[0]), num_tasks))
    knowledge = await learn(environment, observed=OBSERVED)
    arms = [await made_by("demonstration", environment, renderer, bases, randomly=False, plans=1)]
    for name in METHODS:
        for each in (False, True):
            arms.append(await made_by(name, environment, renderer, bases, randomly=each, plans=plans))
    graph = await whole_graph(environment, bases, knowledge)
    pairs = [(arms[place], arms[place + 1]) for place in range(1, len(arms), 2)]
    return {
        "world": world,
        "tasks": len(bases),
        "plans": plans,
        "graph edges": len(graph.edges),
        "arms": [row_of(arm, bases, graph) for arm in arms],
        "differences": [compared(plain, other, bases, graph) for plain, other in pairs],
        "overlap": jaccard([arms[0], *(plain for plain, _ in pairs)]),
    }


async def whole_graph(environment: Environment, bases: Sequence[Task], knowledge: Any) -> SignatureGraph:
    """The graph of all tools that the base tasks' worlds have."""
    tools = {}
    for base in bases:
        session = await environment.open(base.model_copy(update={"tools": None}))
        tools.update({tool.name: tool for tool in session.tools})
        await session.close()
    graph: SignatureGraph = await knowledge.graph_of(tuple(tools.values()))
    return graph


def show(found: dict[str, Any]) -> None:
    """The tables in Markdown."""
    plans = f"{found['plans']} plans each, " if found["plans"] > 1 else ""
    print(f"{found['world']}: {found['tasks']} base tasks, {plans}graph of {found['graph edges']} edges\n")
    print("| arm | yield | replayed | calls | user turns | sequences | edges | from outputs | tokens |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for row in found["arms"]:
        outputs = "-" if row["from outputs"] is None else f"{row['from outputs']:.0%}"
        print(
            f"| {row['arm']} | {row['yield']:.0%} | {row['replayed']} | {row['calls']:.1f} | "
            f"{row['user turns']:.1f} | {row['sequences']} | {row['edges']:.0%} | {outputs} | "
            f"{row['tokens']:,} |"
        )
    print("\n| method minus random | " + " | ".join((*MEASURES, *EQUAL_TOKENS)) + " |")
    print("| --- |" + " --- |" * (len(MEASURES) + len(EQUAL_TOKENS)))
    for row in found["differences"]:
        cells = ["{:+.2f} [{:+.2f}, {:+.2f}]".format(*row[label]) for label in MEASURES]
        cells += [" against ".join(map(str, row[label])) for label in EQUAL_TOKENS]
        print(f"| {row['method']} | {' | '.join(cells)} |")
    if found["plans"] > 1:
        print("\nYield minus random, by seed (one draw of what is random each):")
        for row in found["differences"]:
            print(f"{row['method']} " + ", ".join(f"{number:+.2f}" for number in row["by plan"]))
    print("\nJaccard: " + ", ".join(f"{a} / {b} {share:.2f}" for a, b, share in found["overlap"]))
    for row in found["arms"]:
        if row["given up"]:
            print(f"given up, {row['arm']}: {row['given up']}")


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world", default="travel_desk")
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--plans", type=int, default=1, help="plans of each base task, a seed each")
    parser.add_argument("--model", default="smollm2", help="whose tokenizer counts the tokens")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.tasks < 1 or arguments.plans < 1:
        parser.error(f"--tasks and --plans are at least 1, got {arguments.tasks} and {arguments.plans}")
    found = asyncio.run(measure(arguments.world, arguments.tasks, arguments.model, plans=arguments.plans))
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        show(found)


if __name__ == "__main__":
    main()
