"""Fixtures of the stages' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import make_tiny_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tokenizer only: all the scripted policy needs."""
    return make_tiny_tokenizer(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, as a user's."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
