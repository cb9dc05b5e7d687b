"""What a tool takes and gives: signatures whose parameters and return fields are typed ports.

Types are JSON Schema's names, "any" where nothing says. A port's path is a parameter's name, or the place of
a return field as `fields.fields_of` writes it. Not covered: reading them (`signatures`), which may feed which
(`matching`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from data import canonical
from data.messages import ToolSpec
from synthesizers.graph.shapes import Shape

ANY = "any"


class PortOrigin(StrEnum):
    """Where a port is known from."""

    DOCUMENTED = "documented"
    """A schema says it: of the parameters, or of what is returned."""
    OBSERVED = "observed"
    """Results held it."""
    GUESSED = "guessed"
    """The tool's name or description speaks of it; only where nothing better is known."""


@dataclass(frozen=True, slots=True)
class Port:
    """A parameter or a return field, e.g. Port("flights[].id", "string", shape=Shape.ID)."""

    path: str
    type: str = ANY
    item: str = ""
    """Type of the elements of an array."""
    format: str = ""
    """The schema's `format`, e.g. "date"."""
    enum: tuple[str, ...] = ()
    """Allowed values as canonical JSON."""
    description: str = ""
    required: bool = False
    """Parameters only."""
    default: str = ""
    """Canonical JSON of a parameter's default; "" where it has none."""
    shape: Shape | None = None
    """What values look like, where seen or said."""
    origin: PortOrigin = PortOrigin.DOCUMENTED

    @property
    def name(self) -> str:
        """The last part of the path, without list marks."""
        return self.path.replace("[]", "").rstrip(".").rsplit(".", maxsplit=1)[-1]

    def default_value(self) -> Any:
        """The default, decoded. Raises ValueError where there is none."""
        return canonical.loads(self.default)


@dataclass(frozen=True, slots=True)
class Signature:
    """A node of the graph: a tool with its ports. `category` is the class or tool set it belongs to."""

    tool: ToolSpec
    category: str = ""
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()

    @property
    def name(self) -> str:
        """The tool's name, which is the node's."""
        return self.tool.name

    @property
    def description(self) -> str:
        """The tool's description."""
        return self.tool.description

    def input(self, path: str) -> Port | None:
        """The parameter of that name."""
        return next((port for port in self.inputs if port.path == path), None)

    def output(self, path: str) -> Port | None:
        """The return field at that path."""
        return next((port for port in self.outputs if port.path == path), None)
