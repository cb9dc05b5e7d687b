"""reasoning_gym's datasets as an environment of ours."""

from __future__ import annotations

import asyncio
from itertools import islice
from pathlib import Path

import pytest

from pipeline.environments.adapters.reasoning_gym import ReasoningGymEnvironment, ReasoningGymSession
from pipeline.environments.adapters.scored_text import Evaluates, is_harmless
from pipeline.environments.check import check_environment
from pipeline.environments.play import make_trajectory
from pipeline.environments.registry import load_environment
from pipeline.errors import ConfigError, JudgeError


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


ATTACKS = [
    "__import__('os').system('touch {path}')",
    "[__import__('os').system('touch {path}')]",
    "open('{path}', 'w').close()",
    "exec(chr(111)+chr(112))+3!",
    "9**9**9**9",
    "'a'*10**10",
    "(9**20)**20**20",
]


@pytest.mark.parametrize("dataset", ["spiral_matrix", "countdown", "polynomial_multiplication"])
def test_what_the_model_wrote_is_never_evaluated(dataset: str, tmp_path: Path) -> None:
    """The package's scorers call eval and parse_expr; the first two attacks make a file where they may."""

    async def play() -> list[float]:
        environment = ReasoningGymEnvironment(dataset=dataset, heldout=1, dev=1, train=3)
        task = next(environment.tasks("train"))
        totals = []
        for attack in [*ATTACKS, task.private_value()["answer"]]:
            async with await environment.open(task) as session:
                text = attack.replace("{path}", str(tmp_path / "made"))
                await session.call("answer", {"text": text}, "a")
                record = make_trajectory(environment, task, list(task.prompt), seed=0)
                totals.append((await session.verify(record)).total)
        return totals

    assert asyncio.run(play()) == [0.0] * len(ATTACKS) + [1.0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "python", "sympy"),
    [
        ("[[1, 2], [3, 4]]", True, False),
        ("1 2 3", True, False),
        ("DACE", True, False),
        ("x**2/2 + 3*x*sin(2*x) + C", False, True),
        ("(3 + 4) * 25 - 7.5", False, True),
        ("(x + 1)**3 - sqrt(x)", False, True),
        ("x**99", False, False),
        ("x.y", False, False),
        ("f(x)", False, False),
        ("5!", True, False),
        ("lambda: 1", False, False),
        ("[x for x in y]", False, False),
        ("exit()", False, False),
        ("((2**9)**9)**9", False, False),
    ],
)
def test_which_answers_are_harmless(text: str, python: bool, sympy: bool) -> None:
    assert is_harmless(text, Evaluates.PYTHON) is python
    assert is_harmless(text, Evaluates.SYMPY) is sympy
    assert is_harmless(text, Evaluates.NOTHING)


def test_an_answer_that_breaks_the_scorer_is_a_wrong_one_and_a_broken_scorer_is_none() -> None:
    class Picky:
        broken = False

        def __getitem__(self, index: int) -> dict[str, str]:
            return {"answer": "5"}

        def score_answer(self, answer: str, entry: dict[str, str]) -> float:
            if answer != "5" or self.broken:
                raise KeyError(answer)
            return 1.0

    async def verdict(text: str, *, broken: bool) -> float:
        environment = ReasoningGymEnvironment(dataset="chain_sum")
        task = next(environment.tasks("train"))
        task = task.model_copy(update={"private": '{"index":0,"answer":"5"}'})
        async with await environment.open(task) as session:
            assert isinstance(session, ReasoningGymSession)
            session.dataset, session.evaluates = Picky(), Evaluates.NOTHING
            session.dataset.broken = broken
            await session.call("answer", {"text": text}, "a")
            record = make_trajectory(environment, task, list(task.prompt), seed=0)
            return (await session.verify(record)).total

    assert asyncio.run(verdict("\x00", broken=False)) == 0.0
    assert asyncio.run(verdict("5", broken=False)) == 1.0
    with pytest.raises(JudgeError):
        asyncio.run(verdict("6", broken=True))


@pytest.mark.parametrize("dataset", ["complex_arithmetic", "game_of_life_halting"])
def test_nonsense_that_the_package_takes_for_right_scores_nothing(dataset: str) -> None:
    async def play(text: str) -> set[float]:
        environment = ReasoningGymEnvironment(dataset=dataset, heldout=1, dev=1, train=6)
        totals = set()
        for task in environment.tasks("train"):
            async with await environment.open(task) as session:
                await session.call("answer", {"text": text or task.private_value()["answer"]}, "a")
                record = make_trajectory(environment, task, list(task.prompt), seed=0)
                totals.add((await session.verify(record)).total)
        return totals

    for nonsense in ("nan", "NaN+nanj", "-inf", "?", "[]"):
        assert asyncio.run(play(nonsense)) == {0.0}, nonsense
    assert asyncio.run(play("")) == {1.0}
