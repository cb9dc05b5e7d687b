"""The survey of a run: two scripted syntheses through the command, and numbers that are known beforehand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from data.messages import ToolStatus, user
from data.store import Store
from data.tasks import Task
from data.trajectories import Trajectory, Usage
from data.verdicts import Verdict
from pipeline.chat.core import LEDGER, ChatLedger
from pipeline.environments.blueprint import Blueprint, PlannedCall, PlannedTurn, Source, blueprint_task
from synthesizers.role_chats import CHATS
from synthesizers.survey import Survey, SynthesizerSurvey, survey, survey_tables, was_planned
from tests.flows.lab import recipe, trajsmith, write_recipe
from tests.samples import call, trajectory
from tests.synthesizers.astra import chain_chats
from tests.tiny import make_tiny_tokenizer

SEARCH, BOOK = call("search", city="Rome"), call("book", offer=1)


def planned(name: str, number: int, *, by: str = "template") -> Task:
    """A task planned from base task `base<number>`: search, then in a second user turn book."""
    base = Task(environment="desk", split="train", template=f"t{number}", prompt=(), verifier="v/1")
    sources = (Source(argument="city", provenance="user"),)
    found = (Source(argument="offer", provenance="output", of="search#0:id"),)
    calls = [
        PlannedCall(name=made.name, arguments=made.arguments, result="", sources=of)
        for made, of in ((SEARCH, sources), (BOOK, found))
    ]
    down = calls[1].model_copy(update={"status": ToolStatus.TOOL_ERROR})
    turns = (
        PlannedTurn(text="Find one.", calls=(calls[0],), reply="Found.", state="s0"),
        PlannedTurn(text="Take it.", calls=(down, calls[1]), reply="Done.", state="s1", text_by=by),
    )
    task = blueprint_task(Blueprint(base=base, turns=turns), synthesizer=name, template="plan")
    return task.model_copy(update={"parents": (f"base{number}",)})


def taught(task: Task, name: str, *, book: bool = True, reward: float = 1.0, **usage: int) -> Trajectory:
    """Two user turns; without `book` the second one searches again."""
    made = trajectory(
        *(SEARCH, "Found."), *((BOOK, "Done.") if book else (SEARCH, "No.")), task=task.task_id, reward=reward
    )
    turns = (*made.turns[:5], user("Take it."), *made.turns[5:])
    changes = {
        "turns": turns,
        "segments": (),
        "synthesizer": name,
        "trajectory_id": f"{name}-{task.task_id}",
        "usage": Usage(**usage),
    }
    return made.model_copy(update=changes)


def given_up(name: str, base: str, reason: str) -> Verdict:
    return Verdict(trajectory_id=f"{base}/0", filter=name, keep=False, reason=reason)


def filled(root: Path, records: Iterable[Any]) -> Path:
    with Store.create_or_open(root, {"name": root.name}) as store:
        for record in records:
            store.append(record)
    return root


def surveyed(*roots: Path) -> Survey:
    stores = [Store.open(root) for root in roots]
    try:
        return survey(stores)
    finally:
        for store in stores:
            store.close()


def row(found: Survey, name: str) -> SynthesizerSurvey:
    return next(one for one in found.synthesizers if one.name == name)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three plans of `magnet` (one given up, one failed), and two demonstrations."""
    one, two = planned("magnet", 1, by="writer"), planned("magnet", 2)
    base = Task(environment="desk", split="train", template="x", prompt=(), verifier="v/1")
    shown = trajectory(SEARCH, (BOOK, ToolStatus.TOOL_ERROR), BOOK, "Done.", task=base.task_id)
    records = [
        *(base, one, two),
        taught(one, "magnet", generated_tokens=100, engine_calls=4),
        taught(two, "magnet", book=False, reward=0.0, generated_tokens=50, engine_calls=3),
        given_up("magnet", "base3", "stuck"),
        Verdict(trajectory_id="magnet-x", filter="astra_score", keep=False, reason="judge_failed"),
        shown.model_copy(update={"synthesizer": "demonstration", "trajectory_id": "d1"}),
        trajectory(BOOK, "Done.", task="other", synthesizer="demonstration", identifier="d2"),
        trajectory(BOOK, task="other", synthesizer="demonstration", identifier="d3", reward=None),
    ]
    root = filled(tmp_path / "run", records)
    ledger = ChatLedger(root / CHATS / "magnet" / LEDGER)
    for tokens in (70, 30):
        ledger.note("writer", tokens)
    return root


