"""A Chat plays the tools: one call on one state, one checked reply.

Decides: the same call on the same state in the same world (seed) gives the same reply, within a process and,
with `cache`, across runs; only a reply that fits the documented answer and contradicts nothing (`facts`) is
accepted and kept; a reply that does not is asked for again with what is wrong; then it is an infrastructure
failure, and nothing is invented. Not covered: whether a consistent reply is true of the real application.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data import canonical
from data.messages import Turn, assistant, system, user
from pipeline.chat.base import Chat
from pipeline.chat.core import CachedChat, ReplyCache
from pipeline.environments.simulated.facts import Outcome, Reply, contradiction, merge_patch
from pipeline.environments.simulated.tools import DocumentedTool
from pipeline.errors import ConfigError, EnvironmentFailure

RULES = """You play the tools of an application that exists only as documentation. You are given one call and
the application's state, which is the whole truth. Answer as the application would.
- outcome: "ok" with `result`; "not_found" or "error" with `error` (a user reads it) and result null.
- patch: a JSON merge patch that brings the state up to date: collections by name, records by id, each with
  all fields. A call that only reads adds records it reveals and changes nothing; a failed one has patch {}.
- Every id you show must be in the state. What the state holds is found, with the same values. Follow the
  documentation and its limits. Never mention that this is a simulation."""
_MAX_REMEMBERED = 65_536


class Simulator:
    """Plays `tools` through `chat`. May be shared by any number of sessions."""

    def __init__(
        self,
        chat: Chat,
        tools: Mapping[str, DocumentedTool],
        *,
        guidance: str = "",
        cache: Path | None = None,
        max_asks: int = 3,
        max_state_length: int = 20_000,
    ) -> None:
        """`guidance` describes the application; `max_state_length` is in characters of JSON."""
        if max_asks < 1:
            raise ConfigError(f"max_asks must be at least 1, got {max_asks}")
        self.chat, self.tools, self._guidance = chat, dict(tools), guidance
        self._max_asks, self._max_state_length = max_asks, max_state_length
        self._disk = ReplyCache(cache) if cache else None
        self._known: collections.OrderedDict[str, str] = collections.OrderedDict()
        self._asking: dict[str, asyncio.Lock] = {}

    def identity(self) -> list[Any]:
        """What decides a reply, besides call, state and seed."""
        chat = self.chat.identity() if isinstance(self.chat, CachedChat) else self.chat.name
        documents = [[tool.spec.model_dump(), tool.returns, tool.reads] for tool in self.tools.values()]
        return [chat, documents, RULES, self._guidance]

    async def play(
        self, name: str, arguments: Mapping[str, Any], state: dict[str, Any], *, seed: int
    ) -> Reply:
        """The reply to one call. Raises EnvironmentFailure, StructuredReplyError, EngineError: no reply."""
        key = canonical.digest("simulated", self.identity(), name, dict(arguments), state, seed)
        lock = self._asking.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                text = self._recall(key)
                if text is None:
                    text = await self._ask(name, arguments, state, seed)
                    self._keep(key, text)
        finally:
            if not lock.locked():
                self._asking.pop(key, None)
        return _reply(text)

    async def _ask(self, name: str, arguments: Mapping[str, Any], state: dict[str, Any], seed: int) -> str:
        tool = self.tools[name]
        turns = list(self._prompt(tool, arguments, state, seed))
        problem = ""
        for _ in range(self._max_asks):
            said = await self.chat.reply(turns, schema=reply_schema(tool))
            reply = _reply(said.text)
            problem = self._problem(reply, tool, arguments, state)
            if not problem:
                return said.text
            turns += [assistant(said.text), user(f"That contradicts the rules: {problem}. Reply again.")]
        raise EnvironmentFailure(
            f"the chat that plays {name} gave no consistent reply in {self._max_asks} tries: {problem}"
        )

    def _prompt(
        self, tool: DocumentedTool, arguments: Mapping[str, Any], state: dict[str, Any], seed: int
    ) -> Sequence[Turn]:
        asked = {
            "application": self._guidance,
            "world": seed,
            "tool": tool.spec.name,
            "documentation": tool.spec.description,
            "parameters": canonical.loads(tool.spec.parameters),
            "only_reads": tool.reads,
            "arguments": dict(arguments),
            "state": state,
        }
        return system(RULES), user(canonical.dumps(asked))

    def _problem(
        self, reply: Reply, tool: DocumentedTool, arguments: Mapping[str, Any], state: dict[str, Any]
    ) -> str:
        if reply.outcome is Outcome.OK and reply.result is None and not _allows_null(tool):
            return "outcome is ok, so result must be an answer"
        size = len(canonical.dumps(merge_patch(state, reply.patch)))
        if size > self._max_state_length:
            return f"the state would have {size} characters; the limit is {self._max_state_length}"
        return contradiction(reply, tool=tool.spec.name, arguments=arguments, state=state, reads=tool.reads)

    def _recall(self, key: str) -> str | None:
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        stored = self._disk.get(key) if self._disk else None
        return None if stored is None else stored.text

    def _keep(self, key: str, text: str) -> None:
        self._known[key] = text
        if len(self._known) > _MAX_REMEMBERED:
            self._known.popitem(last=False)
        if self._disk:
            self._disk.put(key, assistant(text))


def reply_schema(tool: DocumentedTool) -> dict[str, Any]:
    """The JSON Schema of a reply: the documented answer, or null, beside outcome, error and patch."""
    returns = canonical.loads(tool.returns)
    definitions = returns.pop("$defs", {})
    result = {"anyOf": [returns, {"type": "null"}]} if returns else {}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "outcome": {"enum": [str(item) for item in Outcome]},
            "result": result,
            "error": {"type": "string"},
            "patch": {"type": "object"},
        },
        "required": ["outcome", "result", "error", "patch"],
        "additionalProperties": False,
    }
    return {**schema, "$defs": definitions} if definitions else schema


def _reply(text: str) -> Reply:
    value = canonical.loads(text)
    return Reply(Outcome(value["outcome"]), value["result"], value["error"], value["patch"])


def _allows_null(tool: DocumentedTool) -> bool:
    returns = canonical.loads(tool.returns)
    kind = returns.get("type")
    return not returns or kind == "null" or (isinstance(kind, list) and "null" in kind)
