"""The roles of hindsight: who sums an episode up, lists what was reached, writes it as steps, answers anew.

They see calls and answers, not the agent's own words, whether the episode was a success or what was asked
for; only with a memory awm or awm++ the workflow writer gets the user's request in a success as its goal. An
empty list abstains. A listed question that a query answered is asked again of the answerer, who has not seen
the query. Not covered: what is done with the replies (`telling`).
"""

from __future__ import annotations

from pydantic import Field, JsonValue

from synthesizers.roles import ChatRole, Exchange


class ShownCall(Exchange):
    """An answered call; `number` is how replies name it."""

    number: int
    name: str
    arguments: str
    answer: str


class Episode(Exchange):
    """What the summariser is told."""

    calls: tuple[ShownCall, ...]


class Summary(Exchange):
    """Phases of the episode, and everything that was seen in it."""

    phases: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()


class Listing(Exchange):
    """What the goal lister is told."""

    calls: tuple[ShownCall, ...]
    summary: Summary | None = None
    most: int


class ListedGoal(Exchange):
    """A goal that could have been asked for, and the numbers of the calls that reach it."""

    goal: str = Field(max_length=400)
    calls: tuple[int, ...] = ()


class ListedGoals(Exchange):
    """What the goal lister says; none is an answer, too."""

    goals: tuple[ListedGoal, ...] = ()


class ToWrite(Exchange):
    """What the workflow writer is told: a goal, and the calls that reached it from the start state."""

    goal: str
    calls: tuple[ShownCall, ...]
    summary: Summary | None = None


class Workflow(Exchange):
    """Steps from the start state to the goal; none where there are no such steps."""

    steps: tuple[str, ...] = ()


class Asked(Exchange):
    """What the answerer is told: a question, the tool to answer it with, what was looked at before."""

    question: str
    tool: str
    does: str
    parameters: str
    seen: tuple[ShownCall, ...] = ()


class Answering(Exchange):
    """The arguments of the call that answers."""

    arguments: dict[str, JsonValue]


SUMMARISER = ChatRole[Episode, Summary]("hindsight/summariser", reply=Summary)
GOAL_LISTER = ChatRole[Listing, ListedGoals]("hindsight/goal_lister", reply=ListedGoals)
WORKFLOW_WRITER = ChatRole[ToWrite, Workflow]("hindsight/workflow_writer", reply=Workflow)
ANSWERER = ChatRole[Asked, Answering]("hindsight/answerer", reply=Answering)
