"""What a template of python_math is: a drawn question, its exact answer, and code that finds it too."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple


class Question(NamedTuple):
    """A question in words. `answer` is computed here; `code` is what gold runs, by another method."""

    text: str
    answer: Fraction
    code: str


@dataclass(frozen=True, slots=True)
class Template:
    """One kind of question."""

    name: str
    tags: tuple[str, ...]
    draw: Callable[[random.Random], Question]
    unseen: bool = False


def question(rng: random.Random, texts: tuple[str, ...], code: str, answer: Fraction | int) -> Question:
    """One of the ways to put it."""
    return Question(rng.choice(texts), Fraction(answer), code.strip("\n"))
