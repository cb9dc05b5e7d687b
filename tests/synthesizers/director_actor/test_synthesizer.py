"""Director and actor without a model, in three worlds: what is kept verifies again and leaks nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from data.errors import ConfigError
from data.leaks import check_trajectory
from data.messages import ToolStatus, assistant
from data.trajectories import Origin, Trajectory
from pipeline.environments.agents import ListedAgent, null_agent
from pipeline.environments.blueprint import Expects, read_blueprint
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment
from synthesizers.director_actor import synthesizer
from synthesizers.director_actor.goldwork import gold_episodes
from synthesizers.director_actor.personas import PERSONAS
from synthesizers.director_actor.rehearsal import Rehearsed
from synthesizers.director_actor.subgoals import Step, SubGoal
from synthesizers.director_actor.synthesizer import DirectorActor
from synthesizers.worlds import plannable
from tests.synthesizers.director_actor.lab import Records, bases, made, observations
from tests.synthesizers.sources import check_sources
from tests.synthesizers.test_worlds import NoSnapshots

WORLDS = ("travel_desk", "sql_desk", "bfcl_multi_turn")
COUNT = 8


@pytest.fixture(scope="module", params=WORLDS)
def kept(request: pytest.FixtureRequest, renderer: Any) -> tuple[str, Records]:
    world = str(request.param)
    options = {"faults": 0.6, "recombine": 0.3, "actors": 3}
    return world, made(world, bases(world, COUNT), renderer, gold_tasks=20, **options)


def test_most_plans_are_kept_and_every_other_one_has_a_reason(kept: tuple[str, Records]) -> None:
    _, records = kept
    given_up = [verdict for verdict in records.verdicts if verdict.reason != "other_end_state"]
    assert len(records.tasks) + len(given_up) == COUNT
    assert len(records.tasks) >= COUNT - 2
    assert all(verdict.reason and not verdict.keep for verdict in records.verdicts)


def test_what_is_kept_re_executes_to_the_same_observations_and_verifies(kept: tuple[str, Records]) -> None:
    world, records = kept
    environment = load_environment(world)
    for task in records.tasks:
        mine = [t for t in records.trajectories if t.task_id == task.task_id]
        assert mine and all(trajectory.success for trajectory in mine)
        again = asyncio.run(play(environment, task, environment.gold(task)))
        assert again.success and observations(again.turns) == observations(mine[0].turns)
        for trajectory in mine:
            replayed = asyncio.run(play(environment, task, Replay(trajectory)))
            assert replayed.success and observations(replayed.turns) == observations(trajectory.turns)


class Replay(ListedAgent):
    """The assistant's turns of a trajectory, said again."""

    def __init__(self, trajectory: Trajectory) -> None:
        super().__init__([turn for turn in trajectory.turns if turn.role.value == "assistant"])


def test_nothing_is_won_by_doing_nothing_or_by_refusing(kept: tuple[str, Records]) -> None:
    world, records = kept
    environment = load_environment(world)
    for task in records.tasks:
        turns = len(read_blueprint(task).turns)
        for agent in (
            null_agent(),
            ListedAgent([assistant("REFUSE")] * turns),
            ListedAgent([assistant("Done.")]),
        ):
            assert not asyncio.run(play(environment, task, agent)).success, task.private


def test_no_private_value_and_no_instruction_is_in_a_trajectory(kept: tuple[str, Records]) -> None:
    _, records = kept
    tasks = {task.task_id: task for task in records.tasks}
    for trajectory in records.trajectories:
        check_trajectory(trajectory, tasks[trajectory.task_id])
        said = "\n".join(turn.text for turn in trajectory.turns)
        assert "then say what came of it" not in said


def test_the_record_says_how_each_turn_came_about(kept: tuple[str, Records]) -> None:
    world, records = kept
    turns = [turn for blueprint in records.blueprints for turn in blueprint.turns]
    directions = [turn.direction for turn in turns]
    assert all(direction is not None for direction in directions)
    assert {blueprint.persona for blueprint in records.blueprints} <= {persona.name for persona in PERSONAS}
    interrupted = [direction for direction in directions if direction and direction.contradiction]
    assert interrupted, f"{world}: 60 % of the outlines are contradicted"
    tagged = [task for task in records.tasks if "recover" in task.tags]
    assert len(tagged) == len(
        [b for b in records.blueprints if any(t.direction.contradiction for t in b.turns if t.direction)]
    )
    for blueprint in records.blueprints:
        outages = {(outage.turn, outage.name) for outage in blueprint.outages}
        met = {(i, c.name) for i, t in enumerate(blueprint.turns) for c in t.calls}
        assert outages <= met, "an outage that nobody met is no part of the world"


def test_arguments_come_from_where_their_sources_say(kept: tuple[str, Records]) -> None:
    for task in kept[1].tasks:
        check_sources(task)


def test_lineage_and_tool_subset(kept: tuple[str, Records]) -> None:
    world, records = kept
    named = {task.task_id: task for task in bases(world, COUNT)}
    for task in records.tasks:
        assert task.parents[0] in named and task.template == named[task.parents[0]].template
        used = {call.name for turn in read_blueprint(task).turns for call in turn.calls}
        assert task.tools is not None and used <= set(task.tools) and len(task.tools) <= len(used) + 3


