"""Chooses the renderer of a model directory: ours for ChatML, a hand-written one for families known."""

from __future__ import annotations

from pathlib import Path

from pipeline.renderers.base import Renderer
from pipeline.renderers.chatml import ChatMLRenderer
from pipeline.renderers.families import detect_family


def load_renderer(model_dir: Path, *, family: str = "") -> Renderer:
    """The renderer for `model_dir` (a folder with tokenizer.json).

    `family` is "chatml" or a hand-written family of the package `renderers` ("qwen3", "gpt-oss", ...);
    "" decides by the directory's template and config. Raises ConfigError where nothing fits,
    MissingExtraError where that package is needed and not installed.
    """
    family = family or detect_family(model_dir)
    if family == ChatMLRenderer.name:
        return ChatMLRenderer.load(model_dir)
    from pipeline.renderers.external import ExternalRenderer

    return ExternalRenderer.load(model_dir, family=family)
