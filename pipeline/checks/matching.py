"""How well the calls that were made match the calls that should have been made.

Decides equality of calls (name and arguments as JSON values: key order does not matter, 1 equals 1.0, a
boolean equals no number) and three measures over whole lists of calls: an all-or-nothing multiset match,
a graded match, and precision and recall. A call that did not parse matches nothing and still counts as
made. Not covered: whether a call was executed, or whether the end state is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from data import canonical
from data.messages import Role, Turn


class Call(NamedTuple):
    """A call as it is compared. `arguments` is None where they could not be read: it equals nothing."""

    name: str
    arguments: dict[str, Any] | None

    def key(self) -> str:
        """Text that two calls share exactly where they are equal."""
        return canonical.dumps([self.name, _plain(self.arguments)], sort_keys=True)


class Graded(NamedTuple):
    """The parts of a graded match (ToolRL, arXiv 2504.13958, section 3.3)."""

    name: float
    """Multiset Jaccard of the names, in [0, 1]."""
    parameters: float
    """Sum over matched pairs of the Jaccard of their argument names."""
    values: float
    """Number of gold arguments that a matched call gave the equal value."""
    maximum: float
    """1 + number of gold calls + number of gold arguments."""

    @property
    def score(self) -> float:
        """6 * (name + parameters + values) / maximum - 3, in [-3, 3]."""
        return 6.0 * (self.name + self.parameters + self.values) / self.maximum - 3.0


def made_calls(turns: Sequence[Turn]) -> tuple[Call, ...]:
    """Every call the assistant wrote, in order; those that did not parse have no arguments."""
    return tuple(
        Call(call.name, call.parsed_arguments() if call.ok else None)
        for turn in turns
        if turn.role is Role.ASSISTANT
        for call in turn.tool_calls
    )


def read_calls(value: Any) -> tuple[Call, ...]:
    """Calls from JSON: a list of {"name", "arguments"} or [name, arguments]. Raises ValueError elsewhere."""
    if not isinstance(value, list):
        raise ValueError(f"calls must be a list, got {type(value).__name__}")
    return tuple(_read_call(item) for item in value)


def same_value(one: Any, other: Any) -> bool:
    """Equality of JSON values: numbers by value, a boolean only with a boolean, objects in any order."""
    return canonical.dumps(_plain(one), sort_keys=True) == canonical.dumps(_plain(other), sort_keys=True)


def same_calls(gold: Iterable[Call], made: Iterable[Call]) -> bool:
    """Whether both are the same multiset of calls (LoopTool, arXiv 2511.09148): order is free."""
    return Counter(_keys(gold)) == Counter(_keys(made))


def num_matched(gold: Iterable[Call], made: Iterable[Call]) -> int:
    """How many gold calls were made, each made call answering for one of them."""
    return (Counter(_keys(gold)) & Counter(_keys(made))).total()


def graded_match(gold: Sequence[Call], made: Sequence[Call]) -> Graded:
    """Partial credit for names, argument names and values; pairs of equal name are matched for the best sum.

    The paper's matching is optimal, its released code greedy; this is optimal. Raises ValueError where
    `gold` is empty: then there is nothing to grade.
    """
    if not gold:
        raise ValueError("a graded match needs at least one gold call")
    pairs = [[_pair(wanted, given) for given in made] for wanted in gold]
    chosen = best_assignment([[parameters + values for parameters, values in row] for row in pairs])
    matched = [pairs[row][column] for row, column in chosen]
    names, given_names = Counter(call.name for call in gold), Counter(call.name for call in made)
    return Graded(
        name=(names & given_names).total() / (names | given_names).total(),
        parameters=sum(parameters for parameters, _ in matched),
        values=sum(values for _, values in matched),
        maximum=1.0 + len(gold) + sum(len(call.arguments or {}) for call in gold),
    )


def call_f1(solved: float, required: float, made: float) -> float:
    """2pr / (p + r) with r = solved / required, p = solved / made (ASTRA, arXiv 2601.21558); in [0, 1].

    Both sides count: recall alone rewards calling everything, precision alone rewards not calling.
    """
    if required <= 0 or not 0 <= solved <= required or made < 0:
        raise ValueError(
            f"need 0 <= solved <= required, required > 0, made >= 0: {solved}, {required}, {made}"
        )
    if solved == 0:
        return 0.0
    recall, precision = solved / required, min(1.0, solved / made) if made else 0.0
    return 2 * precision * recall / (precision + recall) if precision else 0.0


def best_assignment(scores: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """Pairs (row, column), each row and column at most once, of the largest total (Hungarian method)."""
    if not scores or not scores[0]:
        return []
    if len(scores) > len(scores[0]):
        turned = best_assignment([list(column) for column in zip(*scores, strict=True)])
        return sorted((row, column) for column, row in turned)
    rows, columns = len(scores), len(scores[0])
    row_price, column_price = [0.0] * (rows + 1), [0.0] * (columns + 1)
    owner, way = [0] * (columns + 1), [0] * (columns + 1)
    for row in range(1, rows + 1):
        owner[0], column = row, 0
        slack, seen = [float("inf")] * (columns + 1), [False] * (columns + 1)
        while owner[column]:
            seen[column] = True
            current, least, following = owner[column], float("inf"), 0
            for free in range(1, columns + 1):
                if seen[free]:
                    continue
                cost = -scores[current - 1][free - 1] - row_price[current] - column_price[free]
                if cost < slack[free]:
                    slack[free], way[free] = cost, column
                if slack[free] < least:
                    least, following = slack[free], free
            for index in range(columns + 1):
                if seen[index]:
                    row_price[owner[index]] += least
                    column_price[index] -= least
                else:
                    slack[index] -= least
            column = following
        while column:
            owner[column], column = owner[way[column]], way[column]
    return sorted((owner[column] - 1, column - 1) for column in range(1, columns + 1) if owner[column])


def _pair(gold: Call, made: Call) -> tuple[float, float]:
    """(Jaccard of argument names, number of equal gold values); nothing for different names."""
    if gold.name != made.name or made.arguments is None or gold.arguments is None:
        return 0.0, 0.0
    wanted, given = gold.arguments, made.arguments
    union = wanted.keys() | given.keys()
    shared = len(wanted.keys() & given.keys()) / len(union) if union else 1.0
    equal = sum(name in given and same_value(value, given[name]) for name, value in wanted.items())
    return shared, float(equal)


def _keys(calls: Iterable[Call]) -> Iterator[str]:
    """Gold is always readable; what is not gets a key of its own, so it equals nothing."""
    for index, call in enumerate(calls):
        yield call.key() if call.arguments is not None else f"unreadable {index}"


def _read_call(item: Any) -> Call:
    if isinstance(item, dict) and isinstance(item.get("name"), str):
        name, arguments = item["name"], item.get("arguments", {})
    elif isinstance(item, list) and len(item) == 2 and isinstance(item[0], str):
        name, arguments = item
    else:
        raise ValueError(f"a call is {{'name', 'arguments'}} or [name, arguments], got {item!r:.120}")
    if not isinstance(arguments, dict):
        raise ValueError(f"arguments of call {name!r} must be an object, got {type(arguments).__name__}")
    return Call(name, arguments)


def _plain(value: Any) -> Any:
    """`value` with whole floats as integers, so that equal numbers have equal text."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
