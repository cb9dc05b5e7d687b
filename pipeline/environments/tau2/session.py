"""One episode of tau2: a world of its own, a log of both sides' calls for the verifier, perhaps a customer.

Implements the Session contract directly, because tools come from the benchmark. Calls are synchronous
in-memory work. What a call raises is an observation (`tool_error`), as in the benchmark. The user's calls are
in the log, not in the turns: the agent never sees them. Not covered: snapshots from untrusted bytes (they are
pickles).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from data import canonical
from data.messages import Role, ToolResult, ToolSpec, ToolStatus, Turn, text_parts, user
from data.tasks import Task
from data.trajectories import Reward, RewardComponent, Trajectory
from pipeline.chat.base import Chat
from pipeline.checks.calls import argument_problems
from pipeline.environments.tau2.users import Customer, last_said
from pipeline.environments.tau2.verify import PlayedCall, judge
from pipeline.environments.tau2.worlds import Answer, World, shown_tools
from pipeline.environments.tools import ToolLimits, truncate
from pipeline.errors import ConfigError, EnvironmentFailure, JudgeError


class Tau2Session:
    """See `pipeline.environments.base.Session`."""

    def __init__(
        self, task: Task, *, chat: Chat | None, limits: ToolLimits, on_close: Callable[[], None]
    ) -> None:
        self.task = task
        self._limits, self._on_close, self._closed = limits, on_close, False
        state = task.state_value()
        domain, solo = state["domain"], state["solo"]
        self._world = World(domain, state["initial"], solo=solo and domain == "telecom")
        self._tools = shown_tools(domain, "assistant", solo=solo)
        self._schemas = {spec.name: canonical.loads(spec.parameters) for spec in self._tools}
        self.user_tools: tuple[ToolSpec, ...] = () if solo else shown_tools(domain, "user")
        """The second list: what the simulated user can call."""
        self._customer: Customer | None = None
        if not solo and chat is not None:
            self._customer = Customer(chat, task.private_value()["scenario"], self.user_tools)
        self._replies: list[str | None] = []
        self._results: dict[str, ToolResult] = {}
        self._calls: list[PlayedCall] = []

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The agent's tools, the same all episode."""
        return self._tools

    async def call(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        """Execute once; a repeated `call_id` answers the stored result. Raises on a closed session."""
        if call_id in self._results:
            return self._results[call_id]
        if self._closed:
            raise EnvironmentFailure(
                f"call {call_id} ({name}) on a closed session; open a new one for the task"
            )
        kept = canonical.loads(canonical.dumps(arguments))
        answer = self._refusal(name, arguments) or self._world.call(name, arguments)
        if answer.executed:
            self._calls.append(PlayedCall("assistant", name, kept, answer.text))
        parts, cut = truncate(text_parts(answer.text), self._limits)
        status = ToolStatus.TOOL_ERROR if answer.failed else ToolStatus.OK
        result = ToolResult(call_id=call_id, name=name, parts=parts, status=status, truncated=cut)
        self._results[call_id] = result
        return result

    async def next_user(self, turns: Sequence[Turn]) -> Turn | None:
        """The customer's next message, None where it ended the dialogue or none plays. Asked once each."""
        if self._customer is None:
            return None
        said = sum(turn.role is Role.USER for turn in turns) - 1
        if said >= len(self._replies):
            self._replies.append(await self._customer.answer(last_said(turns), self._world, self._calls))
        reply = self._replies[said]
        return None if reply is None else user(reply)

    def snapshot(self) -> bytes:
        """The world, the log, the stored results and the customer's side of the dialogue, pickled."""
        heard = self._customer.heard if self._customer else []
        state = (self._world.dump(), self._results, self._calls, self._replies, heard)
        return pickle.dumps((self.task.task_id, state))

    def restore(self, snapshot: bytes) -> None:
        """Return to a snapshot of a session of the same task. Raises ConfigError for another task's."""
        task_id, state = pickle.loads(snapshot)
        if task_id != self.task.task_id:
            raise ConfigError(f"snapshot belongs to task {task_id}, this session to {self.task.task_id}")
        world, self._results, self._calls, self._replies, heard = state
        self._world.load(world)
        if self._customer:
            self._customer.heard = heard

    async def verify(self, trajectory: Trajectory) -> Reward:
        """The benchmark's verdict; see `verify.judge`. Raises JudgeError where it cannot be had."""
        try:
            components = judge(self.task, self._calls, trajectory.turns[len(self.task.prompt) :])
        except Exception as error:
            raise JudgeError(f"{self.task.verifier} failed on task {self.task.task_id}: {error!r}") from error
        return Reward(
            total=components["success"],
            components=tuple(RewardComponent(name=name, value=value) for name, value in components.items()),
            verifier=self.task.verifier,
            artefact_digest=canonical.digest([asdict(call) for call in self._calls]),
        )

    def _refusal(self, name: str, arguments: dict[str, Any]) -> Answer | None:
        """A call that breaks its schema never reaches the world: what it stored there could not be judged."""
        schema = self._schemas.get(name)
        if schema is None:
            return Answer(f"Error: there is no tool {name!r}", failed=True, executed=False)
        problems = argument_problems(arguments, schema)
        return Answer(f"Error: {'; '.join(problems)}", failed=True, executed=False) if problems else None

    async def close(self) -> None:
        """Drop the world. Idempotent."""
        if not self._closed:
            self._closed = True
            self._on_close()
