"""Which chat plays which role of a synthesizer; none plays none, and the method runs without it.

A recipe names chats as `pipeline.chat.load` reads them, or "policy": the policy itself, by its engine. A
role that the synthesizer does not have is an error before anything is asked. Replies are kept in the run, so
that a resumed synthesis pays for none twice, and so is what they cost. Not covered: what roles say (`roles`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pipeline.chat.base import Chat
from pipeline.chat.core import CachedChat
from pipeline.chat.engine import EngineChat
from pipeline.chat.load import chat_factory, check_chat, load_chat
from pipeline.engines.base import Engine, Sampling
from pipeline.errors import ConfigError
from pipeline.renderers.base import Renderer

ChatSetting = Chat | str | Mapping[str, Any]
POLICY = "policy"
CHATS = "chats"
"""Folder of a run: for each synthesizer the replies of its chats, and their ledger."""
_MAX_REPLY_TOKENS = 512


def check_chats(
    default: ChatSetting | None, by_role: Mapping[str, ChatSetting], *, known: Sequence[str], method: str
) -> None:
    """ConfigError where `by_role` names a role that `method` does not have, or a setting makes no chat.

    Of `known`, a name that ends in `_*` stands for numbered ones. Nothing is opened.
    """
    for role in by_role:
        if any(fnmatchcase(role, name) for name in known):
            continue
        near = difflib.get_close_matches(role, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        has = f"its roles: {', '.join(known)}" if known else "it has no roles"
        raise ConfigError(f"chats: {method} has no role {role!r}; {hint}{has}")
    for where, setting in {"chat": default, **{f"chats.{role}": by_role[role] for role in by_role}}.items():
        if isinstance(setting, Mapping):
            check_chat(setting, where=where)
        elif isinstance(setting, str):
            if setting != POLICY:
                chat_factory(setting, where=where)
        elif setting is not None and not hasattr(setting, "reply"):
            raise ConfigError(
                f"{where}: {setting!r} is no chat; give its url and model, module:function, or {POLICY!r}"
            )


def setting_name(setting: ChatSetting) -> str:
    """What the chat of a setting is called; of `module:factory` that text, as nothing is opened."""
    if isinstance(setting, Mapping):
        return str(setting.get("name") or setting["model"])
    return setting if isinstance(setting, str) else setting.name


@dataclass(kw_only=True)
class RoleChats:
    """`default` plays every role that `by_role` does not name; None = nobody."""

    default: ChatSetting | None = None
    by_role: Mapping[str, ChatSetting] = field(default_factory=dict)
    directory: Path | None = None
    engine: Engine | None = None
    renderer: Renderer | None = None
    _made: dict[str, Chat] = field(default_factory=dict)

    def of(self, role: str) -> Chat | None:
        """The chat that plays `role`. ConfigError where its setting makes none."""
        setting = self.by_role.get(role, self.default)
        if setting is None:
            return None
        key = setting if isinstance(setting, str) else str(id(setting))
        if key not in self._made:
            self._made[key] = self._open(setting, where=f"chat of role {role}")
        return self._made[key]

    async def close(self) -> None:
        """Release all connections; the policy's engine stays open."""
        for key, chat in self._made.items():
            if key != POLICY:
                await chat.close()

    def _open(self, setting: ChatSetting, *, where: str) -> Chat:
        if setting == POLICY and self.engine is not None and self.renderer is not None:
            sampling = Sampling(temperature=0.7, max_tokens=_MAX_REPLY_TOKENS)
            chat: Chat = EngineChat(self.engine, self.renderer, sampling=sampling)
        else:
            chat = load_chat(setting, where=where)
        if isinstance(chat, CachedChat) and self.directory is not None:
            chat.keep_in(self.directory)
        return chat
