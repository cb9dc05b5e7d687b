"""BFCL multi-turn through the real rollout loop: a scripted engine plays gold, and nothing, on all tasks."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from data.trajectories import Termination
from pipeline.environments.bfcl import load
from pipeline.renderers.chatml import ChatMLRenderer
from tests.pipeline.environments.conftest import Run
from tests.tiny import make_tiny_tokenizer

pytestmark = pytest.mark.skipif(
    find_spec("bfcl_eval") is None, reason="bfcl_eval is not installed; run: make bfcl-setup"
)


@pytest.mark.parametrize("gold", [True, False])
def test_all_200_tasks_run(run: Run, tmp_path_factory: pytest.TempPathFactory, gold: bool) -> None:
    from benchmarks.bfcl_scripted import CONTEXT, play_task

    environment = load(tools="gold", distractors=1, max_tokens=CONTEXT)
    renderer = ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))

    async def play_all() -> list[tuple[Termination, float, int]]:
        played = []
        for task in environment.tasks("all"):
            one = await play_task(environment, task, renderer=renderer, gold=gold)
            assert one.reward is not None, one.error
            played.append((one.termination, one.reward.total, one.usage.tool_calls))
        return played

    played = run(play_all())
    assert [one[:2] for one in played] == [(Termination.FINISHED, float(gold))] * 200
    assert sum(one[2] for one in played) == (1142 if gold else 0)
    assert environment.num_open == 0
