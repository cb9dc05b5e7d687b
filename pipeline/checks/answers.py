"""Final answers: where an episode says them, and whether they equal a reference.

Exact match and token F1 follow SQuAD (lower case, no punctuation, no articles, single spaces), the measure
of the search literature. Not covered: mathematical equality (`pipeline.checks.math_answers`), synonyms.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence

from data.messages import Role, Turn

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?!\w)")


def final_answer(turns: Sequence[Turn]) -> str:
    """What the last assistant turn says, "" where the episode ends in anything but an answer.

    The text of its last `<answer>` element where it has one, else the whole text after a leading `ANSWER`.
    """
    if not turns or turns[-1].role is not Role.ASSISTANT or turns[-1].tool_calls:
        return ""
    text = turns[-1].text
    tagged = _TAGGED.findall(text)
    return (tagged[-1] if tagged else re.sub(r"^\s*ANSWER\b[\s:]*", "", text)).strip()


def normalised(text: str) -> str:
    """Lower case without punctuation, articles and surplus space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str, references: Iterable[str]) -> bool:
    """Whether the answer equals a reference once both are normalised. No answer equals nothing."""
    wanted = normalised(answer)
    return bool(wanted) and any(wanted == normalised(reference) for reference in references)


def token_f1(answer: str, references: Iterable[str]) -> float:
    """Best F1 of shared words over the references, in [0, 1]."""
    return max(
        (_f1(normalised(answer).split(), normalised(item).split()) for item in references), default=0.0
    )


def states(text: str, point: str) -> bool:
    """Whether `text` says `point`: a number by value, anything else as a run of whole words."""
    numbers = numbers_in(point)
    if numbers and normalised(_NUMBER.sub("", point)) == "":
        return set(numbers) <= set(numbers_in(text))
    return bool(normalised(point)) and f" {normalised(point)} " in f" {normalised(text)} "


def numbers_in(text: str) -> list[float]:
    """The numbers written in `text`, thousands separators read as such."""
    return [float(match.replace(",", "")) for match in _NUMBER.findall(text)]


def _f1(given: Sequence[str], wanted: Sequence[str]) -> float:
    shared = (Counter(given) & Counter(wanted)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(given), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)
