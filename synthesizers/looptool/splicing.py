"""A stored dialogue played again up to one step, another turn put there, and somebody who finishes it.

Everything is executed in a fresh session by the ordinary episode, so deadlines, refusals and the verdict are
those of any rollout. Who finishes: the stored rest (only as long as every answer is the stored one: a spliced
suffix is nobody's dialogue otherwise), gold (only where the way to the step was gold's own), or the policy,
greedily. What comes out is `origin: edited`. Not covered: what the outcome means (`verification`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from data.messages import Role, ToolSpec, Turn
from data.tasks import Task
from data.trajectories import Origin, Segment
from pipeline.checks.matching import made_calls, same_calls
from pipeline.checks.typed_answers import read_answer
from pipeline.engines.base import Engine, FinishReason, Sampling
from pipeline.environments.base import Environment, GoldScript
from pipeline.errors import EnvironmentFailure, TrajsmithError
from pipeline.renderers.base import Renderer
from pipeline.rollout_author import Written, trusted
from pipeline.rollout_settings import RolloutSettings
from synthesizers.segments import rendered_segments

LOST = (LookupError, ValueError, RuntimeError)
"""What a gold script raises that no longer finds what it needs; a `next` of it ends as RuntimeError."""


class Finish(Protocol):
    """Says what follows the step. `sampled_tokens` are those of a model that was asked."""

    sampled_tokens: int

    async def next_turn(self, turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> Turn | None:
        """The next assistant turn; None to end here."""
        ...


class RestFinish:
    """What the stored dialogue goes on with, as long as the world answers as it did then."""

    sampled_tokens = 0

    def __init__(self, stored: Sequence[Turn], step: int) -> None:
        self._stored, self._step = stored, step
        self.diverged = False
        """Whether the world answered otherwise behind the step."""

    async def next_turn(self, turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> Turn | None:
        """The stored turn of the same place."""
        place = len(turns)
        known = self._stored[self._step + 1 : place]
        self.diverged = not same_answers(turns[self._step + 1 :], known)
        if self.diverged or place >= len(self._stored):
            return None
        following = self._stored[place]
        return following if following.role is Role.ASSISTANT else None


class GoldFinish:
    """Gold's script behind the step, which stands for gold's own next turn. Made by `gold_finish`."""

    sampled_tokens = 0

    def __init__(self, script: GoldScript) -> None:
        self._script = script

    async def next_turn(self, turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> Turn | None:
        """Gold's next turn; None where it is done, or no longer finds what it needs."""
        try:
            return self._script.next_turn(turns)
        except LOST as error:
            if isinstance(error, TrajsmithError):
                raise
            return None


def gold_finish(environment: Environment, task: Task, stored: Sequence[Turn], step: int) -> GoldFinish | None:
    """Gold's script, driven up to and over the step; None where the way there was not gold's, or none plays.

    Raises EnvironmentFailure for a script that breaks by itself.
    """
    try:
        script = environment.gold(task)
        for place in range(step):
            if stored[place].role is Role.ASSISTANT and not _same_turn(
                script.next_turn(stored[:place]), stored[place]
            ):
                return None
        if script.next_turn(stored[:step]) is None:
            return None
    except (TrajsmithError, *LOST):
        return None
    except Exception as error:
        raise EnvironmentFailure(f"gold of task {task.task_id} failed: {error!r}") from error
    return GoldFinish(script)


class PolicyFinish:
    """The policy, greedily, over the dialogue as it is rendered."""

    def __init__(
        self, engine: Engine, renderer: Renderer, *, sampling: Sampling, settings: RolloutSettings
    ) -> None:
        self._engine, self._renderer = engine, renderer
        stops = sampling.stop_token_ids or renderer.stop_token_ids
        greedy = Sampling(temperature=0.0, max_tokens=sampling.max_tokens, stop_token_ids=stops)
        self._sampling, self._window = greedy, settings.max_context_tokens
        self.sampled_tokens = 0

    async def next_turn(self, turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> Turn | None:
        """What the model writes next; None where it does not fit."""
        prompt = self._renderer.render(turns, tools).token_ids
        room = min(self._sampling.max_tokens, self._window - len(prompt))
        if room < 1:
            return None
        request = replace(self._sampling, max_tokens=room)
        [completion] = trusted(await self._engine.generate(prompt, request, n=1), limit=room)
        self.sampled_tokens += len(completion.token_ids)
        if completion.finish_reason is FinishReason.LENGTH:
            return None
        prefix = f"loop_{len(turns)}"
        return self._renderer.parse(completion.token_ids, tools=tools, call_prefix=prefix)


class SplicedAuthor:
    """The stored dialogue up to `step`, then `action`, then `finish`: an Author of the rollout loop."""

    engine_calls = 0

    def __init__(
        self, stored: Sequence[Turn], step: int, action: Turn, finish: Finish, *, renderer: Renderer
    ) -> None:
        self._stored, self._step, self._action = stored, step, action
        self._finish, self._renderer = finish, renderer
        self._turns: Sequence[Turn] = ()
        self._starts: list[tuple[int, tuple[ToolSpec, ...]]] = []

    def begin(self, turns: Sequence[Turn], tools: tuple[ToolSpec, ...]) -> None:
        """Note where a segment starts."""
        self._turns = turns
        self._starts.append((len(turns), tools))

    async def write(self, turns: Sequence[Turn]) -> Written | None:
        """The stored turn, the action, or what the finisher says."""
        place = len(turns)
        if place < self._step:
            return Written(_bare(self._stored[place])) if self._is_stored(place) else None
        if place == self._step:
            return Written(_bare(self._action))
        said = await self._finish.next_turn(turns, self._starts[-1][1])
        return None if said is None else Written(_numbered(_bare(said), place))

    def read(self, turns: Sequence[Turn], *, new: int) -> None:
        """Nothing to do: the stored turns are known."""

    def segments(self) -> tuple[Segment, ...]:
        """One rendered segment per tool set."""
        return rendered_segments(self._turns, self._starts, renderer=self._renderer, origin=Origin.EDITED)

    def _is_stored(self, place: int) -> bool:
        return self._stored[place].role is Role.ASSISTANT


def same_answers(played: Sequence[Turn], stored: Sequence[Turn]) -> bool:
    """Whether tools and users said the same; what the assistant said is not looked at."""
    return len(played) == len(stored) and all(
        _heard(one) == _heard(other) for one, other in zip(played, stored, strict=True)
    )


def _heard(turn: Turn) -> tuple[str, ...]:
    if turn.role is Role.ASSISTANT:
        return (turn.role,)
    status = turn.result.status if turn.result is not None else ""
    return turn.role, status, turn.text


def _bare(turn: Turn) -> Turn:
    """Without what the episode sets itself."""
    return turn.model_copy(update={"tools_changed": None})


def _numbered(turn: Turn, place: int) -> Turn:
    """With call ids that no stored call has."""
    calls = (
        call.model_copy(update={"call_id": f"loop_{place}_{index}"})
        for index, call in enumerate(turn.tool_calls)
    )
    return turn.model_copy(update={"tool_calls": tuple(calls)})


def _same_turn(gold: Turn | None, stored: Turn) -> bool:
    if gold is None or bool(gold.tool_calls) != bool(stored.tool_calls):
        return False
    if not gold.tool_calls:
        return read_answer(gold.text) == read_answer(stored.text)
    return same_calls(made_calls([gold]), made_calls([stored]))
