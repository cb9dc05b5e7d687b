"""What counts as a session's state: what the agent changed, and nothing of how it got there."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import pytest

from data.messages import ToolStatus
from data.tasks import Task
from pipeline.environments.end_state import state_digest
from pipeline.environments.play import play_turns
from pipeline.environments.registry import load_environment
from tests.pipeline.environments.conftest import Run

TAU2 = pytest.mark.skipif(find_spec("tau2") is None, reason="tau2 is not installed; run: make tau2-setup")
Look = tuple[str, Mapping[str, Any]]


def shows(task: Task, name: str) -> bool:
    return task.tools is None or name in task.tools


async def ended(environment: Any, task: Task, *looks: Look, gold: bool = True) -> str:
    """The digest after looking around, and then perhaps gold."""
    async with await environment.open(task) as session:
        for number, (name, arguments) in enumerate(looks):
            result = await session.call(name, dict(arguments), f"look{number}")
            assert result.status is ToolStatus.OK, result.text
        if gold:
            await play_turns(session, task, environment.gold(task))
        return state_digest(session, [])


@pytest.mark.parametrize(
    ("name", "options", "look", "writes"),
    [
        ("files", {}, ("list", {}), True),
        ("code_repair", {"levels": ["function"]}, ("run_tests", {}), True),
        ("search_desk", {}, ("search", {"query": "river"}), False),
        ("python_math", {}, ("python", {"code": "print(1)"}), False),
        pytest.param(
            "tau2", {"domain": "retail"}, ("list_all_product_types", {}), True, marks=TAU2, id="retail"
        ),
        pytest.param(
            "tau2", {"domain": "airline"}, ("list_all_airports", {}), False, marks=TAU2, id="airline-refused"
        ),
        pytest.param(
            "tau2", {"domain": "telecom"}, ("check_network_status", {}), True, marks=TAU2, id="telecom"
        ),
    ],
)
def test_looking_leaves_the_state_as_it_was_and_gold_leads_to_one_state(
    run: Run, name: str, options: dict[str, Any], look: Look, writes: bool
) -> None:
    environment = load_environment(name, **options)
    task = next(task for task in environment.tasks("train") if shows(task, look[0]))

    async def digests() -> tuple[str, str, str, str]:
        begun = await ended(environment, task, gold=False)
        looked = await ended(environment, task, look, gold=False)
        return begun, looked, await ended(environment, task), await ended(environment, task, look, look)

    begun, looked, solved, again = run(digests())
    assert begun == looked and solved == again
    assert (begun != solved) is writes


def test_the_attributes_of_a_trl_class_are_its_state(run: Run) -> None:
    environment = load_environment(
        "trl_class",
        factory="tests.pipeline.environments.adapters.trl_world:Lamp",
        rows="tests.pipeline.environments.adapters.trl_world:rows",
    )
    task = next(iter(environment.tasks("train")))

    async def digests() -> list[str]:
        return [await ended(environment, task, gold=gold) for gold in (False, True, True)]

    begun, solved, again = run(digests())
    assert begun != solved == again