def test_every_number_of_a_known_run(run: Path) -> None:
    found = surveyed(run)
    magnet, shown = row(found, "magnet"), row(found, "demonstration")
    assert [one.name for one in found.synthesizers] == ["demonstration", "magnet"]
    assert (magnet.base_tasks, magnet.plans, magnet.made_tasks) == (3, 3, 2)
    assert [(one.reason, one.count) for one in magnet.given_up] == [("stuck", 1)]
    assert (magnet.trajectories, magnet.kept, magnet.failures) == (2, 1, 0)
    assert magnet.plan_yield == pytest.approx(1 / 3) and magnet.kept_share == 0.5
    assert magnet.cost.model_dump() == {
        "sampled_tokens": 150,
        "engine_calls": 7,
        "chat_calls": 2,
        "chat_tokens": 100,
    }
    assert (magnet.tokens_per_kept, magnet.engine_calls_per_kept, magnet.chat_calls_per_kept) == (250, 7, 2)
    assert (magnet.mean_calls, magnet.mean_user_turns, magnet.sequences) == (2, 2, 1)
    assert (magnet.turns_differing, magnet.turns_compared) == (1, 4)
    assert (magnet.provenance_user, magnet.provenance_output, magnet.provenance_default) == (0.5, 0.5, 0)
    assert magnet.text_by_program == 0.75 and magnet.replans == 0
    assert (shown.plans, shown.made_tasks, shown.kept, shown.failures) == (2, None, 2, 1)
    assert (shown.sequences, shown.mean_calls, shown.cost.chat_tokens) == (2, 2, 0)
    assert shown.turns_compared == 0 and shown.text_by_program is None
    [overlap] = found.overlaps
    assert (overlap.first, overlap.second, overlap.jaccard) == ("demonstration", "magnet", 0.5)


def test_several_runs_stand_side_by_side(run: Path, tmp_path: Path) -> None:
    task = planned("magnet", 1)
    other = filled(tmp_path / "random", [task, taught(task, "magnet", book=True)])
    found = surveyed(run, other)
    names = [one.name for one in found.synthesizers]
    assert names == ["demonstration (run)", "magnet (random)", "magnet (run)"]
    assert row(found, "magnet (random)").plan_yield == 1.0
    assert row(found, "magnet (random)").cost.chat_tokens == 0
    assert row(found, "magnet (run)").cost.chat_tokens == 100
    assert {one.jaccard for one in found.overlaps} == {0.5, 1.0}


def test_chats_are_charged_to_the_planner_that_asked_them(run: Path) -> None:
    with Store.create_or_open(run, {"name": "run"}) as store:
        store.append(given_up("director_actor", "base9", "no_outline"))
    found = surveyed(run)
    assert row(found, "magnet").cost.chat_tokens == 100
    lonely = row(found, "director_actor")
    assert lonely.cost.chat_tokens == 0
    assert (lonely.plans, lonely.plan_yield, lonely.tokens_per_kept) == (1, 0.0, None)


def test_tables_hold_what_the_survey_says(run: Path) -> None:
    numbers, reasons, overlaps = survey_tables(surveyed(run))
    assert numbers.columns == ("", "demonstration", "magnet")
    cells = {line[0]: line[1:] for line in numbers.rows}
    assert cells["yield: plans with a kept trajectory"] == ("100.0%", "33.3%")
    assert cells["turns where plan and actor differed"] == ("-", "1/4")
    assert cells["tokens per kept (sampled + chats)"] == ("0.0", "250.0")
    assert reasons.rows == (("magnet", "stuck", "1"),)
    assert overlaps.rows == (("demonstration", "magnet", "0.500"),)
    assert survey_tables(Survey(synthesizers=(), overlaps=(), graph_edges=0)) == ()


def test_two_syntheses_through_the_command_and_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer = make_tiny_tokenizer(tmp_path / "tiny")
    options = {"chats": {"task_scorer": f"{chain_chats.__name__}:shared"}, "observed": 24}
    stages = {
        "demonstrations": {"synthesizer": "demonstration", "tasks": 6},
        "chains": {"synthesizer": "astra_chains", "tasks": 6, "options": options},
    }
    path = write_recipe(tmp_path, recipe(tokenizer, environment={"name": "travel_desk"}, synth=stages))
    assert trajsmith("synth", path).code == 0
    root = tmp_path / "runs" / "small"
    assert trajsmith("report", root).code == 0
    written = Survey.model_validate_json((root / "report" / "survey.json").read_text())
    assert written == surveyed(root)
    chains, shown = row(written, "astra_chains"), row(written, "demonstration")
    assert shown.kept == 6 and chains.plans == 6 and chains.kept == chains.made_tasks
    assert chains.edge_coverage and chains.turns_compared and not chains.turns_differing
    assert chains.cost.chat_calls > 0 and chains.text_by_program == 1.0
    page = (root / "report" / "index.html").read_text()
    assert "distinct tool sequences" in page and "Synthesis" in page
    titles = [table["title"] for table in json.loads((root / "report" / "report.json").read_text())["tables"]]
    assert titles[0] == "Synthesis"


def test_a_run_that_planned_nothing_is_not_surveyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_recipe(tmp_path, recipe(make_tiny_tokenizer(tmp_path / "tiny")))
    assert trajsmith("synth", path).code == 0
    root = tmp_path / "runs" / "small"
    assert trajsmith("report", root).code == 0
    assert not (root / "report" / "survey.json").exists()
    tables = json.loads((root / "report" / "report.json").read_text())["tables"]
    assert "Synthesis" not in [table["title"] for table in tables]
    with Store.create_or_open(tmp_path / "gave_up", {"name": "gave_up"}) as store:
        assert not was_planned(store)
        store.append(given_up("director_actor", "base9", "no_outline"))
        assert was_planned(store)
