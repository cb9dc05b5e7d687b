"""The tasks of travel_desk: seeded, endless in principle, disjoint across splits by construction.

A drawn task belongs to the split that the digest of its first user text says, and is drawn again until that
is the split wanted; so no such text of one split occurs in another. `heldout_unseen` has the unseen templates
only, and shows every tool under another name. Not covered: paraphrases beyond a few sentences per template.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from data import canonical
from data.messages import Turn, system, user
from data.tasks import Budget, Task
from pipeline.environments.gold import Plan, PlannedGold
from pipeline.environments.splits import UNSEEN, split_of
from pipeline.environments.templated import TemplatedEnvironment, with_distractors
from pipeline.environments.travel_desk.desk import Case, Desk
from pipeline.environments.travel_desk.template import Template
from pipeline.environments.travel_desk.templates_bookings import BOOKING_TEMPLATES
from pipeline.environments.travel_desk.templates_flights import FLIGHT_TEMPLATES
from pipeline.environments.travel_desk.templates_trips import TRIP_TEMPLATES
from pipeline.environments.travel_desk.world import RENAMED, TravelSession
from pipeline.errors import ConfigError

TEMPLATES = {template.name: template for template in (*FLIGHT_TEMPLATES, *BOOKING_TEMPLATES, *TRIP_TEMPLATES)}
DEMO_TEMPLATES = ("known_flight", "cheapest", "earliest", "price", "cancel")
"""Short ones with something to decide: what the demo trains on."""

MAX_DRAWS = 2_000


class TravelDesk(TemplatedEnvironment[Template]):
    """`templates`: only these (names of TEMPLATES); by default all. A choice changes no task."""

    name = "travel_desk"
    session = TravelSession
    all_templates = TEMPLATES
    renamed = RENAMED

    def stream(self, template: Template, split: str) -> Iterator[Task]:
        """One desk after the other."""
        return (draw_task(template, split, index) for index in itertools.count())

    def gold(self, task: Task) -> PlannedGold:
        """The template's plan, with the tool names the task shows."""
        plan = TEMPLATES[task.template].plan(task.private_value()["goal"])
        return PlannedGold(_renamed(plan, self.rename(task)))


def load(**options: Any) -> TravelDesk:
    """The travel_desk environment; options are those of TravelDesk."""
    return TravelDesk(**options)


def draw_task(template: Template, split: str, index: int) -> Task:
    """The `index`-th task of a template in a split."""
    for attempt in range(MAX_DRAWS):
        desk = Desk(random.Random(f"travel_desk/{split}/{template.name}/{index}/{attempt}"))
        case = template.draw(desk)
        if split in (UNSEEN, split_of(case.prompt)):
            return _task(template, split, desk, case)
    raise ConfigError(f"template {template.name} has too few texts: no draw of {MAX_DRAWS} is in {split}")


def _task(template: Template, split: str, desk: Desk, case: Case) -> Task:
    rename = RENAMED if split == UNSEEN else {}
    private = {
        "goal": case.goal,
        **desk.expected(),
        "answer": case.answer,
        "ask": case.ask,
        "evidence": [[rename.get(name, name), arguments] for name, arguments in case.evidence],
        "replies": case.replies,
    }
    return Task(
        environment="travel_desk",
        split=split,
        template=template.name,
        tags=template.tags,
        prompt=(system(case.system), user(case.prompt)),
        tools=tuple(
            rename.get(name, name) for name in with_distractors(template.tools, TravelSession, desk.rng)
        ),
        state=canonical.dumps(desk.state()),
        private=canonical.dumps(private),
        verifier="travel_desk/end_state/1",
        budget=Budget(max_turns=len(template.calls) + 4, max_tokens=512 + 128 * len(template.calls)),
    )


def _renamed(plan: Plan, rename: Mapping[str, str]) -> Plan:
    turns: Sequence[Turn] | None = None
    while True:
        try:
            turn = next(plan) if turns is None else plan.send(turns)
        except StopIteration:
            return
        calls = tuple(
            call.model_copy(update={"name": rename.get(call.name, call.name)}) for call in turn.tool_calls
        )
        turns = yield turn.model_copy(update={"tool_calls": calls})
