"""What runs inside the model server: reload weights and say, by digest, which weights were loaded.

The file is imported by the server's own environment, so it imports the standard library only and
knows tensors by their methods. A digest is over the tensors of a checkpoint under their checkpoint
names, each rounded to bfloat16: the trainer computes the same number from its float32 state. It is
taken while the tensors stream into the model, because kernels repack weights afterwards. Not
covered: adapters (their digest is the caller's) and weights that reach the server by other routes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any


class WeightsDigest:
    """Accumulates tensors in any order; equal checkpoints give equal `hexdigest()`."""

    def __init__(self) -> None:
        self._tensors: dict[str, str] = {}

    def add(self, name: str, tensor: Any) -> None:
        """Add one torch tensor, its values rounded to bfloat16 and hashed as little-endian float32."""
        values = tensor.detach().bfloat16().float().cpu().contiguous().numpy()
        self._tensors[name] = hashlib.sha256(values.astype("<f4", copy=False).data).hexdigest()

    def tap(self, weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Pass `weights` through, adding each."""
        for name, tensor in weights:
            self.add(name, tensor)
            yield name, tensor

    def hexdigest(self) -> str:
        """32 hex digits over the sorted names and values."""
        lines = "".join(f"{name} {self._tensors[name]}\n" for name in sorted(self._tensors))
        return hashlib.sha256(lines.encode("utf-8")).hexdigest()[:32]


def weights_digest(weights: Iterable[tuple[str, Any]]) -> str:
    """Digest of (checkpoint name, torch tensor) pairs; a tied output head is left out, as in the file."""
    digest = WeightsDigest()
    for name, tensor in weights:
        digest.add(name, tensor)
    return digest.hexdigest()


class ServedWeights:
    """Methods mixed into the server's worker (`--worker-extension-cls`), called by `/collective_rpc`."""

    def trajsmith_load(self, path: str = "") -> dict[str, str]:
        """Load the checkpoint at `path` ("" = the one in use) in place; its digest and path."""
        from vllm.model_executor.model_loader import get_model_loader

        runner: Any = self.model_runner  # type: ignore[attr-defined]
        config = runner.model_config
        if path:
            config.model, config.model_weights, config.revision = path, "", None
        loader = get_model_loader(runner.vllm_config.load_config)
        digest = WeightsDigest()
        self.reload_weights(  # type: ignore[attr-defined]
            weights_iterator=digest.tap(loader.get_all_weights(config, runner.get_model()))
        )
        self._trajsmith_digest = digest.hexdigest()
        return self.trajsmith_digest()

    def trajsmith_digest(self) -> dict[str, str]:
        """Digest and path of the weights loaded last; "" where nothing was loaded through us yet."""
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        return {"digest": getattr(self, "_trajsmith_digest", ""), "path": str(runner.model_config.model)}
