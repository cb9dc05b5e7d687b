"""Magnet without a model: what it keeps re-executes, is multi-turn, and is what its tags say."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import pytest

from data.errors import ConfigError
from data.messages import Role, ToolResult, Turn, assistant, text_parts
from data.tasks import Task
from data.trajectories import Trajectory
from data.verdicts import Verdict
from pipeline.environments.agents import ListedAgent, null_agent
from pipeline.environments.base import Environment
from pipeline.environments.blueprint import Blueprint, Expects, PlannedTurn, read_blueprint
from pipeline.environments.gold import call
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment
from pipeline.renderers.chatml import ChatMLRenderer
from synthesizers.base import Made
from synthesizers.execution import Executed
from synthesizers.graph.fields import fields_of
from synthesizers.magnet.enacting import has_failed
from synthesizers.magnet.synthesizer import IRRELEVANCE, Magnet
from synthesizers.phrasing.wording import leaks_tool_name, mentions
from tests.tiny import make_tiny_tokenizer

ENGINE: Any = None
"""The gold teacher asks no engine."""


class Run(NamedTuple):
    """What was made of some base tasks."""

    environment: Environment
    magnet: Magnet
    records: list[Made]

    @property
    def tasks(self) -> list[Task]:
        return [record for record in self.records if isinstance(record, Task)]

    @property
    def trajectories(self) -> list[Trajectory]:
        return [record for record in self.records if isinstance(record, Trajectory)]

    @property
    def verdicts(self) -> list[Verdict]:
        return [record for record in self.records if isinstance(record, Verdict)]

    def dialogues(self) -> Iterator[tuple[Task, Blueprint]]:
        for task in self.tasks:
            if "irrelevance" not in task.tags:
                yield task, read_blueprint(task)


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatMLRenderer:
    return ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def synthesized(renderer: ChatMLRenderer, name: str, count: int, options: Any = None, **settings: Any) -> Run:
    environment = load_environment(name, **(options or {}))
    magnet = Magnet(environment=environment, engine=ENGINE, renderer=renderer, **settings)
    bases = list(islice(environment.tasks("train"), count))

    async def run() -> list[Made]:
        return [record async for record in magnet.synthesize(bases)]

    return Run(environment, magnet, asyncio.run(run()))


@pytest.fixture(scope="module")
def travel(renderer: ChatMLRenderer) -> Run:
    return synthesized(renderer, "travel_desk", 16, split=0.8, magnify=0.5)


@pytest.fixture(scope="module")
def others(renderer: ChatMLRenderer) -> list[Run]:
    pytest.importorskip("bfcl_eval")
    return [
        synthesized(renderer, "sql_desk", 3),
        synthesized(renderer, "bfcl_multi_turn", 6, observed=24),
    ]


def seen(turns: Sequence[Turn]) -> list[tuple[str, str]]:
    """Calls and results of a dialogue."""
    made = [(call.name, call.arguments) for turn in turns for call in turn.tool_calls]
    return made + [(turn.result.name, turn.text) for turn in turns if turn.result is not None]


def score(trajectory: Trajectory) -> float:
    assert trajectory.reward is not None
    return trajectory.reward.total


def test_everything_kept_re_executes_to_the_same_observations(travel: Run, others: list[Run]) -> None:
    for run in (travel, *others):
        assert run.trajectories and len(run.trajectories) == len(run.tasks)
        by_task = {trajectory.task_id: trajectory for trajectory in run.trajectories}
        for task in run.tasks:
            kept = by_task[task.task_id]
            again = asyncio.run(play(run.environment, task, run.environment.gold(task), seed=7))
            assert kept.success and score(again) == 1.0
            assert seen(again.turns) == seen(kept.turns)
            assert score(asyncio.run(play(run.environment, task, null_agent()))) == 0.0


def test_dialogues_are_multi_turn_and_as_long_as_asked_for(travel: Run, others: list[Run]) -> None:
    for run in (travel, *others):
        blueprints = [blueprint for _, blueprint in run.dialogues()]
        calls = [sum(len(turn.calls) for turn in blueprint.turns) for blueprint in blueprints]
        assert min(calls) >= run.magnet.min_calls
        assert sum(len(blueprint.turns) for blueprint in blueprints) >= 3 * len(blueprints)
        for verdict in run.verdicts:
            assert not verdict.keep and verdict.filter == "magnet" and verdict.reason
    sequences = {tuple(call.name for turn in b.turns for call in turn.calls) for _, b in travel.dialogues()}
    assert len(sequences) >= 0.8 * len(list(travel.dialogues()))


def test_provenance_names_the_result_that_holds_the_value(travel: Run) -> None:
    kept: Counter[str] = Counter()
    by_task = {trajectory.task_id: trajectory for trajectory in travel.trajectories}
    for task, blueprint in travel.dialogues():
        results = Counter[str]()
        answers: dict[str, str] = {}
        for turn in by_task[task.task_id].turns:
            if turn.result is not None:
                results[turn.result.name] += 1
                answers[f"{turn.result.name}#{results[turn.result.name]}"] = turn.text
        said = ""
        for planned in blueprint.turns:
            said += f"\n{planned.text}"
            for made in planned.calls:
                given = {source.argument: source for source in made.sources}
                arguments = ListedArguments(made.arguments)
                assert set(given) >= set(arguments.values)
                for name, value in arguments.values.items():
                    kept[given[name].provenance] += 1
                    if given[name].provenance == "user":
                        assert mentions(said, value)
                    else:
                        place, path = given[name].of.split(":", 1)
                        held = [field.value for field in fields_of(answers[place]) if field.path == path]
                        assert value in held or str(value) in map(str, held) or not path
    assert kept["output"] > 0.15 * kept.total() and kept["user"] > 0


class ListedArguments:
    """The arguments of a stored call."""

    def __init__(self, text: str) -> None:
        self.values = (
            assistant("", call("x").tool_calls[0].model_copy(update={"arguments": text}))
            .tool_calls[0]
            .parsed_arguments()
        )


def test_what_is_nested_is_never_mentioned(travel: Run) -> None:
    hidden = 0
    for task, blueprint in travel.dialogues():
        for turn in blueprint.turns:
            inner = [made for made in turn.calls if not made.mentioned]
            assert all(not made.changes for made in inner)
            assert not inner or any(made.mentioned for made in turn.calls)
            hidden += bool(inner)
            fed = [
                (ListedArguments(made.arguments).values[source.argument])
                for made in turn.calls
                for source in made.sources
                if source.of.split("#")[0] in {each.name for each in inner}
            ]
            if inner:
                assert fed and not any(mentions(turn.text, value) for value in fed)
                assert not leaks_tool_name(turn.text, [each.name for each in inner])
        assert ("nested" in task.tags) == any(not m.mentioned for t in blueprint.turns for m in t.calls)
    assert hidden >= 3


def test_a_missing_value_is_asked_for_and_then_given(travel: Run) -> None:
    found = [(task, blueprint) for task, blueprint in travel.dialogues() if "miss_params" in task.tags]
    assert found
    for task, blueprint in found:
        at, asking = next((i, t) for i, t in enumerate(blueprint.turns) if t.expects is Expects.ASK)
        name, after = asking.reply.removeprefix("ASK "), blueprint.turns[at + 1]
        value = ListedArguments(
            next(made for made in after.calls if name in ListedArguments(made.arguments).values).arguments
        ).values[name]
        assert not asking.calls and not mentions(asking.text, value) and mentions(after.text, value)
        assert score(asyncio.run(play(travel.environment, task, impatient(blueprint.turns, at)))) == 0.0


def impatient(turns: Sequence[PlannedTurn], at: int) -> ListedAgent:
    """Gold, but in turn `at` it calls what it can only know from the next one."""
    said: list[Turn] = []
    for place, turn in enumerate(turns[: at + 1]):
        made = turns[at + 1].calls if place == at else turn.calls
        said += [call(each.name, **ListedArguments(each.arguments).values) for each in made]
        said.append(assistant(turn.reply))
    return ListedAgent(said)


def test_a_missing_tool_appears_and_a_new_segment_starts(travel: Run) -> None:
    by_task = {trajectory.task_id: trajectory for trajectory in travel.trajectories}
    found = [(task, blueprint) for task, blueprint in travel.dialogues() if "miss_func" in task.tags]
    assert found
    for task, blueprint in found:
        at = next(i for i, t in enumerate(blueprint.turns) if t.expects is Expects.REFUSE)
        tool = blueprint.turns[at + 1].calls[0].name
        shown, later = task.tools, blueprint.turns[at + 1].tools
        assert shown is not None and later is not None and tool not in shown and tool in later
        kept = by_task[task.task_id]
        changed = [turn for turn in kept.turns if turn.tools_changed is not None]
        assert [[spec.name for spec in turn.tools_changed or ()] for turn in changed] == [list(later)]
        assert [[spec.name for spec in segment.tools] for segment in kept.segments] == [
            list(shown),
            list(later),
        ]
        lazy = ListedAgent([assistant("REFUSE tool") for _ in blueprint.turns])
        assert score(asyncio.run(play(travel.environment, task, lazy))) == 0.0


def test_irrelevance_is_one_request_without_its_tool(renderer: ChatMLRenderer) -> None:
    run = synthesized(renderer, "travel_desk", 6, irrelevance=1.0)
    assert run.tasks and all(task.tags == ("irrelevance",) for task in run.tasks)
    for task, kept in zip(run.tasks, run.trajectories, strict=True):
        [turn] = read_blueprint(task).turns
        assert turn.expects is Expects.REFUSE and task.tools and kept.success
        assert [said.role for said in kept.turns[1:]] == [Role.USER, Role.ASSISTANT]
    assert pytest.approx(0.182, abs=0.001) == IRRELEVANCE


def test_planning_is_a_function_of_seed_and_base(renderer: ChatMLRenderer, travel: Run) -> None:
    again = synthesized(renderer, "travel_desk", 3, split=0.8, magnify=0.5)
    assert {task.task_id for task in again.tasks} <= {task.task_id for task in travel.tasks}
    other = synthesized(renderer, "travel_desk", 2, split=0.8, magnify=0.5, seed=1)
    assert {task.task_id for task in other.tasks}.isdisjoint({task.task_id for task in travel.tasks})
    assert all(task.parents and task.synthesizer == "magnet" for task in travel.tasks)


def test_neighbours_drawn_at_random_feed_each_other_less(renderer: ChatMLRenderer, travel: Run) -> None:
    at_random = synthesized(renderer, "travel_desk", 8, irrelevance=0.0, random_choice=True)
    used = [run.magnet.links["used"] / run.magnet.links["planned"] for run in (travel, at_random)]
    assert used[0] > 0.7 and used[0] > used[1] + 0.1
    lost = [run.magnet.dropped["not_fed"] / len(run.tasks) for run in (travel, at_random)]
    assert lost[1] > lost[0]


def test_without_its_graph_less_comes_out_and_less_feeds(renderer: ChatMLRenderer) -> None:
    """The ablation: equal base tasks and seed; edges, ports and what uses an earlier answer at random."""
    runs = [
        synthesized(renderer, "travel_desk", 20, irrelevance=0.0, paths=1, random_choice=randomly)
        for randomly in (False, True)
    ]
    assert len(runs[0].tasks) > len(runs[1].tasks)
    flows = [{flow for _, plan in run.dialogues() if (flow := _flow(plan))} for run in runs]
    assert len(flows[0]) > 1.5 * len(flows[1])
    assert any(verdict.reason == "unconnected" for verdict in runs[1].verdicts)


def _flow(plan: Blueprint) -> tuple[str, ...]:
    """What feeds what, in order."""
    made = (call for turn in plan.turns for call in turn.calls)
    return tuple(
        f"{source.of.split('#')[0]} > {one.name}"
        for one in made
        for source in one.sources
        if source.provenance == "output"
    )


def test_a_dialogue_in_which_nothing_feeds_anything_is_given_up(renderer: ChatMLRenderer) -> None:
    run = synthesized(renderer, "travel_desk", 3, irrelevance=0.0, min_fed=99)
    assert [verdict.reason for verdict in run.verdicts] == ["unconnected"] * 3 and not run.tasks
    kept = synthesized(renderer, "travel_desk", 12, irrelevance=0.0)
    assert all(_flow(plan) for _, plan in kept.dialogues())


def test_what_ends_an_episode_may_end_a_dialogue(renderer: ChatMLRenderer) -> None:
    """On sql_desk the one tool that an answer feeds as a whole is the one that hands the answer in."""
    run = synthesized(renderer, "sql_desk", 12, irrelevance=0.0)
    plans = [plan for _, plan in run.dialogues()]
    names = [[call.name for turn in plan.turns for call in turn.calls] for plan in plans]
    ends = [place for place, made in enumerate(names) if "answer" in made]
    assert ends and all(names[place].index("answer") == len(names[place]) - 1 for place in ends)
    assert all("query > answer" in _flow(plans[place]) for place in ends)
    assert all(trajectory.success for trajectory in run.trajectories)


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ('{"login_status": false, "message": "User ID Daniel not found."}', True),
        ("Bad Request", True),
        ('[{"id": 1}, {"note": "permission denied"}]', True),
        ('{"id": 3, "errors": 0, "title": "Error budget"}', False),
        ('{"content": "' + "It was not found in the garden. " * 8 + '"}', False),
        ("F360 Nova 09:40 direct $290", False),
    ],
)
def test_what_tells_of_a_failure(text: str, failed: bool) -> None:
    made = call("x").tool_calls[0]
    result = ToolResult(call_id=made.call_id, name="x", parts=text_parts(text))
    assert has_failed(Executed(made, result, "", "")) is failed


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"merge": 1.5}, {"irrelevance": -0.1}, {"min_calls": 0}, {"negatives": -1}]
)
def test_impossible_options_are_refused(renderer: ChatMLRenderer, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Magnet(environment=load_environment("travel_desk"), engine=ENGINE, renderer=renderer, **wrong)


def test_no_user_dictates_a_query_and_an_answer_must_have_been_looked_up(renderer: ChatMLRenderer) -> None:
    made = synthesized(renderer, "sql_desk", 8)
    turns = [turn for task in made.tasks for turn in read_blueprint(task).turns]
    assert turns and not any("select " in turn.text.lower() for turn in turns)
    asking = [turn for turn in turns if any(call.name == "query" for call in turn.calls)]
    assert len(asking) >= 5
    for turn in asking:
        assert turn.must_say or turn.expects is not Expects.ACT
        assert not any(call.mentioned for call in turn.calls if call.name == "query")
    for task in made.tasks:
        blueprint = read_blueprint(task)
        first = blueprint.turns[0]
        if first.must_say and all(not call.mentioned for call in first.calls):
            told = ListedAgent([assistant(", ".join(first.must_say))])
            guess = asyncio.run(play(made.environment, task, told))
            assert guess.reward is not None and not guess.success
