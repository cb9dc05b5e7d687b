"""Back-and-forth translation by scripted chats, and Magnet run through the command with them."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from data import canonical
from data.messages import Turn
from data.store import Store
from data.tasks import Task
from data.verdicts import Verdict
from pipeline.chat.scripted import ScriptedChat
from pipeline.environments.blueprint import read_blueprint
from pipeline.environments.registry import load_environment
from pipeline.renderers.chatml import ChatMLRenderer
from synthesizers.base import Made
from synthesizers.execution import Trial
from synthesizers.grounding.calls import ground
from synthesizers.grounding.evidence import make_pool
from synthesizers.magnet.roles import ERROR_JUDGE, FORWARD_TRANSLATOR, ForwardRequest, JudgeRequest
from synthesizers.magnet.synthesizer import Magnet
from synthesizers.magnet.translation import Translator, Unwritten, Written
from synthesizers.phrasing.closings import TurnCalls
from synthesizers.worlds import whole_world
from tests.flows.lab import digests, recipe, trajsmith, write_recipe
from tests.tiny import make_tiny_tokenizer

GOLDEN = Path(__file__).parent / "golden"
SAID = r'("[^"]*"|[^ ",]+) \(the '


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def renderer(tokenizer: Path) -> ChatMLRenderer:
    return ChatMLRenderer.load(tokenizer)


@pytest.fixture(scope="module")
def nested() -> TurnCalls:
    """Flights of a route looked up and one of them booked; the look-up is not mentioned."""

    async def made() -> TurnCalls:
        environment = load_environment("travel_desk", templates=["cheapest"])
        base = whole_world(next(iter(environment.tasks("train"))))
        pool = await make_pool(environment, base, num_corpus=8)
        async with await Trial.open(environment, base) as trial:
            tools = {tool.name: tool for tool in trial.tools}
            calls = []
            for name in ("flights", "book"):
                call = await ground(trial, tools[name], pool, rng=random.Random(3))
                assert call is not None
                calls.append(call)
            assert calls[1].sources[0].provenance == "output"
            return TurnCalls(calls, trial.tools, tuple(trial.executed), {0})

    return asyncio.run(made())


def values(turn: TurnCalls) -> str:
    return ", ".join(str(source.value) for source in turn.calls[0].sources)


def calls_json(turn: TurnCalls, *places: int, waiting: bool = False) -> str:
    chosen = [turn.calls[place].executed for place in places]
    calls = [{"name": c.call.name, "arguments": c.arguments()} for c in chosen]
    return canonical.dumps({"calls": calls, "waiting": waiting})


NOTHING = '{"calls": [], "waiting": false}'


def translated(
    turn: TurnCalls, back: Sequence[str] | None, forward: Sequence[str] | None = None
) -> tuple[Any, Translator]:
    replies = [canonical.dumps({"request": text}) for text in back or ()]
    translator = Translator(
        back=ScriptedChat(replies, name="writer") if back is not None else None,
        forward=ScriptedChat(list(forward)) if forward is not None else None,
    )
    try:
        return asyncio.run(translator.request(turn, dialogue=(), rng=random.Random(0))), translator
    except Unwritten as error:
        return error, translator


def test_a_good_request_is_read_back_step_by_step(nested: TurnCalls) -> None:
    text = f"Get me the cheapest seat: {values(nested)}."
    forward = [calls_json(nested, 0, waiting=True), calls_json(nested, 1)]
    written, translator = translated(nested, [text], forward)
    assert written == Written(text, "writer") and translator.differed == 0
    asked = translator.forward.asked  # type: ignore[union-attr]
    assert len(asked) == 2 and "Done in this turn" not in asked[0][1].text
    assert nested.calls[0].executed.result.text in asked[1][1].text


@pytest.mark.parametrize("fault", ["tool", "value", "found"])
def test_a_bad_request_is_asked_for_once_more_and_then_given_up(nested: TurnCalls, fault: str) -> None:
    bad = {
        "tool": f"Use profile and get a seat for {values(nested)}.",
        "value": "Get me the cheapest seat.",
        "found": f"Get me {nested.calls[1].sources[0].value}: {values(nested)}.",
    }[fault]
    given_up, translator = translated(nested, [bad, bad])
    assert isinstance(given_up, Unwritten) and given_up.reason == "request_rejected"
    good = f"Get me the cheapest seat: {values(nested)}."
    written, translator = translated(nested, [bad, good])
    assert written == Written(good, "writer")
    second = translator.back.asked[1][1].text  # type: ignore[union-attr]
    assert bad in second and bad not in translator.back.asked[0][1].text  # type: ignore[union-attr]


def test_a_request_read_otherwise_is_asked_for_once_more_and_then_given_up(nested: TurnCalls) -> None:
    texts = [
        f"Get me the cheapest seat: {values(nested)}.",
        f"The cheapest seat for {values(nested)}, please.",
    ]
    given_up, translator = translated(nested, texts, [NOTHING, NOTHING])
    assert isinstance(given_up, Unwritten) and given_up.reason == "forward_differs"
    assert translator.differed == 2
    written, translator = translated(nested, texts, [NOTHING, calls_json(nested, 0), calls_json(nested, 1)])
    assert written == Written(texts[1], "writer")
    extra = calls_json(nested, 0, 0)
    assert translated(nested, texts, [extra, extra])[0].reason == "forward_differs"


def test_a_request_that_a_reader_takes_to_want_more_is_read_otherwise(nested: TurnCalls) -> None:
    texts = [f"{start}: {values(nested)}." for start in ("Get me the cheapest seat", "The cheapest, please")]
    more = [calls_json(nested, 0, waiting=True), calls_json(nested, 1, waiting=True)]
    given_up, translator = translated(nested, texts, [*more, *more])
    assert isinstance(given_up, Unwritten) and given_up.reason == "forward_differs"
    assert translator.differed == 2 and "want more" in str(given_up)


def test_a_template_is_read_back_too(nested: TurnCalls) -> None:
    written, _ = translated(nested, None, [calls_json(nested, 0), calls_json(nested, 1)])
    assert written.by == "template"
    assert isinstance(translated(nested, None, [NOTHING])[0], Unwritten)


def writer() -> Callable[[Sequence[Turn], Sequence[Any]], str]:
    """Says all that must be said, in words of its own."""

    def reply(turns: Sequence[Turn], _: Sequence[Any]) -> str:
        prompt = turns[-1].text
        lines = re.findall(r"(?:Values to say:|in passing:) (.*)", prompt)
        said = [canonical.loads(found) for line in lines for found in re.findall(SAID, line)]
        hints = re.findall(r'Point at the .*? as "([^"]*)"', prompt)
        number = prompt.count("\nuser: ") + 1
        words = ", ".join([str(value) for value in said] + hints) or "as always"
        return canonical.dumps({"request": f"Wish number {number}: {words}."})

    return reply


def planned(renderer: ChatMLRenderer, chats: dict[str, Any], count: int = 4) -> list[Made]:
    environment = load_environment("travel_desk")
    magnet = Magnet(
        environment=environment,
        engine=None,  # type: ignore[arg-type]
        renderer=renderer,
        chats=chats,
        observed=20,
        irrelevance=0.0,
    )

    async def made() -> list[Made]:
        return [r async for r in magnet.synthesize(list(islice(environment.tasks("train"), count)))]

    return asyncio.run(made())


def test_dialogues_in_the_words_of_a_chat(renderer: ChatMLRenderer) -> None:
    chat = ScriptedChat(writer(), name="writer")
    tasks = [record for record in planned(renderer, {"back_translator": chat}) if isinstance(record, Task)]
    turns = [turn for task in tasks for turn in read_blueprint(task).turns]
    assert len(tasks) >= 3 and sum(turn.text_by == "writer" for turn in turns) >= 0.7 * len(turns)
    assert all(turn.text.startswith("Wish number") for turn in turns if turn.text_by == "writer")


def test_a_reply_that_is_none_and_a_reader_that_disagrees_make_verdicts(renderer: ChatMLRenderer) -> None:
    silent = ScriptedChat(lambda turns, tools: "no JSON at all")
    made = planned(renderer, {"back_translator": silent}, 2)
    assert [r.reason for r in made if isinstance(r, Verdict)] == ["invalid_reply"] * 2 and len(made) == 2
    deaf = ScriptedChat(lambda turns, tools: NOTHING)
    [verdict] = planned(renderer, {"forward_translator": deaf}, 1)
    assert isinstance(verdict, Verdict)
    assert verdict.reason == "too_few_calls" and "forward_differs" in verdict.detail


def test_the_edge_judge_adds_edges(renderer: ChatMLRenderer) -> None:
    yes = '{"reason": "x", "feeds": true, "value": "miles", "parameter": "city"}'
    no = '{"reason": "x", "feeds": false, "value": "", "parameter": ""}'
    judge = ScriptedChat(
        lambda t, _: yes if "First tool: profile" in t[1].text and "tool: hotels" in t[1].text else no
    )
    environment = load_environment("travel_desk")
    magnet = Magnet(
        environment=environment, engine=None, renderer=renderer, chats={"edge_judge": judge}, observed=9
    )  # type: ignore[arg-type]
    base = next(iter(environment.tasks("train")))
    asyncio.run(magnet.prepare([base]))
    asyncio.run(magnet.plan(base, random.Random(0)))
    assert magnet.knowledge is not None
    [graph] = magnet.knowledge.graphs
    assert judge.asked and (graph.edge("profile", "hotels") is not None)


@pytest.mark.parametrize("role", ["forward_translator", "error_judge"])
def test_prompts_are_worded_as_stored(role: str) -> None:
    if role == "forward_translator":
        shown = FORWARD_TRANSLATOR.turns(
            ForwardRequest(
                dialogue="user: Hello.\nassistant: Yes?",
                request="Book the cheapest flight from Oslo to Rome, May 3.",
                done='call: flights {"src":"Oslo"}\nresult of flights: F1 $90',
                tools=("book: Book a flight. Parameters: flight",),
            )
        )
    else:
        shown = ERROR_JUDGE.turns(
            JudgeRequest(request="Book F1.", reference=('book {"flight":"F1"}',), predicted=())
        )
    text = "\n---\n".join(turn.text for turn in shown) + "\n"
    assert text == (GOLDEN / f"{role}.txt").read_text()


ASKED: list[int] = []


def make_writer() -> ScriptedChat:
    """The chat of the recipe; its asks are counted over all instances."""
    say = writer()

    def reply(turns: Sequence[Turn], tools: Sequence[Any]) -> str:
        ASKED.append(1)
        return say(turns, tools)

    return ScriptedChat(reply, name="writer")


def test_the_command_resumes_without_paying_twice(tmp_path: Path, tokenizer: Path) -> None:
    ASKED.clear()
    section = {
        "synthesizer": "magnet",
        "tasks": 4,
        "options": {"chats": {"back_translator": f"{__name__}:make_writer"}, "observed": 20},
    }
    value = recipe(tokenizer, synth={"magnet": section}, environment={"name": "travel_desk"})
    value.pop("evaluate")
    path = write_recipe(tmp_path, value)
    first = trajsmith("synth", path, "--runs", tmp_path / "runs")
    assert first.code == 0, first.err
    root = tmp_path / "runs" / "small"
    before, paid = digests(root), len(ASKED)
    with Store.open(root) as store:
        kept = list(store.trajectories())
    assert paid > 0 and kept and all(trajectory.success for trajectory in kept)
    for manifest in (root / "manifests").glob("*.json"):
        manifest.unlink()  # as if killed before the stage had ended
    again = trajsmith("synth", path, "--runs", tmp_path / "runs")
    assert again.code == 0, again.err
    assert digests(root) == before and len(ASKED) == paid
