"""What a docstring says of a tool: its first paragraph, and the text of each parameter.

Google (`Args:`), NumPy (`Parameters` underlined) and Sphinx (`:param x:`) sections are read by
`docstring_parser`. Not covered: texts of results and errors; the model is not told those.
"""

from __future__ import annotations

import re

_SECTION = re.compile(
    r"^\s*(?:(?:Args|Arguments|Parameters|Params):\s*$|Parameters\s*\n\s*-{3,}|:\w+[^:]*:)", re.M
)


def parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The first paragraph on one line ("" where it starts with a section), and texts by parameter name."""
    section = _SECTION.search(text)
    head = text[: section.start()] if section else text
    summary = " ".join(head.strip().split("\n\n")[0].split())
    return summary, _parameter_texts(text) if section else {}


def _parameter_texts(text: str) -> dict[str, str]:
    import docstring_parser

    try:
        parsed = docstring_parser.parse(text)
    except docstring_parser.ParseError:
        return {}  # the text is prose that only looks like a section
    return {
        name.lstrip("*"): " ".join(param.description.split())
        for param in parsed.params
        if param.description
        for name in param.arg_name.split(", ")
    }
