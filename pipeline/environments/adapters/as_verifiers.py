"""Our environment as a `verifiers` Taskset (0.4, `verifiers.v1`): for vf-eval, prime-rl and their harnesses.

    # travel_desk_vf.py, the module whose name is the taskset's id there
    from pipeline.environments.adapters.as_verifiers import TrajsmithTaskset
    from verifiers.v1.harnesses.null import NullHarness
    __all__ = ["NullHarness", "TrajsmithTaskset"]

    vf-eval travel-desk-vf --env.taskset.environment travel_desk --env.taskset.split dev \\
        --env.agent.runtime.type subprocess --client.base-url URL --model NAME --no-push

Without `--env.agent.runtime.type subprocess` and `--no-push`, vf-eval rents a sandbox and uploads the run.
This module needs `verifiers` and is imported in its environment only (.venv-verifiers, or prime-rl's with
trajsmith's base install). A task's row there names the task and shows its prompt; private parts stay here.
The session lives in the rollout's tool server, which writes every result into the rollout's state; after the
end the calls are made again in a fresh session, which must answer the same, and our `verify` judges the
dialogue. Infrastructure failures raise, so that the rollout has an error and no reward; a cut one scores what
its budget says. Exporting NullHarness makes it the default; otherwise that is `bash`, a shell on the machine.

Not covered: environments that ask later user turns (raises when one was due), live tools, images, our budgets
(set `--env.agent.max-turns`), a retried request of a harness's client (it is executed again).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from data import canonical
from data.messages import (
    ParseStatus,
    Role,
    ToolCall,
    ToolResult,
    ToolStatus,
    Turn,
    assistant,
    text_parts,
    user,
)
from data.messages import tool as tool_turn
from data.tasks import Task
from pipeline.environments.adapters.rows import first_tasks
from pipeline.environments.base import Environment, Session
from pipeline.environments.play import make_trajectory
from pipeline.environments.registry import load_environment
from pipeline.errors import ConfigError, EnvironmentFailure, MissingExtraError

try:
    import verifiers.v1 as vf
    from mcp.types import CallToolResult, TextContent
    from mcp.types import Tool as McpTool
except ImportError as error:
    raise MissingExtraError(
        f"this module is for an environment that has verifiers ({error}); run `make verifiers-setup` and use "
        "the programs of .venv-verifiers, such as .venv-verifiers/bin/vf-eval"
    ) from error


class TrajsmithData(vf.TaskData):
    """Which of our tasks it is."""

    task_id: str
    environment: str
    options: str
    """The environment's options, JSON text."""
    split: str
    seed: int


class TrajsmithState(vf.State):
    """What the tool server leaves for the verdict."""

    calls: list[str] = []  # noqa: RUF012 - pydantic copies defaults
    """Executed calls in order, each the JSON text of {name, arguments, result}."""
    over: str = ""
    """Why the agent is not asked again: "" while it is, "finished", or the failure."""


