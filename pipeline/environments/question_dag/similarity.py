"""How alike tools are, and three bands of irrelevant tools to mix in.

Texts become vectors by an embedder of the caller's (ASTRA used an embedding model of 8B parameters) or, by
default, by a light lexical one: words and letter triples hashed into `WIDTH` places, weighted by inverse
document frequency. It sees spelling, not meaning: "price" and "cost" are strangers. Cosines are min-max
normalised per tool over the pool without its own domain, then cut into bands [ASTRA paper, arXiv 2601.21558:
above 0.85, 0.4 to 0.85, below 0.4]; up to K are drawn from each. Not covered: telling that a foreign tool
could answer after all; domains are excluded for that.
"""

from __future__ import annotations

import random
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.environments.question_dag.items import MadeTool
from pipeline.errors import ConfigError

Vectors = npt.NDArray[np.float64]
Embedder = Callable[[Sequence[str]], Any]
"""Texts in, one row of numbers each out."""
BANDS = ((0.85, 1.0), (0.4, 0.85), (0.0, 0.4))
"""[paper] Nearest first; a bound belongs to the lower band, 0 to the lowest."""
WIDTH = 2048
_WORD = re.compile(r"[a-z]+|\d+")


def tool_text(tool: MadeTool) -> str:
    """What is compared: name, description and parameter names."""
    return f"{tool.name} {tool.description} {' '.join(tool.parameters.get('properties', {}))}"


def lexical(texts: Sequence[str]) -> Vectors:
    """Hashed TF-IDF of words and letter triples, rows of length 1: [texts, WIDTH]."""
    counts = [_features(text) for text in texts]
    spread = Counter(feature for count in counts for feature in count)
    vectors = np.zeros((len(texts), WIDTH))
    for row, count in zip(vectors, counts, strict=True):
        for feature, number in count.items():
            row[zlib.crc32(feature.encode()) % WIDTH] += number * np.log((1 + len(texts)) / spread[feature])
    return vectors


def _features(text: str) -> Counter[str]:
    words = _WORD.findall(text.lower())
    triples = [f"~{word[at : at + 3]}" for word in words for at in range(len(word) - 2)]
    return Counter(words + triples)


def cosines(texts: Sequence[str], embedder: Embedder | None = None) -> Vectors:
    """Cosine of every pair: [texts, texts]. Raises ConfigError where the embedder answers something else."""
    vectors = np.asarray((embedder or lexical)(texts), dtype=float)
    if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
        raise ConfigError(
            f"an embedder gave shape {vectors.shape} for {len(texts)} texts; needed: a finite row for each"
        )
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths > 0, lengths, 1.0)
    found: Vectors = unit @ unit.T
    return found


class Distractors:
    """A pool of tools, from which those that are irrelevant to a task are drawn by band."""

    def __init__(self, pool: Sequence[MadeTool], *, embedder: Embedder | None = None) -> None:
        unique = {tool.name: tool for tool in pool}
        self.pool = tuple(unique.values())
        self._place = {name: index for index, name in enumerate(unique)}
        self._cosines = cosines([tool_text(tool) for tool in self.pool], embedder)
        self._bands: dict[str, tuple[tuple[int, ...], ...]] = {}

    def bands(self, name: str) -> tuple[tuple[int, ...], ...]:
        """Places in the pool of the tools in each band of similarity to the tool `name`, nearest first."""
        if name not in self._bands:
            self._bands[name] = self._cut(self._place[name])
        return self._bands[name]

    def draw(self, tools: Sequence[MadeTool], rng: random.Random, *, per_band: int) -> list[MadeTool]:
        """Up to `per_band` tools of each band of any of `tools`; none of a domain or name among them."""
        domains, names = {tool.domain for tool in tools}, {tool.name for tool in tools}
        chosen: dict[str, MadeTool] = {}
        for band in range(len(BANDS)):
            places = sorted({place for tool in tools for place in self.bands(tool.name)[band]})
            taken = names | chosen.keys()
            fitting = [
                tool
                for tool in map(self.pool.__getitem__, places)
                if tool.domain not in domains and tool.name not in taken
            ]
            chosen |= {tool.name: tool for tool in rng.sample(fitting, min(per_band, len(fitting)))}
        return list(chosen.values())

    def _cut(self, place: int) -> tuple[tuple[int, ...], ...]:
        domain = self.pool[place].domain
        others = [at for at, tool in enumerate(self.pool) if tool.domain != domain]
        if not others:
            return tuple(() for _ in BANDS)
        values = self._cosines[place, others]
        span = values.max() - values.min()
        scaled = (values - values.min()) / span if span > 0 else np.zeros(len(others))
        return tuple(
            tuple(
                at
                for at, value in zip(others, scaled, strict=True)
                if low < value <= high or (low == value == 0)
            )
            for low, high in BANDS
        )
