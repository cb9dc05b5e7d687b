"""Verified reasoning: the reasoner solves the hard request with the primitive tools, up to a number of tries.

The reasoner is the policy (its rollouts) or a chat (a thought and calls at a time). The task's verifier
decides: gold's trace or another one that ends the same. After a mismatch a hint says which kind of thing went
wrong and reveals nothing (`hints`); it is in no stored turn. When the tries are used up, or no hint can be
given, a verdict says so. Every try is kept with its outcome. Not covered: the thoughts' truth: they are
checked by what they lead to.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from data import canonical
from data.messages import Role, ToolCall, ToolSpec, Turn, assistant
from data.tasks import Task
from data.trajectories import Policy, Termination, Trajectory, make_group_id, make_trajectory_id
from data.verdicts import Verdict
from pipeline.chat.base import Chat
from pipeline.chat.roles import one_call
from pipeline.environments.base import Environment
from pipeline.environments.gold import Plan, PlannedGold
from pipeline.errors import StructuredReplyError
from pipeline.renderers.base import Renderer
from pipeline.rollout import RolloutSettings
from pipeline.rollout_author import EpisodeEnd, Written
from pipeline.rollout_episode import Episode, Identity
from synthesizers.base import open_attempt
from synthesizers.demonstration import GoldAuthor
from synthesizers.hardgen.hints import Secrets, hint_for
from synthesizers.hardgen.roles import REASONER, ReasonerRequest
from synthesizers.hints import with_hints, without_hints
from synthesizers.rejection_sampling import RejectionSampling
from synthesizers.roles import shown_dialogue, shown_parameters

FAILED, LEAKING, UNREADABLE = "reasoning_failed", "leaking_hint", "invalid_reply"

Load = Callable[[str], Trajectory | None]


class Tried(NamedTuple):
    """A try, and whether it was made now (else it was read from the store)."""

    trajectory: Trajectory
    new: bool


class Player(Protocol):
    """Plays one try of a task."""

    @property
    def name(self) -> str:
        """Who it is."""
        ...

    async def attempt(
        self, task: Task, hint: str, number: int, *, done: Collection[str], failed: Collection[str]
    ) -> Tried | None:
        """Try `number`, told `hint` ("" = none). None where it was made before and cannot be read."""
        ...


@dataclass(kw_only=True)
class PolicyPlayer:
    """The policy. `sampler` makes one rollout a task."""

    sampler: RejectionSampling
    renderer: Renderer
    name: str = "policy"

    async def attempt(
        self, task: Task, hint: str, number: int, *, done: Collection[str], failed: Collection[str]
    ) -> Tried | None:
        """See `Player`. The hint stands behind the user's words and is taken out afterwards."""
        told = with_hints(task, [hint]) if hint else task
        for trajectory in self.sampler.recalled([told], done=done, failed=failed):
            return Tried(trajectory, new=False)
        async with aclosing(self.sampler.synthesize([told], done=done, failed=failed)) as rolled:
            async for trajectory in rolled:
                bare = without_hints(trajectory, task, [hint], self.renderer) if hint else trajectory
                return Tried(bare, new=True)
        return None


@dataclass(kw_only=True)
class ChatPlayer:
    """A chat. `synthesizer` and `seed` make its tries' ids."""

    chat: Chat
    environment: Environment
    renderer: Renderer
    settings: RolloutSettings
    synthesizer: str
    seed: int
    run_id: str
    load: Load | None = None

    @property
    def name(self) -> str:
        """The chat's."""
        return self.chat.name

    async def attempt(
        self, task: Task, hint: str, number: int, *, done: Collection[str], failed: Collection[str]
    ) -> Tried | None:
        """See `Player`. The hint is told beside the dialogue, and what repeats it is not trained."""
        policy = Policy(name=self.name, renderer=self.renderer.digest, harness=self.settings.digest)
        group_id = make_group_id(task.task_id, self.synthesizer, policy, self.seed)
        attempt = open_attempt(group_id, number, failed=failed)
        trajectory_id = make_trajectory_id(group_id, number, attempt)
        if trajectory_id in done:
            found = self.load(trajectory_id) if self.load is not None else None
            return Tried(found, new=False) if found is not None else None
        identity = Identity(
            group_id=group_id,
            synthesizer=self.synthesizer,
            policy=policy,
            seed=self.seed,
            rollout_index=number,
            attempt=attempt,
            run_id=self.run_id,
        )
        author = ReasonerAuthor(self.chat, hint, renderer=self.renderer)
        trajectory = await Episode(
            task,
            environment=self.environment,
            author=author,
            settings=self.settings,
            identity=identity,
        ).run()
        if hint and trajectory.segments:
            trajectory = without_hints(trajectory, task, [hint], self.renderer)
        return Tried(trajectory, new=True)