def test_several_actors_play_one_outline_in_their_own_ways(kept: tuple[str, Records]) -> None:
    world, records = kept
    per_task = Counter(trajectory.task_id for trajectory in records.trajectories)
    assert min(per_task.values()) > 1, f"{world}: three actors, and all did the same"
    for task_id in [task_id for task_id, number in per_task.items() if number > 1]:
        mine = [t for t in records.trajectories if t.task_id == task_id]
        assert len({t.rollout_index for t in mine}) == len(mine) and len({t.group_id for t in mine}) == 1
        ways = {
            repr([(turn.text, [(c.name, c.arguments) for c in turn.tool_calls]) for turn in t.turns])
            for t in mine
        }
        assert len(ways) == len(mine)
        assert all(s.origin is Origin.RENDERED for t in mine for s in t.segments)


def test_the_same_seed_makes_the_same_records(renderer: Any) -> None:
    tasks = bases("travel_desk", 4)
    first, second = (made("travel_desk", tasks, renderer, faults=0.5, recombine=0.5) for _ in range(2))
    assert [t.task_id for t in first.tasks] == [t.task_id for t in second.tasks]
    assert sorted(t.content_digest() for t in first.trajectories) == sorted(
        t.content_digest() for t in second.trajectories
    )
    fewer = made("travel_desk", tasks[:2], renderer, faults=0.5, recombine=0.5)
    assert [t.task_id for t in fewer.tasks] == [t.task_id for t in first.tasks][: len(fewer.tasks)]
    other = made("travel_desk", tasks, renderer, faults=0.5, recombine=0.5, seed=1)
    assert {t.task_id for t in other.tasks}.isdisjoint({t.task_id for t in first.tasks})
    done = [t.trajectory_id for t in first.trajectories]
    assert made("travel_desk", tasks, renderer, faults=0.5, recombine=0.5, done=done).trajectories == []


def test_random_choice_gets_less_through_and_knows_no_outputs(renderer: Any) -> None:
    tasks = bases("travel_desk", 12)
    directed = made("travel_desk", tasks, renderer, gold_tasks=24)
    at_random = made("travel_desk", tasks, renderer, gold_tasks=24, random_choice=True)
    assert len(at_random.tasks) < len(directed.tasks) / 2
    assert set(at_random.reasons) <= {"no_outline", "no_wording", "gold_failed", "goal_unmet"}

    def read(records: Records) -> int:
        calls = [call for b in records.blueprints for turn in b.turns for call in turn.calls]
        return sum(source.provenance == "output" for call in calls for source in call.sources)

    assert read(at_random) < read(directed)


def test_recombined_requests_are_one_turn_of_several_validated_ones(renderer: Any) -> None:
    records = made("travel_desk", bases("travel_desk", 8), renderer, recombine=1.0, gold_tasks=20)
    combined = [
        b for task, b in zip(records.tasks, records.blueprints, strict=True) if "recombined" in task.tags
    ]
    assert combined
    for blueprint in combined:
        [turn] = blueprint.turns
        assert turn.direction is not None and turn.direction.combined >= 2
        assert len(turn.calls) >= turn.direction.combined
        assert all(call.status is ToolStatus.OK for call in turn.calls) and turn.expects is Expects.ACT


def test_options_are_checked(renderer: Any) -> None:
    environment = load_environment("travel_desk")
    wrong: list[dict[str, Any]] = [
        {"start": "anything"},
        {"faults": 1.5},
        {"recombine": -0.1},
        {"actors": 0},
        {"max_goals": 0},
        {"policies": [3], "strict": True},
        {"policies": ["no.such.module:rule"], "strict": True},
        {"policies": ["tests.synthesizers.director_actor.lab:bases"]},
        {"chats": {"judge_1": {"url": "http://127.0.0.1:9", "model": "a"}}},
        {"min_lines": 3, "max_lines": 2},
    ]
    for options in wrong:
        with pytest.raises(ConfigError):
            DirectorActor(environment=environment, engine=None, renderer=renderer, **options)  # type: ignore[arg-type]


def test_a_world_without_snapshots_is_an_error_and_not_a_world_without_gold() -> None:
    with pytest.raises(ConfigError, match="cannot snapshot"):
        asyncio.run(gold_episodes(plannable(NoSnapshots()), count=1))


def test_an_outline_that_does_not_work_a_second_time_is_a_reason(
    renderer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: Any, **__: Any) -> SubGoal:
        return SubGoal("r0", (Step("s", "no_such_tool", {}),))

    async def never(*_: Any) -> list[Rehearsed]:
        return []

    monkeypatch.setattr(synthesizer, "combined_outline", nothing)
    monkeypatch.setattr(synthesizer, "_again", never)
    records = made("travel_desk", bases("travel_desk", 6), renderer, recombine=1.0, max_goals=4)
    assert "no_outline" in records.reasons
    assert len(records.tasks) + len(records.verdicts) == 6
