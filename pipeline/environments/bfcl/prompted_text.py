"""Calls written as text, in the four notations and 26 prompts of the category format_sensitivity.

Upstream writes the prompt (`formulate_system_prompt`) and reads XML; both are taken as they are. Its reader
of Python notation runs `eval` on arithmetic in arguments, and its reader of JSON searches with a pattern
whose time can double with every call of a reply: these two are written anew, the first over the syntax tree,
the second with a JSON decoder. Only arithmetic on numbers with + - * / // % is computed; a reply with any
other is no call here. Not covered: calls a renderer has already taken out of a reply.
"""

from __future__ import annotations

import ast
import functools
import itertools
import json
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from pipeline.environments.bfcl.stand_ins import imported

Call = dict[str, dict[str, Any]]
Named = Sequence[tuple[str, dict[str, Any]]]
MAX_TEXT = 20_000
"""Characters of a reply that are read; a longer one holds no calls."""
_PARSER = "bfcl_eval.model_handler.parser"
_TENACITY = ("retry", "retry_if_exception_message", "retry_if_exception_type", "wait_random_exponential")
_STAND_INS: dict[str, dict[str, Any]] = {
    "bfcl_eval.utils": {},
    f"{_PARSER}.java_parser": {"parse_java_function_call": None},
    f"{_PARSER}.js_parser": {"parse_javascript_function_call": None},
    "tenacity": dict.fromkeys(_TENACITY),
}
_TYPES = {bool: "boolean", int: "integer", float: "float", str: "string", dict: "dict", list: "array"}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """One of the 26: how calls are to be written, and how the prompt says so."""

    notation: str
    """"python", "json", "verbose_xml" or "concise_xml"."""
    tag: bool
    """Whether calls stand in <TOOLCALL>."""
    documents: str
    """Functions are shown as "python", "xml" or "json"."""
    layout: str = "plaintext"
    style: str = "classic"

    @property
    def name(self) -> str:
        """As upstream writes it."""
        return (
            f"ret_fmt={self.notation}&tool_call_tag={self.tag}&func_doc_fmt={self.documents}"
            f"&prompt_fmt={self.layout}&style={self.style}"
        )

    def text(self, functions: Sequence[dict[str, Any]]) -> str:
        """Upstream's system prompt."""
        return str(_upstream().formulate_system_prompt(self.name, list(functions)))


PROMPTS = (
    *(
        Prompt(notation, tag, documents)
        for notation, tag, documents in itertools.product(
            ("python", "json", "verbose_xml", "concise_xml"), (True, False), ("python", "xml", "json")
        )
    ),
    Prompt("python", False, "json", layout="markdown"),
    Prompt("python", False, "json", style="experimental"),
)
"""In upstream's order."""


def read_calls(text: str, prompt: Prompt) -> list[Call] | None:
    """The calls a reply holds, None where it cannot be read. Evaluates nothing."""
    if len(text) > MAX_TEXT:
        return None
    try:
        written = _between_tags(_bracketed(text)) if prompt.tag else _bracketed(text)
        if prompt.notation == "python":
            return _read_python(written)
        calls = _read_json(written) if prompt.notation == "json" else _read_xml(written, prompt.notation)
    except (ValueError, TypeError, KeyError, SyntaxError, RecursionError, MemoryError, ArithmeticError):
        return None
    return calls if all(isinstance(given, dict) for call in calls for given in call.values()) else None


def write_calls(calls: Named, prompt: Prompt) -> str:
    """A reply that holds these calls."""
    writer = {"python": _python, "json": _json, "verbose_xml": _verbose, "concise_xml": _concise}
    text = writer[prompt.notation](calls)
    return f"<TOOLCALL>{text}</TOOLCALL>" if prompt.tag else text


@functools.cache
def _upstream() -> Any:
    return imported("bfcl_eval.model_handler.utils", _STAND_INS)


def _bracketed(text: str) -> str:
    text = text.strip("`\n ")
    text = text if text.startswith("[") else f"[{text}"
    return text if text.endswith("]") else f"{text}]"


