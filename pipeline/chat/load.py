"""A chat from plain settings, as a recipe holds them: an OpenAI-compatible endpoint.

Settings never hold a key, only the name of the environment variable that does. Not covered: chats over our
own engines and scripted ones, which are made in code.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.chat.base import Chat
from pipeline.chat.core import ChatBudget
from pipeline.checks.options import check_options
from pipeline.errors import ConfigError

_REQUIRED = ("url", "model")
_ALLOWED = (*_REQUIRED, "name", "api_key_env", "params", "cache", "max_calls", "max_tokens", "max_asks")


def check_chat(settings: Mapping[str, Any], *, where: str) -> None:
    """ConfigError where `settings` make no chat; opens nothing."""
    unknown = sorted(set(settings) - set(_ALLOWED))
    missing = [key for key in _REQUIRED if not settings.get(key)]
    if unknown or missing:
        wrong = f"unknown {', '.join(unknown)}" if unknown else f"missing {', '.join(missing)}"
        raise ConfigError(f"{where}: {wrong}; a chat is set by {', '.join(_ALLOWED)}")
    check_options(_settings, settings, where=where)


def load_chat(settings: Mapping[str, Any], *, where: str = "chat") -> Chat:
    """The chat; `params` go into each request as they are. ConfigError for settings that make none."""
    from pipeline.chat.openai import OpenAIChat

    check_chat(settings, where=where)
    cache = settings.get("cache")
    budget = ChatBudget(max_calls=settings.get("max_calls"), max_tokens=settings.get("max_tokens"))
    return OpenAIChat(
        settings["url"],
        model=settings["model"],
        name=settings.get("name", ""),
        api_key_env=settings.get("api_key_env", ""),
        params=settings.get("params"),
        cache=Path(cache) if cache else None,
        budget=budget,
        max_asks=settings.get("max_asks", 3),
    )


def _settings(
    *,
    url: str,
    model: str,
    name: str = "",
    api_key_env: str = "",
    cache: str = "",
    max_calls: int | None = None,
    max_tokens: int | None = None,
    max_asks: int = 3,
) -> None:
    """The types of the settings."""
