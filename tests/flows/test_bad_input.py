"""Wrong input and broken surroundings: one clear error, the documented code, and the next run goes on."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data.store import Store
from data.trajectories import Termination
from flows.stages.recipe import VOLATILE, load_recipe
from flows.stages.run import open_run
from tests.flows.lab import digests, recipe, trajsmith, write_recipe
from tests.serving import Received, Reply, ScriptedServer

COMMAND = Path(sys.executable).parent / "trajsmith"
BOMB = "\n".join(
    ["name: a", "environment:", "  options:", "    x0: &x0 [boom]"]
    + [f"    x{level + 1}: &x{level + 1} [{', '.join([f'*x{level}'] * 9)}]" for level in range(9)]
)
FILTERS = [{"name": "valid_calls"}]
MCP = '{"url": "http://me:4711@127.0.0.1:9/mcp?key=4711", "tasks": "tasks.yaml"}'


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("polcy", {}, "polcy: unknown key; did you mean 'policy'?"),
        ("policy.temprature", 1, "policy.temprature: unknown key; did you mean 'temperature'?"),
        ("policy.zzz", 1, "policy.zzz: unknown key; allowed: api_key_env, context_policy, engine, "),
        ("synth.rollouts.task", 1, "synth.rollouts.task: unknown key; did you mean 'tasks'?"),
        ("policy.temperature", -1, "policy.temperature: Input should be greater than or equal to 0; got -1"),
        ("policy.mistakes", 1.5, "policy.mistakes: Input should be less than or equal to 1; got 1.5"),
        ("policy.engine", "magic", "policy.engine: Input should be 'vllm' or 'scripted'; got 'magic'"),
        ("policy.model", "no/such", "policy.model 'no/such' is no known model and has no tokenizer.json"),
        ("policy.model", "~nobody/m", "policy.model '~nobody/m' is no known model and has no tokenizer.json"),
        ("synth", {"a/b": {"synthesizer": "demonstration", "tasks": 1}}, "String should match pattern"),
        ("evaluate.tasks", 0, "evaluate.tasks: Input should be greater than or equal to 1; got 0"),
        ("name", "../up", "name: String should match pattern"),
        ("name", "x" * 101, "name: String should have at most 100 characters"),
        ("seed", -1, "seed: Input should be greater than or equal to 0; got -1"),
        ("seed", 2**63, "seed: Input should be less than or equal to 2147483647"),
        ("policy.temperature", float("inf"), "policy.temperature: Input should be a finite number; got inf"),
        ("environment", {"name": "tests.flows.lab:absent"}, "has no 'absent'"),
        ("environment", {"name": "tests.flows.lab:no_licence"}, "making it failed: OSError: no licence"),
        ("environment", {"name": "torn_world:load"}, "importing it failed: SyntaxError"),
        ("environment", {"name": ":load"}, "there is no environment ':load'"),
        ("synth.rollouts.options", {"k": "many"}, "rejection_sampling.k: Input should be a valid integer"),
        ("synth.rollouts.options", {"k": -3}, "k must be at least 1, got -3"),
        ("synth", {}, "recipe small has no synth section"),
        (
            "environment",
            {"name": "counter", "options": {"api_key": "4711"}},
            "environment.options.api_key holds what looks like a key, a token or a password (not shown)",
        ),
        ("environment", {"name": "moon"}, "there is no environment 'moon'; known environments: counter"),
        ("environment", {"name": "no.such:factory"}, "there is no module 'no'"),
        (
            "environment",
            {"name": "counter", "options": {"speed": 1}},
            "not take these options ['speed']",
        ),
        ("synth.rollouts.synthesizer", "magic", "no synthesizer 'magic'; there are: agreement_sampling"),
        ("synth.rollouts.options", {"kk": 2}, "has no option kk; its options: enough_skeletons"),
        *(
            ("synth", {"plan": {"synthesizer": "magnet", "tasks": 1, "options": options}}, said)
            for options, said in [
                ({"chats": {"edge_juge": "policy"}}, "no role 'edge_juge'; did you mean edge_judge?"),
                ({"chat": {"url": "http://x", "modell": "m"}}, "chat: unknown modell; a chat is set by url"),
                ({"chat": "policy"}, "chat of magnet needs a model, and policy.engine is scripted"),
                ({"teacher": "hinted"}, "teacher of magnet needs a model, and policy.engine is scripted"),
                ({"random_choice": "yes"}, "random_choice: Input should be a valid boolean; got 'yes'"),
            ]
        ),
        ("synth.rollouts.options", {"k": 0}, "k must be at least 1, got 0"),
        ("synth.rollouts.split", "secret", "has no split 'secret'; it has train, dev, heldout"),
        ("synth.rollouts.tasks", 99_999, "ends after 6480 tasks; asked for 99999 from number 4 on"),
        ("synth.rollouts.skip", 99_999, "ends after 6480 tasks; asked for 6 from number 99999 on"),
    ],
)
def test_an_impossible_recipe(key: str, value: Any, said: str, tokenizer: Path, workplace: Path) -> None:
    Path("torn_world.py").write_text("def load(:\n")
    done = trajsmith("synth", write_recipe(workplace, recipe(tokenizer, **{key: value})), "--dry-run")
    if done.code == 0:
        done = trajsmith("synth", "recipe.yaml")
    assert done.code == 2, done
    assert said in done.err and "Traceback" not in done.err


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"filters": [{"name": "magic"}]}, "magic"),
        ({"filters": [{"name": "valid_calls", "strictness": 9}]}, "strictness"),
        ({"filters": [{}]}, "unknown filter None; there are "),
        ({"filters": FILTERS, "synthesizers": ["nobody"]}, "curation kept none of 0 trajectories"),
    ],
)
def test_an_impossible_curation(section: Any, said: str, tokenizer: Path, workplace: Path) -> None:
    path = write_recipe(workplace, recipe(tokenizer, curate=section))
    assert trajsmith("synth", path, "demonstrations").code == 0
    done = trajsmith("curate", path)
    assert done.code == 2 and said in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("synth", "nowhere.yaml"), "recipe nowhere.yaml does not exist; write one or start from"),
        (("synth", "x" * 300), "does not exist; write one or start from"),
        (("eval", "recipe.yaml", "--model", "x" * 300), "neither a directory nor a known name"),
        (("env", "check", "mcp", "--options", MCP), "MCP server http://127.0.0.1:9/mcp does not answer"),
        (("synth", "list.yaml"), "recipe list.yaml holds a list, not a mapping"),
        (("synth", "torn.yaml"), "recipe torn.yaml is not YAML"),
        (("synth", "recipe.yaml", "warmup"), "no synth stage 'warmup'; it has demonstrations, rollouts"),
        (("synth", "recipe.yaml", "--fast"), "No such option: --fast"),
        (("synth",), "Missing argument"),
        (("sing",), "No such command 'sing'"),
        (("view", "runs/none", "--port", "x"), "Invalid value for '--port'"),
        (("report", "runs/none"), "runs/none is not a run directory"),
        (("diagnose", "runs/none"), "runs/none is not a run directory"),
        (("view", "runs/none"), "runs/none is not a run directory"),
        (("audit", "runs/none"), "runs/none is not a run directory"),
        (("publish", "runs/none", "--to", "x"), "runs/none is not a run directory"),
        (("curate", "recipe.yaml"), "curation kept none of 0 trajectories"),
        (("synth", "latin.yaml"), "recipe latin.yaml is not YAML in UTF-8"),
        (("synth", "twice.yaml"), "key 'seed' stands twice"),
        (("synth", "circle.yaml"), "circle.yaml is not YAML in UTF-8: a value holds itself"),
        (("synth", "bomb.yaml"), "recipe bomb.yaml stands for more than 100000 values; its aliases multiply"),
        (("synth", "merge.yaml"), "recipe merge.yaml stands for more than 100000 values"),
        (("report", "bombed"), "bombed/recipe.yaml stands for more than 1000000 values"),
        (("synth", "day.yaml"), "recipe day.yaml is not YAML in UTF-8: day is out of range for month"),
        (("eval", "recipe.yaml", "--name", "../up"), "--name '../up' cannot name a folder"),
        (("audit", "runs/none", "--count", "-1"), "Invalid value for '--count'"),
        (("view", "runs/none", "--port", "65536"), "Invalid value for '--port'"),
        (("env", "check", "counter", "--tasks", "0"), "Invalid value for '--tasks'"),
        (("env", "check", "counter", "--options", "[1]"), "--options must be a JSON object"),
        (("report", "recipe.yaml"), "recipe.yaml is not a run directory"),
        (("eval", "recipe.yaml", "--model", "no/such"), "nor a known name (base, sft, grpo, smollm2)"),
        (("synth", "recipe.yaml", "--model", "no/such"), "nor a known name (base, sft, grpo, smollm2)"),
        (("eval", "recipe.yaml", "--model", "/etc"), "model directory /etc has no config (config.json)"),
        (("eval", "recipe.yaml", "--model", "sft"), "has no model 'sft' yet; run `trajsmith train sft`"),
        (("train", "grpo", "recipe.yaml", "--dry-run"), "has no weights to train; set policy.engine: vllm"),
        (("demo", "--recipe", "bare.yaml"), "recipe bare has no synth section"),
        (("demo", "--recipe", "recipe.yaml"), "has no weights to train; set policy.engine: vllm"),
        (("serve", "smollm2", "--max-model-len", "0"), "Invalid value for '--max-model-len'"),
        (("prove", "--seed", "-1"), "Invalid value for '--seed'"),
        (("train", "sft", "recipe.yaml"), "has no config (config.json)"),
        (("serve", "no/such"), "model 'no/such' is neither a directory nor a known name (smollm2)"),
        (("env", "check", "moon"), "there is no environment 'moon'"),
        (("env", "check", "counter", "--options", "{"), "--options is not JSON"),
        (("demo", "--recipe", "nowhere.yaml"), "recipe nowhere.yaml does not exist"),
    ],
)
def test_a_wrong_command(arguments: tuple[str, ...], said: str, tokenizer: Path, workplace: Path) -> None:
    write_recipe(workplace, recipe(tokenizer))
    Path("list.yaml").write_text("[1]\n")
    Path("torn.yaml").write_text("name: {\n")
    Path("latin.yaml").write_bytes(b"name: caf\xe9\n")
    Path("bare.yaml").write_text("name: bare\n")
    Path("tasks.yaml").write_text("- {prompt: Go., gold: [{say: Gone.}]}\n")
    Path("circle.yaml").write_text("name: a\nenvironment: {options: &o {self: *o}}\n")
    Path("day.yaml").write_text("name: a\ndescription: 2026-02-30\n")
    Path("bomb.yaml").write_text(BOMB)
    Path("merge.yaml").write_text(BOMB.replace("[", "{<<: [").replace("]", "]}").replace("[boom]", "[{}]"))
    Path("bombed").mkdir()
    Path("bombed/recipe.yaml").write_text(BOMB)
    Path("twice.yaml").write_text("seed: 1\nname: a\nseed: 2\n")
    done = trajsmith(*arguments)
    assert done.code == 2, done
    assert said in done.err and "Traceback" not in done.err and "4711" not in done.err


def test_no_command_shows_the_help() -> None:
    done = trajsmith()
    assert done.code == 2 and "Usage" in done.out + done.err


def test_a_failed_check_is_exit_code_1() -> None:
    assert trajsmith("env", "check", "counter", "--tasks", "2").code == 0
    failed = trajsmith("env", "check", "tests.flows.lab:wrong_gold", "--tasks", "2")
    assert failed.code == 1 and "FAIL gold scores 1" in failed.out


def test_gold_that_fails_is_refused_every_time(tokenizer: Path, workplace: Path) -> None:
    value = recipe(tokenizer, environment={"name": "tests.flows.lab:wrong_gold"})
    path = write_recipe(workplace, value)
    first, second = trajsmith("synth", path, "demonstrations"), trajsmith("synth", path, "demonstrations")
    assert first.code == second.code == 3
    assert "the gold of 4 task(s) of counter does not score 1" in first.err
    assert "4 demonstrations whose gold did not score 1" in second.err
    with Store.open(workplace / "runs/small") as store:
        assert [row.success for row in store.trajectories()] == [False] * 4
        assert store.manifest("synth-demonstrations") is None


@pytest.mark.parametrize(
    ("world", "said"),
    [
        (
            "no_tasks",
            "environment counter could not list its split 'train': OSError('the task list is down')",
        ),
        ("no_gold", "counter has no gold for task"),
        ("torn_gold", "failed: KeyError('price')"),
    ],
)
def test_an_environment_that_breaks_is_one_clear_error(
    world: str, said: str, tokenizer: Path, workplace: Path
) -> None:
    path = write_recipe(workplace, recipe(tokenizer, environment={"name": f"tests.flows.lab:{world}"}))
    done = trajsmith("synth", path, "demonstrations")
    assert (done.code, "Traceback" in done.err) == (3, False) and said in done.err, done


def test_a_place_where_nothing_can_be_published(tokenizer: Path, workplace: Path) -> None:
    path = write_recipe(workplace, recipe(tokenizer))
    assert trajsmith("synth", path, "demonstrations").code == 0
    early = trajsmith("publish", "runs/small", "--to", "out", "--dry-run")
    assert early.code == 2 and "run `trajsmith curate RECIPE` first" in early.err, early
    assert trajsmith("curate", path).code == 0
    Path("file").write_text("")
    done = trajsmith("publish", "runs/small", "--to", "file/here")
    assert done.code == 4 and "/file: File exists. the run is untouched" in done.err
    assert trajsmith("publish", "runs/small", "--to", "out").code == 0
    assert Path("out").stat().st_mode & 0o777 == Path("runs").stat().st_mode & 0o777


def test_a_changed_recipe_prints_what_differs_and_the_choices(tokenizer: Path, workplace: Path) -> None:
    assert trajsmith("synth", write_recipe(workplace, recipe(tokenizer)), "demonstrations").code == 0
    changed = recipe(tokenizer, seed=7, **{"policy.mistakes": 0.1, "policy.max_in_flight": 2})
    done = trajsmith("synth", write_recipe(workplace, changed))
    assert done.code == 2
    assert "  policy.mistakes: 0.3 -> 0.1\n  seed: 0 -> 7\n" in done.err and "Choose:" in done.err
    assert "max_in_flight" not in done.err
    allowed = recipe(tokenizer, description="another", **{"policy.max_in_flight": 2})
    assert trajsmith("synth", write_recipe(workplace, allowed), "demonstrations").code == 0
    known = load_recipe(workplace / "recipe.yaml").model_dump()
    assert all(key.split(".")[-1] in {**known, **known["policy"]} for key in VOLATILE)


def test_a_locked_run_names_its_writer(tokenizer: Path, workplace: Path) -> None:
    path = write_recipe(workplace, recipe(tokenizer))
    with open_run(load_recipe(path), Path("runs")):
        done = trajsmith("synth", path)
    assert done.code == 4 and f"runs/small is being written by process {os.getpid()}" in done.err
    assert trajsmith("synth", path, "demonstrations").code == 0


def test_a_port_in_use(tokenizer: Path, workplace: Path) -> None:
    assert trajsmith("synth", write_recipe(workplace, recipe(tokenizer)), "demonstrations").code == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = trajsmith("view", "runs/small", "--port", str(port))
    assert done.code == 2 and str(port) in done.err


def test_a_full_disk_loses_nothing(tokenizer: Path, workplace: Path, small_disk: Path) -> None:
    value = recipe(tokenizer, **{"synth.demonstrations.tasks": 100})
    path = write_recipe(workplace, value)
    full = trajsmith("synth", path, "--runs", small_disk)
    assert full.code == 4 and "no space left" in full.err and "run the same command again" in full.err
    shutil.copytree(small_disk / "small", workplace / "runs" / "small")
    again = trajsmith("synth", path)
    assert again.code == 0, again.err
    assert trajsmith("synth", path, "--runs", "fresh").code == 0
    assert digests(workplace / "runs/small") == digests(workplace / "fresh/small")


# --- servers ------------------------------------------------------------------------------------------------


@pytest.fixture
def served(tokenizer: Path, workplace: Path) -> Callable[..., Path]:
    """A recipe for a server of the user's; its model directory looks whole."""
    model = workplace / "whole"
    shutil.copytree(tokenizer, model)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").touch()

    def write(**changes: Any) -> Path:
        value = recipe(model, **{"policy.engine": "vllm", "policy.patience_seconds": 0.2, **changes})
        return write_recipe(workplace, value)

    return write


