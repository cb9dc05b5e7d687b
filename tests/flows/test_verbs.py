"""Every verb on one small run of the scripted policy, in the order a user would use them."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from data.curated import read_curated
from data.recipe import read_recipe
from data.store import Store
from data.trajectories import Termination
from flows.cli import NO_TELEMETRY
from flows.stages import verbs
from flows.stages.policy import open_policy
from flows.stages.recipe import PolicySection, load_recipe, parse_recipe
from flows.stages.scripted import ScriptedPolicy
from pipeline.engines.base import Sampling
from pipeline.environments.registry import load_environment
from pipeline.errors import ConfigError, EngineError
from pipeline.renderers.chatml import ChatMLRenderer
from tests.flows.lab import digests, recipe, trajsmith, write_recipe

COMMAND = Path(sys.executable).parent / "trajsmith"


@pytest.fixture(scope="module")
def place(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a recipe over travel_desk and its finished synthesis."""
    folder = tmp_path_factory.mktemp("place")
    value = recipe(
        tokenizer,
        environment={"name": "travel_desk"},
        **{
            "policy.mistakes": 0.2,
            "synth.demonstrations.tasks": 12,
            "synth.rollouts.tasks": 12,
            "synth.rollouts.options": {"k": 2},
            "curate": {
                "filters": [
                    {"name": "valid_calls"},
                    {"name": "verified_outcome"},
                    {"name": "efficiency"},
                    {"name": "exact_duplicate"},
                ]
            },
        },
    )
    write_recipe(folder, value)
    done = trajsmith("synth", folder / "recipe.yaml", "--runs", folder / "runs")
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def at(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    return place


def test_synthesis_kept_every_outcome(at: Path) -> None:
    with Store.open(at / "runs" / "small") as store:
        rows = list(store.trajectories())
        manifests = [store.manifest(f"synth-{name}") for name in ("demonstrations", "rollouts")]
    shown, sampled = (
        [r for r in rows if r.synthesizer == n] for n in ("demonstration", "rejection_sampling")
    )
    assert all(row.success for row in shown) and len(shown) == 12
    assert {row.success for row in sampled} == {True, False} and len(sampled) == 24
    assert [m and m["counts"]["trajectories"] for m in manifests] == [12, 36]
    assert "no model" in sampled[0].policy.name
    again = trajsmith("synth", "recipe.yaml")
    assert again.code == 0 and again.err.count("done before") == 2


def test_a_dry_run_makes_nothing(at: Path) -> None:
    plan = trajsmith("synth", "recipe.yaml", "rollouts", "--runs", "elsewhere", "--dry-run")
    assert plan.code == 0 and not Path("elsewhere").exists()
    assert plan.out.startswith("rollouts: rejection_sampling on 12 tasks of travel_desk/train")
    assert "24 episodes" in plan.out


def test_curate_then_publish(at: Path) -> None:
    curated = trajsmith("curate", "recipe.yaml", "--json")
    assert curated.code == 0, curated.err
    found = json.loads(curated.out)
    assert [row["name"] for row in found["funnel"]] == [
        "valid_calls",
        "verified_outcome",
        "efficiency",
        "exact_duplicate",
    ]
    assert found["seen"] == 36 and 12 <= found["kept"] < 36
    shown = trajsmith("curate", "recipe.yaml")
    assert shown.code == 0 and "verified_outcome" in shown.out and "->" in shown.out

    dry = trajsmith("publish", "runs/small", "--to", "out", "--dry-run")
    assert dry.code == 0 and "would publish to out" in dry.out and not Path("out").exists()
    sent = trajsmith("publish", "runs/small", "--to", "out", "--license", "mit")
    assert sent.code == 0, sent.err
    assert len(list(read_curated(Path("out/records")))) == found["kept"]
    card = Path("out/README.md").read_text()
    assert "no model" in card and "mit" in card and "| valid_calls | 36 |" in card

    other = yaml.safe_load(Path("recipe.yaml").read_text()) | {
        "curate": {"filters": [{"name": "exact_duplicate"}]}
    }
    assert trajsmith("curate", write_recipe(at, other, "other.yaml")).code == 0
    assert trajsmith("publish", "runs/small", "--to", "out").code == 0
    card = Path("out/README.md").read_text()
    assert "| exact_duplicate | 36 |" in card and "duplicate " in card, card
    assert "valid_calls" not in card, "verdicts of an earlier chain"
    assert trajsmith("curate", "recipe.yaml").code == 0


def test_eval_diagnose_report(at: Path) -> None:
    evaluated = trajsmith("eval", "recipe.yaml", "--json")
    assert evaluated.code == 0, evaluated.err
    found = json.loads(evaluated.out)
    assert found["success"]["trials"] == 8 and found["infra_failures"] == 0 and found["name"] == "scripted"
    assert trajsmith("eval", "recipe.yaml").out.startswith(
        "scripted (heldout, temperature 0), scripted gold, 20% mistakes (no model): success"
    )

    diagnosed = trajsmith("diagnose", "runs/small", "--json")
    assert diagnosed.code == 0 and json.loads(diagnosed.out)["num_trajectories"] == 8
    assert "diagnosis of scripted-heldout-t0" in trajsmith("diagnose", "runs/small").out

    reported = trajsmith("report", "runs/small")
    assert reported.code == 0, reported.err
    page = Path(reported.out.strip())
    assert "scripted gold" in page.read_text() and (page.parent / "report.json").is_file()


def test_episodes_that_infrastructure_broke_are_in_no_rate(tokenizer: Path, workplace: Path) -> None:
    value = recipe(
        tokenizer,
        environment={"name": "tests.flows.lab:sometimes_broken"},
        evaluate={"tasks": 12},
        **{"policy.max_in_flight": 32},
    )
    done = trajsmith("eval", write_recipe(workplace, value), "--json")
    assert done.code == 3 and "were broken by infrastructure and are in no rate" in done.err
    found = json.loads(done.out)
    tasks = list(itertools.islice(load_environment("counter").tasks("heldout"), 12))
    broken = sum(task.state_value()["value"] // 10 % 3 == 0 for task in tasks)
    assert 0 < broken < 12
    assert (found["infra_failures"], found["success"]["trials"]) == (broken, 12 - broken)
    assert sum(row["success"]["trials"] for row in found["by_template"]) == 12 - broken


def test_a_stage_with_broken_episodes_is_not_done(tokenizer: Path, workplace: Path) -> None:
    value = recipe(
        tokenizer,
        environment={"name": "tests.flows.lab:sometimes_broken"},
        **{"policy.max_in_flight": 32, "synth.rollouts.tasks": 12},
    )
    done = trajsmith("synth", write_recipe(workplace, value), "rollouts")
    assert done.code == 3 and "were broken by infrastructure and have no reward" in done.err
    with Store.open(workplace / "runs/small") as store:
        assert store.ids("trajectories") and store.ids("failures")
        assert store.manifest("synth-rollouts") is None


def test_audit_finds_no_wrong_mask(at: Path) -> None:
    done = trajsmith("audit", "runs/small", "--count", "2")
    assert done.code == 0 and "0 problems" in done.out
    assert trajsmith("audit", "runs/small", "--id", "nope").code == 2


def test_audit_of_a_run_that_was_never_judged_finds_nothing_to_check(
    tokenizer: Path, workplace: Path
) -> None:
    value = recipe(tokenizer, environment={"name": "tests.flows.lab:broken"})
    assert trajsmith("synth", write_recipe(workplace, value), "rollouts").code == 3
    done = trajsmith("audit", "runs/small")
    assert done.code == 2 and "runs/small holds no trajectories with a reward" in done.err, done


def test_audit_of_rows_that_are_not_trained_on_purpose_finds_no_wrong_mask(
    tokenizer: Path, workplace: Path
) -> None:
    assert trajsmith("synth", write_recipe(workplace, recipe(tokenizer)), "demonstrations").code == 0
    root = workplace / "runs" / "small"
    with Store.create_or_open(root, read_recipe(root)) as store:
        for row in list(store.trajectories()):
            turns = tuple(turn.model_copy(update={"weight": 0.0}) for turn in row.turns)
            store.append(row.model_copy(update={"turns": turns}))
    done = trajsmith("audit", "runs/small")
    assert done.code == 0 and "4 trajectories" in done.out and "0 trained, 0 turns" in done.out, done


@pytest.mark.parametrize("run", ["runs/small", "runs/small/eval/viewed-heldout-t0"])
def test_view_serves_a_page(at: Path, run: str) -> None:
    assert trajsmith("eval", "recipe.yaml", "--name", "viewed").code == 0
    command = [COMMAND, "view", run, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=None)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = line.split(" at ")[1].split(";")[0]
        with urllib.request.urlopen(url, timeout=60) as answer:
            page = answer.read().decode()
        assert answer.status == 200 and "<html" in page and Path(run).name in page
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_the_installed_command_runs_beside_other_files(at: Path, tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("raise RuntimeError('imported')")
    command = [COMMAND, "synth", at / "recipe.yaml", "--runs", at / "runs"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and done.stderr.count("done before") == 2


@pytest.mark.parametrize("shards", [1, 3])
def test_shards_add_up_to_the_whole(at: Path, tmp_path: Path, shards: int) -> None:
    loaded = load_recipe(at / "recipe.yaml")
    played: dict[str, list[int]] = {name: [] for name in loaded.synth}

    async def run() -> None:
        async with verbs.open_work(loaded, runs=tmp_path, say=lambda line: None) as work:
            for name in loaded.synth:
                for number in range(shards):
                    await verbs.synthesise(work, name, shard=(number, shards), say=lambda line: None)
                    assert (work.store.manifest(f"synth-{name}") is None) == (shards > 1)
                    played[name].append(len(work.store.ids("trajectories")))
                await verbs.synthesise(work, name, say=lambda line: None)

    asyncio.run(run())
    assert digests(tmp_path / "small") == digests(at / "runs" / "small")
    share, k = 12 // shards, 2
    assert played["demonstrations"] == [share * (n + 1) for n in range(shards)]
    assert played["rollouts"] == [12 + k * share * (n + 1) for n in range(shards)]


# --- the scripted policy ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mistakes", "low", "high"), [(0.0, 1.0, 1.0), (0.2, 0.4, 0.9), (1.0, 0.0, 0.2)])
def test_mistakes_decide_how_much_is_solved(
    tokenizer: Path, workplace: Path, mistakes: float, low: float, high: float
) -> None:
    value = recipe(
        tokenizer,
        environment={"name": "travel_desk"},
        **{"policy.mistakes": mistakes, "evaluate": {"tasks": 50, "temperature": 1.0}},
    )
    done = trajsmith("eval", write_recipe(workplace, value), "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)["success"]
    assert low <= found["successes"] / found["trials"] <= high
    with Store.open(workplace / "runs/small/eval/scripted-heldout-t1") as store:
        turns = [turn for row in store.trajectories() for turn in row.turns]
    kinds = {call.status for turn in turns for call in turn.tool_calls}
    assert (len(kinds) > 1) == (mistakes > 0)


def test_the_scripted_policy_repeats_itself(tokenizer: Path) -> None:
    environment, renderer = load_environment("counter"), ChatMLRenderer.load(tokenizer)
    task = next(environment.tasks("dev"))
    prompt = renderer.render(task.prompt).token_ids

    async def ask(mistakes: float, seed: int) -> Any:
        policy = ScriptedPolicy(environment, renderer, mistakes=mistakes)
        [made] = await policy.generate(prompt, Sampling(seed=seed))
        assert await policy.score([*prompt, *made.token_ids]) != []
        return made

    assert asyncio.run(ask(0.5, 3)) == asyncio.run(ask(0.5, 3))
    assert len({asyncio.run(ask(0.9, seed)).token_ids for seed in range(12)}) > 2
    first = asyncio.run(ask(0.0, 0))
    assert renderer.parse(first.token_ids).tool_calls[0].name == "add"


def test_the_scripted_policy_knows_only_its_environment(tokenizer: Path) -> None:
    environment, renderer = load_environment("counter", steps=(1,)), ChatMLRenderer.load(tokenizer)
    foreign = renderer.render(next(load_environment("travel_desk").tasks("dev")).prompt).token_ids
    with pytest.raises(EngineError, match="no task of counter opens with"):
        asyncio.run(ScriptedPolicy(environment, renderer, mistakes=0).generate(foreign, Sampling()))


def test_the_scripted_policy_cannot_be_trained_or_stand_alone(tokenizer: Path) -> None:
    section = PolicySection(engine="scripted", model=str(tokenizer))

    async def load(environment: Any) -> None:
        async with open_policy(section, model_dir=tokenizer, label="", environment=environment) as policy:
            await policy.load(tokenizer)

    with pytest.raises(ConfigError, match=r"has no weights to train; set policy\.engine: vllm"):
        asyncio.run(load(load_environment("counter")))
    with pytest.raises(ConfigError, match="plays an environment's gold"):
        asyncio.run(load(None))


@pytest.mark.rl
def test_supervised_training_from_a_store(workplace: Path) -> None:
    from tests.tiny import make_tiny_model

    model = make_tiny_model(workplace / "tiny")
    value = recipe(model, sft={"data": "demonstration", "settings": {"epochs": 1, "tokens_per_step": 512}})
    path = write_recipe(workplace, value)
    early = trajsmith("train", "sft", path, "--dry-run")
    assert early.code == 2 and "no trajectories of 'demonstration' to train on" in early.err
    wrong = write_recipe(workplace, value | {"sft": {"settings": {"epoch": 1}}}, "wrong.yaml")
    assert "sft.settings: unknown epoch" in trajsmith("train", "sft", wrong, "--dry-run").err
    assert not Path("runs").exists(), "a dry run makes nothing"
    early = trajsmith("train", "sft", path)
    assert early.code == 2 and "no trajectories of 'demonstration' to train on" in early.err
    assert trajsmith("synth", path, "demonstrations").code == 0
    stored = Path("runs/small/recipe.yaml").read_bytes()
    larger = {**value, "synth": {**value["synth"]}}
    larger["synth"]["demonstrations"] = {**value["synth"]["demonstrations"], "tasks": 5000}
    for asked in (path, write_recipe(workplace, larger, "larger.yaml")):
        plan = trajsmith("train", "sft", asked, "--dry-run")
        assert plan.code == 0 and plan.out.startswith("would train on 4 trajectories")
    assert Path("runs/small/recipe.yaml").read_bytes() == stored, "a dry run changes nothing"
    done = trajsmith("train", "sft", path)
    assert done.code == 0, done.err
    assert "trained tokens, loss" in done.out and "too long" not in done.out
    assert list(Path("runs/small/models/sft").glob("*.safetensors"))
    with Store.open(Path("runs/small")) as store:
        shortest = min(len(row.segments[0].token_ids) for row in store.trajectories())
    value["name"], value["sft"]["settings"] = "short", {"max_length": shortest, "overlong": "drop"}
    short = write_recipe(workplace, value, "short.yaml")
    assert trajsmith("synth", short, "demonstrations").code == 0
    assert re.search(r"tokens, [123] rows too long to train on, loss", trajsmith("train", "sft", short).out)
    assert trajsmith("train", "grpo", path).code == 2
    evaluated = trajsmith("eval", path)
    assert evaluated.code == 0, evaluated.err


def test_a_recipe_reads_what_it_wrote(tokenizer: Path) -> None:
    loaded = parse_recipe(recipe(tokenizer))
    assert parse_recipe(yaml.safe_load(yaml.safe_dump(loaded.model_dump(mode="json")))) == loaded


def test_no_false_zero_where_the_world_is_broken(tokenizer: Path, workplace: Path) -> None:
    value = recipe(tokenizer, environment={"name": "tests.flows.lab:broken"})
    done = trajsmith("synth", write_recipe(workplace, value), "rollouts")
    assert done.code == 3 and "have no reward" in done.err and "the counter's database is down" in done.err
    with Store.open(workplace / "runs/small") as store:
        assert list(store.trajectories()) == [] and store.manifest("synth-rollouts") is None
        failures = list(store.failures())
    assert failures and all(row.reward is None for row in failures)
    assert {row.termination for row in failures} == {Termination.INFRA_FAILURE}


def test_the_command_switches_telemetry_off_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NO_TELEMETRY:
        monkeypatch.setenv(name, "")  # so that the test leaves the environment as it was
        monkeypatch.delenv(name)
    monkeypatch.setenv("DO_NOT_TRACK", "0")
    assert trajsmith("env", "list").code == 0
    assert {name: os.environ[name] for name in NO_TELEMETRY} == NO_TELEMETRY | {"DO_NOT_TRACK": "0"}


def test_doctor_finds_the_sandbox_that_setup_installs() -> None:
    done = trajsmith("doctor", "--json")
    [sandbox] = [row for row in json.loads(done.out) if row["what"] == "sandbox"]
    assert sandbox["status"] == "ok" and sandbox["detail"].endswith("bwrap")
