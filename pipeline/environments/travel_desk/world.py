"""The desk's tools over one episode's state, and its later user turns.

State: {"flights", "hotels", "bookings": lists of records, "member": {"air", "miles"}, "next": number}. Tools
never enforce policy (budget, notice, miles): keeping to it is the agent's job and `verify` sees whether it
did. A cancelled booking stays as a record, so that booking and cancelling leaves a trace. Not covered:
money, seats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from data.messages import Turn, user
from data.trajectories import Trajectory
from pipeline.checks.typed_answers import AnswerKind, read_answer
from pipeline.environments.toolkit import ToolSession
from pipeline.environments.tools import ToolError, tool
from pipeline.environments.travel_desk.verify import end_state, judge_episode

UPGRADE_MILES = 5000
RENAMED = {
    "flights": "find_flights",
    "hotels": "find_hotels",
    "book": "reserve",
    "room": "reserve_room",
    "bookings": "list_trips",
    "change": "move_trip",
    "cancel": "drop_trip",
    "profile": "member_card",
    "upgrade": "seat_up",
}
"""Names shown in the split `heldout_unseen`."""


class TravelSession(ToolSession):
    """One customer at the desk."""

    @tool
    def flights(self, src: str, dst: str, day: str) -> str:
        """List flights."""
        wanted = [src.lower(), dst.lower(), day.lower()]
        found = [
            flight
            for flight in self.state["flights"]
            if [flight[key].lower() for key in ("src", "dst", "day")] == wanted
        ]
        return "\n".join(flight_line(flight) for flight in found) or "none"

    @tool
    def hotels(self, city: str) -> str:
        """List hotels."""
        found = [hotel for hotel in self.state["hotels"] if hotel["city"].lower() == city.lower()]
        return "\n".join(hotel_line(hotel) for hotel in found) or "none"

    @tool
    def book(self, flight: str) -> str:
        """Book a flight."""
        self._open_flight(flight)
        return self._add_booking({"ref": flight, "nights": 0})

    @tool
    def room(self, hotel: str, nights: int) -> str:
        """Book a hotel."""
        self._find("hotels", hotel)
        if not 1 <= nights <= 30:
            raise ToolError("nights must be 1 to 30")
        return self._add_booking({"ref": hotel, "nights": nights})

    @tool
    def bookings(self) -> str:
        """List my bookings."""
        lines = [
            self._booking_line(booking) for booking in self.state["bookings"] if booking["status"] == "booked"
        ]
        return "\n".join(lines) or "none"

    @tool
    def change(self, booking: str, flight: str) -> str:
        """Move a booking to a flight."""
        record = self._booked(booking)
        self._open_flight(flight)
        record["ref"] = flight
        return f"{booking} is now {flight}"

    @tool
    def cancel(self, booking: str) -> str:
        """Cancel a booking."""
        self._booked(booking)["status"] = "cancelled"
        return f"cancelled {booking}"

    @tool
    def profile(self) -> str:
        """My airline and miles."""
        member = self.state["member"]
        return f"{member['air']}, {member['miles']} miles"

    @tool
    def upgrade(self, booking: str) -> str:
        """Upgrade a booking."""
        record = self._booked(booking)
        if record["business"]:
            raise ToolError(f"{booking} is business already")
        record["business"] = True
        self.state["member"]["miles"] -= UPGRADE_MILES
        return f"upgraded {booking}"

    async def next_user(self, turns: Sequence[Turn]) -> Turn | None:
        """The scripted reply: to the question that must be asked, or to a finished request."""
        script = self.task.private_value()
        said, replies = self.num_user_turns(turns), script["replies"]
        if said >= len(replies):
            return None
        expected = read_answer(script["ask"]) if script["ask"] else None
        answer = read_answer(turns[-1].text)
        if expected is not None:
            return user(replies[said]) if answer == expected else None
        return user(replies[said]) if answer.kind is AnswerKind.DONE else None

    def end_state(self) -> Any:
        """See `verify.end_state`."""
        return end_state(self.task.state_value(), self.state)

    def judge(self, trajectory: Trajectory) -> Mapping[str, float]:
        """See `verify.judge_episode`."""
        return judge_episode(self.task, self.state, trajectory.turns)

    def _find(self, table: str, key: str) -> dict[str, Any]:
        for record in self.state[table]:
            if record["id"] == key:
                return dict(record) if table != "bookings" else record
        raise ToolError(f"no {table.rstrip('s')} {key}")

    def _open_flight(self, flight: str) -> None:
        if self._find("flights", flight)["full"]:
            raise ToolError(f"{flight} is full")

    def _booked(self, booking: str) -> dict[str, Any]:
        record = self._find("bookings", booking)
        if record["status"] != "booked":
            raise ToolError(f"{booking} is {record['status']}")
        return record

    def _add_booking(self, values: dict[str, Any]) -> str:
        key = f"B{self.state['next']}"
        self.state["next"] += 1
        self.state["bookings"].append({"id": key, **values, "business": False, "status": "booked"})
        return f"booked {key}"

    def _booking_line(self, booking: dict[str, Any]) -> str:
        if booking["nights"]:
            hotel = self._find("hotels", booking["ref"])
            return f"{booking['id']} {hotel['id']} {hotel['city']} {booking['nights']} nights"
        flight = self._find("flights", booking["ref"])
        return f"{booking['id']} {flight['id']} {flight['src']} to {flight['dst']} {flight['day']}"


def flight_line(flight: Mapping[str, Any]) -> str:
    """A flight as the agent sees it; whether it is full shows only on booking."""
    stops = "direct" if flight["direct"] else "1 stop"
    return f"{flight['id']} {flight['air']} {flight['time']} {stops} ${flight['price']}"


def hotel_line(hotel: Mapping[str, Any]) -> str:
    """A hotel as the agent sees it."""
    return f"{hotel['id']} {hotel['stars']} stars ${hotel['price']}"
