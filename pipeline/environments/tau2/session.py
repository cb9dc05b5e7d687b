"""One episode of tau2: a world of its own, a log of both sides' calls for the verifier, perhaps a customer.

What a call raises is an observation (`tool_error`), as in the benchmark. The user's calls are in the log, not
in the turns: the agent never sees them. Not covered: what benchmarks' sessions share (`benchmark`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from data import canonical
from data.messages import Role, ToolResult, ToolSpec, Turn, user
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.chat.base import Chat
from pipeline.checks.calls import argument_problems
from pipeline.environments.benchmark import BenchmarkSession
from pipeline.environments.tau2.users import Customer, last_said
from pipeline.environments.tau2.verify import PlayedCall, judge
from pipeline.environments.tau2.worlds import Answer, World, shown_tools
from pipeline.environments.tools import ToolLimits


class Tau2Session(BenchmarkSession):
    """See `pipeline.environments.base.Session`."""

    def __init__(
        self, task: Task, *, chat: Chat | None, limits: ToolLimits, on_close: Callable[[], None]
    ) -> None:
        super().__init__(task, on_close=on_close, limits=limits)
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
        self._calls: list[PlayedCall] = []

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The agent's tools, the same all episode."""
        return self._tools

    async def _execute(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        kept = canonical.loads(canonical.dumps(arguments))
        answer = self._refusal(name, arguments) or self._world.call(name, arguments)
        if answer.executed:
            self._calls.append(PlayedCall("assistant", name, kept, answer.text))
        return self._said(call_id, name, answer.text, failed=answer.failed)

    async def next_user(self, turns: Sequence[Turn]) -> Turn | None:
        """The customer's next message, None where it ended the dialogue or none plays. Asked once each."""
        if self._customer is None:
            return None
        said = sum(turn.role is Role.USER for turn in turns) - 1
        if said >= len(self._replies):
            self._replies.append(await self._customer.answer(last_said(turns), self._world, self._calls))
        reply = self._replies[said]
        return None if reply is None else user(reply)

    def end_state(self) -> Any:
        """The benchmark's digests of both sides' databases."""
        environment = self._world.environment
        return [environment.get_db_hash(), environment.get_user_db_hash()]

    def _kept(self) -> Any:
        """The world, the log and the customer's side of the dialogue."""
        heard = self._customer.heard if self._customer else []
        return self._world.dump(), self._calls, self._replies, heard

    def _put_back(self, kept: Any) -> None:
        world, self._calls, self._replies, heard = kept
        self._world.load(world)
        if self._customer:
            self._customer.heard = heard

    def _components(self, trajectory: Trajectory) -> Mapping[str, float]:
        """See `verify.judge`."""
        return judge(self.task, self._calls, self._played(trajectory))

    def _artefact(self, trajectory: Trajectory) -> Any:
        return [asdict(call) for call in self._calls]

    def _refusal(self, name: str, arguments: dict[str, Any]) -> Answer | None:
        """A call that breaks its schema never reaches the world: what it stored there could not be judged."""
        schema = self._schemas.get(name)
        if schema is None:
            return Answer(f"Error: there is no tool {name!r}", failed=True, executed=False)
        problems = argument_problems(arguments, schema)
        return Answer(f"Error: {'; '.join(problems)}", failed=True, executed=False) if problems else None
