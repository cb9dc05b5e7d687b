"""Tools that return and raise what no tool should: the agent is never blamed, the loop is never broken."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data import canonical
from data.media import MAX_BYTES, MediaStore
from data.messages import ToolStatus, user
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.environments.base import GoldScript
from pipeline.environments.play import make_trajectory
from pipeline.environments.toolkit import ToolEnvironment, ToolSession
from pipeline.environments.tools import Media, ToolError, ToolResponse, tool
from pipeline.errors import ConfigError, JudgeError
from tests.pipeline.environments.conftest import Run


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class SilentValueError(ValueError):
    __str__ = Silent.__str__


class SilentToolError(ToolError):
    __str__ = Silent.__str__


def circle() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


RETURNED: dict[str, Any] = {
    "nan": lambda: float("nan"),
    "a generator": lambda: (number for number in range(3)),
    "a set": lambda: {1},
    "a circle": circle,
    "an object": object,
    "a missing path": lambda: Path("/nowhere/at/all"),
    "media of no type": lambda: Media(b"x", "no type"),
    "a response of no text": lambda: ToolResponse(5),  # type: ignore[arg-type]
    "a reward that is nan": lambda: ToolResponse("a", reward=float("nan")),
    "a reward that is text": lambda: ToolResponse("a", reward="much"),  # type: ignore[arg-type]
    "an infinite metric": lambda: ToolResponse("a", metrics={"m": float("inf")}),
    "a metric that is text": lambda: ToolResponse("a", metrics={"m": "z"}),  # type: ignore[dict-item]
}
RAISED: dict[str, tuple[BaseException, ToolStatus]] = {
    "without a text": (Silent(), ToolStatus.INFRA_ERROR),
    "an ordinary one without a text": (SilentValueError(), ToolStatus.TOOL_ERROR),
    "for the agent without a text": (SilentToolError(), ToolStatus.TOOL_ERROR),
    "sys.exit": (SystemExit(3), ToolStatus.INFRA_ERROR),
    "a cancellation of its own": (asyncio.CancelledError(), ToolStatus.INFRA_ERROR),
    "out of memory": (MemoryError(), ToolStatus.INFRA_ERROR),
    "the end of an iterator": (StopIteration(), ToolStatus.INFRA_ERROR),
    "a timeout of its own": (TimeoutError(), ToolStatus.INFRA_ERROR),
}


def raise_silently() -> dict[str, float]:
    raise Silent


VERDICTS: dict[str, Any] = {
    "fair": lambda: {"success": 0.0},
    "nan": lambda: {"success": float("nan")},
    "an infinite part": lambda: {"success": 1.0, "part": float("inf")},
    "text": lambda: {"success": "yes"},
    "nothing": lambda: None,
    "without a text": raise_silently,
    "no artefact": lambda: {"success": 1.0},
}


class WildSession(ToolSession):
    @tool
    def give(self, what: str) -> Any:
        """Return something."""
        return RETURNED[what]()

    @tool
    async def fail(self, how: str) -> str:
        """Raise something."""
        raise RAISED[how][0]

    @tool
    async def wait(self) -> str:
        """Never answer."""
        await asyncio.Event().wait()
        return "never"

    @tool
    def keep(self, what: str) -> str:
        """Keep something in the state."""
        self.state["kept"] = {"lock": threading.Lock(), "file": sys.stdout, "frame": sys._getframe()}[what]
        return "kept"

    @tool
    def picture(self, size: int) -> bytes:
        """A file."""
        return b"\x89PNG\r\n\x1a\n"[:size] + bytes(max(0, size - 8))

    def judge(self, trajectory: Trajectory) -> dict[str, float]:
        return VERDICTS[self.task.private_value().get("verdict", "fair")]()

    def artefact(self) -> Any:
        return object() if self.task.private_value().get("verdict") == "no artefact" else None


class Wild(ToolEnvironment):
    name, splits, session = "wild", ("train",), WildSession

    def tasks(self, split: str) -> Iterator[Task]:
        yield Task(
            environment=self.name, split=split, template="t", prompt=(user("Go."),), state="{}", verifier="w"
        )

    def gold(self, task: Task) -> GoldScript:
        raise NotImplementedError


async def called(name: str, media: Path | None = None, **arguments: Any) -> tuple[ToolStatus, str]:
    world = Wild()
    world.media = MediaStore(media) if media else None
    async with await world.open(next(world.tasks("train"))) as session:
        result = await session.call(name, arguments, "c")
        return result.status, result.text


@pytest.mark.parametrize("what", RETURNED)
def test_what_no_record_can_hold_is_a_broken_tool(run: Run, tmp_path: Path, what: str) -> None:
    status, text = run(called("give", tmp_path, what=what))
    assert status is ToolStatus.INFRA_ERROR and text.startswith("tool give is broken: ")


@pytest.mark.parametrize("how", RAISED)
def test_whatever_a_tool_raises_is_a_result(run: Run, how: str) -> None:
    status, text = run(called("fail", how=how))
    assert status is RAISED[how][1] and text


def test_a_real_cancellation_still_ends_the_call(run: Run) -> None:
    async def play() -> None:
        call = asyncio.create_task(called("wait"))
        await asyncio.sleep(0)
        call.cancel()
        await call

    with pytest.raises(asyncio.CancelledError):
        run(play())


def test_no_bytes_are_a_medium_and_too_many_are_said(run: Run, tmp_path: Path) -> None:
    assert run(called("picture", tmp_path, size=0))[0] is ToolStatus.OK
    assert run(called("picture", tmp_path, size=MAX_BYTES))[0] is ToolStatus.OK
    status, text = run(called("picture", tmp_path, size=MAX_BYTES + 1))
    assert status is ToolStatus.TOOL_ERROR and "above the limit" in text
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("what", ["lock", "file", "frame"])
def test_a_snapshot_names_what_it_cannot_keep(run: Run, what: str) -> None:
    async def play() -> None:
        world = Wild()
        async with await world.open(next(world.tasks("train"))) as session:
            await session.call("keep", {"what": what}, "c")
            session.snapshot()

    with pytest.raises(ConfigError, match="the state of wild holds what no snapshot can keep"):
        run(play())


def test_a_lone_surrogate_in_an_argument_is_the_agents(run: Run) -> None:
    status, text = run(called("give", what="\ud800"))
    assert status is ToolStatus.TOOL_ERROR and text.startswith("Invalid JSON")


@pytest.mark.parametrize("verdict", [name for name in VERDICTS if name != "fair"])
def test_a_verdict_that_is_none_is_a_failed_judge(run: Run, verdict: str) -> None:
    async def play() -> None:
        world = Wild()
        task = next(world.tasks("train")).model_copy(
            update={"private": canonical.dumps({"verdict": verdict})}
        )
        async with await world.open(task) as session:
            await session.verify(make_trajectory(world, task, list(task.prompt), seed=0))

    with pytest.raises(JudgeError, match="verifier w failed"):
        run(play())
