"""ASTRA chains with chats in every role: golden prompts, majorities, judges that fail closed, resuming."""

from __future__ import annotations

import asyncio
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from data import canonical
from data.messages import text_parts
from data.tasks import Task
from data.trajectories import Trajectory
from data.verdicts import Verdict
from filters.astra_judges import ANSWER_JUDGE, QUERY_JUDGE, ROUND_JUDGE, AnswerToJudge, RoundToJudge
from pipeline.chat.roles import FiledRole
from pipeline.environments.base import Environment
from pipeline.environments.blueprint import read_blueprint
from pipeline.environments.registry import load_environment
from pipeline.renderers.chatml import ChatMLRenderer
from synthesizers.astra.chains import AstraChains
from synthesizers.astra.chains_roles import (
    AUGMENTER,
    PROPOSER,
    READER,
    TASK_CRITERIA,
    TASK_SCORER,
    VALIDATOR,
    ChainAsk,
    ChainVote,
    RequestToRead,
    TaskToScore,
    TextToAugment,
    ToolLine,
)
from synthesizers.base import Made
from synthesizers.roles import Exchange
from tests.flows.lab import digests, recipe, trajsmith, write_recipe
from tests.synthesizers.astra import chain_chats
from tests.tiny import make_tiny_tokenizer

GOLDEN = Path(__file__).parent / "golden"
LINES = (
    ToolLine(name="flights", description="List flights.", parameters="{}"),
    ToolLine(name="book", description="Book a flight.", parameters="{}"),
)
NAMES = ("List flights.", "Book a flight.")
REQUESTS: list[tuple[FiledRole[Any, Any], Exchange]] = [
    (PROPOSER, ChainAsk(tool_set="desk", tools=LINES, number=8, shortest=2, longest=5, round=1)),
    (VALIDATOR, ChainVote(chain=("flights", "book"), tools=LINES, voter=2)),
    (READER, RequestToRead(request="Get me to Rome.", tools=LINES, reader=3)),
    (
        AUGMENTER,
        TextToAugment(
            request="Get me to Rome.",
            how="somebody formal",
            values=("Rome",),
            do_not_write=("book",),
            problem="it does not say Rome",
        ),
    ),
    (
        TASK_SCORER,
        TaskToScore(
            dialogue="Get me to Rome.", tools=LINES, criterion="realism", question=TASK_CRITERIA["realism"]
        ),
    ),
    (QUERY_JUDGE, RoundToJudge(tools=NAMES, dialogue="user: To Rome.", turn='call: flights {"dst":"Rome"}')),
    (ROUND_JUDGE, RoundToJudge(tools=NAMES, dialogue="user: To Rome.", turn='call: book {"flight":"F1"}')),
    (
        ANSWER_JUDGE,
        AnswerToJudge(
            dialogue="user: To Rome.", answer="See http://x.example.", strange_urls=("http://x.example",)
        ),
    ),
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def desk() -> Environment:
    return load_environment("travel_desk", templates=["cheapest", "earliest"])


def synthesised(desk: Environment, tokenizer: Path, number: int = 3, **options: Any) -> list[Made]:
    bases = list(islice(desk.tasks("train"), number))
    settings: dict[str, Any] = {"server_only": 0.0, "failures": 0.0, "observed": 6, **options}

    async def run() -> list[Made]:
        maker = AstraChains(
            environment=desk,
            engine=None,  # type: ignore[arg-type]
            renderer=ChatMLRenderer.load(tokenizer),
            **settings,
        )
        return [record async for record in maker.synthesize(bases)]

    return asyncio.run(run())


def reasons(made: list[Made]) -> dict[str, str]:
    """Reason and detail of the plans that were given up."""
    plans = [one for one in made if isinstance(one, Verdict) and "/" in one.trajectory_id]
    return {one.reason: one.detail for one in plans}


def tasks(made: list[Made]) -> list[Task]:
    return [one for one in made if isinstance(one, Task)]


@pytest.mark.parametrize(("role", "request_"), REQUESTS, ids=lambda value: getattr(value, "name", ""))
def test_prompts_are_golden(role: FiledRole[Any, Any], request_: Exchange) -> None:
    shown = "\n---\n".join(turn.text for turn in role.turns(request_)) + "\n"
    assert shown == (GOLDEN / f"{role.name}.txt").read_text()


def test_chats_in_every_role_make_tasks_and_scored_trajectories(desk: Environment, tokenizer: Path) -> None:
    chat = chain_chats.chat()
    made = synthesised(desk, tokenizer, chat=chat)
    assert len(tasks(made)) == 3 and reasons(made) == {}
    asked = {chain_chats.role_of(turns) for turns in chat.asked}
    assert asked >= {*chain_chats._ROLES.values()} - {"augmenter"}
    for task in tasks(made):
        assert "round_trip:chat" in task.tags and "difficulty:4" in task.tags
        assert read_blueprint(task).turns[0].text_by == "roles"
    for one in made:
        if isinstance(one, Trajectory):
            parts = {score.name.removeprefix("astra/"): score.value for score in one.scores}
            assert one.success and "astra_score:judged" in one.labels
            assert parts["context_planning"] == 0.5 and parts["final_answer"] == 0.75
            assert parts["total"] == pytest.approx((1 + 1 + 1 + 0.5 + 1 + 1 + 0.75) / 7)


@pytest.mark.parametrize(
    ("chain", "added"), [(["fly", "book"], False), (["book", "book"], False), (["hotels", "room"], True)]
)
def test_proposed_chains_of_known_tools_add_to_the_observed_ones(
    desk: Environment, tokenizer: Path, chain: list[str], added: bool
) -> None:
    pairs = {"pairs": [{"task": "Go.", "chain": chain}]}
    chat = chain_chats.chat(chain_proposer=pairs)
    graphs = []
    for chats in ({}, {"chain_proposer": chat}):
        maker = AstraChains(
            environment=desk,
            engine=None,  # type: ignore[arg-type]
            renderer=ChatMLRenderer.load(tokenizer),
            observed=6,
            proposals=1,
            chats=chats,
        )
        asyncio.run(maker.prepare([]))
        [tool_set] = maker.sets.values()
        graphs.append(tool_set.transitions)
    before, after = graphs
    assert chat.asked and before.seen("flights", "book") == after.seen("flights", "book") > 0
    assert after.seen(*chain) - before.seen(*chain) == int(added)


@pytest.mark.parametrize(("bad", "passes"), [(1, True), (2, False)])
def test_two_of_three_readers_decide(desk: Environment, tokenizer: Path, bad: int, passes: bool) -> None:
    good, wrong = chain_chats.chat(), chain_chats.chat(chain_reader={"reason": "x", "chain": ["cancel"]})
    readers = {f"chain_reader_{number}": wrong if number <= bad else good for number in (1, 2, 3)}
    chats = {**readers, "back_translator": good}
    made = synthesised(desk, tokenizer, chats=chats, augment=False)
    assert len(tasks(made)) == (3 if passes else 0)
    assert set(reasons(made)) == (set() if passes else {"round_trip"})


def test_a_reader_that_says_nothing_valid_has_not_read_the_chain(desk: Environment, tokenizer: Path) -> None:
    mute = chain_chats.chat(chain_reader="I would book a flight.")
    made = synthesised(desk, tokenizer, chats={"back_translator": chain_chats.chat(), "chain_reader": mute})
    assert not tasks(made) and "nothing valid" in reasons(made)["round_trip"]


@pytest.mark.parametrize("reply", ["no JSON", {"reason": "They have nothing in common.", "is_valid": False}])
def test_voters_that_say_no_or_nothing_vote_no(desk: Environment, tokenizer: Path, reply: Any) -> None:
    made = synthesised(desk, tokenizer, chats={"chain_validator": chain_chats.chat(chain_validator=reply)})
    assert not tasks(made) and set(reasons(made)) == {"voted_down"}


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("5", "judge_failed"),
        ({"reasoning": "Great.", "rating": 6}, "judge_failed"),
        ({"reasoning": "Silly.", "rating": 2}, "low_rating"),
    ],
)
def test_a_task_without_ratings_is_no_task(
    desk: Environment, tokenizer: Path, reply: Any, reason: str
) -> None:
    made = synthesised(desk, tokenizer, chats={"task_scorer": chain_chats.chat(task_scorer=reply)})
    assert not tasks(made) and set(reasons(made)) == {reason}


