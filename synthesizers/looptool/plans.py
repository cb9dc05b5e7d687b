"""A task as planned turns, and planned turns executed anew in a trial.

Any task whose gold plays becomes a list of planned turns: its user's words, gold's calls, gold's last words.
Executed again in another state they get that state's digests; where a call fares otherwise than it did, the
plan does not hold there. Not covered: which turns are added (`varying`, `writing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from data import canonical
from data.messages import Role
from data.tasks import Task
from pipeline.checks.typed_answers import AnswerKind, read_answer
from pipeline.environments.base import Environment
from pipeline.environments.blueprint import (
    MAX_MUST_SAY,
    Blueprint,
    Expects,
    PlannedCall,
    PlannedTurn,
    blueprint_task,
    is_blueprint,
    read_blueprint,
    result_digest,
)
from synthesizers.director_actor.goldwork import GoldCall, gold_episode
from synthesizers.execution import Executed, Trial
from synthesizers.grounding.calls import GroundedCall
from synthesizers.grounding.planned import answered_names, planned_call, port_name
from synthesizers.looptool.records import SYNTHESIZER
from synthesizers.worlds import whole_world

_EXPECTS = {AnswerKind.ASK: Expects.ASK, AnswerKind.REFUSE: Expects.REFUSE}


async def planned_turns(environment: Environment, task: Task) -> tuple[PlannedTurn, ...]:
    """The turns of a task, states as yet unknown; none where its gold does not play, or tools are down."""
    if is_blueprint(task):
        blueprint = read_blueprint(task)
        return () if blueprint.outages else blueprint.turns
    episode = await gold_episode(environment, task)
    if episode is None or len(episode.texts) != len(episode.replies) or not all(episode.replies):
        return ()
    history = [call.executed for call in episode.calls]
    return tuple(
        _planned(
            episode.texts[: number + 1],
            reply,
            [call for call in episode.calls if call.turn == number],
            history,
        )
        for number, reply in enumerate(episode.replies)
    )


def world_of(task: Task) -> Task:
    """The task in whose world a plan of `task` is executed, every tool shown."""
    return whole_world(read_blueprint(task).base if is_blueprint(task) else task)


async def replayed(trial: Trial, turn: PlannedTurn) -> PlannedTurn | None:
    """The turn as it goes here; None where a call fares otherwise than planned."""
    calls = []
    for call in turn.calls:
        made = await trial.attempt(call.name, canonical.loads(call.arguments))
        if made.result.status is not call.status or trial.finished:
            return None
        changed = {"result": result_digest(made.result), "changes": made.changes}
        calls.append(call.model_copy(update=changed))
    return turn.model_copy(update={"calls": tuple(calls), "state": trial.state})


def plan_task(
    seed: Task, turns: Sequence[PlannedTurn], *, shown: Sequence[str] | None, kind: str, trial_seed: int
) -> Task:
    """The blueprint task of a variant of `seed`, with `shown` tools from its first turn on; None = all."""
    tools = None if shown is None else tuple(shown)
    first, *others = turns
    later = [turn.model_copy(update={"tools": None}) for turn in others]
    system = next((turn.text for turn in seed.prompt if turn.role is Role.SYSTEM), "")
    return blueprint_task(
        Blueprint(
            base=world_of(seed),
            seed=trial_seed,
            turns=(first.model_copy(update={"tools": tools}), *later),
        ),
        synthesizer=SYNTHESIZER,
        template=f"{SYNTHESIZER}/{kind}",
        tags=seed.tags,
        system=system,
        parent=seed,
    )


def planned_calls(
    calls: Sequence[GroundedCall], history: Sequence[Executed], *, said: str | None = None
) -> tuple[PlannedCall, ...]:
    """Grounded calls as a blueprint holds them; the last one is what the user asks for, others as needed.

    `said`: see `planned_call`.
    """
    named = partial(port_name, names=answered_names(history))
    last = len(calls) - 1
    return tuple(
        planned_call(call, mentioned=place == last, named=named, said=said)
        for place, call in enumerate(calls)
    )


def _planned(
    texts: Sequence[str], reply: str, calls: Sequence[GoldCall], history: Sequence[Executed]
) -> PlannedTurn:
    """The planned turn of the last of `texts`, all user words so far."""
    answer = read_answer(reply)
    told = answer.value if answer.kind is AnswerKind.ANSWER else ""
    grounded = [GroundedCall(call.executed, call.sources) for call in calls]
    return PlannedTurn(
        text=texts[-1],
        text_by="task",
        calls=planned_calls(grounded, history, said="\n".join(texts)),
        reply=reply,
        expects=_EXPECTS.get(answer.kind, Expects.ACT),
        must_say=(told,) if 0 < len(told) <= MAX_MUST_SAY else (),
        state="",
    )
