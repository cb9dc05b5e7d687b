"""`trajsmith gateway` as a process: the example agent plays, Ctrl-C ends it, the run is whole and trains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from data.store import Store
from examples.own_agent import agent
from flows.stages.gateway import next_indices
from pipeline.renderers.load import load_renderer
from rl.audit import audit
from rl.rows import sft_rows

EXAMPLE = Path(agent.__file__).with_name("recipe.yaml")


def start(recipe: Path, runs: Path) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """A serving process and the variables it prints."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "flows.cli",
        "gateway",
        str(recipe),
        "--runs",
        str(runs),
        "--port",
        "0",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline().strip() for _ in range(2)]
    return process, dict(line.split("=", 1) for line in lines)


@pytest.fixture
def recipe(tokenizer: Path, tmp_path: Path) -> Path:
    """The example's recipe, for the tiny tokenizer."""
    value = yaml.safe_load(EXAMPLE.read_text())
    value["policy"]["model"] = str(tokenizer)
    value["environment"]["options"] = {"steps": [1]}  # the tiny tokenizer needs more of the token budget
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(value))
    return path


def test_the_example_agent_is_recorded_twice_over(
    tokenizer: Path, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, told = tmp_path / "runs", 0.0
    for round in (1, 2):
        process, variables = start(recipe, runs)
        try:
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            rewards = agent.main()
            told += sum(rewards)
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(timeout=60)
            assert process.stdout is not None
            process.stdout.close()
        assert code == 0 and len(rewards) == 8 and 1.0 in rewards
        with Store.open(runs / "own_agent") as store:
            kept = list(store.trajectories())
            assert len(kept) == 8 * round and len(list(store.tasks())) == 8
            assert set(next_indices(store).values()) == {round}
    assert sum(one.success or 0 for one in kept) == pytest.approx(told)
    stops = load_renderer(tokenizer).stop_token_ids
    report = audit(kept, stop_token_ids=stops, rows=sft_rows(kept)).refuse()
    assert report.trajectories == 16 and report.finished_turns >= 16
    assert os.environ["TRAJSMITH_TOKEN"] not in "".join(
        path.read_text(errors="replace") for path in runs.rglob("*") if path.is_file()
    )


def test_a_killed_gateway_keeps_every_closed_episode_and_goes_on(recipe: Path, tmp_path: Path) -> None:
    """Killed with an episode asked and not closed: that one is gone, the closed ones are whole."""
    runs, rewards, finished = tmp_path / "runs", list[float](), 5

    def client(variables: dict[str, str]) -> httpx.Client:
        headers = {"authorization": f"Bearer {variables['TRAJSMITH_TOKEN']}"}
        return httpx.Client(base_url=variables["TRAJSMITH_GATEWAY"], headers=headers, timeout=60)

    process, variables = start(recipe, runs)
    with client(variables) as http:
        rewards += [agent.play(http, number) for number in range(finished)]
        left = http.post("/episodes", json={"split": "train", "index": 7}).raise_for_status().json()
        body = {"model": "policy", "messages": left["messages"], "tools": left["tools"]}
        own = {"authorization": f"Bearer {left['api_key']}"}
        http.post(f"{left['path']}/v1/chat/completions", json=body, headers=own).raise_for_status()
    process.kill()
    assert process.wait(timeout=60) == -signal.SIGKILL
    with Store.open(runs / "own_agent") as store:
        kept = list(store.trajectories())
        assert sorted(one.reward.total for one in kept if one.reward) == pytest.approx(sorted(rewards))
    again, variables = start(recipe, runs)
    with client(variables) as http:
        rewards += [agent.play(http, number) for number in range(finished, 8)]
    again.send_signal(signal.SIGINT)
    assert again.wait(timeout=60) == 0
    for each in (process, again):
        assert each.stdout is not None
        each.stdout.close()
    with Store.open(runs / "own_agent") as store:
        kept = list(store.trajectories())
        assert len(kept) == len({one.task_id for one in kept}) == 8
        assert sum(one.reward.total for one in kept if one.reward) == pytest.approx(sum(rewards))
