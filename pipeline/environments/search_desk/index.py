"""BM25 over a world's documents, by the package `bm25s` (numpy only).

Decides tokens (lower-case words, a title's words count three times more) and that equal scores keep the
documents' order, so that results replay. Not covered: stemming, phrases, vectors.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from pipeline.environments.search_desk.world import World, make_world
from pipeline.errors import MissingExtraError

_WORD = re.compile(r"[a-z0-9]+")
_STOP = frozenset(
    ("a", "an", "and", "at", "by", "in", "is", "it", "its", "of", "on", "or", "that", "the", "to", "was")
)
MAX_QUERY_WORDS = 64


class Index:
    """Titles ranked by BM25."""

    def __init__(self, world: World) -> None:
        """Raises MissingExtraError."""
        self._titles = tuple(world.entities)
        documents = [words(f"{title} {title} {title} {world.entities[title].text}") for title in self._titles]
        self._scorer: Any = _bm25s().BM25(k1=1.2, b=0.75)
        self._scorer.index(documents, show_progress=False)
        self._known = frozenset(word for document in documents for word in document)

    def search(self, query: str, *, limit: int) -> list[str]:
        """The best titles first; only documents that share a word with the query."""
        import numpy as np

        asked = [word for word in words(query)[:MAX_QUERY_WORDS] if word in self._known]
        if not asked:
            return []
        scores = self._scorer.get_scores(asked)
        order = np.lexsort((np.arange(len(scores)), -scores))[:limit]
        return [self._titles[position] for position in order if scores[position] > 0]


@functools.lru_cache(maxsize=4)
def make_index(number: int) -> Index:
    """The index of the `number`-th world."""
    return Index(make_world(number))


def words(text: str) -> list[str]:
    """Lower-case words without the commonest."""
    return [word for word in _WORD.findall(text.lower()) if word not in _STOP]


def _bm25s() -> Any:
    try:
        import bm25s
    except ImportError as error:
        raise MissingExtraError(
            "search_desk needs the package bm25s: pip install 'trajsmith[search]'"
        ) from error
    return bm25s
