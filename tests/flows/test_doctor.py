"""What the doctor finds wrong: packages, the model's directory, servers."""

from __future__ import annotations

import json
import shutil
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from flows.stages import doctor
from flows.stages.packages import PackageGroup, groups_of, installed_groups
from pipeline.environments.bfcl.dataset import VERSION
from rl.models import smollm2_directory
from tests.flows.lab import trajsmith
from tests.flows.test_bad_input import vllm_like
from tests.serving import Received, Reply, ScriptedServer


def judged(*requirements: str) -> dict[str, doctor.Finding]:
    return {group.name: doctor.judge(group) for group in groups_of(requirements)}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three packages of which only the metadata exists."""
    for name, version in (("fits_well", "1.4+cpu"), ("too_old", "0.9"), ("early", "2.0rc1")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_packages_are_looked_for_by_extra_and_range(installed: None) -> None:
    found = judged(
        "fits-well<2,>=1",
        "too-old<2,>=1; extra == 'train'",
        "no-such-package>=1; extra == 'train'",
        'Early<3,>=2.0rc1; extra == "look"',
        "no-such-package>=1; extra == 'some'",
        "no-such-package>=1; extra == 'all'",
    )
    assert list(found) == ["base install", "extra train", "extra look", "extra some"]
    assert (found["base install"].status, found["base install"].detail) == ("ok", "fits-well")
    assert found["extra look"].status == "ok"
    assert found["extra train"].status == "problem"
    assert found["extra train"].detail == (
        "out of range: too-old 0.9 (wants <2,>=1); not installed: no-such-package"
    )
    assert (found["extra some"].status, found["extra some"].detail) == (
        "missing",
        "not installed: no-such-package",
    )
    assert "make setup" in found["extra some"].fix
    assert judged("no-such-package")["base install"].status == "problem"


def test_every_extra_of_the_project_and_both_benchmarks_are_looked_at(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    groups = {group.name: group for group in installed_groups()}
    extras = project["optional-dependencies"].keys() - {"all"}
    assert groups.keys() == {"base install", "benchmark bfcl", "benchmark tau2"} | {
        f"extra {name}" for name in extras
    }
    assert str(groups["benchmark bfcl"].needs[0]) == f"bfcl-eval=={VERSION}"


def test_a_benchmark_has_its_own_command(installed: None) -> None:
    [train] = [group for group in groups_of(["too-old>=1; extra == 'x'"]) if group.needs]
    assert doctor.judge(PackageGroup("benchmark tau2", train.needs)).fix == "make tau2-setup"


def test_a_checkout_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("flows.stages.packages.requires", absent)
    [found] = [row for row in doctor.examine() if row.what == "packages"]
    assert (found.status, found.fix) == ("problem", "make setup")


def model_line() -> dict[str, str]:
    done = trajsmith("doctor", "--json")
    [row] = [row for row in json.loads(done.out) if row["what"] == "model smollm2"]
    return row


def test_the_models_directory_is_whole_or_what_it_lacks_is_told(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAJSMITH_CACHE", str(tmp_path / "a cache"))
    path = smollm2_directory()
    (path.parent / "another-model").mkdir(parents=True)
    assert model_line()["status"] == "missing"
    shutil.copytree(tokenizer, path)
    assert "has no config.json" in model_line()["detail"]
    (path / "config.json").write_text("{}")
    (path / "chat_template.jinja").write_text("{{ tools }}")
    header = json.dumps({"__metadata__": {}, "w": {"data_offsets": [0, 8]}}).encode()
    weights = saying(header) + bytes(8)
    for content, said in [
        (weights[:-1], f"has {len(weights) - 1} bytes, and says that it has {len(weights)}"),
        (b"", "is no safetensors file"),
        (weights[:20], "is no safetensors file"),
        (b"\xff" * 500, "is no safetensors file"),
        ((10**12).to_bytes(8, "little") + header, "a header of 1000000000000 bytes in a file of"),
        (saying(b"[" * 100_000), "is no safetensors file: RecursionError"),
        (saying(b'{"w": {"data_offsets": [0, "x"]}}'), "an offset is no whole number"),
        (saying(b'{"w": {"data_offsets": []}}'), "is no safetensors file: IndexError"),
    ]:
        (path / "model.safetensors").write_bytes(content)
        row = model_line()
        assert row["status"] == "problem" and said in row["detail"], row
        assert row["fix"] == f"rm -r '{path}'"
    (path / "model.safetensors").write_bytes(weights)
    assert model_line()["status"] == "ok"
    (path / "more.safetensors").symlink_to("nowhere")
    assert "more.safetensors is no safetensors file" in model_line()["detail"]
    (path / "more.safetensors").unlink()
    (path / "more.safetensors").mkdir()
    assert "more.safetensors is no safetensors file" in model_line()["detail"]
    (path / "more.safetensors").rmdir()
    (path / "chat_template.jinja").write_bytes(b"\xff tools")
    assert "cannot read the chat template" in model_line()["detail"]


def saying(header: bytes) -> bytes:
    """A safetensors file with that header and no weights."""
    return len(header).to_bytes(8, "little") + header


def serving(**changes: Any) -> Any:
    def answer(received: Received) -> Reply:
        if received.path == "/v1/models":
            return Reply({"data": [{"id": "policy", "max_model_len": 2048} | changes]})
        reply = vllm_like(received)
        if changes.get("raw") and "prompt_logprobs" in received.body:
            for position in reply.body["choices"][0]["prompt_logprobs"][1:]:
                position.update({token: {"logprob": -3.0} for token in position})
        elif changes.get("raw"):
            reply.body["choices"][0]["logprobs"]["token_logprobs"] = [-3.0]
        return reply

    return answer


def test_each_server_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_KEY", "fleet-4711")
    with (
        ScriptedServer(serving()) as good,
        ScriptedServer(serving(raw=True)) as raw,
        ScriptedServer(serving(max_model_len=None)) as silent,
        ScriptedServer(lambda received: Reply({"data": []})) as empty,
        ScriptedServer(lambda received: Reply({"got": received.headers}, status=401)) as closed,
    ):
        servers = (good, raw, silent, empty, closed)
        urls = ",".join(["ftp://x", *(server.url for server in servers)])
        done = trajsmith("doctor", "--json", "--url", urls, "--api-key-env", "FLEET_KEY")
        assert {one.headers["authorization"] for server in servers for one in server.received} == {
            "Bearer fleet-4711"
        }
    rows = [row for row in json.loads(done.out) if row["what"].startswith("server ")]
    assert done.code == 1 and "4711" not in done.out
    assert [row["what"] for row in rows] == [
        "server ftp://x",
        *(f"server {server.url}" for server in servers),
    ]
    assert [row["status"] for row in rows] == ["problem", "ok", "problem", "ok", "problem", "problem"]
    for row, said in zip(
        rows,
        [
            "is not an http(s) URL",
            "model policy; up to 2048 tokens; processed log-probs",
            "start it with --logprobs-mode processed_logprobs",
            "does not say how long",
            "serves no model",
            "HTTP 401",
        ],
        strict=True,
    ):
        assert said in row["detail"], row


@pytest.mark.parametrize("raw", [False, True])
def test_a_server_whose_model_is_called_like_the_key_does_not_show_it(
    raw: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_KEY", "fleet-4711")
    with ScriptedServer(serving(id="FLEET-4711", raw=raw)) as server:
        done = trajsmith("doctor", "--url", server.url, "--api-key-env", "FLEET_KEY")
    assert "***" in done.out and "4711" not in done.out + done.err


def test_a_server_whose_models_name_is_no_text_is_one_line() -> None:
    with ScriptedServer(serving(id="\ud800")) as server:
        done = trajsmith("doctor", "--url", server.url)
    assert done.code == 1 and "which lists no models" in done.out
