"""Plain functions as tools: enums, unions, nested types, defaults, limits are the schema shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from data import canonical
from data.messages import assistant, system, user
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.environments.gold import Plan, PlannedGold, call, last_result
from pipeline.environments.toolkit import ToolEnvironment, ToolSession
from pipeline.environments.tools import ToolError, tool


class Room(Enum):
    LAB = "lab"
    HALL = "hall"


@dataclass
class Slot:
    day: Literal["mon", "tue", "wed", "thu", "fri"]
    hour: Annotated[int, Field(ge=8, le=17)]


class Catering(BaseModel):
    drink: Literal["tea", "coffee"]
    people: int = Field(default=2, ge=1, le=20)


PRICES = {"tea": 2, "coffee": 3}


@tool
def price_of(catering: Catering) -> int:
    """Price of a catering order."""
    return PRICES[catering.drink] * catering.people


class OfficeSession(ToolSession):
    functions = (price_of,)

    @tool
    def book(
        self, room: Room, slot: Slot, catering: Catering | None = None, title: str | int = "meeting"
    ) -> str:
        """Book a room.

        Args:
            slot: Weekday and full hour.
            title: Text or number shown at the door.
        """
        key = f"{room.value} {slot.day} {slot.hour}"
        if key in self.state["bookings"]:
            raise ToolError(f"{key} is taken")
        self.state["bookings"][key] = [title, price_of(catering) if catering else 0]
        return f"booked {key}"

    def judge(self, trajectory: Trajectory) -> dict[str, float]:
        return {"success": self.state["bookings"] == self.task.private_value()["bookings"]}


class Office(ToolEnvironment):
    name, splits, session = "office", ("train", "heldout"), OfficeSession

    def tasks(self, split: str) -> Iterator[Task]:
        self.check_split(split)
        for hour in range(8, 14) if split == "train" else range(14, 18):
            for drink in PRICES:
                arguments = {
                    "room": "lab" if hour % 2 else "hall",
                    "slot": {"day": "tue", "hour": hour},
                    "catering": {"drink": drink, "people": hour - 5},
                }
                room, price = arguments["room"], PRICES[drink] * (hour - 5)
                request = f"Book the {room} on Tuesday at {hour} with {drink} for {hour - 5} people."
                yield Task(
                    environment=self.name,
                    split=split,
                    template="book",
                    prompt=(system("Say the price of the catering when it is booked."), user(request)),
                    state=canonical.dumps({"bookings": {}}),
                    private=canonical.dumps(
                        {"arguments": arguments, "bookings": {f"{room} tue {hour}": ["meeting", price]}}
                    ),
                    verifier="office/1",
                )

    def gold(self, task: Task) -> PlannedGold:
        return PlannedGold(_plan(task.private_value()["arguments"]))


def _plan(arguments: dict[str, Any]) -> Plan:
    turns = yield call("price_of", catering=arguments["catering"])
    price = last_result(turns).text
    yield call("book", **arguments)
    yield assistant(f"Booked, {price} euros.")


def load(**options: Any) -> Office:
    return Office(**options)
