"""Fixtures of hindsight's tests."""

from __future__ import annotations

import pytest

from pipeline.renderers.chatml import ChatMLRenderer
from tests.tiny import make_tiny_tokenizer


@pytest.fixture(scope="session")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatMLRenderer:
    return ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))
