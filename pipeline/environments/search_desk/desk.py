"""The tools of search_desk, how an answer is read, and when it is right.

`search` shows titles with the start of each text (in the inline protocol whole texts, since there is no
`open`); `open` shows a whole text. The answer is typed: `ANSWER name` or `<answer>name</answer>`, and REFUSE
in place of a name where the documents do not say. It counts only if every document on the way came up, and
the last one was shown as far as it says the answer (for a refusal: read), so that guessing a country scores
nothing. Right = exact match after lower-casing and dropping punctuation and articles (`the river X` and
`in X` are X, too); F1 over words stands beside it. Not covered: other words around an answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from data import canonical
from data.messages import Turn
from data.trajectories import Trajectory
from pipeline.checks.answers import bare, exact_match, last_words, marked_answer, token_f1
from pipeline.environments.search_desk.index import make_index
from pipeline.environments.search_desk.questions import REFUSAL
from pipeline.environments.search_desk.world import World, make_world
from pipeline.environments.toolkit import ToolSession
from pipeline.environments.tools import ToolError, tool

NUM_RESULTS = 3
SNIPPET_LENGTH = 80
_REFUSED = re.compile(rf"^[\s>*_`]*{REFUSAL}\b[\s.*_`]*$", re.MULTILINE)
_LEAD = re.compile(r"^(?:the|in|by|at|river|city|country|school|company|of|year)\b\s*", re.IGNORECASE)


class SearchSession(ToolSession):
    """State: {"world": number, "full": search shows all, "found", "read": titles, "searches": number}."""

    @tool
    def search(self, query: str) -> str:
        """Search the encyclopaedia."""
        self.state["searches"] += 1
        world = make_world(self.state["world"])
        found = make_index(self.state["world"]).search(query, limit=NUM_RESULTS)
        if self.state["full"]:
            self._note("read", found)
            lines = [f"{title}: {world.entities[title].text}" for title in found]
        else:
            self._note("found", found)
            lines = [f"{title}: {snippet(world, title)}" for title in found]
        return "\n".join(lines) or "nothing found"

    @tool
    def open(self, title: str) -> str:
        """Read a document by its title."""
        world = make_world(self.state["world"])
        wanted = title.strip()
        if wanted not in world.entities:
            raise ToolError(f"no document {wanted[:60]!r}; search for it")
        self._note("read", [wanted])
        return world.entities[wanted].text

    def end_state(self) -> None:
        """Nothing: searching and reading change no document."""

    def judge(self, trajectory: Trajectory) -> Mapping[str, float]:
        """`success`: exact match; `f1`; `searches`: how many were made."""
        private = self.task.private_value()
        given, gold = read_answer(trajectory.turns), private["answer"]
        evidence = self._seen(gold, [title for _, title in canonical.loads(private["way"])])
        if gold == REFUSAL or given in (None, REFUSAL):
            overlap = float(given == gold)
        else:
            overlap = token_f1(str(given), [gold])
        right = evidence and given is not None and (given == REFUSAL) == (gold == REFUSAL)
        success = right and exact_match(str(given), [gold])
        parts = {"f1": overlap, "evidence": float(evidence), "searches": float(self.state["searches"])}
        return {"success": float(success), **parts}

    def _seen(self, answer: str, titles: Sequence[str]) -> bool:
        """Whether the documents came up, and the last one's words that say the answer were shown."""
        last, read = titles[-1], set(self.state["read"])
        shown = last in read
        if not shown and last in self.state["found"] and answer != REFUSAL:
            shown = answer.lower() in f"{last}: {snippet(make_world(self.state['world']), last)}".lower()
        return shown and set(titles) <= read | set(self.state["found"])

    def _note(self, kind: str, titles: Sequence[str]) -> None:
        self.state[kind] += [title for title in titles if title not in self.state[kind]]


def snippet(world: World, title: str) -> str:
    """What a search shows of a document's text."""
    return f"{world.entities[title].text[:SNIPPET_LENGTH]}..."


def read_answer(turns: Sequence[Turn]) -> str | None:
    """The typed answer of the last turn, REFUSAL for a refusal, None where there is none."""
    text = last_words(turns)
    marked = marked_answer(text)
    if marked is None:
        return REFUSAL if _REFUSED.search(text) else None
    answer = bare(marked.partition("\n")[0])
    return REFUSAL if answer == REFUSAL else without_lead(answer) or None


def without_lead(answer: str) -> str:
    """`answer` without words that only say of what kind it is: `the river X`, `in X`, `the city of X`."""
    while found := _LEAD.match(answer):
        answer = answer[found.end() :]
    return answer
