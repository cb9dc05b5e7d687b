"""Session-wide test environment: offline, no telemetry, and a Prefect home that is not the developer's.

The variables are set at import, before any test module can import a library that reads them once.
The tests run in two processes (`make test`): this file says which of them stay together and which go first.
It covers no model server and no Prefect server; fixtures for those live beside the tests that need them.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ["tests.serving"]

OFFLINE_ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
LONGEST = ("vllm", "slow", "rl")
"""Markers whose groups start first, in this order: what is long must not be what both processes end with."""
TESTS = Path(__file__).resolve().parent
TOGETHER = ("pipeline/sandbox",)
"""Directories whose fixtures look at everything below their process: no other test comes in between."""
_SCRATCH = tempfile.TemporaryDirectory(prefix="trajsmith-tests-", ignore_cleanup_errors=True)

os.environ.update(OFFLINE_ENVIRONMENT)
os.environ["PREFECT_HOME"] = str(Path(_SCRATCH.name) / "prefect")
os.environ["HF_DATASETS_CACHE"] = str(Path(_SCRATCH.name) / "datasets")
os.environ.pop("PREFECT_API_URL", None)


@pytest.fixture(scope="session", autouse=True)
def scratch_home() -> Iterator[Path]:
    """The directory that holds this session's Prefect home and dataset cache; removed at the end."""
    yield Path(_SCRATCH.name)
    _SCRATCH.cleanup()


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Name each test's group, which one process runs in a piece, and put the longest groups first."""
    groups = {item: _group(item) for item in items}
    ranks: dict[str, int] = {}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
        marked = (rank for rank, name in enumerate(LONGEST) if item.get_closest_marker(name))
        ranks[group] = min(ranks.get(group, len(LONGEST)), *marked, len(LONGEST))
    items.sort(key=lambda item: (ranks[groups[item]], groups[item]))


def _group(item: pytest.Item) -> str:
    """One model server for all; one count of jails; otherwise a file shares its fixtures."""
    if item.get_closest_marker("vllm"):
        return "vllm"
    directory = next((name for name in TOGETHER if item.path.is_relative_to(TESTS / name)), "")
    return directory or str(item.path.relative_to(TESTS))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent
