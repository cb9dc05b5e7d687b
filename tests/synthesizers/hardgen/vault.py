"""A vault to try HardGen on: a login before anything opens, schemas that promise too much, lists to mix up.

`rivals`: a second list of other boxes, whose cheapest one a request could mean as well. `mirror`: a second
list of the same boxes. The schema of `open_box` allows a force of 0 to 100 and a mode "never"; the tool takes
1 to 7, and never "never".
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from data import canonical
from data.messages import assistant, system, user
from data.tasks import Budget, Task
from data.trajectories import Trajectory
from pipeline.environments.gold import Plan, PlannedGold, call, last_result
from pipeline.environments.toolkit import ToolEnvironment, ToolSession
from pipeline.environments.tools import ToolError, tool

OWNERS = ("Ann", "Bob", "Cleo", "Dan", "Eve", "Finn")
FORCE = (1, 7)


class VaultSession(ToolSession):
    """State: {"user", "pin", "logged", "boxes": [{"id", "owner", "price", "list", "open"}]}."""

    @tool
    def sign_in(self, account: str, pin: str) -> str:
        """Sign in to an account."""
        if (account, pin) != (self.state["user"], self.state["pin"]):
            raise ToolError("no such account and pin")
        self.state["logged"] = True
        return "welcome"

    @tool
    def boxes(self, owner: str) -> str:
        """List the boxes of an owner."""
        return self._listed(owner, "boxes")

    @tool
    def shelf(self, owner: str) -> str:
        """Read what stands on the shelf of a person."""
        return self._listed(owner, self.task.state_value()["shelf"])

    @tool
    def open_box(
        self,
        box: str,
        force: Annotated[int, Field(ge=0, le=100)],
        mode: Literal["slow", "fast", "never"],
    ) -> str:
        """Open a box with some force."""
        if not self.state["logged"]:
            raise ToolError("sign in first")
        if not FORCE[0] <= force <= FORCE[1] or mode == "never":
            raise ToolError("it does not move")
        found = next((one for one in self.state["boxes"] if one["id"] == box), None)
        if found is None:
            raise ToolError(f"no box {box}")
        found["open"] = [force, mode]
        return f"{box} is open"

    def end_state(self) -> Any:
        """Everything."""
        return self.state

    def judge(self, trajectory: Trajectory) -> Mapping[str, float]:
        """The box that was asked for is open, and no other one."""
        opened = [one["id"] for one in self.state["boxes"] if one["open"]]
        return {"success": opened == [self.task.private_value()["box"]]}

    def _listed(self, owner: str, name: str) -> str:
        rows = [one for one in self.state["boxes"] if one["owner"] == owner and one["list"] == name]
        return "\n".join(f"{one['id']} ${one['price']}" for one in rows) or "none"


class Vault(ToolEnvironment):
    """Tasks without end; see the module docstring."""

    name = "vault"
    splits = ("train", "heldout")
    session = VaultSession

    def __init__(self, *, rivals: bool = False, mirror: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.rivals, self.mirror = rivals, mirror

    def tasks(self, split: str) -> Iterator[Task]:
        """Fifty tasks."""
        self.check_split(split)
        for number in range(50):
            yield self._task(split, number)

    def gold(self, task: Task) -> PlannedGold:
        """Sign in, list, open the cheapest."""
        return PlannedGold(_plan(task.private_value()["ask"]))

    def _task(self, split: str, number: int) -> Task:
        rng = random.Random(f"vault/{split}/{number}")
        owner, account, pin = rng.choice(OWNERS), f"acc{rng.randint(100, 999)}", str(rng.randint(1000, 9999))
        ids = rng.sample(range(100, 999), 8)
        owners = [owner] * 3 + [rng.choice([one for one in OWNERS if one != owner])]
        boxes = [_box(ids[place], one, "boxes", rng) for place, one in enumerate(owners)]
        if self.rivals:
            boxes += [_box(ids[4 + place], one, "shelf", rng) for place, one in enumerate(owners)]
        shelf = "boxes" if self.mirror else "shelf"
        lister = "shelf" if number % 2 and (self.rivals or self.mirror) else "boxes"
        listed = "boxes" if self.mirror else lister
        mine = [one for one in boxes if one["owner"] == owner and one["list"] == listed]
        ask = {
            "account": account,
            "pin": pin,
            "owner": owner,
            "force": rng.randint(2, 6),
            "mode": rng.choice(("slow", "fast")),
            "list": lister,
        }
        text = (
            f"I am {account} with pin {pin}. Open the cheapest box of {owner} ({lister}) with force "
            f"{ask['force']}, {ask['mode']}."
        )
        state = {"user": account, "pin": pin, "logged": False, "boxes": boxes, "shelf": shelf}
        return Task(
            environment="vault",
            split=split,
            template="open",
            tags=("open",),
            prompt=(system("Do what the user asks."), user(text)),
            state=canonical.dumps(state),
            private=canonical.dumps({"ask": ask, "box": min(mine, key=lambda one: one["price"])["id"]}),
            verifier="vault/1",
            budget=Budget(max_turns=8, max_tokens=1024),
        )


def _box(number: int, owner: str, where: str, rng: random.Random) -> dict[str, Any]:
    price = rng.randrange(10, 500)
    return {"id": f"X{number}", "owner": owner, "price": price, "list": where, "open": None}


def _plan(ask: Mapping[str, Any]) -> Plan:
    yield call("sign_in", account=ask["account"], pin=ask["pin"])
    turns = yield call(ask["list"], owner=ask["owner"])
    rows = [line.split(" $") for line in last_result(turns).text.splitlines()]
    cheapest = min(rows, key=lambda row: int(row[1]))[0]
    yield call("open_box", box=cheapest, force=ask["force"], mode=ask["mode"])
    yield assistant("Done.")


def load(**options: Any) -> Vault:
    """The vault."""
    return Vault(**options)
