"""Categories for tools that come without one: what many of the tools around them deal with.

The paper draws candidates within 49 given categories. Where a collection has none, the commonest nouns of its
names make them, without those so common that they say nothing. Not covered: hierarchies,
languages other than English.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from data.messages import ToolSpec
from synthesizers.graph.words import nouns

NUM_CATEGORIES = 49
"""Categories at most, the rest included. From the paper: the number it had."""
MAX_SHARE = 0.1
"""A word that more of the tools share makes no category. Ours."""
REST = "other"


def categories_of(tools: Sequence[ToolSpec], *, num_categories: int = NUM_CATEGORIES) -> list[str]:
    """One category per tool: the rarest chosen word of its name, else of its description, else REST."""
    named = [dict.fromkeys(nouns(tool.name)) for tool in tools]
    said = [dict.fromkeys((*nouns(tool.name), *nouns(tool.description))) for tool in tools]
    common = Counter(word for found in said for word in found)
    in_names = Counter(word for found in named for word in found)
    usable = [word for word, _ in in_names.most_common() if common[word] <= MAX_SHARE * len(tools)]
    chosen = dict.fromkeys(usable[: num_categories - 1])
    return [
        _rarest(name, chosen, common) or _rarest(text, chosen, common) or REST
        for name, text in zip(named, said, strict=True)
    ]


def _rarest(found: dict[str, None], chosen: dict[str, None], common: Counter[str]) -> str:
    return min((word for word in found if word in chosen), key=lambda word: common[word], default="")
