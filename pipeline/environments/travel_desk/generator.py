"""The tasks of travel_desk: seeded, endless in principle, disjoint across splits by construction.

A drawn task belongs to the split that the digest of its first user text says, and is drawn again until that
is the split wanted; so no such text of one split occurs in another. `heldout_unseen` has the unseen templates
only, and shows every tool under another name. Not covered: paraphrases beyond a few sentences per template.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from data import canonical
from data.messages import Turn, system, user
from data.tasks import Budget, Task
from pipeline.environments.gold import Plan, PlannedGold
from pipeline.environments.splits import split_of
from pipeline.environments.toolkit import ToolEnvironment, all_tools
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

NUM_TASKS = {"train": 12_000, "dev": 600, "heldout": 1_200, "heldout_unseen": 600}
_UNSEEN = "heldout_unseen"
MAX_DISTRACTORS = 2
MAX_DRAWS = 2_000


class TravelDesk(ToolEnvironment):
    """`templates`: only these (names of TEMPLATES); by default all. A choice changes no task."""

    name = "travel_desk"
    splits = tuple(NUM_TASKS)
    session = TravelSession

    def __init__(self, *, templates: Sequence[str] | None = None, **options: Any) -> None:
        super().__init__(**options)
        unknown = [name for name in templates or () if name not in TEMPLATES]
        if unknown:
            raise ConfigError(f"travel_desk has no templates {unknown}; it has {', '.join(TEMPLATES)}")
        self.templates = tuple(templates or TEMPLATES)

    def tasks(self, split: str) -> Iterator[Task]:
        """`NUM_TASKS[split]` tasks, the templates taking turns."""
        self.check_split(split)
        chosen = [TEMPLATES[name] for name in self.templates if TEMPLATES[name].unseen == (split == _UNSEEN)]
        for index in range(NUM_TASKS[split] if chosen else 0):
            yield draw_task(chosen[index % len(chosen)], split, index // len(chosen))

    def gold(self, task: Task) -> PlannedGold:
        """The template's plan, with the tool names the task shows."""
        plan = TEMPLATES[task.template].plan(task.private_value()["goal"])
        return PlannedGold(_renamed(plan, self.rename(task)))

    def rename(self, task: Task) -> Mapping[str, str]:
        """The other names in `heldout_unseen`."""
        return RENAMED if task.split == _UNSEEN else {}


def load(**options: Any) -> TravelDesk:
    """The travel_desk environment; options are those of TravelDesk."""
    return TravelDesk(**options)


def draw_task(template: Template, split: str, index: int) -> Task:
    """The `index`-th task of a template in a split."""
    for attempt in range(MAX_DRAWS):
        desk = Desk(random.Random(f"travel_desk/{split}/{template.name}/{index}/{attempt}"))
        case = template.draw(desk)
        if split in (_UNSEEN, split_of(case.prompt)):
            return _task(template, split, desk, case)
    raise ConfigError(f"template {template.name} has too few texts: no draw of {MAX_DRAWS} is in {split}")


def _task(template: Template, split: str, desk: Desk, case: Case) -> Task:
    rename = RENAMED if split == _UNSEEN else {}
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
        tools=tuple(rename.get(name, name) for name in _shown(template, desk.rng)),
        state=canonical.dumps(desk.state()),
        private=canonical.dumps(private),
        verifier="travel_desk/end_state/1",
        budget=Budget(max_turns=len(template.calls) + 4, max_tokens=512 + 128 * len(template.calls)),
    )


def _shown(template: Template, rng: random.Random) -> list[str]:
    """The template's tools and up to two others, shuffled."""
    others = [name for name in all_tools(TravelSession) if name not in template.tools]
    shown = [*template.tools, *rng.sample(others, min(len(others), rng.randint(0, MAX_DISTRACTORS)))]
    rng.shuffle(shown)
    return shown


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
