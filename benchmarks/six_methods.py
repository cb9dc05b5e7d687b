"""Synthesizers of one finished run side by side, on three axes: diversity, quality, cost.

    trajsmith synth examples/six-methods.yaml && python -m benchmarks.six_methods runs/six-methods [--json]

All of it is computed from the run. *Diversity*, at equal tokens: kept trajectories are taken in a fixed
random order until they hold as many prompt and generated tokens as the smallest method has; counted are
distinct tool sequences, and the share of distinct word trigrams among all that users say (distinct-n, Li et
al. 2016, with n = 3). *Quality*: verified share of the trajectories with a reward; kept trajectories whose
calls, made again in a fresh session, are answered the same and succeed; calls; arguments that come from
earlier output. *Cost* per kept trajectory: tokens sampled and asked of chats, engine calls (what a program
does costs none). Not covered: what a learner makes of the data (`trajsmith prove --of methods`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.methods import names_of, tokens_of
from data.messages import Role, ToolStatus, Turn
from data.store import Store
from data.trajectories import Trajectory
from flows.stages.recipe import Recipe
from flows.stages.run import environment_of
from flows.stages.show import recipe_of
from pipeline.environments.base import Environment
from pipeline.environments.play import play
from synthesizers.survey import SynthesizerSurvey, survey

METHODS = ("rejection_sampling", "director_actor", "magnet", "looptool", "hardgen", "hindsight")
NAMES = {
    "kept": "kept (verified)",
    "sequences": "diversity: tool sequences at equal tokens",
    "trigrams": "diversity: distinct-3 of user words at equal tokens",
    "edges": "diversity: edge coverage",
    "verified": "quality: verified share",
    "replayed": "quality: re-executed and verified again",
    "calls": "quality: calls of a kept trajectory",
    "outputs": "quality: arguments from earlier output",
    "sampled": "cost: tokens sampled in rollouts per kept",
    "chats": "cost: tokens of chats and probes, prompts too, per kept",
    "engine_calls": "cost: engine calls in rollouts per kept",
}


class Again:
    """What the assistant of a stored trajectory did, once more; calls that reached no tool are left out."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        said = (turn for turn in turns if turn.role is Role.ASSISTANT)
        heard = ((turn, tuple(call for call in turn.tool_calls if call.ok)) for turn in said)
        self._said = iter(
            [
                turn.model_copy(update={"tool_calls": calls})
                for turn, calls in heard
                if calls or not turn.tool_calls
            ]
        )

    def next_turn(self, turns: Sequence[Turn]) -> Turn | None:
        """The next stored assistant turn, whatever was answered."""
        return next(self._said, None)


async def replays(environment: Environment, store: Store, trajectory: Trajectory) -> bool:
    """Whether its calls, made again in a fresh session, are answered the same and succeed."""
    task = store.get("tasks", trajectory.task_id)
    again = await play(environment, task, Again(trajectory.turns))  # type: ignore[arg-type]
    return bool(again.success) and results_of(again) == results_of(trajectory)


def results_of(trajectory: Trajectory) -> list[str]:
    """What the calls that worked were answered, in order."""
    results = (turn.result for turn in trajectory.turns if turn.result is not None)
    return [result.text for result in results if result.status is ToolStatus.OK]


def within(kept: Sequence[Trajectory], budget: int) -> list[Trajectory]:
    """Kept trajectories of at most `budget` tokens together, in a fixed random order."""
    found, spent = [], 0
    for trajectory in random.Random("six_methods").sample(kept, len(kept)):
        spent += tokens_of(trajectory)
        if spent > budget:
            break
        found.append(trajectory)
    return found


def distinct_trigrams(rows: Iterable[Trajectory]) -> float:
    """Distinct word trigrams of user turns as a share of all; 0 where there is none."""
    grams = []
    for row in rows:
        for turn in row.turns:
            words = turn.text.lower().split() if turn.role is Role.USER else []
            grams += list(zip(words, words[1:], words[2:], strict=False))
    return len(set(grams)) / len(grams) if grams else 0.0


def row_of(surveyed: SynthesizerSurvey, equal: Sequence[Trajectory], replayed: int) -> dict[str, Any]:
    """The figures of one method."""
    return {
        "method": surveyed.name,
        "kept": surveyed.kept,
        "sequences": len({names_of(row) for row in equal}),
        "trigrams": round(distinct_trigrams(equal), 3),
        "edges": surveyed.edge_coverage,
        "verified": surveyed.kept_share,
        "replayed": f"{replayed}/{surveyed.kept}",
        "calls": surveyed.mean_calls,
        "outputs": surveyed.provenance_output,
        "sampled": surveyed.cost.sampled_tokens / surveyed.kept,
        "chats": surveyed.cost.chat_tokens / surveyed.kept,
        "engine_calls": surveyed.engine_calls_per_kept,
    }


async def measure(root: Path) -> list[dict[str, Any]]:
    """One row per method that kept anything."""
    with Store.open(root) as store:
        environment = environment_of(Recipe.model_validate(recipe_of(store)), root=root)
        surveyed = {row.name: row for row in survey([store]).synthesizers}
        kept: dict[str, list[Trajectory]] = defaultdict(list)
        for row in store.trajectories():
            if row.success and row.synthesizer in METHODS:
                kept[row.synthesizer].append(row)
        budget = min(sum(map(tokens_of, rows)) for rows in kept.values())
        found = []
        for name in (name for name in METHODS if kept[name]):
            replayed = sum([await replays(environment, store, row) for row in kept[name]])
            found.append(row_of(surveyed[name], within(kept[name], budget), replayed))
        print(f"{environment.name}, equal tokens: {budget:,}\n")
    return found


def show(rows: Sequence[dict[str, Any]]) -> None:
    """The table in Markdown, a column per method."""
    print("| | " + " | ".join(row["method"] for row in rows) + " |")
    print("| --- |" + " ---: |" * len(rows))
    for key, label in NAMES.items():
        print(f"| {label} | " + " | ".join(_cell(key, row[key]) for row in rows) + " |")


def _cell(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if key in ("edges", "verified", "outputs"):
        return f"{value:.0%}"
    return f"{value:,.1f}" if isinstance(value, float) and key != "trigrams" else str(value)


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = asyncio.run(measure(arguments.run))
    if arguments.json:
        print(json.dumps(rows, indent=1))
    else:
        show(rows)


if __name__ == "__main__":
    main()
