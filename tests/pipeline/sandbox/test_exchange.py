"""Whose clock runs: a jail that speaks late, a host that sleeps, a program that waits. All made up."""

import os
import select
import socket
import struct
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from pipeline.sandbox import exchange
from pipeline.sandbox.exchange import PATIENCE, Capture, Ending, Exchange, Report, Watch

STARTED, ENDED, DONE = b"S", b"E" + struct.pack(">i", 0), b"D"
COMPILED = b"C" + struct.pack(">i", 0)


def frame(content: bytes) -> bytes:
    return content[:1] + struct.pack(">I", len(content) - 1) + content[1:]


class World:
    """A clock of its own that moves while the host waits, and a jail that speaks at given times."""

    def __init__(self, *said: tuple[float, bytes]) -> None:
        self.now = 0.0
        self.oversleeps: dict[float, float] = {}
        """Time to the seconds by which a wait after it is too long."""
        self.inside, self.outside = socket.socketpair()
        self._said = list(said)
        self._poller = select.poll()

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        late = [at for at in self.oversleeps if at <= self.now]
        self.now += milliseconds / 1000 + sum(map(self.oversleeps.pop, late))
        while self._said and self._said[0][0] <= self.now:
            content = self._said.pop(0)[1]
            self.inside.sendall(frame(content)) if content else self.inside.close()
        return self._poller.poll(0)

    def __getattr__(self, name: str) -> object:
        return getattr(self._poller, name)


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Report]:
    def held(
        world: World,
        *,
        starved: Callable[[float], float] = lambda _: 0.0,
        still: Callable[[], bool] = lambda: False,
        look: Callable[[], bool] | None = None,
        compiles: float | None = None,
    ) -> Report:
        monkeypatch.setattr(exchange, "time", SimpleNamespace(monotonic=lambda: world.now))
        monkeypatch.setattr(exchange, "select", SimpleNamespace(poll=lambda: world, POLLIN=select.POLLIN))
        reading, writing = os.pipe()
        os.close(writing)
        watch = Watch(
            compile_seconds=compiles,
            run_seconds=2.0,
            max_report_bytes=1000,
            before_run=lambda: True,
            starved_seconds=starved,
            stands_still=still,
            too_much_memory=look,
        )
        stream = Capture(reading, 10)
        with world.inside, world.outside:
            report = Exchange(world.outside, [stream], watch).hold()
        stream.close()
        return report

    return held


def test_the_programs_clock_begins_when_the_program_does(hold: Callable[..., Report]) -> None:
    report = hold(World((25.0, STARTED), (26.5, ENDED), (50.0, DONE)))
    assert (report.ending, report.status) == (Ending.DONE, 0)
    assert report.seconds == pytest.approx(1.5, abs=0.2)
    report = hold(World((25.0, STARTED)))
    assert (report.ending, report.status) == (Ending.DEADLINE, None)
    assert report.seconds == pytest.approx(2.0, abs=0.2)


def test_compiler_and_program_have_a_clock_each(hold: Callable[..., Report]) -> None:
    late = [(20.0, STARTED), (24.0, COMPILED), (50.0, STARTED), (51.5, ENDED), (51.6, DONE)]
    report = hold(World(*late), compiles=5.0)
    assert (report.ending, report.compile_status, report.status) == (Ending.DONE, 0, 0)
    report = hold(World((20.0, STARTED), (26.0, COMPILED)), compiles=5.0)
    assert (report.ending, report.compile_status) == (Ending.DEADLINE, None)


def test_a_jail_that_says_nothing_is_silent_not_late(hold: Callable[..., Report]) -> None:
    for said in ([], [(1.0, STARTED), (2.0, ENDED)]):
        world = World(*said)
        assert hold(world).ending is Ending.SILENT
        assert world.now >= PATIENCE


@pytest.mark.parametrize("said", [(STARTED, STARTED), (DONE,), (STARTED, ENDED, b""), (STARTED, b"")])
def test_a_jail_that_breaks_off_or_the_order_is_gone(
    said: tuple[bytes, ...], hold: Callable[..., Report]
) -> None:
    assert hold(World(*((0.5, each) for each in said))).ending is Ending.GONE


@pytest.mark.parametrize("overslept", [5.0, 500.0])
def test_what_the_host_overslept_is_not_the_programs(hold: Callable[..., Report], overslept: float) -> None:
    def slow(seconds: float) -> Report:
        world = World((0.0, STARTED), (overslept + seconds, ENDED), (overslept + seconds, DONE))
        world.oversleeps = {1.0: overslept}
        return hold(world)

    assert slow(1.8).ending is Ending.DONE
    assert slow(2.3).ending is Ending.DEADLINE


@pytest.mark.parametrize(("takes", "ends"), [(0.5, 2.0), (11.0, 22.0)])
def test_looking_at_a_program_is_not_oversleeping_where_the_program_may_be_the_cause(
    hold: Callable[..., Report], takes: float, ends: float
) -> None:
    world = World((0.0, STARTED))

    def look() -> bool:
        world.now += takes
        return False

    report = hold(world, look=look)
    assert report.ending is Ending.DEADLINE
    assert report.seconds == pytest.approx(ends, rel=0.3)


def test_a_program_whose_jail_stands_still_gets_its_time_afterwards(hold: Callable[..., Report]) -> None:
    def slow(seconds: float) -> Report:
        world = World((0.0, STARTED), (15.0 + seconds, ENDED), (15.0 + seconds, DONE))
        return hold(world, still=lambda: 1.0 <= world.now < 16.0)

    assert slow(1.5).ending is Ending.DONE
    assert slow(2.5).ending is Ending.DEADLINE


def test_a_jail_that_stands_still_for_too_long_is_no_verdict(hold: Callable[..., Report]) -> None:
    world = World((0.0, STARTED))
    held = hold(world, still=lambda: world.now >= 1.0, starved=lambda elapsed: elapsed)
    assert (held.ending, round(held.seconds)) == (Ending.STALLED, 19)


def test_what_the_host_overslept_does_not_count_as_the_jails_standstill_too(
    hold: Callable[..., Report],
) -> None:
    world = World((0.0, STARTED), (52.3, ENDED), (52.3, DONE))
    world.oversleeps = {1.0: 50.0}
    assert hold(world, still=lambda: 1.0 < world.now < 51.2).ending is Ending.DEADLINE


def test_a_program_that_waits_for_a_core_is_asked_about_again_and_again(hold: Callable[..., Report]) -> None:
    said = [(0.0, STARTED), (7.0, ENDED), (7.1, DONE)]
    assert hold(World(*said), starved=lambda elapsed: elapsed).ending is Ending.DONE
    assert hold(World(*said), starved=lambda elapsed: elapsed if elapsed < 4 else 1.0).seconds < 5
    endless = hold(World((0.0, STARTED)), starved=lambda elapsed: elapsed)
    assert (endless.ending, round(endless.seconds)) == (Ending.DEADLINE, 20)
