"""HardGen without a model on three worlds: what is kept re-executes, is hard as said, is for the failures."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from data import canonical
from data.errors import ConfigError
from data.messages import Turn
from data.store import Store
from data.trajectories import Trajectory
from pipeline.chat.scripted import ScriptedChat
from pipeline.environments.agents import ListedAgent, null_agent
from pipeline.environments.blueprint import read_blueprint
from pipeline.environments.play import play
from pipeline.renderers.chatml import ChatMLRenderer
from synthesizers.hardgen.synthesizer import HardGen
from synthesizers.phrasing.wording import leaks_tool_name, mentions
from tests.flows.lab import digests, recipe, trajsmith, write_recipe
from tests.synthesizers.hardgen.lab import ENGINE, Run, run

TARGETS = {"book", "room", "cancel", "change", "upgrade"}


@pytest.fixture(scope="module")
def travel(renderer: ChatMLRenderer) -> Run:
    return run(renderer, "travel_desk", 10, step=12, targets=TARGETS, observed=48)


@pytest.fixture(scope="module")
def sql(renderer: ChatMLRenderer) -> Run:
    return run(renderer, "sql_desk", 3, targets={"query"}, observed=24)


def check(made: Run, targets: set[str]) -> None:
    """Everything that holds of all that is kept."""
    assert made.tasks and len(made.trajectories) == len(made.tasks)
    rows = {row.task_id: row for row in made.trajectories}
    for task in made.tasks:
        kept, [turn] = rows[task.task_id], read_blueprint(task).turns
        again = asyncio.run(play(made.environment, task, made.environment.gold(task), seed=7))
        assert kept.success and again.success
        assert seen(again) == seen(kept)
        assert not asyncio.run(play(made.environment, task, null_agent())).success
        names = [call.name for call in turn.calls]
        assert names[-1] in targets and 1 <= len(names) <= 8 and len(set(names)) == len(names)
        assert not any(call.mentioned for call in turn.calls[:-1])
        plan = made.plans[task.task_id]
        assert plan["chain"] == names and plan["target"] == names[-1]
        assert made.hardgen.failure_set is not None
        assert plan["failure_set"] == made.hardgen.failure_set.digest
        assert not leaks_tool_name(turn.text, [plan["macro"]["name"], *names[:-1]])
        for call in turn.calls:
            arguments = canonical.loads(call.arguments)
            for source in call.sources:
                if source.provenance == "output":
                    assert not mentions(turn.text, arguments[source.argument])
                if source.provenance == "user":
                    assert mentions(turn.text, arguments[source.argument])
        assert set(names) <= set(task.tools or ())


def seen(row: Trajectory) -> list[tuple[str, str]]:
    """Calls and answers."""
    calls = [(call.name, call.arguments) for turn in row.turns for call in turn.tool_calls]
    return calls + [(turn.result.name, turn.text) for turn in row.turns if turn.result is not None]


def test_travel_desk(travel: Run) -> None:
    check(travel, TARGETS)
    assert len(travel.tasks) >= 8
    lengths = Counter(len(read_blueprint(task).turns[0].calls) for task in travel.tasks)
    assert sum(count for length, count in lengths.items() if length > 1) >= 5


def test_two_goals_make_one_longer_request(renderer: ChatMLRenderer) -> None:
    made = run(renderer, "travel_desk", 6, step=12, targets=TARGETS, observed=48, goals=2)
    rows = {row.task_id: row for row in made.trajectories}
    joined = [task for task in made.tasks if "several_goals" in task.tags]
    assert len(joined) >= 3
    for task in joined:
        [turn] = read_blueprint(task).turns
        plan, names = made.plans[task.task_id], [call.name for call in turn.calls]
        [also] = plan["also"]
        assert plan["chain"] == names and 2 <= len(names) <= 8
        assert ". Also, " in turn.text or "? Also, " in turn.text
        asked = [call.name for call in turn.calls if call.mentioned]
        assert asked == [plan["target"], also["target"]] and set(asked) <= TARGETS
        assert not leaks_tool_name(turn.text, sorted(set(names) - set(asked)))
        again = asyncio.run(play(made.environment, task, made.environment.gold(task), seed=7))
        assert rows[task.task_id].success and again.success and seen(again) == seen(rows[task.task_id])
        assert not asyncio.run(play(made.environment, task, null_agent())).success
        ends = [place for place, call in enumerate(turn.calls) if call.mentioned]
        half = [call for call in again.turns if call.role == "assistant"][: ends[0] + 1]
        assert not asyncio.run(play(made.environment, task, ListedAgent([*half, again.turns[-1]]))).success, (
            "one goal of two is no success"
        )
    lengths = [len(plan["chain"]) for plan in made.plans.values()]
    assert sum(lengths) / len(lengths) > 2.5


def test_sql_desk(sql: Run) -> None:
    check(sql, {"query"})
    for task in sql.tasks:
        [turn] = read_blueprint(task).turns
        assert [call.name for call in turn.calls] == ["tables", "query"] and turn.must_say
        assert "select" not in turn.text.lower() and turn.text_by == "task"


@pytest.mark.slow
def test_bfcl(renderer: ChatMLRenderer) -> None:
    pytest.importorskip("bfcl_eval")
    targets = {"startEngine", "send_message", "post_tweet", "set_navigation", "cat"}
    made = run(renderer, "bfcl_multi_turn", 8, step=12, targets=targets, observed=48)
    check(made, targets)
    by_target = {plan["target"]: plan["chain"] for plan in made.plans.values()}
    assert by_target["startEngine"] == ["lockDoors", "pressBrakePedal", "startEngine"]
    engines = [task for task in made.tasks if made.plans[task.task_id]["target"] == "startEngine"]
    for task in engines:
        said = read_blueprint(task).turns[0].text.lower()
        assert "state_prerequisite" in task.tags and not any(word in said for word in ("brake", "door"))


def test_plans_are_a_function_of_seed_and_base(renderer: ChatMLRenderer, travel: Run) -> None:
    again = run(renderer, "travel_desk", 3, step=12, targets=TARGETS, observed=48)
    assert again.hardgen.failure_set is not None and travel.hardgen.failure_set is not None
    assert {task.task_id for task in again.tasks} <= {task.task_id for task in travel.tasks}
    other = run(renderer, "travel_desk", 3, step=12, targets=TARGETS, observed=48, seed=1)
    assert {task.task_id for task in other.tasks}.isdisjoint({task.task_id for task in travel.tasks})


def test_plans_of_one_base_that_come_to_the_same_task_are_no_error(renderer: ChatMLRenderer) -> None:
    made = run(renderer, "travel_desk", 2, targets={"flights"}, observed=48, plans=6)
    planned = [verdict for verdict in made.verdicts if verdict.keep]
    assert len(made.tasks) + len(made.verdicts) - len(planned) == 12
    assert len(planned) == len(made.tasks) and len({task.task_id for task in made.tasks}) > 1


def test_other_failures_make_other_tasks(renderer: ChatMLRenderer, travel: Run) -> None:
    moved = run(renderer, "travel_desk", 4, step=12, targets={"cancel", "upgrade"}, observed=48)
    assert {plan["target"] for plan in moved.plans.values()} <= {"cancel", "upgrade"}
    assert {plan["failure_set"] for plan in moved.plans.values()}.isdisjoint(
        plan["failure_set"] for plan in travel.plans.values()
    )
    reasons = {verdict.reason for verdict in moved.verdicts if not verdict.keep}
    assert len(moved.tasks) + sum(not v.keep for v in moved.verdicts) == 4 and reasons <= {
        "no_call_works",
        "no_legal_chain",
        "no_way_to_ask",
    }


def test_steps_at_random_make_shorter_chains_for_tools_that_do_not_fail(
    renderer: ChatMLRenderer, travel: Run
) -> None:
    at_random = run(renderer, "travel_desk", 10, step=12, observed=48, random_choice=True)
    shares, lengths = [], []
    for made in (travel, at_random):
        chains = [plan["chain"] for plan in made.plans.values()]
        shares.append(sum(chain[-1] in TARGETS for chain in chains) / len(chains))
        lengths.append(sum(map(len, chains)) / len(chains))
    assert shares[0] == 1.0 > shares[1]
    assert lengths[0] > lengths[1]
    assert {plan["failure_set"] for plan in at_random.plans.values()} == {""}


@pytest.mark.parametrize(
    "wrong",
    [{"min_calls": 0}, {"max_calls": 9}, {"min_calls": 5, "max_calls": 3}, {"share": 0.0}, {"max_tries": 0}],
)
def test_impossible_options_are_refused(renderer: ChatMLRenderer, travel: Run, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        HardGen(environment=travel.environment, engine=ENGINE, renderer=renderer, random_choice=True, **wrong)


def test_a_recipe_probes_two_policies_and_resumes_to_the_same(tmp_path: Path, tokenizer: Path) -> None:
    world = {"name": "travel_desk", "options": {"templates": ["cheapest", "cancel"]}}
    stages = {
        "ask": {"synthesizer": "rejection_sampling", "tasks": 12, "options": {"k": 1}},
        "ask_other": {"synthesizer": "demonstration", "tasks": 12, "options": {"slip": 0.9}},
        "hard": {
            "synthesizer": "hardgen",
            "tasks": 4,
            "options": {
                "failures": ["scripted gold, 90% mistakes (no model)", "gold+slip0.9"],
                "observed": 16,
                "share": 0.2,
            },
        },
    }
    value = recipe(tokenizer, environment=world, synth=stages)
    value["policy"]["mistakes"] = 0.9
    path = write_recipe(tmp_path, value)
    done = trajsmith("synth", path, "--runs", tmp_path / "runs")
    assert done.code == 0, done.err
    root = tmp_path / "runs" / "small"
    with Store.open(root) as store:
        made = [row for row in store.trajectories() if row.synthesizer == "hardgen"]
        assert made and all(row.success for row in made)
        assert any(verdict.reason == "planned" for verdict in store.verdicts())
    before = digests(root)
    again = trajsmith("synth", path, "--runs", tmp_path / "runs")
    assert again.code == 0 and (again.out + again.err).count("done before") == 3
    (root / "manifests" / "synth-hard.json").unlink()
    assert trajsmith("synth", path, "--runs", tmp_path / "runs").code == 0
    assert digests(root) == before
    value["synth"]["ask"]["options"]["k"] = 2  # more rollouts: the failures may have moved
    write_recipe(tmp_path, value)
    moved = trajsmith("synth", path, "--runs", tmp_path / "runs")
    assert moved.code == 0 and "synth hard: done before" not in moved.out + moved.err


def test_a_recipe_with_one_policy_ends_with_the_fix(tmp_path: Path, tokenizer: Path) -> None:
    stages = {"hard": {"synthesizer": "hardgen", "tasks": 1, "options": {"failures": ["one"]}}}
    path = write_recipe(tmp_path, recipe(tokenizer, environment={"name": "travel_desk"}, synth=stages))
    done = trajsmith("synth", path, "--runs", tmp_path / "runs")
    assert done.code != 0 and "two are needed" in done.err and "random_choice" in done.err


def test_no_chat_is_asked_twice_for_the_same_plan(renderer: ChatMLRenderer, tmp_path: Path) -> None:
    def write(turns: Sequence[Turn], tools: Any) -> str:
        said = re.findall(r'("[^"]*"|[^ ",:]+) \(', turns[1].text.split("To say:")[-1])
        point = re.findall(r'point with: "([^"]*)"', turns[1].text)
        words = " and ".join([*point, *(value.strip('"') for value in said)])
        return canonical.dumps({"request": f"I want this done, please: {words}."})

    chats = [ScriptedChat(write, name="writer") for _ in range(2)]
    runs = [
        run(
            renderer,
            "travel_desk",
            4,
            step=12,
            targets=TARGETS,
            observed=48,
            chat_dir=tmp_path,
            chats={"query_writer": chat},
        )
        for chat in chats
    ]
    assert runs[0].tasks and chats[0].asked and not chats[1].asked
    assert [task.task_id for task in runs[0].tasks] == [task.task_id for task in runs[1].tasks]
    turns = [read_blueprint(task).turns[0] for task in runs[0].tasks]
    assert {turn.text_by for turn in turns} == {"writer"}
    assert all(turn.text.startswith("I want this done") for turn in turns)
