"""`package.module:name` to the object it names, also from the working directory.

Used for whatever a user brings by name: environments, rewards, chats, tools. Not covered: files by path.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any

from pipeline.errors import ConfigError, TrajsmithError


def is_dotted(path: str) -> bool:
    """Whether `path` is written `package.module:name`."""
    module_name, colon, attribute = path.partition(":")
    return bool(colon and module_name and attribute) and not module_name.startswith(".")


def load_dotted(path: str, *, what: str, hint: str = "write package.module:name") -> Any:
    """The object. Raises ConfigError naming `what` it was to be, what is missing, and `hint`."""
    if not is_dotted(path):
        raise ConfigError(f"{what} {path!r} is no dotted path; {hint}")
    module_name, _, attribute = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that nothing there hides ours
    try:
        found: Any = importlib.import_module(module_name)
    except TrajsmithError:
        raise
    except Exception as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent and f"{module_name}.".startswith(f"{absent}."):
            raise ConfigError(f"{what} {path!r}: there is no module {absent!r}; {hint}") from error
        raise ConfigError(f"{what} {path!r}: importing it failed: {where_raised(error)}") from error
    place = getattr(found, "__file__", None) or "built in"
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise ConfigError(f"{what} {path!r}: module {module_name!r} ({place}) has no {name!r}; {hint}")
        found = getattr(found, name)
    return found


def where_raised(error: Exception) -> str:
    """The error of somebody's code and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    last = next((frame for frame in reversed(frames) if not frame.filename.startswith("<frozen")), frames[-1])
    return f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
