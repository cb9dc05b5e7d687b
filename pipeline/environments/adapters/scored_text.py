"""Answers that a foreign scorer evaluates: which of them may be given to it.

Some datasets of reasoning-gym score an answer with `eval` or sympy's `parse_expr`, which execute what the
model wrote, in this process. Decided here: to `eval` go literals, single names and what is no Python at all;
to `parse_expr` goes arithmetic of numbers, single letters and the functions of school, with small powers.
Everything else is never evaluated. Not covered: scorers that hand an answer on to another module that
evaluates it.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Any

MAX_LENGTH = 2000
_MAX_EXPONENT = 20
_MAX_POWERS = 2
"""Powers within each other's bases."""
_WORDS = re.compile(r"[0-9A-Za-z .+*/^(),-]*")
_FUNCTIONS = frozenset({"sin", "cos", "tan", "asin", "acos", "atan", "exp", "log", "ln", "sqrt", "Abs"})
_NAMES = _FUNCTIONS | {"pi"}
_ARITHMETIC = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.Call, ast.Name, ast.Load),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.BitXor, ast.UAdd, ast.USub),
)


class Evaluates(StrEnum):
    """What a scorer does with an answer."""

    NOTHING = "nothing"
    PYTHON = "python"
    """`eval`."""
    SYMPY = "sympy"
    """sympy's `parse_expr` or `sympify`, which evaluate more than Python's grammar."""


def evaluates(score: Callable[..., Any]) -> Evaluates:
    """What `score` evaluates, by its source; where there is none to read, the worst is assumed."""
    try:
        source = inspect.getsource(score)
    except (OSError, TypeError):
        return Evaluates.SYMPY
    module = sys.modules.get(getattr(score, "__module__", ""))
    bare = getattr(module, "parse_expr", None)
    own = bare is not None and not str(bare.__module__).startswith("sympy.")
    if re.search(r"\b(?:sympify|\w+\.parse_expr)\(", source) or ("parse_expr(" in source and not own):
        return Evaluates.SYMPY
    return Evaluates.PYTHON if re.search(r"(?<!literal_)\b(?:eval|exec)\(", source) else Evaluates.NOTHING


def is_harmless(answer: str, kind: Evaluates) -> bool:
    """Whether a scorer of this kind may be given the answer."""
    if kind is Evaluates.NOTHING:
        return True
    if len(answer) > MAX_LENGTH:
        return False
    return _is_literal(answer) if kind is Evaluates.PYTHON else _is_arithmetic(answer.strip())


def _is_literal(text: str) -> bool:
    if text.strip().isidentifier():
        return True  # looking a name up does nothing
    try:
        ast.literal_eval(text)
    except SyntaxError:
        return True  # neither can `eval` read it
    except Exception:
        return False
    return True


def _is_arithmetic(text: str) -> bool:
    if not _WORDS.fullmatch(text):
        return False
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return all(map(_is_allowed, ast.walk(tree))) and _powers(tree) <= _MAX_POWERS


def _is_allowed(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    if isinstance(node, ast.Name):
        return len(node.id) == 1 or node.id in _NAMES
    if isinstance(node, ast.Call):
        named = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
        return named and not node.keywords
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.BitXor):
        return all(map(_is_small, ast.walk(node.right)))
    return isinstance(node, _ARITHMETIC)


def _is_small(node: ast.AST) -> bool:
    """Whether a part of an exponent is no power and no large number."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and abs(node.value) <= _MAX_EXPONENT
    return not isinstance(node, ast.Pow | ast.BitXor | ast.Mult | ast.Call)


def _powers(node: ast.AST) -> int:
    inner = max(map(_powers, ast.iter_child_nodes(node)), default=0)
    return inner + (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.BitXor))
