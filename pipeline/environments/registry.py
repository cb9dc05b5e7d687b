"""Environments by name, and a user's own by dotted path (`package.module:factory`)."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any

from pipeline.environments.base import Environment
from pipeline.errors import ConfigError

ENVIRONMENTS = {
    "counter": "pipeline.environments.counter:load",
    "travel_desk": "pipeline.environments.travel_desk:load",
    "bfcl_multi_turn": "pipeline.environments.bfcl:load",
}
"""Name to factory; loaded only when asked for."""


def load_environment(name: str, **options: Any) -> Environment:
    """The environment `name`, made with `options`. Raises ConfigError naming what exists or what is wrong."""
    known = f"known environments: {', '.join(ENVIRONMENTS)}; your own: package.module:factory"
    path = ENVIRONMENTS.get(name, name)
    module_name, colon, attribute = path.partition(":")
    if not colon:
        raise ConfigError(f"there is no environment {name!r}; {known}")
    try:
        factory = getattr(_import(module_name), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # the module exists; something it imports does not
        raise ConfigError(f"environment {name!r}: there is no module {error.name!r}; {known}") from error
    except AttributeError as error:
        raise ConfigError(
            f"environment {name!r}: module {module_name!r} has no {attribute!r}; {known}"
        ) from error
    try:
        environment = factory(**options)
    except TypeError as error:
        raise ConfigError(
            f"environment {name!r} does not take these options {sorted(options)}: {error}"
        ) from error
    missing = [
        part
        for part in ("name", "version", "splits", "tasks", "open", "gold")
        if not hasattr(environment, part)
    ]
    if missing:
        raise ConfigError(f"environment {name!r}: {type(environment).__name__} lacks {', '.join(missing)}")
    return environment  # type: ignore[no-any-return]


def _import(module_name: str) -> ModuleType:
    """The module, also from the working directory; last on the path, so that nothing there hides ours."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return importlib.import_module(module_name)
