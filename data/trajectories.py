"""The one record that flows through everything: a trajectory, its token truth and its end.

Masks are never stored: `Segment.loss_mask` derives them from spans and turn weights. A new segment
starts only where what the model is shown is no extension of what it had.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from pydantic import Field, model_validator

from data import canonical
from data.messages import NamedValue, Record, Role, ToolSpec, Turn
from data.tasks import SCHEMA_VERSION


class Origin(StrEnum):
    """Where a segment's tokens come from. Only `sampled` may carry log-probs and be replayed by GRPO."""

    SAMPLED = "sampled"
    RENDERED = "rendered"
    EDITED = "edited"


class SpanKind(StrEnum):
    """What a run of tokens is. Only `generated` tokens are ever trained."""

    PROMPT = "prompt"
    GENERATED = "generated"
    OBSERVATION = "observation"
    """Tool results, later user turns, and the template's glue around them."""


class Termination(StrEnum):
    """Why the episode ended."""

    FINISHED = "finished"
    TURN_BUDGET = "turn_budget"
    TOKEN_BUDGET = "token_budget"
    TIME_BUDGET = "time_budget"
    CONTEXT_OVERFLOW = "context_overflow"
    REPETITION = "repetition"
    INFRA_FAILURE = "infra_failure"
    CANCELLED = "cancelled"

    @property
    def has_reward(self) -> bool:
        """False for endings that say nothing about the policy: these never carry a reward."""
        return self not in (Termination.INFRA_FAILURE, Termination.CANCELLED)


class Blame(StrEnum):
    """Who caused an ending that was not a normal finish."""

    NONE = ""
    AGENT = "agent"
    TOOL = "tool"
    USER_SIMULATOR = "user_simulator"
    JUDGE = "judge"
    INFRASTRUCTURE = "infrastructure"


class Span(NamedTuple):
    """Tokens [start, end) of a segment."""

    start: int
    end: int
    kind: SpanKind
    turn: int
    """Index into `Trajectory.turns` of the turn these tokens belong to; -1 for a prompt of several turns."""
    call_id: str = ""
    weights_version: str = ""
    """Version of the weights that sampled a generated span."""


