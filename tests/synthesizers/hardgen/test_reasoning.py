"""Reasoning is checked by execution, hints reveal nothing and survive nowhere, and three tries are all."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from data import canonical
from data.errors import ConfigError
from data.messages import Role, Turn
from data.tasks import Task
from data.trajectories import Origin, Trajectory
from pipeline.chat.scripted import ScriptedChat
from pipeline.engines.base import Sampling
from pipeline.environments.base import Environment
from pipeline.environments.blueprint import read_blueprint
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment
from pipeline.renderers.chatml import ChatMLRenderer
from synthesizers.execution import Executed
from synthesizers.hardgen.hints import _TEMPLATES, PLAIN, Secrets, hint_problem, secrets_of
from synthesizers.hardgen.reasoning import ChatPlayer, PolicyPlayer
from synthesizers.hardgen.record import NO_REASONING, UNREASONED
from synthesizers.hardgen.synthesizer import HardGen
from synthesizers.hints import LABEL, MARK
from tests.pipeline.rollout_world import Speaker
from tests.synthesizers.hardgen.lab import ENGINE, Run, run

Says = Callable[[str, str, int], str]


@pytest.fixture(scope="module")
def travel() -> Environment:
    return load_environment("travel_desk", templates=["cheapest", "earliest"])


@pytest.fixture(scope="module")
def gold(renderer: ChatMLRenderer, travel: Environment) -> Run:
    return run(renderer, travel, 3, targets={"book"}, observed=16, min_calls=2)


def written(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def solver(renderer: ChatMLRenderer, gold: Run, *, when: Callable[[str], bool]) -> Speaker:
    """A policy that solves a task where `when` of the user's words holds, and else says that it is done."""
    blueprints = [read_blueprint(task) for task in gold.tasks]

    def speech(prompt: list[int], _: Sampling) -> str:
        text = renderer.decode(prompt)
        said = re.split(r"<\|im_start\|>user\n(?!<tool_response>)", text)[-1]
        words, after = said.split("<|im_end|>", 1)
        turn = next(b.turns[0] for b in blueprints if words.startswith(b.turns[0].text))
        done = after.count("<tool_response>")
        if not when(words) or done == len(turn.calls):
            return turn.reply if done else "Done."
        return written(turn.calls[done].name, turn.calls[done].arguments.strip())

    return Speaker(renderer, speech)


def hinted(renderer: ChatMLRenderer, gold: Run, when: Callable[[str], bool], **options: Any) -> Run:
    engine = solver(renderer, gold, when=when)
    return run(
        renderer,
        gold.environment,
        3,
        targets={"book"},
        observed=16,
        min_calls=2,
        engine=engine,
        teacher="hinted",
        **options,
    )


def test_a_policy_that_solves_it_alone_needs_no_hint(renderer: ChatMLRenderer, gold: Run) -> None:
    made = hinted(renderer, gold, lambda words: True)
    assert len(made.trajectories) == len(made.tasks) == 3
    for row in made.trajectories:
        assert row.success and {segment.origin for segment in row.segments} == {Origin.SAMPLED}
        assert LABEL not in row.labels
        assert made.plans[row.task_id]["reasoning"] == "policy: try 1 of 3"


def test_a_hint_helps_and_stands_in_no_stored_turn(renderer: ChatMLRenderer, gold: Run) -> None:
    made = hinted(renderer, gold, lambda words: MARK in words)
    second = [row for row in made.trajectories if row.success]
    assert len(made.trajectories) == 6 and len({row.task_id for row in second}) == 3
    assert all("try 2 of 3, hint by template" in plan["reasoning"] for plan in made.plans.values())
    texts = [record.model_dump_json() for record in made.records]
    for row in second:
        assert LABEL in row.labels and {segment.origin for segment in row.segments} == {Origin.EDITED}
        assert row.task_id in {task.task_id for task in made.tasks}
        texts += [renderer.decode(segment.token_ids) for segment in row.segments]
    hints = [hint for some in _TEMPLATES.values() for hint in some]
    assert not any(MARK in text or hint in text for text in texts for hint in hints)


