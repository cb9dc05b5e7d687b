"""Requests to the one host the user named, with credentials that exist on the wire only.

Decides: only the given scheme, host and port are called; a redirect elsewhere is refused. What is nobody's
fault is tried again (no connection, 429, 5xx, a timeout), a POST or PATCH only where the server cannot have
acted on it. Credentials are added below the HTTP client, so that neither its log nor its errors hold them,
and are blotted out of whatever the server says. Cookies live as long as the session. Not covered: OAuth
flows, client certificates.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urljoin

import httpx

from data import canonical
from pipeline.checks.credentials import blotted, read_variable, shown_url
from pipeline.environments.openapi.request import ApiRequest
from pipeline.errors import ConfigError, EnvironmentFailure

_REPEATABLE = ("GET", "HEAD", "OPTIONS", "PUT", "DELETE")
_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_REDIRECTS = 5
_BINARY = ("image/", "audio/", "video/", "application/octet-stream", "application/zip")


@dataclass(frozen=True, slots=True)
class ClientPolicy:
    """How hard to try."""

    timeout: float = 20.0
    """Seconds for one try."""
    max_tries: int = 3
    backoff: float = 0.5
    """Seconds before the second try; doubles. `Retry-After` is honoured up to `timeout`."""
    max_bytes: int = 1_000_000
    """What is read of an answer."""

    def __post_init__(self) -> None:
        if self.timeout <= 0 or self.max_tries < 1 or self.backoff < 0 or self.max_bytes < 1:
            raise ConfigError(
                f"{self}: timeout above 0, max_tries and max_bytes at least 1, backoff at least 0"
            )


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said."""

    status: int
    media_type: str
    text: str
    """Cut at `max_bytes`, which "..." at its end says."""


@dataclass(frozen=True)
class Credential:
    """One security scheme and its secret, which never shows in a repr."""

    place: str
    """header, query or cookie."""
    name: str
    value: str
    secrets: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Credential({self.place} {self.name}, <hidden>)"


def without_credentials(text: str, credentials: Iterable[Credential]) -> str:
    """`text` without what any of them keeps secret."""
    return blotted(text, [secret for item in credentials for secret in item.secrets])


def credential(scheme: Mapping[str, Any], variable: str, *, name: str) -> Credential:
    """The credential of a security scheme from an environment variable. Raises ConfigError, without it."""
    secret = read_variable(variable, where=f"auth {name!r}")
    kind, way = str(scheme.get("type")), str(scheme.get("scheme", "")).lower()
    if kind == "apiKey" and scheme.get("in") in ("header", "query", "cookie"):
        return Credential(str(scheme["in"]), str(scheme["name"]), secret, (secret,))
    if kind == "http" and way == "basic":
        coded = base64.b64encode(secret.encode("ascii")).decode("ascii")
        parts = (secret, coded, secret.partition(":")[2])
        return Credential("header", "authorization", f"Basic {coded}", parts)
    if (kind == "http" and way == "bearer") or kind in ("oauth2", "openIdConnect"):
        return Credential("header", "authorization", f"Bearer {secret}", (secret,))
    raise ConfigError(f"auth {name!r}: {kind} {way} is not supported; apiKey, basic and bearer are")


