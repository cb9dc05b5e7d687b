"""A stateful tool: made per episode, step rewards, metrics, a picture, a score, released."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from data import canonical
from data.messages import assistant, system, user
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.environments.gold import Plan, PlannedGold, call
from pipeline.environments.toolkit import ToolEnvironment, ToolSession
from pipeline.environments.tools import Media, StatefulTool, ToolResponse

SIZE = 8


class Crane(StatefulTool):
    """Move the crane over a field of 8 by 8."""

    name = "crane"

    async def create(self, task: Task) -> None:
        self.at: list[int] = task.state_value()["start"]
        self.goal: list[int] = task.state_value()["goal"]
        self.steps = 0

    async def execute(
        self, direction: Literal["left", "right", "up", "down"], steps: Annotated[int, Field(ge=1, le=7)] = 1
    ) -> ToolResponse:
        before = self.distance()
        axis, sign = {"left": (0, -1), "right": (0, 1), "up": (1, -1), "down": (1, 1)}[direction]
        self.at[axis] = min(max(self.at[axis] + sign * steps, 0), SIZE - 1)
        self.steps += steps
        return ToolResponse(
            text=f"at {self.at}",
            media=(Media(picture(self.at), "image/png"),),
            reward=(before - self.distance()) / SIZE,
            metrics={"steps": steps},
        )

    async def calc_reward(self) -> float:
        return 1.0 - self.distance() / (2 * SIZE)

    async def release(self) -> None:
        self.at = []

    def distance(self) -> int:
        return sum(abs(here - there) for here, there in zip(self.at, self.goal, strict=True))


class CraneSession(ToolSession):
    stateful = (Crane,)

    def judge(self, trajectory: Trajectory) -> dict[str, float]:
        finished = trajectory.turns[-1].text == "DONE"
        return {"success": finished and self.tool_scores["crane"] == 1.0}


class Yard(ToolEnvironment):
    name, splits, session = "yard", ("train", "heldout"), CraneSession

    def tasks(self, split: str) -> Iterator[Task]:
        self.check_split(split)
        for right in range(1, 5) if split == "train" else range(5, SIZE):
            for down in range(1, SIZE):
                state = {"start": [0, 0], "goal": [right, down]}
                yield Task(
                    environment=self.name,
                    split=split,
                    template="move",
                    prompt=(system("End with DONE."), user(f"Move from [0, 0] to {state['goal']}.")),
                    state=canonical.dumps(state),
                    private=canonical.dumps({"right": right, "down": down}),
                    verifier="yard/1",
                )

    def gold(self, task: Task) -> PlannedGold:
        return PlannedGold(_plan(**task.private_value()))


def picture(at: list[int]) -> bytes:
    """The field as a grey PNG with a white dot."""
    rows = b"".join(b"\0" + bytes(255 if [x, y] == at else 64 for x in range(SIZE)) for y in range(SIZE))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", SIZE, SIZE, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def _plan(right: int, down: int) -> Plan:
    yield call("crane", direction="right", steps=right)
    yield call("crane", direction="down", steps=down)
    yield assistant("DONE")


def load(**options: Any) -> Yard:
    return Yard(**options)