class Segment(Record):
    """One unbroken token stream: spans tile `token_ids` exactly, in order, without gaps.

    `logprobs` has one value per token of the generated spans, concatenated in order (so its length is
    the number of generated tokens), natural log, of the distribution named by `Policy.logprobs_of`;
    empty unless `origin` is sampled.
    """

    origin: Origin
    tools: tuple[ToolSpec, ...] = ()
    token_ids: tuple[int, ...]
    spans: tuple[Span, ...]
    logprobs: tuple[float, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Segment:
        position = 0
        for span in self.spans:
            if span.start != position or span.end <= span.start:
                raise ValueError(f"span {span} does not continue at token {position}; spans must tile")
            position = span.end
        if position != len(self.token_ids):
            raise ValueError(f"spans end at {position}, the segment has {len(self.token_ids)} tokens")
        wanted = self.num_generated if self.origin is Origin.SAMPLED else 0
        if len(self.logprobs) != wanted:
            raise ValueError(f"{self.origin} segment needs {wanted} log-probs, got {len(self.logprobs)}")
        return self

    @property
    def num_generated(self) -> int:
        """Number of tokens in generated spans."""
        return sum(span.end - span.start for span in self.spans if span.kind is SpanKind.GENERATED)

    def loss_mask(self, turns: tuple[Turn, ...]) -> list[float]:
        """Per token: the weight of its turn on generated tokens, 0.0 elsewhere."""
        mask = [0.0] * len(self.token_ids)
        for span in self.spans:
            if span.kind is SpanKind.GENERATED:
                mask[span.start : span.end] = [turns[span.turn].weight] * (span.end - span.start)
        return mask

    def token_logprobs(self) -> list[float]:
        """`logprobs` spread over the whole segment, 0.0 where no token was sampled."""
        values, spread = iter(self.logprobs), [0.0] * len(self.token_ids)
        if self.logprobs:
            for span in self.spans:
                if span.kind is SpanKind.GENERATED:
                    spread[span.start : span.end] = [next(values) for _ in range(span.end - span.start)]
        return spread


class Policy(Record):
    """Who acted: enough digests that the same tokens could be sampled again."""

    name: str
    weights: str = ""
    """Digest of the weights; "" for gold or scripted policies."""
    renderer: str = ""
    """Digest over tokenizer, template and parser."""
    harness: str = ""
    """Digest of the rollout settings that change what the model is shown."""
    sampling: str = "{}"
    """Sampling parameters, JSON text."""
    logprobs_of: str = ""
    """The distribution the log-probs belong to, e.g. "processed" (after temperature)."""


class EnvironmentRef(Record):
    """Which environment, which version of it, which seed the session was opened with."""

    name: str
    version: str
    seed: int


class RewardWhen(StrEnum):
    """When a component is known."""

    OUTCOME = "outcome"
    PROCESS = "process"


class RewardBy(StrEnum):
    """Who computed a component."""

    PROGRAM = "program"
    MODEL = "model"
    HUMAN = "human"


class RewardComponent(Record):
    """One unweighted part of a reward."""

    name: str
    value: float
    when: RewardWhen = RewardWhen.OUTCOME
    by: RewardBy = RewardBy.PROGRAM


class Reward(Record):
    """A verifier's judgement. `total` >= 1 is success."""

    total: float
    components: tuple[RewardComponent, ...] = ()
    verifier: str
    """Name and version."""
    artefact_digest: str = ""
    """Digest of the state or file that was judged."""

    @classmethod
    def of(cls, values: Mapping[str, float], *, verifier: str, artefact_digest: str) -> Reward:
        """A program's verdict: its components by name, of which `success` is the total."""
        parts = tuple(RewardComponent(name=name, value=value) for name, value in values.items())
        return cls(
            total=values["success"], components=parts, verifier=verifier, artefact_digest=artefact_digest
        )


class Usage(Record):
    """What the episode cost; of one that a search found, its share of what all candidates cost.

    `seconds` is a clock, not content.
    """

    prompt_tokens: int = 0
    generated_tokens: int = 0
    engine_calls: int = 0
    tool_calls: int = 0
    seconds: float = 0.0
    cost: float = 0.0


class Trajectory(Record):
    """One rollout of one policy on one task."""

    schema_version: int = SCHEMA_VERSION
    trajectory_id: str = ""
    task_id: str
    group_id: str
    """Same task, policy and sampling: what GRPO centres over."""
    rollout_index: int = 0
    attempt: int = 0
    parents: tuple[str, ...] = ()
    synthesizer: str
    run_id: str = ""
    """Name of the run; provenance, not content."""
    template: str = ""
    """Copied from the task: the cluster of every statistic."""
    tags: tuple[str, ...] = ()
    policy: Policy
    environment: EnvironmentRef
    turns: tuple[Turn, ...]
    segments: tuple[Segment, ...] = ()
    termination: Termination
    blame: Blame = Blame.NONE
    error: str = ""
    """What went wrong, in words, where blame is not empty."""
    reward: Reward | None = None
    usage: Usage = Usage()
    scores: tuple[NamedValue, ...] = ()
    labels: tuple[str, ...] = ()
    weight: float = Field(default=1.0, ge=0.0)
    """Sample weight given by curation (difficulty mix); multiplies the loss of the whole row."""

    @model_validator(mode="after")
    def _check(self) -> Trajectory:
        if not self.trajectory_id:
            object.__setattr__(
                self, "trajectory_id", make_trajectory_id(self.group_id, self.rollout_index, self.attempt)
            )
        if self.reward is not None and not self.termination.has_reward:
            raise ValueError(
                f"{self.termination} says nothing of the agent: no reward, got {self.reward.total}"
            )
        return self

    @property
    def success(self) -> bool | None:
        """Whether the verifier's total is at least 1; None without a reward."""
        return None if self.reward is None else self.reward.total >= 1.0

    @property
    def first_tools(self) -> tuple[ToolSpec, ...]:
        """The tools that the dialogue began with; () where nothing was rendered."""
        return self.segments[0].tools if self.segments else ()

    @property
    def summaries(self) -> frozenset[int]:
        """Indices of the turns in which the agent summed up its past: later system turns it generated."""
        roles = [turn.role for turn in self.turns]
        acted = roles.index(Role.ASSISTANT) if Role.ASSISTANT in roles else len(roles)
        later = {index for index in range(acted, len(roles)) if roles[index] is Role.SYSTEM}
        if not later:
            return frozenset()
        spans = (span for segment in self.segments for span in segment.spans)
        return frozenset(
            span.turn for span in spans if span.kind is SpanKind.GENERATED and span.turn in later
        )

    def content_digest(self) -> str:
        """Digest of every field but clocks, `usage.seconds` and `run_id`: what "the same result" means."""
        value = self.model_dump(mode="json", exclude={"run_id": True, "usage": {"seconds"}})
        for turn in value["turns"]:
            turn.pop("started_at"), turn.pop("seconds")
        return canonical.digest(value)


def make_trajectory_id(group_id: str, rollout_index: int, attempt: int = 0) -> str:
    """24 hex digits; a function of the work, not of the run."""
    return canonical.digest("trajectory", group_id, rollout_index, attempt, length=24)


def make_group_id(task_id: str, synthesizer: str, policy: Policy, seed: int) -> str:
    """24 hex digits over what makes rollouts comparable."""
    return canonical.digest("group", task_id, synthesizer, policy.model_dump(mode="json"), seed, length=24)
