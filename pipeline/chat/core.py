"""What all chats share: cache, budget, ledger, and structured replies that are repaired or asked for again.

A reply under a schema is the server's constrained text where offered, else free text; either way it
is repaired (fences, text around the JSON), validated, and on failure asked for again with the
validation error. After `max_asks` the start of the raw text goes into a StructuredReplyError: no row is
invented. Replies that passed are cached; a chat kept in a run also remembers those that did not, so that a
resumed run pays for nothing twice and goes the way it went. One request asked twice at a time is sent
once. The ledger, where there is one, has every call. Not covered: how a reply is obtained (`_ask`).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data import canonical
from data.files import disk_errors
from data.messages import ToolSpec, Turn, text_parts, user
from pipeline.errors import BudgetExceededError, ConfigError, StructuredReplyError

_START = re.compile(r"[{\[]")
LEDGER = "ledger.jsonl"
_MAX_STARTS = 256
"""Places where a value may begin that are tried: a reply of nothing but brackets would take minutes."""
_SHOWN = 1000
"""Characters of an invalid reply that its error tells; the verdicts made of it are stored."""


@dataclass(slots=True)
class ChatBudget:
    """Calls and tokens that may still be spent; may be shared by several chats. None = no bound."""

    max_calls: int | None = None
    max_tokens: int | None = None
    """Prompt plus completion tokens."""
    calls: int = 0
    tokens: int = 0

    def claim(self) -> None:
        """Count one call before it is sent. BudgetExceededError where nothing is left."""
        spent = {"calls": (self.calls, self.max_calls), "tokens": (self.tokens, self.max_tokens)}
        for what, (used, allowed) in spent.items():
            if allowed is not None and used >= allowed:
                raise BudgetExceededError(
                    f"the chat budget of {allowed} {what} is used up ({used}); raise it to go on"
                )
        self.calls += 1


@dataclass(frozen=True, slots=True)
class ReplyCache:
    """Replies on disk by content: one small file each, written aside and renamed."""

    directory: Path

    def get(self, key: str) -> Turn | None:
        """The stored reply, None where there is none or its file is damaged."""
        with disk_errors(self.directory, safe="replies that are there are kept"):
            try:
                return Turn.model_validate_json(self._path(key).read_text(encoding="ascii"))
            except (FileNotFoundError, ValueError):
                return None

    def put(self, key: str, turn: Turn) -> None:
        """Store a reply that passed. StoreError where the disk does not take it."""
        path = self._path(key)
        aside = path.with_suffix(f".{os.getpid()}")
        with disk_errors(path, safe="earlier replies are kept"):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                aside.write_text(canonical.dumps(turn.model_dump(mode="json")), encoding="ascii")
                os.replace(aside, path)
            finally:
                aside.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.directory / key[:2] / f"{key}.json"


@dataclass(frozen=True, slots=True)
class ChatLedger:
    """What calls cost, one line of JSON each, appended as they are answered: kills and resumes keep it."""

    path: Path

    def note(self, chat: str, tokens: int) -> None:
        """Add one call of the chat named `chat`. StoreError where the disk does not take it."""
        line = canonical.dumps({"chat": chat, "tokens": tokens}) + "\n"
        with disk_errors(self.path, safe="earlier calls are kept"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab+") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(end - 1, 0))
                torn = file.read() not in (b"", b"\n")
                file.write(b"\n" * torn + line.encode("ascii"))

    def totals(self) -> dict[str, tuple[int, int]]:
        """Chat name to (calls, tokens); a line that a kill cut off counts as a call of no tokens."""
        found: dict[str, tuple[int, int]] = {}
        for line in self.path.read_bytes().splitlines() if self.path.is_file() else ():
            try:
                row = canonical.loads(line.decode("ascii"))
                chat, spent = str(row["chat"]), int(row["tokens"])
            except (ValueError, TypeError, LookupError):
                chat, spent = "unknown", 0
            calls, tokens = found.get(chat, (0, 0))
            found[chat] = calls + 1, tokens + spent
        return found


class CachedChat(ABC):
    """Base of the chats: `reply` with cache, budget and schema; a subclass asks once."""

    def __init__(
        self, *, name: str, cache: Path | None = None, budget: ChatBudget | None = None, max_asks: int = 3
    ) -> None:
        if max_asks < 1:
            raise ConfigError(f"max_asks must be at least 1, got {max_asks}")
        self.name = name
        self.budget = budget or ChatBudget()
        self._cache, self._max_asks = ReplyCache(cache) if cache else None, max_asks
        self._ledger: ChatLedger | None = None
        self._asking: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        """Requests that are being sent."""

    def keep_in(self, directory: Path) -> None:
        """Cache replies in `directory`, unless a cache was set, invalid ones too; keep the ledger there."""
        self._cache = self._cache or ReplyCache(directory / "replies")
        self._ledger = ChatLedger(directory / LEDGER)

    async def reply(
        self, turns: Sequence[Turn], *, tools: Sequence[ToolSpec] = (), schema: dict[str, Any] | None = None
    ) -> Turn:
        """See `Chat.reply`."""
        if self._cache is None:
            return await self._obtain(turns, tools, schema, key="")
        key = canonical.digest(
            self.identity(),
            [_content(turn) for turn in turns],
            [tool.model_dump(mode="json") for tool in tools],
            schema,
        )
        lock = self._asking.setdefault(key, asyncio.Lock())
        async with lock:
            stored = self._cache.get(key)
            if stored is None:
                stored = await self._obtain(turns, tools, schema, key=key)
                self._cache.put(key, stored)
        return stored

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What besides the messages decides a reply: model, weights, sampling. Never a key or a URL."""

    async def close(self) -> None:  # noqa: B027 a chat without connections has nothing to release
        """Release connections."""

    @abstractmethod
    async def _ask(
        self, turns: Sequence[Turn], tools: Sequence[ToolSpec], schema: dict[str, Any] | None
    ) -> tuple[Turn, int]:
        """One reply as it came and the tokens it took."""

    async def _obtain(
        self, turns: Sequence[Turn], tools: Sequence[ToolSpec], schema: dict[str, Any] | None, *, key: str
    ) -> Turn:
        asked = list(turns) if schema is None else with_schema(turns, schema)
        error = raw = ""
        for number in range(self._max_asks):
            invalid = canonical.digest(key, number) if key and self._ledger is not None else ""
            turn = self._remembered(invalid)
            is_new = turn is None
            if turn is None:
                turn = await self._paid(asked, tools, schema)
            if schema is None:
                return turn
            raw = turn.text
            value, error = read_structured(raw, schema)
            if not error:
                return turn.model_copy(update={"parts": text_parts(canonical.dumps(value))})
            if is_new and invalid and self._cache is not None:
                self._cache.put(invalid, turn)
            asked += [turn, user(f"That reply was not valid: {error}. Reply again with the JSON alone.")]
        raise StructuredReplyError(
            f"chat {self.name!r} gave no valid reply in {self._max_asks} tries; "
            f"last error: {error}; raw: {raw:.{_SHOWN}}"
        )

    def _remembered(self, key: str) -> Turn | None:
        return self._cache.get(key) if key and self._cache is not None else None

    async def _paid(
        self, turns: Sequence[Turn], tools: Sequence[ToolSpec], schema: dict[str, Any] | None
    ) -> Turn:
        """One reply, claimed and noted."""
        self.budget.claim()
        turn, tokens = await self._ask(turns, tools, schema)
        self.budget.tokens += tokens
        if self._ledger is not None:
            self._ledger.note(self.name, tokens)
        return turn


