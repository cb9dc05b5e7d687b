"""One recorded episode: answers requests, each sampled once, within the task's budget.

A request repeated word for word (a client's retry) gets the stored reply, or waits for the one being sampled,
even if the first asker is gone; another `Idempotency-Key` or `seed` makes it another request. What the engine
cannot answer is an HTTP 503 and remembered: unless the same request succeeds later, the episode ends as
infra_failure. Not covered: which dialogue a request continues (`tree`), verdict and record (`lines`,
`gateway`).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from data import canonical
from data.messages import ToolResult, Turn
from data.tasks import Task
from data.trajectories import Blame, Termination
from pipeline.checks.calls import check_call
from pipeline.engines.base import Completion, Engine, FinishReason
from pipeline.environments.base import Session
from pipeline.errors import EngineError
from pipeline.gateway.asks import Ask, RequestError, make_reply
from pipeline.gateway.tree import Exchange, Place, Tree
from pipeline.renderers.base import Renderer
from pipeline.rollout_author import EpisodeEnd, trusted


@dataclass(frozen=True, slots=True)
class Answer:
    """The replies to one request, one per choice."""

    mark: str
    """Short digest of the request: part of reply and call ids."""
    choices: tuple[Exchange, ...]
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that extend what the conversation already held."""

    @property
    def generated_tokens(self) -> int:
        """Of all choices."""
        return sum(len(one.completion.token_ids) for one in self.choices)


