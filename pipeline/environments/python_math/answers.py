"""The typed final answer: what stands in the last `\\boxed{}`, read as an exact rational number.

Read are integers (thousands may be set off by commas), fractions `a/b` and `\\frac{a}{b}`, and decimals,
which are exact too: 0.75 is 3/4 and 0.333 is not 1/3. Not covered: expressions, units, roots, words.
"""

from __future__ import annotations

import re
from fractions import Fraction

_BOXED = "\\boxed{"
_NUMBER = r"[+-]?\d+(?:\.\d+)?"
_FRACTION = re.compile(rf"({_NUMBER})(?:/(\d+(?:\.\d+)?))?")
_LATEX = re.compile(r"([+-]?)\\[dt]?frac\{([+-]?\d+)\}\{([+-]?\d+)\}")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+")
MAX_LENGTH = 4000


def boxed(text: str) -> str | None:
    """The content of the last `\\boxed{...}` of a text, braces balanced; None where there is none."""
    start = text.rfind(_BOXED)
    if start < 0:
        return None
    begin, depth = start + len(_BOXED), 1
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin:at]
    return None


def read_number(text: str) -> Fraction | None:
    """The number a text is, None where it is none."""
    text = re.sub(r"\\[,!; ]|\$|\s", "", text[:MAX_LENGTH])
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    latex = _LATEX.fullmatch(text)
    plain = _FRACTION.fullmatch(text)
    try:
        if latex:
            return Fraction(int(f"{latex[1]}1")) * Fraction(int(latex[2]), int(latex[3]))
        return Fraction(plain[1]) / Fraction(plain[2] or "1") if plain else None
    except ZeroDivisionError:
        return None
