"""python_math: answers found two ways, exact checks, the interpreter's observations, protocols, splits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from data.messages import ToolResult, ToolStatus, Turn, assistant
from data.tasks import Task
from data.trajectories import SpanKind, Termination, Trajectory
from pipeline.engines.base import Sampling
from pipeline.environments.agents import ListedAgent
from pipeline.environments.gold import call
from pipeline.environments.play import play
from pipeline.environments.python_math import INLINE, PythonMath, load
from pipeline.environments.python_math import templates_counting as counting
from pipeline.environments.python_math import templates_numbers as numbers
from pipeline.environments.python_math.answers import boxed, read_number
from pipeline.environments.python_math.generator import (
    MAX_ANSWER_LENGTH,
    TEMPLATES,
    draw_questions,
)
from pipeline.errors import ConfigError
from pipeline.renderers.chatml import ChatMLRenderer
from pipeline.rollout import Mode, RolloutSettings, rollout
from pipeline.sandbox.base import Outcome
from tests.pipeline.environments.conftest import Run
from tests.pipeline.environments.repair import StubSandbox
from tests.pipeline.environments.scripts import components
from tests.pipeline.rollout_world import Speaker
from tests.tiny import make_tiny_tokenizer

SEEN = [name for name, template in TEMPLATES.items() if not template.unseen]
UNSEEN = [name for name, template in TEMPLATES.items() if template.unseen]


@pytest.fixture(scope="module")
def world() -> Iterator[PythonMath]:
    environment = load()
    yield environment
    asyncio.run(environment.runner.close())


def first(name: str, environment: PythonMath | None = None) -> Task:
    split = "heldout_unseen" if TEMPLATES[name].unseen else "train"
    chosen = environment or load()
    return next(task for task in chosen.tasks(split) if task.template == name)


def observed(run: Run, world: PythonMath, code: str) -> ToolResult:
    async def episode() -> ToolResult:
        async with await world.open(first("residue")) as session:
            return await session.call("python", {"code": code}, "1")

    found: ToolResult = run(episode())
    return found


@pytest.mark.parametrize("name", TEMPLATES)
def test_two_ways_to_the_answer_agree(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Gold's code, executed here because it is ours, against the answer computed by another method."""
    split = "heldout_unseen" if TEMPLATES[name].unseen else "train"
    for drawn in itertools.islice(draw_questions(TEMPLATES[name], split), 12):
        exec(compile(drawn.code, name, "exec"), {})
        assert Fraction(capsys.readouterr().out.strip()) == drawn.answer, drawn
        assert len(str(drawn.answer)) <= MAX_ANSWER_LENGTH


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("protocol", ["chat", "inline"])
def test_gold_solves_each_template(run: Run, world: PythonMath, name: str, protocol: str) -> None:
    environment = load(protocol=protocol)
    environment.runner = world.runner
    task = first(name, environment)
    played = run(play(environment, task, environment.gold(task)))
    assert components(played) == {"success": 1, "answered": 1}
    assert task.budget.max_turns >= 2


def test_the_solvers_on_known_values() -> None:
    assert counting._ways(100, (1, 5, 10, 25, 50)) == 292
    assert numbers._orbit_sum(6) == 6 + 3 + 10 + 5 + 16 + 8 + 4 + 2 + 1
    assert numbers._legendre(100, 5) == 24
    assert numbers._power((1, 1, 1, 0), 10, 10**6)[0] == 89
    assert numbers._factors(24) == [(2, 3), (3, 1)]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("\\boxed{12}", "12"),
        ("so \\boxed{1} or rather \\boxed{\\frac{3}{4}}.", "3/4"),
        ("\\boxed{ -\\dfrac{6}{8} }", "-3/4"),
        ("$\\boxed{1{,}234}$", "1234"),
        ("\\boxed{1,234,567}", "1234567"),
        ("\\boxed{1\\,234}", "1234"),
        ("\\boxed{0.75}", "3/4"),
        ("\\boxed{.75}", "3/4"),
        ("\\boxed{ 3 / 4. }", "3/4"),
        ("\\boxed{\\frac34}", "3/4"),
        ("\\boxed{-\\frac 3{4}.}", "-3/4"),
        ("\\boxed{\\tfrac{-3}{4}}", "-3/4"),
        ("\\boxed{\\dfrac{1{,}500}{2 000}}", "3/4"),
        ("\\boxed{42.}", "42"),
        ("\\boxed{$42$}", "42"),
        ("\\boxed{\u221242}", "-42"),
        ("\\boxed{+ 42}", "42"),
        ("\\boxed{1 234 567}", "1234567"),
        ("\\boxed{1,234.50}", "2469/2"),
        ("\\boxed{2 1/2}", None),
        ("\\boxed{4 2}", None),
        ("\\boxed{\\frac123}", None),
        ("\\boxed{75\\%}", None),
        ("\\boxed{7.5e1}", None),
        ("\\boxed{\u0664\u0662}", None),
        ("\\boxed{1_000}", None),
        ("\\boxed{.}", None),
        (f"\\boxed{{{'1' * 4001}}}", None),
        ("\\boxed{6/8}", "3/4"),
        ("\\boxed{6/0}", None),
        ("\\boxed{\\frac{1}{0}}", None),
        ("\\boxed{12", None),
        ("\\boxed{}", None),
        ("\\boxed{x}", None),
        ("\\boxed{1,23}", None),
        ("\\boxed{9**9}", None),
        ("\\boxed{12} cents", "12"),
        ("12", None),
    ],
)
def test_reading_answers(text: str, number: str | None) -> None:
    inside = boxed(text)
    found = None if inside is None else read_number(inside)
    assert found == (None if number is None else Fraction(number))


