"""Seeded traces of tool-using rollouts, a simulated model server, and the ideal makespan of a trace.

The server shares its rate among the sequences in its batch (continuous batching as processor sharing);
the same class serves real waits and the discrete-event bound, so that the two agree by construction.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from math import exp, inf, log

from data import canonical

Rate = Callable[[int], float]
"""Tokens per second of the whole server at a batch of n sequences."""

WORDS = ("flight", "hotel", "city", "date", "price", "guest", "book", "cancel", "search", "find", "origin")


@dataclass(frozen=True, slots=True)
class Step:
    """One assistant turn: its text, and how long the tool it calls takes (None = the final turn)."""

    text: str
    seconds: float | None


def make_trace(count: int, *, seed: int, longest: float = 5.0, shortest: float = 0.001) -> list[list[Step]]:
    """`count` rollouts of 1 to 6 calls; tool times are log-uniform from `shortest` to `longest` seconds."""
    rng = random.Random(seed)
    return [_rollout(rng, shortest, longest) for _ in range(count)]


def _rollout(rng: random.Random, shortest: float, longest: float) -> list[Step]:
    steps = []
    for _ in range(rng.randint(1, 6)):
        seconds = round(exp(rng.uniform(log(shortest), log(longest))), 4)
        note = " ".join(rng.choices(WORDS, k=rng.randint(10, 60)))
        call = canonical.dumps({"name": "wait", "arguments": {"seconds": seconds, "note": note}})
        steps.append(Step(f"<tool_call>\n{call}\n</tool_call>", seconds))
    return [*steps, Step(f"done {rng.randint(0, 999)}", None)]


class SharedServer:
    """Processor sharing in any clock: every sequence of the batch advances at rate(n) / n tokens/s."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._now = 0.0
        self._served = 0.0
        self._batch: list[tuple[float, int]] = []
        self.most = 0

    def add(self, now: float, tokens: int, key: int) -> list[int]:
        """Start a sequence at `now`; returns the keys that finished before."""
        finished = self.advance(now)
        heapq.heappush(self._batch, (self._served + tokens, key))
        self.most = max(self.most, len(self._batch))
        return finished

    def next_finish(self) -> float:
        """When the next sequence finishes if nothing is added."""
        if not self._batch:
            return inf
        batch = len(self._batch)
        return self._now + (self._batch[0][0] - self._served) * batch / self.rate(batch)

    def advance(self, now: float) -> list[int]:
        """Go to `now`; returns the keys that finished on the way, in order."""
        finished = []
        while self._batch and (at := self.next_finish()) <= now:
            self._served, key = heapq.heappop(self._batch)
            self._now = at
            finished.append(key)
        if self._batch:
            batch = len(self._batch)
            self._served += (now - self._now) * self.rate(batch) / batch
        self._now = now
        return finished


def lower_bound(work: Sequence[Sequence[tuple[int, float | None]]], rate: Rate, in_flight: int) -> float:
    """Seconds no scheduler can beat: the longest rollout alone on the server, or all tokens at full rate."""
    alone = max(sum(tokens / rate(1) + (seconds or 0.0) for tokens, seconds in steps) for steps in work)
    fastest = max(rate(batch) for batch in range(1, in_flight + 1))
    return max(alone, sum(tokens for steps in work for tokens, _ in steps) / fastest)


def ideal_makespan(work: Sequence[Sequence[tuple[int, float | None]]], rate: Rate, in_flight: int) -> float:
    """Seconds the trace takes without any overhead, `in_flight` rollouts started at once.

    `work` is (tokens, tool seconds) per rollout and step. A real run can come out slightly below it:
    its rollouts start one after the other, and whoever starts first is served by a smaller batch.
    """
    server, tools, waiting = SharedServer(rate), list[tuple[float, int]](), iter(range(len(work)))
    position = [0] * len(work)
    now, finished = 0.0, list[int]()
    for key in (key for key, _ in zip(waiting, range(in_flight), strict=False)):
        finished += server.add(0.0, work[key][0][0], key)
    while finished or tools or server.next_finish() < inf:
        for key in finished:
            seconds = work[key][position[key]][1]
            if seconds is not None:
                heapq.heappush(tools, (now + seconds, key))
            elif (follower := next(waiting, None)) is not None:
                heapq.heappush(tools, (now, follower))
                position[follower] = -1
        finished = []
        at, key = tools[0] if tools else (inf, -1)
        if at <= server.next_finish() and tools:
            heapq.heappop(tools)
            now, position[key] = max(now, at), position[key] + 1
            finished = server.add(now, work[key][position[key]][0], key)
        elif (at := server.next_finish()) < inf:
            now = max(now, at)
            finished = server.advance(now)
    return now


class SimulatedServer:
    """`SharedServer` on the event loop's clock: `await spend(tokens)` returns when they are generated."""

    def __init__(self, rate: Rate) -> None:
        self.shared = SharedServer(rate)
        self._keys = count()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def spend(self, tokens: int) -> None:
        """Generate `tokens` in the current batch."""
        loop, key = asyncio.get_running_loop(), next(self._keys)
        future = self._waiting[key] = loop.create_future()
        self._finish(self.shared.add(loop.time(), tokens, key))
        self._schedule()
        await future

    def _finish(self, keys: Sequence[int]) -> None:
        for key in keys:
            future = self._waiting.pop(key)
            if not future.done():
                future.set_result(None)

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at = self.shared.next_finish()
        self._timer = asyncio.get_running_loop().call_at(at, self._tick) if at < inf else None

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._finish(self.shared.advance(loop.time()))
        self._schedule()
