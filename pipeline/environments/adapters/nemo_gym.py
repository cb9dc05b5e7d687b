"""A NeMo-Gym resource server over HTTP as an environment of ours.

    nemo_gym: {url: "http://127.0.0.1:8000", rows: "data/train.jsonl"}

A row is what the server's own data files hold: `responses_create_params` (`input` messages and `tools`) and
the fields its `/seed_session` and `/verify` read. One session of ours is one cookie of the server's:
`/seed_session` opens it, `POST /<tool>` is a call, `/verify` judges the dialogue in the form of the Responses
API. A 4xx or 5xx of a tool is an observation there and is one here (`tool_error`); a server that cannot be
reached, or that fails to seed or to verify, is infrastructure. A snapshot is the list of calls, made again in
a fresh session.

Not covered: the server's start (run it as its own documents say), its MCP side, its model servers and agents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import httpx

from data import canonical
from data.files import user_path
from data.messages import Role, ToolResult, ToolSpec, ToolStatus, Turn, text_parts
from data.tasks import Task
from data.trajectories import Reward, Trajectory
from pipeline.environments.adapters.rows import gold_of, parted, read_rows, splits_of, turns_of
from pipeline.environments.gold import PlannedGold
from pipeline.environments.replayed import ReplayedSession
from pipeline.environments.tools import ToolLimits, truncate
from pipeline.errors import ConfigError, EnvironmentFailure, JudgeError
from pipeline.urls import checked_url


class NemoGymSession(ReplayedSession):
    """One seeded session of the server."""

    def __init__(self, task: Task, *, seed: int, environment: NemoGymEnvironment) -> None:
        super().__init__(task, seed=seed)
        self._environment = environment
        self._row = task.state_value() | task.private_value()["row"]
        self.tools = tuple(_spec(tool) for tool in self._row["responses_create_params"].get("tools", []))
        self._client: httpx.AsyncClient | None = None

    async def start(self) -> None:
        """Open a cookie of one's own and seed it. Raises EnvironmentFailure."""
        self._client = httpx.AsyncClient(
            base_url=self._environment.url,
            timeout=self._environment.limits.timeout_seconds,
            transport=self._environment.transport,
            trust_env=False,
            # Reading the certificates costs more than the whole episode, and plain HTTP uses none.
            verify=self._environment.url.startswith("https:"),
        )
        try:
            await self._post("/seed_session", self._row)
        except BaseException:
            await self.close()
            raise

    async def verify(self, trajectory: Trajectory) -> Reward:
        """The server's `reward`; its other numbers are components. Raises JudgeError."""
        self._refuse_if_poisoned()
        dialogue = trajectory.turns[len(self.task.prompt) :]
        body = self._row | {"response": _response(dialogue, model=trajectory.policy.name)}
        try:
            await self._catch_up()
            judged = await self._post("/verify", body)
            total = float(judged["reward"])
        except (EnvironmentFailure, KeyError, TypeError, ValueError) as error:
            raise JudgeError(f"/verify of task {self.task.task_id} gave no reward: {error}") from error
        numbers = {
            name: float(value)
            for name, value in judged.items()
            if isinstance(value, int | float) and name not in self._row and name != "reward"
        }
        digest = canonical.digest([[name, arguments] for _, name, arguments in self._history])
        return Reward.of({"success": total} | numbers, verifier=self.task.verifier, artefact_digest=digest)

    async def _answered(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        reply = await self._send(f"/{name}", arguments)
        parts, cut = truncate(text_parts(reply.text), self._environment.limits)
        status = ToolStatus.OK if reply.is_success else ToolStatus.TOOL_ERROR
        return ToolResult(call_id=call_id, name=name, parts=parts, status=status, truncated=cut)

    async def _post(self, path: str, body: Any) -> Any:
        reply = await self._send(path, body)
        if not reply.is_success:
            raise EnvironmentFailure(f"{path} answered HTTP {reply.status_code}: {reply.text[:200]}")
        try:
            return reply.json()
        except (ValueError, RecursionError) as error:
            raise EnvironmentFailure(f"{path} answered no JSON: {reply.text[:200]!r}") from error

    async def _send(self, path: str, body: Any) -> httpx.Response:
        if self._client is None:
            raise EnvironmentFailure(f"session of task {self.task.task_id} is not open")
        try:
            return await self._client.post(path, json=body)
        except httpx.HTTPError as error:
            raise EnvironmentFailure(
                f"resource server {self._environment.url}{path}: {type(error).__name__} {error}"
            ) from error

    async def _release(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


class NemoGymEnvironment:
    """`url`: the resource server; `rows`: its JSONL; `private`: columns that are never published."""

    name = "nemo_gym"

    def __init__(
        self,
        *,
        url: str,
        rows: str,
        private: Sequence[str] = (),
        limits: ToolLimits | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = checked_url(url, what="resource server", instead="a proxy in front of it can hold a key")
        self.limits, self.transport = limits or ToolLimits(), transport
        self.private = tuple(private)
        self.rows = read_rows(
            user_path(rows), check=lambda row: turns_of(row["responses_create_params"]["input"])
        )
        self.splits = splits_of(self.rows)
        self.version = canonical.digest(self.rows, self.private, repr(self.limits), length=12)

    def tasks(self, split: str) -> Iterator[Task]:
        """The rows of the split, in order."""
        if split not in self.splits:
            raise ConfigError(f"environment nemo_gym has no split {split!r}; it has {', '.join(self.splits)}")
        for row in self.rows:
            if row.get("split", "train") == split:
                yield self._task(split, row)

    async def open(self, task: Task, *, seed: int = 0) -> NemoGymSession:
        """A seeded session of the server."""
        session = NemoGymSession(task, seed=seed, environment=self)
        await session.start()
        return session

    def gold(self, task: Task) -> PlannedGold:
        """The row's `gold`. ConfigError where it has none."""
        return gold_of(task)

    def _task(self, split: str, row: dict[str, Any]) -> Task:
        shown, hidden = parted(row, self.private)
        return Task(
            environment=self.name,
            split=split,
            template=str(row.get("template", "row")),
            prompt=turns_of(row["responses_create_params"]["input"]),
            state=canonical.dumps(shown),
            private=canonical.dumps({"row": hidden, "gold": row.get("gold")}),
            verifier="nemo_gym/verify/1",
        )


def load(**options: Any) -> NemoGymEnvironment:
    """The environment; options are those of NemoGymEnvironment."""
    return NemoGymEnvironment(**options)


def _spec(tool: dict[str, Any]) -> ToolSpec:
    schema = tool.get("parameters") or {"type": "object", "properties": {}}
    return ToolSpec(
        name=tool["name"], description=tool.get("description") or "", parameters=canonical.dumps(schema)
    )


def _response(turns: Sequence[Turn], *, model: str) -> dict[str, Any]:
    """The dialogue after the prompt as an object of the Responses API."""
    output: list[dict[str, Any]] = []
    for index, turn in enumerate(turns):
        if turn.role is Role.ASSISTANT:
            if turn.text:
                content = [{"type": "output_text", "text": turn.text, "annotations": []}]
                message = {"id": f"msg_{index}", "type": "message", "role": "assistant"}
                output.append(message | {"status": "completed", "content": content})
            for made in turn.tool_calls:
                about = {"type": "function_call", "call_id": made.call_id, "name": made.name}
                output.append(about | {"arguments": made.arguments, "status": "completed"})
        elif turn.result is not None:
            answer = {"type": "function_call_output", "call_id": turn.result.call_id}
            output.append(answer | {"output": turn.result.text})
    return {
        "id": "resp_0",
        "object": "response",
        "created_at": 0.0,
        "model": model,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