def test_a_third_is_no_decimal_and_the_last_box_counts(run: Run, world: PythonMath) -> None:
    task = first("fraction_sum")
    answer = Fraction(task.private_value()["answer"])
    texts = {
        f"\\boxed{{{answer}}}": 1,
        f"\\boxed{{{2 * answer.numerator}/{2 * answer.denominator}}}": 1,
        f"\\boxed{{{float(answer):.10f}}}": 0,
        f"{answer}": 0,
        f"\\boxed{{{answer}}} \\boxed{{{answer + 1}}}": 0,
        "": 0,
    }
    for text, total in texts.items():
        played = run(play(world, task, ListedAgent([assistant(text)])))
        assert played.reward is not None and played.reward.total == total, text


def test_a_box_in_code_or_before_a_call_is_no_answer(run: Run, world: PythonMath) -> None:
    task = first("residue")
    answer = f"\\boxed{{{task.private_value()['answer']}}}"
    early = call("python", code=f"print(r'{answer}')").model_copy(update={"parts": assistant(answer).parts})
    assert run(play(world, task, ListedAgent([early]))).reward.total == 0
    assert run(play(world, task, ListedAgent([early, assistant("See above.")]))).reward.total == 0


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print(6 * 7)", "42"),
        ("x = 6\nx * 7", "42"),
        ("x = 6", "no output"),
        ("```python\nprint(1)\n```", "1"),
        ("def f(n):\n    return n\n\nf('a')", "'a'"),
        ("for n in range(2):\n    print(n)", "0\n1"),
        ("from fractions import Fraction\nprint(Fraction(6, 8))", "3/4"),
        ("print(len(str(10**5000)))", "5001"),
        ("if __name__ == '__main__':\n    print('main')", "main"),
    ],
)
def test_what_the_interpreter_shows(run: Run, world: PythonMath, code: str, text: str) -> None:
    result = observed(run, world, code)
    assert (result.status, result.text) == (ToolStatus.OK, text)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print(1)\nprint(x)", "NameError: name 'x' is not defined (line 2)"),
        ("1 / 0", "ZeroDivisionError: division by zero (line 1)"),
        ("print(", "SyntaxError: '(' was never closed (line 1)"),
        ("import sys\nsys.exit(0)", "SystemExit: 0 (line 2)"),
        ("import os\nos._exit(3)", "ended with exit code 3"),
        ("input()", "EOFError: EOF when reading a line (line 1)"),
    ],
)
def test_errors_are_short_observations(run: Run, world: PythonMath, code: str, text: str) -> None:
    result = observed(run, world, code)
    assert (result.status, result.text) == (ToolStatus.TOOL_ERROR, text)


def test_nothing_is_remembered_and_nothing_of_ours_is_in_reach(run: Run, world: PythonMath) -> None:
    assert observed(run, world, "secret = 1\nopen('kept', 'w').write('x')").status is ToolStatus.OK
    assert "NameError" in observed(run, world, "print(secret)").text
    assert "FileNotFoundError" in observed(run, world, "print(open('kept').read())").text
    assert "ModuleNotFoundError" in observed(run, world, "import pipeline.environments.python_math").text
    checkout = str(Path(__file__).parents[3])
    assert "FileNotFoundError" in observed(run, world, f"import os\nprint(os.listdir({checkout!r}))").text


