"""The verbs that look at what is there: env check, env list, doctor."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from flows.commands.common import JsonOption, print_json


def env_list() -> None:
    """The environments that ship."""
    from pipeline.environments.registry import ENVIRONMENTS

    for name, path in ENVIRONMENTS.items():
        typer.echo(f"{name:20s} {path}")


def env_check(
    name: Annotated[str, typer.Argument(help="A shipped environment or package.module:factory.")],
    tasks: Annotated[int, typer.Option(min=1, help="Tasks per split that are played.")] = 48,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the sessions.")] = 0,
    options: Annotated[str, typer.Option(help="Options of the environment, as JSON.")] = "{}",
    as_json: JsonOption = False,
) -> None:
    """Play an environment with gold and with cheaters; exit code 1 where a check fails."""
    from pipeline.environments.check import check_environment
    from pipeline.environments.registry import load_environment
    from pipeline.errors import ConfigError

    try:
        given = json.loads(options)
    except ValueError as error:
        raise ConfigError(f"--options is not JSON: {error}; got {options!r}") from error
    if not isinstance(given, dict):
        raise ConfigError(f"--options must be a JSON object, got {options!r}")
    environment = load_environment(name, **given)
    results = asyncio.run(check_environment(environment, num_tasks=tasks, seed=seed))
    if as_json:
        print_json([{"check": row.name, "ok": row.passed, "detail": row.detail} for row in results])
    else:
        for row in results:
            typer.echo(f"{'ok  ' if row.passed else 'FAIL'} {row.name:28s} {row.detail}")
    if not all(row.passed for row in results):
        raise typer.Exit(1)


def doctor(
    url: Annotated[
        str, typer.Option(help="Server(s) of a policy to look at, too, separated by commas.")
    ] = "",
    api_key_env: Annotated[str, typer.Option(help="Environment variable that holds their key.")] = "",
    as_json: JsonOption = False,
) -> None:
    """What is installed, reachable and in conflict, and the command that fixes it; code 1 on a problem."""
    from flows.stages.doctor import examine

    findings = examine(url.split(",") if url else (), api_key_env=api_key_env)
    if as_json:
        print_json([finding.model_dump() for finding in findings])
    else:
        for finding in findings:
            typer.echo(f"{finding.status:8s} {finding.what:28s} {finding.detail}")
            if finding.fix:
                typer.echo(f"{'':8s} {'':28s} fix: {finding.fix}")
    if any(finding.status == "problem" for finding in findings):
        raise typer.Exit(1)
