"""The flows over a real Prefect server: shards, retries, artifacts, deployments that a worker runs."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from data.store import Store
from flows.stages import verbs
from flows.stages.recipe import load_recipe, parse_recipe
from pipeline.errors import ConfigError, EngineError, EnvironmentFailure, StoreError
from tests.flows.lab import digests, recipe, trajsmith, write_recipe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PREFECT = Path(sys.executable).parent / "prefect"


# --- what needs no server -----------------------------------------------------------------------------------


def unknown_keys(value: dict[str, Any]) -> list[str]:
    """Keys of a prefect.yaml that Prefect would silently ignore."""
    from prefect.cli.deploy._models import (
        ConcurrencyLimitSpec,
        DeploymentConfig,
        PrefectYamlModel,
        WorkPoolConfig,
    )

    def unknown(model: Any, given: Any, where: str) -> list[str]:
        known = set(model.model_fields) | {f.alias for f in model.model_fields.values()}
        return [f"{where}{key}" for key in given if key not in known] if isinstance(given, dict) else []

    found = unknown(PrefectYamlModel, value, "")
    for deployment in value["deployments"]:
        found += unknown(DeploymentConfig, deployment, "deployments.")
        found += unknown(WorkPoolConfig, deployment.get("work_pool"), "deployments.work_pool.")
        found += unknown(ConcurrencyLimitSpec, deployment.get("concurrency_limit"), "concurrency_limit.")
    return found


def test_prefect_yaml_has_no_unknown_key_no_absolute_path_and_no_active_schedule(repository: Path) -> None:
    text = (repository / "prefect.yaml").read_text()
    value = yaml.safe_load(text)
    assert unknown_keys(value) == []
    assert " /" not in text and "pull" not in value
    stems = {deployment["entrypoint"] for deployment in value["deployments"]}
    names = ("synthesis", "curation", "training", "evaluation", "full_run", "loop")
    assert stems == {f"flows/{name}.py:{name}" for name in names}
    schedules = [schedule for deployment in value["deployments"] for schedule in deployment["schedules"]]
    assert len(schedules) == len(value["deployments"]) == 8
    assert not any(schedule["active"] for schedule in schedules)


def test_the_whole_job_makes_what_is_trained_on_first_and_measures_the_trained_model(
    repository: Path,
) -> None:
    from flows.stages.order import whole_job

    shipped = load_recipe(repository / "examples/demo.yaml")
    order = [
        *(("synthesis", "demonstrations", "base"), ("sft", "", ""), ("synthesis", "rollouts", "sft")),
        *(("curation", "", ""), ("grpo", "", ""), ("evaluation", "", "")),
    ]
    assert whole_job(shipped) == order
    curated = shipped.model_copy(update={"sft": shipped.sft.model_copy(update={"data": "curated"})})
    assert whole_job(curated) == [("synthesis", "", "base"), ("curation", "", ""), order[1], *order[4:]]
    reached = shipped.synth["rollouts"].model_copy(update={"synthesizer": "hindsight"})
    update = {"synth": shipped.synth | {"reached": reached}, "sft": {"data": "hindsight"}}
    reading = parse_recipe(shipped.model_dump() | update)
    made = [(name, model) for step, name, model in whole_job(reading) if step == "synthesis"]
    assert made == [(name, "base") for name in ("demonstrations", "rollouts", "reached")], "it reads rollouts"
    with pytest.raises(ConfigError, match=r"'nosuch', .*: demonstration, rejection_sampling\. Name one of"):
        whole_job(parse_recipe(shipped.model_dump() | {"sft": {"data": "nosuch"}}))


def test_the_deployments_of_a_night_do_what_the_whole_job_does(repository: Path) -> None:
    from flows.stages.order import whole_job

    nightly = [
        deployment
        for deployment in yaml.safe_load((repository / "prefect.yaml").read_text())["deployments"]
        if deployment["schedules"][0]["slug"] == "nightly"
    ]
    hours = [int(deployment["schedules"][0]["cron"].split()[1]) for deployment in nightly]
    assert hours == sorted(set(hours))
    steps = []
    for deployment in nightly:
        name, given = deployment["entrypoint"].rpartition(":")[2], deployment["parameters"]
        steps.append((given.get("method", name), given.get("stage", ""), given.get("model", "")))
    assert steps == whole_job(load_recipe(repository / "examples/demo.yaml"))


def test_the_lint_sees_a_misspelt_key(repository: Path) -> None:
    value = yaml.safe_load((repository / "prefect.yaml").read_text())
    value["deployments"][0]["schedulez"] = []
    value["deployments"][1]["work_pool"]["queue"] = "x"
    assert unknown_keys(value) == ["deployments.schedulez", "deployments.work_pool.queue"]


def test_only_infrastructure_errors_are_retried() -> None:
    from prefect.states import Failed

    from flows.flow_parts import infrastructure_broke

    def retried(error: Exception) -> bool:
        return infrastructure_broke(None, None, Failed(data=error))

    assert retried(EngineError("down")) and retried(EnvironmentFailure("broken"))
    assert not any(map(retried, (ConfigError("wrong"), StoreError("full"), ValueError("a bug"))))


# --- one temporary server for the session -------------------------------------------------------------------


# Prefect leaves the socket of its event client to the garbage collector.
leaves_sockets = pytest.mark.filterwarnings(
    "ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(scope="session")
def temporary_server() -> Iterator[None]:
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=300):
        yield


@pytest.fixture
def harness(temporary_server: None) -> Iterator[None]:
    yield
    gc.collect()  # so that no later test is blamed for the sockets


def artifacts() -> dict[str, str]:
    """Key to text of the newest artifacts on the server."""
    from prefect import get_client

    async def read() -> dict[str, str]:
        async with get_client() as client:
            return {artifact.key or "": str(artifact.data) for artifact in await client.read_artifacts()}

    return asyncio.run(read())


@leaves_sockets
def test_the_flows_make_what_the_command_makes_and_need_no_database(
    harness: None, tokenizer: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows import synthesis
    from flows.full_run import full_run

    path = write_recipe(workplace, recipe(tokenizer))
    played: list[tuple[str, tuple[int, int]]] = []
    real = verbs.synthesise

    async def flaky(work: Any, name: str, *, say: Any, shard: tuple[int, int] = (0, 1)) -> None:
        played.append((name, shard))
        if played.count((name, shard)) == 1 and shard == (1, 2):
            raise EngineError("the server is gone for a moment")
        await real(work, name, say=say, shard=shard)

    monkeypatch.setattr(verbs, "synthesise", flaky)
    monkeypatch.setattr(synthesis.synthesise_shard, "retry_delay_seconds", 0)
    asyncio.run(full_run(path, Path("runs"), shards=2, steps=["synthesis", "curation", "evaluation"]))
    shards = [shard for name, shard in played if name == "rollouts"]
    assert shards == [(0, 2), (1, 2), (1, 2), (0, 1)], "only the failed shard is played again"

    assert trajsmith("synth", path, "--runs", "plain").code == 0
    assert digests(workplace / "runs/small") == digests(workplace / "plain/small")
    again = trajsmith("synth", path)
    assert again.code == 0 and again.err.count("done before") == 2

    tables = artifacts()
    assert tables["small-funnel"].startswith("| filter | seen | kept | reasons |\n| --- |")
    assert "| scripted |" in tables["small-evaluation"] and " of 8 |" in tables["small-evaluation"]
    assert tables["small-diagnosis"].startswith("| capability | success | failures |")


@leaves_sockets
def test_a_wrong_recipe_fails_at_once(harness: None, tokenizer: Path, workplace: Path) -> None:
    from flows.synthesis import synthesis

    path = write_recipe(workplace, recipe(tokenizer, **{"synth.rollouts.synthesizer": "magic"}))
    with pytest.raises(ConfigError, match="no synthesizer 'magic'"):
        asyncio.run(synthesis(path, Path("runs"), "rollouts", shards=1))
    assert not (workplace / "runs/small").exists(), "nothing is made of a wrong recipe"


@leaves_sockets
def test_the_loop_is_a_flow(harness: None, workplace: Path) -> None:
    from flows.loop import loop
    from tests.flows.test_loop import loop_recipe
    from tests.tiny import make_tiny_model

    model = make_tiny_model(workplace / "tiny")
    path = write_recipe(workplace, loop_recipe(model, rounds=1, arms=[]))
    asyncio.run(loop(path, Path("runs")))
    assert (workplace / "runs" / "loop" / "loop.json").is_file()
    assert "| 1 | looptool |" in artifacts()["loop-loop"]


# --- deployments and a worker -------------------------------------------------------------------------------


def is_up(url: str, process: subprocess.Popen[bytes]) -> bool:
    """Waits for the server; False where it ended."""
    end = time.monotonic() + 300
    while process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=60):
                return True
        except OSError:
            assert time.monotonic() < end, f"{url} did not come up"
            time.sleep(0.2)
    return False


@contextmanager
def prefect_server(folder: Path) -> Iterator[dict[str, str]]:
    """A Prefect server of its own; the environment of its clients."""
    for _ in range(5):  # another process may take the port between its choice and the server's start
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        url = f"http://127.0.0.1:{port}/api"
        own = {"PREFECT_HOME": str(folder / "home"), "PREFECT_API_URL": url, "COLUMNS": "200"}
        command = [PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(port), "--no-ui"]
        with open(folder / "server.log", "wb") as log:
            server = subprocess.Popen(command, env=os.environ | own, stdout=log, stderr=log)
        try:
            if is_up(url, server):
                yield os.environ | own
                return
        finally:
            server.terminate()
            server.wait(timeout=60)
    raise AssertionError((folder / "server.log").read_text())


@pytest.mark.timeout(900)
def test_a_worker_runs_a_deployment(repository: Path, tokenizer: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(repository / "flows", project / "flows", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(repository / "prefect.yaml", project)
    write_recipe(project, recipe(tokenizer))

    def prefect(*arguments: str) -> str:
        done = subprocess.run(
            [PREFECT, "--no-prompt", *arguments], cwd=project, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with prefect_server(tmp_path) as environment:
        prefect("work-pool", "create", "local", "--type", "process")
        prefect("deploy", "--all")
        listed = prefect("deployment", "ls")
        assert all(name in listed for name in ("synthesis/rollouts", "full-run/local", "training/grpo"))
        given = ["--param", "recipe=recipe.yaml", "--param", "shards=2"]
        prefect("deployment", "run", "synthesis/demonstrations", *given)
        prefect("worker", "start", "--pool", "local", "--run-once")
        assert "COMPLETED" in prefect("flow-run", "ls")
    with Store.open(project / "runs" / "small") as store:
        assert len(store.ids("trajectories")) == 4 and store.manifest("synth-demonstrations") is not None
