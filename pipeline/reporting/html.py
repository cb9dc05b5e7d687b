"""The template environment both the report and the view use: everything escaped, nothing fetched.

Pages carry their styles inline and hold no script. Text that UTF-8 cannot hold (lone surrogates from a
model) is written as character references, so that a hostile record can never keep a page from opening.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pipeline.reporting import charts, findings
from pipeline.reporting.content import Rate

TEMPLATES = Path(__file__).parent / "templates"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'"
"""Content-Security-Policy of every page: even unescaped content could run and load nothing."""


@cache
def environment() -> Environment:
    """The shared template environment."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(percent=percent, interval=interval, visible=visible, readable=readable)
    made.globals.update(
        style=Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        policy=POLICY,
        rate_bar=charts.rate_bar,
        stacked_bar=charts.stacked_bar,
        line_chart=charts.line_chart,
        effect_bar=findings.effect_bar,
        histogram=findings.histogram,
        confusion_map=findings.confusion_map,
        num_colours=charts.NUM_COLOURS,
    )
    return made


def page(template: str, **values: Any) -> bytes:
    """A page as UTF-8 bytes."""
    return environment().get_template(template).render(**values).encode("utf-8", "xmlcharrefreplace")


def percent(rate: Rate) -> str:
    """`82.0 %`, or a dash where nothing was measured."""
    return "-" if rate.value is None else f"{100 * rate.value:.1f} %"


def interval(rate: Rate) -> str:
    """`69.2 to 90.2`, or nothing where nothing was measured."""
    return "" if rate.value is None else f"{100 * rate.low:.1f} to {100 * rate.high:.1f}"


def visible(text: str) -> str:
    """`text` with control characters (other than tab and newline) as their pictures."""
    return text.translate(_PICTURES)


def readable(text: str) -> str:
    """JSON text of a call with its letters unescaped; text that is no JSON as it is."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except ValueError:
        return text


_PICTURES = {code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)} | {127: "\u2421"}