def vllm_like(received: Received) -> Reply:
    """Answers as a vLLM server of a model that only ever ends its turn."""
    if received.path == "/v1/models":
        return Reply({"data": [{"id": "policy", "max_model_len": 2048}]})
    prompt, stop = received.body["prompt"], (received.body.get("stop_token_ids") or [2])[0]
    choice: dict[str, Any] = {
        "index": 0,
        "token_ids": [stop],
        "prompt_token_ids": prompt,
        "logprobs": {"token_logprobs": [-0.01]},
        "finish_reason": "stop",
    }
    if "prompt_logprobs" in received.body:
        choice["prompt_logprobs"] = [None, *({str(token): {"logprob": -0.1}} for token in prompt[1:])]
    return Reply({"choices": [choice]})


def tables(run: str = "runs/small") -> tuple[int, list[Any]]:
    """Number of rewarded trajectories, and the failures."""
    with Store.open(Path(run)) as store:
        return sum(1 for _ in store.trajectories()), list(store.failures())


def test_a_closed_port_is_no_answer_and_no_reward(served: Callable[..., Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closing:
        url = f"http://127.0.0.1:{closing.getsockname()[1]}"
    path = served()
    for command in (("synth", path, "rollouts", "--url", url), ("eval", path, "--url", url)):
        done = trajsmith(*command)
        assert done.code == 3 and url in done.err and "is the server up?" in done.err
    assert tables() == (0, [])


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (lambda received: Reply("out of memory", status=500), 3, "HTTP 500"),
        (lambda received: Reply(raw=b"<html>", headers={"content-type": "text/html"}), 2, "lists no models"),
        *(
            (lambda received, answer=answer: Reply(answer), 2, said)
            for answer, said in [
                ({}, "/v1/models answered {}, which lists no models; correct the URL"),
                ({"detail": "not here"}, "answered {'detail': 'not here'}, which lists no models"),
                ({"data": None}, "lists no models"),
                ([], "lists no models"),
                ({"data": [{"name": "policy"}]}, "answered {'data': [{'name': 'policy'}]}, which lists no"),
                ({"data": ["policy"]}, "lists no models"),
                ({"data": [{"id": None}]}, "lists no models"),
                ({"data": [{"id": "policy", "max_model_len": "long"}]}, "lists no models"),
                ({"data": []}, "has the models [], not 'policy'"),
            ]
        ),
        (lambda received: Reply({"data": [{"id": "other"}]}), 2, "has the models ['other'], not 'policy'"),
        (
            lambda received: vllm_like(received) if received.body is None else Reply({"choices": [{}]}),
            3,
            "malformed choice",
        ),
    ],
)
def test_a_server_that_answers_nonsense(
    answer: Callable[[Received], Reply], code: int, said: str, served: Callable[..., Path]
) -> None:
    with ScriptedServer(answer) as server:
        done = trajsmith("synth", served(), "rollouts", "--url", server.url)
    assert done.code == code and said in done.err and "Traceback" not in done.err, done
    assert tables() == (0, [])


