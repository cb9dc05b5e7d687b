"""A chat as a recipe or an option names it: settings of an OpenAI-compatible endpoint, or `module:factory`.

Settings never hold a key, only the name of the environment variable that does. Chats over our own engines and
scripted ones are made in code: by a factory, or handed over as they are. Not covered: what a chat says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.chat.base import Chat
from pipeline.chat.core import ChatBudget
from pipeline.checks.credentials import check_variable, shown_url
from pipeline.checks.options import check_options
from pipeline.dotted import load_dotted
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
    if settings.get("api_key_env"):
        check_variable(settings["api_key_env"], where=f"{where}.api_key_env")
    if not settings["url"].startswith(("http://", "https://")):
        raise ConfigError(
            f"{where}.url must start with http:// or https://, got {shown_url(settings['url'])!r}"
        )
    if not isinstance(settings.get("params") or {}, Mapping):
        raise ConfigError(f"{where}.params must be a mapping of request fields, got {settings['params']!r}")
    for key in ("max_calls", "max_tokens", "max_asks"):
        if settings.get(key) is not None and settings[key] < 1:
            raise ConfigError(f"{where}.{key} must be at least 1, got {settings[key]}")


def chat_factory(named: str, *, where: str) -> Callable[[], Any]:
    """What `module:factory` names; calls nothing. ConfigError where it is no function."""
    factory: Any = load_dotted(named, what=where)
    if not callable(factory):
        raise ConfigError(f"{where} {named!r} is a {type(factory).__name__}; name a function without options")
    return factory  # type: ignore[no-any-return]


def load_chat(named: Chat | str | Mapping[str, Any], *, where: str = "chat") -> Chat:
    """The chat that settings, a `module:factory` or a chat itself name. ConfigError where that makes none."""
    if isinstance(named, Mapping):
        return _from_settings(named, where=where)
    made: Any = named
    if isinstance(named, str):
        factory = chat_factory(named, where=where)
        try:
            made = factory()
        except TypeError as error:
            raise ConfigError(f"{where} {named!r} must be a function without options: {error}") from error
    if not hasattr(made, "reply"):
        raise ConfigError(f"{where} {named!r} is a {type(made).__name__}, which has no `reply`; name a Chat")
    chat: Chat = made
    return chat


def _from_settings(settings: Mapping[str, Any], *, where: str) -> Chat:
    """`params` go into each request as they are."""
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
