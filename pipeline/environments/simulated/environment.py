"""Documented tools, a Chat that plays them and a task file as an Environment.

Decides: every answered call carries the metric `simulated`, and the version says so too and changes with the
chat, so that nobody takes such a trajectory for one of the real application. A task's `state` is where its
sessions begin; the check `state` looks at where they end. Not covered: tools of which some run and some are
simulated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from data import canonical
from data.messages import NamedValue, ToolResult
from data.tasks import Task
from pipeline.chat.base import Chat
from pipeline.chat.load import load_chat
from pipeline.environments.documented import DocumentedSession, sources_digest
from pipeline.environments.guarded import JsonStateSession
from pipeline.environments.host import FileHost
from pipeline.environments.responses import ToolResponse
from pipeline.environments.simulated.facts import Outcome, merge_patch
from pipeline.environments.simulated.simulator import Simulator
from pipeline.environments.simulated.tools import listed_tools, openapi_tools
from pipeline.environments.task_checks import fits, pointed
from pipeline.environments.task_file import TaskRules, read_tasks, splits_of
from pipeline.environments.tools import ToolError, ToolLimits, tool_limits
from pipeline.errors import ConfigError

VERIFIER = "simulated/task_file/2"
_MARK = NamedValue(name="simulated", value=1.0)


class SimulatedSession(JsonStateSession, DocumentedSession):
    """See `pipeline.environments.base.Session`. `state` is the application's state as JSON."""

    def __init__(
        self, task: Task, simulator: Simulator, *, idle: Callable[[], Awaitable[None]], **options: Any
    ) -> None:
        super().__init__(
            task,
            specs={name: tool.spec for name, tool in simulator.tools.items()},
            reads=frozenset(name for name, tool in simulator.tools.items() if tool.reads),
            **options,
        )
        self.state: dict[str, Any] = task.state_value()
        self._simulator, self._idle = simulator, idle
        self._played = False

    def end_state(self) -> Any:
        """The application's state."""
        return self.state

    async def _execute(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        """As for any documented tool; what the chat answered is marked."""
        self._played = False
        result = await super()._execute(name, arguments, call_id)
        return result.model_copy(update={"metrics": (*result.metrics, _MARK)}) if self._played else result

    async def _respond(self, name: str, arguments: dict[str, Any]) -> ToolResponse:
        self._played = True
        reply = await self._simulator.play(name, arguments, self.state, seed=self.seed)
        if reply.outcome is not Outcome.OK:
            raise ToolError(reply.error)
        self.state = merge_patch(self.state, reply.patch)
        text = reply.result if isinstance(reply.result, str) else canonical.dumps(reply.result)
        return ToolResponse(text="ok" if reply.result is None else text)

    async def _passes(self, check: dict[str, Any]) -> bool:
        """`state`: the value at a JSON pointer."""
        try:
            value = pointed(self.state, check["state"])
        except LookupError:
            return check.get("absent") is True
        if "absent" in check:
            return False
        return fits(check.get("equals", check.get("contains")), value, partly="contains" in check)

    def _artefact(self) -> Any:
        return self.state

    async def _release(self) -> None:
        await super()._release()
        await self._idle()


class SimulatedEnvironment(FileHost):
    """See `pipeline.environments.base.Environment`."""

    def __init__(
        self,
        *,
        chat: Chat | str | Mapping[str, Any],
        tasks: str | Path,
        tools: str | Path = "",
        document: str | Path = "",
        name: str = "simulated",
        operations: Sequence[str] = (),
        refs: Mapping[str, str] | None = None,
        guidance: str = "",
        cache: str | Path = "",
        max_asks: int = 3,
        limits: ToolLimits | Mapping[str, Any] | None = None,
    ) -> None:
        """`chat`: a Chat, `module:factory`, or the options of an OpenAIChat (url, model, api_key_env, ...).

        `tools`: a list of JSON schemas, or `document`: an OpenAPI document (with `operations`, `refs`).
        `guidance`: what the application is, in a few sentences. `cache`: directory of accepted replies.
        """
        if bool(tools) == bool(document):
            raise ConfigError("name either `tools` (a list of JSON schemas) or `document` (OpenAPI)")
        known = (
            listed_tools(Path(tools))
            if tools
            else openapi_tools(Path(document), operations=operations, refs=refs)
        )
        self.name = name
        self.limits = tool_limits(limits)
        self.simulator = Simulator(
            load_chat(chat),
            known,
            guidance=guidance,
            cache=Path(cache) if cache else None,
            max_asks=max_asks,
        )
        rules = TaskRules(
            environment=name, verifier=VERIFIER, tools=list(known), checks={"state": state_problem}
        )
        self._tasks = read_tasks(Path(tasks), rules)
        self.splits = splits_of(self._tasks)
        identity = self.simulator.identity()
        digest = canonical.digest(sources_digest(__name__), identity, repr(self.limits), length=12)
        self.version = f"simulated-{digest}"

    async def open(self, task: Task, *, seed: int = 0) -> SimulatedSession:
        """A session with a state of its own."""
        self.check_task(task)
        session = SimulatedSession(
            task,
            self.simulator,
            idle=self._rest,
            seed=seed,
            limits=self.limits,
            on_close=self._session_closed,
        )
        self.num_open += 1
        return session

    async def _rest(self) -> None:
        """Give connections back with the last session: an environment outlives event loops, they do not."""
        if self.num_open == 0:
            await self.simulator.chat.close()


def state_problem(check: dict[str, Any]) -> str:
    """What is wrong with a `state` check as written."""
    wanted = check.keys() - {"state"}
    if not isinstance(check["state"], str) or len(wanted) != 1 or wanted - {"equals", "contains", "absent"}:
        return "write {state: pointer} with one of equals, contains, absent: true"
    return "" if check.get("absent", True) is True else "absent can only be true"


def load(**options: Any) -> SimulatedEnvironment:
    """The environment; options are those of SimulatedEnvironment."""
    return SimulatedEnvironment(**options)
