"""What stages found, as Markdown tables for artifacts. Not covered: the report (`pipeline.reporting`)."""

from __future__ import annotations

from collections.abc import Sequence

from flows.stages.curate import Curation
from flows.stages.evaluate import Evaluation
from pipeline.diagnosis.diagnose import Diagnosis
from pipeline.reporting.content import Rate


def evaluation_markdown(found: Evaluation) -> str:
    """Success and valid calls, overall and by template, with 95 % intervals."""
    rows = [(found.name, found.success, found.valid_calls)]
    rows += [(row.name, row.success, row.valid_calls or _NOTHING) for row in found.by_template]
    note = f"\n\n{found.infra_failures} episodes broken by infrastructure" if found.infra_failures else ""
    cells = [(name, shown(success), shown(calls)) for name, success, calls in rows]
    return f"{found.group}\n\n" + _table(("", "success", "valid calls"), cells) + note


def funnel_markdown(curation: Curation) -> str:
    """What every filter saw, kept, and why it rejected."""
    cells = [
        (row.name, str(row.seen), str(row.kept), ", ".join(f"{r.reason} {r.count}" for r in row.reasons))
        for row in curation.funnel
    ]
    return _table(("filter", "seen", "kept", "reasons"), cells)


def diagnosis_markdown(diagnosis: Diagnosis) -> str:
    """Success and failure kinds by capability tag."""
    cells = [
        (
            group.name or "all",
            shown(group.success),
            ", ".join(f"{share.kind} {share.rate.successes}" for share in group.failures),
        )
        for group in (diagnosis.overall, *diagnosis.by_tag)
    ]
    return _table(("capability", "success", "failures"), cells)


def shown(found: Rate) -> str:
    """`62 % [55, 69] of 200`."""
    if found.value is None:
        return "-"
    return f"{found.value:.0%} [{found.low * 100:.0f}, {found.high * 100:.0f}] of {found.trials}"


_NOTHING = Rate(successes=0, trials=0, low=0.0, high=1.0)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