@pytest.mark.parametrize(
    ("outcome", "status", "text"),
    [
        (Outcome.TIMEOUT, ToolStatus.TOOL_ERROR, "timed out after 5 s"),
        (Outcome.OUT_OF_MEMORY, ToolStatus.TOOL_ERROR, "out of memory"),
        (None, ToolStatus.INFRA_ERROR, "no jail would start"),
    ],
)
def test_limits_are_named_and_failures_are_not_the_agents(
    run: Run, outcome: Outcome | None, status: ToolStatus, text: str
) -> None:
    environment = load()
    environment.runner._sandbox = StubSandbox(outcome)
    result = observed(run, environment, "print(1)")
    assert result.status is status and text in result.text


def test_a_clocked_ending_is_not_remembered(run: Run) -> None:
    environment = load()
    environment.runner._sandbox = StubSandbox(Outcome.TIMEOUT)
    observed(run, environment, "print(1)")
    observed(run, environment, "print(1)")
    assert environment.runner.num_runs == 2
    environment.runner._sandbox = StubSandbox(Outcome.OK)
    observed(run, environment, "print(2)")
    observed(run, environment, "print(2)")
    assert environment.runner.num_runs == 3


def inline_rollout(world: PythonMath, renderer: ChatMLRenderer, task: Task, pieces: list[str]) -> Trajectory:
    environment = load(protocol="inline")
    environment.runner = world.runner
    return asyncio.run(
        rollout(
            task,
            environment=environment,
            engine=Speaker(renderer, list(pieces)),
            renderer=renderer,
            sampling=Sampling(max_tokens=400),
            settings=RolloutSettings(mode=Mode.INLINE, inline=INLINE),
        )
    )


def test_the_inline_protocol_splices_the_output_into_the_turn(
    world: PythonMath, tmp_path_factory: pytest.TempPathFactory
) -> None:
    renderer = ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))
    task = first("residue", load(protocol="inline", templates=["residue"]))
    task = Task(**{**task.model_dump(exclude={"task_id", "budget"}), "budget": {"max_tokens": 4000}})
    private = task.private_value()
    pieces = [
        f"Let me see. <code>\n```python\n{private['code']}\n```\n</code>",
        f"<answer>\\boxed{{{private['answer']}}}</answer>",
    ]
    played = inline_rollout(world, renderer, task, pieces)
    assert played.success and played.termination is Termination.FINISHED
    [segment] = played.segments
    assert segment.tools == ()
    [observation] = [span for span in segment.spans if span.kind is SpanKind.OBSERVATION]
    shown = renderer.decode(list(segment.token_ids[observation.start : observation.end]))
    assert shown == f"\n<interpreter>{private['answer']}</interpreter>\n"
    wrong = inline_rollout(world, renderer, task, [pieces[0], "<answer>\\boxed{1/7}</answer>"])
    assert wrong.reward is not None and wrong.reward.total == 0


def test_inline_gold_writes_what_the_protocol_reads(run: Run, world: PythonMath) -> None:
    environment = load(protocol="inline")
    script = environment.gold(first("dice", environment))
    turn = script.next_turn([])
    assert isinstance(turn, Turn)
    written = turn.text.removeprefix(INLINE.open).removesuffix(INLINE.close).strip()
    assert turn.tool_calls[0].parsed_arguments() == {"code": written}


def test_ten_thousand_train_tasks_and_no_question_in_two_splits() -> None:
    environment = load()
    tasks = {split: list(environment.tasks(split)) for split in environment.splits}
    assert {split: len(listed) for split, listed in tasks.items()} == {
        "train": 12_000,
        "dev": 600,
        "heldout": 1_200,
        "heldout_unseen": 600,
    }
    texts = [task.prompt[-1].text for listed in tasks.values() for task in listed]
    codes = [task.private_value()["code"] for listed in tasks.values() for task in listed]
    assert len(set(texts)) == len(texts) == len(set(codes))
    assert max(map(len, texts)) < 300
    assert len(SEEN) >= 12 and len(UNSEEN) == 3
    assert {task.template for task in tasks["heldout_unseen"]} == set(UNSEEN)
    for split in ("train", "dev", "heldout"):
        assert {task.template for task in tasks[split]} == set(SEEN)


def test_few_answers_can_be_guessed() -> None:
    """The commonest answer of a template is right for a few percent of its questions."""
    for name, template in TEMPLATES.items():
        split = "heldout_unseen" if template.unseen else "train"
        answers = [drawn.answer for drawn in itertools.islice(draw_questions(template, split), 150)]
        assert max(map(answers.count, answers)) <= 8, name


def test_wrong_options_are_named() -> None:
    with pytest.raises(ConfigError, match="'sums'"):
        load(templates=["sums"])
    with pytest.raises(ConfigError, match="chat, inline"):
        load(protocol="json")
    assert {task.template for task in load(templates=["gifts"]).tasks("dev")} == {"gifts"}
