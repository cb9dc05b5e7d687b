"""Breaking a program: one mutation replaces a few whole lines of its source.

Each operator proposes replacements for one kind of place in the syntax tree; the text is changed at that
place only, so the rest stays as written. Whether a mutant really misbehaves is for `build` to find out by
running it. Not covered: mutations across lines that are not neighbours; combine two mutations for that.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_COMPARE: dict[type[ast.cmpop], tuple[tuple[str, str], ...]] = {
    ast.Lt: (("boundary", "<="), ("comparison", ">")),
    ast.LtE: (("boundary", "<"), ("comparison", ">=")),
    ast.Gt: (("boundary", ">="), ("comparison", "<")),
    ast.GtE: (("boundary", ">"), ("comparison", "<=")),
    ast.Eq: (("comparison", "!="),),
    ast.NotEq: (("comparison", "=="),),
    ast.In: (("comparison", "not in"),),
    ast.NotIn: (("comparison", "in"),),
}
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.FloorDiv: "%",
    ast.Mod: "//",
}
_SIMPLE = (ast.Name, ast.Constant, ast.Subscript, ast.Call)


class Mutation(NamedTuple):
    """Lines [first, first + height) of the source become `lines`. `column` tells places on a line apart."""

    operator: str
    first: int
    height: int
    lines: tuple[str, ...]
    column: int = 0

    @property
    def site(self) -> tuple[int, int]:
        """The place that is changed, whatever is put there."""
        return self.first, self.column


def proposals(source: str) -> list[Mutation]:
    """Every mutation that changes the text and leaves it valid Python, in order of place, each text once."""
    tree, lines = ast.parse(source), source.splitlines()
    found: dict[str, Mutation] = {}
    for mutation in sorted(_Proposer(tree, lines).all(), key=lambda one: (one.first, one.column)):
        text = apply(source, [mutation])
        if text != source and text not in found and _valid(text):
            found[text] = mutation
    return list(found.values())


def apply(source: str, mutations: Sequence[Mutation]) -> str:
    """The source with all of them; their lines must not overlap."""
    lines = source.splitlines()
    for mutation in sorted(mutations, key=lambda one: one.first, reverse=True):
        lines[mutation.first : mutation.first + mutation.height] = mutation.lines
    return "\n".join(lines) + "\n"


def overlap(one: Mutation, other: Mutation) -> bool:
    """Whether two mutations touch the same or neighbouring lines."""
    return one.first <= other.first + other.height and other.first <= one.first + one.height


def _valid(text: str) -> bool:
    try:
        compile(text, "mutant", "exec")
    except SyntaxError:
        return False
    return True


class _Proposer:
    def __init__(self, tree: ast.Module, lines: Sequence[str]) -> None:
        self.tree, self.lines = tree, lines
        function = tree.body[0]
        assert isinstance(function, ast.FunctionDef), "a program is one function"
        self.body = function.body[1:]  # without the docstring
        stored = [
            node.id
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ]
        variables = list(dict.fromkeys([*(one.arg for one in function.args.args), *stored]))
        whole = _containers(function)
        self.alike = {
            name: [other for other in variables if (other in whole) == (name in whole)] for name in variables
        }

    def all(self) -> Iterator[Mutation]:
        for statement in self.body:
            for node in ast.walk(statement):
                yield from self._expression(node)
                yield from self._statement(node)
        for block in self._blocks():
            yield from self._dropped(block)

    def _expression(self, node: ast.AST) -> Iterator[Mutation]:
        if isinstance(node, ast.Compare):
            yield from self._compare(node)
        elif isinstance(node, ast.BinOp):
            yield from self._binary(node)
        elif isinstance(node, ast.BoolOp):
            words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            yield self._between(node.values[0], node.values[1], "boolean", *words)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield self._replaced(node, "boolean", self._text(node.operand))
        elif isinstance(node, ast.Constant):
            yield from self._constant(node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            for name in self._others(node):
                yield self._replaced(node, "wrong_variable", name)
        elif isinstance(node, ast.Call) and len(node.args) > 1:
            first, second = node.args[:2]
            text = f"{self._text(second)}, {self._text(first)}"
            yield self._spanned(first, second, "swapped_arguments", text)

    def _compare(self, node: ast.Compare) -> Iterator[Mutation]:
        operands = [node.left, *node.comparators]
        for operator, left, right in zip(node.ops, operands, operands[1:], strict=False):
            for name, symbol in _COMPARE[type(operator)]:
                old = self._gap(left, right)
                yield self._between(left, right, name, old, symbol)

    def _binary(self, node: ast.BinOp) -> Iterator[Mutation]:
        symbol = _ARITHMETIC[type(node.op)]
        yield self._between(node.left, node.right, "wrong_operator", self._gap(node.left, node.right), symbol)
        if isinstance(node.right, ast.Constant) and isinstance(node.op, ast.Add | ast.Sub):
            yield self._replaced(node, "off_by_one", self._text(node.left))
        elif all(isinstance(side, _SIMPLE) for side in (node.left, node.right)):
            text = f"{self._text(node.right)} {self._gap(node.left, node.right)} {self._text(node.left)}"
            yield self._replaced(node, "swapped_operands", text)

    def _constant(self, node: ast.Constant) -> Iterator[Mutation]:
        if isinstance(node.value, bool):
            yield self._replaced(node, "wrong_constant", str(not node.value))
        elif isinstance(node.value, int):
            yield self._replaced(node, "off_by_one", str(node.value + 1))
            if node.value > 1:
                yield self._replaced(node, "off_by_one", str(node.value - 1))

    def _others(self, node: ast.Name) -> list[str]:
        """Up to two variables of the same sort."""
        alike = self.alike.get(node.id, [])
        at = alike.index(node.id) if alike else 0
        return [alike[at - 1], alike[(at + 1) % len(alike)]] if alike else []

    def _statement(self, node: ast.AST) -> Iterator[Mutation]:
        if isinstance(node, ast.Return) and node.value is not None:
            yield self._replaced(node, "missing_return", self._text(node.value))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.List | ast.Tuple):
            value = {"0": "1", "1": "0", "2": "1", "[]": "[0]", "[1]": "[]"}.get(self._text(node.value))
            if value is not None:
                yield self._replaced(node.value, "wrong_initial_value", value)
        elif isinstance(node, ast.AugAssign):
            gap, value = self._gap(node.target, node.value), self._text(node.value)
            other = {"+=": "-=", "-=": "+="}[gap]
            yield self._replaced(node, "wrong_operator", f"{self._text(node.target)} {other} {value}")
            yield self._replaced(node, "lost_update", f"{self._text(node.target)} = {value}")

    def _blocks(self) -> Iterator[list[ast.stmt]]:
        yield self.body
        for statement in self.body:
            for node in ast.walk(statement):
                for name in ("body", "orelse"):
                    block = getattr(node, name, None)
                    if isinstance(block, list):
                        yield block

    def _dropped(self, block: Sequence[ast.stmt]) -> Iterator[Mutation]:
        """Without one statement of a block; neighbours swapped."""
        for index, node in enumerate(block):
            if len(block) > 1 and isinstance(node, ast.If) and isinstance(node.body[0], ast.Return):
                if not node.orelse and len(node.body) == 1:
                    yield Mutation("missing_case", *self._rows(node), ())
            elif len(block) > 1 and isinstance(node, ast.AugAssign | ast.Assign | ast.Expr):
                yield Mutation("missing_statement", *self._rows(node), ())
                after = block[index + 1] if index + 1 < len(block) else None
                if isinstance(after, ast.AugAssign | ast.Assign | ast.Expr):
                    first, _ = self._rows(node)
                    pair = (self.lines[first + 1], self.lines[first])
                    yield Mutation("swapped_statements", first, 2, pair)

    def _rows(self, node: ast.stmt) -> tuple[int, int]:
        return node.lineno - 1, (node.end_lineno or node.lineno) - node.lineno + 1

    def _text(self, node: ast.AST) -> str:
        assert isinstance(node, ast.expr) and node.lineno == node.end_lineno
        return self.lines[node.lineno - 1][node.col_offset : node.end_col_offset]

    def _gap(self, left: ast.expr, right: ast.expr) -> str:
        return self.lines[left.lineno - 1][left.end_col_offset : right.col_offset].strip("() ")

    def _replaced(self, node: ast.expr | ast.stmt, operator: str, text: str) -> Mutation:
        return self._spanned(node, node, operator, text)

    def _spanned(
        self, first: ast.expr | ast.stmt, last: ast.expr | ast.stmt, operator: str, text: str
    ) -> Mutation:
        row, line = first.lineno - 1, self.lines[first.lineno - 1]
        changed = line[: first.col_offset] + text + line[last.end_col_offset :]
        return Mutation(operator, row, 1, (changed,), first.col_offset)

    def _between(self, left: ast.expr, right: ast.expr, operator: str, old: str, new: str) -> Mutation:
        row, line = left.lineno - 1, self.lines[left.lineno - 1]
        at = line.index(old, left.end_col_offset)
        return Mutation(operator, row, 1, (line[:at] + new + line[at + len(old) :],), at)


def _containers(function: ast.FunctionDef) -> set[str]:
    """Variables that are indexed, measured or iterated: no sensible writer puts a number there."""
    found = set()
    for node in ast.walk(function):
        inner: ast.AST | None = None
        if isinstance(node, ast.Subscript):
            inner = node.value
        elif isinstance(node, ast.For | ast.comprehension):
            inner = node.iter
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            inner = node.func.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
            inner = node.args[0]
        if isinstance(inner, ast.Name):
            found.add(inner.id)
    return found
