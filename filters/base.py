"""What a filter is, and how a chain of them runs over a stream.

Decides: the contract (a generator in, a generator out, one verdict per record), the order of events
(a rejected record goes no further, its verdict is all that is kept of it), and how filters that need
to know the whole pool get a first pass over it. Not covered: where verdicts are stored (`data.store`)
and which filters exist (`filters`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from data.errors import ConfigError
from data.messages import NamedValue
from data.trajectories import Trajectory
from data.verdicts import Verdict

OK = "ok"


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


def with_score(trajectory: Trajectory, name: str, value: float) -> Trajectory:
    """A copy whose score `name` is `value`, replacing an earlier one."""
    others = tuple(score for score in trajectory.scores if score.name != name)
    return trajectory.model_copy(update={"scores": (*others, NamedValue(name=name, value=value))})


def with_label(trajectory: Trajectory, kind: str, value: str) -> Trajectory:
    """A copy labelled `kind:value`, replacing an earlier label of that kind."""
    others = tuple(label for label in trajectory.labels if not label.startswith(f"{kind}:"))
    return trajectory.model_copy(update={"labels": (*others, f"{kind}:{value}")})


def label_of(trajectory: Trajectory, kind: str) -> str:
    """The value of the label of `kind`, "" where there is none."""
    return next((label.partition(":")[2] for label in trajectory.labels if label.startswith(f"{kind}:")), "")


def run_filters(
    trajectories: Iterable[Trajectory], filters: Sequence[Filter], on_verdict: Callable[[Verdict], None]
) -> Iterator[Trajectory]:
    """The records that every filter keeps, streaming; `on_verdict` gets each verdict exactly once.

    Memory is that of the filters (digests and counts), never of the records. The pool is read once
    more for every filter that measures, so it must then be a list, a `Replay` or the like; a one-shot
    iterator raises ConfigError.
    """
    measuring = [filter_ for filter_ in filters if isinstance(filter_, MeasuringFilter)]
    if measuring and iter(trajectories) is trajectories:
        names = ", ".join(filter_.name for filter_ in measuring)
        raise ConfigError(
            f"filters {names} read the pool twice, got a one-shot {type(trajectories).__name__}; "
            "pass a list or filters.base.Replay(store.trajectories)"
        )
    return _run(trajectories, filters, on_verdict)


def _run(
    trajectories: Iterable[Trajectory], filters: Sequence[Filter], on_verdict: Callable[[Verdict], None]
) -> Iterator[Trajectory]:
    for index, filter_ in enumerate(filters):
        if isinstance(filter_, MeasuringFilter):
            filter_.measure(_chain(trajectories, filters[:index], _ignore))
    yield from _chain(trajectories, filters, on_verdict)


def _chain(
    trajectories: Iterable[Trajectory], filters: Sequence[Filter], on_verdict: Callable[[Verdict], None]
) -> Iterator[Trajectory]:
    stream = iter(trajectories)
    for filter_ in filters:
        stream = _kept(filter_(stream), on_verdict)
    return stream


def _kept(pairs: Iterator[Judged], on_verdict: Callable[[Verdict], None]) -> Iterator[Trajectory]:
    for trajectory, verdict in pairs:
        on_verdict(verdict)
        if verdict.keep:
            yield trajectory


def _ignore(verdict: Verdict) -> None:
    """The measuring passes repeat earlier judgements; only the last pass reports them."""
