"""The verbs that show or hand on what a run holds: diagnose, report, publish, view, audit."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from flows.commands.common import DryRunOption, JsonOption, RunArgument, StatusLines, print_json


def diagnose(run: RunArgument, as_json: JsonOption = False) -> None:
    """Where the policy is weak and what to do next; writes report/diagnosis.html and diagnosis.json."""
    from data.store import Store
    from flows.stages.diagnose import diagnose_run as examine
    from flows.stages.diagnose import save_diagnosis
    from flows.stages.tables import diagnosis_lines
    from pipeline.errors import ConfigError

    with Store.open(run) as store:
        say = StatusLines()
        found = asyncio.run(examine(store, say=say))
        if found is None:
            raise ConfigError(
                f"{run} holds no trajectory that its policy sampled, which is what is diagnosed; run "
                f"`trajsmith eval`, or `synth` with a synthesizer that samples it (rejection_sampling)"
            )
        page = save_diagnosis(store, found, say=say)
    if as_json:
        print_json(found.diagnosis.model_dump(mode="json"))
        return
    typer.echo(
        f"diagnosis of {found.of_what}: {found.diagnosis.num_trajectories} trajectories of "
        f"{', '.join(found.diagnosis.policies)}"
    )
    for line in diagnosis_lines(found.diagnosis):
        typer.echo(line)
    typer.echo(f"written: {page}")


def report(run: RunArgument) -> None:
    """Write report/index.html (opens offline) and report/report.json."""
    from data.store import Store
    from flows.stages.policy import policy_label
    from flows.stages.report import report as write
    from flows.stages.show import policy_of

    with Store.open(run) as store:
        typer.echo(asyncio.run(write(store, model_label=policy_label(policy_of(store)))))


def publish(
    run: RunArgument,
    to: Annotated[str, typer.Option(help="A folder, or hub:USER/NAME.")],
    license_id: Annotated[str, typer.Option("--license", help="SPDX id for the card.")] = "other",
    public: Annotated[bool, typer.Option("--public", help="Make the hub repository public.")] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Publish the curated trajectories: messages, tokens and records, with a card; leaks are refused."""
    from data.publish import publish as send
    from data.store import Store
    from flows.stages.curate import card_funnel
    from flows.stages.policy import policy_label
    from flows.stages.show import policy_of

    with Store.open(run) as store:
        done = send(
            store,
            to=to,
            license_id=license_id,
            model_label=policy_label(policy_of(store)),
            funnel=card_funnel(store),
            private=not public,
            dry_run=dry_run,
        )
    for name, size in done.files.items():
        typer.echo(f"{size:12,d}  {name}")
    rows = ", ".join(f"{view} {count}" for view, count in done.counts.items())
    typer.echo(f"{'would publish' if dry_run else 'published'} to {done.target}: {rows}")


def view(
    run: RunArgument, port: Annotated[int, typer.Option(min=0, max=65535, help="0 = any free port.")] = 8765
) -> None:
    """Browse the run's trajectories at a local page, tokens coloured by span."""
    from data.store import Store
    from flows.stages.show import open_view

    with Store.open(run) as store, open_view(store, port=port) as (server, url):
        typer.echo(f"{run} is shown at {url}; Ctrl-C ends it")
        server.serve_forever()


def audit(
    run: RunArgument,
    count: Annotated[int, typer.Option(min=0, help="Trajectories to print.")] = 1,
    trajectory_id: Annotated[str, typer.Option("--id", help="This one instead.")] = "",
) -> None:
    """Print trajectories coloured by span, and check every mask; exit code 1 where a mask is wrong."""
    from data.store import Store
    from flows.stages.show import audit_run

    with Store.open(run) as store:
        if not audit_run(store, count=count, trajectory_id=trajectory_id):
            raise typer.Exit(1)
