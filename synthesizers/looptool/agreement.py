"""Two-sample agreement: seed dialogues whose every assistant turn was written alike at least twice.

Each turn is sampled twice. Equal calls (as a multiset), or words of the same typed answer, are accepted;
otherwise a third sample votes. Where no two agree, one is kept so that the dialogue goes on, and its turn has
weight 0: in context, never trained (LoopTool's `possible_wrong_turns`, in the record's one mechanism). After
`max_uncertain` such turns the dialogue is abandoned. A chosen sample is no draw from the policy, so segments
are `origin: edited` without log-probs. Not covered: whether the dialogue is right, which its verifier says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from data.errors import ConfigError
from data.messages import Turn
from data.tasks import Task
from data.trajectories import Blame, Origin, Policy, Segment, Termination, Trajectory, make_group_id
from pipeline.checks.calls import check_call
from pipeline.checks.matching import made_calls
from pipeline.checks.typed_answers import AnswerKind, read_answer
from pipeline.engines.base import Completion, Engine, FinishReason, Sampling
from pipeline.environments.base import Environment
from pipeline.renderers.base import Renderer
from pipeline.rollout import Job, RolloutSettings, make_policy
from pipeline.rollout_author import Draw, EpisodeEnd, SamplingAuthor, Written, trusted
from pipeline.rollout_episode import Episode, Identity
from pipeline.rollout_pool import Emit, pooled
from synthesizers.base import pending

UNCERTAIN = "looptool:uncertain"
"""Label of a dialogue that has a turn without agreement."""
MAX_UNCERTAIN = 10
"""Turns without agreement that end a dialogue. From the released code."""


def check_temperature(temperature: float) -> None:
    """ConfigError where samples are greedy."""
    if temperature <= 0.0:
        raise ConfigError("two greedy samples always agree: set a temperature above 0 for agreement")


class AgreeingAuthor(SamplingAuthor):
    """A SamplingAuthor that keeps what two of two or three samples say; see the module docstring."""

    def __init__(self, *positional: Any, max_uncertain: int = MAX_UNCERTAIN, **named: Any) -> None:
        super().__init__(*positional, **named)
        self.max_uncertain = max_uncertain
        self.uncertain = 0
        """Turns without agreement so far."""
        self.unused_tokens = 0
        """Sampled and not kept."""
        self._doubtful = False

    async def write(self, turns: Sequence[Turn]) -> Written:
        """The turn that was agreed on; of weight 0 where none was."""
        self._doubtful = False
        written = await super().write(turns)
        if not self._doubtful:
            return written
        self.uncertain += 1
        end = written.end
        if end is None and self.uncertain >= self.max_uncertain:
            error = f"abandoned: {self.uncertain} turns without agreement"
            end = EpisodeEnd(Termination.TURN_BUDGET, Blame.AGENT, error)
        return Written(written.turn.model_copy(update={"weight": 0.0}), end)

    def segments(self) -> tuple[Segment, ...]:
        """The kept tokens, no longer as samples of the policy."""
        return tuple(
            segment.model_copy(update={"origin": Origin.EDITED, "logprobs": ()})
            for segment in super().segments()
        )

    async def _sample(self, prompt: Sequence[int], limit: int) -> Completion:
        """The first completion that another one agrees with; of summaries the only one."""
        if self._due is not None:
            return await super()._sample(prompt, limit)
        drawn = await self._drawn(prompt, limit, count=2)
        keys = [self._key(completion) for completion in drawn]
        if not keys[0] or keys[0] != keys[1]:
            drawn += await self._drawn(prompt, limit, count=1)
            keys.append(self._key(drawn[-1]))
        counts = Counter(filter(None, keys))
        agreed = next((place for place, key in enumerate(keys) if counts[key] > 1), None)
        self._doubtful = agreed is None
        kept = drawn[agreed or 0]
        self.tokens_left -= len(kept.token_ids)
        self.unused_tokens += sum(len(each.token_ids) for each in drawn) - len(kept.token_ids)
        return kept

    async def _drawn(self, prompt: Sequence[int], limit: int, *, count: int) -> list[Completion]:
        seed = self.draw.turn_seed(self.engine_calls)
        request = replace(self.sampling, max_tokens=limit, seed=seed)
        self.engine_calls += 1
        made = await self.engine.generate(list(prompt), request, n=count, affinity=self.affinity)
        return trusted(made, limit=limit, count=count)

    def _key(self, completion: Completion) -> str:
        """Equal for samples that say the same; "" for one that agrees with nothing."""
        tools = self._shown().tools
        turn = self.protocol.parse(completion.token_ids, tools=tools)
        calls = [check_call(call, tools) for call in turn.tool_calls]
        if completion.finish_reason is FinishReason.LENGTH or not all(call.ok for call in calls):
            return ""
        if calls:
            return "\n".join(sorted(call.key() for call in made_calls([turn])))
        answer = read_answer(turn.text)
        return "" if answer.kind is AnswerKind.SILENT else f"{answer.kind} {answer.value}"


@dataclass(kw_only=True)
class AgreementSampling:
    """`k` dialogues per task by the engine, turns agreed on; all are kept with their outcome."""

    environment: Environment
    engine: Engine
    renderer: Renderer
    sampling: Sampling = field(default_factory=Sampling)
    settings: RolloutSettings = field(default_factory=RolloutSettings)
    k: int = 1
    max_uncertain: int = MAX_UNCERTAIN
    seed: int = 0
    run_id: str = ""
    max_in_flight: int = 64
    name: str = "agreement_sampling"

    def __post_init__(self) -> None:
        if self.k < 1 or self.max_uncertain < 1:
            raise ConfigError(
                f"k and max_uncertain must be at least 1, got k={self.k}, max_uncertain={self.max_uncertain}"
            )
        check_temperature(self.sampling.temperature)

    @property
    def policy(self) -> Policy:
        """The engine's identity, by another name: what was agreed on is not its distribution."""
        made = make_policy(
            self.engine, renderer=self.renderer, sampling=self.sampling, settings=self.settings
        )
        return made.model_copy(update={"name": f"{made.name}+agreement", "logprobs_of": ""})

    async def synthesize(
        self, tasks: Iterable[Task], *, done: Collection[str] = (), failed: Collection[str] = ()
    ) -> AsyncGenerator[Trajectory]:
        """See `Synthesizer`."""
        policy = self.policy
        jobs = (
            Job(
                task,
                rollout_index=index,
                seed=self.seed,
                group_id=make_group_id(task.task_id, self.name, policy, self.seed),
            )
            for task in tasks
            for index in range(self.k)
        )

        async def play(job: Job, emit: Emit[Trajectory]) -> None:
            await emit(await self._play(job, policy))

        waiting = pending(jobs, done=done, failed=failed)
        async with aclosing(pooled(waiting, play, max_in_flight=self.max_in_flight)) as played:
            async for trajectory in played:
                yield trajectory

    async def _play(self, job: Job, policy: Policy) -> Trajectory:
        author = AgreeingAuthor(
            self.engine,
            renderer=self.renderer,
            sampling=self.sampling,
            settings=self.settings,
            draw=Draw(job.task.task_id, self.seed, job.rollout_index),
            max_tokens=job.task.budget.max_tokens,
            affinity=job.group_id,
            max_uncertain=self.max_uncertain,
        )
        identity = Identity(
            group_id=job.group_id,
            synthesizer=self.name,
            policy=policy,
            seed=job.seed,
            rollout_index=job.rollout_index,
            attempt=job.attempt,
            run_id=self.run_id,
        )
        world, settings = self.environment, self.settings
        episode = Episode(job.task, environment=world, author=author, settings=settings, identity=identity)
        made = await episode.run()
        sampled = made.usage.generated_tokens + author.unused_tokens
        labels = (*made.labels, UNCERTAIN) if author.uncertain else made.labels
        usage = made.usage.model_copy(update={"generated_tokens": sampled})
        return made.model_copy(update={"labels": labels, "usage": usage})
