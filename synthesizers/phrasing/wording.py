"""Checks that every request passes, whoever wrote it: what it says, and what it must not say.

A text mentions a string as whole words whatever their case, a number by its value or as a word up to twelve,
a list by all its items. A yes or no is worded in too many ways to be checked. A tool's name is leaked where
it stands as a whole word, also with its parts separated by blanks; what the user must say is not looked at.
Not covered: style.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.checks.answers import numbers_in
from synthesizers.graph.fields import leaves

if TYPE_CHECKING:
    from data.messages import ToolSpec
    from synthesizers.grounding.provenance import ArgumentSource

_NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
)  # fmt: skip
_BLANK = "\u01c2"
"""Stands where a value stood. A letter, so that no tool's name is read across it: "gallon 10 to liter"."""


def mentions(text: str, value: Any) -> bool:
    """Whether `text` says `value`; see the module docstring. Nothing to say (None, "") is always said."""
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, int | float):
        written = int(value) if float(value).is_integer() else value
        spelled = isinstance(written, int) and 0 <= written < len(_NUMBERS)
        return (
            float(value) in numbers_in(text)
            or (spelled and _has_words(text, _NUMBERS[int(written)]))
            or _has_words(text, str(value))
        )
    if isinstance(value, str):
        return not value.strip() or _has_words(text, value)
    items = value.values() if isinstance(value, dict) else value
    return all(mentions(text, item) for item in items)


def leaked_tool_name(text: str, tools: Iterable[str], *, said: Sequence[Any] = ()) -> str:
    """The first of the names that `text` gives away, "" where it gives away none.

    `said` are values the user must say: a file called "notes" may be named beside a tool called `notes`.
    """
    rest = without_values(text, said)
    return next((name for name in tools if name and name_in(rest, name)), "")


def name_in(text: str, name: str) -> re.Match[str] | None:
    """Where `text` first holds a tool's name as whole words, blanks or other signs between its parts."""
    pattern = r"[\W_]+".join(map(re.escape, parts_of_name(name)))
    return re.search(rf"(?<![^\W_]){pattern}(?![^\W_])", text, re.IGNORECASE)


def parts_of_name(name: str) -> list[str]:
    """The parts of a tool's name as written; a name of signs alone is one part."""
    return [part for part in re.split(r"[\W_]+", name) if part] or [name]


def secret_names(tools: Iterable[ToolSpec]) -> list[str]:
    """Names that a user who has never heard of tools would not say.

    A plain word of the tool's own description is none: people book flights whatever the tool is called.
    """
    return [
        tool.name for tool in tools if not (tool.name.isalpha() and _has_words(tool.description, tool.name))
    ]


def leaks_tool_name(text: str, tools: Iterable[str], *, said: Sequence[Any] = ()) -> bool:
    """Whether `text` gives a tool's name away; see `leaked_tool_name`."""
    return bool(leaked_tool_name(text, tools, said=said))


def unsaid(text: str, sources: Iterable[ArgumentSource]) -> list[ArgumentSource]:
    """The arguments that only the user can know and `text` does not say."""
    return [source for source in sources if source.provenance == "user" and not mentions(text, source.value)]


def answerable(text: str, sources: Iterable[ArgumentSource]) -> bool:
    """Whether every value that only the user can know is in `text`, the dialogue so far."""
    return not unsaid(text, sources)


def without_values(text: str, values: Iterable[Any]) -> str:
    """`text` with the given values blanked out, longest first."""
    strings = {str(leaf) for value in values for leaf in leaves(value) if leaf is not None}
    for string in sorted(filter(str.strip, strings), key=lambda item: (-len(item), item)):
        text = re.sub(_pattern(string), f" {_BLANK} ", text, flags=re.IGNORECASE)
    return text


def _has_words(text: str, value: str) -> bool:
    return bool(re.search(_pattern(value), text, re.IGNORECASE))


def _pattern(value: str) -> str:
    """The value's words with any blanks between them, no letter or digit at either end."""
    inner = r"\s+".join(map(re.escape, value.split()))
    left = r"(?<!\w)" if value.strip()[:1].isalnum() else ""
    right = r"(?!\w)" if value.strip()[-1:].isalnum() else ""
    return f"{left}{inner}{right}"
