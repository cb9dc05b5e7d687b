"""The benchmark's worlds without its cache and its `eval`: instances made here, methods called by name.

Upstream keeps every instance in a module's `globals()` and evaluates call strings. Here a World owns its
instances, only documented methods can be called, with JSON arguments by keyword, and gold strings are read as
literals from their syntax tree. Result texts are upstream's, character for character. Two methods set the
precision of `decimal` and `mpmath` for the whole process; it is put back after each call. Not covered: the
benchmark's classes that need a network or a vector store.
"""

from __future__ import annotations

import ast
import copy
import decimal
import functools
import importlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from pipeline.environments.bfcl.dataset import documented_tools

_MAX_SIZE = 1000
_SIZES = {
    "power": "exponent",
    "logarithm": "precision",
    "square_root": "precision",
    "round_number": "decimal_places",
}
"""Parameters that set how much is computed: beyond _MAX_SIZE one call could hold the process for hours."""


class Answer(NamedTuple):
    """What a call answered; `failed` where it raised or answered with an "error" key."""

    text: str
    failed: bool


class World:
    """The instances of one task's classes. Plain attributes, so that it pickles whole."""

    def __init__(
        self, classes: Sequence[str], config: Mapping[str, Any], *, long_context: bool = False
    ) -> None:
        """`config` is taken over by the instances: pass a fresh copy. `long_context` fills the worlds up."""
        self.instances = {name: _instance(name, config.get(name, {}), long_context) for name in classes}
        self._defaults: dict[str, dict[str, Any]] = {}

    def call(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        """Call a documented method. What it raises is its answer, as upstream does it."""
        try:
            with _contained():
                _refuse_endless(name, arguments)
                method = getattr(self.instances[owner(name, tuple(self.instances))], name)
                defaults = self._defaults.setdefault(name, _mutable_defaults(method))
                value = method(**{**defaults, **arguments})
                return Answer(_text(value), isinstance(value, dict) and "error" in value)
        except Exception as error:
            return Answer(f"Error during execution: {error}", failed=True)


def _mutable_defaults(method: Callable[..., Any]) -> dict[str, Any]:
    """Copies of a method's lists and dicts given by default, for one world.

    Upstream puts such a default into the world (`post_tweet`), where a later call changes it (`mention`):
    were it the function's own, in every other world of this process as well.
    """
    parameters = inspect.signature(method).parameters.values()
    return {
        one.name: copy.deepcopy(one.default) for one in parameters if isinstance(one.default, list | dict)
    }


@functools.cache
def load_class(name: str) -> Any:
    """The benchmark's class `name`."""
    backend = importlib.import_module("bfcl_eval.constants.executable_backend_config")
    return getattr(importlib.import_module(backend.CLASS_FILE_PATH_MAPPING[name]), name)


@functools.cache
def owner(tool: str, classes: tuple[str, ...]) -> str:
    """Which of `classes` documents `tool`. Raises ValueError where none does."""
    for name in classes:
        if any(spec.name == tool for spec in documented_tools(name)):
            return name
    raise ValueError(f"there is no tool {tool!r}")


def read_gold(text: str, classes: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Tool name and arguments by name of a gold call string such as "sort('a.txt')". Evaluates nothing."""
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"gold {text!r} is no call of a plain name")
    name = call.func.id
    positional = [ast.literal_eval(value) for value in call.args]
    named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    method = getattr(load_class(owner(name, tuple(classes))), name)
    bound = inspect.signature(method).bind(None, *positional, **named).arguments
    return name, dict(list(bound.items())[1:])


def _instance(name: str, config: dict[str, Any], long_context: bool) -> Any:
    backend = importlib.import_module("bfcl_eval.constants.executable_backend_config")
    made = load_class(name)()
    if name not in backend.STATELESS_CLASSES:
        made._load_scenario(config, long_context=long_context)
    return made


def public_value(value: Any, *, above: tuple[int, ...] = ()) -> Any:
    """A world's value as JSON: objects by their public attributes, a link upwards by how far up it leads."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if id(value) in above:
        return f"^{len(above) - above.index(id(value))}"
    above = (*above, id(value))
    if isinstance(value, Mapping):
        return {str(key): public_value(item, above=above) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [public_value(item, above=above) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(public_value(item, above=above)) for item in value)
    public = {key: item for key, item in getattr(value, "__dict__", {}).items() if not key.startswith("_")}
    return {"": type(value).__name__, **public_value(public, above=above)} if public else repr(type(value))


def _text(value: Any) -> str:
    if isinstance(value, dict):
        try:
            return json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            return str(value)
    return str(value)


@contextmanager
def _contained() -> Iterator[None]:
    numbers = importlib.import_module("mpmath").mp
    kept = numbers.prec
    try:
        with decimal.localcontext():
            yield
    finally:
        numbers.prec = kept


def _refuse_endless(name: str, arguments: Mapping[str, Any]) -> None:
    size = arguments.get(_SIZES.get(name, ""), 0)
    if isinstance(size, int | float) and abs(size) > _MAX_SIZE:
        raise ValueError(f"{_SIZES[name]} must be between -{_MAX_SIZE} and {_MAX_SIZE}")
