"""An OpenAPI document (3.0 or 3.1, JSON or YAML) and the references in it.

Decides: nothing is ever fetched. A reference into another document works only where the caller names that
document and gives its file; every other one is refused by name. Not covered: Swagger 2.0, `$id`, `$anchor`,
`$dynamicRef`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from data import canonical
from pipeline.environments.plain_yaml import parse_document, read_text
from pipeline.environments.task_checks import pointed
from pipeline.errors import ConfigError

_MAX_CHAIN = 32


class Document:
    """The decoded document; `others` are the decoded documents its references name."""

    def __init__(self, value: Any, *, where: str, others: Mapping[str, Any] | None = None) -> None:
        """Raises ConfigError where `value` is no OpenAPI 3 document."""
        if not isinstance(value, dict) or not isinstance(value.get("paths", {}), dict):
            raise ConfigError(f"{where} is no OpenAPI document: an object with `openapi` and `paths`")
        version = str(value.get("openapi", value.get("swagger", "")))
        if not version.startswith(("3.0", "3.1")):
            raise ConfigError(
                f"{where} is of version {version or 'unknown'!r}; 3.0 and 3.1 are read, convert it first"
            )
        self.value, self.where, self.version = value, where, version
        self._others = {
            _plain(name): _absolute(other, _plain(name)) for name, other in (others or {}).items()
        }

    @property
    def digest(self) -> str:
        """Digest of everything that was read."""
        return canonical.digest(self.value, self._others, length=12)

    def resolve(self, node: Any) -> tuple[Any, str]:
        """`node` with a leading chain of references followed, and the last reference ("" for none).

        Keys beside a reference are merged over its target, as 3.1 says. Raises ConfigError.
        """
        name = ""
        beside: dict[str, Any] = {}
        for _ in range(_MAX_CHAIN):
            if not isinstance(node, dict) or not isinstance(node.get("$ref"), str):
                return ({**node, **beside} if isinstance(node, dict) else node), name
            name = node["$ref"]
            beside = {key: item for key, item in node.items() if key != "$ref"} | beside
            node = self._target(name)
        raise ConfigError(f"{self.where}: reference {name!r} leads in a circle")

    def _target(self, reference: str) -> Any:
        place, _, pointer = reference.partition("#")
        known = {"": self.value, **self._others}
        if _plain(place) not in known:
            raise ConfigError(
                f"{self.where} refers to {reference!r}, and nothing is fetched; name it: "
                f"refs={{{place!r}: 'path of a local copy'}}"
            )
        try:
            return pointed(known[_plain(place)], unquote(pointer))
        except LookupError as error:
            raise ConfigError(f"{self.where}: reference {reference!r}: {error}") from error


def load_document(path: Path | str, *, refs: Mapping[str, Path | str] | None = None) -> Document:
    """Read a document; `refs` maps the other documents it names to local files. Raises ConfigError."""
    others = {
        name: parse_document(read_text(Path(file)), where=str(file)) for name, file in (refs or {}).items()
    }
    value = parse_document(read_text(Path(path)), where=str(path))
    return Document(value, where=Path(path).name, others=others)


def _plain(place: str) -> str:
    return place.removeprefix("./")


def _absolute(node: Any, place: str) -> Any:
    """The document with its own references made absolute, so that they can be followed from anywhere."""
    if isinstance(node, list):
        return [_absolute(item, place) for item in node]
    if not isinstance(node, dict):
        return node
    made = {key: _absolute(item, place) for key, item in node.items()}
    if isinstance(made.get("$ref"), str) and made["$ref"].startswith("#"):
        made["$ref"] = place + made["$ref"]
    return made
