"""Two-sample agreement: two alike are kept, a third votes, and what nobody agrees on is not trained."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from data.errors import ConfigError
from data.messages import assistant
from data.tasks import Budget
from data.trajectories import Origin, Termination, Trajectory
from filters.valid_calls import ValidCalls
from pipeline.engines.base import Completion, FinishReason, Sampling
from pipeline.engines.scripted import Fault, ScriptedEngine, continue_turns
from pipeline.renderers.chatml import ChatMLRenderer
from pipeline.rollout_settings import RolloutSettings
from synthesizers import load_synthesizer
from synthesizers.looptool.agreement import UNCERTAIN, AgreementSampling
from synthesizers.looptool.samples import step_samples
from tests.pipeline.rollout_world import World, call_text, make_task

LOOK_A, LOOK_B = call_text("look", key="a"), call_text("look", key="b")


class Dice:
    """An engine whose n-th answer to a call is the n-th text of the next list."""

    name = "dice"
    weights_version = "0"

    def __init__(self, renderer: ChatMLRenderer, *rolls: list[str]) -> None:
        self.renderer, self.rolls = renderer, list(rolls)
        self.asked: list[tuple[int, int | None]] = []

    async def generate(
        self, token_ids: list[int], sampling: Sampling, *, n: int = 1, affinity: str = ""
    ) -> list[Completion]:
        self.asked.append((n, sampling.seed))
        texts = self.rolls[0][:n]
        self.rolls[0] = self.rolls[0][n:]
        if not self.rolls[0]:
            self.rolls.pop(0)
        made = []
        for text in texts:
            ids = (*self.renderer.encode(text), *self.renderer.stop_token_ids)
            made.append(Completion(ids, (-0.5,) * len(ids), FinishReason.STOP, "0"))
        return made

    async def score(self, token_ids: list[int]) -> list[float]:
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing to release."""


def played(
    engine: Any, renderer: ChatMLRenderer, *, budget: Budget | None = None, **options: Any
) -> Trajectory:
    async def run() -> list[Trajectory]:
        sampling = AgreementSampling(
            environment=World(),
            engine=engine,
            renderer=renderer,
            settings=RolloutSettings(max_repeats=0),
            **options,
        )
        return [each async for each in sampling.synthesize([make_task(budget=budget)])]

    [made] = asyncio.run(run())
    return made


def test_two_equal_calls_are_accepted_without_a_third(renderer: ChatMLRenderer) -> None:
    both = [call_text("look", key="a") + "\n" + call_text("unlock"), call_text("unlock") + "\n" + LOOK_A]
    engine = Dice(renderer, both, ["done", "It is done."])
    made = played(engine, renderer)
    assert made.success and [n for n, _ in engine.asked] == [2, 2]
    assert [call.name for call in made.turns[2].tool_calls] == ["look", "unlock"]
    assert [turn.weight for turn in made.turns if turn.role == "assistant"] == [1.0, 1.0]
    assert made.turns[-1].text == "done" and UNCERTAIN not in made.labels


def test_a_third_sample_votes(renderer: ChatMLRenderer) -> None:
    engine = Dice(renderer, [LOOK_A, LOOK_B, LOOK_B], ["ASK day", "done", "done."])
    made = played(engine, renderer)
    assert [n for n, _ in engine.asked] == [2, 1, 2, 1] and len({seed for _, seed in engine.asked}) == 4
    [call] = made.turns[2].tool_calls
    assert call.parsed_arguments() == {"key": "b"} and made.turns[-1].text == "done"
    assert all(turn.weight == 1.0 for turn in made.turns) and UNCERTAIN not in made.labels
    kept = sum(segment.num_generated for segment in made.segments)
    assert made.usage.generated_tokens > 2 * kept, "samples that were not kept were paid for, too"


def test_a_turn_without_agreement_stays_in_context_and_is_not_trained(renderer: ChatMLRenderer) -> None:
    broken = '<tool_call>\n{"name": "look"\n</tool_call>'
    engine = Dice(renderer, [LOOK_A, LOOK_B, "Well."], [broken, broken, LOOK_B], ["done", "done"])
    made = played(engine, renderer)
    assert [turn.weight for turn in made.turns if turn.role == "assistant"] == [0.0, 0.0, 1.0]
    assert UNCERTAIN in made.labels and made.success
    assert made.turns[2].tool_calls[0].parsed_arguments() == {"key": "a"}
    [sample] = step_samples(made)
    assert sample.turn == len(made.turns) - 1
    [segment] = made.segments
    mask = segment.loss_mask(made.turns)
    learned = [token for token, weight in zip(segment.token_ids, mask, strict=True) if weight]
    assert renderer.decode(learned) == "done<|im_end|>"
    [kept] = ValidCalls()([made])
    assert kept.verdict.keep, "a malformed turn that nobody learns does not cost the dialogue"
    retrained = tuple(turn.model_copy(update={"weight": 1.0}) for turn in made.turns)
    [rejected] = ValidCalls()([made.model_copy(update={"turns": retrained})])
    assert (rejected.verdict.keep, rejected.verdict.reason) == (False, "not_json")


def test_what_was_chosen_is_no_sample_of_the_policy(renderer: ChatMLRenderer) -> None:
    made = played(Dice(renderer, ["done", "done"]), renderer)
    assert {segment.origin for segment in made.segments} == {Origin.EDITED}
    assert not any(segment.logprobs for segment in made.segments)
    assert made.policy.name == "dice+agreement" and made.policy.logprobs_of == ""


def test_a_dialogue_nobody_agrees_on_is_abandoned(renderer: ChatMLRenderer) -> None:
    rolls = [[call_text("look", key=f"{turn}{draw}") for draw in "abc"] for turn in range(12)]
    made = played(
        Dice(renderer, *rolls), renderer, budget=Budget(max_turns=20, max_tokens=8000), max_uncertain=10
    )
    assert made.termination is Termination.TURN_BUDGET and "10 turns without agreement" in made.error
    assert sum(turn.role == "assistant" for turn in made.turns) == 10 and made.success is False
    assert not list(step_samples(made))


def test_agreement_needs_draws_that_can_differ(renderer: ChatMLRenderer) -> None:
    with pytest.raises(ConfigError, match="two greedy samples always agree"):
        played(Dice(renderer), renderer, sampling=Sampling(temperature=0.0))
    with pytest.raises(ConfigError, match="max_uncertain must be at least 1"):
        played(Dice(renderer), renderer, max_uncertain=0)


def test_an_engine_that_breaks_is_infrastructure_and_the_synthesizer_has_a_name(
    renderer: ChatMLRenderer,
) -> None:
    engine = ScriptedEngine(
        continue_turns(lambda prompt, rng: assistant("done"), renderer), faults={0: Fault.ERROR}
    )
    made = played(engine, renderer)
    assert made.termination is Termination.INFRA_FAILURE and made.reward is None
    assert load_synthesizer("agreement_sampling") is AgreementSampling
