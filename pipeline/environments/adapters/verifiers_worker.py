"""The side of `verifiers_taskset` that imports `verifiers`: a script for the interpreter of .venv-verifiers.

It answers JSON lines on a Unix socket and forks for every connection, so that an episode has a process of its
own, as a tool server has in verifiers, without importing anything again. An episode is what verifiers' own
rollout makes of a task, without harness and interception: `setup`, the tool servers' `setup` and
`setup_task`, tools with the rollout's shared state, `finalize`, `score`. Standard input names the taskset,
and when it ends, the process ends.

Not covered, and told as such: tasks in containers, users that open or continue the conversation, `@intercept`
and `@stop` hooks, tool servers that run elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

LINE_LIMIT = 64 * 2**20
_PRELOADED = (
    "mcp.server.mcpserver",
    "verifiers.v1.harnesses.utils.mcp",
    "verifiers.v1.runtimes",
    "verifiers.v1.utils.loaders",
)
"""Imported once before the first fork; an episode would take seconds to import them."""
ORDINARY_ERRORS = (ValueError, LookupError, ArithmeticError)
_SHOWN = ("idx", "id", "name", "description", "prompt", "system_prompt")


class NotCoveredError(Exception):
    """The taskset needs something that this adapter does not give."""


def load_taskset_class(name: str) -> tuple[type[Any], Any]:
    """The Taskset class of an installed id or of `package.module:Class`, and its module."""
    import verifiers.v1 as vf
    from verifiers.v1.utils.loaders import import_taskset, taskset_class

    module_name, colon, attribute = name.partition(":")
    module = importlib.import_module(module_name) if colon else import_taskset(name)
    found = getattr(module, attribute) if colon else taskset_class(name)
    if not (isinstance(found, type) and issubclass(found, vf.Taskset)):
        raise TypeError(f"{name} is {found!r}, no verifiers.v1 Taskset class")
    return found, module


def make_config(kind: type[Any], name: str, values: Mapping[str, Any]) -> Any:
    """The taskset's own config class, filled."""
    import verifiers.v1 as vf
    from verifiers.v1.utils.generic import concrete_type

    config = concrete_type(kind, vf.TasksetConfig, origin=vf.Taskset) or vf.TasksetConfig
    return config.model_validate({"id": name.partition(":")[0]} | dict(values))


def uncovered_by_class(kind: type[Any], module: Any) -> list[str]:
    """What the taskset's classes declare that is not covered."""
    import verifiers.v1 as vf

    task = kind.task_type()
    exported = [getattr(module, name, None) for name in getattr(module, "__all__", ())]
    marked = [
        name for name in dir(task) for mark in ("intercept", "stop") if hasattr(getattr(task, name), mark)
    ]
    found = [f"{name}() is an @intercept or @stop hook" for name in marked]
    if task.NEEDS_CONTAINER:
        found.append("its tasks need a container (NEEDS_CONTAINER)")
    if any(isinstance(one, type) and issubclass(one, vf.Env) for one in exported):
        found.append("it plays its tasks with an Env of its own (several agents or a simulated user)")
    return found


def uncovered_by_task(data: Any) -> list[str]:
    """What one task asks for that is not covered."""
    found = ["its prompt is empty: a simulated user opens the conversation"] if data.prompt is None else []
    return found + [
        f"it names {field!r}" for field in ("image", "agent_user", "skills") if getattr(data, field)
    ]


def describe(kind: type[Any], module: Any) -> dict[str, Any]:
    """What the environment must know before it has tasks."""
    import verifiers
    import verifiers.v1 as vf

    path = Path(str(module.__file__))
    files = sorted(path.parent.glob("*.py")) if path.name == "__init__.py" else [path]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    return {
        "verifiers": verifiers.__version__,
        "taskset": kind.__name__,
        "source": digest,
        "validates": kind.task_type().validate is not vf.Task.validate,
    }


def task_row(task: Any) -> dict[str, Any]:
    """A task as a line: what verifiers says of it, the taskset's own fields, its gold."""
    import verifiers.v1 as vf

    problems = uncovered_by_task(task.data)
    if problems:
        raise NotCoveredError(f"task {task.data.idx}: {'; '.join(problems)}")
    data = task.data.model_dump(mode="json")
    shown = {name: data[name] for name in _SHOWN if data[name] is not None}
    plain = vf.TaskData(prompt="").model_dump(mode="json")
    rest = {name: data[name] for name in plain if name not in _SHOWN and data[name] != plain[name]}
    own = {name: value for name, value in data.items() if name not in plain}
    gold = task.gold() if callable(getattr(task, "gold", None)) else own.get("gold")
    return {"shown": shown | rest, "own": own, "gold": gold}


