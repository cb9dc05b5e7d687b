"""Failure tools: what two policies both get wrong, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from data import canonical
from data.errors import ConfigError
from data.messages import ToolCall, Turn, assistant
from data.store import Store
from data.tasks import Task
from flows.stages import policy as policies
from flows.stages.scripted import GIVE_UP, ScriptedPolicy
from pipeline.environments.base import Environment
from pipeline.environments.registry import load_environment
from pipeline.renderers.chatml import ChatMLRenderer
from synthesizers.hardgen.failures import FailureSet, Setting, check_setting, find_failures
from synthesizers.hardgen.synthesizer import HardGen
from tests.flows.lab import recipe, trajsmith, write_recipe
from tests.synthesizers.hardgen.lab import BOTH, ENGINE, Shelf, act, run, shelf


@pytest.fixture(scope="module")
def travel() -> Environment:
    return load_environment("travel_desk", templates=["cheapest", "known_flight", "cancel"])


def found(
    world: Environment, store: Shelf, *failures: Setting, share: float = 0.5, without: str = ""
) -> FailureSet:
    given = failures or BOTH
    return asyncio.run(find_failures(world, given, store=store, share=share, without=without))


def test_a_tool_at_which_one_policy_fails_is_none(travel: Environment) -> None:
    store = shelf(travel, {BOTH[0]: {"book", "cancel"}, BOTH[1]: {"cancel", "flights"}})
    probed = {tool.name: tool for tool in found(travel, store).probed}
    assert probed["book"].wrong[0] == probed["book"].probes > 0 == probed["book"].wrong[1]
    assert probed["flights"].wrong == (0, probed["flights"].probes)
    assert probed["cancel"].both == probed["cancel"].probes > 0
    assert found(travel, store).names == ("cancel",)


def test_both_must_fail_at_the_same_probe(travel: Environment) -> None:
    tasks = [task for task, _ in zip(travel.tasks("train"), range(12), strict=False)]
    store = Shelf(known={task.task_id: task for task in tasks})
    for place, task in enumerate(tasks):
        for policy in BOTH:
            fails = {"book"} if (place % 2 == 0) is (policy == BOTH[0]) else set()
            store.rows.append(act(travel, task, policy=policy, fails_at=fails))
    [book] = [tool for tool in found(travel, store).probed if tool.name == "book"]
    assert sum(book.wrong) == book.probes and book.both == 0
    assert "book" not in found(travel, store, share=0.01).names


def test_most_rollouts_of_a_probe_decide(travel: Environment) -> None:
    store = shelf(travel, {BOTH[0]: {"cancel"}, BOTH[1]: {"cancel"}})
    tasks = [store.known[row.task_id] for row in store.rows if row.policy.name == BOTH[1]]
    once = [act(travel, task, policy=BOTH[1], number=1) for task in tasks]
    store.rows += once
    assert found(travel, store).names == ()  # one right, one wrong: not most
    store.rows += [act(travel, task, policy=BOTH[1], fails_at={"cancel"}, number=2) for task in tasks]
    assert found(travel, store).names == ("cancel",)


def test_the_same_answer_or_the_same_arguments_are_right_but_each_call_counts_once(
    travel: Environment,
) -> None:
    store = shelf(travel, {BOTH[0]: {"book"}, BOTH[1]: {"book"}})
    assert "book" in found(travel, store).names
    changed = []
    for row in store.rows:
        turns = list(row.turns)
        wrong = ToolCall(call_id="x", name="book", arguments='{"flight": "F0"}')
        turns.insert(-1, assistant("", wrong))  # never answered: no result, no success
        changed.append(row.model_copy(update={"turns": tuple(turns)}))
    assert "book" in found(travel, Shelf(rows=changed, known=store.known)).names


@pytest.mark.parametrize(
    ("failures", "said"),
    [
        ((), "two are needed"),
        (("small model",), "1 policies, two are needed"),
        (("a", "b", "c"), "3 policies"),
        (("a", "a"), "stands twice"),
        (("a", {"weights": "x"}), "names no policy"),
        (({"run": "x"}, {"run": "x"}), "stands twice"),
        (("a", {"polcy": "x"}), "has an unknown key polcy; write"),
    ],
)
def test_one_policy_is_refused_with_what_to_do(failures: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_setting(failures)


def test_a_recipe_with_one_policy_is_refused_and_the_ablation_needs_none(
    renderer: ChatMLRenderer, travel: Environment
) -> None:
    with pytest.raises(ConfigError, match="random_choice: true") as told:
        HardGen(environment=travel, engine=ENGINE, renderer=renderer, failures=["small model"])
    assert "failures: [policy A, policy B]" in str(told.value)
    HardGen(environment=travel, engine=ENGINE, renderer=renderer, random_choice=True)
    with pytest.raises(ConfigError, match="as `store`"):
        run(renderer, travel, 1, failures=BOTH)


def test_what_cannot_be_probed_is_said(travel: Environment) -> None:
    store = shelf(travel, {BOTH[0]: {"book"}, BOTH[1]: {"book"}}, count=6)
    with pytest.raises(ConfigError, match="it has rollouts of: other model, small model"):
        found(travel, store, BOTH[0], "third")
    store.rows.append(act(travel, next(iter(store.known.values())), policy=BOTH[0], weights="w2"))
    with pytest.raises(ConfigError, match=r"several weights \(w1, w2\)"):
        found(travel, store)
    assert found(travel, store, {"policy": BOTH[0], "weights": "w1"}, BOTH[1]).policies[0] == f"{BOTH[0]}@w1"
    first = next(iter(store.known))
    apart = Shelf(
        rows=[row for row in store.rows if (row.task_id == first) is (row.policy.name == BOTH[0])],
        known=store.known,
    )
    with pytest.raises(ConfigError, match="no task in common"):
        found(travel, apart, {"policy": BOTH[0], "weights": "w1"}, BOTH[1])


def test_one_policy_by_two_names_is_one_policy(travel: Environment) -> None:
    store = shelf(travel, {BOTH[0]: {"book"}, BOTH[1]: {"book"}}, count=4)
    with pytest.raises(ConfigError, match="are one policy"):
        found(travel, store, BOTH[0], {"policy": BOTH[0]})
    with pytest.raises(ConfigError, match="are one policy"):
        found(travel, store, {"policy": BOTH[0], "weights": "w1"}, {"policy": BOTH[0], "weights": "w"})


@pytest.mark.parametrize("split", ["dev", "heldout"])
def test_tasks_that_evaluations_read_are_no_probes(travel: Environment, split: str) -> None:
    store = shelf(travel, {BOTH[0]: {"book"}, BOTH[1]: {"book"}}, count=4, split=split)
    with pytest.raises(ConfigError, match="training on the test"):
        found(travel, store)


def test_what_is_made_does_not_move_what_it_is_made_for(travel: Environment) -> None:
    store = shelf(travel, {BOTH[0]: {"book"}, BOTH[1]: {"book"}})
    before = found(travel, store, without="hardgen")
    tasks = list(store.known.values())
    store.rows += [
        act(travel, task, policy=name, number=place + 1, synthesizer="hardgen")
        for name in BOTH
        for task in tasks
        for place in range(3)
    ]
    assert found(travel, store, without="hardgen") == before
    assert found(travel, store).names != before.names


def test_no_failure_tool_is_an_error_that_shows_what_was_probed(
    renderer: ChatMLRenderer, travel: Environment
) -> None:
    store = shelf(travel, {BOTH[0]: {"book"}, BOTH[1]: set()}, count=4)
    with pytest.raises(ConfigError, match=r"no tool at which both .* \(.*book 0/"):
        run(renderer, travel, 1, failures=BOTH, store=store)


def test_rollouts_are_read_from_another_run(travel: Environment, tmp_path: Path) -> None:
    store = shelf(travel, {BOTH[0]: {"cancel"}, BOTH[1]: {"cancel"}}, count=8)
    with Store.create_or_open(tmp_path / "other", {"name": "other"}) as other:
        for task in store.known.values():
            other.append(task)
        for row in store.rows:
            if row.policy.name == BOTH[1]:
                other.append(row)
    here = Shelf(rows=[row for row in store.rows if row.policy.name == BOTH[0]], known=store.known)
    there = {"run": str(tmp_path / "other"), "policy": BOTH[1]}
    assert found(travel, here, BOTH[0], there).names == ("cancel",)


def failing_at(name: str, *tools: str) -> type[ScriptedPolicy]:
    """A scripted policy of that name that gives up where gold calls one of the tools."""

    class Failing(ScriptedPolicy):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.name = name

        def _gold_turn(self, task: Task, turns: Sequence[Turn]) -> Turn:
            said = super()._gold_turn(task, turns)
            return assistant(GIVE_UP) if {call.name for call in said.tool_calls} & set(tools) else said

    return Failing


def test_what_two_runs_of_two_scripted_engines_fail_at_chooses_the_tools(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = {
        "name": "travel_desk",
        "options": {"templates": ["cheapest", "known_flight", "cancel", "upgrade"]},
    }
    planted = {"one": ("book", "cancel"), "other": ("cancel", "upgrade")}
    for name, tools in planted.items():
        monkeypatch.setattr(policies, "ScriptedPolicy", failing_at(f"weak {name}", *tools))
        rolled = {"asked": {"synthesizer": "rejection_sampling", "tasks": 8, "options": {"k": 1}}}
        golden = {"gold": {"synthesizer": "demonstration", "tasks": 2}}
        value = recipe(tokenizer, environment=world, synth=rolled | golden, **{"policy.mistakes": 0.0})
        path = write_recipe(tmp_path, value | {"name": name})
        assert trajsmith("synth", path, "--runs", tmp_path / "runs").code == 0
    runs = [{"run": str(tmp_path / "runs" / name)} for name in planted]
    hard = {"synthesizer": "hardgen", "tasks": 4, "options": {"failures": runs}}
    path = write_recipe(tmp_path, recipe(tokenizer, environment=world, synth={"hard": hard}))
    done = trajsmith("synth", path, "--runs", tmp_path / "runs")
    assert done.code == 0, done.err
    with Store.open(tmp_path / "runs" / "small") as store:
        plans = [canonical.loads(each.detail) for each in store.verdicts() if each.reason == "planned"]
    assert plans and {plan["target"] for plan in plans} == {"cancel"}, "what only one fails at is no target"


def test_a_run_of_several_policies_must_say_which(travel: Environment, tmp_path: Path) -> None:
    store = shelf(travel, {BOTH[0]: {"cancel"}, BOTH[1]: {"cancel"}}, count=4)
    with Store.create_or_open(tmp_path / "other", {"name": "other"}) as other:
        for record in (*store.known.values(), *store.rows):
            other.append(record)
    with pytest.raises(ConfigError, match="holds rollouts of other model, small model; write which"):
        found(travel, store, BOTH[0], {"run": str(tmp_path / "other")})


def test_a_home_of_nobody_is_no_run(travel: Environment) -> None:
    store = shelf(travel, {BOTH[0]: {"cancel"}}, count=4)
    with pytest.raises(ConfigError, match="~nobody-here/run is not a run directory"):
        found(travel, store, BOTH[0], {"run": "~nobody-here/run", "policy": BOTH[1]})
