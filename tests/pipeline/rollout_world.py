"""A small world and a small engine for the tests of the rollout loop: every branch on demand."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from data import canonical
from data.messages import ToolCall as Call
from data.messages import ToolResult, ToolSpec, ToolStatus, Turn, assistant, system, text_parts, user
from data.tasks import Budget, Task
from data.trajectories import Reward, Trajectory
from pipeline.engines.base import Completion, FinishReason, Sampling
from pipeline.renderers.base import Renderer

Speech = str | Exception | Completion
Script = Callable[[list[int], Sampling], Speech]

KEY = ToolSpec(
    name="look",
    description="Look up",
    parameters=canonical.dumps(
        {
            "type": "object",
            "properties": {"key": {"type": "string"}},
            "required": ["key"],
            "additionalProperties": False,
        }
    ),
)
DOOR = ToolSpec(name="unlock", description="Unlock", parameters='{"type":"object","properties":{}}')
VAULT = ToolSpec(name="open_vault", description="Open", parameters='{"type":"object","properties":{}}')


def call_text(name: str, **arguments: Any) -> str:
    """A Hermes call as a model writes it."""
    return f"<tool_call>\n{canonical.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def make_task(text: str = "Find it.", *, private: Any = None, budget: Budget | None = None) -> Task:
    """A task of `World`."""
    return Task(
        environment="world",
        split="train",
        template="t",
        tags=("tag",),
        prompt=(system("Be brief."), user(text)),
        private=canonical.dumps(private or {}),
        verifier="world/said_done/1",
        budget=budget or Budget(max_turns=8, max_tokens=4000, max_seconds=60),
    )


@dataclass
class World:
    """An environment whose tools misbehave on request; `private["users"]` are later user turns."""

    name: str = "world"
    version: str = "1"
    splits: tuple[str, ...] = ("train",)
    broken: str = ""
    opened: int = 0
    closed: int = 0
    seeds: list[int] = field(default_factory=list)

    def tasks(self, split: str) -> Iterator[Task]:
        yield make_task()

    async def open(self, task: Task, *, seed: int = 0) -> Room:
        if self.broken == "open":
            raise OSError("no room")
        self.opened += 1
        self.seeds.append(seed)
        return Room(self, task)

    def gold(self, task: Task) -> GoldList:
        return GoldList(task)


class GoldList:
    """Plays `private["gold"]`: a list of turns, each a text or a list of (name, arguments)."""

    def __init__(self, task: Task) -> None:
        self.steps = list(task.private_value().get("gold", ["done"]))

    def next_turn(self, turns: Sequence[Turn]) -> Turn | None:
        if not self.steps:
            return None
        step = self.steps.pop(0)
        if isinstance(step, str):
            return assistant(step)
        calls = [Call(call_id="", name=name, arguments=canonical.dumps(args)) for name, args in step]
        return assistant("", *calls)


class Room:
    """A session: `look` answers, `unlock` adds a tool, the other names fail in their own way."""

    def __init__(self, world: World, task: Task) -> None:
        self.world, self.task = world, task
        self.users = list(task.private_value().get("users", []))
        self.extra: tuple[ToolSpec, ...] = ()
        self.looks: list[str] = []
        self.is_closed = False

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return (KEY, DOOR, *self.extra)

    async def call(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        if self.world.broken == "tool_hangs":
            await asyncio.sleep(3600)
        if self.world.broken == "tool_raises":
            raise ZeroDivisionError("tool bug")
        if self.world.broken == "tool_infra":
            return ToolResult(
                call_id=call_id, name=name, parts=text_parts("gone"), status=ToolStatus.INFRA_ERROR
            )
        if name == "unlock":
            self.extra = (VAULT,)
            return ToolResult(call_id=call_id, name=name, parts=text_parts("unlocked"))
        self.looks.append(arguments["key"])
        text = arguments["key"] * int(self.task.private_value().get("echo", 1))
        return ToolResult(call_id=call_id, name=name, parts=text_parts(text))

    async def next_user(self, turns: Sequence[Turn]) -> Turn | None:
        if self.world.broken == "user_hangs":
            await asyncio.sleep(3600)
        return user(self.users.pop(0)) if self.users else None

    def snapshot(self) -> bytes:
        return canonical.dumps(self.looks).encode()

    def restore(self, snapshot: bytes) -> None:
        self.looks = canonical.loads(snapshot.decode())

    async def verify(self, trajectory: Trajectory) -> Reward:
        if self.world.broken == "verify":
            raise RuntimeError("verifier bug")
        last = trajectory.turns[-1].text
        wanted = self.task.private_value().get("looks")
        right = "done" in last and (wanted is None or wanted == self.looks)
        return Reward(total=1.0 if right else 0.0, verifier=self.task.verifier)

    async def close(self) -> None:
        self.world.closed += not self.is_closed
        self.is_closed = True
        if self.world.broken == "close":
            raise OSError("cannot close")


class Speaker:
    """An engine that says what a script returns; a text is encoded with the tags and stop token it holds."""

    name = "speaker"
    weights_version = "w0"

    def __init__(
        self, renderer: Renderer, script: Script | Sequence[Speech], *, waits: Sequence[float] = ()
    ) -> None:
        self.renderer, self.waits = renderer, waits
        self.script = script if callable(script) else _in_order(script)
        self.prompts: list[list[int]] = []
        self.requests: list[Sampling] = []

    async def generate(
        self, token_ids: list[int], sampling: Sampling, *, n: int = 1, affinity: str = ""
    ) -> list[Completion]:
        self.prompts.append(list(token_ids))
        self.requests.append(sampling)
        speech = self.script(token_ids, sampling)
        for _ in range((sampling.seed or 0) % 3 if self.waits else 0):
            await asyncio.sleep(0)
        if isinstance(speech, asyncio.TimeoutError):
            await asyncio.sleep(3600)
        if isinstance(speech, Exception):
            raise speech
        if isinstance(speech, Completion):
            return [speech]
        return [spoken(self.renderer, speech, sampling)]

    async def score(self, token_ids: list[int]) -> list[float]:
        return [-1.0] * (len(token_ids) - 1)

    async def close(self) -> None:
        return None


def spoken(renderer: Renderer, text: str, sampling: Sampling) -> Completion:
    """`text` as a completion: a stop token is added, a stop string or max_tokens cuts it."""
    cuts = [text.index(stop) + len(stop) for stop in sampling.stop if stop in text]
    cut = min(cuts, default=None)
    token_ids = renderer.encode(text[:cut]) if cut else [*renderer.encode(text), renderer.stop_token_ids[0]]
    reason = FinishReason.STOP if len(token_ids) <= sampling.max_tokens else FinishReason.LENGTH
    token_ids = token_ids[: sampling.max_tokens]
    rng = random.Random(sampling.seed)
    return Completion(tuple(token_ids), tuple(-rng.random() for _ in token_ids), reason, "w0")


def _in_order(script: Sequence[Speech]) -> Script:
    left = list(script)
    return lambda token_ids, sampling: left.pop(0)
