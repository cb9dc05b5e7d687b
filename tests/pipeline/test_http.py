"""Retries, pauses, concurrency and routing, against scripted servers and an injected clock."""

from __future__ import annotations

import asyncio
import email.utils
import re
import time
import traceback
from typing import Any

import httpx
import pytest

from pipeline.errors import ConfigError, EngineError, EngineProtocolError
from pipeline.http import HttpPolicy, HttpPool, RequestRefusedError, _retry_after
from tests.serving import FakeClock, Received, Reply, ScriptedServer

OK = Reply({"fine": True})


def pool_of(*urls: str, clock: FakeClock | None = None, **policy: Any) -> HttpPool:
    clock = clock or FakeClock()
    return HttpPool(urls, policy=HttpPolicy(**policy), clock=clock, sleep=clock.sleep)


def ask(pool: HttpPool, count: int = 1, **kwargs: Any) -> list[Any]:
    async def run() -> list[Any]:
        try:
            jobs = (pool.request("/x", {"number": number}, **kwargs) for number in range(count))
            return await asyncio.gather(*jobs, return_exceptions=True)
        finally:
            await pool.close()

    return asyncio.run(run())


def test_a_broken_answer_is_tried_again_and_counted() -> None:
    def answer(received: Received) -> Reply:
        return [Reply(status=500), Reply({"fi": 1}, cut=True), OK][received.number]

    with ScriptedServer(answer) as server:
        pool = pool_of(server.url)
        assert ask(pool) == [{"fine": True}]
    assert pool.ledger() == {"broken": 2, "ok": 1}


def test_a_request_that_always_breaks_fails_after_max_tries() -> None:
    with ScriptedServer(lambda _: Reply("boom", status=500)) as server:
        [error] = ask(pool_of(server.url, max_tries=3))
        assert len(server.received) == 3
    assert isinstance(error, EngineError)
    assert "failed 3 times" in str(error) and "boom" in str(error)


def test_overload_waits_as_told_and_drops_nothing() -> None:
    def answer(received: Received) -> Reply:
        return OK if received.number >= 12 else Reply(status=429, headers={"retry-after": "7"})

    clock = FakeClock()
    with ScriptedServer(answer) as server:
        pool = pool_of(server.url, clock=clock, max_tries=1)
        results = ask(pool, 8)
    assert results == [{"fine": True}] * 8
    assert max(clock.slept) == pytest.approx(7.0)
    assert pool.ledger() == {"overloaded": 12, "ok": 8}


def test_permanent_overload_ends_with_an_error_after_the_patience() -> None:
    clock = FakeClock()
    with ScriptedServer(lambda _: Reply(status=503)) as server:
        [error] = ask(pool_of(server.url, clock=clock, patience=60.0))
    assert isinstance(error, EngineError)
    assert 60.0 < clock.now - 1000.0 < 60.0 + 21.0


