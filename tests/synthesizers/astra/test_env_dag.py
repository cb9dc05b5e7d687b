"""ASTRA environments: graphs by a chat, judges that fail closed, the share that is kept, golden prompts."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError, EngineError
from synthesizers.astra.dag import (
    DECOMPOSER,
    JUDGES,
    Decompose,
    Judge,
    Refused,
    Source,
    decompose,
    judge,
    keep_top,
    shown_plan,
)
from synthesizers.astra.merge import DATA_EXTENDER, INTENT_CLUSTERER, Cluster, Extend, ShownTool
from synthesizers.astra.tools import (
    CALL_WRITER,
    CODE_WRITER,
    COMPLEXITY_SCALER,
    DOC_WRITER,
    ScaleDoc,
    WriteCall,
    WriteCode,
    WriteDoc,
)
from synthesizers.roles import ChatRole, Exchange
from tests.synthesizers.astra.env_samples import (
    CREW_CODE,
    DAG,
    DOCUMENT,
    JUDGED,
    PLAN,
    QUESTION,
    SOURCE,
    chat,
    playing,
)

GOLDEN = Path(__file__).parent / "golden"
SCHEMA = {"type": "object", "properties": {"ship": {"type": "string"}}, "required": ["ship"]}
TOOL = ShownTool(
    name="crew_of_ship",
    description="Crew.",
    parameters=SCHEMA,
    data={"Brio": 420},
    code="def crew_of_ship...",
)
REQUESTS: list[tuple[ChatRole[Any, Any], Exchange]] = [
    (DECOMPOSER, Decompose(document=DOCUMENT, question=QUESTION, answer="420", hops=4)),
    *((role, Judge(plan=shown_plan(DAG))) for role in JUDGES),
    (
        DOC_WRITER,
        WriteDoc(question="Crew of Brio?", answer="420", known=["Ship of Alba? Brio"], complaint="no"),
    ),
    (
        COMPLEXITY_SCALER,
        ScaleDoc(question="Crew of Brio?", name="crew", description="Crew.", parameters=SCHEMA),
    ),
    (
        CALL_WRITER,
        WriteCall(question="Crew of Brio?", known=[], name="crew", description="Crew.", parameters=SCHEMA),
    ),
    (
        CODE_WRITER,
        WriteCode(
            question="Crew of Brio?",
            answer="420",
            name="crew_of_ship",
            description="Crew.",
            parameters=SCHEMA,
            arguments={"ship": "Brio"},
            complaint="constant output",
            **CREW_CODE,
        ),
    ),
    (INTENT_CLUSTERER, Cluster(tools=["crew: Crew.", "crew_2: Crew."])),
    (DATA_EXTENDER, Extend(base=TOOL, other=TOOL, kept=["a -> 1"], wanted=["b -> 2"], complaint="a breaks")),
]


def plan_with(**changes: Any) -> dict[str, Any]:
    """The plan with fields of its sub-questions exchanged, written step__field."""
    plan = deepcopy(PLAN)
    for key, value in changes.items():
        place, field = key.removeprefix("step").split("__")
        plan["steps"][int(place)][field] = value  # type: ignore[index]
    return plan


def refused(run: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        asyncio.run(run)
    return caught.value


@pytest.mark.parametrize(("role", "request_"), REQUESTS, ids=lambda value: getattr(value, "name", ""))
def test_prompts_are_golden(role: ChatRole[Any, Any], request_: Exchange) -> None:
    shown = "\n---\n".join(turn.text for turn in role.turns(request_)) + "\n"
    assert shown == (GOLDEN / f"{role.name}.txt").read_text()


def test_a_question_is_cut_into_its_graph() -> None:
    decomposer = chat(PLAN)
    assert asyncio.run(decompose(decomposer, SOURCE)) == DAG
    assert DOCUMENT in decomposer.asked[0][1].text


def test_a_question_of_the_chats_own() -> None:
    decomposer = chat(PLAN)
    assert asyncio.run(decompose(decomposer, Source(document=DOCUMENT))) == DAG
    assert "Write a question of your own" in decomposer.asked[0][1].text
    with pytest.raises(ConfigError, match="both question and answer"):
        asyncio.run(decompose(chat(PLAN), Source(document=DOCUMENT, question="?")))


@pytest.mark.parametrize(
    ("plan", "reason", "detail"),
    [
        (plan_with(step0__depends_on=[1], step0__text="Which ship has #1?"), "graph_rule", "a cycle"),
        (plan_with(step0__needs_tool=False), "graph_rule", "needs no tool and is no leaf"),
        (plan_with(step1__depends_on=[5]), "graph_rule", "depends on 5; there are 0 to 1"),
        (plan_with(step1__depends_on=[]), "graph_rule", "names the answers [0]"),
        (plan_with(step1__answer="7"), "graph_rule", "answers '7', not '420'"),
        (plan_with(step1__answer=""), "graph_unreadable", "at least 1 character"),
        ("I would first look for the ship.", "invalid_reply", "gave no valid reply"),
        ({**PLAN, "steps": []}, "graph_rule", "0 sub-questions"),
    ],
)
def test_a_bad_graph_is_refused(plan: Any, reason: str, detail: str) -> None:
    error = refused(decompose(chat(plan), SOURCE))
    assert error.reason == reason
    assert detail in error.detail


def all_judges(**other: Any) -> dict[str, Any]:
    return {role.name: chat(other.get(role.name, JUDGED)) for role in JUDGES}


def test_judges_are_averaged() -> None:
    score = asyncio.run(judge(DAG, playing(**all_judges(order_judge={**JUDGED, "score": 0.5}))))
    assert score == pytest.approx(0.875)
    assert asyncio.run(judge(DAG, playing())) is None
    only = {"order_judge": chat({**JUDGED, "score": 0.5})}
    assert asyncio.run(judge(DAG, playing(**only))) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("It looks fine to me, 1.0", "judge_failed"),
        ({**JUDGED, "score": 7}, "judge_failed"),
        ({**JUDGED, "score": 0.9}, "judge_failed"),
        ({"score": 1}, "judge_failed"),
        ({"reason": "Asks two things.", "score": 0}, "atomicity_judge"),
    ],
)
def test_a_judge_that_fails_or_objects_is_a_rejection(reply: Any, reason: str) -> None:
    error = refused(judge(DAG, playing(**all_judges(atomicity_judge=reply))))
    assert error.reason == reason
    assert "atomicity_judge" in error.detail or error.detail == "Asks two things."


def test_a_server_that_is_down_rejects_nothing() -> None:
    with pytest.raises(EngineError):
        asyncio.run(judge(DAG, playing(**all_judges() | {"order_judge": chat()})))


def test_the_best_share_is_kept() -> None:
    scores = [0.5, 1.0, 0.75, 0.625, 0.875, 0.5, 0.5, 0.5, 0.5, 0.5]
    assert keep_top(scores) == [1]
    assert keep_top(scores, share=0.3) == [1, 2, 4]
    assert keep_top([1.0, 1.0, 0.5]) == [0, 1]
    assert keep_top(scores, share=1) == list(range(10))
    assert keep_top([]) == []
    with pytest.raises(ConfigError, match="kept share"):
        keep_top(scores, share=0)
