"""Questions over the invented tables: relations put together by a grammar, answered, cut into sub-questions.

An expression is a tree of relations over names, words and numbers; equal parts of it are one sub-question,
which makes it a graph. A drawn expression counts where every part has one answer, lists are short, and the
number of sub-questions is the one asked for. Not covered: other subjects (a chat decomposes those).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from data import canonical
from pipeline.environments.question_dag.dag import QuestionDag, SubQuestion
from pipeline.environments.question_dag.items import MadeCall
from pipeline.environments.question_dag.relations import ARITHMETIC, UNSEEN, Op, Relation, Value
from pipeline.environments.question_dag.tables import KINDS, SUBJECTS, Kind, Tables, make_tables
from pipeline.errors import ConfigError

HOPS = (2, 3, 4, 5)
_MAX_LIST = 5
_WORDS = {Op.ADD: "sum", Op.DIFFERENCE: "difference", Op.MULTIPLY: "product"}
_LEADS = ("What is {}?", "Find {}.", "I need {}.")


@dataclass(frozen=True, slots=True)
class Expression:
    """A relation applied to arguments, each a constant or an expression."""

    relation: Relation
    arguments: tuple[Any, ...]
    choices: tuple[str, ...] = ()
    """CHOOSE: the things whose numbers are compared."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A question with its graph and, for each sub-question, the call and its relation (None: no tool)."""

    dag: QuestionDag
    calls: tuple[MadeCall | None, ...]
    relations: tuple[Relation, ...]
    subject: str
    world: str

    @property
    def template(self) -> str:
        """The last step kind and how many sub-questions there are."""
        return f"{self.relations[-1].op}_{len(self.relations)}"

    @property
    def tags(self) -> tuple[str, ...]:
        """Number of sub-questions, and the step kinds in alphabetical order."""
        return (f"hops_{len(self.relations)}", *sorted({relation.op.value for relation in self.relations}))

    @property
    def key(self) -> str:
        """Equal for questions with the same calls and answer, however worded."""
        calls = sorted(call.model_dump_json() for call in self.calls if call is not None)
        return canonical.digest(self.world, calls, self.dag.answer)


def draw_questions(
    subject: str,
    world: str,
    rng: random.Random,
    *,
    hops: tuple[int, ...] = HOPS,
    unseen: bool = False,
    draws: int = 5_000,
) -> Iterator[Drawn]:
    """Questions of a world, none twice, with the numbers of sub-questions in turn.

    Raises ConfigError where `draws` attempts in a row gave no new one.
    """
    tables, seen = make_tables(subject, world), set[str]()
    while True:
        for number in hops:
            for _ in range(draws):
                drawn = draw_question(subject, world, tables, rng, hops=number, unseen=unseen)
                if drawn is not None and drawn.key not in seen:
                    break
            else:
                raise ConfigError(
                    f"no more questions of {number} hops on {subject} {world} after {len(seen)}; allow others"
                )
            seen.add(drawn.key)
            yield drawn


def draw_question(
    subject: str, world: str, tables: Tables, rng: random.Random, *, hops: int, unseen: bool = False
) -> Drawn | None:
    """One question, None where what was drawn has no single answer or another number of sub-questions."""
    expression = _Grammar(SUBJECTS[subject], tables, rng, unseen=unseen).final(hops)
    if expression is None:
        return None
    plan = _Plan(tables)
    try:
        plan.add(expression)
    except LookupError:
        return None
    ops = {step.relation.op for step in plan.steps}
    if len(plan.steps) != hops or bool(ops & UNSEEN) != unseen:
        return None
    return plan.drawn(expression, subject, world, rng)


