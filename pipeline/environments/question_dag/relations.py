"""Relations over the invented tables: what each asks, its true answer, and its tool as Python code.

A relation is a step kind (`Op`) of one kind of thing and one of its labels. `answer` computes the truth here;
`code` is a tool that looks it up in `DATA` by other means, and the sandbox compares the two. One relation is
one tool in every world: only the data differ, so prompts stay short and code is shared. Not covered: putting
relations together (`questions`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pipeline.environments.question_dag.items import MadeTool
from pipeline.environments.question_dag.tables import KINDS, SUBJECTS, Row, Tables

Value = int | str | list[str]


class Op(StrEnum):
    """Step kinds. Those of `UNSEEN` occur in the split heldout_unseen only, each of its questions has one."""

    LOOKUP = "lookup"
    """A number or a word of a thing."""
    PARENT = "parent"
    """What a thing belongs to."""
    FILTER = "filter"
    """The things that belong to one."""
    WITH = "with"
    """The things with a word."""
    COUNT = "count"
    TOTAL = "total"
    """Sum of a number over listed things."""
    MOST = "most"
    """Which of listed things has most."""
    COMPARE = "compare"
    """Which of two things has more."""
    ADD = "add"
    DIFFERENCE = "difference"
    CHOOSE = "choose"
    """Which of two numbers is larger: read off without a tool, so at the end only."""
    ABOVE = "above"
    """The things above a number."""
    RANK = "rank"
    """The thing at a place of an order."""
    MULTIPLY = "multiply"


UNSEEN = frozenset({Op.ABOVE, Op.RANK, Op.MULTIPLY})
ARITHMETIC = (Op.ADD, Op.DIFFERENCE, Op.MULTIPLY)
_SIGNS = {Op.ADD: "a + b", Op.DIFFERENCE: "abs(a - b)", Op.MULTIPLY: "a * b"}
_SUMS = {Op.ADD: "Sum", Op.DIFFERENCE: "Difference", Op.MULTIPLY: "Product"}


@dataclass(frozen=True, slots=True)
class Relation:
    """`kind` is the kind of thing that is looked at, "" for arithmetic; `label` a number or word of it."""

    op: Op
    kind: str = ""
    label: str = ""

    @property
    def subject(self) -> str:
        """The subject it belongs to, "arithmetic" for none: distractors never come from the same."""
        return next((name for name, kinds in SUBJECTS.items() if KINDS.get(self.kind) in kinds), "arithmetic")

    @property
    def parameters(self) -> dict[str, dict[str, Any]]:
        """JSON Schema of each parameter."""
        text: dict[str, Any] = {"type": "string"}
        number: dict[str, Any] = {"type": "integer"}
        if self.op in ARITHMETIC:
            return {"a": number, "b": number}
        kind = KINDS[self.kind]
        listed: dict[str, dict[str, Any]] = {kind.plural: {"type": "array", "items": text}}
        by_op: dict[Op, dict[str, dict[str, Any]]] = {
            Op.LOOKUP: {kind.name: text},
            Op.PARENT: {kind.name: text},
            Op.FILTER: {kind.parent: text},
            Op.WITH: {kind.word: {"type": "string", "enum": list(kind.values)}},
            Op.COUNT: {kind.parent: text},
            Op.TOTAL: listed,
            Op.MOST: listed,
            Op.COMPARE: {"first": text, "second": text},
            Op.ABOVE: {"above": number},
            Op.RANK: {"rank": {"type": "integer", "minimum": 1}},
        }
        return by_op[self.op]

    @property
    def shown(self) -> tuple[str, str]:
        """Name and description of its tool."""
        if self.op in ARITHMETIC:
            return self.op.value, f"{_SUMS[self.op]} of two numbers."
        kind, label = KINDS[self.kind], self.label
        one, many, parent = kind.name, kind.plural, kind.parent
        return {
            Op.LOOKUP: (f"{one}_{label}", f"The {label} of a {one}."),
            Op.PARENT: (f"{parent}_of_{one}", f"Which {parent} a {one} belongs to."),
            Op.FILTER: (f"{many}_of_{parent}", f"List the {many} {kind.of} a {parent}."),
            Op.WITH: (f"{many}_with_{label}", f"List the {many} with this {label}."),
            Op.COUNT: (f"count_{many}_of_{parent}", f"Number of {many} {kind.of} a {parent}."),
            Op.TOTAL: (f"total_{label}_of_{many}", f"Total {label} of listed {many}."),
            Op.MOST: (f"{one}_with_most_{label}", f"Which of listed {many} has the most {label}."),
            Op.COMPARE: (f"compare_{label}_of_{many}", f"Which of two {many} has more {label}."),
            Op.ABOVE: (f"{many}_above_{label}", f"List the {many} with {label} above a number."),
            Op.RANK: (f"{one}_by_{label}_rank", f"The {one} at this place by {label}, 1 has the most."),
        }[self.op]

    @property
    def tool(self) -> MadeTool:
        """Its tool without data, under its own name. Raises LookupError for what needs none."""
        return _tool(self)

    def tool_named(self, name: str, data: Tables) -> MadeTool:
        """Its tool under another name, with data."""
        code = _code(self, name, list(self.parameters))
        return self.tool.model_copy(update={"name": name, "code": code, "data": data})

    def answer(self, tables: Tables, arguments: Mapping[str, Any]) -> Value:
        """The truth. Raises LookupError for what is not there and for ties: there is no answer then."""
        if self.op in ARITHMETIC:
            a, b = arguments["a"], arguments["b"]
            by_op = {Op.ADD: a + b, Op.DIFFERENCE: max(a, b) - min(a, b), Op.MULTIPLY: a * b}
            return int(by_op[self.op])
        rows, (given, *more) = tables[self.kind], arguments.values()
        if self.op in (Op.LOOKUP, Op.PARENT):
            found: Value = rows[given][self.label if self.op is Op.LOOKUP else KINDS[self.kind].parent]
            return found
        if self.op in (Op.FILTER, Op.COUNT, Op.WITH, Op.ABOVE):
            names = sorted(name for name, row in rows.items() if self._holds(row, given))
            if not names:
                raise LookupError(f"nothing fits {given!r}")
            return len(names) if self.op is Op.COUNT else names
        if self.op is Op.TOTAL:
            return sum(int(rows[name][self.label]) for name in dict.fromkeys(given))
        names = list(rows) if self.op is Op.RANK else [given, *more] if self.op is Op.COMPARE else given
        return self._ranked(rows, names, given if self.op is Op.RANK else 1)

    def _holds(self, row: Row, given: Any) -> bool:
        if self.op is Op.ABOVE:
            return bool(row[self.label] > given)
        return bool(row[KINDS[self.kind].word if self.op is Op.WITH else KINDS[self.kind].parent] == given)

    def _ranked(self, rows: dict[str, Row], names: list[str], place: int) -> str:
        values = {name: rows[name][self.label] for name in names}
        [found] = [
            name
            for name, value in values.items()
            if sum(other > value for other in values.values()) == place - 1
            and list(values.values()).count(value) == 1
        ] or [""]
        if not found:
            raise LookupError(f"no single {self.kind} at place {place}")
        return found


@functools.cache
def _tool(relation: Relation) -> MadeTool:
    name, description = relation.shown
    properties = relation.parameters
    return MadeTool(
        name=name,
        description=description,
        parameters={"type": "object", "properties": properties, "required": list(properties)},
        code=_code(relation, name, list(properties)),
        domain=relation.subject,
        exact=True,
        symmetric=relation.op in (Op.ADD, Op.DIFFERENCE, Op.MULTIPLY, Op.COMPARE),
    )


def _code(relation: Relation, name: str, parameters: list[str]) -> str:
    if relation.op in ARITHMETIC:
        return f"def {name}(a, b):\n    return {_SIGNS[relation.op]}\n"
    kind, label, given = KINDS[relation.kind], relation.label, parameters[0]
    find = (
        "def _row(name):\n"
        f"    if name not in DATA[{kind.name!r}]:\n"
        f'        raise KeyError(f"no {kind.name} {{name!r}}")\n'
        f"    return DATA[{kind.name!r}][name]\n\n\n"
    )
    top = (
        "    ordered = sorted(names, key=lambda name: -values[name])\n"
        f"    if list(values.values()).count(values[ordered[{{place}}]]) > 1:\n"
        f"        raise ValueError('several have the same {label}')\n"
        "    return ordered[{place}]\n"
    )
    values = f"    values = {{name: _row(name)[{label!r}] for name in names}}\n"
    column = {Op.WITH: kind.word, Op.ABOVE: label}.get(relation.op, kind.parent)
    sign = ">" if relation.op is Op.ABOVE else "=="
    listed = (
        f"    found = [name for name, row in DATA[{kind.name!r}].items() if row[{column!r}] {sign} {given}]\n"
        f"    if not found:\n        raise LookupError(f'no {kind.plural} for {{{given}!r}}')\n"
    )
    bodies = {
        Op.LOOKUP: f"    return _row({given})[{label!r}]\n",
        Op.PARENT: f"    return _row({given})[{kind.parent!r}]\n",
        Op.FILTER: f"{listed}    return sorted(found)\n",
        Op.WITH: f"{listed}    return sorted(found)\n",
        Op.ABOVE: f"{listed}    return sorted(found)\n",
        Op.COUNT: f"{listed}    return len(found)\n",
        Op.TOTAL: f"    return sum(_row(name)[{label!r}] for name in set({given}))\n",
        Op.MOST: (
            f"    names = list(dict.fromkeys({given}))\n"
            f"    if not names:\n        raise ValueError('no {kind.plural} listed')\n"
            + values
            + top.format(place=0)
        ),
        Op.COMPARE: "    names = list(dict.fromkeys([first, second]))\n" + values + top.format(place=0),
        Op.RANK: (
            f"    names = list(DATA[{kind.name!r}])\n"
            f"    if not 1 <= rank <= len(names):\n        raise LookupError(f'no place {{rank}}')\n"
            + values
            + top.format(place="rank - 1")
        ),
    }
    head = f"def {name}({', '.join(parameters)}):\n"
    body = bodies[relation.op]
    return (find if "_row(" in body else "") + head + body


def relations(*, unseen: bool) -> tuple[Relation, ...]:
    """Every relation that has a tool; those of unseen step kinds only where asked for."""
    found = [Relation(op) for op in ARITHMETIC]
    for kind in KINDS.values():
        numbers = list(kind.numbers)
        found += [Relation(Op.LOOKUP, kind.name, label) for label in (*numbers, kind.word)]
        found += [Relation(Op.WITH, kind.name, kind.word)]
        if kind.parent:
            found += [Relation(op, kind.name) for op in (Op.PARENT, Op.FILTER, Op.COUNT)]
        ranked = (Op.TOTAL, Op.MOST, Op.COMPARE, Op.ABOVE, Op.RANK)
        found += [Relation(op, kind.name, label) for op in ranked for label in numbers]
    return tuple(relation for relation in found if unseen or relation.op not in UNSEEN)
