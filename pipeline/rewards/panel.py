"""What all judged rewards share: the judges, how they are asked, and how a record is shown to them.

Decides: judges are named by plain settings and opened at the first use, so a reward can be pickled and made
before any server runs; a record is shown as JSON, so that text in it cannot pretend to be the frame around
it; a judge's reply is structured and validated by its chat; and whatever goes wrong with a judge is a
JudgeError. Reasoning and private parts are not shown unless an option says so. Not covered: what is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from data import canonical
from data.messages import Turn, user
from data.trajectories import Trajectory
from pipeline.chat.base import Chat
from pipeline.chat.load import check_chat, load_chat
from pipeline.errors import ConfigError, JudgeError
from pipeline.rewards.base import judge_failure

MAX_CHARACTERS = 24_000
"""Of a record that is shown; the middle of a longer one is left out, and the judge is told so."""


class Panel:
    """One judge or several, each with a name of its own."""

    def __init__(self, judges: Sequence[Mapping[str, Any] | Chat], *, reward: str) -> None:
        """`judges`: settings of a chat each (`pipeline.chat.load`), or chats. ConfigError where none."""
        if not judges:
            raise ConfigError(f"reward {reward} needs at least one judge: a list of {{url, model}}")
        self._judges = list(judges)
        for number, judge in enumerate(self._judges):
            if isinstance(judge, Mapping):
                check_chat(judge, where=f"reward {reward}.judges[{number}]")
        self.names = [_name(judge) for judge in self._judges]
        if len(set(self.names)) < len(self.names):
            raise ConfigError(f"reward {reward}: judges need different names, got {', '.join(self.names)}")
        self._chats: list[Chat] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_chats": None}

    def __len__(self) -> int:
        return len(self.names)

    async def ask(self, prompt: str, schema: dict[str, Any]) -> list[dict[str, Any]]:
        """Every judge's reply, in order. JudgeError where any of them failed."""
        return list(await asyncio.gather(*(self.ask_one(i, prompt, schema) for i in range(len(self)))))

    async def ask_one(self, index: int, prompt: str, schema: dict[str, Any]) -> dict[str, Any]:
        """The reply of one judge. JudgeError where it failed, ConfigError and budgets as they are."""
        try:
            reply = await self._opened()[index].reply([user(prompt)], schema=schema)
            value = canonical.loads(reply.text)
        except Exception as error:
            raise JudgeError(f"judge {self.names[index]}: {judge_failure(error)}") from error
        if not isinstance(value, dict):
            raise JudgeError(f"judge {self.names[index]} replied {type(value).__name__}, not an object")
        return value

    async def close(self) -> None:
        """Release connections."""
        chats, self._chats = self._chats or [], None
        for chat in chats:
            await chat.close()

    def _opened(self) -> list[Chat]:
        if self._chats is None:
            self._chats = [
                load_chat(judge) if isinstance(judge, Mapping) else judge for judge in self._judges
            ]
        return self._chats


def fill(prompt: str, **values: str) -> str:
    """The prompt file `prompt` with its `$names` replaced; what is put in is never looked at again."""
    return _template(prompt).substitute(values)


def shown(turns: Sequence[Turn], *, max_characters: int = MAX_CHARACTERS) -> str:
    """Turns as JSON text for a judge: who said or called what, and what was answered."""
    text = canonical.dumps([_shown_turn(turn) for turn in turns])
    if len(text) <= max_characters:
        return text
    half = max_characters // 2
    left_out = f" ... [{len(text) - 2 * half} characters left out here] ... "
    return text[:half] + left_out + text[-half:]


def answer_words(trajectory: Trajectory) -> int:
    """Words of the last assistant text: the length that a judge may be biased by."""
    return len(trajectory.turns[-1].text.split()) if trajectory.turns else 0


def reference_note(task_private: Any, key: str, *, reward: str) -> str:
    """The part of a prompt that tells a judge the right answer; "" where `key` is ""."""
    if not key:
        return ""
    if not isinstance(task_private, dict) or key not in task_private:
        raise ConfigError(f"reward {reward}: the private part of the task has no {key!r} to show a judge")
    return f"\nThe right answer, known to you only: {canonical.dumps(task_private[key])}\n"


def _shown_turn(turn: Turn) -> dict[str, Any]:
    value: dict[str, Any] = {"role": str(turn.role)}
    if turn.text:
        value["text"] = turn.text
    if turn.tool_calls:
        value["calls"] = [
            {"name": call.name, "arguments": call.arguments} if call.ok else {"unreadable": call.raw}
            for call in turn.tool_calls
        ]
    if turn.result is not None:
        value["tool"], value["status"] = turn.result.name, str(turn.result.status)
    return value


def _name(judge: Mapping[str, Any] | Chat) -> str:
    return str(judge.get("name") or judge["model"]) if isinstance(judge, Mapping) else judge.name


@cache
def _template(name: str) -> Template:
    path = Path(__file__).parent / "prompts" / f"{name}.txt"
    return Template(path.read_text(encoding="utf-8"))
