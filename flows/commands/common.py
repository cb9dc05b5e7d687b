"""What the verbs share: the recipe argument, status lines and JSON output."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

RecipeArgument = Annotated[Path, typer.Argument(help="Recipe file (YAML).")]
RunArgument = Annotated[Path, typer.Argument(help="Run directory, e.g. runs/demo.")]
RunsOption = Annotated[Path, typer.Option("--runs", help="Directory that holds the run directories.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
UrlOption = Annotated[str, typer.Option("--url", help="Server(s) to use instead of starting one.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and stop.")]
RUNS = Path("runs")


class StatusLines:
    """Prints status lines with the time since the start; to standard error, so that output stays clean."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __call__(self, line: str) -> None:
        """Print one line."""
        seconds = int(time.monotonic() - self._start)
        print(f"[{seconds // 60:3d}:{seconds % 60:02d}] {line}", file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(value, indent=1))


def percent(successes: int, trials: int, low: float, high: float) -> str:
    """A rate with its interval: `62 % [55, 69] (124/200)`."""
    if not trials:
        return "-"
    return f"{successes / trials:.0%} [{low * 100:.0f}, {high * 100:.0f}] ({successes}/{trials})"
