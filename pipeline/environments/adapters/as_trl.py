"""Our environment as TRL's GRPOTrainer takes one: an environment class, dataset rows, a reward function.

    made = as_trl(load_environment("travel_desk"), split="train", tasks=200)
    GRPOTrainer(model, reward_funcs=made.reward, environment_factory=made.factory,
                train_dataset=Dataset.from_list(made.rows), args=config)

The reward comes from `reward_funcs`, not from `get_reward`: only there does TRL show the final answer, which
many verifiers judge. An infrastructure failure is rewarded None, which TRL leaves out of its mean, and the
run's warning says so. What TRL cannot take is documented, not imitated: every prompt shows the tools of all
chosen tasks (a call of a tool that is not the task's own is answered by an error), enums and bounds are lost
from schemas, later user turns are not asked for, and two calls of one turn run one after another. For all of
that, train with our own rollouts (`rl.grpo`).
"""

from __future__ import annotations

import asyncio
import inspect
import keyword
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from data import canonical
from data.messages import Role, ToolCall, ToolSpec, ToolStatus, Turn, assistant
from data.messages import tool as tool_turn
from data.tasks import Task
from pipeline.environments.adapters.rows import first_tasks
from pipeline.environments.base import Environment, Session
from pipeline.environments.play import make_trajectory
from pipeline.errors import ConfigError, TrajsmithError

T = TypeVar("T")

_TYPES = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}


@dataclass(frozen=True, slots=True)
class TrlEnvironment:
    """What GRPOTrainer is given."""

    factory: type[Any]
    """`environment_factory`: one instance per rollout, reset by TRL with a row."""
    rows: list[dict[str, Any]]
    """Dataset rows: `prompt` (messages) and `task_id`."""
    reward: Callable[..., list[float | None]]
    """A reward function: the verifier's total, None for an infrastructure failure."""


def as_trl(environment: Environment, *, split: str, tasks: int, seed: int = 0) -> TrlEnvironment:
    """The first `tasks` tasks of `split`. ConfigError where a tool's name cannot be a method's."""
    chosen = {task.task_id: task for task in first_tasks(environment, split, tasks)}
    loop = _Loop()
    tools: dict[str, ToolSpec] = {}
    for task in chosen.values():
        tools |= {spec.name: spec for spec in loop.run(_tools(environment, task))}
    methods = {name: _method(spec) for name, spec in tools.items()}
    shared = {"environment": environment, "tasks": chosen, "seed": seed, "loop": loop}
    factory = type(f"{environment.name.title().replace('_', '')}ForTrl", (_Rollout,), shared | methods)
    rows = [{"prompt": _messages(task), "task_id": task.task_id} for task in chosen.values()]
    return TrlEnvironment(factory, rows, reward)


def reward(*, completions: Sequence[Any], environments: Sequence[_Rollout], **_: Any) -> list[float | None]:
    """The verdict on each rollout, given what TRL recorded of its end."""
    return [rollout.judged(completion) for rollout, completion in zip(environments, completions, strict=True)]


class _Rollout:
    """One episode as TRL drives it: `reset`, then tools by name. Subclasses carry the tools."""

    environment: Environment
    tasks: dict[str, Task]
    seed: int
    loop: _Loop

    def __init__(self) -> None:
        self._session: Session | None = None
        self._turns: list[Turn] = []
        self._broken = ""

    def reset(self, *, task_id: str, **_: Any) -> None:
        """Close the last episode and open the row's task. Adds nothing to the prompt."""
        self._close()
        self._task, self._broken = self.tasks[task_id], ""
        self._turns = list(self._task.prompt)
        try:
            self._session = self.loop.run(self.environment.open(self._task, seed=self.seed))
        except TrajsmithError as error:
            self._broken = str(error)

    def judged(self, completion: Any) -> float | None:
        """The verifier's total for the episode and its final answer; None where infrastructure failed."""
        if self._session is None or self._broken:
            return None
        last = completion[-1] if isinstance(completion, list) and completion else {}
        said = last.get("content", "") if isinstance(last, dict) else str(completion)
        if self._turns[-1].role is not Role.ASSISTANT and isinstance(said, str):
            self._turns.append(assistant(said))
        record = make_trajectory(self.environment, self._task, self._turns, seed=self.seed)
        try:
            return self.loop.run(self._session.verify(record)).total
        except TrajsmithError:
            return None
        finally:
            self._close()

    def _call(self, name: str, arguments: dict[str, Any]) -> str:
        if self._session is None or self._broken:
            return f"error: the environment is broken: {self._broken}"
        call_id = f"call_{len(self._turns)}"
        made = ToolCall(call_id=call_id, name=name, arguments=canonical.dumps(arguments))
        result = self.loop.run(self._session.call(name, arguments, call_id))
        if result.status is ToolStatus.INFRA_ERROR:
            self._broken = result.text
        self._turns += [assistant("", made), tool_turn(result)]
        return result.text

    def _close(self) -> None:
        if self._session is not None:
            self.loop.run(self._session.close())
            self._session = None


class _Loop:
    """One event loop in a thread of its own: sessions live on it while TRL calls from anywhere."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="trajsmith-trl", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, waited for in the calling thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _method(spec: ToolSpec) -> Callable[..., str]:
    """A method whose signature and docstring make TRL derive the tool's schema."""
    if not spec.name.isidentifier() or spec.name in ("reset", "judged") or spec.name.startswith("_"):
        raise ConfigError(f"TRL takes tools as methods, and {spec.name!r} cannot be one; rename the tool")
    schema = canonical.loads(spec.parameters)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    wrong = [name for name in properties if not name.isidentifier() or keyword.iskeyword(name)]
    if wrong:
        raise ConfigError(
            f"TRL takes Python parameters, and {wrong} of tool {spec.name} cannot be; rename them"
        )

    def method(self: _Rollout, **arguments: Any) -> str:
        return self._call(spec.name, {key: value for key, value in arguments.items() if value is not None})

    given = [_parameter(name, part, optional=name not in required) for name, part in properties.items()]
    given.sort(key=lambda one: one.default is not inspect.Parameter.empty)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__name__ = method.__qualname__ = spec.name
    method.__signature__ = inspect.Signature([own, *given], return_annotation=str)  # type: ignore[attr-defined]
    method.__annotations__ = {one.name: one.annotation for one in given} | {"return": str}
    told = [f"    {name}: {part.get('description') or name}" for name, part in properties.items()]
    method.__doc__ = "\n".join([spec.description or spec.name, "", *(["Args:", *told] if told else [])])
    return method


def _parameter(name: str, schema: dict[str, Any], *, optional: bool) -> inspect.Parameter:
    kind = _TYPES.get(schema.get("type", ""), str)
    default = schema.get("default") if optional else inspect.Parameter.empty
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind)


async def _tools(environment: Environment, task: Task) -> tuple[ToolSpec, ...]:
    session = await environment.open(task)
    try:
        return session.tools
    finally:
        await session.close()


def _messages(task: Task) -> list[dict[str, str]]:
    return [{"role": str(turn.role), "content": turn.text} for turn in task.prompt]
