"""Settings as recipes write them: text becomes enum members, mappings become nested settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any

from data.errors import ConfigError
from rl.lm import LoraSettings


def adopt_text(settings: Any, kinds: Mapping[str, type[StrEnum]]) -> None:
    """Replace text in the fields `kinds` of a frozen dataclass by members, and a `lora` mapping by settings.

    Called from `__post_init__`. ConfigError names the field, the value and what was allowed.
    """
    for name, kind in kinds.items():
        value = getattr(settings, name)
        if value not in list(kind):
            raise ConfigError(f"{name} must be one of {', '.join(kind)}, got {value!r}")
        object.__setattr__(settings, name, kind(value))
    adopt_nested(settings, "lora", LoraSettings)


def adopt_nested(settings: Any, name: str, kind: type[Any]) -> None:
    """Replace a mapping in the field `name` of a frozen dataclass by settings of `kind`.

    Called from `__post_init__`. ConfigError names what is unknown and what there is.
    """
    value = getattr(settings, name)
    if not isinstance(value, Mapping):
        return
    known = {field.name for field in fields(kind)}
    if unknown := sorted(set(value) - known):
        raise ConfigError(f"{name}: unknown {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    object.__setattr__(settings, name, kind(**value))
