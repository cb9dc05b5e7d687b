"""The planned user turn of a hard request: its gold calls, the reply that closes it, and what that must say.

Not covered: the request itself (`requests`), and which tools are shown (`synthesizer`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

from pipeline.environments.blueprint import PlannedTurn
from synthesizers.grounding.planned import planned_call, port_name
from synthesizers.hardgen.api_graph import ApiGraph
from synthesizers.hardgen.chains import Chain
from synthesizers.hardgen.joining import Goal, joined_text, names_of
from synthesizers.hardgen.macro import Macro
from synthesizers.hardgen.requests import Written
from synthesizers.phrasing.closings import TurnCalls, phrase_closing
from synthesizers.phrasing.saying import answer_cells, values_to_say


def joined_turn(goals: Sequence[Goal], graph: ApiGraph, *, rng: random.Random) -> PlannedTurn:
    """The one user turn of all goals: of each only the last call is asked for."""
    names = names_of(goals)
    turns = [
        planned_turn(goal.chain, goal.macro, goal.written, graph, rng=rng, names=names) for goal in goals
    ]
    return turns[-1].model_copy(
        update={
            "text": joined_text(goals),
            "text_by": turns[0].text_by,
            "calls": tuple(call for turn in turns for call in turn.calls),
            "reply": " ".join(turn.reply for turn in turns),
            "must_say": tuple(dict.fromkeys(value for turn in turns for value in turn.must_say)),
        }
    )


def planned_turn(
    chain: Chain,
    macro: Macro,
    written: Written,
    graph: ApiGraph,
    *,
    rng: random.Random,
    names: Sequence[str],
) -> PlannedTurn:
    """The user turn of a chain: only its last call is asked for. `names`: tools of the session's calls."""
    inner = range(len(chain.calls) - 1)
    turn = TurnCalls(chain.calls, graph.tools, chain.history, inner)
    target = chain.target
    cells = answer_cells(target.executed.result.text) if macro.question else ()
    reply = phrase_closing(turn, rng=rng, must_say=cells)
    how = partial(port_name, names=names)
    said = written.text if written.by == "task" else None
    told = cells if macro.question else values_to_say([target.executed], reply, request=written.text)
    return PlannedTurn(
        text=written.text,
        text_by=written.by,
        calls=tuple(
            planned_call(call, mentioned=call is target and not call.question, named=how, said=said)
            for call in chain.calls
        ),
        reply=reply,
        must_say=tuple(dict.fromkeys(told)),
        state=chain.state,
    )
