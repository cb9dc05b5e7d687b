"""Greedy capability probing (GCP): what a model makes of every step of its own training set.

Each step sample is decoded greedily from its stored context. A match is mastered; its own-output perplexity
exp(-mean log p), thinking part included, tells borderline skill from sure skill (`rounds`). A mismatch goes
to verification. Log-probs are the model's own at temperature 1: those of a greedy completion, by contract the
ones `Engine.score` gives, without prefilling the context a second time. What the infrastructure broke says
nothing of the model: verdict infra, to be probed again. Contexts are never cut: one that leaves no room is
too long. Not covered: who was right (`verification`).
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import StrEnum

from data.messages import Record, Turn
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.checks.calls import check_call
from pipeline.engines.base import Completion, Engine, FinishReason, Sampling
from pipeline.environments.base import Environment
from pipeline.errors import ConfigError, EngineError
from pipeline.renderers.base import Renderer
from pipeline.rollout_author import trusted
from pipeline.rollout_pool import Emit, pooled
from pipeline.rollout_settings import RolloutSettings
from synthesizers.looptool.samples import StepSample, difference, make_step_id, reply_holds, step_samples

LoadTask = Callable[[str], Task | None]
"""Task id to task; None where it is not known."""


class ProbeVerdict(StrEnum):
    """What became of one step."""

    MASTERED = "mastered"
    MISMATCH = "mismatch"
    TOO_LONG = "too_long"
    """Its context leaves no room in the window: says nothing of the model, and probing again is no help."""
    INFRA = "infra"
    """Says nothing of the model; to be probed again."""


class Probe(Record):
    """One step of the training set, decoded greedily."""

    trajectory_id: str
    turn: int
    task_id: str
    verdict: ProbeVerdict
    reason: str = ""
    """How it differs (`samples.difference`, or `truncated`), or what broke."""
    predicted: str = ""
    """What the model wrote, as text, thinking and special tokens included."""
    token_ids: tuple[int, ...] = ()
    """The same as tokens."""
    context_tokens: int = 0
    """Tokens of the context it was decoded from."""
    perplexity: float | None = None
    """Of the model's own output; None where it was not measured."""
    weights: str = ""
    """Version of the weights that answered."""

    @property
    def step_id(self) -> str:
        """`<trajectory_id>#<turn>`."""
        return make_step_id(self.trajectory_id, self.turn)


def perplexity(logprobs: Sequence[float]) -> float:
    """exp(-mean); natural logs, one per token of the output. ValueError for no token."""
    if not logprobs:
        raise ValueError("perplexity needs at least one token")
    return math.exp(-sum(logprobs) / len(logprobs))


async def probe(
    rows: Iterable[Trajectory],
    *,
    engine: Engine,
    renderer: Renderer,
    environment: Environment,
    load_task: LoadTask,
    sampling: Sampling | None = None,
    settings: RolloutSettings | None = None,
    max_in_flight: int = 64,
    done: Collection[str] = (),
    give_up_after: int = 64,
) -> AsyncGenerator[Probe]:
    """A Probe of every step of `rows` whose id is not in `done`, as they come.

    `rows` is read lazily; of `sampling` the length and the stops count, of `settings` the window. EngineError
    where `give_up_after` probes in a row broke; ConfigError for inline worlds.
    """
    if getattr(environment, "inline", None) is not None:
        raise ConfigError(f"{environment.name} writes calls inline, and probing reads chat turns only")
    sampling = sampling or Sampling()
    prober = _Prober(
        engine=engine,
        renderer=renderer,
        load_task=load_task,
        sampling=replace(
            Sampling(temperature=0.0),
            max_tokens=sampling.max_tokens,
            stop_token_ids=sampling.stop_token_ids or renderer.stop_token_ids,
            stop=sampling.stop,
        ),
        window=(settings or RolloutSettings()).max_context_tokens,
    )
    broken_in_a_row = 0

    async def work(sample: StepSample, emit: Emit[Probe]) -> None:
        nonlocal broken_in_a_row
        made = await prober.probe(sample)
        broken_in_a_row = broken_in_a_row + 1 if made.verdict is ProbeVerdict.INFRA else 0
        if broken_in_a_row >= give_up_after:
            raise EngineError(f"{broken_in_a_row} probes in a row broke; the last: {made.reason}")
        await emit(made)

    async with aclosing(pooled(_waiting(rows, done), work, max_in_flight=max_in_flight)) as probed:
        async for made in probed:
            yield made


def _waiting(rows: Iterable[Trajectory], done: Collection[str]) -> Iterator[StepSample]:
    for row in rows:
        yield from (sample for sample in step_samples(row) if sample.step_id not in done)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prober:
    engine: Engine
    renderer: Renderer
    load_task: LoadTask
    sampling: Sampling
    window: int

    async def probe(self, sample: StepSample) -> Probe:
        """The probe of one step, whatever happens to the engine."""
        room = min(self.sampling.max_tokens, self.window - len(sample.context))
        if room < 1:
            return self._probe(
                sample, ProbeVerdict.TOO_LONG, f"{len(sample.context)} of {self.window} tokens"
            )
        try:
            completion = await self._greedy(sample, room)
        except EngineError as error:
            return self._probe(sample, ProbeVerdict.INFRA, f"EngineError: {error}")
        reason = self._differs(sample, completion)
        return self._probe(
            sample, ProbeVerdict.MISMATCH if reason else ProbeVerdict.MASTERED, reason
        ).model_copy(
            update={
                "predicted": self.renderer.decode(completion.token_ids),
                "token_ids": completion.token_ids,
                "perplexity": perplexity(completion.logprobs),
                "weights": completion.weights_version,
            }
        )

    async def _greedy(self, sample: StepSample, room: int) -> Completion:
        request = replace(self.sampling, max_tokens=room)
        affinity = sample.trajectory.trajectory_id
        made = await self.engine.generate(list(sample.context), request, n=1, affinity=affinity)
        return trusted(made, limit=room)[0]

    def _differs(self, sample: StepSample, completion: Completion) -> str:
        if completion.finish_reason is FinishReason.LENGTH:
            return "truncated"
        written = read_prediction(self.renderer, sample, completion.token_ids)
        task = self.load_task(sample.trajectory.task_id)
        return difference(sample.label, written, fits=reply_holds(task, sample, written))

    def _probe(self, sample: StepSample, verdict: ProbeVerdict, reason: str) -> Probe:
        return Probe(
            trajectory_id=sample.trajectory.trajectory_id,
            turn=sample.turn,
            task_id=sample.trajectory.task_id,
            verdict=verdict,
            reason=reason,
            context_tokens=len(sample.context),
        )


def read_prediction(renderer: Renderer, sample: StepSample, token_ids: Sequence[int]) -> Turn:
    """The turn in a model's output, its calls checked against the tools shown, with ids of its own."""
    turn = renderer.parse(token_ids, tools=sample.tools, call_prefix=f"loop_{sample.turn}")
    calls = tuple(check_call(call, sample.tools) for call in turn.tool_calls)
    return turn.model_copy(update={"tool_calls": calls})
