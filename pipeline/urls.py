"""Addresses of servers: scheme, host and path. A credential has a place of its own (`checks.credentials`)."""

from __future__ import annotations

from urllib.parse import urlsplit

import httpx

from pipeline.checks.credentials import shown_url
from pipeline.errors import ConfigError


def checked_url(
    url: str,
    *,
    what: str = "server",
    instead: str = "name the environment variable of a key as api_key_env",
) -> str:
    """`url` without a slash at its end. ConfigError where it is none, or holds more than a place."""
    try:
        parsed = urlsplit(url)
        good = parsed.scheme in ("http", "https") and parsed.hostname and parsed.port != 0
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):  # an unclosed bracket, a port above 65535, a blank in the name
        good = False
    if not good or url.split() != [url]:
        raise ConfigError(
            f"{what} URL {shown_url(url)!r} is not an http(s) URL; write e.g. http://127.0.0.1:8000"
        )
    if parsed.username is not None or parsed.query or parsed.fragment:
        raise ConfigError(
            f"the URL of the {what} at {parsed.hostname} may hold no user, password, query or fragment, as "
            f"errors show it; {instead}"
        )
    return url.rstrip("/")
