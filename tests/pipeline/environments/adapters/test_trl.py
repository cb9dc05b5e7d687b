"""TRL environment classes as environments of ours, and ours as theirs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from data.messages import ToolStatus
from pipeline.environments.adapters.as_trl import as_trl
from pipeline.environments.adapters.as_verl import verl_rows
from pipeline.environments.adapters.trl_class import TrlClassEnvironment
from pipeline.environments.check import check_environment
from pipeline.environments.faults import with_faults
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment
from pipeline.errors import ConfigError, EnvironmentFailure, JudgeError

HERE = "tests.pipeline.environments.adapters.trl_world"


def lamps(factory: str = "Lamp") -> TrlClassEnvironment:
    environment = load_environment(
        "trl_class", factory=f"{HERE}:{factory}", rows=f"{HERE}:rows", private=["target"]
    ).inner
    assert isinstance(environment, TrlClassEnvironment)
    return environment


def test_the_contract_holds_for_a_trl_class() -> None:
    results = asyncio.run(check_environment(lamps()))
    assert all(result.passed for result in results), results


def test_prompt_tools_and_results_are_as_trl_shows_them() -> None:
    async def run() -> None:
        environment = lamps()
        task = list(environment.tasks("train"))[1]
        assert "target" not in task.state_value()
        assert task.prompt[-1].text == "Only the red lamp is to be lit. Lit now: blue."
        async with await environment.open(task) as session:
            schema = json.loads(next(spec for spec in session.tools if spec.name == "switch").parameters)
            assert schema["required"] == ["lamp"] and schema["properties"]["lamp"]["description"]
            shown = await session.call("switch", {"lamp": "green"}, "a")
            assert shown.text == "{'lit': ['blue', 'green']}", "TRL shows str(result)"
            assert (await session.call("count", {}, "b")).text == "2"
            wrong = await session.call("switch", {"lamp": "pink"}, "c")
            assert (wrong.status, wrong.text) == (ToolStatus.TOOL_ERROR, "there is no pink lamp")

    asyncio.run(run())


def test_a_reset_that_changes_its_mind_and_a_broken_reward_are_nobodys_fault() -> None:
    moody = lamps("Moody")
    task = next(moody.tasks("train"))
    with pytest.raises(EnvironmentFailure, match="depend on the row alone"):
        asyncio.run(moody.open(task))
    broken = lamps("Broken")
    task = next(broken.tasks("train"))
    with pytest.raises(JudgeError, match="no disk"):
        asyncio.run(play(broken, task, broken.gold(task)))


def test_rows_from_a_file_and_what_is_refused(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "Green only.", "lit": [], "target": "green"}\n', encoding="utf-8")
    environment = TrlClassEnvironment(factory=f"{HERE}:Lamp", rows=str(rows))
    task = next(environment.tasks("train"))
    with pytest.raises(ConfigError, match="give its row a column `gold`"):
        environment.gold(task)
    rows.write_text('{"prompt": "x"}\n{"lit": []}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="line 2: 'prompt'"):
        TrlClassEnvironment(factory=f"{HERE}:Lamp", rows=str(rows))
    with pytest.raises(ConfigError, match=r"has no reset\(\)"):
        TrlClassEnvironment(factory="pathlib:Path", rows=f"{HERE}:rows")


def messages_of(made: Any, index: int, *, wrong: bool = False) -> tuple[Any, list[dict[str, Any]]]:
    """The rollout TRL would make of row `index`, playing gold."""
    rollout = made.factory()
    row = made.rows[index]
    rollout.reset(**row)
    task = rollout.tasks[row["task_id"]]
    gold, turns = rollout.environment.gold(task), list(task.prompt)
    while (said := gold.next_turn(turns)) is not None and said.tool_calls:
        turns.append(said)
        for call in said.tool_calls:
            getattr(rollout, call.name)(**call.parsed_arguments())
            turns.append(rollout._turns[-1])
    final = "nothing" if wrong or said is None else said.text
    return rollout, [{"role": "assistant", "content": final}]


def test_gold_through_trls_interface_scores_and_a_wrong_answer_does_not() -> None:
    made = as_trl(load_environment("travel_desk"), split="train", tasks=40)
    played = [messages_of(made, index) for index in range(40)]
    right = made.reward(completions=[m for _, m in played], environments=[r for r, _ in played])
    # Tasks with later user turns cannot be finished through TRL, which asks for none.
    assert right.count(1.0) >= 25
    again = [messages_of(made, index, wrong=True) for index in range(40)]
    wrong = made.reward(completions=[m for _, m in again], environments=[r for r, _ in again])
    lost = [before for before, after in zip(right, wrong, strict=True) if after != before]
    assert set(lost) == {1.0}, "only a right answer can be spoilt, and where one is asked for, it is"


def test_an_infrastructure_failure_is_rewarded_none() -> None:
    made = as_trl(with_faults(load_environment("counter"), {"server_error": 1.0}), split="train", tasks=2)
    rollout, messages = messages_of(made, 0)
    assert made.reward(completions=[messages], environments=[rollout]) == [None]


def test_trls_own_schema_reader_reads_the_methods() -> None:
    from transformers.utils import get_json_schema

    made = as_trl(load_environment("travel_desk"), split="train", tasks=20)
    schema = get_json_schema(made.factory().flights)["function"]
    assert schema["parameters"]["required"] == ["src", "dst", "day"]
    assert {part["type"] for part in schema["parameters"]["properties"].values()} == {"string"}


@pytest.mark.parametrize("number", [0, -1, "5"])
def test_a_number_of_tasks_that_is_none_is_told(number: Any) -> None:
    with pytest.raises(ConfigError, match="tasks must be a whole number of at least 1"):
        as_trl(load_environment("counter"), split="train", tasks=number)
    with pytest.raises(ConfigError, match="tasks must be a whole number of at least 1"):
        verl_rows(load_environment("counter"), split="train", tasks=number, agent_name="a")
