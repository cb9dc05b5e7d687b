"""Session-wide test environment: offline, no telemetry, and a Prefect home that is not the developer's.

The variables are set at import, before any test module can import a library that reads them once.
It covers no model server and no Prefect server; fixtures for those live beside the tests that need them.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

pytest_plugins = ["tests.disks", "tests.serving"]

OFFLINE_ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
_SCRATCH = tempfile.TemporaryDirectory(prefix="trajsmith-tests-", ignore_cleanup_errors=True)

os.environ.update(OFFLINE_ENVIRONMENT)
os.environ["PREFECT_HOME"] = str(Path(_SCRATCH.name) / "prefect")
os.environ["HF_DATASETS_CACHE"] = str(Path(_SCRATCH.name) / "datasets")
os.environ.pop("PREFECT_API_URL", None)

# The same examples in every run, and none fails for being slow. New ones: --hypothesis-profile=explore.
hypothesis.settings.register_profile(
    "suite",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "explore", hypothesis.settings.get_profile("suite"), derandomize=False, print_blob=True
)
hypothesis.settings.load_profile("suite")


@pytest.fixture(scope="session", autouse=True)
def scratch_home() -> Iterator[Path]:
    """The directory that holds this session's Prefect home and dataset cache; removed at the end."""
    yield Path(_SCRATCH.name)
    _SCRATCH.cleanup()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent
