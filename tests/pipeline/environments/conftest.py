"""Runs a coroutine to its end, each on an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def run() -> Run:
    """`asyncio.run`."""
    return asyncio.run
