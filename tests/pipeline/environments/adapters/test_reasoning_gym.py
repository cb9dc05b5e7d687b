"""reasoning_gym's datasets as an environment of ours."""

from __future__ import annotations

import asyncio
from itertools import islice

import pytest

from pipeline.environments.adapters.reasoning_gym import ReasoningGymEnvironment
from pipeline.environments.check import check_environment
from pipeline.environments.play import make_trajectory
from pipeline.environments.registry import load_environment
from pipeline.errors import ConfigError


@pytest.mark.parametrize("dataset", ["chain_sum", "spell_backward", "word_sorting"])
def test_the_contract_holds(dataset: str) -> None:
    environment = load_environment("reasoning_gym", dataset=dataset)
    results = asyncio.run(check_environment(environment, num_tasks=6, num_ids=60))
    assert all(result.passed for result in results), results


def test_knobs_make_it_harder_and_another_version() -> None:
    easy, hard = (
        ReasoningGymEnvironment(dataset="chain_sum", knobs={"min_terms": n, "max_terms": n}) for n in (2, 9)
    )
    questions = [next(one.tasks("train")).prompt[0].text for one in (easy, hard)]
    operators = [sum(question.count(sign) for sign in (" + ", " - ")) for question in questions]
    assert operators == [1, 8] and easy.version != hard.version


def test_partial_credit_is_a_component_and_no_success() -> None:
    async def total(text: str | None) -> tuple[float, float]:
        environment = ReasoningGymEnvironment(dataset="word_sorting")
        task = next(environment.tasks("train"))
        async with await environment.open(task) as session:
            if text is not None:
                await session.call("answer", {"text": text or task.private_value()["answer"]}, "a")
            turns = list(task.prompt)
            reward = await session.verify(make_trajectory(environment, task, turns, seed=0))
        return reward.total, next(part.value for part in reward.components if part.name == "score")

    assert asyncio.run(total("")) == (1.0, 1.0)
    assert asyncio.run(total(None)) == (0.0, 0.0)
    wrong, credit = asyncio.run(total("no such words"))
    assert wrong == 0.0 and 0.0 <= credit < 1.0


def test_no_question_is_asked_in_two_splits() -> None:
    environment = ReasoningGymEnvironment(dataset="chain_sum", knobs={"max_terms": 2, "max_digits": 1})
    asked = {
        split: [task.prompt[0].text for task in islice(environment.tasks(split), 150)]
        for split in environment.splits
    }
    everything = [question for questions in asked.values() for question in questions]
    assert len(set(everything)) == len(everything) > 150


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no dataset 'sums'; it has .*chain_sum"):
        ReasoningGymEnvironment(dataset="sums")
    with pytest.raises(ConfigError, match=r"no knobs \['terms'\]; it has min_terms, max_terms"):
        ReasoningGymEnvironment(dataset="chain_sum", knobs={"terms": 3})
    with pytest.raises(ConfigError, match="refuses"):
        ReasoningGymEnvironment(dataset="chain_sum", knobs={"min_terms": 5, "max_terms": 2})
    unscored = ReasoningGymEnvironment(dataset="graph_color")
    with pytest.raises(ConfigError, match="stores no answers"):
        unscored.gold(next(unscored.tasks("train")))
