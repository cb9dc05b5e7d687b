"""Tells a model directory's chat format from its template and config, without loading the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from data.errors import ConfigError
from pipeline.renderers.chatml import END, START, TEMPLATE, ChatMLRenderer

HAND_WRITTEN = {
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3",
    "qwen3_5": "qwen3.5",
    "qwen3_5_moe": "qwen3.5",
    "gpt_oss": "gpt-oss",
}
"""`model_type` of config.json -> family of the package `renderers`, for types with one template only."""


def detect_family(model_dir: Path) -> str:
    """Family name for `load_renderer`. Raises ConfigError where the directory fits none.

    The project's own template wins over the model type, because whoever wrote it there trained with it.
    """
    own = TEMPLATE.read_text(encoding="utf-8")
    if _template(model_dir).strip() == own.strip():
        return ChatMLRenderer.name
    model_type = str(_json(model_dir / "config.json").get("model_type", ""))
    if model_type in HAND_WRITTEN:
        return HAND_WRITTEN[model_type]
    names = {token.get("content") for token in _json(model_dir / "tokenizer.json").get("added_tokens", [])}
    if {START, END} <= names:
        return ChatMLRenderer.name
    raise ConfigError(
        f"no renderer known for {model_dir} (model_type {model_type or 'not given'}, no {START} token); "
        f"name the family: {ChatMLRenderer.name}, or one of the package renderers such as "
        f"{', '.join(sorted(set(HAND_WRITTEN.values())))}"
    )


def _template(model_dir: Path) -> str:
    path = model_dir / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    value = _json(model_dir / "tokenizer_config.json").get("chat_template", "")
    return value if isinstance(value, str) else ""


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}; copy the model directory again") from error
    return value if isinstance(value, dict) else {}
