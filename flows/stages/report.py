"""The report stage: what a run's directory holds, as `report/index.html`, `report.json` and, where something
was planned, `survey.json`.

Everything is read from disk, so a report can be made again at any time. Not covered: how it looks
(`pipeline.reporting`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path

from data.files import write_atomically
from data.store import Store
from data.summaries import read_summary
from flows.stages.curate import Curation, read_curation
from flows.stages.diagnose import EVALUATION, diagnose_run, save_diagnosis
from flows.stages.evaluate import Evaluation, compare
from flows.stages.loop.table import loop_curves, loop_tables, read_loop
from flows.stages.run import versions
from flows.stages.show import recipe_of
from flows.stages.train import STAGES
from pipeline.checks.stats import Comparison, holm
from pipeline.reporting.content import ComparisonRow, Curve, Fact, Series, Table
from pipeline.reporting.report import Report, write_report
from rl.results import RESULT_FILE, StepMetrics, read_history
from synthesizers.survey import Survey, survey, survey_tables, was_planned

_AGAIN = "delete it and run `trajsmith {}` again, which makes nothing twice"


def save_evaluation(root: Path, evaluation: Evaluation) -> None:
    """Keep an evaluation beside its episodes; `root` is the evaluation's own directory."""
    write_atomically(root / EVALUATION, evaluation.model_dump_json(indent=1) + "\n")


def load_evaluations(root: Path) -> list[Evaluation]:
    """The finished evaluations of a run: base first, then the training stages in order, then others."""
    files = (root / "eval").glob(f"*/{EVALUATION}")
    found = [
        read_summary(Evaluation, path, of="`trajsmith eval`", again=_AGAIN.format("eval")) for path in files
    ]
    places = {name: place for place, name in enumerate(("base", *STAGES))}
    return sorted(found, key=lambda each: (places.get(each.name, len(places)), each.name, each.group))


async def report(store: Store, *, model_label: str) -> Path:
    """Write the report of a run; returns the page's path."""
    folder = store.root / "report"
    surveyed = survey([store]) if was_planned(store) else None
    page = write_report(await build_report(store, model_label=model_label, surveyed=surveyed), folder)
    if surveyed is not None:
        write_atomically(folder / "survey.json", surveyed.model_dump_json(indent=1) + "\n")
    return page


async def build_report(store: Store, *, model_label: str, surveyed: Survey | None) -> Report:
    """The report of what is on disk now; parts that do not exist yet are left out."""
    evaluations = load_evaluations(store.root)
    curation = read_curation(store.root)
    found = await diagnose_run(store)
    recipe, loop = recipe_of(store), read_loop(store.root)
    facts = {
        "model": model_label,
        "environment": recipe["environment"]["name"],
        "seed": str(recipe["seed"]),
        **{f"version of {name}": value for name, value in versions().items()},
    }
    return Report(
        title=store.root.name,
        subtitle=recipe.get("description", ""),
        facts=tuple(Fact(name=name, value=value) for name, value in facts.items()),
        results=tuple(evaluation.row() for evaluation in evaluations),
        comparisons=tuple(comparisons(evaluations)),
        curves=(*training_curves(store.root), *(loop_curves(loop) if loop else ())),
        funnel=curation.funnel if curation else (),
        diagnosis=found.diagnosis if found else None,
        diagnosis_of=found.of_what if found else "",
        diagnosis_page=save_diagnosis(store, found).name if found else "",
        tables=(
            *(loop_tables(loop) if loop else ()),
            *(survey_tables(surveyed) if surveyed else ()),
            *template_tables(evaluations),
            *(mix_tables(curation) if curation else ()),
        ),
    )


def comparisons(evaluations: Sequence[Evaluation]) -> list[ComparisonRow]:
    """Each evaluation against the one before it in its group, p-values adjusted by Holm."""
    ordered = sorted(evaluations, key=lambda evaluation: evaluation.group)
    pairs: list[tuple[str, str, Comparison]] = []
    for group, members in groupby(ordered, key=lambda evaluation: evaluation.group):
        arms = list(members)
        for before, after in pairwise(arms):
            pairs.append((f"{after.name} vs {before.name}", group, compare(before, after)))
    adjusted = holm([comparison.p_value for _, _, comparison in pairs]) if pairs else []
    return [
        ComparisonRow(
            name=name,
            group=group,
            difference=found.difference,
            low=found.low,
            high=found.high,
            p_value=p_value,
            num_pairs=found.num_pairs,
            num_clusters=found.num_clusters,
        )
        for (name, group, found), p_value in zip(pairs, adjusted, strict=True)
    ]


def training_curves(root: Path) -> list[Curve]:
    """Loss of every finished training stage; where it samples, reward and the gap to the sampler, too."""
    curves = []
    for stage in STAGES:
        path = root / "models" / stage / RESULT_FILE
        if path.is_file():
            history = read_history(path)
            curves.append(_curve(f"{stage}: loss", history, "loss"))
            if any(step.trajectories for step in history):
                curves.append(_curve(f"{stage}: mean reward", history, "reward_mean"))
                gap = f"{stage}: mean |log p(sampler) - log p(trainer)|"
                curves.append(_curve(gap, history, "logprob_gap"))
    return curves


def template_tables(evaluations: Sequence[Evaluation]) -> list[Table]:
    """Success by template, one column per evaluation, one table per group."""
    tables = []
    ordered = sorted(evaluations, key=lambda evaluation: evaluation.group)
    for group, members in groupby(ordered, key=lambda evaluation: evaluation.group):
        arms = list(members)
        cells = {
            (row.name, arm.name): f"{row.success.successes}/{row.success.trials}"
            for arm in arms
            for row in arm.by_template
        }
        names = sorted({template for template, _ in cells})
        rows = tuple((name, *(cells.get((name, arm.name), "-") for arm in arms)) for name in names)
        columns = ("template", *(arm.name for arm in arms))
        tables.append(Table(title=f"Success by template ({group})", columns=columns, rows=rows))
    return tables


def mix_tables(curation: Curation) -> tuple[Table, ...]:
    """The difficulty mix wanted and reached."""
    if not curation.mix:
        return ()
    columns = ("bin", "target", "available", "used", "weight", "share", "missing")
    rows = tuple(
        (
            row.bin,
            f"{row.target:.0%}",
            str(row.available),
            str(row.used),
            f"{row.weight:.2f}",
            f"{row.share:.0%}",
            f"{row.missing:.0%}",
        )
        for row in curation.mix
    )
    return (Table(title="Difficulty mix", columns=columns, rows=rows),)


def _curve(name: str, history: Sequence[StepMetrics], field: str) -> Curve:
    points = tuple((float(step.step), float(getattr(step, field))) for step in history)
    return Curve(name=name, x_label="optimiser step", series=(Series(name=field, points=points),))
