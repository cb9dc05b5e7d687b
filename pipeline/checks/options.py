"""Are the values of a mapping of options of the types that a class or function takes?

Decides for parameters annotated with plain types (int, float, str, bool, None) and for mappings that stand
for a dataclass. Not covered: ranges and everything else, which the class checks itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError

from data.errors import ConfigError

_PLAIN = {int, float, str, bool, type(None)}
_STRICT = ConfigDict(strict=True, allow_inf_nan=False)


def check_options(taker: Callable[..., Any], options: Mapping[str, Any], *, where: str) -> None:
    """ConfigError names the first option of a wrong type, its value and what is allowed."""
    for name, parameter in inspect.signature(taker, eval_str=True).parameters.items():
        if name not in options:
            continue
        value, kinds = options[name], get_args(parameter.annotation) or (parameter.annotation,)
        nested = next((kind for kind in kinds if is_dataclass(kind)), None)
        if isinstance(nested, type) and isinstance(value, Mapping):
            check_options(nested, value, where=f"{where}.{name}")
        elif set(kinds) <= _PLAIN:
            _check(parameter.annotation, value, f"{where}.{name}")


def _check(annotation: Any, value: Any, where: str) -> None:
    try:
        TypeAdapter(annotation, config=_STRICT).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{where}: {error.errors()[0]['msg']}; got {value!r}") from error
