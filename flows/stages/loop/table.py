"""The tables and the curve of a loop: dev success by round and arm, then the held-out splits.

The held-out part is `prove_table`'s, with the loop as the baseline of its comparisons: a difference below 0
is what an arm lacks of the loop. Dev figures chose the models, so they stand apart and carry no test.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from markupsafe import escape

from data.summaries import read_object
from flows.stages.prove_table import Rows, load_rows, markdown_table
from pipeline.errors import ConfigError
from pipeline.reporting.charts import line_chart
from pipeline.reporting.content import Curve, Series, Table

ROW = "loop.json"
"""What a whole loop found, in the run's folder."""
_NEEDED = ("stopped", "rounds", "weakness", "arms")
_COLUMNS = ("round", "arm", "dev success", "per seed", "kept", "steps", "row tokens", "sampled", "data")
_COLOURS = ("#2f6fde", "#d9730d", "#1a8f5a")
_STYLE = (
    "text{font:11px sans-serif;fill:#667}.line{fill:none;stroke-width:2}.grid{stroke:#ccd}.axis{stroke:#889}"
    + "".join(f".line.c{n}{{stroke:{c}}}.dot.c{n}{{fill:{c}}}" for n, c in enumerate(_COLOURS))
)
_WEAKEST = 12
"""Rows of a weakness table."""
Rounds = dict[tuple[int, str], list[dict[str, Any]]]


def loop_markdown(results: Path) -> str:
    """Markdown of all seeds: by round on dev, costs, held-out comparisons. ConfigError without rows."""
    rows = load_rows(results, verb="loop RECIPE")
    lines = [_COLUMNS, ["---"] * len(_COLUMNS), *(_cells(each) for each in _rounds(rows).values())]
    table = "\n".join(map(_markdown_row, lines))
    stops = ", ".join(f"seed {row['seed']}: {row['stopped']}" for row in rows)
    return f"{markdown_table(results)}\n### By round, dev split\n\nStopped on {stops}.\n\n{table}\n"


def loop_curves(*rows: dict[str, Any]) -> tuple[Curve, ...]:
    """Dev success by round, mean over seeds: a series per arm from the start model on, refused rounds too.

    None where no round was made.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    start = mean(_share(each) for row in rows for each in row["rounds"] if each["round"] == 0)
    for (number, arm), seeds in _rounds(rows).items():
        if number:
            points = found.setdefault(arm, [(0.0, start)])
            points.append((float(number), mean(_share(each) for each in seeds)))
    series = tuple(Series(name=arm, points=tuple(points)) for arm, points in found.items())
    return (Curve(name="dev success by round", x_label="round", series=series),) if series else ()


def curve_svg(results: Path) -> str:
    """The curve of all seeds as an SVG file that stands alone, with its legend. ConfigError without any."""
    curves = loop_curves(*load_rows(results, verb="loop RECIPE"))
    if not curves:
        raise ConfigError(f"no loop in {results} made a round: there is no curve to draw")
    [curve] = curves
    legend = "".join(
        f'<text x="64" y="{24 + 14 * number}" style="fill:{_COLOURS[number]}">{escape(series.name)}</text>'
        for number, series in enumerate(curve.series)
    )
    chart = str(line_chart(curve)).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    body, closing, _ = chart.rpartition("</svg>")
    inside = body.index(">") + 1
    return f"{body[:inside]}<style>{_STYLE}</style>{body[inside:]}{legend}{closing}\n"


def loop_tables(row: dict[str, Any]) -> Iterator[Table]:
    """A loop's rounds, and what its gate looked at, as tables of a report."""
    rounds = _rounds([row])
    yield Table(
        title="Rounds of the loop (dev split)",
        columns=_COLUMNS,
        rows=tuple(tuple(_cells(each)) for each in rounds.values()),
        note=f"Stopped on {row['stopped']}. " + " ".join(_refusals(rounds)),
    )
    guarded = [(each, found) for rows in rounds.values() for each in rows for found in each["guarded"]]
    yield Table(
        title="Protected capabilities by round",
        columns=("round", "arm", "capability", "tasks", "before", "after", "lost", "gained", "p"),
        rows=tuple(
            (
                *(str(each["round"]), each["arm"], found["name"], str(found["tasks"])),
                *(f"{found['before']:.0%}", f"{found['after']:.0%}"),
                *(str(found["lost"]), str(found["gained"]), f"{found['p_value']:.3f}"),
            )
            for each, found in guarded
        ),
    )
    yield from _weakness_tables(row)


