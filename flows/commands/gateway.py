"""`trajsmith gateway`: the run's policy behind ordinary APIs, whatever agent asks is recorded."""

from __future__ import annotations

import asyncio
import signal
from typing import Annotated

import typer

from flows.commands.common import RUNS, RecipeArgument, RunsOption, StatusLines, UrlOption


def gateway(
    recipe: RecipeArgument,
    runs: RunsOption = RUNS,
    url: UrlOption = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 = any free port.")] = 8800,
    harness: Annotated[str, typer.Option(help="Name and version of the agent that will ask.")] = "harness",
    idle: Annotated[float, typer.Option(min=1.0, help="Seconds until an idle episode is given up.")] = 900.0,
) -> None:
    """Let any agent act with the recipe's policy on 127.0.0.1, and record it, until Ctrl-C."""
    from flows.stages.gateway import serve_gateway
    from flows.stages.recipe import load_recipe

    say = StatusLines()

    def started(served: str, token: str) -> None:
        typer.echo(f"TRAJSMITH_GATEWAY={served}\nTRAJSMITH_TOKEN={token}")
        say("open an episode with POST /episodes, see docs/gateway.md; Ctrl-C ends it")

    async def until() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await stop.wait()

    asyncio.run(
        serve_gateway(
            load_recipe(recipe),
            runs=runs,
            port=port,
            harness=harness,
            say=say,
            until=until,
            url=url,
            idle_seconds=idle,
            started=started,
        )
    )
