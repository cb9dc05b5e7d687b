"""Which renderer a model directory gets, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from data.errors import ConfigError
from pipeline.renderers.chatml import TEMPLATE
from pipeline.renderers.families import detect_family
from pipeline.renderers.load import load_renderer


@pytest.fixture
def directory(model_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_dir, tmp_path / "model"))


def write(directory: Path, *, model_type: str = "", template: str = "") -> None:
    (directory / "config.json").write_text(json.dumps({"model_type": model_type}))
    (directory / "chat_template.jinja").write_text(template)


def test_our_template_wins_over_the_model_type(directory: Path) -> None:
    write(directory, model_type="qwen3", template=TEMPLATE.read_text())
    assert load_renderer(directory).name == "chatml"


def test_a_template_inside_tokenizer_config_counts(directory: Path) -> None:
    write(directory, model_type="qwen3")
    (directory / "chat_template.jinja").unlink()
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE.read_text()}))
    assert detect_family(directory) == "chatml"


@pytest.mark.parametrize(
    ("model_type", "family"), [("qwen3", "qwen3"), ("gpt_oss", "gpt-oss"), ("qwen2", "chatml")]
)
def test_model_types(directory: Path, model_type: str, family: str) -> None:
    write(directory, model_type=model_type, template="{{ messages }}")
    assert detect_family(directory) == family


def test_a_directory_that_fits_nothing_is_refused(directory: Path) -> None:
    write(directory, model_type="mystery")
    spec = json.loads((directory / "tokenizer.json").read_text())
    (directory / "tokenizer.json").write_text(json.dumps(spec | {"added_tokens": []}))
    with pytest.raises(ConfigError, match=r"model_type mystery.*name the family: chatml, or"):
        load_renderer(directory)


def test_a_missing_tokenizer_and_a_broken_config_are_named(directory: Path) -> None:
    write(directory)
    (directory / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json is not JSON"):
        load_renderer(directory)
    (directory / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"no tokenizer\.json in"):
        load_renderer(directory, family="chatml")
