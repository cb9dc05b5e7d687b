"""Environments by name, and a user's own by dotted path (`package.module:factory`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

from pipeline.checks.options import check_options, not_given, taken
from pipeline.dotted import is_dotted, load_dotted, where_raised
from pipeline.environments.base import Environment
from pipeline.environments.blueprint_session import BlueprintEnvironment, with_blueprints
from pipeline.environments.cassette import with_cassette
from pipeline.environments.faults import with_faults
from pipeline.environments.host import required
from pipeline.errors import ConfigError, TrajsmithError

ENVIRONMENTS = {
    "counter": "pipeline.environments.counter:load",
    "travel_desk": "pipeline.environments.travel_desk:load",
    "sql_desk": "pipeline.environments.sql_desk:load",
    "files": "pipeline.environments.files:load",
    "search_desk": "pipeline.environments.search_desk:load",
    "code_repair": "pipeline.environments.code_repair:load",
    "python_math": "pipeline.environments.python_math:load",
    "question_dag": "pipeline.environments.question_dag:load",
    "mcp": "pipeline.environments.mcp:load",
    "openapi": "pipeline.environments.openapi:load",
    "simulated": "pipeline.environments.simulated:load",
    "sql": "pipeline.environments.sql:load",
    "trl_class": "pipeline.environments.adapters.trl_class:load",
    "verifiers": "pipeline.environments.adapters.verifiers_taskset:load",
    "nemo_gym": "pipeline.environments.adapters.nemo_gym:load",
    "reasoning_gym": "pipeline.environments.adapters.reasoning_gym:load",
    "bfcl_multi_turn": "pipeline.environments.bfcl:load",
    "bfcl_single_turn": "pipeline.environments.bfcl.single:load",
    "bfcl_prompted": "pipeline.environments.bfcl.prompted:load",
    "tau2": "pipeline.environments.tau2:load",
}
"""Name to factory; loaded only when asked for."""
BROUGHT = frozenset({"mcp", "openapi", "simulated", "sql", "trl_class", "verifiers", "nemo_gym"})
"""Of these, the ones that stand for what a user brings: without options there is nothing to load."""


def load_environment(name: str, /, **options: Any) -> BlueprintEnvironment:
    """The environment `name`, made with `options`. Raises ConfigError naming what exists or what is wrong.

    Two options are no factory's, and every environment takes them: `cassette`, e.g. `{"path": "news.jsonl",
    "mode": "replay"}`, the arguments of `with_cassette`; and `faults`, e.g. `{"rates": {"busy": 0.1}}`, those
    of `with_faults`, whose tools then break before the cassette is asked. Each also opens blueprint tasks.
    """
    wrappers: dict[str, Callable[..., Environment]] = {"cassette": with_cassette, "faults": with_faults}
    given = {key: options.pop(key) for key in wrappers if key in options}
    environment = _made(name, options)
    for key, arguments in given.items():
        try:
            check_options(wrappers[key], {**arguments}, where=f"environment {name}.{key}")
            environment = wrappers[key](environment, **arguments)
        except TypeError as error:
            raise ConfigError(f"environment {name!r}: option {key}: {error}") from error
    return with_blueprints(environment)


def _made(name: str, options: dict[str, Any]) -> Environment:
    known = f"known environments: {', '.join(ENVIRONMENTS)}; your own: package.module:factory"
    path = ENVIRONMENTS.get(name, name)
    if not is_dotted(path):
        raise ConfigError(f"there is no environment {name!r}; {known}")
    factory = load_dotted(path, what="environment", hint=known)
    made_of = get_type_hints(factory).get("return", factory) if name in ENVIRONMENTS else factory
    check_options(made_of, options, where=f"environment {name}")
    if name in ENVIRONMENTS:  # somebody's own class may fill in what its base wants
        required(options, *not_given(taken(made_of), {}), environment=name)
    try:
        environment = factory(**options)
    except TrajsmithError:
        raise
    except TypeError as error:
        raise ConfigError(
            f"environment {name!r} does not take these options {sorted(options)}: {where_raised(error)}"
        ) from error
    except Exception as error:
        raise ConfigError(f"environment {name!r}: making it failed: {where_raised(error)}") from error
    missing = [
        part
        for part in ("name", "version", "splits", "tasks", "open", "gold")
        if not hasattr(environment, part)
    ]
    if missing:
        raise ConfigError(f"environment {name!r}: {type(environment).__name__} lacks {', '.join(missing)}")
    return environment  # type: ignore[no-any-return]
