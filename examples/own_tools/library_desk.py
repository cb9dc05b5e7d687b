"""Your own tools in one file: a library desk. `trajsmith env check library_desk:load` takes it as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from data import canonical
from data.messages import assistant, system, user
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.environments.gold import Plan, PlannedGold, call, last_result
from pipeline.environments.toolkit import ToolEnvironment, ToolSession
from pipeline.environments.tools import tool

SHELF = {"Dune": "A12", "Emma": "B07", "Ulysses": "C31", "Beloved": "D44", "Persuasion": "E58"}


class DeskSession(ToolSession):
    @tool
    def find(self, title: str) -> str:
        """Shelf mark of a book."""
        return SHELF[title]

    @tool
    def reserve(self, mark: str) -> str:
        """Reserve the book with this shelf mark."""
        self.state["reserved"].append(mark)
        return "reserved"

    def judge(self, trajectory: Trajectory) -> dict[str, float]:
        return {"success": self.state["reserved"] == [self.task.private_value()["mark"]]}


class LibraryDesk(ToolEnvironment):
    name, splits, session = "library_desk", ("train", "heldout"), DeskSession

    def tasks(self, split: str) -> Iterator[Task]:
        self.check_split(split)
        for title, mark in list(SHELF.items())[:4] if split == "train" else list(SHELF.items())[4:]:
            yield Task(
                environment=self.name,
                split=split,
                template="reserve",
                prompt=(system("End with DONE."), user(f"Reserve {title} for me.")),
                state=canonical.dumps({"reserved": []}),
                private=canonical.dumps({"title": title, "mark": mark}),
                verifier="library_desk/1",
            )

    def gold(self, task: Task) -> PlannedGold:
        return PlannedGold(_plan(task.private_value()["title"]))


def _plan(title: str) -> Plan:
    turns = yield call("find", title=title)
    yield call("reserve", mark=last_result(turns).text)
    yield assistant("DONE")


def load(**options: Any) -> LibraryDesk:
    return LibraryDesk(**options)