class TrajsmithToolset(vf.Toolset[vf.ToolsetConfig, TrajsmithState]):
    """One of our sessions behind a rollout's tool server."""

    TOOL_PREFIX = None

    async def setup_task(self, task: TrajsmithData) -> None:
        """Open the session of the rollout's task."""
        environment, found = find_task(task)
        self._session: Session = await environment.open(found, seed=task.seed)
        if getattr(self._session, "live_tools", ()):
            raise ConfigError(f"{task.environment} has live tools, which cannot be called again to judge")
        self._exit_stack.push_async_callback(self._session.close)
        self._calls: list[str] = []
        self._order = asyncio.Lock()

    def register(self, mcp: Any) -> None:
        """The session's own schemas instead of ones read from functions."""
        server = cast(Any, mcp)
        server.list_tools, server.call_tool = self._list, self._call

    async def _list(self) -> list[McpTool]:
        return [
            McpTool(
                name=spec.name,
                description=spec.description,
                input_schema=canonical.loads(spec.parameters),
            )
            for spec in self._session.tools
        ]

    async def _call(self, name: str, arguments: dict[str, Any], context: Any = None) -> CallToolResult:
        async with self._order:  # parallel calls: one after the other, each with the state as it then is
            return cast(CallToolResult, await self._with_state(self._run)(name, arguments))

    async def _run(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        result = await self._session.call(name, arguments, f"call_{len(self._calls)}")
        kept = {"name": name, "arguments": arguments, "result": result.model_dump(mode="json")}
        self._calls.append(canonical.dumps(kept))
        self.state.calls = list(self._calls)
        if result.status is ToolStatus.INFRA_ERROR:
            self.state.over = result.text
        elif getattr(self._session, "finished", False):
            self.state.over = "finished"
        said = TextContent(type="text", text=result.text)
        return CallToolResult(content=[said], is_error=result.status is not ToolStatus.OK)


class TrajsmithTask(vf.Task[TrajsmithData, TrajsmithState, vf.TaskConfig]):
    """The verdict of our verifier."""

    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        """The one tool server."""
        return [TrajsmithToolset(vf.ToolsetConfig())]

    @vf.stop
    async def over(self, trace: vf.Trace) -> bool:
        """A tool ended the episode, or the world is broken."""
        return bool(trace.state.over)

    @vf.reward
    async def verified(self, trace: vf.Trace) -> float:
        """The verifier's total; its components become metrics. Raises what may not be a reward."""
        if trace.state.over not in ("", "finished"):
            raise EnvironmentFailure(trace.state.over)
        if trace.is_timeout:
            raise EnvironmentFailure(f"{trace.stop_condition}: what was slow may be a server, so it is no 0")
        environment, task = find_task(self.data)
        if trace.is_truncated:
            return task.budget.exhausted_reward
        made = [canonical.loads(text) for text in trace.state.calls]
        nodes = trace.branches[-1].nodes if trace.branches else []
        said = [node.message for node in itertools.dropwhile(lambda node: not node.sampled, nodes)]
        turns = [*task.prompt, *turns_of_messages(said, made)]
        session = await environment.open(task, seed=self.data.seed)
        try:
            await repeat(session, made)
            if not trace.state.over and await session.next_user(turns) is not None:
                raise ConfigError(
                    f"task {task.task_id} goes on with a user's turn, which verifiers asks nobody for"
                )
            record = make_trajectory(environment, task, turns, seed=self.data.seed)
            reward = await session.verify(record)
        finally:
            await session.close()
        trace.record_metrics({part.name: part.value for part in reward.components})
        return reward.total


class TrajsmithConfig(vf.TasksetConfig):
    """Which environment, and how many of its tasks."""

    environment: str = "travel_desk"
    """A name, or package.module:factory."""
    options: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies defaults
    """What the environment is made with."""
    split: str = "train"
    tasks: int | None = None
    """The first so many tasks; None = all of the split."""
    seed: int = 0
    """Of the sessions."""


class TrajsmithTaskset(vf.Taskset[TrajsmithTask, TrajsmithConfig]):
    """The tasks of a split."""

    def load(self) -> Iterable[TrajsmithTask]:
        """The first `tasks` of them, in the environment's order."""
        config = self.config
        environment = load_environment(config.environment, **config.options)
        tasks = environment.tasks(config.split)
        if config.tasks is not None:
            tasks = first_tasks(environment, config.split, config.tasks)
        for task in tasks:
            data = TrajsmithData(
                prompt=_text_of(task, Role.USER),
                system_prompt=_text_of(task, Role.SYSTEM) or None,
                name=task.template,
                id=task.task_id,
                task_id=task.task_id,
                environment=config.environment,
                options=canonical.dumps(config.options),
                split=config.split,
                seed=config.seed,
            )
            yield TrajsmithTask(data, config.task)


def find_task(data: TrajsmithData) -> tuple[Environment, Task]:
    """The environment and the task of a row. Raises ConfigError where the environment has it no more."""
    key = (data.environment, data.options)
    environment = _environments.get(key)
    if environment is None:
        environment = _environments[key] = load_environment(data.environment, **canonical.loads(data.options))
    seen = _tasks.setdefault((*key, data.split), {})
    if data.task_id not in seen:
        rest = _readers.setdefault((*key, data.split), environment.tasks(data.split))
        for task in rest:
            seen[task.task_id] = task
            if task.task_id == data.task_id:
                break
        else:
            raise ConfigError(
                f"{data.environment} has no task {data.task_id} in {data.split}: another version?"
            )
    return environment, seen[data.task_id]


_environments: dict[tuple[str, str], Environment] = {}
_readers: dict[tuple[str, str, str], Iterator[Task]] = {}
_tasks: dict[tuple[str, str, str], dict[str, Task]] = {}


async def repeat(session: Session, made: Sequence[dict[str, Any]]) -> None:
    """Make the recorded calls in a fresh session. Raises EnvironmentFailure where one answers differently."""
    for index, one in enumerate(made):
        result = await session.call(one["name"], one["arguments"], f"call_{index}")
        if result != ToolResult.model_validate(one["result"]):
            raise EnvironmentFailure(
                f"{one['name']} answered {result.text[:80]!r} when called again, not what the agent saw"
            )


def turns_of_messages(messages: Sequence[Any], made: Sequence[dict[str, Any]]) -> list[Turn]:
    """The dialogue after the prompt; results are the recorded ones, in each call's turn.

    A tool message without a record was written by the harness (no JSON, unknown tool): a tool_error.
    """
    left = list(made)
    called: dict[str, ToolCall] = {}
    turns = []
    for message in messages:
        if message.role == "assistant":
            calls = [_called(call) for call in message.tool_calls or ()]
            called |= {call.call_id: call for call in calls}
            turns.append(assistant(message.content or "", *calls, reasoning=message.reasoning_content or ""))
        elif message.role == "tool":
            turns.append(tool_turn(_result(called[message.tool_call_id], message, left)))
        else:
            turns.append(user(_text(message)))
    return turns


def _result(call: ToolCall, message: Any, left: list[dict[str, Any]]) -> ToolResult:
    for index, one in enumerate(left):
        if call.ok and one["name"] == call.name and one["arguments"] == call.parsed_arguments():
            found = ToolResult.model_validate(left.pop(index)["result"])
            return found.model_copy(update={"call_id": call.call_id})
    text = text_parts(_text(message))
    return ToolResult(call_id=call.call_id, name=call.name, parts=text, status=ToolStatus.TOOL_ERROR)


def _called(call: Any) -> ToolCall:
    """The call as it was made; one that is no JSON object keeps its text and says so."""
    text = call.arguments or "{}"
    try:
        if isinstance(canonical.loads(text), dict):
            return ToolCall(call_id=call.id, name=call.name, arguments=text)
        status = ParseStatus.NOT_A_CALL
    except ValueError:
        status = ParseStatus.NOT_JSON
    return ToolCall(call_id=call.id, name=call.name, arguments="", raw=text, status=status)


def _text(message: Any) -> str:
    content = message.content
    return content if isinstance(content, str) else "".join(getattr(part, "text", "") for part in content)


def _text_of(task: Task, role: Role) -> str:
    """The text of one speaker of the prompt: a system turn and a user's, each at most once."""
    spoken = [turn.role for turn in task.prompt]
    if spoken not in ([Role.USER], [Role.SYSTEM, Role.USER]):
        raise ConfigError(
            f"the prompt of {task.task_id} is {spoken}; taken here: a system turn, then a user's"
        )
    return "".join(turn.text for turn in task.prompt if turn.role is role)


if __name__ == "__main__":
    TrajsmithToolset.run()