class ApiClient:
    """Asks one server. Close it before its event loop ends."""

    def __init__(
        self,
        url: str,
        *,
        credentials: Mapping[str, Credential] | None = None,
        policy: ClientPolicy | None = None,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.url = checked_base_url(url)
        self._credentials, self._policy = dict(credentials or {}), policy or ClientPolicy()
        self._sleep = sleep
        self._client = httpx.AsyncClient(
            transport=_KeyedTransport(transport or _transport(self.url)),
            timeout=self._policy.timeout,
            headers=headers,
            trust_env=False,
        )

    async def send(self, request: ApiRequest, *, schemes: Sequence[str] = ()) -> Answer:
        """The server's answer, also 4xx; `schemes` names the credentials. Raises EnvironmentFailure."""
        for number in range(1, self._policy.max_tries + 1):
            last = number == self._policy.max_tries
            try:
                reply, answer = await self._once(request, schemes)
            except httpx.HTTPError as error:
                unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
                if last or not (unsent or request.method in _REPEATABLE):
                    text = f"{type(error).__name__} {error}".strip()
                    raise self._failure(request, number, text) from None
                await self._sleep(self._pause(number, None))
                continue
            overloaded = reply.status_code in (429, 503)
            if reply.status_code < 500 and reply.status_code not in (401, 407, 408, 429):
                return answer
            again = overloaded or (request.method in _REPEATABLE and reply.status_code >= 500)
            if last or not again:
                raise self._failure(request, number, f"HTTP {reply.status_code} {answer.text:.120}")
            await self._sleep(self._pause(number, reply.headers.get("retry-after")))
        raise AssertionError("unreachable")

    async def close(self) -> None:
        """Release the connections."""
        await self._client.aclose()

    async def _once(self, request: ApiRequest, schemes: Sequence[str]) -> tuple[httpx.Response, Answer]:
        target = self.url + request.path + (f"?{request.query}" if request.query else "")
        method, content, files = request.method, request.content, list(request.files) or None
        for _ in range(_MAX_REDIRECTS + 1):
            made = self._client.build_request(
                method, target, headers=dict(request.headers), content=content, files=files
            )
            made.extensions["credentials"] = [
                self._credentials[name] for name in schemes if name in self._credentials
            ]
            reply = await self._client.send(made, stream=True)
            try:
                location = reply.headers.get("location")
                if reply.status_code not in _REDIRECTS or location is None:
                    return reply, await self._read(reply)
            finally:
                await reply.aclose()
            target = self._redirected(target, location)
            if reply.status_code not in (307, 308):
                method, content, files = "GET", None, None
        raise self._failure(request, 1, f"more than {_MAX_REDIRECTS} redirects")

    def _redirected(self, target: str, location: str) -> str:
        """Where to ask next. EnvironmentFailure where that is another server."""
        try:
            there = httpx.URL(urljoin(target, location))
        except (httpx.InvalidURL, ValueError):
            raise EnvironmentFailure(f"{self.url} redirects to something that is no URL") from None
        if _origin(there) != _origin(httpx.URL(self.url)):
            raise EnvironmentFailure(
                f"{self.url} redirects to {there.scheme}://{there.host}; only the given server is called"
            )
        return str(there)

    async def _read(self, reply: httpx.Response) -> Answer:
        data, mark = b"", ""
        async for chunk in reply.aiter_bytes():
            data += chunk
            if len(data) > self._policy.max_bytes:
                data, mark = data[: self._policy.max_bytes], "..."
                break
        media_type = reply.headers.get("content-type", "").split(";")[0].strip().lower()
        if media_type.startswith(_BINARY):
            return Answer(reply.status_code, media_type, f"<{len(data)} bytes of {media_type}>")
        try:
            text = data.decode(reply.charset_encoding or "utf-8", errors="replace")
        except LookupError:
            text = data.decode("utf-8", errors="replace")
        with contextlib.suppress(ValueError, RecursionError):
            text = canonical.dumps(canonical.loads(text))  # one spelling, however a server spaces and escapes
        clean = without_credentials(text, self._credentials.values())
        return Answer(reply.status_code, media_type, clean + mark)

    def _failure(self, request: ApiRequest, tries: int, text: str) -> EnvironmentFailure:
        return EnvironmentFailure(
            f"{request.method} {self.url}{request.path} failed in {tries} tries: "
            f"{without_credentials(text, self._credentials.values())}"
        )

    def _pause(self, number: int, retry_after: str | None) -> float:
        try:
            return min(self._policy.timeout, max(0.0, float(retry_after or "")))
        except ValueError:
            return float(self._policy.backoff * 2 ** (number - 1))


class _KeyedTransport(httpx.AsyncBaseTransport):
    """Adds the credentials to a copy of each request, below everything that logs or raises."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        extensions = dict(request.extensions)
        url, headers = request.url, request.headers.copy()
        for item in extensions.pop("credentials", ()):
            if item.place == "query":
                pair = f"{quote(item.name, safe='')}={quote(item.value, safe='')}".encode("ascii")
                raw = url.query + b"&" + pair if url.query else pair
                url = url.copy_with(query=raw)
            elif item.place == "cookie":
                kept = headers.get("cookie")
                cookie = f"{item.name}={quote(item.value, safe='')}"
                headers["cookie"] = f"{kept}; {cookie}" if kept else cookie
            else:
                headers[item.name] = item.value
        sent = httpx.Request(
            request.method, url, headers=headers, stream=request.stream, extensions=extensions
        )
        try:
            return await self._inner.handle_async_request(sent)
        except httpx.HTTPError as error:
            error.request = request
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()


def _transport(url: str) -> httpx.AsyncHTTPTransport:
    """One TLS context for all sessions, since making one takes longer than a call; none for http."""
    secure = url.startswith("https:")
    return httpx.AsyncHTTPTransport(verify=_tls() if secure else False, trust_env=False)


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)


def checked_base_url(url: str) -> str:
    """`url` without a trailing slash. Raises ConfigError; credentials in a URL are refused."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(
            f"base URL {shown_url(url)!r} is no http(s) URL; write e.g. http://127.0.0.1:8000/v1"
        )
    if parsed.userinfo or parsed.query or parsed.fragment:
        raise ConfigError("the base URL may hold no user, password, query or fragment; name them in `auth`")
    return url.rstrip("/")


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)