class Episode:
    """One task, its tool servers and its trace, in this process."""

    def __init__(self, kind: type[Any], config: Any, data: Mapping[str, Any]) -> None:
        import verifiers.v1 as vf
        from verifiers.v1.configs.agent import AgentConfig
        from verifiers.v1.state import state_cls
        from verifiers.v1.trace import AgentInfo, TraceTask

        task_type = kind.task_type()
        self.kind, self.config = kind, config
        taskset = kind(config)
        self.task = task_type(task_type.data_type().model_validate(data), taskset.config.task)
        about = TraceTask(
            type=task_type.__name__, data=self.task.data, key=self.task.key, hash=self.task.hash
        )
        self.trace = vf.Trace(task=about, state=state_cls(task_type)(), agent=AgentInfo(config=AgentConfig()))
        self.runtime: Any = None
        self._servers: dict[str, tuple[Any, str]] = {}
        self._stack = contextlib.AsyncExitStack()

    async def prepare(self) -> None:
        """A directory for the task's own programs, and its `setup`."""
        from verifiers.v1.runtimes import SubprocessConfig, provision_runtime
        from verifiers.v1.utils.decorators import invoke

        env = dict(self.task.runtime_env())
        self.runtime = await self._stack.enter_async_context(provision_runtime(SubprocessConfig(), env=env))
        await invoke(self.task.setup, {"trace": self.trace, "runtime": self.runtime})

    async def open(self) -> list[dict[str, Any]]:
        """Set up; the tools, named as the harnesses of verifiers name them."""
        from mcp.server.mcpserver import MCPServer

        await self.prepare()
        tools = []
        shared = self.kind.toolsets(self.config)
        for server in [*shared, *type(self.task).toolsets(self.task.config)]:
            if server.config.url:
                raise NotCoveredError(f"tool server {server.server_name!r} runs elsewhere (url)")
            self._share_state(server)
            await self._stack.enter_async_context(server._exit_stack)
            await server.setup()
            if server not in shared:
                await server.setup_task(self.task.data)
            mcp = MCPServer(server.server_name or type(server).__name__)
            server.register(mcp)
            for tool in await mcp.list_tools():
                name = f"{server.server_name}_{tool.name}" if server.server_name else tool.name
                self._servers[name] = (mcp, tool.name)
                about = {"description": tool.description or "", "parameters": tool.input_schema}
                tools.append({"name": name} | about)
        return tools

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """What the tool answered, as text; an exception that arguments do not cause is a broken tool."""
        from mcp.server.mcpserver.exceptions import ToolError
        from verifiers.v1.harnesses.utils.mcp import mcp_content_to_chat_content

        mcp, own_name = self._servers[name]
        try:
            result = await mcp.call_tool(own_name, arguments)
        except Exception as error:
            # The server wraps what a tool raises in a ToolError; a tool may raise one itself, too.
            cause = error.__cause__ if isinstance(error, ToolError) and error.__cause__ else error
            if not isinstance(cause, (*ORDINARY_ERRORS, ToolError)):
                raise RuntimeError(f"tool {name} is broken: {cause!r}") from error
            return {"text": str(error), "status": "tool_error"}
        content = mcp_content_to_chat_content(result.content)
        if not isinstance(content, str):
            raise NotCoveredError(f"tool {name} answered an image; only text is taken here")
        return {"text": content, "status": "tool_error" if result.is_error else "ok"}

    async def score(self, messages: list[Any], sampled_from: int, stop: str) -> dict[str, Any]:
        """The rewards, metrics and weighted total of the dialogue. Raises what scoring raises."""
        import verifiers.v1 as vf
        from pydantic import TypeAdapter
        from verifiers.v1.utils.decorators import invoke

        read = TypeAdapter(vf.Messages).validate_python(messages)
        self.trace.nodes = [
            vf.MessageNode(
                parent=index - 1 if index else None,
                message=message,
                sampled=index >= sampled_from and message.role == "assistant",
            )
            for index, message in enumerate(read)
        ]
        self.trace.ok = True
        self.trace.stop(stop, override=True)
        await invoke(self.task.finalize, {"trace": self.trace, "runtime": self.runtime})
        await self.task.score(self.trace, self.runtime)
        unscored = [name for name, value in self._scores().items() if value is None]
        if unscored or not self.trace.rewards:
            raise RuntimeError(f"not scored: {', '.join(unscored) or 'the task has no reward'}")
        rewards = {name: reward.score for name, reward in self.trace.rewards.items()}
        return {"total": self.trace.reward, "rewards": rewards, "metrics": dict(self.trace.metrics)}

    async def validate(self) -> bool | None:
        """The task's own check of its ground truth."""
        await self.prepare()
        valid: bool | None = await self.task.validate(self.runtime)
        return valid

    async def close(self) -> None:
        """End the tool servers and remove the directory."""
        await self._stack.aclose()

    def _scores(self) -> dict[str, Any]:
        return dict(self.trace.rewards) | dict(self.trace.metrics)

    def _share_state(self, server: Any) -> None:
        """Give a tool server the trace's state as the channel of a rollout does: a checked copy per call."""

        async def pull() -> Any:
            return server._state_adapter.validate_json(self.trace.state.model_dump_json())

        async def push(before: bytes) -> None:
            after = server._state_adapter.dump_json(server.state)
            if after != before:
                self.trace.state = type(self.trace.state).model_validate_json(after)

        server._pull_state, server._push_state = pull, push


