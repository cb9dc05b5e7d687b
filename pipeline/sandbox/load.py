"""One name in, a Sandbox out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.checks.options import check_options, not_given, taken
from pipeline.dotted import load_dotted
from pipeline.errors import ConfigError
from pipeline.sandbox.base import Sandbox

SANDBOXES = {
    "bubblewrap": "pipeline.sandbox.bubblewrap:BubblewrapSandbox",
    "docker": "pipeline.sandbox.docker:DockerSandbox",
    "remote": "pipeline.sandbox.remote:RemoteSandbox",
    "unsafe": "pipeline.sandbox.unsafe:UnsafeSandbox",
}
"""Name to class; imported only when asked for."""
_LEAST = {"warm": 0, "parallel": 1, "cores": 0.01, "pause": 0, "queue_seconds": 0}
SandboxChoice = str | Mapping[str, Any]
"""What an environment's option `sandbox` holds: a name, or `{name: ..., options}`."""


def load_sandbox(name: str = "bubblewrap", **options: Any) -> Sandbox:
    """The sandbox of this name, ready to run; its options are its class's keyword arguments.

    Raises ConfigError where it cannot work here, with the fix. There is no fallback from one to another.
    """
    made: Sandbox = _kind(name, options)(**options)
    return made


def parted_choice(choice: SandboxChoice) -> tuple[str, dict[str, Any]]:
    """Name and options of a choice. Raises ConfigError where they name no sandbox; makes none."""
    options = {"name": choice} if isinstance(choice, str) else dict(choice)
    name = str(options.pop("name", "bubblewrap"))
    _kind(name, options)
    return name, options


def _kind(name: str, options: Mapping[str, Any]) -> Any:
    """The class of this name. Raises ConfigError for a name or options that it has not."""
    if name not in SANDBOXES:
        raise ConfigError(f"unknown sandbox {name!r}; known: {', '.join(SANDBOXES)}")
    kind = load_dotted(SANDBOXES[name], what="sandbox")
    known = taken(kind)
    unknown = sorted(options.keys() - known.keys())
    left_out = not_given(known, options)
    if unknown or left_out:
        what = f"has no option {', '.join(unknown)}" if unknown else f"needs {', '.join(left_out)}"
        raise ConfigError(f"sandbox {name} {what}; its options are {', '.join(known)}")
    check_options(kind, options, where=f"sandbox {name}")
    for key, least in _LEAST.items():
        if options.get(key) is not None and options[key] < least:
            raise ConfigError(f"sandbox {name}.{key} must be at least {least}, got {options[key]}")
    return kind
