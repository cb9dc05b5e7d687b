"""Trained weights on their way out: digest, atomic save, merged adapter.

The digest is the one the model server computes (`pipeline.serve_extension`): over checkpoint names
and bfloat16-rounded values, so equality means the server answers with these weights. Not covered:
optimiser state (`rl.checkpoints`), the push itself (the engine's business) and what a full disk is called
(`rl.disk`, the caller's business); nothing half-made is left on one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data.faults import kill_point
from data.files import replace_directory, sync_file
from pipeline.serve_extension import weights_digest
from rl.lm import require_torch, unwrap

_NOT_COPIED = (".safetensors", ".bin", ".pt", ".index.json")


def named_weights(model: Any) -> Iterator[tuple[str, Any]]:
    """(checkpoint name, float32 tensor) of every weight, an adapter merged in; a tied head is left out."""
    causal = unwrap(model)
    tied = (
        set(getattr(causal, "_tied_weights_keys", None) or ()) if causal.config.tie_word_embeddings else set()
    )
    deltas = _adapter_deltas(model)
    for name, tensor in causal.state_dict().items():
        if name in tied or ".lora_" in name:
            continue
        name = name.replace(".base_layer.", ".")
        delta = deltas.get(name)
        yield name, tensor.detach() if delta is None else tensor.detach() + delta


def model_digest(model: Any) -> str:
    """Digest of a live model's (merged) weights; equals the server's after it loaded them."""
    return weights_digest(named_weights(model))


def save_model(model: Any, source_dir: Path, target: Path) -> str:
    """Write a servable model directory (merged weights, config and tokenizer of `source_dir`); its digest.

    The directory appears whole or not at all; an existing one is replaced.
    """
    with _whole_directory(target) as built:
        copy_sidecars(source_dir, built)
        return save_weights(model, built)


def save_weights(model: Any, directory: Path) -> str:
    """Replace `directory`/model.safetensors by a rename, so that a server reloading it sees whole files."""
    from safetensors.torch import save_file

    weights = {name: tensor.contiguous() for name, tensor in named_weights(model)}
    aside = directory / ".model.safetensors.new"
    try:
        save_file(weights, str(aside), metadata={"format": "pt"})
        sync_file(aside)
        os.replace(aside, directory / "model.safetensors")
    finally:
        aside.unlink(missing_ok=True)
    return weights_digest(weights.items())


def save_adapter(model: Any, directory: Path) -> None:
    """Write the LoRA adapter alone, in the form servers load; whole or not at all."""
    with _whole_directory(directory) as built:
        model.save_pretrained(str(built))


def copy_sidecars(source_dir: Path, target: Path) -> None:
    """Copy config, tokenizer and template files, everything but weights."""
    target.mkdir(parents=True, exist_ok=True)
    for file in source_dir.iterdir():
        if file.is_file() and not file.name.endswith(_NOT_COPIED) and not file.name.startswith("."):
            shutil.copyfile(file, target / file.name)


@contextlib.contextmanager
def _whole_directory(target: Path) -> Iterator[Path]:
    """A directory to fill that becomes `target` by a rename; what a killed writer left is removed first."""
    aside = target.with_name(f".{target.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        yield aside
        kill_point("model.rename.before")
        replace_directory(aside, target, aside=target.with_name(f".{target.name}.replaced"))
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _adapter_deltas(model: Any) -> dict[str, Any]:
    """Per checkpoint name, the weight change of the active LoRA adapter."""
    require_torch()
    if unwrap(model) is model:
        return {}
    return {
        f"{name}.weight": module.get_delta_weight("default").detach()
        for name, module in unwrap(model).named_modules()
        if hasattr(module, "get_delta_weight") and "default" in getattr(module, "lora_A", {})
    }
