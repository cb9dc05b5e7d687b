"""What the tests of LoopTool share."""

from __future__ import annotations

import pytest

from pipeline.renderers.chatml import ChatMLRenderer
from tests.synthesizers.looptool.world import Desk, Planted
from tests.tiny import make_tiny_tokenizer


@pytest.fixture(scope="package")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatMLRenderer:
    """ChatML over the small tokenizer."""
    return ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="package")
def desk(renderer: ChatMLRenderer) -> Desk:
    """24 tasks, one of each of the first templates."""
    return Desk(renderer, 24)


@pytest.fixture(scope="package")
def planted(desk: Desk) -> list[Planted]:
    """Their gold with one other call each, stored as successes."""
    return desk.planted()
