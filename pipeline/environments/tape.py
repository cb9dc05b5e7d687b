"""The cassette's file: answers of live tools, one JSON line each, without secrets.

A secret is the value of an argument or key named in `scrub` (any case, at any depth) or of an environment
variable named in `scrub_env`. It becomes `***` in the key, in the file and in what the agent sees, so that a
replay shows what the recording showed. A line that a crash cut is dropped when the file is opened.
Not covered: secrets nobody named; when to record (`cassette`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from data import canonical
from data.files import disk_errors
from data.messages import ToolResult
from pipeline.checks.credentials import BLOT, blotted, blotted_json, check_variable
from pipeline.errors import ConfigError

SCRUB = ("api_key", "apikey", "x-api-key", "authorization", "password", "access_token")

Key = tuple[str, str, str, int]
"""Task, tool, canonical arguments, how often the session had asked that before."""


class CassetteMode(StrEnum):
    """What a live tool's call does; see the module docstring."""

    RECORD = "record"
    REPLAY = "replay"
    AUTO = "auto"


class Cassette:
    """The file and its answers in memory."""

    def __init__(
        self, path: Path, mode: CassetteMode, *, scrub: Sequence[str] = SCRUB, scrub_env: Sequence[str] = ()
    ) -> None:
        self.path, self.mode = path, mode
        self._names = {name.lower() for name in scrub}
        self._env = tuple(scrub_env)
        for name in self._env:
            check_variable(name, where="each of the cassette's scrub_env")
        self._answers: dict[Key, ToolResult] = {}
        if path.exists():
            self._load()
        elif mode is CassetteMode.REPLAY:
            raise ConfigError(f"there is no cassette {path}; record it first (mode record or auto)")

    def __len__(self) -> int:
        return len(self._answers)

    def find(self, key: Key) -> ToolResult | None:
        """The recorded answer; always None while recording."""
        return None if self.mode is CassetteMode.RECORD else self._answers.get(key)

    def add(self, key: Key, result: ToolResult) -> ToolResult:
        """Record `result` unless the key was answered meanwhile; the one that counts. Raises StoreError."""
        if self.mode is CassetteMode.AUTO and key in self._answers:
            return self._answers[key]
        task_id, tool, arguments, occurrence = key
        line = canonical.dumps(
            {
                "task_id": task_id,
                "tool": tool,
                "arguments": canonical.loads(arguments),
                "occurrence": occurrence,
                "result": result.model_dump(mode="json", exclude={"call_id", "name"}),
            }
        )
        with disk_errors(self.path, safe="earlier answers are untouched"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file:
                end, rest = file.tell(), f"{line}\n".encode("ascii")
                try:
                    while rest:
                        rest = rest[file.write(rest) :]
                except OSError:
                    file.truncate(end)  # half a line would take the next one with it
                    raise
        self._answers[key] = result
        return result

    def scrubbed(self, arguments: dict[str, Any]) -> tuple[str, list[str]]:
        """The arguments' canonical text without secrets, and the secrets."""
        secrets = [value for name in self._env if (value := os.environ.get(name))]
        clean = self._clean(arguments, secrets)
        return canonical.dumps(blotted_json(clean, secrets), sort_keys=True), secrets

    def clean_result(self, result: ToolResult, secrets: Sequence[str]) -> ToolResult:
        """The result without secrets."""
        parts = tuple(
            part.model_copy(update={"text": self._clean_text(part.text, secrets)}) for part in result.parts
        )
        return result.model_copy(update={"parts": parts})

    def _clean_text(self, text: str, secrets: Sequence[str]) -> str:
        try:
            value = canonical.loads(text)
        except ValueError:
            return blotted(text, secrets)
        found: list[str] = list(secrets)
        cleaned = blotted_json(self._clean(value, found), found)
        return text if cleaned == value else canonical.dumps(cleaned)

    def _clean(self, value: Any, secrets: list[str]) -> Any:
        """`value` with the values of secret names scrubbed; they are added to `secrets`."""
        if isinstance(value, list):
            return [self._clean(item, secrets) for item in value]
        if not isinstance(value, dict):
            return value
        cleaned = {}
        for name, item in value.items():
            if name.lower() in self._names and item not in (None, ""):
                secrets.append(str(item))
                cleaned[name] = BLOT
            else:
                cleaned[name] = self._clean(item, secrets)
        return cleaned

    def _load(self) -> None:
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data) and self.mode is not CassetteMode.REPLAY:
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        for number, line in enumerate(whole.decode("ascii", errors="replace").splitlines(), 1):
            try:
                row = canonical.loads(line)
                arguments = canonical.dumps(row["arguments"], sort_keys=True)
                key = (row["task_id"], row["tool"], arguments, row["occurrence"])
                self._answers[key] = ToolResult(call_id="", name=row["tool"], **row["result"])
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{self.path}, line {number} is no recorded answer: {error}") from error
