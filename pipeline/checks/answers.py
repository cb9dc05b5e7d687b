"""Final answers: where an episode says them, and whether they equal a reference.

An answer is marked by `<answer>` or by a line that starts with ANSWER (or `Answer:`), in bold or not; of
several marks the last counts, so that listing guesses wins nothing. Exact match and token F1 follow SQuAD
(lower case, no punctuation, no articles, single spaces), the measure of the search literature; punctuation is
that of Unicode, so that typographic quotes fall away, too. Not covered: mathematical equality
(`pipeline.checks.math_answers`), synonyms.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

from data.messages import Role, Turn

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_MARKED = re.compile(r"^[\s>#*_`]*(?:ANSWER\b|[Aa]nswer[*_`]*\s*:)[\s:*_`]*", re.MULTILINE)
_EDGES = " \t\r\n.!*_`\"'\u2018\u2019\u201c\u201d"
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?!\w)")
_DECIMALS = 2
_ROUNDED = 0.0051
"""A number of more than _DECIMALS decimals may be said as rounded to that many."""


def final_answer(turns: Sequence[Turn]) -> str:
    """What the last assistant turn says, "" where the episode ends in anything but an answer.

    The text of its last `<answer>` element where it has one, else what follows the last ANSWER that starts a
    line, else the whole text.
    """
    text = last_words(turns)
    marked = marked_answer(text)
    return text.strip() if marked is None else marked


def last_words(turns: Sequence[Turn]) -> str:
    """The text of the last turn where the assistant ends the episode with it, else ""."""
    if not turns or turns[-1].role is not Role.ASSISTANT or turns[-1].tool_calls:
        return ""
    return turns[-1].text


def marked_answer(text: str) -> str | None:
    """What is marked as the answer, to the end of the text; None where nothing is."""
    tagged = _TAGGED.findall(text)
    if tagged:
        return str(tagged[-1]).strip()
    marks = list(_MARKED.finditer(text))
    return text[marks[-1].end() :].strip() if marks else None


def bare(text: str) -> str:
    """`text` without what surrounds an answer: spaces, quotes, emphasis, a full stop."""
    return text.strip(_EDGES)


def normalised(text: str) -> str:
    """Lower case without punctuation, articles and surplus space."""
    plain = "".join(filter(_counts, unicodedata.normalize("NFKC", text).lower()))
    return " ".join(_ARTICLES.sub(" ", plain).split())


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


def words_of_turn(turns: Sequence[Turn], index: int) -> str:
    """The last words of the assistant in user turn `index`; "" where it ended with a call."""
    said, reply = -1, ""
    for turn in turns:
        if turn.role is Role.USER:
            said += 1
        if said == index and turn.role in (Role.ASSISTANT, Role.TOOL):
            reply = turn.text if turn.role is Role.ASSISTANT and not turn.tool_calls else ""
    return reply


def says(text: str, value: str) -> bool:
    """Whether `value` stands in `text` as a whole, whatever its case; a number as one may write it, too:
    6,500 for 6500, and 3.24 for 3.2432."""
    if re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text, re.IGNORECASE):
        return True
    if not re.fullmatch(r"-?\d+(?:\.\d+)?", value):
        return False
    slack = _ROUNDED if len(value.partition(".")[2]) > _DECIMALS else 0.0
    return any(abs(number - float(value)) <= slack for number in numbers_in(text))


def _f1(given: Sequence[str], wanted: Sequence[str]) -> float:
    shared = (Counter(given) & Counter(wanted)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(given), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


def _counts(letter: str) -> bool:
    return letter not in string.punctuation and not unicodedata.category(letter).startswith("P")