def test_a_servers_echo_of_its_key_is_in_no_record(
    served: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_KEY", "fleet-secret-4711")

    def answer(received: Received) -> Reply:
        if received.number < 3:
            return vllm_like(received)
        return Reply({"error": "bad request", "headers": received.headers}, status=400)

    path = served(**{"policy.api_key_env": "FLEET_KEY"})
    with ScriptedServer(answer) as server:
        done = trajsmith("synth", path, "rollouts", "--url", server.url)
    assert done.code == 3 and "was refused: HTTP 400" in done.err, done
    _, failures = tables()
    assert failures and all("Bearer ***" in row.error for row in failures)
    for file in Path("runs").rglob("*"):
        assert not file.is_file() or b"secret-4711" not in file.read_bytes(), file
    assert "fleet-secret" not in done.err + done.out + "".join(row.model_dump_json() for row in failures)


def test_a_server_that_dies_gives_failures_without_reward_and_the_next_run_finishes(
    served: Callable[..., Path],
) -> None:
    dead_from = 8

    def answer(received: Received) -> Reply:
        return vllm_like(received) if received.number < dead_from else Reply(raw=b'{"choices": 1}')

    path = served()
    with ScriptedServer(answer) as server:
        done = trajsmith("synth", path, "rollouts", "--url", server.url)
    assert done.code == 3 and "have no reward" in done.err and "expected 1 choices" in done.err
    rewarded, failures = tables()
    assert rewarded == dead_from - 3 and failures
    assert {(row.reward, row.termination) for row in failures} == {(None, Termination.INFRA_FAILURE)}
    with Store.open(Path("runs/small")) as store:
        assert store.manifest("synth-rollouts") is None
    with ScriptedServer(vllm_like) as server:
        again = trajsmith("synth", path, "rollouts", "--url", server.url)
    assert again.code == 0, again.err
    with Store.open(Path("runs/small")) as store:
        assert len({(row.group_id, row.rollout_index) for row in store.trajectories()}) == 12
        assert store.manifest("synth-rollouts") is not None


def test_an_evaluation_of_a_dead_server_is_no_evaluation(served: Callable[..., Path]) -> None:
    def answer(received: Received) -> Reply:
        return vllm_like(received) if received.number < 3 else Reply(raw=b'{"choices": 1}')

    with ScriptedServer(answer) as server:
        done = trajsmith("eval", served(), "--url", server.url)
    assert done.code == 3 and "have no reward" in done.err
    assert not list(Path("runs/small/eval").glob("*/evaluation.json"))


def test_ctrl_c_on_the_page_is_130(tokenizer: Path, workplace: Path) -> None:
    assert trajsmith("synth", write_recipe(workplace, recipe(tokenizer)), "demonstrations").code == 0
    # A test that runs in the background may have SIGINT ignored, and children inherit that.
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    script = listen + "from flows.cli import main; main()"
    command = [sys.executable, "-P", "-c", script, "view", "runs/small", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline().startswith("runs/small is shown at")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in said


@pytest.mark.parametrize("arguments", [("env", "list"), ("eval", "recipe.yaml", "--json")])
def test_output_that_cannot_be_written_is_one_clear_error(
    arguments: tuple[str, ...], tokenizer: Path, workplace: Path
) -> None:
    assert trajsmith("synth", write_recipe(workplace, recipe(tokenizer)), "demonstrations").code == 0
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "flows.cli", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1] == (
        "trajsmith: cannot write the output: No space left on device; what was worked on is on disk"
    )
