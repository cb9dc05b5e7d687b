"""Runs a coroutine to its end, each on an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from pipeline.environments.code_repair import CodeRepair, load

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def run() -> Run:
    """`asyncio.run`."""
    return asyncio.run


@pytest.fixture(scope="session")
def repair_world() -> Iterator[CodeRepair]:
    """The code_repair environment with one sandbox for all tests."""
    environment = load()
    yield environment
    asyncio.run(environment.runner.close())
