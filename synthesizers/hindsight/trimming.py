"""Which calls a goal needs: the rest is taken out, and that it goes without is tried, not assumed.

A call goes where it neither changes the state that is needed nor feeds a later kept call. First only targets
and what feeds them are tried; where that is not enough, the rest goes one by one from the last to the first.
Each time the others are executed again from the start state and must do what they did: a target look-up gives
the same answer, a target change the same one but for numbers of new records, every value that came from an
answer still comes from one, and where the goal is all changes together, the last state is the same. Not
covered: putting the goal into words (`relabelling`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from synthesizers.execution import Executed
from synthesizers.grounding.calls import GroundedCall, sources_of
from synthesizers.hindsight.past import Past, Reached, output_names


class Trimmed(NamedTuple):
    """The calls of a goal, and the places of its targets among them."""

    calls: list[GroundedCall]
    targets: frozenset[int]


async def trim(past: Past, goal: Reached) -> Trimmed | None:
    """The calls of the goal, executed in `past.trial`, whose only calls they then are.

    None where the calls up to the last target do not do again what they did without those that failed.
    """
    fed = sorted(_with_feeders(past, goal.targets))
    if await _do_it_again(past, fed, goal):
        return _trimmed(past, fed, goal)
    last = max(goal.targets)
    kept = [place for place in range(last + 1) if place in goal.targets or past.executed[place].ok]
    if not await _do_it_again(past, kept, goal):
        return None
    for place in [place for place in reversed(kept) if place not in fed]:
        feeds = any(place in past.feeders(later) for later in kept if later > place)
        fewer = [other for other in kept if other != place]
        if not feeds and await _do_it_again(past, fewer, goal):
            kept = fewer
    await _do_it_again(past, kept, goal)
    return _trimmed(past, kept, goal)


def _with_feeders(past: Past, targets: Sequence[int]) -> set[int]:
    """The targets, the calls whose answers feed them, what feeds those, and so on."""
    found, new = set[int](), set(targets)
    while new:
        found |= new
        new = {feeder for place in new for feeder in past.feeders(place)} - found
    return found


def _trimmed(past: Past, kept: Sequence[int], goal: Reached) -> Trimmed:
    targets = frozenset(kept.index(place) for place in goal.targets)
    return Trimmed(_grounded(past), targets)


async def _do_it_again(past: Past, kept: Sequence[int], goal: Reached) -> bool:
    """Execute the calls in `kept` from the start state; whether they did what the goal needs."""
    past.trial.back_to(0)
    for place in kept:
        then = past.executed[place]
        now = await past.trial.attempt(then.call.name, then.arguments())
        sources = sources_of(now, past.spec(then.call.name), past.trial.executed[:-1])
        if not now.ok or not past.fed(place) <= output_names(sources):
            return False
        if place in goal.targets and not _same(now, then):
            return False
    return not goal.whole or past.trial.state == past.executed[-1].after


def _same(now: Executed, then: Executed) -> bool:
    if now.changes != then.changes:
        return False
    if then.changes:
        return _numbers_alike(now.result.text) == _numbers_alike(then.result.text)
    return now.result.text == then.result.text


def _numbers_alike(text: str) -> str:
    return re.sub(r"\d+", "9", text)


def _grounded(past: Past) -> list[GroundedCall]:
    executed = past.trial.executed
    return [
        GroundedCall(made, sources_of(made, past.spec(made.call.name), executed[:place]))
        for place, made in enumerate(executed)
    ]
