"""`package.module:name` to the object it names, also from the working directory."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from pipeline.errors import ConfigError


def load_dotted(path: str, *, what: str) -> Any:
    """The object. Raises ConfigError naming `what` it was to be and what is missing."""
    module_name, colon, attribute = path.partition(":")
    if not (colon and module_name and attribute):
        raise ConfigError(f"{what} {path!r} is no dotted path; write package.module:name")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that nothing there hides ours
    try:
        found: Any = importlib.import_module(module_name)
        for name in attribute.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{what} {path!r} cannot be loaded: {error}") from error
    return found
