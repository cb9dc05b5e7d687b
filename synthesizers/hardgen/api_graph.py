"""The dynamic API graph G = (T, D, P) around a set of failure tools (arXiv 2601.01498, step 2).

T: the failure tools and every tool on a way to one, because a chain needs the others. D: prerequisites.
A `data` prerequisite says that an answer of one tool fills a parameter of another; it binds (the tool may not
be called before) where nobody was ever seen to say such a value. A `state` prerequisite says that a tool does
not work before another one was called. P: constraints of parameters, put into the tools' schemas. What is in
the graph was confirmed by executed calls (`refinement`); what they refuted is kept in `removed`, to be
seen. Not covered: building and refining it, drawing chains (`chains`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

from data import canonical
from data.messages import ToolSpec


class Need(StrEnum):
    """What a tool needs another one for."""

    DATA = "data"
    STATE = "state"


class Prerequisite(NamedTuple):
    """`target` needs `source` first. Of DATA: field `output` of its answer fills `parameter`.

    `tried` and `confirmed` count executed calls; `whole` is False where a value is only a part of the
    argument.
    """

    source: str
    target: str
    need: Need
    parameter: str = ""
    output: str = ""
    tried: int = 0
    confirmed: int = 0
    whole: bool = True


class Constraint(NamedTuple):
    """What executed calls say of a parameter: the integers that work, and allowed values that never did.

    `minimum` and `maximum` are None where the schema's own hold.
    """

    tool: str
    parameter: str
    minimum: int | None = None
    maximum: int | None = None
    refused: tuple[str, ...] = ()
    """Values of the schema's enum as canonical JSON."""
    tried: int = 0


@dataclass(frozen=True)
class ApiGraph:
    """See the module docstring. `failures` is the digest of the failure set that it was built for."""

    failures: str
    targets: tuple[str, ...]
    """Failure tools of this world that can be called."""
    tools: tuple[ToolSpec, ...]
    """All usable tools of the world, their schemas narrowed by `constraints`."""
    prerequisites: tuple[Prerequisite, ...] = ()
    removed: tuple[Prerequisite, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    binding: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    """(tool, parameter) whose value nobody was seen to say."""

    @cached_property
    def specs(self) -> dict[str, ToolSpec]:
        """Tools by name."""
        return {tool.name: tool for tool in self.tools}

    def providers(self, tool: str) -> dict[str, tuple[Prerequisite, ...]]:
        """Parameter of `tool` -> the data prerequisites that can fill it."""
        found: dict[str, list[Prerequisite]] = {}
        for one in self.prerequisites:
            if one.target == tool and one.need is Need.DATA:
                found.setdefault(one.parameter, []).append(one)
        return {parameter: tuple(some) for parameter, some in found.items()}

    def states(self, tool: str) -> tuple[str, ...]:
        """Tools that must have been called for `tool` to work."""
        return tuple(
            one.source for one in self.prerequisites if one.target == tool and one.need is Need.STATE
        )

    def is_callable(self, tool: str, executed: Collection[str], *, states: bool = True) -> bool:
        """Whether the prerequisites of `tool` are in the executed set: all of state (where `states`; a world
        may meet them already), and of data one for each binding parameter."""
        if tool not in self.specs or (states and not set(self.states(tool)) <= set(executed)):
            return False
        return all(
            any(one.source in executed for one in some)
            for parameter, some in self.providers(tool).items()
            if (tool, parameter) in self.binding
        )

    def distance(self, tool: str, target: str) -> float:
        """Prerequisites from `tool` to `target`, inf where there is no way."""
        return self._distances(target).get(tool, float("inf"))

    def ancestors(self, target: str) -> set[str]:
        """Every tool on a way to `target`."""
        return set(self._distances(target)) - {target}

    def _distances(self, target: str) -> dict[str, int]:
        if target not in self._known_distances:
            found, frontier = {target: 0}, [target]
            while frontier:
                name = frontier.pop(0)
                for source in self._sources.get(name, ()):
                    if source not in found:
                        found[source] = found[name] + 1
                        frontier.append(source)
            self._known_distances[target] = found
        return self._known_distances[target]

    @cached_property
    def _known_distances(self) -> dict[str, dict[str, int]]:
        return {}

    @cached_property
    def _sources(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for one in self.prerequisites:
            found.setdefault(one.target, []).append(one.source)
        return found


def narrowed_tools(tools: Sequence[ToolSpec], constraints: Sequence[Constraint]) -> tuple[ToolSpec, ...]:
    """The tools with what executed calls said of their parameters in their schemas."""
    return tuple(_narrowed(tool, [one for one in constraints if one.tool == tool.name]) for tool in tools)


def _narrowed(tool: ToolSpec, constraints: Sequence[Constraint]) -> ToolSpec:
    if not constraints:
        return tool
    schema = canonical.loads(tool.parameters)
    for one in constraints:
        schema["properties"][one.parameter] |= dict(_changes(one, schema["properties"][one.parameter]))
    return tool.model_copy(update={"parameters": canonical.dumps(schema)})


def _changes(one: Constraint, parameter: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    if one.minimum is not None:
        yield "minimum", one.minimum
    if one.maximum is not None:
        yield "maximum", one.maximum
    kept = [value for value in parameter.get("enum", ()) if canonical.dumps(value) not in one.refused]
    if one.refused and kept:
        yield "enum", kept
