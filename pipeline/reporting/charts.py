"""Inline SVG: a bar with its interval, a stacked bar, a line chart. No script, no external resource.

Text is escaped here, colours are CSS classes of `templates/style.css`. Not covered: logarithmic axes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import ceil, floor, log10

from markupsafe import Markup

from pipeline.reporting.content import Curve, Rate, Series

_MAX_POINTS = 400
_WIDTH, _HEIGHT = 560, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 14, 12, 40
NUM_COLOURS = 8
_SMALLEST = 1e-290
"""Of what an axis tells apart; nearer to the smallest float, steps lose their digits."""
_LARGEST = sys.float_info.max
_AXIS = Markup(
    '<path class="axis" d="M{l} {b}H{r}"/><text class="label" x="{m}" y="{y}" text-anchor="middle">{t}</text>'
)
_TICK_X = Markup('<text class="tick" x="{x}" y="{y}" text-anchor="middle">{v}</text>')
_TICK_Y = Markup(
    '<path class="grid" d="M{l} {y}H{r}"/><text class="tick" x="{x}" y="{t}" text-anchor="end">{v}</text>'
)


def rate_bar(rate: Rate, *, width: int = 150) -> Markup:
    """A bar from 0 to the share, with a whisker over the interval; empty where nothing was measured."""
    if rate.value is None:
        return Markup('<svg class="bar" width="{w}" height="16"></svg>').format(w=width)
    low, high, end = rate.low * width, rate.high * width, rate.value * width
    return Markup(
        '<svg class="bar" width="{w}" height="16" viewBox="0 0 {w} 16" role="img"><title>{title}</title>'
        '<rect class="track" x="0" y="3" width="{w}" height="10" rx="2"/>'
        '<rect class="fill" x="0" y="3" width="{end}" height="10" rx="2"/>'
        '<path class="whisker" d="M{low} 8H{high}M{low} 4.5V11.5M{high} 4.5V11.5"/></svg>'
    ).format(
        w=width, title=rate_text(rate), end=_n(end), low=_n(max(low, 0.5)), high=_n(min(high, width - 0.5))
    )


def stacked_bar(parts: Sequence[tuple[str, int, str]], *, width: int = 220) -> Markup:
    """Parts (name, count, CSS class) side by side, as shares of their sum; hover shows name and count."""
    total = sum(count for _, count, _ in parts)
    shapes, position = Markup(""), 0.0
    for name, count, style in parts:
        size = width * count / total
        shapes += Markup(
            '<rect class="{c}" x="{x}" y="2" width="{s}" height="12"><title>{t}</title></rect>'
        ).format(c=style, x=_n(position), s=_n(size), t=f"{name}: {count} of {total}")
        position += size
    return Markup(
        '<svg class="stack" width="{w}" height="16" viewBox="0 0 {w} 16" role="img">{s}</svg>'
    ).format(w=width, s=shapes)


def line_chart(curve: Curve) -> Markup:
    """Series over a shared pair of axes with round ticks. Raises ValueError where there is no point."""
    points = [point for series in curve.series for point in series.points]
    if not points:
        raise ValueError(f"curve {curve.name!r} has no points; leave it out of the report")
    across = ticks(min(x for x, _ in points), max(x for x, _ in points))
    upward = ticks(min(y for _, y in points), max(y for _, y in points))
    body = _grid(curve, across, upward)
    for number, series in enumerate(curve.series):
        body += _line(series, number, across, upward)
    return Markup(
        '<svg class="chart" viewBox="0 0 {w} {h}" role="img"><title>{name}</title>{body}</svg>'
    ).format(w=_WIDTH, h=_HEIGHT, name=curve.name, body=body)


def ticks(low: float, high: float, *, wanted: int = 5) -> list[float]:
    """Round, evenly spaced values that enclose [low, high]; a single value gets a neighbour on each side.

    So do values that differ in their tenth digit only: no float between them is rounder than they are.
    A mark that would lie beyond the largest float lies on it instead.
    """
    size = max(abs(low), abs(high))
    if size < _SMALLEST:
        low, high = -0.5, 0.5
    elif high - low <= size * 1e-9:
        low, high = max(low - size / 2, -_LARGEST), min(high + size / 2, _LARGEST)
    rough = _distance(low, high) / wanted * 2
    scale = 10.0 ** floor(log10(rough))
    step = next(factor * scale for factor in (1, 2, 2.5, 5, 10) if factor * scale >= rough)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    marks = (float(f"{index * step:.12g}") for index in range(first, last + 1))
    return [min(max(mark, -_LARGEST), _LARGEST) for mark in marks]


def rate_text(rate: Rate) -> str:
    """E.g. `82.0 % (41/50), 95 % interval 69.2 to 90.2 %`."""
    if rate.value is None:
        return "not measured"
    share, low, high = 100 * rate.value, 100 * rate.low, 100 * rate.high
    return f"{share:.1f} % ({rate.successes}/{rate.trials}), 95 % interval {low:.1f} to {high:.1f} %"


def _grid(curve: Curve, across: Sequence[float], upward: Sequence[float]) -> Markup:
    body = Markup("")
    for value in upward:
        y = _y(value, upward)
        body += _TICK_Y.format(
            l=_LEFT, y=_n(y), r=_WIDTH - _RIGHT, x=_LEFT - 6, t=_n(y + 3.5), v=f"{value:g}"
        )
    for value in across:
        body += _TICK_X.format(x=_n(_x(value, across)), y=_HEIGHT - _BOTTOM + 15, v=f"{value:g}")
    return body + _AXIS.format(
        l=_LEFT,
        b=_HEIGHT - _BOTTOM,
        r=_WIDTH - _RIGHT,
        m=(_LEFT + _WIDTH - _RIGHT) // 2,
        y=_HEIGHT - 7,
        t=curve.x_label,
    )


def _line(series: Series, number: int, across: Sequence[float], upward: Sequence[float]) -> Markup:
    step = max(1, ceil(len(series.points) / _MAX_POINTS))
    kept = [*series.points[:-1:step], *series.points[-1:]]
    where = [(_n(_x(x, across)), _n(_y(y, upward))) for x, y in kept]
    path = "M" + "L".join(f"{x} {y}" for x, y in where)
    line = Markup('<path class="line c{c}" d="{d}"><title>{t}</title></path>').format(
        c=number % NUM_COLOURS, d=path, t=series.name
    )
    if len(where) > 60:
        return line
    dots = Markup("").join(
        Markup('<circle class="dot c{c}" cx="{x}" cy="{y}" r="2.4"><title>{t}</title></circle>').format(
            c=number % NUM_COLOURS, x=x, y=y, t=f"{series.name}: {point[0]:g}, {point[1]:.4g}"
        )
        for (x, y), point in zip(where, kept, strict=True)
    )
    return line + dots


def _x(value: float, axis: Sequence[float]) -> float:
    return _LEFT + _share(value, axis) * (_WIDTH - _LEFT - _RIGHT)


def _y(value: float, axis: Sequence[float]) -> float:
    return _HEIGHT - _BOTTOM - _share(value, axis) * (_HEIGHT - _TOP - _BOTTOM)


def _share(value: float, axis: Sequence[float]) -> float:
    """How far along the axis a value lies, from 0 to 1."""
    return _distance(axis[0], value) / _distance(axis[0], axis[-1])


def _distance(low: float, high: float) -> float:
    """Half of high - low, which itself may be larger than any float."""
    return high / 2 - low / 2


def _n(value: float) -> str:
    """A coordinate, short."""
    return f"{value:.1f}".removesuffix(".0")
