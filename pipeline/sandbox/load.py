"""One name in, a Sandbox out."""

from __future__ import annotations

from typing import Any

from pipeline.errors import ConfigError
from pipeline.sandbox.base import Sandbox

SANDBOXES = ("bubblewrap", "docker", "remote", "unsafe")


def load_sandbox(name: str = "bubblewrap", **options: Any) -> Sandbox:
    """The sandbox of this name, ready to run; its options are its class's keyword arguments.

    Raises ConfigError where it cannot work here, with the fix. There is no fallback from one to another.
    """
    if name == "bubblewrap":
        from pipeline.sandbox.bubblewrap import BubblewrapSandbox

        return BubblewrapSandbox(**options)
    if name == "docker":
        from pipeline.sandbox.docker import DockerSandbox

        return DockerSandbox(**options)
    if name == "remote":
        from pipeline.sandbox.remote import RemoteSandbox

        return RemoteSandbox(**options)
    if name == "unsafe":
        from pipeline.sandbox.unsafe import UnsafeSandbox

        return UnsafeSandbox(**options)
    raise ConfigError(f"unknown sandbox {name!r}; known: {', '.join(SANDBOXES)}")
