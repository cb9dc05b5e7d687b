"""One session's world: the benchmark's environment object over a database of its own.

Decides how a call reaches it (through the benchmark's own `get_response`, so that replies, errors and the
synchronisation of the two sides are its own) and what is refused before it: an expression of `calculate` that
could hold the process. Not covered: pickles from untrusted bytes.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from data import canonical
from data.messages import ToolSpec
from pipeline.environments.tau2.package import load_module
from pipeline.environments.tau2.tables import Table

Side = Literal["assistant", "user"]
_DATABASES = {"retail": "RetailDB", "airline": "FlightDB", "telecom": "TelecomDB"}
_LONGEST_EXPRESSION = 200


class Answer(NamedTuple):
    """What a call answered. `executed` is false where it never reached the world."""

    text: str
    failed: bool
    executed: bool = True


class World:
    """The state of one episode. `solo`: the agent holds the user's tools, too (telecom only)."""

    def __init__(self, domain: str, initial: Mapping[str, Any] | None, *, solo: bool) -> None:
        self.domain = domain
        self.environment = make_environment(domain, solo_mode=solo)
        state = load_module("data_model.tasks").InitialState.model_validate(initial or {})
        self.environment.set_state(state.initialization_data, state.initialization_actions, [])

    def call(self, name: str, arguments: dict[str, Any], *, side: Side = "assistant") -> Answer:
        """Execute one call of either side; what it raises is its answer."""
        expression = str(arguments.get("expression", ""))
        if name == "calculate" and ("**" in expression or len(expression) > _LONGEST_EXPRESSION):
            text = f"Error: no powers, and at most {_LONGEST_EXPRESSION} characters"
            return Answer(text, failed=True, executed=False)
        message = load_module("data_model.message").ToolCall(name=name, arguments=arguments, requestor=side)
        reply = self.environment.get_response(message)
        return Answer(reply.content, failed=reply.error)

    def dump(self) -> bytes:
        """The state, pickled; of the large databases only the rows that were touched."""
        database = self.environment.tools.db
        if self.domain != "telecom":
            return pickle.dumps({name: getattr(database, name).changes() for name in _tables(database)})
        return pickle.dumps((database, self.environment.user_tools.db))

    def load(self, dumped: bytes) -> None:
        """Return to a state."""
        state = pickle.loads(dumped)
        if self.domain != "telecom":
            for name, changes in state.items():
                getattr(self.environment.tools.db, name).apply(changes)
        else:
            self.environment.tools.db, self.environment.user_tools.db = state


def make_environment(domain: str, *, solo_mode: bool = False) -> Any:
    """The benchmark's environment object of a domain, over a fresh database."""
    shared = _shared_database(domain)
    module = load_module(f"domains.{domain}.environment")
    if domain == "telecom":
        copied = shared.model_copy(deep=True)
        user_database = _shared_user_database().model_copy(deep=True)
        made = module.get_environment(db=copied, user_db=user_database)
        made.solo_mode = solo_mode  # its setter builds every tool anew to see that no two share a name
        return made
    database = type(shared).model_construct(
        **{name: Table(getattr(shared, name)) for name in type(shared).model_fields}
    )
    made = module.get_environment(db=database)
    made.get_db_hash = functools.partial(_hash, database)
    return made


@functools.cache
def shown_tools(domain: str, side: Side, *, solo: bool = False) -> tuple[ToolSpec, ...]:
    """The tools of one side, as the benchmark describes them; with `solo` the agent has both sides'."""
    made = make_environment(domain)
    own = made.get_tools() if side == "assistant" else []
    theirs = made.get_user_tools() if made.user_tools is not None and (solo or side == "user") else []
    return tuple(_spec(tool.openai_schema["function"]) for tool in [*own, *theirs])


def _spec(function: dict[str, Any]) -> ToolSpec:
    parameters = _untitled(function["parameters"])
    return ToolSpec(
        name=function["name"],
        description=" ".join(function["description"].split()),
        parameters=canonical.dumps(parameters),
    )


def _untitled(node: Any) -> Any:
    """A JSON Schema without the titles that pydantic adds; a property may be called "title"."""
    if isinstance(node, list):
        return [_untitled(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: {name: _untitled(body) for name, body in value.items()}
        if key in ("properties", "$defs")
        else _untitled(value)
        for key, value in node.items()
        if key != "title"
    }


@functools.cache
def _shared_database(domain: str) -> Any:
    kind = getattr(load_module(f"domains.{domain}.data_model"), _DATABASES[domain])
    return kind.load(getattr(load_module(f"domains.{domain}.utils"), f"{domain.upper()}_DB_PATH"))


@functools.cache
def _shared_user_database() -> Any:
    kind = load_module("domains.telecom.user_data_model").TelecomUserDB
    return kind.load(load_module("domains.telecom.utils").TELECOM_USER_DB_PATH)


def _tables(database: Any) -> list[str]:
    return list(type(database).model_fields)


def _hash(database: Any) -> str:
    return canonical.digest({name: getattr(database, name).differing() for name in _tables(database)})
