"""A plan on its way to a task: the chain in its world, and the dialogue that is written around it.

Not covered: which chain (`chains`), what a request must pass (`chains_writing`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from data.messages import ToolSpec, Turn, assistant, user
from data.tasks import Task
from pipeline.chat.base import Chat
from pipeline.environments.blueprint import Outage, PlannedTurn
from synthesizers.astra.chains_execution import drawn_outages, planned_calls
from synthesizers.astra.chains_graph import Chain
from synthesizers.astra.chains_sets import ToolSet
from synthesizers.astra.chains_writing import Wording, augmented, round_trip, write_request
from synthesizers.execution import Trial
from synthesizers.grounding.calls import GroundedCall, ground
from synthesizers.grounding.evidence import ValuePool
from synthesizers.phrasing.requests import TurnCalls, phrase_closing
from synthesizers.phrasing.saying import answer_cells, values_to_say

_TRIES = 4
"""Tools tried for the request that complexity adds. Ours."""


class Unplanned(Exception):
    """A plan that makes no task; `reason` is a stable identifier. Never leaves the planner."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


@dataclass(slots=True, kw_only=True)
class ChainPlan:
    """A chain and where it is to be executed. `mode`: chain or server_only."""

    base: Task
    world: Task
    """The base task with all tools shown."""
    trial: Trial
    tool_set: ToolSet
    mode: str
    rng: random.Random
    chain: Chain = ()


@dataclass(slots=True)
class Dialogue:
    """Turns written so far. Without `writer`, `augmenter` or `readers` programs do their work."""

    plan: ChainPlan
    shown: Sequence[ToolSpec]
    writer: Chat | None = None
    augmenter: Chat | None = None
    readers: Sequence[Chat] = ()
    failures: float = 0.0
    turns: list[PlannedTurn] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)

    async def add(self, calls: Sequence[GroundedCall], *, augmentation: str = "none") -> None:
        """Write the user turn for calls that were just executed. Raises Unplanned where a gate fails."""
        rng, trial = self.plan.rng, self.plan.trial
        turn = TurnCalls(calls, self.shown, trial.executed)
        wording = await self._request(turn)
        if augmentation in ("diversity", "persona"):
            wording = await self._augmented(
                wording, turn, "persona" if augmentation == "persona" else "diversity"
            )
        outages = drawn_outages(calls, rng, turn=len(self.turns), share=self.failures)
        cells = [cell for call in calls if call.question for cell in answer_cells(call.executed.result.text)]
        closing = phrase_closing(turn, rng=rng, must_say=cells)
        asked = [call.executed for call in calls if not call.question]
        told = values_to_say(asked, closing, request=wording.text)
        handed_in = bool(cells) and calls[-1].executed.changes
        planned = PlannedTurn(
            text=wording.text,
            text_by=wording.by,
            calls=planned_calls(calls, trial.executed, outages),
            reply=closing,
            must_say=tuple(dict.fromkeys([*told, *([] if handed_in else cells)])),
            state=trial.state,
            tools=tuple(tool.name for tool in self.shown) if not self.turns else None,
        )
        self.turns.append(planned)
        self.outages += outages

    async def add_request(self, pool: ValuePool) -> None:
        """Complexity: another request, for one call of a shown tool, that works in the world as it is now."""
        tools = self.plan.rng.sample(list(self.shown), min(_TRIES, len(self.shown)))
        for tool in tools:
            call = await ground(
                self.plan.trial, tool, pool, rng=self.plan.rng, said=self._said(), may_finish=False
            )
            if call is not None:
                await self.add([call])
                return
        raise Unplanned("augmentation", f"no call of {', '.join(tool.name for tool in tools)} works")

    async def _request(self, turn: TurnCalls) -> Wording:
        rng = self.plan.rng
        wording = await write_request(
            turn, rng=rng, chat=self.writer, dialogue=self._dialogue(), said=self._said()
        )
        return await self._read_back(wording, turn)

    async def _augmented(
        self, wording: Wording, turn: TurnCalls, how: Literal["diversity", "persona"]
    ) -> Wording:
        said = self._said()
        other = await augmented(wording, turn, how, rng=self.plan.rng, chat=self.augmenter, said=said)
        return await self._read_back(other, turn)

    async def _read_back(self, wording: Wording, turn: TurnCalls) -> Wording:
        """The wording, if there is one, after the round trip: reading it must give the chain exactly."""
        if wording.reason:
            raise Unplanned(wording.reason, wording.detail)
        chain = tuple(call.executed.call.name for call in turn.calls)
        mismatch = await round_trip(wording.text, chain, turn, self.readers)
        if mismatch:
            raise Unplanned("round_trip", f"{mismatch}: {wording.text}")
        return wording

    def _said(self) -> str:
        return "\n".join(turn.text for turn in self.turns)

    def _dialogue(self) -> list[Turn]:
        return [said for turn in self.turns for said in (user(turn.text), assistant(turn.reply))]
