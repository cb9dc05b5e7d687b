"""Sub-goals and motifs from executed gold: calls of one user turn that hang together.

A user turn's calls are one sub-goal per component of the dependency graph. Where a call has a value that
neither the user said nor a tool answered (SQL, a text composed from what was read), only the task's own words
ask for it: the whole turn is then one sub-goal in those words. A motif is a sub-goal without its values.
Not covered: grounding motifs elsewhere (`outline`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pipeline.checks.typed_answers import AnswerKind, read_answer
from pipeline.environments.blueprint import MAX_MUST_SAY
from synthesizers.director_actor.goldwork import GoldCall, GoldEpisode
from synthesizers.director_actor.subgoals import Read, Step, SubGoal, place_of
from synthesizers.grounding.calls import Provenance
from synthesizers.phrasing.wording import mentions


class MotifStep(NamedTuple):
    """A tool, and which parameters are read from which earlier step of the motif (position, field)."""

    tool: str
    reads: tuple[tuple[str, int, int], ...] = ()


Motif = tuple[MotifStep, ...]


def own_goals(episode: GoldEpisode, *, prefix: str) -> list[SubGoal]:
    """The sub-goals of a task's gold, in order. Turns that gold refuses or asks in are left out."""
    goals: list[SubGoal] = []
    owner: dict[int, str] = {}
    for turn, text in enumerate(episode.texts):
        calls = _retried([place for place, call in enumerate(episode.calls) if call.turn == turn], episode)
        reply = read_answer(episode.replies[turn])
        composed = any(_is_composed(episode, place) for place in calls)
        refuses = reply.kind in (AnswerKind.ASK, AnswerKind.REFUSE)
        if composed and refuses:
            break
        parts = [sorted(calls)] if composed else _components(sorted(calls), episode)
        for number, part in enumerate(parts if calls else ()):
            name = f"{prefix}{turn}.{number}"
            needs = {owner[on] for place in part for on in episode.calls[place].depends if on in owner}
            needs |= {goal.name for goal in goals} if composed else set()
            owner |= dict.fromkeys(part, name)
            answers = (
                len(parts) == 1 and reply.kind is AnswerKind.ANSWER and 0 < len(reply.value) <= MAX_MUST_SAY
            )
            goals.append(
                SubGoal(
                    name,
                    _steps(part, calls, episode, prefix=prefix),
                    needs=frozenset(needs - {name}),
                    text=text if composed else "",
                    text_by="task" if composed else "template",
                    says=(reply.value,) if answers else (),
                    finishes=any(episode.calls[place].finishes for place in part),
                )
            )
    return goals


def motifs_of(episodes: Iterable[GoldEpisode]) -> list[Motif]:
    """The distinct motifs of sub-goals whose values can be said or read, in order of first use."""
    found: dict[Motif, None] = {}
    for episode in episodes:
        for goal in own_goals(episode, prefix=""):
            if not goal.text and not goal.finishes:
                found[motif_of(goal.steps)] = None
    return list(found)


def motif_of(steps: Sequence[Step]) -> Motif:
    """Steps without their values; what is read from other steps is left open."""
    place = {step.uid: index for index, step in enumerate(steps)}
    return tuple(
        MotifStep(
            step.tool,
            tuple(
                (name, place[read.step], read.field)
                for name, read in step.reads.items()
                if read.step in place
            ),
        )
        for step in steps
    )


def _retried(places: Sequence[int], episode: GoldEpisode) -> dict[int, int | None]:
    """Positions of a turn's calls to plan -> position of the call that worked where that one failed."""
    planned: dict[int, int | None] = {}
    waiting: dict[str, int] = {}
    for place in places:
        executed = episode.calls[place].executed
        name = executed.call.name
        if not executed.ok:
            waiting.setdefault(name, place)
        elif name in waiting:
            planned[waiting.pop(name)] = place
        else:
            planned[place] = None
    return planned


def _is_composed(episode: GoldEpisode, place: int) -> bool:
    call = episode.calls[place]
    said = episode.said(call.turn)
    given = [source for source in call.sources if source.provenance is Provenance.USER]
    return any(not mentions(said, source.value) for source in given)


def _components(places: Sequence[int], episode: GoldEpisode) -> list[list[int]]:
    """Calls that depend on each other, directly or through others of the turn."""
    group = {place: {place} for place in places}
    for place in places:
        for on in episode.calls[place].depends & set(places):
            merged = group[place] | group[on]
            group |= dict.fromkeys(merged, merged)
    return [sorted(part) for part in {min(part): part for part in group.values()}.values()]


def _steps(
    part: Sequence[int], retried: Mapping[int, int | None], episode: GoldEpisode, *, prefix: str
) -> tuple[Step, ...]:
    steps = []
    for place in part:
        call, fallback = episode.calls[place], retried[place]
        steps.append(
            Step(
                f"{prefix}{place}",
                call.executed.call.name,
                call.executed.arguments(),
                reads=dict(_reads(call, episode, prefix=prefix)),
                fallback=episode.calls[fallback].executed.arguments() if fallback is not None else None,
            )
        )
    return tuple(steps)


def _reads(call: GoldCall, episode: GoldEpisode, *, prefix: str) -> Iterator[tuple[str, Read]]:
    for source in call.sources:
        if source.provenance is Provenance.OUTPUT and source.of is not None:
            found = place_of(episode.calls[source.of.call].executed.result.text, source.value)
            if found is not None:
                yield source.name, Read(f"{prefix}{source.of.call}", *found)
