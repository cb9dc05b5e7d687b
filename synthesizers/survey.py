"""What a synthesis yielded and what it cost, computed from run directories alone.

A plan is what became a planned task or was given up with a reason; for a method that does not plan, a task it
worked on. Kept is a trajectory that its verifier scored a success. Yield is the share of plans with a kept
trajectory. Tool sequences are the names of the calls that worked, in order. Edge coverage is the share of the
signature graph's edges that kept trajectories walk along; the graph is built from the tools, results and
calls of all surveyed trajectories, so it can be compared within one survey only. Records are streamed. Not
covered: whether a difference between two methods is more than chance (`pipeline.checks.stats`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from data.messages import Record
from data.store import Store
from pipeline.chat.core import LEDGER, ChatLedger
from pipeline.reporting.content import ReasonCount, Table, ranked
from synthesizers.base import Turned, is_given_up
from synthesizers.graph.build import build_graph
from synthesizers.graph.dependency import SignatureGraph
from synthesizers.graph.signatures import signatures_of
from synthesizers.role_chats import CHATS
from synthesizers.survey_counts import Collected, Counts


class Cost(Record):
    """What was spent in all. Tokens of chats count prompt and reply."""

    sampled_tokens: int
    engine_calls: int
    chat_calls: int
    chat_tokens: int


class SynthesizerSurvey(Record):
    """One synthesizer's numbers; shares are None where there is nothing to share."""

    name: str
    """The synthesizer, and in a survey of several runs the run it is from."""
    base_tasks: int
    plans: int
    made_tasks: int | None
    """Plans that became tasks; None for a method that does not plan."""
    given_up: tuple[ReasonCount, ...]
    trajectories: int
    failures: int
    """Trajectories without a reward: infrastructure."""
    kept: int
    """Verified successes."""
    kept_share: float | None
    """Of the trajectories with a reward."""
    plan_yield: float | None
    """Plans with a kept trajectory, of all plans."""
    cost: Cost
    tokens_per_kept: float | None
    """Sampled tokens and tokens of chats."""
    engine_calls_per_kept: float | None
    chat_calls_per_kept: float | None
    mean_calls: float | None
    """Per kept trajectory, failed calls included."""
    mean_user_turns: float | None
    sequences: int
    """Distinct tool sequences of kept trajectories."""
    edge_coverage: float | None
    turns_compared: int
    turns_differing: int
    """User turns whose calls were not the plan's."""
    replans: int
    provenance_user: float | None
    provenance_output: float | None
    provenance_default: float | None
    provenance_written: float | None
    text_by_program: float | None
    """Share of planned user turns that no chat wrote."""
    failures_read: int = 0
    """Failed episodes of another synthesizer that were looked back at."""
    failures_turned: int = 0
    """Of these, those that reached a goal which is verified data now; several may have reached the same."""


class Overlap(Record):
    """Jaccard index of two sets of tool sequences; None where both are empty."""

    first: str
    second: str
    jaccard: float | None


class Survey(Record):
    """All synthesizers of the surveyed runs, by name."""

    synthesizers: tuple[SynthesizerSurvey, ...]
    overlaps: tuple[Overlap, ...]
    graph_edges: int


def was_planned(store: Store) -> bool:
    """Whether a run holds a task that a synthesizer planned, or a plan that was given up."""
    return any(task.synthesizer for task in store.tasks()) or any(map(is_given_up, store.verdicts()))


def survey(stores: Sequence[Store]) -> Survey:
    """The survey of one run, or of several side by side."""
    collected, roots = Collected(), dict[str, Path]()
    for store in stores:
        label = f" ({store.root.name})" if len(stores) > 1 else ""
        collected.add_tasks(store.tasks(), label=label)
        collected.add_verdicts(store.verdicts(), label=label)
        collected.add_trajectories(store.trajectories(), label=label)
        collected.add_trajectories(store.failures(), label=label)
        roots[label] = store.root
    graphs = _graphs(collected)
    names = sorted(collected.counts)
    rows = []
    for name in names:
        label = next((label for label in roots if label and name.endswith(label)), "")
        used = [graphs[world] for world in collected.environments.get(name, ())]
        chats = _chat_totals(roots[label], name.removesuffix(label))
        rows.append(_row(name, collected.counts[name], chats, graphs=used))
    return Survey(
        synthesizers=tuple(rows),
        overlaps=tuple(_overlap(collected, *pair) for pair in combinations(names, 2)),
        graph_edges=sum(len(one.edges) for one in graphs.values()),
    )


def survey_tables(found: Survey) -> tuple[Table, ...]:
    """The survey as tables of a report; none where nothing was synthesised."""
    if not found.synthesizers:
        return ()
    fields = tuple(_FIELDS)
    rows = tuple((row.name, *(_cell(row, field) for field in fields)) for row in found.synthesizers)
    columns = ("synthesizer", *(_FIELDS[field] for field in fields))
    reasons = tuple(
        (row.name, given.reason, str(given.count)) for row in found.synthesizers for given in row.given_up
    )
    overlaps = tuple(
        (one.first, one.second, "-" if one.jaccard is None else f"{one.jaccard:.3f}")
        for one in found.overlaps
    )
    tables = [_turned(columns, rows)]
    if reasons:
        head = ("synthesizer", "reason", "plans")
        tables.append(Table(title="Synthesis: plans given up", columns=head, rows=reasons))
    if overlaps:
        title = "Synthesis: overlap of tool sequences (Jaccard)"
        tables.append(Table(title=title, columns=("first", "second", "Jaccard"), rows=overlaps))
    return tuple(tables)


