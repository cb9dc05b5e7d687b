"""question_dag: the rules of a graph, questions over our own tables, relations answered two ways."""

from __future__ import annotations

import itertools
import random

import pytest

from pipeline.environments.question_dag.dag import QuestionDag, SubQuestion, dag_problems, same_answer
from pipeline.environments.question_dag.harness import outcome
from pipeline.environments.question_dag.questions import HOPS, draw_questions, shown_value
from pipeline.environments.question_dag.relations import UNSEEN, Op, Relation, relations
from pipeline.environments.question_dag.tables import KINDS, SUBJECTS, Tables, make_tables
from pipeline.errors import ConfigError


def step(text: str, answer: str, *after: int, tool: bool = True) -> SubQuestion:
    return SubQuestion(text=text, answer=answer, depends_on=after, needs_tool=tool)


def graph(*steps: SubQuestion, answer: str = "42") -> QuestionDag:
    return QuestionDag(question="What is the crew of the ship of voyage Alba?", answer=answer, steps=steps)


SHIP = step("What is the ship of voyage Alba?", "Brio")
CREW = step("What is the crew of #0?", "42", 0)


def test_a_good_graph_breaks_no_rule_in_any_order() -> None:
    assert dag_problems(graph(SHIP, CREW)) == []
    turned = graph(step("What is the crew of #1?", "42", 1), SHIP)
    assert dag_problems(turned) == []
    assert turned.order() == [1, 0]
    assert turned.leaves() == (0,)
    assert turned.resolved(0) == "What is the crew of Brio?"


@pytest.mark.parametrize(
    ("dag", "problem"),
    [
        (graph(), "0 sub-questions"),
        (graph(SHIP, step("What is the crew of #2?", "42", 2)), "depends on 2; there are 0 to 1"),
        (graph(SHIP, step("What is the crew of #0?", "42", -1)), "depends on -1"),
        (graph(SHIP, step("What is the crew of #1?", "42", 1)), "depends on 1"),
        (graph(step("#1?", "Brio", 1), step("#0?", "42", 0)), "a cycle"),
        (graph(SHIP, step("What is the crew of Brio?", "42", 0)), "names the answers [], its dependencies"),
        (graph(SHIP, step("What is the crew of #0?", "42")), "names the answers [0], its dependencies"),
        (graph(SHIP, step("What is the crew of #0?", "42", 0, 0)), "its dependencies are [0, 0]"),
        (graph(SHIP, step("Crew of #0? Its length?", "42", 0)), "asks 2 questions"),
        (graph(step("Which ship?", "Brio", tool=False), CREW), "sub-question 0 needs no tool and is no leaf"),
        (graph(step("How many?", "42", tool=False)), "no sub-question needs a tool"),
        (graph(SHIP, step("How many?", "42")), "sub-questions [0] lead nowhere"),
        (graph(SHIP, CREW, answer="43"), "answers '42', not '43'"),
    ],
)
def test_each_broken_rule_is_named(dag: QuestionDag, problem: str) -> None:
    found = dag_problems(dag)
    assert problem in "; ".join(found), found


def test_hops_are_a_budget() -> None:
    assert dag_problems(graph(SHIP, CREW), hops=1) == ["2 sub-questions; allowed: 1 to 1"]


@pytest.mark.parametrize(
    ("given", "wanted", "same"),
    [
        ("42", "42", True),
        ("1,200", "1200", True),
        ("15", "1.5", False),
        ("the Brio", "Brio", True),
        ("Brio and Alba", "Brio", False),
        ("", "Brio", False),
    ],
)
def test_answers_are_compared_by_value(given: str, wanted: str, same: bool) -> None:
    assert same_answer(given, wanted) is same


@pytest.mark.parametrize("op", [op for op in Op if op is not Op.CHOOSE])
def test_code_and_truth_agree_two_ways(op: Op) -> None:
    """The generated code, run here because it is ours, against the truth that is computed otherwise."""
    for relation in relations(unseen=True):
        if relation.op is not op:
            continue
        rng, values = random.Random(relation.shown[0]), set()
        for world, _ in itertools.product(("train/0", "dev/0", "heldout/0"), range(7)):
            tables = make_tables(relation.subject, world) if relation.kind else {}
            arguments = _arguments(relation, tables, rng)
            said = outcome(relation.tool.code, tables, relation.tool.name, arguments)
            try:
                wanted = relation.answer(tables, arguments)
            except LookupError:
                assert "error" in said, (arguments, said)
            else:
                assert said == {"value": wanted}, arguments
                values.add(shown_value(wanted))
        assert len(values) > 1, f"constant output of {relation}"


def _arguments(relation: Relation, tables: Tables, rng: random.Random) -> dict:
    """Arguments that fit, now and then a name that is in no table."""
    if not relation.kind:
        return {"a": rng.randint(0, 99), "b": rng.randint(0, 99)}
    kind = KINDS[relation.kind]
    names = [*tables[kind.name], "Nowhere"]
    parents = [*tables.get(kind.parent, ()), "Nowhere"]
    name, *more = relation.parameters
    if relation.op is Op.COMPARE:
        return dict(zip((name, *more), rng.sample(names, 2), strict=True))
    if relation.op in (Op.TOTAL, Op.MOST):
        return {name: rng.sample(names, 3)}
    numbers = {Op.ABOVE: kind.numbers.get(relation.label, (0, 0)), Op.RANK: (0, 7)}
    if relation.op in numbers:
        return {name: rng.randint(*numbers[relation.op])}
    if relation.op is Op.WITH:
        return {name: rng.choice(kind.values)}
    return {name: rng.choice(parents if relation.op in (Op.FILTER, Op.COUNT) else names)}


@pytest.mark.parametrize("unseen", [False, True])
def test_questions_keep_the_rules_and_their_sizes(unseen: bool) -> None:
    for subject in SUBJECTS:
        drawn = draw_questions(subject, "train/0", random.Random(5), unseen=unseen)
        questions = list(itertools.islice(drawn, 40))
        assert len({question.key for question in questions}) == 40
        for number, question in enumerate(questions):
            assert dag_problems(question.dag) == [], question.dag
            assert len(question.dag.steps) == HOPS[number % len(HOPS)]
            assert bool({relation.op for relation in question.relations} & UNSEEN) is unseen
            assert all((call is None) == (not step.needs_tool) for call, step in _steps(question))


def _steps(question):
    return zip(question.calls, question.dag.steps, strict=True)


def test_step_kinds_of_all_sorts_come_up() -> None:
    ops = set()
    for subject in SUBJECTS:
        drawn = draw_questions(subject, "train/1", random.Random(2))
        ops |= {relation.op for question in itertools.islice(drawn, 60) for relation in question.relations}
    assert ops == set(Op) - UNSEEN


def test_shared_parts_are_one_sub_question() -> None:
    """Two numbers of one thing: its way is asked once, so the graph is no tree."""
    drawn = draw_questions("harbour", "train/0", random.Random(0), hops=(4, 5))
    shared = [
        question
        for question in itertools.islice(drawn, 200)
        if any(sum(index in step.depends_on for step in question.dag.steps) > 1 for index in range(4))
    ]
    assert shared


def test_questions_run_out_with_an_error() -> None:
    drawn = draw_questions("sky", "train/0", random.Random(0), hops=(2,), draws=4)
    with pytest.raises(ConfigError, match="no more questions of 2 hops on sky train/0 after"):
        for _ in drawn:
            pass