class Answering(Protocol):
    """What answers the requests of one connection."""

    def answers(self, request: dict[str, Any]) -> AsyncIterator[Any]:
        """The answers to one request."""
        ...

    async def close(self) -> None:
        """The connection is over."""
        ...


class Conversation:
    """One connection: requests answered in order, by name."""

    def __init__(self, spec: Mapping[str, Any], kind: type[Any]) -> None:
        self._spec, self._kind = spec, kind
        self._episode: Episode | None = None

    async def answers(self, request: dict[str, Any]) -> AsyncIterator[Any]:
        """What the request is answered with: one value, or one for each task."""
        name = request.pop("do")
        if name == "tasks":
            view = self._kind(self._config(request["config"]))
            for task in view.include(idx=[request["idx"]]) if request["idx"] else view:
                yield task_row(task)
            yield None
        elif name in ("open", "validate"):
            self._episode = Episode(self._kind, self._config(request["config"]), request["data"])
            if name == "validate":
                yield await self._episode.validate()
            else:
                yield {"pid": os.getpid(), "tools": await self._episode.open()}
        elif self._episode is not None:
            work: Callable[..., Awaitable[Any]] = getattr(self._episode, name)
            yield await work(**request)

    async def close(self) -> None:
        """End the episode, if there is one."""
        if self._episode is not None:
            await self._episode.close()

    def _config(self, changes: Mapping[str, Any]) -> Any:
        return make_config(self._kind, self._spec["taskset"], self._spec["config"] | dict(changes))


async def converse(connection: socket.socket, conversation: Answering) -> None:
    """Answer until the other side hangs up."""
    reader, writer = await asyncio.open_connection(sock=connection, limit=LINE_LIMIT)
    try:
        while line := await reader.readline():
            try:
                async for answer in conversation.answers(json.loads(line)):
                    writer.write(json.dumps({"ok": answer}).encode() + b"\n")
                    await writer.drain()
            except ConnectionError:
                return
            except Exception as error:
                writer.write(json.dumps({"error": _told(error)}).encode() + b"\n")
                await writer.drain()
    finally:
        await conversation.close()
        writer.close()


def serve(listener: socket.socket, conversation: Callable[[], Answering]) -> None:
    """Fork for every connection until standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()  # what is loaded so far stays shared between the processes
    with selectors.DefaultSelector() as selector:
        for source in (sys.stdin, listener):
            selector.register(source, selectors.EVENT_READ)
        while sys.stdin not in [key.fileobj for key, _ in selector.select()]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                _child(connection, listener, conversation())
            connection.close()


def _child(connection: socket.socket, listener: socket.socket, conversation: Answering) -> None:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        listener.close()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        asyncio.run(converse(connection, conversation))
        code = 0
    finally:
        os._exit(code)


def begin(spec: Mapping[str, Any]) -> tuple[dict[str, Any], Callable[[], Answering]]:
    """What the taskset is, and what makes a conversation about it."""
    kind, module = load_taskset_class(spec["taskset"])
    make_config(kind, spec["taskset"], spec["config"])
    problems = uncovered_by_class(kind, module)
    if problems:
        raise NotCoveredError("; ".join(problems))
    for name in _PRELOADED:
        importlib.import_module(name)
    runtimes: Any = importlib.import_module("verifiers.v1.runtimes.subprocess")
    runtimes.CACHE_DIR = Path(spec["folder"])  # goes with its owner, also where an episode was ended
    return describe(kind, module), lambda: Conversation(spec, kind)


def main(address: str, start: Callable[[Mapping[str, Any]], Any] = begin) -> None:
    """Load the taskset named on standard input, say what it is, serve."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the taskset prints must not mix with the answer
    sys.path.append(os.getcwd())
    try:
        about, conversation = start(json.loads(sys.stdin.readline()))
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen(128)
        told: dict[str, Any] = {"ok": about}
    except Exception as error:
        told = {"error": _told(error)}
    answer.write(json.dumps(told) + "\n")
    answer.close()
    if "ok" in told:
        serve(listener, conversation)


def _told(error: Exception) -> str:
    text = str(error)
    covered = "this adapter does not cover it: " if isinstance(error, NotCoveredError) else ""
    return f"{covered}{text}" if covered else f"{type(error).__name__}: {text}"


if __name__ == "__main__":
    main(sys.argv[1])
