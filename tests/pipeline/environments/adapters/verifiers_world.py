"""A taskset of verifiers as its users write them; imported by the interpreter of .venv-verifiers only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from pydantic import Field


class LampState(vf.State):
    lit: list[str] = Field(default_factory=list)
    switched: int = 0


class LampData(vf.TaskData):
    lit: list[str] = Field(default_factory=list)
    target: str = ""


class LampToolsConfig(vf.ToolsetConfig):
    colours: tuple[str, ...] = ("red", "green", "blue")


class LampTools(vf.Toolset[LampToolsConfig, LampState]):
    """Lamps of one rollout: `self.calls` lives in the server, `self.state` is shared with the task."""

    TOOL_PREFIX = "lamps"

    async def setup_task(self, task: LampData) -> None:
        self.calls: list[str] = []
        self.first = list(task.lit)

    @vf.tool
    async def switch(self, lamp: str, on: bool = True) -> str:
        """Switch a lamp on, or off."""
        if lamp == "all":
            raise OSError("no current")
        if lamp not in self.config.colours:
            raise ValueError(f"there is no {lamp} lamp")
        if not self.state.switched:
            self.state.lit = list(self.first)
        kept = {one for one in self.state.lit if one != lamp}
        self.state.lit = sorted(kept | {lamp} if on else kept)
        self.state.switched += 1
        self.calls.append(lamp)
        return f"lit: {', '.join(self.state.lit) or 'none'}; calls: {len(self.calls)}"


class LampConfig(vf.TaskConfig):
    tools: LampToolsConfig = LampToolsConfig()


class LampTask(vf.Task[LampData, LampState, LampConfig]):
    @classmethod
    def toolsets(cls, config: LampConfig) -> list[vf.Toolset]:
        return [LampTools(config.tools)]

    def gold(self) -> list[dict[str, Any]]:
        off = [{"name": "lamps_switch", "arguments": {"lamp": lamp, "on": False}} for lamp in self.data.lit]
        return [*off, {"name": "lamps_switch", "arguments": {"lamp": self.data.target}}]

    async def validate(self, runtime: vf.Runtime) -> bool:
        return self.data.target in self.config.tools.colours

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        trace.info["ended"] = trace.last_reply

    @vf.reward(weight=0.75)
    async def lit(self, trace: vf.Trace) -> float:
        if self.data.name == "broken":
            raise OSError("no disk")
        return float(trace.state.lit == [self.data.target])

    @vf.reward(weight=0.25)
    async def said(self, trace: vf.Trace) -> float:
        right = trace.state.lit == [self.data.target]
        return float(right and trace.info["ended"] == "Done." and trace.num_turns > 1)

    @vf.metric
    async def calls(self, trace: vf.Trace) -> float:
        return float(len(trace.tool_messages))


class LampTasksetConfig(vf.TasksetConfig):
    hard: bool = False
    name_of_all: str | None = None
    task: LampConfig = LampConfig()


class LampTaskset(vf.Taskset[LampTask, LampTasksetConfig]):
    def load(self) -> Iterator[LampTask]:
        cases = [("green", []), ("red", ["blue"]), ("blue", ["green"]), ("red", []), ("green", ["blue"])]
        more = ["red"] if self.config.hard else []
        for target, lit in cases:
            prompt = f"Only the {target} lamp is to be lit."
            data = LampData(
                prompt=prompt,
                system_prompt="You switch lamps.",
                name=self.config.name_of_all,
                lit=sorted({*lit, *more}),
                target=target,
            )
            yield LampTask(data, self.config.task)


class BoxedTask(LampTask):
    NEEDS_CONTAINER = True

    @vf.stop
    async def enough(self, trace: vf.Trace) -> bool:
        return trace.num_turns > 3


class BoxedTaskset(vf.Taskset[BoxedTask, LampTasksetConfig]):
    def load(self) -> Iterator[BoxedTask]:
        return iter(())


class TalkativeTaskset(vf.Taskset[LampTask, LampTasksetConfig]):
    """Its user opens the conversation."""

    def load(self) -> Iterator[LampTask]:
        yield LampTask(LampData(), self.config.task)