def test_an_augmentation_in_another_language_is_given_up(
    desk: Environment, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synthesizers.astra.chains.AUGMENTATIONS", ("persona",))
    fine = synthesised(desk, tokenizer, chats={"augmenter": chain_chats.chat()})
    assert {read_blueprint(task).turns[0].text_by for task in tasks(fine)} == {"roles"}
    german = "Bitte zeig mir die Flüge und buche den Flug, der für mich und die Familie am besten ist: {}"

    class German(type(chain_chats.chat())):  # type: ignore[misc]
        async def _ask(self, turns: Any, tools: Any, schema: Any) -> Any:
            said, tokens = await super()._ask(turns, tools, schema)
            values = turns[1].text.partition("Keep ")[2].partition("\n")[0]
            return _with_text(said, german.format(values)), tokens

    made = synthesised(desk, tokenizer, chats={"augmenter": German(chain_chats.answer, name="german")})
    assert not tasks(made) and "another language" in reasons(made)["augmentation"]


def _with_text(turn: Any, text: str) -> Any:
    return turn.model_copy(update={"parts": text_parts(canonical.dumps({"request": text}))})


def test_a_failed_judge_leaves_the_trajectory_unscored(desk: Environment, tokenizer: Path) -> None:
    made = synthesised(desk, tokenizer, chats={"round_judge": chain_chats.chat(round_judge="fine")})
    taught = [one for one in made if isinstance(one, Trajectory)]
    verdicts = [one for one in made if isinstance(one, Verdict) and one.filter == "astra_score"]
    assert taught and all(one.scores == () and one.labels == () for one in taught)
    assert {(one.keep, one.reason, one.score) for one in verdicts} == {(False, "judge_failed", None)}


def test_through_the_command_twice_and_after_a_kill(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stages = {
        "chains": {
            "synthesizer": "astra_chains",
            "tasks": 3,
            "options": {"chat": f"{chain_chats.__name__}:shared", "observed": 6},
        }
    }
    world = {"name": "travel_desk", "options": {"templates": ["cheapest", "earliest"]}}
    path = write_recipe(tmp_path, recipe(tokenizer, environment=world, synth=stages))
    before = len(chain_chats.SHARED.asked)
    assert trajsmith("synth", path).code == 0
    asked, root = len(chain_chats.SHARED.asked), tmp_path / "runs" / "small"
    assert asked > before
    first = digests(root)
    assert trajsmith("synth", path).code == 0
    assert digests(root) == first and len(chain_chats.SHARED.asked) == asked
    shutil.move(root / "chats", tmp_path / "chats")
    shutil.rmtree(root)
    root.mkdir()
    shutil.move(tmp_path / "chats", root / "chats")
    assert trajsmith("synth", path).code == 0, "as after a kill that lost every row but no reply"
    assert digests(root) == first and len(chain_chats.SHARED.asked) == asked
