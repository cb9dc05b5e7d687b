"""The examples of a user's own tools pass the environment check as they stand, and do what they show."""

from __future__ import annotations

from pathlib import Path

import pytest

from data import canonical
from data.media import MediaStore
from data.messages import PartType, ToolStatus
from flows.stages.diagnose import gold_book
from pipeline.diagnosis.capabilities import calls_of
from pipeline.environments.check import check_environment
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment
from pipeline.environments.toolkit import ToolEnvironment
from tests.pipeline.environments.conftest import Run


@pytest.mark.parametrize("name", ["library_desk", "functions", "stateful", "mcp_desk"])
def test_the_check_is_green(run: Run, name: str) -> None:
    environment = load_environment(f"examples.own_tools.{name}:load")
    results = run(check_environment(environment, num_tasks=1 if name == "mcp_desk" else 12))
    assert [result for result in results if not result.passed] == []


def test_gold_that_answers_pictures_can_be_played_without_a_run(run: Run) -> None:
    environment = load_environment("examples.own_tools.stateful:load")
    task = next(environment.tasks("train"))
    book = run(gold_book(environment, [task]))
    assert [call.name for call in calls_of(book.turns(task.task_id))] == ["crane", "crane"]


def test_functions_show_rich_schemas_and_get_python_objects(run: Run) -> None:
    environment = load_environment("examples.own_tools.functions:load").inner
    assert isinstance(environment, ToolEnvironment)
    task = next(environment.tasks("train"))

    async def episode() -> list[tuple[ToolStatus, str]]:
        async with await environment.open(task) as session:
            [book] = [spec for spec in session.tools if spec.name == "book"]
            shown = canonical.loads(book.parameters)["properties"]
            assert shown["room"] == {"type": "string", "enum": ["lab", "hall"]}
            assert shown["slot"]["properties"]["hour"] == {"type": "integer", "minimum": 8, "maximum": 17}
            assert shown["slot"]["description"] == "Weekday and full hour."
            assert shown["catering"]["properties"]["people"]["default"] == 2
            calls = [
                {"room": "lab", "slot": {"day": "mon", "hour": 9}, "catering": {"drink": "tea"}},
                {"room": "lab", "slot": {"day": "mon", "hour": 9}},
                {"room": "lab", "slot": {"day": "mon", "hour": 7}},
                {"room": "attic", "slot": {"day": "mon", "hour": 9}},
            ]
            results = [await session.call("book", given, str(index)) for index, given in enumerate(calls)]
            assert session.state["bookings"] == {"lab mon 9": ["meeting", 4]}
        return [(result.status, result.text) for result in results]

    results = run(episode())
    assert results[0] == (ToolStatus.OK, "booked lab mon 9")
    assert results[1] == (ToolStatus.TOOL_ERROR, "lab mon 9 is taken")
    assert results[2][1] == "slot.hour: Input should be greater than or equal to 8"
    assert results[3][1] == "room: Input should be 'lab' or 'hall'"


def test_stateful_tools_give_step_rewards_metrics_pictures_and_a_score(run: Run, tmp_path: Path) -> None:
    environment = load_environment("examples.own_tools.stateful:load").inner
    assert isinstance(environment, ToolEnvironment)
    environment.media = MediaStore(tmp_path)
    task = next(environment.tasks("heldout"))
    played = run(play(environment, task, environment.gold(task)))
    results = [turn.result for turn in played.turns if turn.result is not None]
    assert [result.reward for result in results] == [5 / 8, 1 / 8]
    assert [result.metrics[0].value for result in results] == [5.0, 1.0]
    picture = results[0].parts[1]
    assert picture.type is PartType.IMAGE and environment.media.read(picture.media_sha256)[1:4] == b"PNG"
    assert results[0].text == f"at [5, 0][image {picture.media_sha256[:12]} image/png]"
    assert played.reward is not None and played.reward.total == 1.0
    process = {part.name: part.value for part in played.reward.components if part.when == "process"}
    assert process == {"tool/crane": 1.0, "step/crane": 6 / 8}
