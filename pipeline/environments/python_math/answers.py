"""The typed final answer: what stands in the last `\\boxed{}`, read as an exact rational number.

Read are integers, decimals, which are exact too (0.75 is 3/4 and 0.333 is not 1/3), fractions `a/b`,
`\\frac{a}{b}` and `\\frac12`, each with a sign, `$` around it or a dot at its end. Thousands may be set off,
by commas (`1,234`, `1{,}234`) or spaces (`1 234`, `1\\,234`). Not covered, so no number: expressions, mixed
numbers (`2 1/2`), decimal commas, exponents, percent, units, roots, words.
"""

from __future__ import annotations

import re
from fractions import Fraction

_BOXED = "\\boxed{"
_SIGN = "([+\u2212-]?)"
_SPACE = r"(?:\\[,:; !]|\s)"
_DIGITS = rf"(?:[0-9]{{1,3}}(?:(?:,|\{{,\}}|{_SPACE})[0-9]{{3}})+|[0-9]+)"
_DECIMAL = rf"({_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)"
_PLAIN = re.compile(rf"{_SIGN}{_SPACE}*{_DECIMAL}(?:{_SPACE}*/{_SPACE}*{_DECIMAL})?")
_PART = rf"(?:\{{\s*{_SIGN}\s*({_DIGITS})\s*\}}|([0-9]))"
_LATEX = re.compile(rf"{_SIGN}{_SPACE}*\\[dt]?frac\s*{_PART}\s*{_PART}\.?")
_AROUND = re.compile(rf"^(?:\$|{_SPACE})+|(?:\$|{_SPACE})+$")
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
    if len(text) > MAX_LENGTH:
        return None
    text = _AROUND.sub("", text)
    try:
        if latex := _LATEX.fullmatch(text):
            sign, *parts = latex.groups(default="")
            above, below = (_value(parts[at], parts[at + 1] or parts[at + 2]) for at in (0, 3))
            return _value(sign, "1") * above / below
        if plain := _PLAIN.fullmatch(text):
            return _value(plain[1], plain[2]) / _value("", plain[3] or "1")
    except ZeroDivisionError:
        pass  # a fraction over nothing is no number
    return None


def _value(sign: str, digits: str) -> Fraction:
    number = Fraction(re.sub(r"[^0-9.]", "", digits).removesuffix("."))
    return number if sign in ("", "+") else -number