class _Grammar:
    """Draws expressions of a wanted size; None where a size cannot be had."""

    def __init__(self, kinds: tuple[Kind, ...], tables: Tables, rng: random.Random, *, unseen: bool) -> None:
        self.kinds, self.tables, self.rng, self.unseen = kinds, tables, rng, unseen

    def final(self, hops: int) -> Expression | None:
        """A whole question: about a number, a thing, a word, or a choice between two."""
        kind = self._kind()
        match self.rng.choice(("number", "number", "thing", "word", "choose")):
            case "number":
                return self.number(hops)
            case "thing":
                thing = self.thing(kind, hops)
                return thing if isinstance(thing, Expression) else None
            case "word":
                return self._apply(Relation(Op.LOOKUP, kind.name, kind.word), self.thing(kind, hops - 1))
            case _:
                return self._choice(kind, hops)

    def thing(self, kind: Kind, size: int) -> Expression | str | None:
        """A thing of a kind; of size 0 its name."""
        if size <= 0:
            return self.rng.choice(list(self.tables[kind.name])) if size == 0 else None
        options = ["most", "compare"] if size > 1 else ["compare"]
        below = [other for other in self.kinds if other.parent == kind.name]
        options += ["parent"] * 2 * bool(below) + ["rank"] * (3 * self.unseen * (size == 1))
        label = self.rng.choice(list(kind.numbers))
        match self.rng.choice(options):
            case "parent":
                return self._apply(Relation(Op.PARENT, below[0].name), self.thing(below[0], size - 1))
            case "most":
                return self._apply(Relation(Op.MOST, kind.name, label), self.things(kind, size - 1))
            case "rank":
                return Expression(Relation(Op.RANK, kind.name, label), (self.rng.randint(1, 5),))
            case _:
                first, second = self._split(size - 1)
                pair = self.thing(kind, first), self.thing(kind, second)
                return self._apply(Relation(Op.COMPARE, kind.name, label), *pair)

    def things(self, kind: Kind, size: int) -> Expression | None:
        """A list of things."""
        options = ["with"] * (size == 1) + ["filter"] * bool(kind.parent)
        options += ["above"] * (3 * self.unseen)
        label = self.rng.choice(list(kind.numbers))
        match self.rng.choice(options or [""]):
            case "with":
                word = self.rng.choice(kind.values)
                return Expression(Relation(Op.WITH, kind.name, kind.word), (word,))
            case "filter":
                return self._apply(Relation(Op.FILTER, kind.name), self.thing(KINDS[kind.parent], size - 1))
            case "above":
                low, high = kind.numbers[label]
                limit = self.rng.randint((low + 3 * high) // 4, high) if size == 1 else self.number(size - 1)
                return self._apply(Relation(Op.ABOVE, kind.name, label), limit)
            case _:
                return None

    def number(self, size: int) -> Expression | None:
        """A number."""
        kind = self._kind()
        label = self.rng.choice(list(kind.numbers))
        options = ["lookup"] * 2 + ["count"] * bool(kind.parent) + ["total"] * (size > 1)
        options += ["arithmetic"] * (size > 2)
        match self.rng.choice(options):
            case "lookup":
                return self._apply(Relation(Op.LOOKUP, kind.name, label), self.thing(kind, size - 1))
            case "count":
                return self._apply(Relation(Op.COUNT, kind.name), self.thing(KINDS[kind.parent], size - 1))
            case "total":
                return self._apply(Relation(Op.TOTAL, kind.name, label), self.things(kind, size - 1))
            case _:
                return self._arithmetic(size)

    def _arithmetic(self, size: int) -> Expression | None:
        ops = ARITHMETIC if self.unseen else (Op.ADD, Op.DIFFERENCE)
        relation = Relation(self.rng.choice(ops))
        if self.rng.random() < 0.4:  # two numbers of one thing: its way is shared
            kind = self._kind()
            thing = self.thing(kind, size - 3)
            pair = [self._apply(Relation(Op.LOOKUP, kind.name, label), thing) for label in kind.numbers]
            return self._apply(relation, *pair)
        first, second = self._split(size - 3)
        return self._apply(relation, self.number(first + 1), self.number(second + 1))

    def _choice(self, kind: Kind, hops: int) -> Expression | None:
        """Two named things, a number of each, and which is larger."""
        if hops not in (3, 5):
            return None
        first, second = self.rng.sample(list(self.tables[kind.name]), 2)
        label = self.rng.choice(list(kind.numbers))
        chosen = Relation(Op.CHOOSE, kind.name, label)
        if hops == 5:  # the numbers belong to what the things belong to
            if not kind.parent:
                return None
            above = KINDS[kind.parent]
            relation = Relation(Op.LOOKUP, above.name, self.rng.choice(list(above.numbers)))
            chosen = Relation(Op.CHOOSE, kind.name, relation.label)
            parents = [Expression(Relation(Op.PARENT, kind.name), (name,)) for name in (first, second)]
            pair = [Expression(relation, (parent,)) for parent in parents]
        else:
            relation = Relation(Op.LOOKUP, kind.name, label)
            pair = [Expression(relation, (name,)) for name in (first, second)]
        return Expression(chosen, tuple(pair), (first, second))

    def _kind(self) -> Kind:
        return self.rng.choice(self.kinds)

    def _split(self, size: int) -> tuple[int, int]:
        first = self.rng.randint(0, max(size, 0))
        return first, size - first

    def _apply(self, relation: Relation, *arguments: Any) -> Expression | None:
        return None if any(item is None for item in arguments) else Expression(relation, arguments)


@dataclass(frozen=True, slots=True)
class _Step:
    relation: Relation
    text: str
    value: Value
    depends_on: tuple[int, ...]
    call: MadeCall | None


class _Plan:
    """Answers an expression bottom-up, equal parts once. Raises LookupError where there is no good answer."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.steps: list[_Step] = []
        self._known: dict[Expression, int] = {}

    def add(self, expression: Expression) -> int:
        """The index of the expression's sub-question."""
        if expression in self._known:
            return self._known[expression]
        parents = [self.add(item) if isinstance(item, Expression) else None for item in expression.arguments]
        values = [
            item if parent is None else self.steps[parent].value
            for item, parent in zip(expression.arguments, parents, strict=True)
        ]
        relation, call = expression.relation, None
        if relation.op is Op.CHOOSE:
            value: Value = _chosen(expression.choices, values)
        else:
            call = MadeCall(
                tool=relation.tool.name, arguments=dict(zip(relation.parameters, values, strict=True))
            )
            value = relation.answer(self.tables, call.arguments)
        _refuse_dull(relation, values, value)
        shown = [
            f"#{parent}" if parent is not None else item
            for item, parent in zip(expression.arguments, parents, strict=True)
        ]
        text = _question(Expression(relation, tuple(shown), expression.choices), "What is {}?")
        depends_on = tuple(dict.fromkeys(parent for parent in parents if parent is not None))
        self.steps.append(_Step(relation, text, value, depends_on, call))
        self._known[expression] = len(self.steps) - 1
        return self._known[expression]

    def drawn(self, expression: Expression, subject: str, world: str, rng: random.Random) -> Drawn:
        """The whole as a question with its graph."""
        steps = tuple(
            SubQuestion(
                text=step.text,
                answer=shown_value(step.value),
                depends_on=step.depends_on,
                needs_tool=step.call is not None,
            )
            for step in self.steps
        )
        question = _question(expression, rng.choice(_LEADS))
        dag = QuestionDag(question=question, answer=steps[-1].answer, steps=steps)
        calls = tuple(step.call for step in self.steps)
        return Drawn(dag, calls, tuple(step.relation for step in self.steps), subject, world)


def shown_value(value: Any) -> str:
    """A value as a tool's result says it: text as it is, anything else as compact JSON."""
    return value if isinstance(value, str) else canonical.dumps(value)


def _chosen(names: tuple[str, ...], numbers: list[Any]) -> str:
    if numbers[0] == numbers[1]:
        raise LookupError("both numbers are equal")
    return names[0] if numbers[0] > numbers[1] else names[1]


def _refuse_dull(relation: Relation, values: list[Any], value: Value) -> None:
    """Lists of one or of many, a thing compared with itself and nothing left over are no good questions."""
    if isinstance(value, list) and not 2 <= len(value) <= _MAX_LIST:
        raise LookupError(f"a list of {len(value)}")
    if len(values) == 2 and values[0] == values[1]:
        raise LookupError(f"{relation.op} of equal things")


def _question(expression: Expression, lead: str) -> str:
    if expression.relation.op is not Op.CHOOSE:
        return lead.format(_phrase(expression))
    kind, label = KINDS[expression.relation.kind], expression.relation.label
    first, second = (f"the {kind.name} {name}" for name in expression.choices)
    numbers = [item for item in expression.arguments if isinstance(item, str)]
    if numbers:  # a sub-question, which names the answers it builds on
        one, other = numbers
        return f"Which has more {label}, {first} with {one} or {second} with {other}?"
    parent = expression.arguments[0].relation.kind
    of = f"{label}" if parent == kind.name else f"{parent} with more {label}"
    return f"Which has {'more ' if parent == kind.name else 'the '}{of}, {first} or {second}?"


def _phrase(node: Expression) -> str:
    """An expression in words; constants are named with their kind, `#0` stands for an earlier answer."""
    relation = node.relation
    op, label = relation.op, relation.label
    if op in ARITHMETIC:
        first, second = (_part(item, "") for item in node.arguments)
        return f"the {_WORDS[op]} of {first} and {second}"
    kind = KINDS[relation.kind]
    given = [
        _part(item, kind.parent if op in (Op.FILTER, Op.COUNT) else kind.name) for item in node.arguments
    ]
    match op:
        case Op.LOOKUP:
            return f"the {label} of {given[0]}"
        case Op.PARENT:
            return f"the {kind.parent} of {given[0]}"
        case Op.FILTER:
            return f"the list of {kind.plural} {kind.of} {given[0]}"
        case Op.WITH:
            return f"the list of {kind.plural} with {label} {node.arguments[0]}"
        case Op.COUNT:
            return f"the number of {kind.plural} {kind.of} {given[0]}"
        case Op.TOTAL:
            return f"the total {label} over {_part(node.arguments[0], '')}"
        case Op.MOST:
            return f"the {kind.name} with the most {label} in {_part(node.arguments[0], '')}"
        case Op.COMPARE:
            return f"the {kind.name} with more {label}, of {given[0]} and {given[1]}"
        case Op.ABOVE:
            return f"the list of {kind.plural} with {label} above {_part(node.arguments[0], '')}"
        case _:
            return f"the {kind.name} at place {node.arguments[0]} by {label} from the top"


def _part(item: Any, kind: str) -> str:
    if isinstance(item, Expression):
        return _phrase(item)
    return f"the {kind} {item}" if kind and not str(item).startswith("#") else str(item)
