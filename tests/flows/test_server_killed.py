"""A real model server killed under a synthesis: failures without reward, and the next run finishes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from unittest import mock

import pytest

from data.schema import AnyRecord
from data.store import Store
from data.trajectories import Termination, Trajectory
from pipeline.server import ModelServer, ServerSettings
from rl.models import fetch_smollm2
from tests.flows.lab import recipe, trajsmith, write_recipe

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]
SETTINGS = ServerSettings(served_name="policy", max_model_len=1024, max_num_seqs=4)


def test_a_killed_server_costs_no_episode_and_invents_no_reward(
    workplace: Path, vllm_server: ModelServer
) -> None:
    model = fetch_smollm2()
    changes = {
        "policy.engine": "vllm",
        "policy.max_turn_tokens": 24,
        "policy.max_context_tokens": 1024,
        "policy.patience_seconds": 1.0,
    }
    path = write_recipe(workplace, recipe(model, **changes))
    append, seen = Store.append, 0

    with ModelServer(model, settings=SETTINGS) as server:

        def killing(store: Store, record: AnyRecord) -> None:
            nonlocal seen
            append(store, record)
            seen += isinstance(record, Trajectory)
            if seen == 3 and isinstance(record, Trajectory):
                os.killpg(server.process_group, signal.SIGKILL)

        with mock.patch.object(Store, "append", killing):
            done = trajsmith("synth", path, "rollouts", "--url", server.url)
    assert done.code == 3 and "have no reward" in done.err, done
    with Store.open(Path("runs/small")) as store:
        before, failures = {row.trajectory_id for row in store.trajectories()}, list(store.failures())
        assert store.manifest("synth-rollouts") is None
    assert before and failures, "the kill hit no work in flight"
    assert {(row.reward, row.termination) for row in failures} == {(None, Termination.INFRA_FAILURE)}

    again = trajsmith("synth", path, "rollouts", "--url", vllm_server.url)
    assert again.code == 0, again.err
    with Store.open(Path("runs/small")) as store:
        rows = list(store.trajectories())
    assert len({(row.group_id, row.rollout_index) for row in rows}) == len(rows) == 12
    assert before <= {row.trajectory_id for row in rows}
