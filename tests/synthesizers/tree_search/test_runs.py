"""Tree search as a stage of a run: through the command line, resumable, better than plain rollouts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from data import canonical
from data.store import Store
from data.trajectories import Origin, Trajectory
from tests.flows.lab import digests, recipe, trajsmith, write_recipe
from tests.synthesizers.tree_search.test_search import num_kept
from tests.tiny import make_tiny_tokenizer

SEARCH = {"candidates": 3, "width": 2, "scores": {"gold_match": 1.0, "outcome": 1.0, "errors": 0.2}}


def the_recipe(folder: Path, name: str = "recipe.yaml", **options: Any) -> Path:
    model = make_tiny_tokenizer(folder / "model")
    value = recipe(model, environment={"name": "travel_desk"})
    value["policy"]["mistakes"] = 0.4
    value["synth"] = {
        "plain": {"synthesizer": "rejection_sampling", "tasks": 4, "options": {"k": 4}},
        "searched": {
            "synthesizer": "tree_search",
            "tasks": 4,
            "options": {"k": 4, "search": SEARCH | options},
        },
    }
    return write_recipe(folder, value, name)


def by_search(rows: list[Trajectory]) -> list[list[Trajectory]]:
    """The trajectories of each search: two of a group in a row."""
    ordered = sorted(rows, key=lambda row: (row.group_id, row.rollout_index))
    return [ordered[start : start + 2] for start in range(0, len(ordered), 2)]


def test_a_run_repeats_and_finds_more_than_it_would_by_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = the_recipe(tmp_path)
    assert trajsmith("synth", path, "--runs", "first").code == 0
    before = digests(Path("first/small"))
    assert trajsmith("synth", path, "--runs", "first").code == 0
    assert digests(Path("first/small")) == before
    assert trajsmith("synth", path, "--runs", "second").code == 0
    assert digests(Path("second/small")) == before
    with Store.open(Path("first/small")) as store:
        rows, verdicts = list(store.trajectories()), list(store.verdicts())
    solved = Counter(row.synthesizer for row in rows if row.success)
    assert Counter(row.synthesizer for row in rows) == {"rejection_sampling": 16, "tree_search": 16}
    assert solved["tree_search"] > solved["rejection_sampling"] > 0
    found = [row for row in rows if row.synthesizer == "tree_search"]
    assert {segment.origin for row in found for segment in row.segments} == {Origin.SAMPLED}
    dropped = sum(len(canonical.loads(verdict.detail).get("token_ids", [])) for verdict in verdicts)
    kept = sum(num_kept(search) for search in by_search(found))
    whole = sum(segment.num_generated for row in found for segment in row.segments)
    assert dropped + kept <= sum(row.usage.generated_tokens for row in found) <= dropped + whole


def test_a_bad_option_is_told_of_before_anything_is_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for options, said in (({"breadth": 2}, "breadth"), ({"width": 9}, "could not fill the beam")):
        done = trajsmith("synth", the_recipe(tmp_path, **options), "searched", "--runs", "bad")
        assert done.code != 0 and said in done.err + done.out
