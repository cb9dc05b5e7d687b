"""Tools that one request fits alike: only one of them may be shown, or several calls are right.

Twins have the same imperative, or names that end alike and take the same required parameters
(`posting_get_login_status`, `ticket_get_login_status`). Not covered: tools that could do the
work another way.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from data.messages import ToolSpec
from synthesizers.grounding.reading import words
from synthesizers.grounding.scoring import Parameters
from synthesizers.phrasing.headings import imperative

_TAIL = 2
"""Words at the end of two names that make their tools twins. Ours."""


def are_twins(one: ToolSpec, other: ToolSpec) -> bool:
    """Whether a request for one is as good a request for the other."""
    if imperative(one.description).casefold() == imperative(other.description).casefold():
        return True
    first, second = words(one.name)[-_TAIL:], words(other.name)[-_TAIL:]
    return len(first) == _TAIL and first == second and _required(one) == _required(other)


def twins_of(names: Collection[str], tools: Sequence[ToolSpec]) -> frozenset[str]:
    """The tools that are twins of one in `names` and not that one itself."""
    asked = [tool for tool in tools if tool.name in names]
    return frozenset(
        tool.name for tool in tools if any(one.name != tool.name and are_twins(one, tool) for one in asked)
    )


def _required(tool: ToolSpec) -> set[str]:
    return set(Parameters.of(tool).required)
