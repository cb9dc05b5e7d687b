from pathlib import Path

import pytest

from pipeline.renderers.chatml import ChatMLRenderer
from tests.tiny import make_tiny_tokenizer


@pytest.fixture(scope="session", params=[False, True], ids=["plain-tags", "added-tags"])
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny tokenizer, once with tool tags as plain text (SmolLM2), once as added tokens (Qwen2.5)."""
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"), tags=request.param)


@pytest.fixture(scope="session")
def renderer(model_dir: Path) -> ChatMLRenderer:
    return ChatMLRenderer.load(model_dir)
