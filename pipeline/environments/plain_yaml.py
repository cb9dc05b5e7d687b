"""YAML read as the JSON it stands for: what a document or a task file of somebody else holds.

Decides: dates stay text, keys become strings (`200:` is "200"), a repeated key and a value that JSON lacks
are errors, and so are aliases that multiply without end. Every error names the file, most the line. Not
covered: tags (`!!python/...` is refused), several documents in one file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from data import canonical
from data.aliases import num_values
from pipeline.errors import ConfigError, RecordError

_MAX_VALUES = 2_000_000


class PlainLoader(yaml.SafeLoader):
    """SafeLoader without dates, with string keys, none of them twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping; YAMLError where a key is repeated."""
        self.flatten_mapping(node)
        result: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None or key in result:
                problem = "a key is no text" if key is None else f"key {key!r} occurs twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            result[key] = self.construct_object(value_node, deep=deep)
        return result


PlainLoader.yaml_implicit_resolvers = {
    letter: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
    for letter, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_text(path: Path) -> str:
    """The file's text. Raises ConfigError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def parse_document(text: str, *, where: str) -> Any:
    """The value of a JSON or YAML text. Raises ConfigError with `where` and the line."""
    if where.endswith(".json"):
        try:
            return canonical.loads(text)
        except ValueError as error:
            raise ConfigError(f"{where} is not JSON: {error}") from error
    return _parse(text, where, lambda node: [node])[0][1]


def parse_items(text: str, *, where: str, under: str = "") -> list[tuple[int, Any]]:
    """Line number and value of each item of a YAML list, the whole document or the value of its key `under`.

    Raises ConfigError with `where` and the line.
    """

    def items(node: yaml.Node) -> list[yaml.Node]:
        if isinstance(node, yaml.MappingNode):
            named = (value for key, value in node.value if key.value == under)
            node = next(named, node)
        if not isinstance(node, yaml.SequenceNode):
            raise yaml.MarkedYAMLError(problem="a list is expected here", problem_mark=node.start_mark)
        return list(node.value)

    return _parse(text, where, items)


def _parse(text: str, where: str, pick: Callable[[yaml.Node], list[yaml.Node]]) -> list[tuple[int, Any]]:
    try:
        loader = PlainLoader(text)
        root = loader.get_single_node()
        if root is None:
            raise ConfigError(f"{where} is empty")
        if num_values(root) > _MAX_VALUES:
            raise ConfigError(f"{where} stands for more than {_MAX_VALUES} values; its aliases multiply")
        return [
            (node.start_mark.line + 1, _as_json(loader.construct_object(node, deep=True), where))
            for node in pick(root)
        ]
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{where}, line {line}: {error.problem}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{where} is not YAML: {error}") from error


def _as_json(value: Any, where: str) -> Any:
    """`value`, checked to be JSON; what aliases share is copied, so that nothing is shared."""
    try:
        return canonical.loads(canonical.dumps(value))
    except (RecordError, RecursionError) as error:
        raise ConfigError(f"{where}: {error}") from error
