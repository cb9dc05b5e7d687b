"""What a filter is, and how a chain of them runs over a stream.

Decides: the contract (a generator in, a generator out, one verdict per record), the order of events
(a rejected record goes no further, its verdict is all that is kept of it), and how filters that need
to know the whole pool get a first pass over it. Not covered: where verdicts are stored (`data.store`)
and which filters exist (`filters`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from data.errors import ConfigError
from data.messages import NamedValue
from data.trajectories import Trajectory
from data.verdicts import Verdict

OK = "ok"
Item = TypeVar("Item")


class Judged(NamedTuple):
    """A record and what a filter says of it. The record may be a changed copy (labels, scores, weight)."""

    trajectory: Trajectory
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Judgement:
    """One filter's word on one record, before it is tied to an id. `reason` is a stable identifier."""

    keep: bool
    reason: str = OK
    score: float | None = None
    detail: str = ""


class Filter(Protocol):
    """A generator in, a generator out: every record that comes in leaves with a verdict, in order."""

    name: str

    def __call__(self, trajectories: Iterable[Trajectory]) -> Iterator[Judged]:
        """Judge a stream. Each call starts afresh."""
        ...


@runtime_checkable
class MeasuringFilter(Protocol):
    """A filter that must see the whole pool (as it arrives at its place in the chain) before it judges."""

    name: str

    def measure(self, trajectories: Iterable[Trajectory]) -> None:
        """First pass. Replaces what an earlier pass learned."""
        ...

    def __call__(self, trajectories: Iterable[Trajectory]) -> Iterator[Judged]:
        """Second pass: judge the same pool."""
        ...


class ItemFilter:
    """Base of filters that judge one record at a time: a subclass sets `name` and writes `judge`."""

    name = ""

    def judge(self, trajectory: Trajectory) -> Judgement:
        """Keep or reject one record, and why."""
        raise NotImplementedError(f"{type(self).__name__} must define judge(trajectory)")

    def __call__(self, trajectories: Iterable[Trajectory]) -> Iterator[Judged]:
        """Judge a stream, record by record."""
        for trajectory in trajectories:
            yield judged(trajectory, self.name, self.judge(trajectory))


class Replay:
    """A pool that can be read more than once, e.g. `Replay(store.trajectories)`."""

    def __init__(self, opener: Callable[[], Iterable[Trajectory]]) -> None:
        self._opener = opener

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self._opener())


def judged(trajectory: Trajectory, name: str, judgement: Judgement) -> Judged:
    """Tie a judgement to the record it is about."""
    verdict = Verdict(
        trajectory_id=trajectory.trajectory_id,
        filter=name,
        keep=judgement.keep,
        reason=judgement.reason,
        score=judgement.score,
        detail=judgement.detail,
    )
    return Judged(trajectory, verdict)


def annotated(trajectory: Trajectory, kind: str, label: str, scores: Sequence[NamedValue] = ()) -> Trajectory:
    """A copy labelled `kind:label` with `scores` added; earlier ones of that kind or name are replaced."""
    names = {score.name for score in scores}
    labels = (*(old for old in trajectory.labels if not old.startswith(f"{kind}:")), f"{kind}:{label}")
    kept = (old for old in trajectory.scores if old.name not in names)
    return trajectory.model_copy(update={"labels": labels, "scores": (*kept, *scores)})


def label_of(trajectory: Trajectory, kind: str) -> str:
    """The value of the label of `kind`, "" where there is none."""
    return next((label.partition(":")[2] for label in trajectory.labels if label.startswith(f"{kind}:")), "")


def run_filters(
    trajectories: Iterable[Trajectory], filters: Sequence[Filter], on_verdict: Callable[[Verdict], None]
) -> Iterator[Trajectory]:
    """The records that every filter keeps, streaming; `on_verdict` gets each verdict exactly once.

    Memory is that of the filters (digests and counts) and one byte per record and item filter, never
    that of the records. The pool is read once more for every filter that measures, in the same order, so
    it must then be a list, a `Replay` or the like: a one-shot iterator raises ConfigError, and so does a
    pool that changed between two readings.
    """
    measuring = [filter_ for filter_ in filters if isinstance(filter_, MeasuringFilter)]
    if measuring and isinstance(trajectories, Iterator):
        names = ", ".join(filter_.name for filter_ in measuring)
        raise ConfigError(
            f"filters {names} read the pool twice, got a one-shot {type(trajectories).__name__}; "
            "pass a list or filters.base.Replay(store.trajectories)"
        )
    return _run(trajectories, [_Step(filter_, on_verdict) for filter_ in filters])


def _run(trajectories: Iterable[Trajectory], steps: Sequence[_Step]) -> Iterator[Trajectory]:
    for index, step in enumerate(steps):
        if isinstance(step.filter, MeasuringFilter):
            step.filter.measure(_chain(trajectories, steps[:index], final=False))
    yield from _chain(trajectories, steps, final=True)


def _chain(
    trajectories: Iterable[Trajectory], steps: Sequence[_Step], *, final: bool
) -> Iterator[Trajectory]:
    stream = iter(trajectories)
    for step in steps:
        stream = step.kept(stream, final=final)
    return stream


class _Step:
    """One filter of a chain over all passes. An item filter judges once; later passes replay its choices."""

    def __init__(self, filter_: Filter, on_verdict: Callable[[Verdict], None]) -> None:
        self.filter = filter_
        self._on_verdict = on_verdict
        self._choices: bytearray | None = None

    def kept(self, stream: Iterator[Trajectory], *, final: bool) -> Iterator[Trajectory]:
        """The records this filter keeps. Verdicts are reported on the pass that judges for good."""
        if not isinstance(self.filter, ItemFilter):
            return self._judge(stream, self._on_verdict if final else None, bytearray())
        if self._choices is None:
            self._choices = bytearray()
            return self._judge(stream, self._on_verdict, self._choices)
        return self._replay(stream, self._choices)

    def _judge(
        self, stream: Iterator[Trajectory], report: Callable[[Verdict], None] | None, choices: bytearray
    ) -> Iterator[Trajectory]:
        for trajectory, verdict in self.filter(stream):
            if report is not None:
                report(verdict)
                choices.append(verdict.keep)
            if verdict.keep:
                yield trajectory

    def _replay(self, stream: Iterator[Trajectory], choices: bytearray) -> Iterator[Trajectory]:
        position = 0
        for position, trajectory in enumerate(stream, 1):
            if position > len(choices):
                break
            if choices[position - 1]:
                yield trajectory
        if position != len(choices):
            raise ConfigError(
                f"the pool changed while it was filtered: {self.filter.name} judged {len(choices)} records, "
                f"now there are {'more' if position > len(choices) else position}; "
                "curate when nothing writes to it"
            )


def in_batches(
    trajectories: Iterable[Trajectory],
    judge: Callable[[list[Trajectory]], Coroutine[Any, Any, Sequence[Item]]],
    *,
    size: int,
    close: Callable[[], Coroutine[Any, Any, None]],
) -> Generator[Item, None, None]:
    """What `judge` says of a stream, `size` at a time, in an event loop of its own thread (judges may be
    asked over a network); `close` is awaited there at the end, however it comes."""
    stream = iter(trajectories)
    runner = asyncio.Runner()
    with ThreadPoolExecutor(max_workers=1) as thread:
        try:
            while batch := list(islice(stream, size)):
                yield from thread.submit(runner.run, judge(batch)).result()
        finally:
            thread.submit(runner.run, close()).result()
            thread.submit(runner.close).result()
