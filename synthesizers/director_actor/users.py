"""What the user says: the task's own words, a worded request, or a simulated user who knows no tool.

The simulated user gets the persona, the intent, the values it must say and the dialogue; of several replies
those that pass the checks stand, and a critic picks one (APIGen-MT: best of 4 with self-critique). A reply
names no tool, says what only the user can know, and says no value that it was neither given nor shown.
Not covered: turns that the simulated user makes up beyond the plan.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from data.messages import Role, Turn
from pipeline.chat.base import Chat
from pipeline.chat.roles import one_of
from synthesizers.director_actor.errors import PlanStopped
from synthesizers.director_actor.personas import Persona
from synthesizers.director_actor.roles import REPLY_CRITIC, USER_SIMULATOR, CriticRequest, UserRequest
from synthesizers.director_actor.subgoals import SubGoal, place_of
from synthesizers.grounding.calls import Provenance
from synthesizers.grounding.reading import rows_of
from synthesizers.phrasing.requests import PhrasingError, TurnCalls, phrase_request, request_problem
from synthesizers.phrasing.saying import with_question, without_question
from synthesizers.phrasing.wording import mentions
from synthesizers.roles import shown_dialogue

CANDIDATES = 4
"""Replies of the simulated user to choose from. From the paper (APIGen-MT)."""
JUST_TELL = " Just tell me."
HAND_IN = " Hand this one in."
_DIGITS = re.compile(r"[\w.$:/-]*\d[\w.$:/-]*")
TEMPLATE = "template"


class Said(NamedTuple):
    """A user turn and who wrote it."""

    text: str
    by: str


class Users:
    """Writes the user turns of one dialogue. `world` are strings of the world's state."""

    def __init__(
        self,
        persona: Persona,
        *,
        rng: random.Random,
        simulator: Chat | None = None,
        critic: Chat | None = None,
        num_candidates: int = CANDIDATES,
        world: Collection[str] = (),
    ) -> None:
        self.persona, self.rng = persona, rng
        self.simulator, self.critic, self.num_candidates = simulator, critic, num_candidates
        self.limit: int | None = None
        """What the user has said to pay at most, in dollars."""
        self.names = [text for text in world if len(text) > 2 and not text.islower()]

    async def say(
        self, goal: SubGoal, calls: TurnCalls, dialogue: Sequence[Turn], *, suffix: str = ""
    ) -> Said:
        """The turn that asks for a sub-goal. Raises PlanStopped where none can be worded."""
        said = "\n".join(turn.text for turn in dialogue if turn.role is Role.USER)
        if self.simulator is not None:
            return await self._simulated(goal, calls, dialogue, said=said)
        told = calls.told
        if goal.text_by == "task":
            words = f"{goal.text}{suffix}"
            return Said(words if goal.says else with_question(words, told), goal.text_by)
        if goal.text and not request_problem(with_question(goal.text, told), calls, said=said):
            return Said(with_question(goal.text, told), goal.text_by)
        text = self._worded(calls, said=said)
        limit = self._limit(calls)
        spent = f"{text} At most ${limit}, please." if limit is not None else text
        framed = self.persona.framed(spent, first=not said, rng=self.rng)
        if request_problem(framed, calls, said=said):
            return Said(text, TEMPLATE)
        self.limit = limit if limit is not None else self.limit
        return Said(framed, TEMPLATE)

    def _limit(self, calls: TurnCalls) -> int | None:
        """The persona's limit for what it takes in this turn, once per dialogue."""
        if self.limit is not None:
            return None
        for call in calls.calls:
            for source in call.of(Provenance.OUTPUT):
                if source.of is None or not call.executed.changes:
                    continue
                text = calls.history[source.of.call].result.text
                place = place_of(text, source.value)
                if place is not None and (limit := self.persona.limit(rows_of(text)[place[0]])):
                    return limit
        return None

    async def _simulated(
        self, goal: SubGoal, calls: TurnCalls, dialogue: Sequence[Turn], *, said: str
    ) -> Said:
        assert self.simulator is not None
        intent = goal.text or without_question(self._worded(calls, said=said), calls.told)
        heard = shown_dialogue(
            [turn for turn in dialogue if turn.role in (Role.USER, Role.ASSISTANT) and turn.text]
        )
        values = [
            str(source.value)
            for source in calls.sources()
            if source.provenance is Provenance.USER and not mentions(said, source.value)
        ]
        good: list[str] = []
        problem = ""
        for attempt in range(self.num_candidates):
            request = UserRequest(
                persona=self.persona.described(),
                intent=intent,
                values=tuple(values),
                dialogue=heard,
                attempt=attempt,
                problem=problem if not good else "",
            )
            text = with_question((await USER_SIMULATOR.ask(self.simulator, request)).text, calls.told)
            wrong = request_problem(text, calls, said=said) if calls.calls else ""
            wrong = wrong or foreign_value(text, f"{intent}\n{' '.join(values)}\n{heard}", self.names)
            if wrong:
                problem = wrong
            elif text not in good:
                good.append(text)
        if not good:
            raise PlanStopped("user_reply", problem)
        return Said(await self._picked(good, intent, heard), self.simulator.name)

    async def _picked(self, good: Sequence[str], intent: str, heard: str) -> str:
        if self.critic is None or len(good) == 1:
            return good[0]
        request = CriticRequest(
            persona=self.persona.described(), intent=intent, dialogue=heard, candidates=tuple(good)
        )
        numbers = one_of(range(len(good)))
        return good[(await REPLY_CRITIC.ask(self.critic, request, narrow={"best": numbers})).best]

    def _worded(self, calls: TurnCalls, *, said: str) -> str:
        try:
            return phrase_request(calls, rng=self.rng, said=said)
        except PhrasingError as error:
            raise PlanStopped("no_wording", str(error)) from error


def foreign_value(text: str, known: str, names: Collection[str] = ()) -> str:
    """What a user says without having been given it: a number, an identifier, a name; "" for nothing."""
    for token in _DIGITS.findall(text):
        if not mentions(known, token.strip(".,:;!?")):
            return f"it says {token!r}, which the user cannot know"
    for name in names:
        if mentions(text, name) and not mentions(known, name):
            return f"it says {name!r}, which the user cannot know"
    return ""
