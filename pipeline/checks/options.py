"""Are the values of a mapping of options of the types that a class or function takes?

Decides for parameters annotated with plain types, paths, literals, sequences and mappings of them, unions,
and for mappings that stand for a dataclass. A class that passes `**options` on is asked for those of its
bases, too. Whatever else an annotation says (a Chat, a type variable) is taken to be an object: plain values
do not stand for one. Ranges a class checks itself when it is made: `check_least` and `check_shares`.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from data.errors import ConfigError

_SIMPLE = {int, float, str, bool, type(None)}
_STRICT = ConfigDict(strict=True, allow_inf_nan=False)
_PLAIN = (str, int, float, bool, type(None), list, tuple, dict)
_WORDS = {
    str: "a text", int: "a whole number", float: "a number", bool: "true or false", type(None): "null",
    Path: "a path",
}  # fmt: skip


def check_options(taker: Callable[..., Any], options: Mapping[str, Any], *, where: str) -> None:
    """ConfigError names the first option of a wrong type, its value and what is allowed."""
    for name, parameter in taken(taker).items():
        if name not in options or parameter.annotation is parameter.empty:
            continue
        value, annotation = options[name], parameter.annotation
        nested = [kind for kind in _kinds(annotation) if isinstance(kind, type) and is_dataclass(kind)]
        if nested and isinstance(value, Mapping):
            _check_nested(nested[0], value, where=f"{where}.{name}")
        elif set(_kinds(annotation)) <= _SIMPLE:
            _check_simple(annotation, value, where=f"{where}.{name}")
        elif not _fits(annotation, value):
            raise ConfigError(f"{where}.{name} must be {_described(annotation)}; got {value!r:.200}")


def not_given(parameters: Mapping[str, inspect.Parameter], options: Mapping[str, Any]) -> list[str]:
    """Names of the parameters without a default that `options` leaves out."""
    return [key for key, one in parameters.items() if one.default is one.empty and key not in options]


def check_least(holder: object, least: Mapping[str, float]) -> None:
    """ConfigError names the first attribute of `holder` that is below its least value."""
    for name, bound in least.items():
        if getattr(holder, name) < bound:
            raise ConfigError(f"{name} must be at least {bound}, got {getattr(holder, name)}")


def check_shares(holder: object, *names: str) -> None:
    """ConfigError names the first attribute of `holder` that is no share: between 0 and 1."""
    for name in names:
        if not 0.0 <= getattr(holder, name) <= 1.0:
            raise ConfigError(f"{name} is a share between 0 and 1, got {getattr(holder, name)}")


def taken(taker: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Parameters by name, of a class also those that it passes on to its bases."""
    found: dict[str, inspect.Parameter] = {}
    classes = taker.__mro__ if isinstance(taker, type) else ()
    steps: list[Any] = [kind for kind in classes if "__init__" in vars(kind)] or [taker]
    for step in steps:
        try:
            parameters = _parameters(step)
        except (NameError, TypeError, ValueError):  # annotations that are there for a type checker only
            break
        kinds = {parameter.kind for parameter in parameters}
        for parameter in parameters:
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                found.setdefault(parameter.name, parameter)
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            break
    found.pop("self", None)
    return found


def _parameters(step: Any) -> list[inspect.Parameter]:
    """Parameters with their annotations; those of inherited fields are read where they were written."""
    if "__dataclass_fields__" in vars(step):
        hints = get_type_hints(step)
        made = inspect.signature(vars(step)["__init__"]).parameters.values()
        return [each.replace(annotation=hints.get(each.name, each.empty)) for each in made]
    function = vars(step)["__init__"] if isinstance(step, type) else step
    return list(inspect.signature(function, eval_str=True).parameters.values())


def _check_nested(kind: Any, value: Mapping[str, Any], *, where: str) -> None:
    unknown = sorted(str(key) for key in value if key not in taken(kind))
    if unknown:
        raise ConfigError(f"{where} has no {', '.join(unknown)}; it has {', '.join(taken(kind))}")
    check_options(kind, value, where=where)


def _check_simple(annotation: Any, value: Any, *, where: str) -> None:
    try:
        TypeAdapter(annotation, config=_STRICT).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{where}: {error.errors()[0]['msg']}; got {value!r:.200}") from error


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """The members of a union; elsewhere the annotation itself."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _fits(annotation: Any, value: Any) -> bool:
    return any(_fits_one(kind, value) for kind in _kinds(annotation))


def _fits_one(kind: Any, value: Any) -> bool:
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin in (Any, object):
        return True
    if origin is Literal:
        return any(value == item and type(value) is type(item) for item in inner)
    if origin is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if origin is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin in (str, bool, types.NoneType, None):
        return value is None if origin is None else isinstance(value, origin)
    if origin is Path:
        return isinstance(value, str | Path)
    if not isinstance(origin, type) or isinstance(kind, TypeVar):
        return True
    if issubclass(origin, Enum):
        return value in [item.value for item in origin]
    if issubclass(origin, Mapping):
        keys, values = inner or (Any, Any)
        return isinstance(value, Mapping) and all(
            _fits(keys, k) and _fits(values, v) for k, v in value.items()
        )
    if issubclass(origin, Sequence | Set):
        each = inner[0] if inner and (len(inner) == 1 or inner[-1] is ...) else Any
        return isinstance(value, list | tuple | Set) and all(_fits(each, item) for item in value)
    return isinstance(value, origin) if _is_checkable(origin) else not isinstance(value, _PLAIN)


def _is_checkable(kind: type) -> bool:
    return not getattr(kind, "_is_protocol", False) and kind.__module__ != "typing"


def _described(annotation: Any) -> str:
    return " or ".join(dict.fromkeys(map(_described_one, _kinds(annotation))))


def _described_one(kind: Any) -> str:
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in _WORDS:
        return _WORDS[origin]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a mapping" + (f" to {_described(inner[1])}" if inner and inner[1] is not Any else "")
    if isinstance(origin, type) and issubclass(origin, Enum):
        return " or ".join(repr(item.value) for item in origin)
    if isinstance(origin, type) and issubclass(origin, Sequence | Set):
        return "a list" + (f", each {_described(inner[0])}" if inner and inner[0] is not Any else "")
    return f"a {getattr(kind, '__name__', kind)}"
