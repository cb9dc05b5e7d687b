"""Bounded concurrency with backpressure: many pieces of work, results as they come.

Not covered: what the work is, retries and deadlines (`pipeline.rollout`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from typing import TypeVar

from pipeline.errors import EnvironmentFailure

S = TypeVar("S")
T = TypeVar("T")
Emit = Callable[[T], Awaitable[None]]


async def pooled(
    items: Iterable[S], work: Callable[[S, Emit[T]], Awaitable[None]], *, max_in_flight: int
) -> AsyncGenerator[T]:
    """What `work(item, emit)` emits, for all `items`, with at most `max_in_flight` at work.

    `items` is read one by one as workers become free; a slow reader of the results holds the workers
    back. The first error of any worker is raised here and cancels the others, as does closing.
    """
    results: asyncio.Queue[tuple[T] | Exception | None] = asyncio.Queue(maxsize=max_in_flight)

    async def emit(result: T) -> None:
        await results.put((result,))

    async def worker(source: Iterator[S]) -> None:
        try:
            for item in source:
                await work(item, emit)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            await results.put(error)
        except BaseException as error:  # a worker that ended without a word would be waited for for ever
            await results.put(EnvironmentFailure(f"an episode was ended by {error!r}"))
        else:
            await results.put(None)

    source = iter(items)
    workers = [asyncio.create_task(worker(source)) for _ in range(max_in_flight)]
    try:
        running = len(workers)
        while running:
            result = await results.get()
            if isinstance(result, Exception):
                raise result
            if result is None:
                running -= 1
            else:
                yield result[0]
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
