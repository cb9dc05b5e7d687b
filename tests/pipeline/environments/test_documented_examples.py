"""The examples of OpenAPI and simulated tools are executed as their docstrings say."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from pipeline.environments.check import CHECKS

OWN_TOOLS = Path(__file__).parents[3] / "examples" / "own_tools"


@pytest.mark.parametrize(("name", "tasks"), [("simulated_kitchen:load", "48"), ("openapi_rental:load", "1")])
def test_an_example_passes_the_environment_check(
    monkeypatch: pytest.MonkeyPatch, name: str, tasks: str
) -> None:
    monkeypatch.chdir(OWN_TOOLS)
    result = CliRunner().invoke(app, ["env", "check", name, "--tasks", tasks])
    assert result.exit_code == 0, result.output
    assert result.output.count("ok  ") == len(CHECKS)