class ReasonerAuthor(GoldAuthor):
    """A chat that thinks before it calls; a reply that stays invalid ends the episode, as a malformed call
    that a policy never gets over."""

    def __init__(self, chat: Chat, hint: str, *, renderer: Renderer) -> None:
        super().__init__(PlannedGold(_nothing()), renderer=renderer, slip=0.0, rng=random.Random(0))
        self.chat, self.hint = chat, hint

    async def write(self, turns: Sequence[Turn]) -> Written | None:
        """The thought, and the calls or the words that go with it."""
        _, tools = self._starts[-1]
        spoken = [turn for turn in turns if turn.role is not Role.SYSTEM]
        request = ReasonerRequest(
            tools=tuple(map(_shown_tool, tools)),
            rule=" ".join(turn.text for turn in turns if turn.role is Role.SYSTEM),
            dialogue=shown_dialogue(spoken),
            hint=self.hint,
        )
        possible = one_call({spec.name: spec.parameters for spec in tools})
        self.engine_calls += 1
        try:
            reply = await REASONER.ask(self.chat, request, narrow={"calls": possible})
        except StructuredReplyError as error:
            return Written(assistant(""), end=EpisodeEnd(Termination.FINISHED, error=str(error)))
        calls = tuple(
            ToolCall(call_id="reasoner", name=call.name, arguments=canonical.dumps(call.arguments))
            for call in reply.calls
        )
        said = assistant("" if calls else reply.reply, *calls)
        said = said.model_copy(update={"reasoning": reply.thought})
        return Written(said.model_copy(update={"tool_calls": self._calls(said, turns)}))


@dataclass(kw_only=True)
class Reasoning:
    """The loop of one task. After `tries` is through, `outcome` says how it went, `verdict` what failed."""

    player: Player
    verifier: Chat | None
    max_tries: int
    filter: str
    outcome: str = ""
    verdict: Verdict | None = None

    async def tries(
        self, task: Task, secrets: Secrets, *, done: Collection[str], failed: Collection[str]
    ) -> AsyncGenerator[Trajectory]:
        """The tries that are made now, up to the first success."""
        hint, by = "", ""
        for number in range(self.max_tries):
            tried = await self.player.attempt(task, hint, number, done=done, failed=failed)
            if tried is None:
                self.outcome = f"{self.player.name}: try {number + 1} was made before and is not there"
                return
            if tried.new:
                yield tried.trajectory
            if tried.trajectory.reward is None:
                self.outcome = f"{self.player.name}: try {number + 1} was broken by infrastructure"
                return
            if tried.trajectory.success:
                told = f", hint by {by}" if hint else ""
                self.outcome = f"{self.player.name}: try {number + 1} of {self.max_tries}{told}"
                return
            if number + 1 == self.max_tries:
                self._give_up(tried.trajectory, FAILED, f"{self.max_tries} tries")
                return
            try:
                found = await hint_for(
                    tried.trajectory, task, secrets=secrets, number=number, chat=self.verifier
                )
            except StructuredReplyError as error:
                self._give_up(tried.trajectory, UNREADABLE, str(error))
                return
            if found is None:
                self._give_up(tried.trajectory, LEAKING, f"after try {number + 1}")
                return
            hint, by = found

    def _give_up(self, trajectory: Trajectory, reason: str, detail: str) -> None:
        self.outcome = f"{self.player.name}: {reason}"
        self.verdict = Verdict(
            trajectory_id=trajectory.trajectory_id,
            filter=self.filter,
            keep=False,
            reason=reason,
            detail=detail,
        )


def _nothing() -> Plan:
    yield from ()


def _shown_tool(tool: ToolSpec) -> str:
    return f"{tool.name}: {tool.description} Parameters: {shown_parameters(tool)}"
