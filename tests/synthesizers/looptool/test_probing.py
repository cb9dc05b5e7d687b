"""Greedy probing: which steps there are, what matches, own-output perplexity, and what breaks."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import pytest

from data.messages import ToolStatus, Turn, assistant
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.engines.base import Sampling
from pipeline.engines.scripted import Fault, ScriptedEngine, continue_text, continue_turns
from pipeline.environments.registry import load_environment
from pipeline.errors import ConfigError, EngineError
from pipeline.renderers.chatml import ChatMLRenderer
from pipeline.rollout_settings import RolloutSettings
from synthesizers.demonstration import Demonstration
from synthesizers.looptool.probing import Probe, ProbeVerdict, perplexity, probe
from synthesizers.looptool.samples import difference, step_samples
from tests import samples


class Gold:
    """Demonstrations of travel_desk, and an engine that says what they say, but for planned exceptions."""

    def __init__(self, renderer: ChatMLRenderer, count: int = 6) -> None:
        self.renderer = renderer
        self.environment = load_environment("travel_desk")
        self.tasks: dict[str, Task] = {}
        self.rows: list[Trajectory] = []
        self.says: dict[tuple[int, ...], Turn] = {}
        bases = list(islice(self.environment.tasks("train"), count))
        self.tasks = {task.task_id: task for task in bases}

        async def made() -> None:
            demonstration = Demonstration(environment=self.environment, renderer=renderer)
            async for row in demonstration.synthesize(bases):
                self.rows.append(row)

        asyncio.run(made())
        for row in self.rows:
            for sample in step_samples(row):
                self.says[sample.context] = sample.label

    def engine(self, **options: Any) -> ScriptedEngine:
        def say(prompt: Sequence[int], _: random.Random) -> Turn:
            return self.says[tuple(prompt)]

        return ScriptedEngine(continue_turns(say, self.renderer), **options)

    def probed(self, engine: Any, rows: Sequence[Trajectory] | None = None, **options: Any) -> list[Probe]:
        async def run() -> list[Probe]:
            made = probe(
                self.rows if rows is None else rows,
                engine=engine,
                renderer=self.renderer,
                environment=self.environment,
                load_task=self.tasks.get,
                **options,
            )
            return sorted([each async for each in made], key=lambda each: (each.trajectory_id, each.turn))

        return asyncio.run(run())


@pytest.fixture(scope="module")
def gold(renderer: ChatMLRenderer) -> Gold:
    return Gold(renderer)


def test_a_step_is_an_assistant_turn_with_exactly_the_tokens_before_it(gold: Gold) -> None:
    row = max(gold.rows, key=lambda each: len(each.turns))
    steps = list(step_samples(row))
    assert [step.turn for step in steps] == [
        i for i, turn in enumerate(row.turns) if turn.role == "assistant"
    ]
    [segment] = row.segments
    for step in steps:
        assert segment.token_ids[: len(step.context)] == step.context and step.tools == segment.tools
        assert gold.renderer.decode(step.context).endswith("<|im_start|>assistant\n")
        assert step.step_id == f"{row.trajectory_id}#{step.turn}"


def test_steps_go_by_status_weight_and_success_never_by_the_word_error() -> None:
    search, book = samples.call("search", city="Rome"), samples.call("book", offer=1)
    row = samples.trajectory((search, ToolStatus.TOOL_ERROR), book, "Done.")
    assert [step.turn for step in step_samples(row)] == [4, 6]
    found = row.turns[5].result
    assert found is not None
    spoken = found.model_copy(update={"parts": samples.messages.text_parts("error 7")})
    worded = row.turns[5].model_copy(update={"result": spoken})
    talking = row.model_copy(update={"turns": (*row.turns[:5], worded, *row.turns[6:])})
    assert [step.turn for step in step_samples(talking)] == [4, 6]
    silent = row.turns[4].model_copy(update={"weight": 0.0})
    masked = row.model_copy(update={"turns": (*row.turns[:4], silent, *row.turns[5:])})
    assert [step.turn for step in step_samples(masked)] == [6]
    assert not list(step_samples(samples.trajectory(book, "Done.", reward=0.0)))


def calls(*made: tuple[str, dict[str, Any]]) -> Turn:
    return assistant("", *(samples.call(name, **arguments) for name, arguments in made))


@pytest.mark.parametrize(
    ("label", "written", "reason"),
    [
        (calls(("f", {"a": 1}), ("g", {"a": 2})), calls(("g", {"a": 2}), ("f", {"a": 1})), ""),
        (calls(("f", {"a": 1}), ("f", {"a": 1})), calls(("f", {"a": 1})), "other_calls"),
        (calls(("f", {"a": 1, "b": 2})), calls(("f", {"b": 2, "a": 1})), ""),
        (calls(("f", {"a": 1})), calls(("f", {"a": True})), "other_calls"),
        (calls(("f", {"a": 1})), assistant("Done."), "text_for_call"),
        (assistant("Done."), calls(("f", {"a": 1})), "call_for_text"),
        (assistant("Booked."), assistant("That is done."), ""),
        (assistant("ASK day"), assistant("ASK: day, please"), ""),
        (assistant("ASK day"), assistant("ASK city"), "other_answer"),
        (assistant("Booked."), assistant("REFUSE budget"), "other_answer"),
        (assistant("Booked."), assistant(" "), "other_answer"),
        (assistant("ANSWER $210"), assistant("ANSWER 210"), ""),
        (assistant("So <answer>42</answer>"), assistant("<answer> 42. </answer>"), ""),
        (assistant("So <answer>42</answer>"), assistant("So <answer>41</answer>"), "other_answer"),
        (assistant(r"\boxed{1/2}"), assistant(r"So \boxed{1/2}."), ""),
        (assistant(r"\boxed{1/2}"), assistant(r"\boxed{12}"), "other_answer"),
        (assistant("ANSWER 3.5"), assistant("ANSWER 3.7"), "other_answer"),
        (assistant("Answer: Rome"), assistant("It is Rome."), "other_answer"),
    ],
)
def test_calls_match_as_a_multiset_and_words_by_their_typed_answer(
    label: Turn, written: Turn, reason: str
) -> None:
    assert difference(label, written) == reason


def test_perplexity_of_the_oracle() -> None:
    assert perplexity([-0.2] * 7) == pytest.approx(1.221, abs=5e-4)
    with pytest.raises(ValueError, match="at least one token"):
        perplexity([])


def test_a_model_that_says_the_labels_masters_them(gold: Gold) -> None:
    engine = gold.engine()
    probes = gold.probed(engine)
    assert len(probes) == len(gold.says) > 10
    assert {each.verdict for each in probes} == {ProbeVerdict.MASTERED}
    assert {each.weights for each in probes} == {"scripted-0"}
    assert engine.num_calls == len(probes)


def test_perplexity_is_of_the_whole_output_thinking_included(renderer: ChatMLRenderer, gold: Gold) -> None:
    row = gold.rows[0]
    [first, *_] = step_samples(row)
    text = renderer.decode(row.segments[0].token_ids[len(first.context) :]).split("<|im_end|>")[0]
    thinking = f"<think>\nThe user wants a look-up.\n</think>\n{text}"
    engine = ScriptedEngine(continue_text(lambda prompt, _: thinking, renderer))
    [made] = [each for each in gold.probed(engine, [row]) if each.turn == first.turn]
    assert made.verdict is ProbeVerdict.MASTERED and made.predicted.startswith("<think>")
    whole = asyncio.run(engine.score([*first.context, *made.token_ids]))[-len(made.token_ids) :]
    assert made.perplexity == pytest.approx(math.exp(-sum(whole) / len(whole)))
    spoken = whole[-len(renderer.encode(text)) :]
    assert made.perplexity != pytest.approx(math.exp(-sum(spoken) / len(spoken)))


def test_probing_decodes_greedily_whatever_the_policy_samples_with(gold: Gold) -> None:
    asked: list[Sampling] = []
    engine = gold.engine()
    generate = engine.generate

    async def noting(token_ids: list[int], sampling: Sampling, **options: Any) -> Any:
        asked.append(sampling)
        return await generate(token_ids, sampling, **options)

    engine.generate = noting  # type: ignore[method-assign]
    gold.probed(engine, gold.rows[:1], sampling=Sampling(temperature=1.0, top_p=0.5, max_tokens=70, seed=3))
    assert asked and all(each.temperature == 0.0 and not each.truncated for each in asked)
    assert {each.max_tokens for each in asked} == {70} and all(each.stop_token_ids for each in asked)


def test_what_is_cut_off_is_no_match_and_what_breaks_says_nothing(gold: Gold) -> None:
    row = gold.rows[0]
    cut = gold.probed(gold.engine(), [row], sampling=Sampling(max_tokens=2))
    assert {(each.verdict, each.reason) for each in cut} == {(ProbeVerdict.MISMATCH, "truncated")}
    narrow = gold.probed(gold.engine(), [row], settings=RolloutSettings(max_context_tokens=8))
    assert {each.verdict for each in narrow} == {ProbeVerdict.TOO_LONG}
    assert all(each.reason.endswith("of 8 tokens") and each.perplexity is None for each in narrow)
    broken = gold.probed(gold.engine(faults={0: Fault.ERROR, 1: Fault.GARBAGE}), [row], max_in_flight=1)
    assert [each.verdict for each in broken].count(ProbeVerdict.INFRA) == 2
    again = gold.probed(
        gold.engine(), [row], done={each.step_id for each in broken if each.verdict is not ProbeVerdict.INFRA}
    )
    assert len(again) == 2 and {each.verdict for each in again} == {ProbeVerdict.MASTERED}


def test_an_engine_that_is_down_ends_the_probing(gold: Gold) -> None:
    with pytest.raises(EngineError, match="3 probes in a row broke"):
        gold.probed(gold.engine(faults={0: Fault.DIE}), give_up_after=3)


def test_inline_worlds_have_no_steps(gold: Gold) -> None:
    inline = type("Inline", (), {"inline": object(), "name": "reader"})()
    made: Callable[[], Any] = lambda: anext(  # noqa: E731 one expression
        probe([], engine=gold.engine(), renderer=gold.renderer, environment=inline, load_task=gold.tasks.get)
    )
    with pytest.raises(ConfigError, match="reader writes calls inline"):
        asyncio.run(made())
