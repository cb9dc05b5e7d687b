"""How much a YAML text stands for: a few lines of aliases of aliases can stand for more than memory holds.

Counted on the nodes, before a value is made of them. Not covered: how long its texts are, how deep it nests.
"""

from __future__ import annotations

from typing import Any

import yaml

from data.errors import ConfigError


def load_counted(text: str, loader: type[yaml.SafeLoader], *, where: str, most: int) -> Any:
    """The value of a YAML text. ConfigError naming `where` for more than `most` values, else YAMLError."""
    reader = loader(text)
    root = reader.get_single_node()
    if root is None:
        return None
    if num_values(root) > most:
        raise ConfigError(f"{where} stands for more than {most} values; its aliases multiply, write them out")
    return reader.construct_document(root)


def num_values(node: yaml.Node, known: dict[int, int] | None = None) -> int:
    """How many values a node stands for once its aliases are copied. YAMLError where it holds itself."""
    known = {} if known is None else known
    if id(node) not in known:
        known[id(node)] = 0
        inner = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else ()
        if isinstance(node, yaml.SequenceNode):
            inner = node.value
        known[id(node)] = 1 + sum(num_values(part, known) for part in inner)
    elif not known[id(node)]:
        raise yaml.MarkedYAMLError(problem="a value holds itself", problem_mark=node.start_mark)
    return known[id(node)]