class RecordedEpisode:
    """One episode of a foreign harness. Safe for any number of requests at a time in one event loop."""

    def __init__(
        self,
        task: Task,
        key: str,
        *,
        engine: Engine,
        renderer: Renderer,
        max_context_tokens: int,
        engine_seconds: float,
        rollout_index: int,
        seed: int = 0,
        session: Session | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.task, self.key, self.rollout_index, self.seed = task, key, rollout_index, seed
        self.session, self.tree = session, Tree(renderer)
        self._engine, self._renderer, self._clock = engine, renderer, clock
        self._max_context_tokens, self._engine_seconds = max_context_tokens, engine_seconds
        self._asked: dict[str, asyncio.Task[Answer]] = {}
        self._times: Counter[str] = Counter()
        self._failed: dict[str, str] = {}
        self._num_requests = self._num_turns = 0
        self._tokens_left = task.budget.max_tokens
        self._exhausted: EpisodeEnd | None = None
        self._overflow: EpisodeEnd | None = None
        self.opened_at = self.touched_at = clock()
        self._began_at: float | None = None
        self.closed = False
        self.at_work = 0
        """Tool calls of the environment's session that are going on."""
        self.results: dict[str, ToolResult] = {}
        """What the environment's session answered, by call id; its status and rewards go into the record."""

    @property
    def seconds(self) -> float:
        """Since it was opened."""
        return self._clock() - self.opened_at

    @property
    def in_flight(self) -> int:
        """Requests being sampled."""
        return sum(not task.done() for task in self._asked.values())

    @property
    def ending(self) -> EpisodeEnd | None:
        """Why the episode could not go on, as it stands now; None where nothing is in the way."""
        if self._failed:
            error = next(reversed(self._failed.values()))
            return EpisodeEnd(Termination.INFRA_FAILURE, Blame.INFRASTRUCTURE, error)
        return self._exhausted or self._overflow

    async def answer(self, ask: Ask) -> Answer:
        """The reply to `ask`, sampled unless it was before. Raises RequestError."""
        self.refuse_if_closed()
        self.touch()
        key = ask.key
        task = self._asked.get(key)
        if task is None:
            task = self._asked[key] = asyncio.create_task(self._sample(ask))
            task.add_done_callback(lambda done: self._finished(key, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            raise RequestError(
                f"episode {self.key} was closed meanwhile", status=409, code="episode_closed"
            ) from None

    @property
    def failed(self) -> bool:
        """Whether something of ours failed and was not made good."""
        return bool(self._failed)

    def refuse_if_closed(self) -> None:
        """Raise RequestError once the episode is being closed."""
        if self.closed:
            raise RequestError(f"episode {self.key} is closed", status=409, code="episode_closed")

    def touch(self) -> None:
        """Somebody is still at work."""
        self.touched_at = self._clock()

    def broke(self, what: str, error: str) -> None:
        """Something that is not the agent's doing failed."""
        self._failed[what] = error

    def find(self, reply_id: str) -> Exchange | None:
        """The reply of an id ("" = none), `ID:1` for its second choice. Raises RequestError."""
        if not reply_id:
            return None
        mark, _, choice = reply_id.rpartition("-")[2].partition(":")
        for one in self.tree.exchanges:
            if one.mark == mark and str(one.choice) == (choice or "0"):
                return one
        raise RequestError(f"no reply {reply_id[:80]!r} in episode {self.key}", status=404, param="final")

    def abandon(self) -> None:
        """No more requests; those being sampled are cut and leave no trace."""
        self.closed = True
        for task in self._asked.values():
            task.cancel()

    def _finished(self, key: str, task: asyncio.Task[Answer]) -> None:
        """Forget a request that failed, so that its repetition is a new try."""
        self.touch()
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            self._asked.pop(key, None)
        if error is not None and not isinstance(error, RequestError):
            self.broke(key, f"internal error: {type(error).__name__}")

    async def _sample(self, ask: Ask) -> Answer:
        place = self.tree.place(ask)
        number, occurrence = self._num_requests, self._times[ask.content]
        room = self._room(place, ask.n)
        self._num_requests += 1
        self._times[ask.content] += 1
        self._num_turns += ask.n
        mark = canonical.digest(self.task.task_id, ask.content, occurrence, length=12)
        started, clock = time.time(), time.perf_counter()
        try:
            completions = await self._generate(place, ask, mark=mark, room=room)
        except BaseException:
            self._num_turns -= ask.n
            raise
        self._tokens_left -= place.num_new + sum(len(one.token_ids) for one in completions)
        self._overflow = None
        clocks = {"started_at": started, "seconds": time.perf_counter() - clock}
        choices = tuple(
            self._exchange(ask, place, completion, number=number, choice=choice, mark=mark, clocks=clocks)
            for choice, completion in enumerate(completions)
        )
        for exchange in choices:
            self.tree.add(exchange)
        cached = len(place.prompt) - place.num_new if place.extends else 0
        return Answer(mark, choices, len(place.prompt), cached)

    def _room(self, place: Place, n: int) -> int:
        """New tokens a reply may have. Raises RequestError where a budget is used up."""
        budget, now = self.task.budget, self._clock()
        if self._began_at is None:
            self._began_at = now
        if now - self._began_at > budget.max_seconds:
            end = EpisodeEnd(
                Termination.TIME_BUDGET, Blame.INFRASTRUCTURE, f"{budget.max_seconds:g} s are used up"
            )
        elif self._num_turns + n > budget.max_turns:
            end = EpisodeEnd(Termination.TURN_BUDGET, Blame.AGENT, f"all {budget.max_turns} turns are used")
        elif place.num_new + n > self._tokens_left:
            error = f"{place.num_new} more tokens, {self._tokens_left} left in the episode's budget"
            end = EpisodeEnd(Termination.TOKEN_BUDGET, Blame.AGENT, error)
        elif len(place.prompt) >= self._max_context_tokens:
            error = f"{len(place.prompt)} tokens to show, the context holds {self._max_context_tokens}"
            self._overflow = EpisodeEnd(Termination.CONTEXT_OVERFLOW, Blame.AGENT, error)
            raise RequestError(error, code="context_length_exceeded", param="messages")
        else:
            left = (self._tokens_left - place.num_new) // n
            return min(left, self._max_context_tokens - len(place.prompt))
        self._exhausted = self._exhausted or end
        raise RequestError(f"the episode is over: {end.error}", code=str(end.termination))

    async def _generate(self, place: Place, ask: Ask, *, mark: str, room: int) -> list[Completion]:
        stops = self._renderer.stop_token_ids
        limit = min(ask.sampling.max_tokens, room)
        seed = ask.sampling.seed
        if seed is None:
            seed = int(canonical.digest(mark, self.seed, self.rollout_index, length=8), 16) >> 1
        sampling = replace(ask.sampling, max_tokens=limit, stop_token_ids=stops, seed=seed)
        try:
            async with asyncio.timeout(self._engine_seconds):
                completions = await self._engine.generate(
                    place.prompt, sampling, n=ask.n, affinity=f"{self.task.task_id}/{self.key}"
                )
            found = trusted(completions, count=ask.n, limit=limit)
        except Exception as error:
            what = type(error).__name__
            if isinstance(error, EngineError):
                what += f": {error}"
            elif isinstance(error, TimeoutError):
                what += f": no answer within {self._engine_seconds:g} s"
            self.broke(ask.key, what)
            raise RequestError(
                f"the model server failed: {what}", status=503, code="engine_error", retry_after=1.0
            ) from error
        self._failed.pop(ask.key, None)
        return found

    def _exchange(
        self,
        ask: Ask,
        place: Place,
        completion: Completion,
        *,
        number: int,
        choice: int,
        mark: str,
        clocks: dict[str, float],
    ) -> Exchange:
        parsed = self._renderer.parse(
            completion.token_ids, tools=ask.tools, call_prefix=f"call_{mark}_{choice}"
        )
        calls = tuple(check_call(call, ask.tools) for call in parsed.tool_calls)
        changed = ask.tools if place.tools_changed else None
        turn = parsed.model_copy(update={"tool_calls": calls, "tools_changed": changed} | clocks)
        cut_off = completion.finish_reason is FinishReason.LENGTH
        reply = make_reply(turn, cut_off=cut_off, stop=ask.sampling.stop)
        return Exchange(
            number=number,
            choice=choice,
            parent=place.parent,
            extends=place.extends,
            asked=tuple(map(self._with_outcome, place.asked)),
            turn=turn,
            reply=reply,
            tools=ask.tools,
            piece=place.piece,
            completion=completion,
            sampling=ask.sampling,
            dialogue=(*place.dialogue, turn),
            signatures=(*ask.signatures, reply.signature),
            recorded=(*place.recorded, reply.signature),
            num_turns=place.num_turns + 1,
            line=ask.line,
            mark=mark,
        )

    def _with_outcome(self, turn: Turn) -> Turn:
        """A tool turn with the status, reward and metrics the session gave, where it is shown as answered."""
        known = self.results.get(turn.result.call_id) if turn.result else None
        if known is None or turn.result is None or known.text != turn.result.text:
            return turn
        return turn.model_copy(update={"result": known})
