"""Hindsight and memories in runs: recipes, resumption, growth, evaluations that are shown a memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data.store import Store
from pipeline.memory.showing import HEADING
from synthesizers.hindsight.synthesizer import GOALS
from synthesizers.survey import survey, survey_tables
from tests.flows.lab import digests, recipe, trajsmith, write_recipe
from tests.tiny import make_tiny_tokenizer

RUN = Path("runs/small")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_tokenizer(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def hindsight(tokenizer: Path, *, k: int = 2, **options: Any) -> dict[str, Any]:
    """Rollouts of a policy that errs in two turns of five, and what they reached."""
    synth = {
        "episodes": {"synthesizer": "rejection_sampling", "tasks": 4, "options": {"k": k}},
        "reached": {
            "synthesizer": "hindsight",
            "tasks": 5,
            "options": {"memory": ["echo", "awm"], **options},
        },
    }
    return recipe(tokenizer, **{"environment.name": "travel_desk", "policy.mistakes": 0.4, "synth": synth})


def test_a_run_ends_the_same_however_often_it_is_called_and_however_it_grew(
    tokenizer: Path, workplace: Path
) -> None:
    path = write_recipe(workplace, hindsight(tokenizer))
    assert trajsmith("synth", path).code == 0
    once = digests(RUN)
    again = trajsmith("synth", path)
    assert "synth reached: done before" in again.out + again.err and digests(RUN) == once
    path = write_recipe(workplace, hindsight(tokenizer, k=3))
    grown = trajsmith("synth", path)
    assert grown.code == 0 and "synth reached: done before" not in grown.out + grown.err
    assert trajsmith("synth", path, "--runs", "fresh").code == 0
    assert digests(RUN) == digests(Path("fresh/small")) != once
    for kind in ("echo", "awm"):
        memory = f"memory/{kind}.json"
        assert (RUN / memory).read_bytes() == (Path("fresh/small") / memory).read_bytes()


def test_the_survey_says_which_share_of_failures_became_data(tokenizer: Path, workplace: Path) -> None:
    path = write_recipe(workplace, hindsight(tokenizer, k=4))
    done = trajsmith("synth", path)
    assert done.code == 0
    assert f" of at most {4 * 4 * GOALS} episodes, " in done.err, "goals of 4 x 4 episodes, not tasks"
    with Store.open(RUN) as store:
        found, rows = survey([store]), list(store.trajectories())
    row = next(row for row in found.synthesizers if row.name == "hindsight")
    failed = [
        row.trajectory_id for row in rows if row.synthesizer == "rejection_sampling" and not row.success
    ]
    made = [row for row in rows if row.synthesizer == "hindsight"]
    assert row.failures_read == len(failed) > row.failures_turned > 0
    assert row.kept == len(made) > 0 and all(row.success for row in made)
    assert {parent for row in made for parent in row.parents if row.labels[1] == "from_failure"} <= set(
        failed
    )
    share = row.failures_turned / row.failures_read
    told = {line[0]: line[1:] for line in survey_tables(found)[0].rows}
    shown = f"{row.failures_turned}/{row.failures_read} ({share:.1%})"
    assert told["failures turned into verified data"] == (shown, "-")


def test_hindsight_before_its_source_says_what_to_run(tokenizer: Path, workplace: Path) -> None:
    path = write_recipe(workplace, hindsight(tokenizer))
    early = trajsmith("synth", path, "reached")
    assert early.code == 2 and "holds no finished episode of rejection_sampling" in early.err
    value = hindsight(tokenizer, of="rejection") | {"name": "misspelt"}
    assert trajsmith("synth", write_recipe(workplace, value), "episodes").code == 0
    wrong = trajsmith("synth", write_recipe(workplace, value), "reached")
    assert wrong.code == 2 and "it has episodes of: rejection_sampling. Run" in wrong.err


def test_what_a_later_stage_refuses_is_told_before_the_first_one_works(
    tokenizer: Path, workplace: Path
) -> None:
    refused = trajsmith("synth", write_recipe(workplace, hindsight(tokenizer, goals=0)))
    assert refused.code == 2 and "goals must be at least 1, got 0" in refused.err
    assert "synth episodes" not in refused.err and not (RUN / "manifests").exists()


def test_an_evaluation_is_shown_a_memory_and_says_so(tokenizer: Path, workplace: Path) -> None:
    value = hindsight(tokenizer)
    path = write_recipe(workplace, value)
    assert trajsmith("synth", path).code == 0
    assert trajsmith("eval", path, "--name", "plain").code == 0
    value["evaluate"]["memory"] = {"path": str(RUN / "memory"), "kind": "echo", "max_entries": 2}
    value["name"] = "shown"
    shown = trajsmith("eval", write_recipe(workplace, value, "shown.yaml"), "--name", "remembering")
    assert shown.code == 0, shown.err
    with Store.open(RUN / "eval" / "plain-heldout-t0") as store:
        plain = {row.task_id: row for row in store.trajectories()}
    folder = Path("runs/shown/eval/remembering-heldout-t0")
    with Store.open(folder) as store:
        rows = list(store.trajectories())
    assert {row.task_id for row in rows} == set(plain), "task ids stay what they are: pairs can be compared"
    for row in rows:
        other = plain[row.task_id]
        assert row.policy.harness != other.policy.harness
        assert len(row.turns[0].text) >= len(other.turns[0].text)
    told = [row for row in rows if HEADING in row.turns[0].text]
    assert told and all(row.turns[0].text.count("\n- ") in (1, 2) for row in told)
    results = (folder / "evaluation.json").read_text()
    assert "memory echo of" in results
    value["evaluate"]["memory"]["max_entries"] = 1
    value["name"] = "shown"
    fewer = trajsmith("eval", write_recipe(workplace, value, "shown.yaml"), "--name", "remembering")
    assert fewer.code == 2 and "evaluate.memory.max_entries" in fewer.err


def test_a_policy_that_is_always_shown_a_memory(tokenizer: Path, workplace: Path) -> None:
    value = hindsight(tokenizer)
    assert trajsmith("synth", write_recipe(workplace, value)).code == 0
    value["name"], value["synth"] = (
        "later",
        {"more": {"synthesizer": "rejection_sampling", "tasks": 2, "skip": 5}},
    )
    value["policy"]["memory"] = {"path": str(RUN / "memory"), "kind": "awm"}
    path = write_recipe(workplace, value, "later.yaml")
    assert trajsmith("synth", path).code == 0
    manifest = json.loads(Path("runs/later/manifests/synth-more.json").read_text())
    assert "memory" in manifest["inputs"]
    value["policy"]["memory"]["kind"] = "reflexion"
    wrong = trajsmith("synth", write_recipe(workplace, value, "wrong.yaml"))
    assert wrong.code == 2 and "policy.memory.kind" in wrong.err