@pytest.mark.parametrize("asked", ["1", "100000", "1e300", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_server_that_names_a_time_again_and_again_is_given_up_after_the_patience(asked: str) -> None:
    clock = FakeClock()

    async def sleep(seconds: float) -> None:
        assert clock.now < 1500.0, "it waits for ever"
        await clock.sleep(seconds)

    with ScriptedServer(lambda _: Reply(status=503, headers={"retry-after": asked})) as server:
        pool = HttpPool([server.url], policy=HttpPolicy(patience=60.0), clock=clock, sleep=sleep)
        [error] = ask(pool)
    assert isinstance(error, EngineError) and "patience is 60 s" in str(error)
    assert clock.now - 1000.0 <= 2 * 60.0 and max(clock.slept) <= 60.0


def test_a_dead_server_is_an_engine_error_that_names_it() -> None:
    with ScriptedServer(lambda _: OK) as server:
        url = server.url
    pool = pool_of(url, patience=30.0)
    [error] = ask(pool)
    assert isinstance(error, EngineError) and not isinstance(error, RequestRefusedError)
    assert url in str(error) and "is the server up" in str(error)
    assert set(pool.ledger()) == {"unreachable"}


def test_a_server_that_stops_answering_is_told_of_once_while_it_is_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    with ScriptedServer(lambda _: OK) as server:
        pool = pool_of(server.url, clock=clock)
        ask(pool)
        assert caplog.messages == []
    ask(pool, 3)
    [told] = caplog.messages
    assert server.url in told and "no connection" in told and "asked again for up to 120 s" in told


def test_a_server_that_was_never_reached_is_given_up_soon() -> None:
    with ScriptedServer(lambda _: OK) as server:
        url = server.url
    clock = FakeClock()
    [error] = ask(pool_of(url, clock=clock))
    assert isinstance(error, EngineError) and "patience is 10 s" in str(error)
    assert clock.now - 1000.0 < 30.0
    clock = FakeClock()
    with ScriptedServer(lambda _: OK) as server:
        pool = pool_of(server.url, clock=clock)
        ask(pool)
    ask(pool)
    assert clock.now - 1000.0 > 120.0, "a server that answered before may come back"


def test_those_in_a_dead_servers_queue_are_given_up_together() -> None:
    with ScriptedServer(lambda _: OK) as server:
        url = server.url
    clock = FakeClock()
    errors = ask(pool_of(url, clock=clock), 100)
    assert all(isinstance(error, EngineError) and "patience is 10 s" in str(error) for error in errors)
    assert clock.now - 1000.0 < 60.0, "not one after the other, each after a pause"


def test_a_wrong_request_is_refused_at_once() -> None:
    with ScriptedServer(lambda _: Reply({"message": "too long"}, status=400)) as server:
        [error] = ask(pool_of(server.url))
        assert len(server.received) == 1
    assert isinstance(error, RequestRefusedError) and "too long" in str(error)


@pytest.mark.parametrize("raw", [b"{not json", b""])
def test_an_answer_that_is_not_json_is_a_protocol_error_on_the_second_time(raw: bytes) -> None:
    with ScriptedServer(lambda _: Reply(raw=raw)) as server:
        [error] = ask(pool_of(server.url))
        assert len(server.received) == 2
    assert isinstance(error, EngineProtocolError)


def test_a_hanging_server_times_out() -> None:
    async def hang(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("slow", request=request)

    clock = FakeClock()
    pool = HttpPool(
        ["http://model"], policy=HttpPolicy(max_tries=2), transport=httpx.MockTransport(hang), clock=clock,
        sleep=clock.sleep,
    )  # fmt: skip
    [error] = ask(pool)
    assert isinstance(error, EngineError) and "ReadTimeout" in str(error)


class Gate:
    """An in-process server that holds requests back and counts how many it holds."""

    def __init__(self) -> None:
        self.now, self.most, self.by_host = 0, 0, dict[str, int]()
        self.status, self.open = 200, True

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.now += 1
        self.most = max(self.most, self.now)
        self.by_host[request.url.host] = self.by_host.get(request.url.host, 0) + 1
        for _ in range(5):
            await asyncio.sleep(0)
        self.now -= 1
        return httpx.Response(self.status, json={})


def gated(gate: Gate, *hosts: str, **policy: Any) -> tuple[HttpPool, FakeClock]:
    clock = FakeClock()
    urls = [f"http://{host}" for host in hosts or ("a",)]
    transport = httpx.MockTransport(gate)
    pool = HttpPool(urls, policy=HttpPolicy(**policy), transport=transport, clock=clock, sleep=clock.sleep)
    return pool, clock


def test_concurrency_is_bounded_and_everybody_is_served() -> None:
    gate = Gate()
    pool, _ = gated(gate, max_concurrency=6)
    assert ask(pool, 100) == [{}] * 100
    assert gate.most == 6


def test_concurrency_is_cut_by_overload_and_grows_again() -> None:
    gate = Gate()
    pool, _ = gated(gate, max_concurrency=64, patience=1.0)
    gate.status = 429
    ask(pool, 4)
    [server] = pool.servers
    low = server.limit
    assert low < 32
    gate.status = 200
    pool._last_success = pool._clock()
    ask(pool, 400)
    assert low < server.limit <= 64


def test_the_circuit_breaker_asks_one_at_a_time_after_failures_in_a_row() -> None:
    gate = Gate()
    pool, clock = gated(gate, max_tries=1, breaker_failures=3)
    gate.status = 500
    ask(pool, 3)
    [server] = pool.servers
    assert server.paused_until > clock.now and server.limit == 1
    gate.status, gate.most = 200, 0
    results = ask(pool, 1)
    assert results == [{}] and server.limit > 1 and clock.now >= server.paused_until


def test_requests_go_to_the_least_loaded_server() -> None:
    gate = Gate()
    pool, _ = gated(gate, "a", "b", "c")
    ask(pool, 30)
    assert gate.by_host == {"a": 10, "b": 10, "c": 10}


def test_affinity_keeps_requests_on_one_server_until_it_rests() -> None:
    gate = Gate()
    pool, clock = gated(gate, "a", "b")

    async def run() -> None:
        await asyncio.gather(pool.request("/x", affinity="g1"), pool.request("/x", affinity="g2"))
        for _ in range(5):
            await pool.request("/x", affinity="g2")
        assert gate.by_host == {"a": 1, "b": 6}
        pool.servers[1].paused_until = clock.now + 5
        await pool.request("/x", affinity="g2")
        assert gate.by_host == {"a": 2, "b": 6}
        assert clock.slept == []
        await pool.close()

    asyncio.run(run())


def test_a_dead_replica_loses_its_requests_to_the_living_one() -> None:
    with ScriptedServer(lambda _: OK) as dead:
        dead_url = dead.url
    with ScriptedServer(lambda _: OK) as alive:
        pool = pool_of(dead_url, alive.url)
        assert ask(pool, 20) == [{"fine": True}] * 20
        assert len(alive.received) == 20


def test_a_cancelled_request_gives_its_place_back() -> None:
    async def never(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        return httpx.Response(200)

    async def run() -> None:
        clock = FakeClock()
        pool = HttpPool(
            ["http://a"], policy=HttpPolicy(max_concurrency=1), transport=httpx.MockTransport(never),
            clock=clock, sleep=clock.sleep,
        )  # fmt: skip
        jobs: list[asyncio.Task[Any]] = [asyncio.create_task(pool.request("/x")) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert pool.servers[0].in_flight == 1
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        assert pool.servers[0].in_flight == 0
        await pool.close()

    asyncio.run(run())


def test_a_request_cancelled_in_a_pause_passes_its_place_on() -> None:
    async def run() -> None:
        gate, clock = Gate(), FakeClock()
        resting = asyncio.Event()

        async def sleep(seconds: float) -> None:
            clock.now += seconds
            await resting.wait()

        pool = HttpPool(
            ["http://a"], policy=HttpPolicy(max_concurrency=1), transport=httpx.MockTransport(gate),
            clock=clock, sleep=sleep,
        )  # fmt: skip
        pool.servers[0].in_flight = 1
        requests: list[asyncio.Task[Any]] = [asyncio.create_task(pool.request("/x")) for _ in range(2)]
        await asyncio.sleep(0)
        pool.servers[0].in_flight = 0
        pool.servers[0].paused_until = clock.now + 5
        pool._wake()
        await asyncio.sleep(0)
        requests[0].cancel()
        resting.set()
        assert await asyncio.wait_for(requests[1], 60) == {}
        await pool.close()

    asyncio.run(run())


def test_a_pool_works_in_one_event_loop_after_another() -> None:
    with ScriptedServer(lambda _: OK) as server:
        pool = pool_of(server.url)
        for _ in range(3):
            assert ask(pool, 2) == [{"fine": True}] * 2
        assert len(server.received) == 6


def test_retry_after_is_read_as_seconds_or_date() -> None:
    assert _retry_after({"retry-after": "2.5"}) == 2.5
    date = email.utils.format_datetime(email.utils.localtime().astimezone())
    later = email.utils.formatdate(time.time() + 100, usegmt=True)
    assert _retry_after({"retry-after": date}) == 0.0
    assert _retry_after({"retry-after": later}) == pytest.approx(100, abs=30)
    assert [_retry_after({"retry-after": value}) for value in ("soon", "inf", "nan", "1e999")] == [None] * 4
    assert _retry_after({"retry-after": "Fri, 31 Dec 9999 23:59:59 +9999999999999999"}) is None
    assert _retry_after({}) is None


@pytest.mark.parametrize(
    "urls",
    [[], ["localhost:8000"], ["ftp://x"], ["http://127.0.0.1:99999"], ["http://["], ["http://a b/"], [" "]],
)
def test_wrong_urls_are_refused(urls: list[str]) -> None:
    with pytest.raises(ConfigError, match="http"):
        HttpPool(urls)


@pytest.mark.parametrize(
    "url",
    [
        "http://me:4711@host:8000",
        "http://host:8000/?token=4711",
        "http://host:8000/#4711",
        "htp://me:4711@host",
    ],
)
def test_an_address_with_a_credential_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match=r"host may hold no user, password|is not an http") as caught:
        HttpPool([url])
    assert "4711" not in str(caught.value) and "host" in str(caught.value)


def test_an_answer_nested_too_deep_to_look_at_is_a_protocol_error() -> None:
    def nest(levels: int) -> Any:
        return [nest(levels - 1)] if levels else []

    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    with ScriptedServer(lambda _: OK) as server:
        pool = pool_of(server.url)
        [error] = ask(pool, validate=lambda _: nest(5000))
    assert isinstance(error, EngineProtocolError) and "the answer is nested too deep" in str(error)
    assert pool.shown(deep) == "what is nested too deep"


FLEET = "fleet/secret+4711"


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply({"got": f"Bearer {FLEET}"}, status=400), "HTTP 400.*Bearer"),
        (Reply(raw=b'{"got": "Bearer fleet\\/secret\\u002b4711"}', status=400), "HTTP 400.*Bearer"),
        (Reply(f"your token: {FLEET}", status=500), "HTTP 500.*your token"),
        (Reply("x" * 290 + FLEET, status=401), "HTTP 401"),
        (Reply(f"wait, {FLEET}", status=429), "HTTP 429.*wait"),
        (Reply(raw=f"<{FLEET}>".encode()), "answer is not JSON"),
        (Reply({"got": FLEET}), "got.*nonsense"),
        (Reply({"got": "x" * 180 + FLEET}), "nonsense"),
        (Reply(raw=b"[" * 5000), "answer is not JSON"),
    ],
)
def test_what_a_server_repeats_of_its_credentials_is_not_told(
    reply: Reply, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(answer: Any) -> None:
        raise EngineProtocolError(f"{answer!r:.200} is nonsense")

    clock = FakeClock()
    with ScriptedServer(lambda _: reply) as server:
        pool = HttpPool(
            [server.url],
            policy=HttpPolicy(patience=60.0, max_tries=6),
            headers={"authorization": f"Bearer {FLEET}"},
            clock=clock,
            sleep=clock.sleep,
        )
        [error] = ask(pool, validate=refuse)
        assert server.received[0].headers["authorization"] == f"Bearer {FLEET}"
    assert isinstance(error, EngineError)
    assert re.search(said, str(error)), error
    told = f"{error} {caplog.text} {''.join(traceback.format_exception(error))}"
    assert "fleet" not in told and "4711" not in told


def test_what_the_connection_says_of_a_credential_is_not_told() -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.RemoteProtocolError(f"illegal header line: {request.headers['authorization']}")

    clock = FakeClock()
    pool = HttpPool(
        ["http://x"],
        headers={"authorization": f"Bearer {FLEET}"},
        transport=httpx.MockTransport(fail),
        clock=clock,
        sleep=clock.sleep,
    )
    [error] = ask(pool)
    assert "illegal header line: Bearer ***" in str(error)
    assert "fleet" not in "".join(traceback.format_exception(error))
