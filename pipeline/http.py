"""Requests to one or many model servers: routing, concurrency, retries, pauses. Engines and chats share it.

What happens to a failed request: an overloaded server (429, 503, `Retry-After` honoured) or one that
refuses connections is paused for everybody and asked again; that never uses up a request's tries, only
the patience: seconds without any success anywhere, and the longest pause. A broken answer (500, timeout, cut
body) costs one of `max_tries`; an answer that fails validation is asked for once more. Concurrency follows
AIMD: slow start, +1 per round of successes, a cut at each overload. What a server says of a failure is told
without the credentials it was sent, should it repeat them. Not covered: streaming; a credential inside an
answer that is taken, which is what the model said.
"""

from __future__ import annotations

import asyncio
import collections
import email.utils
import json
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

import httpx

from pipeline.checks.credentials import blotted, blotted_json, header_secrets
from pipeline.errors import ConfigError, EngineError, EngineProtocolError
from pipeline.urls import checked_url

_log = logging.getLogger("trajsmith.http")
_T = TypeVar("_T")
_CUT = 0.7
_MAX_REMEMBERED = 65_536


def _as_is(answer: Any) -> Any:
    return answer


class FailureKind(StrEnum):
    """Why a try failed; also the keys of the retry ledger."""

    OVERLOADED = "overloaded"
    """429 or 503."""
    UNREACHABLE = "unreachable"
    """No connection."""
    BROKEN = "broken"
    """Another 5xx, a timeout, or a connection that ended inside the answer."""
    PROTOCOL = "protocol"
    """An answer that failed validation."""
    REFUSED = "refused"
    """Another 4xx: the request is wrong and asking again cannot help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPolicy:
    """How hard to try."""

    timeout: float = 600.0
    """Seconds for one try, waiting in the server's queue included."""
    patience: float = 120.0
    """Seconds without any success before unreachable or overloaded servers are given up."""
    first_patience: float = 10.0
    """The same where no server was ever reached: that is rather a wrong URL than a busy server."""
    max_tries: int = 4
    """Tries of one request that end in broken answers."""
    max_concurrency: int = 256
    """Requests in flight per server, at most; AIMD stays below."""
    backoff: float = 0.5
    """First pause in seconds; doubles up to `max_backoff`."""
    max_backoff: float = 20.0
    breaker_failures: int = 5
    """Failures in a row that pause a server (it is then asked one request at a time)."""


@dataclass(slots=True)
class Server:
    """Live state of one server."""

    url: str
    limit: float
    ceiling: float
    in_flight: int = 0
    failures_in_row: int = 0
    paused_until: float = 0.0
    cut_at: float = 0.0
    ledger: collections.Counter[str] = field(default_factory=collections.Counter)
    """Successes and failures so far, by kind."""

    @property
    def free(self) -> bool:
        """Whether one more request may be sent."""
        return self.in_flight < max(1, int(self.limit))


class RequestRefusedError(EngineError):
    """A 4xx other than 408 and 429: the request itself is wrong (too long a prompt, an unknown model)."""


