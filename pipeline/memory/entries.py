"""A memory of workflows, and which of two descriptions of one goal it keeps.

Three kinds: `awm` (Agent Workflow Memory, arXiv 2409.07429) keeps the newest workflow of a success; `awm++`
is the same with the shortest-description rule; `echo` (arXiv 2510.10304) keeps the shortest workflow of any
goal that was reached, in failed episodes, too. The length is the number of characters. Goals that say the
same in other words of politeness, with or without articles, in another case or number, are one goal: the
released code of ECHO compares strings exactly and keeps both. Not covered: where entries come from
(`synthesizers`), files (`stored`), prompts (`showing`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from pydantic import model_validator

from data import canonical
from data.messages import Record

SCHEMA_VERSION = 1
_POLITE = re.compile(
    r"^(?:(?:thanks|great|ok|okay|hello|hi|next|now|and|then|please|kindly)\b[\s,.!]*)*"
    r"(?:(?:could|can|would|will) you|i (?:need|want) you to|i(?:'d| would) like(?: you)? to)?"
    r"[\s,]*(?:please\b)?\s*",
    re.IGNORECASE,
)
_ARTICLES = frozenset(("a", "an", "the", "please", "my", "your", "some", "now"))
_WORD = re.compile(r"\w[\w'.:-]*\w|\w")


class Kind(StrEnum):
    """How a memory is made; see the module docstring."""

    AWM = "awm"
    AWM_SHORTEST = "awm++"
    ECHO = "echo"

    @property
    def shortest_wins(self) -> bool:
        """Whether a stored workflow is replaced by a shorter one only."""
        return self is not Kind.AWM


class Entry(Record):
    """A goal, how it was reached from the start state, and where that was seen."""

    goal: str
    workflow: str
    tools: tuple[str, ...] = ()
    """Tools that the workflow calls."""
    task_id: str
    trajectory_id: str
    split: str


class Memory(Record):
    """Entries in the order their goals were first met. Add with `remember`."""

    schema_version: int = SCHEMA_VERSION
    kind: Kind
    environment: str
    split: str
    """The only split that entries may come from: the training split."""
    entries: tuple[Entry, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Memory:
        for entry in self.entries:
            if entry.split != self.split:
                raise ValueError(
                    f"the entry {entry.goal!r:.80} comes from split {entry.split!r}; a memory holds what was "
                    f"learned on {self.split!r} only, or evaluations would read their own answers"
                )
        return self

    @property
    def digest(self) -> str:
        """16 hex digits over what may be shown."""
        return canonical.digest("memory", self.kind, [[e.goal, e.workflow] for e in self.entries], length=16)

    def remember(self, entry: Entry) -> Memory:
        """The memory after an entry; the same where the entry abstains (no goal or no workflow).

        Raises ValueError for an entry of another split.
        """
        if not entry.goal.strip() or not entry.workflow.strip():
            return self
        key, entries = goal_key(entry.goal), list(self.entries)
        place = next((place for place, held in enumerate(entries) if goal_key(held.goal) == key), None)
        if place is None:
            entries.append(entry)
        elif not self.kind.shortest_wins or is_shorter(entry.workflow, entries[place].workflow):
            entries[place] = entry
        return Memory.model_validate(self.model_dump() | {"entries": entries})


def is_shorter(new: str, stored: str) -> bool:
    """ECHO's update rule: a stored description is replaced iff the new one has fewer characters."""
    return len(new) < len(stored)


def goal_key(goal: str) -> str:
    """Equal for goals that ask for the same; order counts, because "a to b" is not "b to a"."""
    words = [word.casefold() for word in _WORD.findall(plain(goal))]
    return " ".join(_singular(word) for word in words if word not in _ARTICLES)


def plain(goal: str) -> str:
    """The goal without the words of politeness around it."""
    text = " ".join(goal.split())
    stripped = _POLITE.sub("", text, count=1).rstrip(" .?!")
    stripped = re.sub(r",? please$", "", stripped, flags=re.IGNORECASE)
    return stripped[:1].upper() + stripped[1:]


def overlap(goal: str, words: Sequence[str]) -> float:
    """Jaccard index of a goal's words and those of a request."""
    one, other = set(goal_key(goal).split()), {_singular(word.casefold()) for word in words}
    return len(one & other) / len(one | other) if one | other else 0.0


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text, articles left out."""
    return tuple(word for word in _WORD.findall(text) if word.casefold() not in _ARTICLES)


def _singular(word: str) -> str:
    ends = len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is"))
    return word[:-1] if ends else word
