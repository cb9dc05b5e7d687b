"""Summaries that a real model writes on a real server: sampled, recorded as they were shown, trainable."""

from __future__ import annotations

import asyncio

import pytest

from data.tasks import Budget
from data.trajectories import Blame, Origin, SpanKind, Trajectory
from pipeline.engines.base import Sampling
from pipeline.engines.vllm import VllmEngine
from pipeline.renderers.load import load_renderer
from pipeline.rollout import ContextPolicy, Job, RolloutSettings, SummaryFormat, rollouts
from pipeline.server import ModelServer
from rl.audit import audit
from rl.models import fetch_smollm2
from tests.pipeline.rollout_world import World, make_task

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

STORY = "I am writing a letter to my aunt, who likes to travel and reads every word that I send to her. " * 4
CITIES = ("Rome", "Oslo", "Lima", "Cairo", "Paris")
QUESTIONS = [f"{STORY}Tell me the name of one sight in {name}, in three words." for name in CITIES]
"""Long, so that the window fills whatever is replied."""
BUDGET = Budget(max_turns=8, max_tokens=4000, max_seconds=3000)
ROLLOUTS = 30
"""About one in four of this model's greedy ones gets as far as a second segment."""
SUMMARY = SummaryFormat(max_tokens=160, trained=True, request="In one sentence: which cities were named?")
SETTINGS = RolloutSettings(max_context_tokens=880, context_policy=ContextPolicy.SUMMARISE, summary=SUMMARY)


def test_a_real_model_sums_up_and_goes_on(vllm_server: ModelServer) -> None:
    renderer = load_renderer(fetch_smollm2())
    # Greedy: short, and its log-probs are the model's own, as those of `score`.
    sampling = Sampling(temperature=0.0, max_tokens=96, stop_token_ids=renderer.stop_token_ids)
    jobs = [
        Job(make_task(f"Hello number {n}.", private={"users": QUESTIONS}, budget=BUDGET), rollout_index=n)
        for n in range(ROLLOUTS)
    ]

    async def run() -> tuple[list[Trajectory], list[float]]:
        engine = VllmEngine([vllm_server.url], model=vllm_server.settings.served_name)
        try:
            work = rollouts(
                jobs,
                environment=World(),
                engine=engine,
                renderer=renderer,
                sampling=sampling,
                settings=SETTINGS,
            )
            made = [row async for row in work]
            long = max(made, key=lambda row: len(row.segments))
            return made, await engine.score(list(long.segments[-1].token_ids))
        finally:
            await engine.close()

    made, scores = asyncio.run(run())
    assert not [row.error for row in made if row.blame is Blame.INFRASTRUCTURE]
    summed = [row for row in made if row.summaries]
    assert summed, [(row.termination, row.error) for row in made]
    audit(summed, stop_token_ids=renderer.stop_token_ids, allow_cut_off=True).refuse()
    for row in summed:
        for before, after in zip(row.segments, row.segments[1:], strict=False):
            last = before.spans[-1]
            assert (last.kind, before.origin) == (SpanKind.GENERATED, Origin.SAMPLED)
            summary = renderer.decode(before.token_ids[last.start : last.end - 1])
            assert summary.strip() in renderer.decode(after.token_ids)
    long = max(made, key=lambda row: len(row.segments))
    assert len(long.segments) > 1
    assert _gap(long, scores) < 0.05


def _gap(row: Trajectory, scores: list[float]) -> float:
    """Mean |difference| between the log-probs stored for the last segment and the server's own afterwards."""
    segment = row.segments[-1]
    spans = (span for span in segment.spans if span.kind is SpanKind.GENERATED)
    places = [place for span in spans for place in range(span.start, span.end)]
    pairs = zip(segment.logprobs, (scores[place - 1] for place in places), strict=True)
    return sum(abs(stored - now) for stored, now in pairs) / len(places)
