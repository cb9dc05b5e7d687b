"""Languages: how each is compiled and run (`languages/*.yaml`), and where its tools are on this host.

A tool outside the system directories is shown to a jail alone: its one file, or the tree that the
language's `root` command prints. Not covered: installing anything (the error names the command), and
packages beyond a language's standard library.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.sandbox.base import Limits

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """One YAML file. Commands run in the program's directory; `{root}` is what the root command prints."""

    name: str
    file: str
    run: tuple[str, ...]
    install: str
    image: str
    """For docker."""
    aliases: tuple[str, ...] = ()
    compile: tuple[str, ...] = ()
    root: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """Tools used besides the first word of each command."""
    env: dict[str, str] = field(default_factory=dict)
    compile_limits: Limits | None = None
    """At least this much while compiling."""
    out_of_memory: str = ""
    """Pattern of what a runtime prints when it notices by itself that memory is used up."""
    interpreter: bool = False
    """Python itself, which a warm jail has already started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """A language with its tools found: absolute commands, and the trees a jail must be shown."""

    language: Language
    compile: tuple[str, ...]
    run: tuple[str, ...]
    mounts: tuple[str, ...]


@functools.cache
def languages() -> dict[str, Language]:
    """Every language that ships, by name and alias."""
    import yaml

    found: dict[str, Language] = {}
    for path in sorted(Path(str(files("pipeline.sandbox").joinpath("languages"))).glob("*.yaml")):
        language = _language(path.stem, yaml.safe_load(path.read_text(encoding="utf-8")))
        found.update(dict.fromkeys((language.name, *language.aliases), language))
    return found


def _language(name: str, raw: dict[str, Any]) -> Language:
    limits = raw.pop("compile_limits", None)
    lists = {key: tuple(value) for key, value in raw.items() if isinstance(value, list)}
    return Language(name=name, compile_limits=Limits(**limits) if limits else None, **{**raw, **lists})


def find_language(name: str) -> Language:
    """Raises ConfigError for a language nothing is known about."""
    try:
        return languages()[name.lower()]
    except KeyError:
        known = ", ".join(sorted({each.name for each in languages().values()}))
        raise ConfigError(f"unknown language {name!r}; known: {known}") from None


def compile_limits(language: Language, limits: Limits) -> Limits:
    """Whichever is larger, the caller's or what the compiler needs."""
    floor = language.compile_limits or limits
    names = ("seconds", "memory_mib", "processes", "disk_mib")
    return replace(limits, **{name: max(getattr(limits, name), getattr(floor, name)) for name in names})


def python_executable() -> str:
    """The interpreter below any virtual environment."""
    path = os.path.join(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    return path if os.path.exists(path) else os.path.realpath(sys.executable)


@functools.lru_cache(maxsize=32)
def toolchain(name: str) -> Toolchain:
    """Find a language's tools. Raises ConfigError: unknown language, or an absent tool with its fix."""
    language = find_language(name)
    root = _root(language)
    mounts = [root] if root and not root.startswith(SYSTEM) else []
    commands: list[tuple[str, ...]] = []
    for command in (language.compile, language.run):
        words = tuple(word.replace("{root}", root) for word in command)
        if words and "/" not in words[0]:
            words = (find_tool(language, words[0]), *words[1:])
        commands.append(words)
    for path in [command[0] for command in commands if command] + [
        find_tool(language, n) for n in language.needs
    ]:
        mounts += _outside_system(path, root)
    return Toolchain(
        language=language, compile=commands[0], run=commands[1], mounts=tuple(dict.fromkeys(mounts))
    )


def find_tool(language: Language, tool: str) -> str:
    """Absolute path of a tool of a language."""
    path = python_executable() if tool == "python3" else shutil.which(tool)
    if path is None:
        message = (
            f"{language.name} needs {tool!r}, which is not on this machine; install it: {language.install}"
        )
        raise ConfigError(message)
    return path


def _root(language: Language) -> str:
    if not language.root:
        return ""
    command = (find_tool(language, language.root[0]), *language.root[1:])
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    path = answer.stdout.strip()
    if answer.returncode or not os.path.isdir(path):
        said = (answer.stderr or answer.stdout).strip()[:300]
        message = f"{' '.join(language.root)} names no directory ({said}); install {language.name}"
        raise ConfigError(f"{message}: {language.install}")
    return path


def _outside_system(path: str, root: str) -> list[str]:
    if not path.startswith("/") or path.startswith(SYSTEM) or (root and path.startswith(root + "/")):
        return []
    return [sys.base_prefix] if path == python_executable() else [path]
