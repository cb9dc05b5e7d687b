"""One episode against a live API, and how its world is made fresh.

Decides: a fresh world is a server of its own (`start`), or a reset operation on a shared one (leased: one
session at a time), or a header that names the session (the server keeps them apart); then the calls of the
task's `setup` are made. Without any of these all sessions share the world as it is. A snapshot is the list of
calls: a restored session makes those again that may have changed something (no GET), and an answer that
differs is an infrastructure failure. A 4xx is the agent's doing and answers with the server's words;
everything else that goes wrong is not. Not covered: state that a server keeps outside what it resets.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from data import canonical
from data.messages import ToolResult
from data.tasks import Task
from pipeline.checks.calls import argument_problems
from pipeline.environments.documented import DocumentedSession
from pipeline.environments.openapi.client import (
    Answer,
    ApiClient,
    ClientPolicy,
    Credential,
    without_credentials,
)
from pipeline.environments.openapi.lease import Lease
from pipeline.environments.openapi.operations import Operation
from pipeline.environments.openapi.process import LocalServer
from pipeline.environments.openapi.request import ApiRequest, build_request
from pipeline.environments.replayed import Made, Replays
from pipeline.environments.responses import ToolResponse
from pipeline.environments.task_checks import fits, pointed
from pipeline.environments.tools import ToolError
from pipeline.errors import EnvironmentFailure


@dataclass(frozen=True, kw_only=True)
class LiveApi:
    """What all sessions of an environment share."""

    operations: Mapping[str, Operation]
    url: str = ""
    start: tuple[str, ...] = ()
    reset: str = ""
    """Name of the operation that makes the world fresh."""
    reset_arguments: Mapping[str, Any] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    """Operations the agent is not shown, the reset among them."""
    session_header: str = ""
    credentials: Mapping[str, Credential] = field(default_factory=dict, repr=False)
    undocumented: tuple[str, ...] = ()
    """Credentials that the document does not mention; sent with every request."""
    keep: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Fields of an operation's answer that are shown; all of them where it is not named."""
    policy: ClientPolicy = field(default_factory=ClientPolicy)
    transport: httpx.AsyncBaseTransport | None = None
    lease: Lease = field(default_factory=Lease)

    @property
    def isolates(self) -> bool:
        """Whether a session's world can be made fresh at any time."""
        return bool(self.start or self.reset or self.session_header)


