"""Inline SVG of a diagnosis: an effect with its interval, a histogram of steps, a map of confused tools.

Like `charts`: no script, text escaped, colours from `templates/style.css`. Not covered: more than _MOST tools
a side of the map; the rest is counted in a last row or column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from markupsafe import Markup

from pipeline.reporting.content import ReasonCount

_MOST = 14
_OTHERS = "(others)"
_CELL, _ROW, _NAME, _HEAD = 34, 20, 150, 96


class Confused(Protocol):
    """A tool called where gold calls another."""

    @property
    def gold(self) -> str:
        """What gold calls."""
        ...

    @property
    def called(self) -> str:
        """What the agent called."""
        ...

    @property
    def count(self) -> int:
        """How often."""
        ...


def effect_bar(value: float, low: float, high: float, *, width: int = 150) -> Markup:
    """A dot with a whisker on an axis from -1 to 1, zero marked."""

    def x(share: float) -> str:
        return f"{(min(1.0, max(-1.0, share)) + 1) / 2 * (width - 4) + 2:.1f}"

    return Markup(
        '<svg class="bar" width="{w}" height="16" viewBox="0 0 {w} 16" role="img"><title>{t}</title>'
        '<path class="zero" d="M{zero} 1V15"/>'
        '<path class="whisker" d="M{low} 8H{high}M{low} 5V11M{high} 5V11"/>'
        '<circle class="{c}" cx="{x}" cy="8" r="3.5"/></svg>'
    ).format(
        w=width,
        t=f"{100 * value:+.1f} points, 95 % interval {100 * low:+.1f} to {100 * high:+.1f}",
        zero=x(0.0),
        low=x(low),
        high=x(high),
        x=x(value),
        c="below" if high < 0 else "above" if low > 0 else "fill",
    )


def histogram(counts: Sequence[ReasonCount], *, height: int = 84) -> Markup:
    """Bars with their name below and their count above, in the order given."""
    most = max(row.count for row in counts)
    shapes = Markup("")
    for place, row in enumerate(counts):
        size = (height - 34) * row.count / most
        shapes += Markup(
            '<rect class="fill" x="{x}" y="{y}" width="{w}" height="{h}" rx="2"><title>{t}</title></rect>'
            '<text class="tick" x="{m}" y="{above}" text-anchor="middle">{count}</text>'
            '<text class="tick" x="{m}" y="{below}" text-anchor="middle">{name}</text>'
        ).format(
            x=place * _CELL + 4,
            y=f"{height - 18 - size:.1f}",
            w=_CELL - 8,
            h=f"{size:.1f}",
            t=f"step {row.reason}: {row.count}",
            m=place * _CELL + _CELL // 2,
            above=f"{height - 21 - size:.1f}",
            below=height - 5,
            count=row.count,
            name=row.reason,
        )
    width = len(counts) * _CELL
    return Markup('<svg width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="img">{s}</svg>').format(
        w=width, h=height, s=shapes
    )


def confusion_map(rows: Sequence[Confused]) -> Markup:
    """Gold's tools down, called tools across; the darker, the more often."""
    down = _most([(row.gold, row.count) for row in rows])
    across = _most([(row.called, row.count) for row in rows])
    counts: Counter[tuple[int, int]] = Counter()
    for row in rows:
        counts[_place(row.gold, down), _place(row.called, across)] += row.count
    most = max(counts.values())
    shapes = Markup("").join(
        [_names(down, across), *(_cell(*at, count, most) for at, count in counts.items())]
    )
    width, height = _NAME + len(across) * _CELL + _HEAD, _HEAD + len(down) * _ROW + 4
    return Markup('<svg width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="img">{s}</svg>').format(
        w=width, h=height, s=shapes
    )


def _names(down: Sequence[str], across: Sequence[str]) -> Markup:
    names = Markup("")
    for place, name in enumerate(down):
        names += Markup('<text class="tick" x="{x}" y="{y}" text-anchor="end">{n}</text>').format(
            x=_NAME - 8, y=_HEAD + place * _ROW + 14, n=_short(name)
        )
    for place, name in enumerate(across):
        x, y = _NAME + place * _CELL + _CELL // 2, _HEAD - 8
        names += Markup(
            '<text class="tick" x="{x}" y="{y}" transform="rotate(-40 {x} {y})">{n}</text>'
        ).format(x=x, y=y, n=_short(name))
    return names


def _cell(row: int, column: int, count: int, most: int) -> Markup:
    x, y = _NAME + column * _CELL, _HEAD + row * _ROW
    return Markup(
        '<rect class="cell" fill-opacity="{o}" x="{x}" y="{y}" width="{w}" height="{h}" rx="2"/>'
        '<text class="tick" x="{m}" y="{b}" text-anchor="middle">{n}</text>'
    ).format(
        o=f"{0.12 + 0.6 * count / most:.2f}",
        x=x + 1,
        y=y + 1,
        w=_CELL - 2,
        h=_ROW - 2,
        m=x + _CELL // 2,
        b=y + 14,
        n=count,
    )


def _most(named: Sequence[tuple[str, int]]) -> list[str]:
    """The names of the greatest counts, then one for the others where there are more."""
    totals: Counter[str] = Counter()
    for name, count in named:
        totals[name] += count
    ranked = sorted(totals, key=lambda name: (-totals[name], name))
    return ranked if len(ranked) <= _MOST else [*ranked[: _MOST - 1], _OTHERS]


def _place(name: str, names: Sequence[str]) -> int:
    return names.index(name) if name in names else len(names) - 1


def _short(name: str) -> str:
    return name if len(name) <= 22 else f"{name[:21]}\u2026"
