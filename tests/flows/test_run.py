"""Opening a run again: what may not have changed since it was begun."""

from __future__ import annotations

from pathlib import Path

import pytest

from data.store import Store
from tests.flows.lab import digests, recipe, trajsmith, write_recipe

TASKS = Path(__file__).parents[2] / "examples/own_tools/mcp_desk.yaml"


def test_a_changed_environment_does_not_add_to_a_run_of_the_old_one(
    tokenizer: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_recipe(workplace, recipe(tokenizer))
    assert trajsmith("synth", path, "demonstrations").code == 0
    before = digests(Path("runs/small"))
    monkeypatch.setattr("pipeline.environments.toolkit.source_digest", lambda module: "mended")
    for stage in ("demonstrations", "rollouts"):
        done = trajsmith("synth", path, stage)
        assert done.code == 2 and "was begun with counter of version" in done.err, done
    assert digests(Path("runs/small")) == before
    assert trajsmith("synth", path, "--runs", "fresh").code == 0


def test_an_mcp_server_gives_the_same_content_twice(tokenizer: Path, workplace: Path) -> None:
    """It has ids, clocks and a memory of its own; none of it reaches the record."""
    options = {
        "name": "ticket_desk",
        "server": "examples.own_tools.mcp_server:build",
        "tasks": str(TASKS),
        "hidden": ["closed_tickets"],
    }
    value = recipe(tokenizer, environment={"name": "mcp", "options": options})
    value["synth"] = {
        "demonstrations": {"synthesizer": "demonstration", "tasks": 2},
        "rollouts": {"synthesizer": "rejection_sampling", "tasks": 2, "options": {"k": 2}},
    }
    path = write_recipe(workplace, value)
    for runs in ("first", "second"):
        done = trajsmith("synth", path, "--runs", runs)
        assert done.code == 0, done
    first, second = digests(Path("first/small")), digests(Path("second/small"))
    assert first == second
    with Store.open(Path("first/small")) as store:
        found = [trajectory.success for trajectory in store.trajectories()]
    assert len(found) == 6 and found.count(True) >= 2
