"""What torch, safetensors and transformers write, with one clear error for a disk that cannot take it.

Their own errors hide the disk's: safetensors tells its number in words, torch fails again while it ends
the archive. Not covered: what is left half-written, which the caller removes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data.files import disk_errors
from rl.lm import require_torch


@contextmanager
def model_files(path: Path, *, safe: str) -> Iterator[None]:
    """`disk_errors` that knows safetensors' error too. StoreError says what is `safe` and what to do next."""
    require_torch()
    from safetensors import SafetensorError

    with disk_errors(path, safe=safe):
        try:
            yield
        except SafetensorError as error:
            found = re.search(r"\(os error (\d+)\)", str(error))
            if found is None:
                raise
            raise OSError(int(found[1]), os.strerror(int(found[1]))) from error


def save_tensors(value: Any, path: Path) -> None:
    """`torch.save` that raises the OSError of a write that failed."""
    torch = require_torch()
    try:
        with open(path, "wb") as file:
            torch.save(value, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
