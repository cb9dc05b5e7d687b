"""Environments by name, and a user's own by dotted path (`package.module:factory`)."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pipeline.environments.base import Environment
from pipeline.environments.cassette import with_cassette
from pipeline.environments.faults import with_faults
from pipeline.errors import ConfigError, TrajsmithError

ENVIRONMENTS = {
    "counter": "pipeline.environments.counter:load",
    "travel_desk": "pipeline.environments.travel_desk:load",
    "sql_desk": "pipeline.environments.sql_desk:load",
    "files": "pipeline.environments.files:load",
    "search_desk": "pipeline.environments.search_desk:load",
    "code_repair": "pipeline.environments.code_repair:load",
    "python_math": "pipeline.environments.python_math:load",
    "mcp": "pipeline.environments.mcp:load",
    "openapi": "pipeline.environments.openapi:load",
    "simulated": "pipeline.environments.simulated:load",
    "sql": "pipeline.environments.sql:load",
    "trl_class": "pipeline.environments.adapters.trl_class:load",
    "nemo_gym": "pipeline.environments.adapters.nemo_gym:load",
    "reasoning_gym": "pipeline.environments.adapters.reasoning_gym:load",
    "bfcl_multi_turn": "pipeline.environments.bfcl:load",
    "bfcl_single_turn": "pipeline.environments.bfcl.single:load",
    "tau2": "pipeline.environments.tau2:load",
}
"""Name to factory; loaded only when asked for."""
BROUGHT = frozenset({"mcp", "openapi", "simulated", "sql", "trl_class", "nemo_gym"})
"""Of these, the ones that stand for what a user brings: without options there is nothing to load."""


def load_environment(name: str, **options: Any) -> Environment:
    """The environment `name`, made with `options`. Raises ConfigError naming what exists or what is wrong.

    Two options are no factory's, and every environment takes them: `cassette`, e.g. `{"path": "news.jsonl",
    "mode": "replay"}`, the arguments of `with_cassette`; and `faults`, e.g. `{"rates": {"busy": 0.1}}`, those
    of `with_faults`, whose tools then break before the cassette is asked.
    """
    wrappers: dict[str, Callable[..., Environment]] = {"cassette": with_cassette, "faults": with_faults}
    given = {key: options.pop(key) for key in wrappers if key in options}
    environment = _made(name, options)
    for key, arguments in given.items():
        try:
            environment = wrappers[key](environment, **arguments)
        except TypeError as error:
            raise ConfigError(f"environment {name!r}: option {key}: {error}") from error
    return environment


def _made(name: str, options: dict[str, Any]) -> Environment:
    known = f"known environments: {', '.join(ENVIRONMENTS)}; your own: package.module:factory"
    path = ENVIRONMENTS.get(name, name)
    module_name, colon, attribute = path.partition(":")
    if not (colon and module_name and attribute) or module_name.startswith("."):
        raise ConfigError(f"there is no environment {name!r}; {known}")
    try:
        module = _import(module_name)
    except TrajsmithError:
        raise
    except Exception as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent and f"{module_name}.".startswith(f"{absent}."):
            raise ConfigError(f"environment {name!r}: there is no module {absent!r}; {known}") from error
        raise ConfigError(f"environment {name!r}: importing it failed: {_where(error)}") from error
    if not hasattr(module, attribute):
        place = getattr(module, "__file__", None) or "built in"
        raise ConfigError(
            f"environment {name!r}: module {module_name!r} ({place}) has no {attribute!r}; {known}"
        )
    try:
        environment = getattr(module, attribute)(**options)
    except TrajsmithError:
        raise
    except TypeError as error:
        raise ConfigError(
            f"environment {name!r} does not take these options {sorted(options)}: {_where(error)}"
        ) from error
    except Exception as error:
        raise ConfigError(f"environment {name!r}: making it failed: {_where(error)}") from error
    missing = [
        part
        for part in ("name", "version", "splits", "tasks", "open", "gold")
        if not hasattr(environment, part)
    ]
    if missing:
        raise ConfigError(f"environment {name!r}: {type(environment).__name__} lacks {', '.join(missing)}")
    return environment  # type: ignore[no-any-return]


def _where(error: Exception) -> str:
    """The error of somebody's code and the line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"


def _import(module_name: str) -> ModuleType:
    """The module, also from the working directory; last on the path, so that nothing there hides ours."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return importlib.import_module(module_name)
