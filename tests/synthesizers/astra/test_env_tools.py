"""ASTRA environments: tools tried and perturbed in the real sandbox; merging with every test re-run."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from data import canonical
from pipeline.environments.question_dag.relations import Op, Relation
from pipeline.environments.question_dag.tables import make_tables
from pipeline.environments.sandboxed import SandboxRunner
from pipeline.sandbox.base import Execution, Limits, Outcome, Program
from synthesizers.astra.dag import Refused
from synthesizers.astra.merge import clusters, merge_tools
from synthesizers.astra.tools import ToolWriter, sliced, typed_tool
from synthesizers.astra.trials import (
    UNKNOWN,
    Other,
    ProvenTool,
    ToolTest,
    answer_in_code,
    perturbed,
    tool_problem,
)
from tests.pipeline.environments.repair import StubSandbox
from tests.synthesizers.astra.env_samples import (
    CONSTANT,
    CREW_CODE,
    CREW_DOC,
    CREWS,
    DAG,
    chat,
    made,
    playing,
)

LOOKUP = "def crew(ship):\n    return DATA[ship]\n"
CALL = {"arguments": {"ship": "Brio"}}


@pytest.fixture(scope="module")
def runner() -> Iterator[SandboxRunner]:
    runner = SandboxRunner()
    yield runner
    asyncio.run(runner.close())


def problem(runner: SandboxRunner, code: str, data: Any = CREWS, answer: str = "420") -> str:
    tool = made("crew", code, dict(data))
    arguments = {"ship": "Brio"}
    test = ToolTest(0, arguments, answer, perturbed(tool, arguments, answer))
    return asyncio.run(tool_problem(runner, tool, test))


def test_a_real_look_up_passes(runner: SandboxRunner) -> None:
    assert problem(runner, LOOKUP) == ""
    assert problem(runner, LOOKUP, {**CREWS, "Brio": "It has a crew of 420."}) == ""


@pytest.mark.parametrize(
    ("code", "data", "found"),
    [
        ("def crew(ship):\n    return DATA['x']\n", {"x": 420}, "constant output"),
        ("def crew(ship):\n    return DATA.get(ship, DATA['Brio'])\n", CREWS, "constant output"),
        (LOOKUP, {"Brio": 420}, "constant output: none of 1 other calls"),
        (LOOKUP, dict.fromkeys(CREWS, 420), "constant output: none of"),
        ("def crew(ship):\n    return 420 if ship == 'Brio' else 1\n", CREWS, "stands in the code"),
        (LOOKUP, {**CREWS, "Brio": 421}, "gave '421', which does not say '420'"),
        ("def crew(ship):\n    return DATA[ship.lower()]\n", CREWS, "the call failed: brio"),
        ("def crew(vessel):\n    return DATA[vessel]\n", CREWS, "the call failed: TypeError"),
        (
            "import time\ndef crew(ship):\n    return f'{DATA[ship]} at {time.time_ns()}'\n",
            CREWS,
            "the same call gave",
        ),
    ],
)
def test_what_only_looks_like_a_tool_is_caught(
    runner: SandboxRunner, code: str, data: dict[str, Any], found: str
) -> None:
    assert found in problem(runner, code, data)


@pytest.mark.parametrize(
    ("outcome", "found"),
    [(Outcome.RUNTIME_ERROR, ""), (Outcome.TIMEOUT, f'crew({{"ship":"{UNKNOWN}"}}) timed out')],
)
def test_running_out_of_time_is_not_the_error_that_was_wanted(outcome: Outcome, found: str) -> None:
    class Harbour(StubSandbox):
        async def run(self, program: Program, limits: Limits | None = None) -> Execution:
            known = [crew for ship, crew in CREWS.items() if ship in program.stdin]
            return (
                Execution(Outcome.OK, canonical.dumps({"value": known[0]})) if known else Execution(outcome)
            )

    runner = SandboxRunner()
    runner._sandbox = Harbour(None)
    others = (Other({"ship": "Dune"}, str(CREWS["Dune"])), Other({"ship": UNKNOWN}, "", unknown=True))
    test = ToolTest(0, {"ship": "Brio"}, str(CREWS["Brio"]), others)
    told = asyncio.run(tool_problem(runner, made("crew", LOOKUP, dict(CREWS)), test))
    assert told.startswith(found) and bool(told) == bool(found)


def test_perturbed_calls_come_from_the_data_and_the_types() -> None:
    rows = {"ships": [{"name": "Brio", "crew": 420}, {"name": "Dune", "crew": 17}]}
    tool = made("crew", LOOKUP, rows, ship="string", year="integer", full="boolean")
    others = perturbed(tool, {"ship": "brio", "year": 3, "full": True}, "420")
    assert [(dict(other.arguments), other.unknown) for other in others] == [
        ({"ship": UNKNOWN, "year": 3, "full": True}, True),
        ({"ship": "Dune", "year": 3, "full": True}, False),
        *(({"ship": "brio", "year": year, "full": True}, False) for year in (4, 9, 1)),
        ({"ship": "brio", "year": 3, "full": False}, False),
    ]


@pytest.mark.parametrize(
    ("code", "answer", "stands"),
    [
        ("return 420", "420", True),
        ("return 4200", "420", False),
        ("# the BRIO", "Brio", True),
        ("x = 'Brioche'", "Brio", False),
        ("x = 7", "7", False),
    ],
)
def test_an_answer_in_the_code_is_seen(code: str, answer: str, stands: bool) -> None:
    assert answer_in_code(code, answer) is stands


def test_typed_steps_become_tools_over_a_part_of_the_tables(runner: SandboxRunner) -> None:
    tables = make_tables("harbour", "train/0")
    ship, port = next((name, row["port"]) for name, row in tables["ship"].items())
    steps = [
        (Relation(Op.LOOKUP, "ship", "crew"), {"ship": ship}),
        (Relation(Op.FILTER, "ship"), {"port": port}),
    ]
    for relation, arguments in steps:
        tested = asyncio.run(
            typed_tool(runner, relation, tables, arguments, name="own_name", index=3, rng=random.Random(0))
        )
        assert tested.tool.name == "own_name" and "def own_name(" in tested.tool.code
        assert 0 < len(tested.tool.data["ship"]) < len(tables["ship"])
        [test] = tested.tests
        assert test.step == 3
        assert any(other.wanted not in ("", None, test.answer) for other in test.others)
        assert any(other.unknown and other.wanted == "" for other in test.others)


def test_a_typed_tool_that_prints_a_constant_is_caught(runner: SandboxRunner) -> None:
    """The code of a typed step exchanged for one that gives the sub-answer always."""
    tables, relation = make_tables("harbour", "train/0"), Relation(Op.LOOKUP, "ship", "crew")
    ship = next(iter(tables["ship"]))
    tested = asyncio.run(
        typed_tool(runner, relation, tables, {"ship": ship}, name="crew", index=0, rng=random.Random(0))
    )
    data = {"answer": tables["ship"][ship]["crew"]}
    code = "def crew(ship):\n    return DATA['answer']\n"
    planted = tested.tool.model_copy(update={"code": code, "data": data})
    found = asyncio.run(tool_problem(runner, planted, tested.tests[0]))
    assert "the data say" in found


def test_slices_keep_what_a_call_needs() -> None:
    tables, rng = make_tables("sky", "train/0"), random.Random(1)
    star = next(row["star"] for row in tables["planet"].values())
    part = sliced(Relation(Op.COUNT, "planet"), tables, {"star": star}, rng)
    of_star = [name for name, row in tables["planet"].items() if row["star"] == star]
    assert [name for name, row in part["planet"].items() if row["star"] == star] == of_star
    assert sliced(Relation(Op.RANK, "star", "distance"), tables, {"rank": 1}, rng) == {"star": tables["star"]}
    assert sliced(Relation(Op.ADD), tables, {"a": 1, "b": 2}, rng) == {}


def writer(runner: SandboxRunner, *, inner: int = 5, outer: int = 15, **chats: Any) -> ToolWriter:
    return ToolWriter(runner=runner, roles=playing(**chats), inner=inner, outer=outer)


def test_a_constant_tool_is_sent_back_with_the_reason(runner: SandboxRunner) -> None:
    coder = chat(CONSTANT, "no JSON", CREW_CODE)
    writes = writer(runner, doc_writer=chat(CREW_DOC), call_writer=chat(CALL), code_writer=coder)
    tested = asyncio.run(writes.write(DAG, 1, domain="sea"))
    assert tested.tool.data == CREWS and tested.tool.domain == "sea"
    assert [dict(test.arguments) for test in tested.tests] == [{"ship": "Brio"}]
    assert "Your last code was tried" not in coder.asked[0][1].text
    assert "constant output" in coder.asked[1][1].text
    assert "What is the ship of voyage Alba? Brio" in writes.roles("doc_writer").asked[0][1].text  # type: ignore


def test_documents_are_tried_again_and_not_for_ever(runner: SandboxRunner) -> None:
    leaky = {**CREW_DOC, "description": "Gives 420."}
    optional = {**CREW_DOC, "parameters": [{**CREW_DOC["parameters"][0], "required": False}]}
    documents = chat(leaky, optional, CREW_DOC, CREW_DOC, CREW_DOC)
    calls = chat({"arguments": {"vessel": "Brio"}}, CALL, CALL)
    coder = chat(CONSTANT, CONSTANT, CONSTANT, CONSTANT)
    writes = writer(runner, inner=2, outer=5, doc_writer=documents, call_writer=calls, code_writer=coder)
    with pytest.raises(Refused, match="sub-question 1 after 5 documents: constant output") as caught:
        asyncio.run(writes.write(DAG, 1, domain=""))
    assert caught.value.reason == "tool_failed"
    told = [asked[1].text for asked in documents.asked]
    assert "gives the answer away" in told[1]
    assert "no parameter is required" in told[2]
    assert "missing argument: ship" in told[3]
    assert len(coder.asked) == 4


def test_a_role_that_nobody_plays_is_named(runner: SandboxRunner) -> None:
    with pytest.raises(Refused, match="no chat plays call_writer"):
        asyncio.run(writer(runner, doc_writer=chat(CREW_DOC)).write(DAG, 1, domain=""))


def proven(name: str, data: dict[str, int], ship: str, step: int, code: str = LOOKUP) -> ProvenTool:
    tool = made(name, code.replace("def crew(", f"def {name}("), data)
    others = tuple(Other({"ship": other}, str(value)) for other, value in data.items() if other != ship)
    return ProvenTool(tool, (ToolTest(step, {"ship": ship}, str(data[ship]), others),))


FIRST = {"Brio": 420, "Dune": 17}
SECOND = {"Fala": 96, "Hilt": 55}


def test_tools_of_one_intent_become_one_with_all_tests(runner: SandboxRunner) -> None:
    made_tools = [proven("crew", FIRST, "Brio", 0), proven("crew_2", SECOND, "Fala", 1)]
    merged = asyncio.run(merge_tools(made_tools, runner=runner, roles=playing()))
    [one] = merged.tools
    assert merged.refused == ()
    assert one.tool.data == FIRST | SECOND
    assert [(test.step, test.answer) for test in one.tests] == [(0, "420"), (1, "96")]


@pytest.mark.parametrize(
    ("second", "code", "why"),
    [
        ({"Fala": 96, "Dune": 18}, LOOKUP, "contradict"),
        # The united table has other ranks: the first tool's own test breaks.
        (
            SECOND,
            "def crew(ship):\n    return sorted(DATA.values()).index(DATA[ship]) * 1000 + DATA[ship]\n",
            "breaks",
        ),
        (SECOND, "def crew(ship):\n    return DATA[ship] + 0\n", "no chat extends it"),
    ],
)
def test_a_merge_that_breaks_a_test_is_refused(
    runner: SandboxRunner, second: dict[str, int], code: str, why: str
) -> None:
    ranked = "index" in code
    base = proven("crew", FIRST, "Brio", 0, code if ranked else LOOKUP)
    other = proven("crew_2", second, "Fala", 1, code)
    if ranked:
        base = ProvenTool(base.tool, (ToolTest(0, {"ship": "Brio"}, "1420", (Other({"ship": "Dune"}),)),))
        other = ProvenTool(other.tool, (ToolTest(1, {"ship": "Fala"}, "1096", (Other({"ship": "Hilt"}),)),))
    merged = asyncio.run(merge_tools([base, other], runner=runner, roles=playing()))
    assert merged.tools == (base, other)
    [refusal] = merged.refused
    assert why in refusal


def test_other_code_is_extended_by_a_chat_within_its_tries(runner: SandboxRunner) -> None:
    base, other = (
        proven("crew", FIRST, "Brio", 0),
        proven("hands", SECOND, "Fala", 1, "def crew(ship):\n  return 96\n"),
    )
    both = FIRST | SECOND
    extended = {"data": both, "code": LOOKUP, "arguments": [{"ship": "Fala"}]}
    forgets = {"data": SECOND, "code": LOOKUP, "arguments": [{"ship": "Fala"}]}
    few = {**extended, "arguments": []}
    extender = chat(forgets, few, extended)
    grouped = {"intent_clusterer": chat({"groups": [["crew", "hands"]]}), "data_extender": extender}
    merged = asyncio.run(merge_tools([base, other], runner=runner, roles=playing(**grouped)))
    [one] = merged.tools
    assert one.tool.data == both and [test.step for test in one.tests] == [0, 1]
    assert "the test of sub-question 0 breaks: the call failed: Brio" in extender.asked[1][1].text
    assert "0 calls for the 1" in extender.asked[2][1].text
    stubborn = {
        "intent_clusterer": chat({"groups": [["crew", "hands"]]}),
        "data_extender": chat(*[forgets] * 4),
    }
    merged = asyncio.run(merge_tools([base, other], runner=runner, roles=playing(**stubborn), tries=3))
    assert merged.tools == (base, other)
    assert "after 3 tries" in merged.refused[0]


def test_clusters_by_words_need_the_same_types() -> None:
    same = proven("crew_2", SECOND, "Fala", 1)
    typed = ProvenTool(made("crew_3", LOOKUP, {}, ship="integer"), ())
    foreign = ProvenTool(made("price_of_mineral", LOOKUP, {}, mineral="string"), ())
    groups = asyncio.run(clusters([proven("crew", FIRST, "Brio", 0), typed, same, foreign], playing()))
    assert [[one.tool.name for one in group] for group in groups] == [
        ["crew", "crew_2"],
        ["crew_3"],
        ["price_of_mineral"],
    ]
    assert asyncio.run(clusters([], playing())) == []


@pytest.mark.parametrize("groups", [[["crew"]], [["crew", "crew_2"], ["crew"]], [["crew", "crew_2", "x"]]])
def test_a_clustering_that_is_none_is_refused(groups: list[list[str]]) -> None:
    tools = [proven("crew", FIRST, "Brio", 0), proven("crew_2", SECOND, "Fala", 1)]
    with pytest.raises(Refused, match="does not hold each of"):
        asyncio.run(clusters(tools, playing(intent_clusterer=chat({"groups": groups}))))