_FIELDS = {
    "base_tasks": "base tasks",
    "plans": "plans",
    "made_tasks": "plans made tasks",
    "trajectories": "trajectories",
    "kept": "kept (verified)",
    "kept_share": "kept share of trajectories",
    "plan_yield": "yield: plans with a kept trajectory",
    "tokens_per_kept": "tokens per kept (sampled + chats)",
    "engine_calls_per_kept": "engine calls per kept",
    "chat_calls_per_kept": "chat calls per kept",
    "mean_calls": "calls per kept",
    "mean_user_turns": "user turns per kept",
    "sequences": "distinct tool sequences",
    "edge_coverage": "edge coverage",
    "differing": "turns where plan and actor differed",
    "replans": "re-plans",
    "provenance_user": "arguments from the user",
    "provenance_output": "arguments from earlier output",
    "provenance_default": "arguments by default",
    "provenance_written": "arguments made by the assistant",
    "text_by_program": "user turns written without a chat",
    "turned": "failures turned into verified data",
}
"""Rows of the table in order, and what they are called."""
_SHARES = (
    *("kept_share", "plan_yield", "edge_coverage", "text_by_program"),
    *("provenance_user", "provenance_output", "provenance_default", "provenance_written"),
)


def _cell(row: SynthesizerSurvey, field: str) -> str:
    if field == "differing":
        return f"{row.turns_differing}/{row.turns_compared}" if row.turns_compared else "-"
    if field == "turned":
        share = row.failures_turned / row.failures_read if row.failures_read else 0.0
        return f"{row.failures_turned}/{row.failures_read} ({share:.1%})" if row.failures_read else "-"
    value = getattr(row, field)
    if value is None:
        return "-"
    if field in _SHARES:
        return f"{value:.1%}"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _turned(columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> Table:
    """One column per synthesizer: there are more numbers than synthesizers."""
    head = ("", *(row[0] for row in rows))
    body = tuple((label, *(row[place] for row in rows)) for place, label in enumerate(columns) if place)
    return Table(title="Synthesis", columns=head, rows=body)


def _row(
    name: str, counts: Counts, chats: tuple[int, int], *, graphs: Sequence[SignatureGraph]
) -> SynthesizerSurvey:
    planning = counts.plans_made + sum(counts.given_up.values())
    plans = planning or len(counts.tasks)
    chat_calls, chat_tokens = chats
    rewarded = counts.trajectories - counts.failures
    sources = sum(counts.provenance.values())
    edges = sum(len(graph.edges) for graph in graphs)
    walked = sum(
        graph.edge(*pair) is not None for graph in graphs for pair in counts.edges if _known(graph, pair)
    )
    return SynthesizerSurvey(
        name=name,
        base_tasks=len(counts.bases) or len(counts.tasks),
        plans=plans,
        made_tasks=counts.plans_made if planning else None,
        given_up=ranked(counts.given_up),
        trajectories=counts.trajectories,
        failures=counts.failures,
        kept=counts.kept,
        kept_share=_share(counts.kept, rewarded),
        plan_yield=_share(len(counts.kept_tasks), plans),
        cost=Cost(
            sampled_tokens=counts.sampled_tokens,
            engine_calls=counts.engine_calls,
            chat_calls=chat_calls,
            chat_tokens=chat_tokens,
        ),
        tokens_per_kept=_share(counts.sampled_tokens + chat_tokens, counts.kept),
        engine_calls_per_kept=_share(counts.engine_calls, counts.kept),
        chat_calls_per_kept=_share(chat_calls, counts.kept),
        mean_calls=_share(counts.kept_calls, counts.kept),
        mean_user_turns=_share(counts.kept_user_turns, counts.kept),
        sequences=len(counts.sequences),
        edge_coverage=_share(walked, edges),
        turns_compared=counts.turns_compared,
        turns_differing=counts.turns_differing,
        replans=counts.replans,
        provenance_user=_share(counts.provenance["user"], sources),
        provenance_output=_share(counts.provenance["output"], sources),
        provenance_default=_share(counts.provenance["default"], sources),
        provenance_written=_share(counts.provenance["written"], sources),
        text_by_program=_share(counts.written_by["program"], counts.turns_planned),
        failures_read=counts.turned[Turned.FAILURE_TURNED] + counts.turned[Turned.FAILURE_LEFT],
        failures_turned=counts.turned[Turned.FAILURE_TURNED],
    )


def _graphs(collected: Collected) -> dict[str, SignatureGraph]:
    """The signature graph of each environment, from what its trajectories showed."""
    graphs = {}
    for world, tools in collected.tools.items():
        results = {name: texts for (where, name), texts in collected.results.items() if where == world}
        signatures = signatures_of(tools.values(), category=world, results=results)
        graphs[world] = build_graph(signatures, observations=collected.episodes.get(world, ()))
    return graphs


def _chat_totals(root: Path, synthesizer: str) -> tuple[int, int]:
    totals = ChatLedger(root / CHATS / synthesizer / LEDGER).totals().values()
    return sum(calls for calls, _ in totals), sum(tokens for _, tokens in totals)


def _overlap(collected: Collected, first: str, second: str) -> Overlap:
    one, other = collected.counts[first].sequences, collected.counts[second].sequences
    return Overlap(first=first, second=second, jaccard=_share(len(one & other), len(one | other)))


def _known(graph: SignatureGraph, pair: tuple[str, str]) -> bool:
    return pair[0] in graph.signatures and pair[1] in graph.signatures


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