def _weakness_tables(row: dict[str, Any]) -> Iterator[Table]:
    """What the kept model did worst on the steps that a round probed, weakest first."""
    for number, weakness in sorted(row["weakness"].items()):
        yield Table(
            title=f"Weakest capabilities on the steps probed in round {number}",
            columns=("capability", "mastered", "steps", "perplexity", "why not"),
            rows=tuple(
                (
                    each["name"],
                    f"{each['mastered']['successes'] / each['mastered']['trials']:.0%}",
                    str(each["mastered"]["trials"]),
                    "-" if each["perplexity"] is None else f"{each['perplexity']:.3f}",
                    ", ".join(f"{why['reason']} {why['count']}" for why in each["reasons"]),
                )
                for each in weakness[:_WEAKEST]
            ),
        )


def row_markdown(row: dict[str, Any]) -> str:
    """One loop: its rounds on dev, and what its arms do on the held-out splits."""
    lines = [_markdown_row(_COLUMNS), _markdown_row(["---"] * len(_COLUMNS))]
    lines += [_markdown_row(_cells(each)) for each in _rounds([row]).values()]
    held_out = [
        _markdown_row([arm, found["split"], _of(found["success"]), _of(found["valid_calls"])])
        for arm, each in row["arms"].items()
        for found in each["evaluations"]
    ]
    head = [_markdown_row(["arm", "split", "success", "valid calls"]), _markdown_row(["---"] * 4)]
    return "\n".join([f"Stopped on {row['stopped']}.", "", *lines, "", *head, *held_out])


def read_loop(root: Path) -> dict[str, Any] | None:
    """The row in a run's folder, None where no loop has ended there. StoreError where it is damaged."""
    path = root / ROW
    if not path.is_file():
        return None
    again = "delete it and run the same loop again, which makes nothing twice"
    return read_object(path, needs=_NEEDED, of="`trajsmith loop`", again=again)


def _rounds(rows: Rows) -> Rounds:
    """(round, arm) to its row of every seed that made it."""
    found: Rounds = {}
    for row in rows:
        for each in row["rounds"]:
            found.setdefault((each["round"], each["arm"]), []).append(each)
    return dict(sorted(found.items()))


def _cells(seeds: list[dict[str, Any]]) -> list[str]:
    first = seeds[0]
    shares = [_share(each) for each in seeds]
    kept = sum(each["accepted"] for each in seeds)
    names = dict.fromkeys(name for each in seeds for name in each["data"])
    data = ", ".join(f"{name} {_mean(each['data'].get(name, 0) for each in seeds)}" for name in names)
    return [
        *(str(first["round"]), first["arm"], f"{mean(shares):.1%}"),
        *(", ".join(f"{share:.1%}" for share in shares), f"{kept} of {len(seeds)}"),
        *(_mean(each[name] for each in seeds) for name in ("steps", "row_tokens", "sampled_tokens")),
        data,
    ]


def _refusals(rounds: Rounds) -> Iterator[str]:
    for (number, arm), seeds in rounds.items():
        for each in seeds:
            if not each["accepted"]:
                yield f"Round {number} of {arm} was refused: {each['reason']}."


def _share(each: dict[str, Any]) -> float:
    successes, trials = each["dev"]
    return float(successes / max(1, trials))


def _of(counts: list[int]) -> str:
    successes, trials = counts
    return f"{successes}/{trials}" + (f" ({successes / trials:.1%})" if trials else "")


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _mean(values: Iterable[float]) -> str:
    return f"{mean(values):,.0f}"