def test_after_three_tries_a_verdict_and_every_try_is_kept(renderer: ChatMLRenderer, gold: Run) -> None:
    made = hinted(renderer, gold, lambda words: False)
    assert len(made.trajectories) == 9 and not any(row.success for row in made.trajectories)
    assert len({row.trajectory_id for row in made.trajectories}) == 9
    failed = [verdict for verdict in made.verdicts if verdict.reason == "reasoning_failed"]
    assert len(failed) == 3 and not any(verdict.keep for verdict in failed)
    assert {verdict.trajectory_id for verdict in failed} <= {r.trajectory_id for r in made.trajectories}
    fewer = hinted(renderer, gold, lambda words: False, max_tries=1)
    assert len(fewer.trajectories) == 3


def test_tries_of_an_earlier_run_are_read_and_not_made_again(renderer: ChatMLRenderer, gold: Run) -> None:
    first = hinted(renderer, gold, lambda words: MARK in words)
    kept = {row.trajectory_id: row for row in first.trajectories}
    again = hinted(renderer, gold, lambda words: MARK in words, load=kept.get, done=set(kept))
    assert not again.trajectories and again.plans == first.plans
    early = {row.trajectory_id: row for row in first.trajectories if not row.success}
    rest = hinted(renderer, gold, lambda words: MARK in words, load=early.get, done=set(early))
    assert {row.content_digest() for row in rest.trajectories} == {
        row.content_digest() for row in first.trajectories if row.success
    }


def test_without_a_reasoner_gold_teaches_and_the_record_says_so(gold: Run) -> None:
    assert len(gold.trajectories) == 3
    assert all(row.success and UNREASONED in row.labels for row in gold.trajectories)
    assert {plan["reasoning"] for plan in gold.plans.values()} == {NO_REASONING}


class Thinker:
    """A reasoner chat: first guesses, and follows gold where it was told to think again."""

    def __init__(self, gold: Run, *, guesses: bool = True) -> None:
        self.turns = [read_blueprint(task).turns[0] for task in gold.tasks]
        self.guesses = guesses

    def __call__(self, turns: Sequence[Turn], _: Any) -> str:
        asked = turns[1].text
        turn = next(turn for turn in self.turns if f"user: {turn.text}" in asked)
        done = asked.count("result of ")
        told = "An earlier try" in asked or not self.guesses
        if not told:
            return self._reply("I just say so.", reply="Done.")
        if done == len(turn.calls):
            return self._reply("All is there.", reply=turn.reply)
        call = turn.calls[done]
        made = {"name": call.name, "arguments": canonical.loads(call.arguments)}
        return self._reply(f"Step {done + 1} comes now.", calls=[made])

    def _reply(self, thought: str, *, calls: Sequence[Any] = (), reply: str = "") -> str:
        return canonical.dumps({"thought": thought, "calls": list(calls), "reply": reply})


def reasoned(
    renderer: ChatMLRenderer, gold: Run, thinker: Thinker, verifier: Any = None, **options: Any
) -> tuple[Run, ScriptedChat]:
    chat = ScriptedChat(thinker, name="thinker")
    chats = {"reasoner": chat} | ({"verifier": verifier} if verifier else {})
    world = gold.environment
    made = run(renderer, world, 3, targets={"book"}, observed=16, min_calls=2, chats=chats, **options)
    return made, chat


def test_a_chat_reasons_and_its_thoughts_are_kept(renderer: ChatMLRenderer, gold: Run) -> None:
    made, chat = reasoned(renderer, gold, Thinker(gold, guesses=False))
    assert len(made.trajectories) == 3 and all(row.success for row in made.trajectories)
    for row in made.trajectories:
        thoughts = [turn.reasoning for turn in row.turns if turn.role is Role.ASSISTANT]
        assert thoughts[:-1] == ["Step 1 comes now.", "Step 2 comes now."] and thoughts[-1]
        assert row.policy.name == "thinker" and UNREASONED not in row.labels
    for asked in chat.asked:
        text = "\n".join(turn.text for turn in asked)
        assert "flights" in text and "book_adv" not in text  # the primitive tools only


