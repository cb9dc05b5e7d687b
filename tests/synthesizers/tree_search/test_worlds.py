"""Searches in shipped worlds: a planned task whose turns are judged on the way, an MCP server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.engines.base import Sampling
from pipeline.environments.base import Environment
from pipeline.environments.blueprint import blueprint_task
from pipeline.renderers.chatml import ChatMLRenderer
from pipeline.rollout import RolloutSettings
from synthesizers.tree_search.records import REPLAYED
from synthesizers.tree_search.synthesizer import TreeSearch
from tests.pipeline.environments.mcp.conftest import Make
from tests.pipeline.environments.mcp.conftest import make as make
from tests.pipeline.environments.test_blueprint import planned, travel
from tests.pipeline.rollout_world import call_text
from tests.synthesizers.tree_search.test_search import Teller, records
from tests.tiny import make_tiny_tokenizer


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatMLRenderer:
    return ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def booked() -> tuple[Environment, Task, str]:
    environment, base = travel()
    number = base.state_value()["bookings"][0]["id"]
    turns: list[Any] = [
        ("What have I booked?", [("bookings", {})], f"You have {number}."),
        ("Cancel the first.", [("cancel", {"booking": number})], "DONE"),
    ]
    blueprint = asyncio.run(planned(environment, base, turns))
    first = blueprint.turns[0].model_copy(update={"must_say": (number,)})
    blueprint = blueprint.model_copy(update={"turns": (first, blueprint.turns[1])})
    return environment, blueprint_task(blueprint, synthesizer="test", template="two"), number


def found(
    renderer: ChatMLRenderer, booked: tuple[Environment, Task, str], **options: Any
) -> list[Trajectory]:
    environment, task, number = booked
    engine = Teller(renderer, lambda place: steps(place, number))
    synthesizer = TreeSearch(
        environment=environment,
        engine=engine,
        renderer=renderer,
        sampling=Sampling(max_tokens=120),
        settings=RolloutSettings(),
        search={"candidates": 3, "width": 2, **options},
    )
    kept, _ = records(synthesizer, [task])
    assert sum(one.usage.generated_tokens for one in kept) == engine.num_tokens
    return kept


def steps(place: str, number: str) -> list[str]:
    """What may be said after so many steps: one of three is right."""
    look, cancel = call_text("bookings"), call_text("cancel", booking=number)
    wrong = call_text("cancel", booking="none")
    return [
        ["nothing", look, wrong],
        [wrong, "I do not know.", f"You have {number}."],
        ["DONE", wrong, cancel],
        ["DONE", "DONE", "DONE"],
    ][min(len(place), 3)]


def test_the_turns_that_went_well_steer_a_search_through_a_planned_task(
    renderer: ChatMLRenderer, booked: tuple[Environment, Task, str]
) -> None:
    scores = {"component/turns": 1.0, "outcome": 1.0, "gold_match": 1.0, "errors": 0.2}
    kept = found(renderer, booked, scores=scores)
    assert [one.success for one in kept] == [True, True] and not kept[0].labels
    again = found(renderer, booked, scores=scores, replay=True)
    assert [one.segments for one in again] == [one.segments for one in kept]
    assert again[0].labels == (REPLAYED,)
    blind = found(renderer, booked, scores={"logprob": 1.0})
    assert not any(one.success for one in blind)


def test_a_lookahead_in_a_planned_task(
    renderer: ChatMLRenderer, booked: tuple[Environment, Task, str]
) -> None:
    kept = found(renderer, booked, kind="lookahead", depth=2, scores={"component/turns": 1.0, "errors": 0.2})
    environment = booked[0]
    assert len(kept) == 2 and environment.inner.num_open == 0  # type: ignore[attr-defined]


def test_branches_of_an_mcp_server(renderer: ChatMLRenderer, make: Make) -> None:
    """Its sessions keep no state of the server: a fork is a fresh one in which the calls are made again."""
    environment = make("memory")
    task = next(iter(environment.tasks("train")))
    one, two = (call_text("add", amount=amount) for amount in (1, 2))
    said = [[call_text("add", amount=5), one], [one, two], ["no", "DONE"]]
    engine = Teller(renderer, lambda place: said[min(len(place), 2)])
    synthesizer = TreeSearch(
        environment=environment,
        engine=engine,
        renderer=renderer,
        sampling=Sampling(max_tokens=120),
        k=2,
        search={"candidates": 2, "width": 2, "scores": {"outcome": 1.0}},
    )
    kept, verdicts = records(synthesizer, [task])
    assert [found.reward is not None for found in kept] == [True, True]
    assert "infra_failure" not in {verdict.reason for verdict in verdicts}
    sums = {found.turns[-2].text for found in kept if len(found.turns) > 5}
    assert sums <= {"2", "3", "6", "7"} and len(verdicts) >= 2 + 4 + 2
    assert environment.num_open == 0