def _between_tags(text: str) -> str:
    _, opened, after = text.partition("<TOOLCALL>")
    inside, closed, _ = after.partition("</TOOLCALL>")
    if not (opened and closed):
        raise ValueError("no tags")
    return inside.strip()


def _read_xml(text: str, notation: str) -> list[Call]:
    start, end = text.find("<functions>"), text.find("</functions>")
    if not 0 <= start < end or "<!" in text:  # no entities, whose expansion has no bounds
        raise ValueError("no functions")
    parse = getattr(_upstream(), f"parse_{notation}_function_call")
    return list(parse(text[start : end + len("</functions>")]))


def _read_json(text: str) -> list[Call]:
    found = re.search(r"\[\s*\{", text)
    if found is None:
        return []
    listed, _ = json.JSONDecoder().raw_decode(text, found.start())
    if not all(isinstance(call, dict) for call in listed):
        listed = [
            call for call in json.loads(text[text.find("[") : text.rfind("]") + 1]) if isinstance(call, dict)
        ]
    return [{call["function"]: call["parameters"]} for call in listed]


def _read_python(text: str) -> list[Call]:
    body = ast.parse(text.strip().strip("'"), mode="eval").body
    elements = [body] if isinstance(body, ast.Call) else getattr(body, "elts", None)
    if elements is None or not all(isinstance(element, ast.Call) for element in elements):
        raise ValueError("no list of calls")
    return [_call(element) for element in elements]


def _call(node: ast.Call) -> Call:
    return {ast.unparse(node.func): {str(given.arg): _value(given.value) for given in node.keywords}}


def _value(node: ast.expr) -> Any:
    """As upstream's `resolve_ast_by_type`, without its two calls of `eval`."""
    match node:
        case ast.Constant():
            return "..." if node.value is Ellipsis else node.value
        case ast.UnaryOp(operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List():
            return [_value(item) for item in node.elts]
        case ast.Tuple():
            return tuple(_value(item) for item in node.elts)
        case ast.Dict():
            pairs = zip(node.keys, node.values, strict=True)
            return {_value(key): _value(item) for key, item in pairs if key is not None}
        case ast.BinOp():
            return _number(node)
        case ast.Name():
            return node.id
        case ast.Call():
            return _call(node) if node.keywords else ast.unparse(node)
        case ast.Subscript():
            return ast.unparse(node)
    raise ValueError(f"{type(node).__name__} in an argument")


def _number(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub()):
            return -_number(node.operand)
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            return _ARITHMETIC[type(node.op)](_number(node.left), _number(node.right))
    raise ValueError("arithmetic on something else than numbers")


def _python(calls: Named) -> str:
    listed = (
        f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})" for name, given in calls
    )
    return f"[{', '.join(listed)}]"


def _json(calls: Named) -> str:
    return f"```json\n{json.dumps([{'function': name, 'parameters': given} for name, given in calls])}\n```"


def _typed(value: Any) -> tuple[str, str]:
    """A value's type, in upstream's words, and its text."""
    kind = next((name for known, name in _TYPES.items() if isinstance(value, known)), "null")
    return kind, str(value).lower() if kind == "boolean" else str(value)


def _verbose(calls: Named) -> str:
    def parameter(name: str, value: Any) -> str:
        kind, text = _typed(value)
        return f'<param name={quoteattr(name)} value={quoteattr(text)} type="{kind}"/>'

    return _xml(calls, parameter, inside="params")


def _concise(calls: Named) -> str:
    def parameter(name: str, value: Any) -> str:
        kind, text = _typed(value)
        return f'<param name={quoteattr(name)} type="{kind}">{escape(text)}</param>'

    return _xml(calls, parameter)


def _xml(calls: Named, parameter: Callable[[str, Any], str], *, inside: str = "") -> str:
    opened, closed = (f"<{inside}>", f"</{inside}>") if inside else ("", "")
    functions = (
        f"<function name={quoteattr(name)}>{opened}"
        f"{''.join(parameter(key, value) for key, value in given.items())}{closed}</function>"
        for name, given in calls
    )
    return f"<functions>{''.join(functions)}</functions>"