class _Failure(Exception):
    def __init__(self, kind: FailureKind, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.kind, self.retry_after = kind, retry_after


class HttpPool:
    """Requests over one or many equal servers. `headers` are credentials.

    Close it before its event loop ends; it opens again in the next one (`asyncio.run` per training step).
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        policy: HttpPolicy | None = None,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        seed: int = 0,
    ) -> None:
        if not urls:
            raise ConfigError("no server URL given; pass at least one, e.g. http://127.0.0.1:8000")
        self.policy = policy or HttpPolicy()
        ceiling = float(self.policy.max_concurrency)
        self.servers = [Server(checked_url(url), limit=min(32.0, ceiling), ceiling=ceiling) for url in urls]
        self._headers, self._transport = dict(headers or {}), transport
        self._secrets = header_secrets(self._headers.values())
        self._clock, self._sleep, self._random = clock, sleep, random.Random(seed)
        self._homes: collections.OrderedDict[str, Server] = collections.OrderedDict()
        self._waiters: collections.deque[asyncio.Future[None]] = collections.deque()
        self._last_success = float("-inf")
        self._last_failure: tuple[_Failure, str] | None = None
        """What went wrong last, and what had been asked."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: httpx.AsyncClient | None = None

    async def request(
        self,
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        affinity: str = "",
        validate: Callable[[Any], _T] = _as_is,
        server: Server | None = None,
    ) -> _T:
        """The validated answer of one server: JSON where it says so, else text.

        `affinity` keeps related requests on one server while that server has room; `server` fixes it.
        `validate` raises EngineProtocolError for an answer that cannot be trusted. Raises EngineError.
        """
        started, tries = self._clock(), collections.Counter[FailureKind]()
        while True:
            chosen = await self._acquire(affinity, server, started)
            sent = self._clock()
            try:
                answer = await self._send(chosen, method, path, body)
                try:
                    value = validate(answer)
                except EngineProtocolError as error:
                    failure = _Failure(FailureKind.PROTOCOL, self._complaint(error, answer, validate))
                else:
                    self._succeeded(chosen)
                    return value
            except _Failure as error:
                failure = error
            except RecursionError:
                failure = _Failure(FailureKind.PROTOCOL, "the answer is nested too deep")
            finally:
                chosen.in_flight -= 1
                self._wake()
            self._failed(chosen, failure, sent)
            tries[failure.kind] += 1
            self._last_failure = failure, f"{method} {chosen.url}{path}"
            self._give_up(tries, started)
            if failure.kind is FailureKind.BROKEN:
                await self._sleep(self._jitter(tries[failure.kind]))

    async def broadcast(
        self,
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        validate: Callable[[Any], _T] = _as_is,
    ) -> list[_T]:
        """The validated answers of every server, in order; one failure fails all."""
        return await asyncio.gather(
            *(self.request(path, body, method=method, validate=validate, server=one) for one in self.servers)
        )

    def shown(self, answer: Any) -> str:
        """The beginning of an answer, as errors may show it."""
        try:
            return f"{blotted_json(answer, self._secrets)!r:.200}"
        except RecursionError:
            return "what is nested too deep"

    def ledger(self) -> dict[str, int]:
        """Successes ("ok") and failures by kind, over all servers."""
        total = sum((server.ledger for server in self.servers), collections.Counter())
        return dict(total)

    async def close(self) -> None:
        """Release connections; the next request opens new ones."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    async def _send(self, server: Server, method: str, path: str, body: Any) -> Any:
        try:
            reply = await self._connection().request(method, server.url + path, json=body)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            said = blotted(str(error) or type(error).__name__, self._secrets)
            raise _Failure(FailureKind.UNREACHABLE, f"no connection ({said})") from None
        except httpx.HTTPError as error:
            said = blotted(f"{type(error).__name__} {error}".strip(), self._secrets)
            raise _Failure(FailureKind.BROKEN, said) from None
        if reply.status_code >= 400:
            raise _status_failure(reply, blotted(reply.text, self._secrets))
        if "json" not in reply.headers.get("content-type", ""):
            return reply.text
        try:
            return json.loads(reply.content)
        except (ValueError, RecursionError):
            said = blotted(reply.text, self._secrets)
            raise _Failure(FailureKind.PROTOCOL, f"answer is not JSON: {said!r:.200}") from None

    def _complaint(self, error: EngineProtocolError, answer: Any, validate: Callable[[Any], object]) -> str:
        """What `validate` finds wrong with an answer, without our credentials.

        It may quote the beginning of one, so it looks again at an answer that holds none.
        """
        if self._secrets:
            try:
                validate(blotted_json(answer, self._secrets))
            except EngineProtocolError as again:
                error = again
        return blotted(str(error), self._secrets)

    def _connection(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._loop = loop
            self._client = httpx.AsyncClient(
                timeout=httpx.Timeout(self.policy.timeout, connect=10.0),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
                headers=self._headers,
                transport=self._transport,
                trust_env=False,
            )
        return self._client

    async def _acquire(self, affinity: str, fixed: Server | None, started: float) -> Server:
        """A server with one more request counted on it. A fixed one is not waited for beyond its pause.

        Raises EngineError for a request that waited through everybody's patience: else those in a dead
        server's queue would find out one by one, each after a pause.
        """
        try:
            while True:
                server = fixed or self._choose(affinity)
                pause = server.paused_until - self._clock()
                if pause > 0:
                    self._refuse_silence(started)
                    await self._sleep(pause)
                elif fixed or server.free:
                    server.in_flight += 1
                    return server
                else:
                    waiter = asyncio.get_running_loop().create_future()
                    self._waiters.append(waiter)
                    await waiter
        except (asyncio.CancelledError, EngineError):
            # It may have been woken for a place that another request can take.
            self._wake()
            raise

    def _choose(self, affinity: str) -> Server:
        """The remembered server while it has room, else the one with the fewest requests."""
        now = self._clock()
        least = min(
            self.servers,
            key=lambda one: (max(0.0, one.paused_until - now), not one.free, one.in_flight, one.ledger["ok"]),
        )
        home = self._homes.get(affinity, least) if affinity else least
        usable = home.free and home.paused_until <= now and home.in_flight <= 2 * least.in_flight + 8
        server = home if usable else least
        if affinity:
            self._homes[affinity] = server
            self._homes.move_to_end(affinity)
            if len(self._homes) > _MAX_REMEMBERED:
                self._homes.popitem(last=False)
        return server

    def _wake(self) -> None:
        room = sum(max(0, int(one.limit) - one.in_flight) or int(one.free) for one in self.servers)
        while room > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                room -= 1

    def _succeeded(self, server: Server) -> None:
        server.ledger["ok"] += 1
        server.failures_in_row = 0
        self._last_success = self._clock()
        step = 1.0 if server.limit < server.ceiling else 1.0 / server.limit
        server.limit = min(server.limit + step, float(self.policy.max_concurrency))

    def _failed(self, server: Server, failure: _Failure, sent: float) -> None:
        """Count, cut the concurrency once per round trip, pause the server where it needs rest."""
        server.ledger[failure.kind] += 1
        if failure.kind in (FailureKind.REFUSED, FailureKind.PROTOCOL):
            return
        server.failures_in_row += 1
        now = self._clock()
        resting = failure.kind is not FailureKind.BROKEN
        if resting and sent >= server.cut_at:
            server.cut_at = now
            server.ceiling = server.limit = max(1.0, server.limit * _CUT)
        broken_circuit = server.failures_in_row >= self.policy.breaker_failures
        if broken_circuit:
            server.limit = 1.0
        if server.failures_in_row == self.policy.breaker_failures:
            message = "%s failed %d times in a row (%s); it is asked again for up to %.0f s"
            _log.warning(message, server.url, server.failures_in_row, failure, self._patience())
        if resting or broken_circuit:
            pause = failure.retry_after
            if pause is None:
                pause = self._jitter(server.failures_in_row)
            # Whoever would have us wait for longer than the patience is asked once more when it runs out.
            server.paused_until = max(server.paused_until, now + min(pause, self._patience()))

    def _give_up(self, tries: collections.Counter[FailureKind], started: float) -> None:
        assert self._last_failure is not None
        failure, what = self._last_failure
        if failure.kind is FailureKind.PROTOCOL and tries[failure.kind] >= 2:
            raise EngineProtocolError(f"{what}: {failure}") from failure
        if failure.kind is FailureKind.REFUSED:
            raise RequestRefusedError(f"{what} was refused: {failure}") from failure
        if tries[FailureKind.BROKEN] >= self.policy.max_tries:
            raise EngineError(
                f"{what} failed {tries[FailureKind.BROKEN]} times, last: {failure}"
            ) from failure
        self._refuse_silence(started)

    def _refuse_silence(self, started: float) -> None:
        """EngineError for a request from `started` where nothing succeeded for longer than the patience."""
        if self._last_failure is None:
            return
        quiet = self._clock() - max(started, self._last_success)
        if quiet > self._patience():
            failure, what = self._last_failure
            raise EngineError(
                f"{what}: nothing succeeded for {quiet:.0f} s, last: {failure}; is the server up? "
                f"(patience is {self._patience():.0f} s)"
            ) from failure

    def _patience(self) -> float:
        reached = any(set(server.ledger) - {FailureKind.UNREACHABLE} for server in self.servers)
        return self.policy.patience if reached else min(self.policy.first_patience, self.policy.patience)

    def _jitter(self, failures: int) -> float:
        longest = min(self.policy.max_backoff, self.policy.backoff * 2 ** min(failures - 1, 16))
        return float(longest * (0.5 + 0.5 * self._random.random()))


def _status_failure(reply: httpx.Response, said: str) -> _Failure:
    message = f"HTTP {reply.status_code}: {said!r:.300}"
    if reply.status_code in (429, 503):
        return _Failure(FailureKind.OVERLOADED, message, _retry_after(reply.headers))
    broken = reply.status_code >= 500 or reply.status_code == 408
    return _Failure(FailureKind.BROKEN if broken else FailureKind.REFUSED, message)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds the server asks to wait: a number or an HTTP date; None where it says nothing sensible."""
    value = headers.get("retry-after", "")
    try:
        seconds = float(value)
        return max(0.0, seconds) if math.isfinite(seconds) else None
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (OverflowError, ValueError):  # of a time zone or a year that no date has
        return None
