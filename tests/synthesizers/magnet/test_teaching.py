"""Magnet's positives by hints, which do not survive, and negatives from the student's own errors."""

from __future__ import annotations

import asyncio
import re
from itertools import islice
from typing import Any

import pytest

from data.messages import Role
from data.tasks import Task
from data.trajectories import Origin, Trajectory
from data.verdicts import Pair
from pipeline.chat.scripted import ScriptedChat
from pipeline.engines.base import Sampling
from pipeline.environments.blueprint import read_blueprint
from pipeline.environments.registry import load_environment
from pipeline.renderers.chatml import ChatMLRenderer
from synthesizers.base import Made
from synthesizers.hints import LABEL, MARK
from synthesizers.magnet.synthesizer import Magnet, hint_of
from tests.pipeline.rollout_world import Speaker
from tests.tiny import make_tiny_tokenizer

_CALL = re.compile(r"(\w+) (\{.*?\})(?:; |$)")


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatMLRenderer:
    return ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def written(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def obedient(renderer: ChatMLRenderer, *, otherwise: str = "Well.") -> Speaker:
    """A student that does what the latest hint says, and says `otherwise` where the last request has none."""

    def speech(prompt: list[int], _: Sampling) -> str:
        *before, request = re.split(r"<\|im_start\|>user\n(?!<tool_response>)", renderer.decode(prompt))
        assert before
        words, end, after = request.partition("<|im_end|>")
        assert end
        if MARK not in words:
            return otherwise if "<tool_response>" not in after else "Well."
        told = words.split(MARK)[1]
        if "Call nothing; say " in told:
            return told.split("say ", 1)[1].strip().removesuffix(".")
        calls, done = _CALL.findall(told), after.count("<tool_response>")
        found = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", after, re.DOTALL)
        return written(*calls[done]) if done < len(calls) else "\n".join(found)

    return Speaker(renderer, speech)


def run(magnet: Magnet, count: int) -> list[Made]:
    async def made() -> list[Made]:
        bases = list(islice(magnet.environment.tasks("train"), count))
        return [record async for record in magnet.synthesize(bases)]

    return asyncio.run(made())


def magnet(renderer: ChatMLRenderer, engine: Any, **options: Any) -> Magnet:
    environment = load_environment("travel_desk")
    return Magnet(environment=environment, engine=engine, renderer=renderer, k=1, observed=30, **options)


def kinds(records: list[Made]) -> tuple[list[Task], list[Trajectory], list[Pair]]:
    return (
        [record for record in records if isinstance(record, Task)],
        [record for record in records if isinstance(record, Trajectory)],
        [record for record in records if isinstance(record, Pair)],
    )


def test_a_hinted_teacher_succeeds_and_no_hint_survives(renderer: ChatMLRenderer) -> None:
    records = run(magnet(renderer, obedient(renderer), teacher="hinted", split=1.0), 4)
    tasks, trajectories, _ = kinds(records)
    assert len(trajectories) == len(tasks) >= 3
    assert all(trajectory.success for trajectory in trajectories)
    hints = [hint_of(turn) for task in tasks for turn in read_blueprint(task).turns]
    assert len({turn.expects for task in tasks for turn in read_blueprint(task).turns}) >= 2
    stored = [record.model_dump_json() for record in records]
    for trajectory in trajectories:
        assert LABEL in trajectory.labels and {s.origin for s in trajectory.segments} == {Origin.EDITED}
        assert sum(sum(segment.loss_mask(trajectory.turns)) for segment in trajectory.segments) > 0
        stored += [renderer.decode(segment.token_ids) for segment in trajectory.segments]
    for text in stored:
        assert MARK not in text and "Call in this order" not in text and "Call nothing" not in text
        assert not any(hint in text for hint in hints)


def test_the_students_first_wrong_turn_makes_a_pair(renderer: ChatMLRenderer) -> None:
    wrong = written("profile", "{}")
    engine = Speaker(
        renderer, lambda prompt, _: wrong if "<tool_response>" not in renderer.decode(prompt) else "Fine."
    )
    records = run(magnet(renderer, engine, teacher="policy", irrelevance=0.0, split=0.0), 4)
    tasks, trajectories, pairs = kinds(records)
    failed = [trajectory for trajectory in trajectories if trajectory.success is False]
    assert failed and 0 < len(pairs) <= len(failed)
    by_id = {trajectory.trajectory_id: trajectory for trajectory in trajectories}
    for pair in pairs:
        student = by_id[pair.parents[0]]
        task = next(task for task in tasks if task.task_id == student.task_id)
        planned = [
            [(call.name, call.arguments) for call in turn.calls] for turn in read_blueprint(task).turns
        ]
        assert pair.prompt == student.turns[: len(pair.prompt)] and pair.prompt[-1].role is not Role.ASSISTANT
        assert [call.name for turn in pair.rejected for call in turn.tool_calls] != [
            call.name for turn in pair.chosen for call in turn.tool_calls
        ]
        chosen = [(call.name, call.arguments) for turn in pair.chosen for call in turn.tool_calls]
        assert chosen and any(calls[-len(chosen) :] == chosen for calls in planned)
        assert pair.rejected == student.turns[len(pair.prompt) : len(pair.prompt) + len(pair.rejected)]
        assert pair.tools == student.segments[0].tools and pair.synthesizer == "magnet"


def test_pairs_of_finished_trajectories_are_made_by_a_resumed_synthesis(renderer: ChatMLRenderer) -> None:
    options: dict[str, Any] = {"teacher": "policy", "irrelevance": 0.0, "split": 0.0}
    engine = Speaker(renderer, lambda prompt, _: "Fine.")
    first = magnet(renderer, engine, **options)
    _, trajectories, pairs = kinds(run(first, 2))
    kept = {trajectory.trajectory_id: trajectory for trajectory in trajectories}
    silent = Speaker(renderer, [])
    again = magnet(renderer, silent, load=kept.get, **options)

    async def resumed() -> list[Made]:
        bases = list(islice(again.environment.tasks("train"), 2))
        return [record async for record in again.synthesize(bases, done=set(kept))]

    _, new, same = kinds(asyncio.run(resumed()))
    assert pairs and same == pairs and not new and not silent.prompts


def test_a_student_that_is_right_makes_no_pair(renderer: ChatMLRenderer) -> None:
    _, trajectories, pairs = kinds(run(magnet(renderer, obedient(renderer), teacher="hinted"), 2))
    assert all(trajectory.success for trajectory in trajectories) and not pairs


def test_wrong_calls_as_hints_make_whole_wrong_dialogues(renderer: ChatMLRenderer) -> None:
    engine = obedient(renderer, otherwise=written("profile", "{}"))
    options: dict[str, Any] = {"teacher": "policy", "irrelevance": 0.0, "split": 0.0, "negatives": 2}
    tasks, _, pairs = kinds(run(magnet(renderer, engine, **options), 3))
    misled = [pair for pair in pairs if len(pair.parents) == 2]
    assert misled and len(misled) < len(pairs)
    assert any(turn.tool_calls for pair in misled for turn in pair.rejected)
    for pair in misled:
        task = next(task for task in tasks if task.prompt == pair.prompt)
        planned = [call for turn in read_blueprint(task).turns for call in turn.calls]
        chosen = [(call.name, call.arguments) for turn in pair.chosen for call in turn.tool_calls]
        assert chosen == [(call.name, call.arguments) for call in planned]
        rejected = [call.name for turn in pair.rejected for call in turn.tool_calls]
        assert rejected in ([], ["profile"]), "the wrong call, or none where saying nothing was wrong"
        assert MARK not in pair.model_dump_json() and "Do this" not in pair.model_dump_json()


@pytest.mark.parametrize(
    ("verdict", "kept"),
    [
        ('{"reason": "another tool", "error": "wrong_tool"}', True),
        ('{"reason": "fine", "error": "ok"}', False),
        ('{"reason": "ok or wrong_tool", "error": "ok, wrong_tool"}', False),
    ],
)
def test_a_judge_acquits_and_one_without_a_verdict_proves_nothing(
    renderer: ChatMLRenderer, verdict: str, kept: bool
) -> None:
    judge = ScriptedChat(lambda turns, tools: verdict)
    engine = Speaker(renderer, lambda prompt, _: "Fine.")
    options: dict[str, Any] = {"teacher": "policy", "irrelevance": 0.0, "split": 0.0}
    records = run(magnet(renderer, engine, chats={"error_judge": judge}, **options), 2)
    assert bool(kinds(records)[2]) is kept and judge.asked
    assert "(no call)" in judge.asked[0][1].text
