"""A Taskset of Prime Intellect's `verifiers` (0.4, `verifiers.v1`) as an environment of ours.

    verifiers: {taskset: gsm8k, config: {split: train}}
    verifiers: {taskset: "my_project.tasks:LampTaskset", public: [lit]}

`taskset` is an installed taskset's id or a dotted path, `config` what its config class takes. verifiers pins
mcp 2.0.0, so it lives in .venv-verifiers (`make verifiers-setup`; install your tasksets there, too), and
every episode is a process there: see `verifiers_worker`. Tools, their names and their state per rollout are
as verifiers' own harnesses show them; rewards and metrics are the components, the total is its weighted sum.
What a hook raises is a JudgeError, never 0.

verifiers has no splits: `splits: {train: {idx: "0:900"}, heldout: {config: {split: test}}}` says which tasks
and which config each one has. A task's own fields are private, since they hold the answer, but for those that
`public` names: `env check` says which these must be. Gold is what the task's method `gold()` or its field
`gold` lists ({name, arguments} or {say}), and where the task class has a `validate`, it must agree.

Not covered: see `verifiers_worker`; images; the rollout's timeouts and token limits (ours hold).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from data import canonical
from data.messages import Role, ToolResult, ToolSpec, ToolStatus, Turn, system, text_parts
from data.tasks import Task
from data.trajectories import Reward, RewardComponent, Termination, Trajectory
from pipeline.environments.adapters.rows import gold_of, turns_of
from pipeline.environments.adapters.verifiers_process import EpisodeProcess, RefusedError, VerifiersProcess
from pipeline.environments.gold import PlannedGold
from pipeline.environments.replayed import ReplayedSession
from pipeline.environments.tools import ToolLimits, tool_limits, truncate
from pipeline.errors import ConfigError, EnvironmentFailure, JudgeError

_SETUP_SECONDS = 120.0
_STOPS = {
    Termination.TURN_BUDGET: "max_turns",
    Termination.TOKEN_BUDGET: "max_total_tokens",
    Termination.CONTEXT_OVERFLOW: "max_input_tokens",
}
"""verifiers' words for an episode that was cut; any other is "agent_completed"."""


