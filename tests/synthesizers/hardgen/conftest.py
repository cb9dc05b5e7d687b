"""One tokenizer for all tests here."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.renderers.chatml import ChatMLRenderer
from tests.tiny import make_tiny_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def renderer(tokenizer: Path) -> ChatMLRenderer:
    return ChatMLRenderer.load(tokenizer)
