"""Words that claim what no observation supports, decided narrowly: better to miss a claim than to invent one.

A claim is one of three things, in what the assistant wrote and not in its reasoning:

- *a made-up observation*: a turn that writes a tool's answer itself (`<tool_response>` and the like);
- *a value*: an identifier (letters and at least two digits: F123, 3fa9) in a turn without calls that stands
  in no earlier turn, no tool's schema and no argument sent before, whatever its case; or the number of an
  `ANSWER ...` that stands in none of these, where no tool has answered anything yet;
- *an effect*: the past form of a shown tool's verb (`book`: booked, `cancel_booking`: canceled, cancelled) in
  a turn without calls, where no tool of that verb has answered without an error, no earlier turn has the
  form, and no negation, question, condition or modal stands in the sentence.

Not covered: claims in other languages or words than the tool's own, numbers that could have been computed,
and statements that misread a real observation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from data.messages import Role, ToolStatus, Turn
from data.trajectories import Trajectory
from pipeline.checks.typed_answers import AnswerKind, read_answer

_OBSERVATIONS = ("<tool_response>", "<tool_result>", "<tool_output>", "<function_response>", "<information>")
_IDENTIFIER = re.compile(r"(?<![\w-])(?=[\w-]*[a-z])(?=[\w-]*\d[\w-]*\d)[a-z0-9][\w-]*[a-z0-9](?![\w-])")
_QUANTITY = re.compile(r"\d+(?:st|nd|rd|th|am|pm|h|km|kg|x|k|m)|[a-z]+-\d+|\d+-[a-z]+")
"""Letters and digits that are a quantity or a compound word: 13th, 10am, 12-night."""
_SENTENCES = re.compile(r"(?<=[.!?;])\s+|\n+")
_DENIED = re.compile(
    r"\b(?:not|no|never|nothing|none|without|unable|fail(?:ed|s)?|cannot|if|whether|once|when|until|before|"
    r"can|could|would|should|will|shall|may|might|must|to be|being|already|want(?:ed|s)?)\b|n't|\?",
    re.IGNORECASE,
)
_NEVER_DOUBLED = "wxyaeiou"


def first_claim(trajectory: Trajectory) -> int | None:
    """Index of the first turn that claims something no earlier observation supports; None where none does."""
    seen = [tool.parameters + tool.description for each in trajectory.segments for tool in each.tools]
    done: set[str] = set()
    verbs = {_verb(tool.name) for each in trajectory.segments for tool in each.tools}
    called = {call.call_id: call.name for turn in trajectory.turns for call in turn.tool_calls}
    answered = False
    for index, turn in enumerate(trajectory.turns):
        if turn.role is Role.ASSISTANT:
            if _makes_up(turn) or _claims(turn, seen, answered=answered, undone=verbs - done):
                return index
            seen += [call.arguments for call in turn.tool_calls]
        if turn.result is not None:
            answered = True
            if turn.result.status is ToolStatus.OK:
                done.add(_verb(turn.result.name or called.get(turn.result.call_id, "")))
        seen.append(turn.text)
    return None


def _makes_up(turn: Turn) -> bool:
    return any(mark in part.shown for part in turn.parts for mark in _OBSERVATIONS)


def _claims(turn: Turn, seen: list[str], *, answered: bool, undone: set[str]) -> bool:
    """Whether a turn without calls claims a value or an effect; `undone`: verbs that no tool has done."""
    if turn.tool_calls or not turn.text:
        return False
    before = "\n".join(seen).lower()
    return _names_unseen(turn.text, before, answered=answered) or _claims_effect(turn.text, before, undone)


def _names_unseen(text: str, seen: str, *, answered: bool) -> bool:
    if any(not _stands_in(name, seen) for name in identifiers(text)):
        return True
    answer = read_answer(text)
    number = answer.kind is AnswerKind.ANSWER and answer.value.isdigit()
    return number and not answered and not _stands_in(answer.value, seen)


def identifiers(text: str) -> Iterator[str]:
    """Words of letters and digits that name a thing, in lower case."""
    for match in _IDENTIFIER.finditer(text.lower()):
        if not _QUANTITY.fullmatch(match[0]):
            yield match[0]


def _claims_effect(text: str, seen: str, verbs: set[str]) -> bool:
    for sentence in _SENTENCES.split(text):
        if _DENIED.search(sentence):
            continue
        words = set(re.findall(r"[a-z]+", sentence.lower()))
        for verb in verbs:
            if any(form in words and not _stands_in(form, seen) for form in past_forms(verb)):
                return True
    return False


def past_forms(verb: str) -> tuple[str, ...]:
    """The regular past forms of an English verb; none of what is shorter than three letters."""
    if len(verb) < 3 or not verb.isalpha():
        return ()
    if verb.endswith("e"):
        return (f"{verb}d",)
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return (f"{verb[:-1]}ied",)
    doubled = (f"{verb}{verb[-1]}ed",) if verb[-1] not in _NEVER_DOUBLED and verb[-2] in "aeiou" else ()
    return (f"{verb}ed", *doubled)


def _verb(tool: str) -> str:
    """The first word of a tool's name: `cancel_booking`, `cancelBooking` and `desk.cancel` have `cancel`."""
    word = re.match(r"[a-z]+|[A-Z][a-z]*", tool.rpartition(".")[2].lstrip("_"))
    return word[0].lower() if word else ""


def _stands_in(word: str, text: str) -> bool:
    return word in text and re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None