class OpenApiSession(Replays, DocumentedSession):
    """See `pipeline.environments.base.Session`. The world is made at the first call or check."""

    def __init__(self, task: Task, api: LiveApi, *, deterministic: bool, **options: Any) -> None:
        shown = {name: item for name, item in api.operations.items() if name not in api.hidden}
        super().__init__(
            task,
            specs={name: item.spec for name, item in shown.items()},
            reads=frozenset(name for name, item in shown.items() if item.reads),
            **options,
        )
        self._api, self._deterministic = api, deterministic
        self._client: ApiClient | None = None
        self._server: LocalServer | None = None
        self._leased, self._asked = False, False

    @property
    def live_tools(self) -> tuple[str, ...]:
        """Tools whose answers may differ next time: all tools of a shared world, else none."""
        return () if self._deterministic else tuple(spec.name for spec in self.tools)

    def _rewind(self, history: list[Made]) -> None:
        if (self._history or history) and not self._api.isolates:
            raise EnvironmentFailure(
                "a shared live API cannot be restored; give the environment start, reset or session_header"
            )
        super()._rewind(history)

    def _is_effect(self, name: str) -> bool:
        return not self._api.operations[name].reads

    async def _execute(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        """As for any documented tool; what reached the server is what a replay makes again."""
        self._asked = False
        result = await super()._execute(name, arguments, call_id)
        if self._asked:
            self._history.append((call_id, name, canonical.dumps(arguments)))
        return result

    async def _again(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        return await super()._execute(name, arguments, call_id)

    async def _respond(self, name: str, arguments: dict[str, Any]) -> ToolResponse:
        request = build_request(self._api.operations[name], arguments)
        await self._catch_up()
        answer = await self._ask(name, request)
        self._asked = True
        return self._shown(name, answer)

    async def _passes(self, check: dict[str, Any]) -> bool:
        """`get`: what the server says now."""
        await self._catch_up()
        path, _, query = check["get"].partition("?")
        request = ApiRequest("GET", path, query, {"accept": "application/json"})
        answer = await self._connected().send(request, schemes=tuple(self._api.credentials))
        if answer.status != check.get("status", answer.status if answer.status < 300 else 200):
            return False
        if not {"equals", "contains"} & check.keys():
            return True
        try:
            value = pointed(canonical.loads(answer.text), check.get("at", ""))
        except (ValueError, LookupError):
            return False
        return fits(check.get("equals", check.get("contains")), value, partly="contains" in check)

    def _artefact(self) -> Any:
        return [[name, arguments, self._results[key].text] for key, name, arguments in self._history]

    async def _release(self) -> None:
        try:
            await self._leave()
        finally:
            if self._leased:
                self._api.lease.give()
            await super()._release()

    async def start(self) -> None:
        """A fresh world, prepared as the task says. Raises EnvironmentFailure."""
        api = self._api
        url = api.url
        if api.start:
            self._server = LocalServer(api.start)
            try:
                await self._server.start(seed=self.seed)
            except (
                EnvironmentFailure
            ) as error:  # it quotes what the server said, which inherits every variable
                raise EnvironmentFailure(without_credentials(str(error), api.credentials.values())) from None
            url = self._server.url + api.url
        if api.reset and not self._leased:
            await api.lease.take()
            self._leased = True
        headers = {api.session_header: uuid.uuid4().hex} if api.session_header else {}
        self._client = ApiClient(
            url, credentials=api.credentials, policy=api.policy, headers=headers, transport=api.transport
        )
        if api.reset:
            await self._prepare(api.reset, api.reset_arguments)
        for step in self.task.state_value().get("setup", ()):
            await self._prepare(step["name"], step.get("arguments", {}))

    async def _prepare(self, name: str, arguments: Mapping[str, Any]) -> None:
        answer = await self._ask(name, build_request(self._api.operations[name], arguments))
        if answer.status >= 400:
            raise EnvironmentFailure(f"preparing the world, {name} said {answer.status} {answer.text:.120}")

    async def _leave(self) -> None:
        """Leave the world: connections first, then the server."""
        client, self._client = self._client, None
        try:
            if client is not None:
                await client.close()
        finally:
            server, self._server = self._server, None
            if server is not None:
                await server.stop()

    def _connected(self) -> ApiClient:
        assert self._client is not None
        return self._client

    async def _ask(self, name: str, request: ApiRequest) -> Answer:
        return await self._connected().send(request, schemes=self._schemes(self._api.operations[name]))

    def _schemes(self, operation: Operation) -> tuple[str, ...]:
        """The credentials of the first alternative that is configured, and those not in the document."""
        usable = (item for item in operation.security if set(item) <= self._api.credentials.keys())
        return (*next(usable, ()), *self._api.undocumented)

    def _shown(self, name: str, answer: Answer) -> ToolResponse:
        """What the agent sees. Raises ToolError with the server's words for a 4xx."""
        text = answer.text
        with contextlib.suppress(ValueError):
            value = canonical.loads(text)
            if answer.status >= 400:
                raise ToolError(f"HTTP {answer.status}: {_problem(value)}")
            text = canonical.dumps(_kept(value, self._api.keep.get(name, ())))
        if answer.status >= 400:
            raise ToolError(f"HTTP {answer.status}: {text.strip() or 'no further words'}")
        return ToolResponse(text=text or "ok", metrics={"http_status": float(answer.status)})


def setup_problem(state: Mapping[str, Any], api: LiveApi) -> str:
    """What is wrong with a task's `state: {setup: [{name, arguments}, ...]}`; "" for nothing."""
    steps = state.get("setup", [])
    if state.keys() - {"setup"} or not isinstance(steps, list):
        return "state takes {setup: [{name, arguments}, ...]} only"
    if steps and not api.isolates:
        return "setup needs a fresh world: give start, reset or session_header"
    for step in steps:
        if (
            not isinstance(step, dict)
            or step.keys() - {"name", "arguments"}
            or step.get("name") not in api.operations
        ):
            return f"setup step {step!r:.80} is no {{name, arguments}} of an operation"
        schema = canonical.loads(api.operations[step["name"]].spec.parameters)
        problems = argument_problems(step.get("arguments", {}), schema)
        if problems:
            return f"setup {step['name']}: {problems[0]}"
    return ""


def get_problem(check: dict[str, Any]) -> str:
    """What is wrong with a `get` check as written."""
    rest = check.keys() - {"get", "equals", "contains", "status", "at"}
    path = check["get"]
    if rest or {"equals", "contains"} <= check.keys():
        return "keys are get, equals or contains, at (a JSON pointer), status"
    if not isinstance(path, str) or not path.startswith("/") or path.startswith("//") or "/../" in path:
        return f"{path!r} is no path below the base URL; start it with one /"
    if not isinstance(check.get("status", 200), int) or not isinstance(check.get("at", ""), str):
        return "status is a number, at is a JSON pointer"
    return "" if check.keys() - {"get", "at"} else "say what must hold: equals, contains or status"


def _problem(value: Any) -> str:
    """The words of an error document (RFC 9457 and what else is common), else all of it."""
    if isinstance(value, dict):
        for key in ("detail", "message", "error", "title"):
            if isinstance(value.get(key), str) and value[key]:
                return str(value[key])
    return value if isinstance(value, str) else canonical.dumps(value)


def _kept(value: Any, names: tuple[str, ...]) -> Any:
    """The named fields of an object, or of each item of a list, also one level down."""
    if not names:
        return value
    if isinstance(value, list):
        return [_kept(item, names) for item in value]
    if isinstance(value, dict):
        found = {name: value[name] for name in names if name in value}
        return found or {key: _kept(item, names) for key, item in value.items() if isinstance(item, list)}
    return value
