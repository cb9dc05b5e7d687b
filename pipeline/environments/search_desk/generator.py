"""The tasks of search_desk: every split has a world of its own, the unseen split also paths of its own.

Chat: tools `search` and `open`. Inline (`protocol="inline"`, for rollouts in inline mode with the format
`INLINE`): `<search>words</search>`, answered by `<information>`, as Search-R1 does it. Both ask the same
questions. Not covered: other corpora (subclass SearchSession and give it documents).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from data import canonical
from data.messages import assistant, system, user
from data.tasks import Budget, Task
from pipeline.environments.gold import Plan, PlannedGold, call
from pipeline.environments.search_desk.desk import SearchSession
from pipeline.environments.search_desk.questions import (
    QUESTIONS,
    REFUSAL,
    Case,
    Question,
    draw_cases,
    interleave,
)
from pipeline.environments.search_desk.world import make_world
from pipeline.environments.splits import NUM_TASKS, UNSEEN
from pipeline.environments.toolkit import ToolEnvironment
from pipeline.errors import ConfigError
from pipeline.rollout_settings import InlineFormat

WORLDS = {"train": 0, "dev": 1, "heldout": 2, UNSEEN: 3}
PROTOCOLS = ("chat", "inline")
INLINE = InlineFormat(tool="search", argument="query")
"""What `InlineFormat` needs to be told; its tags are the right ones by default."""
_CHAT = f"Search, open documents, end with ANSWER and the name, or {REFUSAL} if they do not say."
_INLINE = (
    "Write <search>words</search> to search. "
    f"End with <answer>name</answer>, or <answer>{REFUSAL}</answer> if the documents do not say."
)


class SearchDesk(ToolEnvironment):
    """`protocol`: chat or inline; `hops`: only questions with so many documents to read (1 to 4)."""

    name = "search_desk"
    splits = tuple(NUM_TASKS)
    session = SearchSession

    def __init__(
        self, *, protocol: str = "chat", hops: tuple[int, ...] = (1, 2, 3, 4), **options: Any
    ) -> None:
        super().__init__(**options)
        if protocol not in PROTOCOLS:
            raise ConfigError(f"search_desk has no protocol {protocol!r}; it has {', '.join(PROTOCOLS)}")
        if not hops or not set(hops) <= {1, 2, 3, 4}:
            raise ConfigError(f"search_desk hops are 1 to 4, got {list(hops)}")
        self.protocol, self.hops = protocol, tuple(hops)
        self.inline = INLINE if protocol == "inline" else None

    def tasks(self, split: str) -> Iterator[Task]:
        """At most `NUM_TASKS[split]` tasks, the questions taking turns while they last."""
        self.check_split(split)
        streams = [
            _stream(question, WORLDS[split])
            for question in QUESTIONS
            if question.unseen == (split == UNSEEN) and num_hops(question) in self.hops
        ]
        for question, case in itertools.islice(interleave(streams), NUM_TASKS[split]):
            yield make_task(question, case, split, protocol=self.protocol)

    def gold(self, task: Task) -> PlannedGold:
        """Search the start, read every document on the way, answer."""
        return PlannedGold(_plan(task))


def load(**options: Any) -> SearchDesk:
    """The search_desk environment; options are those of SearchDesk."""
    return SearchDesk(**options)


def num_hops(question: Question) -> int:
    """Documents on the way to the answer."""
    return len(question.path)


def make_task(question: Question, case: Case, split: str, *, protocol: str) -> Task:
    """The task of a drawn case."""
    inline = protocol == "inline"
    state = {"world": WORLDS[split], "full": inline, "found": [], "read": [], "searches": 0}
    return Task(
        environment="search_desk",
        split=split,
        template=question.name,
        tags=(f"hops_{num_hops(question)}", *(["compare"] if question.compare else []), *question.tags),
        prompt=(system(_INLINE if inline else _CHAT), user(case.text)),
        tools=("search",) if inline else ("search", "open"),
        state=canonical.dumps(state),
        # The way is one text, because titles on it may well stand in the prompt.
        private=canonical.dumps({"answer": case.answer, "way": canonical.dumps(case.way)}),
        verifier="search_desk/exact_match/2",
        budget=Budget(max_turns=12, max_tokens=2048),
    )


def _stream(question: Question, world: int) -> Iterator[tuple[Question, Case]]:
    rng = random.Random(f"search_desk/{world}/{question.name}")
    for case in draw_cases(question, make_world(world), rng):
        yield question, case


def _plan(task: Task) -> Plan:
    private = task.private_value()
    inline = task.state_value()["full"]
    for index, (query, title) in enumerate(canonical.loads(private["way"])):
        if inline or index == 0 or query != title:
            yield call("search", query=query)
        if not inline:
            yield call("open", title=title)
    yield assistant(f"<answer>{private['answer']}</answer>" if inline else _typed(private["answer"]))


def _typed(answer: str) -> str:
    return REFUSAL if answer == REFUSAL else f"ANSWER {answer}"
