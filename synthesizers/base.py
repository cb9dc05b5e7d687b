"""The Synthesizer contract, and which work is still to do.

A synthesizer turns tasks into trajectories, and some make tasks, too. What it makes comes as a stream of
records: a task before the trajectories that name it, preference pairs, and a verdict for every plan that was
given up. Not covered: writing them (the stage's), judging trajectories (`filters`).
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator
from dataclasses import replace
from enum import StrEnum
from typing import Protocol, TypeGuard

from data.tasks import Task
from data.trajectories import Trajectory, make_trajectory_id
from data.verdicts import Pair, Verdict
from pipeline.rollout import Job

Made = Task | Trajectory | Pair | Verdict


def is_given_up(record: Made) -> TypeGuard[Verdict]:
    """Whether a record is the verdict on a plan that made no task: it names `<base task>/<number>`."""
    return isinstance(record, Verdict) and not record.keep and "/" in record.trajectory_id


class Turned(StrEnum):
    """What became of a finished episode: the reason of a kept verdict that hindsight gives on it."""

    FAILURE_TURNED = "failure_turned"
    """A failed one that reached a goal which is verified data now."""
    FAILURE_LEFT = "failure_left"
    SUCCESS_TURNED = "success_turned"
    SUCCESS_LEFT = "success_left"

    @classmethod
    def of(cls, *, success: bool, turned: bool) -> Turned:
        """The reason."""
        return cls(f"{'success' if success else 'failure'}_{'turned' if turned else 'left'}")


class Synthesizer(Protocol):
    """Made with what it works with: environment, engine, renderer, settings.

    One that reads what the run has stored says so with `inputs()`: names and digests of what it reads; a
    finished stage is made again where these differ. One whose number of episodes does not follow from that of
    the tasks says with `most(tasks)` how many it makes at the most, 0 where nobody can know.
    """

    name: str

    def synthesize(
        self, tasks: Iterable[Task], *, done: Collection[str] = (), failed: Collection[str] = ()
    ) -> AsyncGenerator[Made]:
        """Records as they are made; of trajectories every attempt.

        `done` are ids of trajectories that exist and are not made again. `failed` are ids of recorded
        infrastructure failures to be tried again: their work gets a new attempt and a new id.
        """
        ...


def open_attempt(group_id: str, rollout_index: int, *, failed: Collection[str], first: int = 0) -> int:
    """The first attempt at a rollout, from `first` on, that is not a recorded failure."""
    attempts = itertools.count(first)
    return next(n for n in attempts if make_trajectory_id(group_id, rollout_index, n) not in failed)


def pending(jobs: Iterable[Job], *, done: Collection[str], failed: Collection[str]) -> Iterator[Job]:
    """The jobs that are not done, each at its first attempt that is not a recorded failure.

    `group_id` of every job must be set. A job counts as done when an attempt up to that one is.
    """
    for job in jobs:
        attempt = open_attempt(job.group_id, job.rollout_index, failed=failed, first=job.attempt)
        if make_trajectory_id(job.group_id, job.rollout_index, attempt) not in done:
            yield replace(job, attempt=attempt)