def test_a_chats_hint_that_reveals_something_is_asked_for_again(renderer: ChatMLRenderer, gold: Run) -> None:
    def said(hint: str) -> str:
        return canonical.dumps({"hint": hint})

    leaks = ["Call flights first.", "Fill in src.", "It is {found}."]
    good = "Nothing was found out before you answered."
    turns = {turn.text: turn for turn in Thinker(gold).turns}

    def verify(asked: Sequence[Turn], _: Any) -> str:
        turn = next(turn for text, turn in turns.items() if text in asked[1].text)
        if "not usable" in asked[1].text:
            return said(good)
        leak = leaks[sum(map(ord, turn.text)) % len(leaks)]
        return said(leak.format(found=canonical.loads(turn.calls[-1].arguments)["flight"]))

    verifier = ScriptedChat(verify, name="verifier")
    made, chat = reasoned(renderer, gold, Thinker(gold), verifier)
    assert sum(bool(row.success) for row in made.trajectories) == 3 and len(made.trajectories) == 6
    assert all("hint by verifier" in plan["reasoning"] for plan in made.plans.values())
    prompts = "\n".join(asked[1].text for asked in chat.asked)
    assert good in prompts and not any(leak.split("{")[0] in prompts for leak in leaks)
    stored = "\n".join(record.model_dump_json() for record in made.records)
    assert good not in stored


def test_hints_that_reveal_something_twice_end_the_reasoning(renderer: ChatMLRenderer, gold: Run) -> None:
    leaking = ScriptedChat(lambda turns, tools: canonical.dumps({"hint": "Call flights."}), name="verifier")
    made, chat = reasoned(renderer, gold, Thinker(gold), leaking)
    assert len(made.trajectories) == 3 and not any(row.success for row in made.trajectories)
    assert sum(verdict.reason == "leaking_hint" for verdict in made.verdicts) == 3
    assert not any("Call flights" in turn.text for asked in chat.asked for turn in asked)


def test_a_reasoner_whose_reply_stays_invalid_has_failed_its_try(renderer: ChatMLRenderer, gold: Run) -> None:
    chat = ScriptedChat(lambda turns, tools: "I cannot say.", name="mute")
    made = run(
        renderer,
        gold.environment,
        1,
        targets={"book"},
        observed=16,
        min_calls=2,
        chats={"reasoner": chat},
        max_tries=2,
    )
    assert [row.success for row in made.trajectories] == [False, False]
    assert [verdict.reason for verdict in made.verdicts if not verdict.keep] == ["reasoning_failed"]


@pytest.mark.parametrize("teacher", ["policy", "hinted"])
def test_two_who_act_are_refused(renderer: ChatMLRenderer, travel: Environment, teacher: Any) -> None:
    chat = ScriptedChat([], name="x")
    with pytest.raises(ConfigError, match=f"chats.reasoner and teacher: {teacher} both act"):
        HardGen(
            environment=travel,
            engine=ENGINE,
            renderer=renderer,
            random_choice=True,
            teacher=teacher,
            chats={"reasoner": chat},
        )


def test_the_policy_reasons_where_a_chat_plays_the_other_roles(
    renderer: ChatMLRenderer, travel: Environment
) -> None:
    players = {}
    for teacher in ("gold", "hinted"):
        options: dict[str, Any] = {
            "random_choice": True,
            "teacher": teacher,
            "chat": ScriptedChat([], name="x"),
        }
        made = HardGen(environment=travel, engine=ENGINE, renderer=renderer, **options)
        players[teacher] = type(made._player())
    assert players == {"gold": ChatPlayer, "hinted": PolicyPlayer}


def secrets(gold: Run, task: Task) -> Secrets:
    played: Trajectory = asyncio.run(play(gold.environment, task, gold.environment.gold(task)))
    results = {turn.result.call_id: turn.result for turn in played.turns if turn.result}
    calls = [call for turn in played.turns for call in turn.tool_calls]
    history = [Executed(call, results[call.call_id], "", "") for call in calls]

    async def shown() -> Any:
        session = await gold.environment.open(task)
        return session.tools

    return secrets_of(task, asyncio.run(shown()), history, "book_adv")


def test_what_a_hint_may_not_hold(gold: Run) -> None:
    for task in gold.tasks:
        kept = secrets(gold, task)
        turn = read_blueprint(task).turns[0]
        route, found = (canonical.loads(call.arguments) for call in turn.calls)
        assert hint_problem("Call flights first.", kept).startswith("it names the tool")
        assert hint_problem("One call of book_adv would do.", kept).startswith("it names the tool")
        assert hint_problem("The dst is wrong.", kept).startswith("it names the parameter")
        assert hint_problem(f"Take {found['flight']}.", kept).startswith("it says")
        assert hint_problem(f"Take {found['flight'].lower()}!", kept).startswith("it says")
        assert not hint_problem(f"You said {route['dst']}: mind it.", kept)
        for hint in (PLAIN, *(hint for some in _TEMPLATES.values() for hint in some)):
            assert not hint_problem(hint, kept)
