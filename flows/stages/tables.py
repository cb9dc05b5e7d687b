"""What stages found, as Markdown tables for artifacts. Not covered: the report (`pipeline.reporting`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flows.stages.curate import Curation
from flows.stages.evaluate import Evaluation
from pipeline.diagnosis.diagnose import Diagnosis, Group
from pipeline.reporting.content import Rate


def evaluation_markdown(found: Evaluation) -> str:
    """Success and valid calls, overall and by template, with 95 % intervals."""
    rows = [(found.name, found.success, found.valid_calls)]
    rows += [(row.name, row.success, row.valid_calls or _NOTHING) for row in found.by_template]
    note = f"\n\n{found.infra_failures} episodes broken by infrastructure" if found.infra_failures else ""
    cells = [(name, shown(success), shown(calls)) for name, success, calls in rows]
    return f"{found.model}: {found.group}\n\n" + _table(("", "success", "valid calls"), cells) + note


def funnel_markdown(curation: Curation) -> str:
    """What every filter saw, kept, and why it rejected."""
    cells = [
        (row.name, str(row.seen), str(row.kept), ", ".join(f"{r.reason} {r.count}" for r in row.reasons))
        for row in curation.funnel
    ]
    return _table(("filter", "seen", "kept", "reasons"), cells)


def diagnosis_markdown(diagnosis: Diagnosis) -> str:
    """Success and failure kinds by declared capability, the named weaknesses, and what to do next."""
    cells = [
        (
            group.name or "all",
            shown(group.success),
            ", ".join(f"{share.kind} {share.rate.successes}" for share in group.failures),
        )
        for group in (diagnosis.overall, *_declared(diagnosis))
    ]
    parts = [_table(("capability", "success", "failures"), cells)]
    weak = [
        (row.name, f"{row.share:.0%}", f"{100 * row.difference:+.0f} pts", f"{row.p_adjusted:.2g}")
        for row in diagnosis.weaknesses.weak
    ]
    if weak:
        parts.append(_table(("weak", "solved", "difference", "adjusted p"), weak))
    wanted = [(row.target, f"{row.count or ''} {row.kind}", row.why) for row in diagnosis.plan.samples]
    wanted += [
        (f"reward {row.reward}", f"{row.share:.0%} of failures", row.why) for row in diagnosis.plan.rewards
    ]
    if wanted:
        parts.append(_table(("next, for", "make", "why"), wanted))
    return "\n\n".join(parts)


def diagnosis_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """The diagnosis as lines of a terminal."""
    for group in (diagnosis.overall, *_declared(diagnosis)):
        kinds = ", ".join(f"{share.kind} {share.rate.successes}" for share in group.failures)
        yield f"{group.name or 'all':28s} {shown(group.success):28s} {kinds}"
    found = diagnosis.weaknesses
    yield (
        f"weak capabilities ({found.num_tested} tested, {found.num_tasks} tasks, "
        f"{found.num_templates} templates):{'' if found.weak else ' none shown'}"
    )
    for row in found.weak:
        also = f" = {', '.join(row.same_as)}" if row.same_as else ""
        beside = f"; not to be told apart from {', '.join(row.beside)}" if row.beside else ""
        yield (
            f"  {row.name:26s} {row.share:4.0%} solved, {100 * row.difference:+.0f} points "
            f"[{100 * row.low:+.0f}, {100 * row.high:+.0f}], p {row.p_adjusted:.1g}{also}{beside}"
        )
    for template in found.templates:
        yield (
            f"  template {template.template}: {template.share:.0%} solved, others of the same weaknesses "
            f"{template.rest:.0%}"
        )
    for wanted in diagnosis.plan.samples:
        yield f"next: {wanted.count or 'more'} {wanted.kind} for {wanted.target} ({wanted.why})"
    for term in diagnosis.plan.rewards:
        yield f"next: try reward {term.reward}: {', '.join(term.answers)} are {term.share:.0%} of failures"


def _declared(diagnosis: Diagnosis) -> list[Group]:
    return [group for group in diagnosis.by_capability if group.name.startswith("tag:")]


def shown(found: Rate) -> str:
    """`62 % [55, 69] of 200`."""
    if found.value is None:
        return "-"
    return f"{found.value:.0%} [{found.low * 100:.0f}, {found.high * 100:.0f}] of {found.trials}"


_NOTHING = Rate(successes=0, trials=0, low=0.0, high=1.0)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
