"""What chats say of an episode: its summary, the goals it reached, a goal's workflow.

The success flag is never shown, nor what was asked for; only with a memory awm or awm++ the workflow writer
gets the user's request in a success as its goal. A reply that is none raises StructuredReplyError: whoever
asked records it. Not covered: episodes without a chat (`past`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from data import canonical
from data.messages import ToolSpec
from pipeline.chat.base import Chat
from pipeline.chat.roles import one_of
from synthesizers.execution import Executed
from synthesizers.hindsight.past import Past, Reached
from synthesizers.hindsight.roles import (
    ANSWERER,
    GOAL_LISTER,
    SUMMARISER,
    WORKFLOW_WRITER,
    Asked,
    Episode,
    Listing,
    ShownCall,
    Summary,
    ToWrite,
)
from synthesizers.roles import shown_parameters

_SHOWN = 600
"""Characters of an answer that are shown."""


async def summary_of(chat: Chat | None, past: Past) -> Summary | None:
    """The summary, None without a chat for it."""
    if chat is None:
        return None
    return await SUMMARISER.ask(chat, Episode(calls=shown_calls(past.executed)))


async def listed_goals(chat: Chat, past: Past, summary: Summary | None, *, most: int) -> list[Reached]:
    """The goals that the chat lists, of which only calls that did something are targets.

    A goal without such a call comes without targets: the chat abstained, or named what reached nothing.
    """
    shown = shown_calls(past.executed)
    if not shown:
        return []
    asked = Listing(calls=shown, summary=summary, most=most)
    reply = await GOAL_LISTER.ask(chat, asked, narrow={"calls": one_of(call.number for call in shown)})
    return [
        Reached(tuple(place for place in sorted(set(goal.calls)) if past.did(place)), text=goal.goal.strip())
        for goal in reply.goals[:most]
    ]


async def written_workflow(
    chat: Chat, goal: str, executed: Sequence[Executed], summary: Summary | None
) -> str:
    """The workflow that the chat writes, its steps joined; "" where it abstains."""
    asked = ToWrite(goal=goal, calls=shown_calls(executed), summary=summary)
    reply = await WORKFLOW_WRITER.ask(chat, asked)
    return "; ".join(filter(None, (step.strip() for step in reply.steps)))


async def answered_anew(
    chat: Chat, question: str, tool: ToolSpec, seen: Sequence[Executed]
) -> dict[str, Any]:
    """Arguments with which the chat would answer the question; it sees what was looked at before."""
    asked = Asked(
        question=question,
        tool=tool.name,
        does=tool.description,
        parameters=shown_parameters(tool),
        seen=shown_calls(seen),
    )
    nested = "$ref" in tool.parameters  # which points from a root that a reply's schema is not
    schema = {"type": "object"} if nested else canonical.loads(tool.parameters)
    reply = await ANSWERER.ask(chat, asked, narrow={"arguments": schema})
    return dict(reply.arguments)


def shown_calls(executed: Sequence[Executed]) -> tuple[ShownCall, ...]:
    """Calls as the roles see them."""
    return tuple(
        ShownCall(
            number=number,
            name=made.call.name,
            arguments=made.call.arguments,
            answer=made.result.text[:_SHOWN],
        )
        for number, made in enumerate(executed)
    )
