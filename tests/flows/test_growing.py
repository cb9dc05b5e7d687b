"""A run that is there can be made larger: only what is missing is made, and it ends as if begun so."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from data.store import Store
from tests.flows.lab import digests, recipe, trajsmith, write_recipe

MORE = {"synth.rollouts.tasks": 7, "synth.rollouts.options": {"k": 3}, "synth.demonstrations.tasks": 5}


def test_more_tasks_and_a_larger_k_go_on_with_the_run(tokenizer: Path, workplace: Path) -> None:
    assert trajsmith("synth", write_recipe(workplace, recipe(tokenizer))).code == 0
    with Store.open(Path("runs/small")) as store:
        before = store.ids("trajectories")
    path = write_recipe(workplace, recipe(tokenizer, **MORE))
    grown = trajsmith("synth", path)
    assert grown.code == 0, grown.err
    with Store.open(Path("runs/small")) as store:
        after = store.ids("trajectories")
    assert before < after and len(after) == 5 + 7 * 3
    assert trajsmith("synth", path, "--runs", "fresh").code == 0
    assert digests(Path("runs/small")) == digests(Path("fresh/small"))


def test_an_evaluation_grows_by_rollouts(tokenizer: Path, workplace: Path) -> None:
    asked = {"evaluate.temperature": 1.0, "evaluate.tasks": 3, "evaluate.rollouts": 2}
    folder = "eval/scripted-heldout-t1"
    for rollouts in (2, 4):
        path = write_recipe(workplace, recipe(tokenizer, **asked | {"evaluate.rollouts": rollouts}))
        done = trajsmith("eval", path, "--json")
        assert done.code == 0, done.err
        assert json.loads(done.out)["success"]["trials"] == 3 * rollouts
    assert trajsmith("eval", path, "--runs", "fresh").code == 0
    assert digests(Path("runs/small") / folder) == digests(Path("fresh/small") / folder)
    fewer = trajsmith("eval", write_recipe(workplace, recipe(tokenizer, **asked)))
    assert fewer.code == 2 and "evaluate.rollouts: 4 -> 2" in fewer.err


def test_what_is_refused_does_not_become_the_runs_recipe(tokenizer: Path, workplace: Path) -> None:
    good = write_recipe(workplace, recipe(tokenizer))
    assert trajsmith("synth", good).code == 0
    stored = Path("runs/small/recipe.yaml").read_bytes()
    copies = write_recipe(workplace, recipe(tokenizer, **{"evaluate.rollouts": 4}), "copies.yaml")
    refused = trajsmith("eval", copies)
    assert refused.code == 2 and "rollouts 4 at temperature 0 repeat one episode" in refused.err
    assert Path("runs/small/recipe.yaml").read_bytes() == stored
    assert trajsmith("eval", good).code == 0


def test_a_run_of_an_older_version_lacks_keys_and_goes_on_at_their_defaults(
    tokenizer: Path, workplace: Path
) -> None:
    path = write_recipe(workplace, recipe(tokenizer))
    assert trajsmith("synth", path).code == 0
    stored = Path("runs/small/recipe.yaml")
    written = yaml.safe_load(stored.read_text(encoding="utf-8"))
    del written["policy"]["context_policy"], written["grpo"], written["synth"]["rollouts"]["skip"]
    written["synth"]["rollouts"]["split"] = "train"
    stored.write_text(yaml.safe_dump(written), encoding="utf-8")
    refused = trajsmith("synth", path)
    assert refused.code == 2 and "synth.rollouts.skip: (absent) -> 4" in refused.err
    assert "context_policy" not in refused.err and "grpo" not in refused.err
    written["synth"]["rollouts"]["skip"] = 4
    del written["synth"]["rollouts"]["split"]
    stored.write_text(yaml.safe_dump(written), encoding="utf-8")
    assert trajsmith("synth", path).code == 0