def with_schema(turns: Sequence[Turn], schema: dict[str, Any]) -> list[Turn]:
    """The dialogue with the schema told in its last user turn, for servers that cannot constrain."""
    note = f"Reply with JSON alone, valid under this schema: {canonical.dumps(schema)}"
    if turns and turns[-1].role == "user":
        last = turns[-1]
        return [*turns[:-1], last.model_copy(update={"parts": (*last.parts, *text_parts("\n\n" + note))})]
    return [*turns, user(note)]


def read_structured(text: str, schema: dict[str, Any]) -> tuple[Any, str]:
    """(value, "") where `text` holds JSON valid under `schema`, else (None, what is wrong)."""
    from jsonschema import Draft202012Validator

    found, value = find_json(text)
    if not found:
        return None, "it holds no JSON value"
    errors = sorted(
        Draft202012Validator(schema).iter_errors(value), key=lambda error: list(map(str, error.path))
    )
    if errors:
        where = "/".join(map(str, errors[0].absolute_path)) or "the top level"
        return None, f"at {where}: {errors[0].message:.300}"
    if _other_values(text, value, Draft202012Validator(schema)):
        return None, "it holds two different values that fit; give one"
    return value, ""


def _other_values(text: str, value: Any, validator: Any) -> bool:
    """Whether another object or array in the text fits as well: a reply with two verdicts has none.

    Also where the text breaks off in too many places to tell.
    """
    decoder, start, stripped, broken = _decoder(), 0, text.strip(), 0
    while 0 <= start < len(stripped):
        try:
            other, end = decoder.raw_decode(stripped, start)
        except (ValueError, RecursionError):
            end, broken = start + 1, broken + 1
            if broken > _MAX_STARTS:
                return True
        else:
            if other != value and isinstance(other, dict | list) and validator.is_valid(other):
                return True
        start = _next_start(stripped, end)
    return False


def _next_start(text: str, begin: int) -> int:
    """Where the next object or array may begin; -1 where none does."""
    found = _START.search(text, begin)
    return found.start() if found else -1


def _decoder() -> json.JSONDecoder:
    """Strict: no NaN, and no key twice in an object, of which the last would silently win."""
    return json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def find_json(text: str) -> tuple[bool, Any]:
    """(True, value) of the text itself, or of its first JSON object or array, whatever stands around it."""
    decoder, stripped = _decoder(), text.strip()
    start = 0 if stripped else -1
    for _ in range(_MAX_STARTS):
        if start < 0:
            break
        try:
            value, end = decoder.raw_decode(stripped, start)
        except (ValueError, RecursionError):
            pass
        else:
            if start or isinstance(value, dict | list) or end == len(stripped):
                return True, value
        start = _next_start(stripped, start + 1)
    return False, None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _content(turn: Turn) -> dict[str, Any]:
    return turn.model_dump(mode="json", exclude={"started_at", "seconds", "weight"})