class VerifiersSession(ReplayedSession):
    """One episode in a process of its own."""

    def __init__(self, task: Task, *, seed: int, environment: VerifiersEnvironment) -> None:
        super().__init__(task, seed=seed)
        self._environment = environment
        self._process: EpisodeProcess | None = None
        self.tools: tuple[ToolSpec, ...] = ()

    async def start(self) -> None:
        """Set the task and its tool servers up. Raises EnvironmentFailure, ConfigError."""
        self._process = await self._environment.process.episode()
        try:
            async with asyncio.timeout(_SETUP_SECONDS):
                opened = await self._process.ask("open", **_identity(self.task))
        except (RefusedError, TimeoutError) as error:
            await self._release()
            raise EnvironmentFailure(
                f"task {self.task.task_id} could not be set up: {str(error) or 'it took too long'}"
            ) from error
        except BaseException:
            await self._release()
            raise
        self.tools = tuple(
            ToolSpec(
                name=tool["name"],
                description=tool["description"],
                parameters=canonical.dumps(tool["parameters"]),
            )
            for tool in opened["tools"]
        )

    async def verify(self, trajectory: Trajectory) -> Reward:
        """The taskset's rewards and metrics. Raises JudgeError."""
        self._refuse_if_poisoned()
        sampled_from = len(self.task.prompt)
        summaries = trajectory.summaries
        messages = [_message(turn) for index, turn in enumerate(trajectory.turns) if index not in summaries]
        stop = _STOPS.get(trajectory.termination, "agent_completed")
        try:
            await self._catch_up()
            scored = await self._asked("score", messages=messages, sampled_from=sampled_from, stop=stop)
            total = float(scored["total"])
            components = [RewardComponent(name="success", value=total)]
            for kind in ("reward", "metric"):
                components += [
                    RewardComponent(name=f"{kind}/{name}", value=float(value))
                    for name, value in scored[f"{kind}s"].items()
                ]
        except (RefusedError, EnvironmentFailure, ValueError) as error:
            raise JudgeError(f"scoring of task {self.task.task_id} failed: {error}") from error
        return Reward(
            total=total,
            components=tuple(components),
            verifier=self.task.verifier,
            artefact_digest=canonical.digest([[name, arguments] for _, name, arguments in self._history]),
        )

    async def _answered(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        limits = self._environment.limits
        try:
            async with asyncio.timeout(limits.timeout_seconds):
                answer = await self._asked("call", name=name, arguments=arguments)
        except TimeoutError as error:
            raise EnvironmentFailure(f"{name} did not answer in {limits.timeout_seconds:g} s") from error
        except RefusedError as error:
            raise EnvironmentFailure(str(error)) from error
        parts, cut = truncate(text_parts(answer["text"]), limits)
        status = ToolStatus(answer["status"])
        return ToolResult(call_id=call_id, name=name, parts=parts, status=status, truncated=cut)

    async def _asked(self, do: str, **request: Any) -> Any:
        if self._process is None:
            raise EnvironmentFailure(f"session of task {self.task.task_id} is not open")
        return await self._process.ask(do, **request)

    async def _release(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.close()


class VerifiersEnvironment:
    """See the module docstring."""

    name = "verifiers"

    def __init__(
        self,
        *,
        taskset: str,
        config: Mapping[str, Any] | None = None,
        splits: Mapping[str, Mapping[str, Any]] | None = None,
        public: Sequence[str] = (),
        limits: ToolLimits | Mapping[str, Any] | None = None,
    ) -> None:
        self._splits = {name: _split(name, about) for name, about in (splits or {"train": {}}).items()}
        self.splits = tuple(self._splits)
        self.public, self.limits = tuple(public), tool_limits(limits)
        self.process = VerifiersProcess(taskset, config or {})
        self._validates = bool(self.process.about["validates"])
        self.version = canonical.digest(
            self.process.about, taskset, config or {}, self._splits, self.public, repr(self.limits), length=12
        )

    def tasks(self, split: str) -> Iterator[Task]:
        """The tasks of the split, in the taskset's order. ConfigError where one is not covered."""
        if split not in self.splits:
            raise ConfigError(
                f"environment verifiers has no split {split!r}; it has {', '.join(self.splits)}"
            )
        request = {"do": "tasks"} | self._splits[split]
        with closing(self.process.ask(request)) as rows:  # type: ignore[type-var]
            try:
                for row in rows:
                    yield self._task(split, row)
            except RefusedError as error:
                raise ConfigError(f"tasks of {self.process.about['taskset']}: {error}") from error

    async def open(self, task: Task, *, seed: int = 0) -> VerifiersSession:
        """An episode of the task."""
        session = VerifiersSession(task, seed=seed, environment=self)
        await session.start()
        return session

    def gold(self, task: Task) -> PlannedGold:
        """The task's gold. ConfigError where it has none, or where its own `validate` says False."""
        if self._validates:
            try:
                valid = next(self.process.ask({"do": "validate"} | _identity(task)), None)
            except RefusedError as error:
                raise ConfigError(f"validate() of task {task.task_id} failed: {error}") from error
            if valid is False:
                raise ConfigError(f"validate() of task {task.task_id} says that its ground truth is wrong")
        if task.private_value()["gold"] is None:
            raise ConfigError(
                f"task {task.task_id} has no gold; give its class a method `gold()` or its data a field "
                "`gold`: [{name, arguments}, ...]"
            )
        return gold_of(task)

    def _task(self, split: str, row: dict[str, Any]) -> Task:
        shown, own = row["shown"], row["own"]
        unknown = [name for name in self.public if name not in own]
        if unknown:
            raise ConfigError(f"option public names {unknown}; the tasks' own fields are {sorted(own)}")
        known = {name: own[name] for name in self.public}
        hidden = {name: value for name, value in own.items() if name not in known}
        before = [system(shown["system_prompt"])] if shown.get("system_prompt") else []
        config = self._splits[split]["config"]
        return Task(
            environment=self.name,
            split=split,
            template=str(self.process.about["taskset"]),
            tags=(str(self.process.about["taskset"]),),
            prompt=(*before, *turns_of(shown["prompt"])),
            state=canonical.dumps({"data": shown | known, "config": config}),
            private=canonical.dumps({"data": hidden, "gold": row["gold"]}),
            verifier="verifiers/score/1",
        )


def load(**options: Any) -> VerifiersEnvironment:
    """The environment; options are those of VerifiersEnvironment."""
    return VerifiersEnvironment(**options)


def _split(name: str, about: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(about) - {"idx", "config"})
    if unknown:
        raise ConfigError(f'split {name!r} has {unknown}; it may have idx ("0:900") and config')
    return {"idx": str(about.get("idx", "")), "config": dict(about.get("config", {}))}


def _identity(task: Task) -> dict[str, Any]:
    """What the worker makes the task of."""
    state = task.state_value()
    return {"config": state["config"], "data": state["data"] | task.private_value()["data"]}


def _message(turn: Turn) -> dict[str, Any]:
    """A turn in the form of a chat completion's message."""
    if turn.role is Role.TOOL and turn.result is not None:
        about = {"tool_call_id": turn.result.call_id, "name": turn.result.name}
        return {"role": "tool", "content": turn.result.text} | about
    if turn.role is not Role.ASSISTANT:
        return {"role": str(turn.role), "content": turn.text}
    calls = [{"id": made.call_id, "name": made.name, "arguments": made.arguments} for made in turn.tool_calls]
    said = {"role": "assistant", "content": turn.text or None}
    return said | {"reasoning_content": turn.reasoning or None, "tool_calls": calls or None}
