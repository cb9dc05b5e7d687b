"""Fields of results that are no JSON: tables with a heading, `key: value` lines, tokens with a shape.

Reads conservatively: prose gives only its shaped tokens; names (capitalised words) are read where a line is
no sentence. Every pattern is bounded, so the work is linear in the text. Not covered: fixed-width tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from synthesizers.graph.shapes import (
    DATE,
    EMAIL,
    FILE,
    ID,
    MONEY,
    MONTH,
    NUMBER,
    TIME,
    URL,
    Field,
    Shape,
    field,
    number_of,
    pattern_of,
    shape_of,
)

NOTHING = frozenset({"", "none", "null", "no rows", "ok", "true", "false", "done", "success", "{}", "[]"})
"""Whole results or lines that say nothing to carry on."""
_LINE = 2_000
"""Characters of a line that are read."""
_MAX_LINES = 2_000
_NAME = rf"(?!{MONTH}\b)[A-Z][a-z][\w'-]{{0,30}}(?: (?!{MONTH}\b)[A-Z][a-z][\w'-]{{0,30}}){{0,3}}"
_SHAPED = re.compile(
    rf"(?<![\w.$@/-])(?:(?P<date>{DATE})|(?P<time>{TIME})|(?P<money>{MONEY})|(?P<email>{EMAIL})|(?P<url>{URL})"
    rf"|(?P<file>{FILE})|(?P<id>{ID})|(?P<quantity>{NUMBER}) (?P<unit>[a-z]{{3,20}})|(?P<number>{NUMBER})"
    rf"|(?P<name>{_NAME}))(?![\w@])|(?<![\w])['\"](?P<quoted>[^'\"\n]{{1,120}})['\"]"
)
_KEYED = re.compile(r"[-*• ]{0,8}([A-Za-z_][\w ./()-]{0,40}):[ \t]{1,4}(\S.*)")
_PAIR = re.compile(
    r"(?<![\w.=])([A-Za-z_][\w.-]{0,40})=(\"[^\"\n]{0,500}\"|'[^'\n]{0,500}'|[^\s,;|=()]{1,500})(?=[\s,;|)]|$)"
)
_ENTRY = re.compile(r"(\w{1,64})\((\w{1,64}(?:, ?\w{1,64}){0,60})\)")
_HEADING = re.compile(r"[A-Za-z_][\w .*()+/%-]{0,80}")
_ONE_COLUMN = re.compile(r"[a-z_]\w{0,60}(?:\([\w .*,+-]{0,60}\))?")
_PLAIN_NUMBER = re.compile(rf"{NUMBER}|{MONEY}")


def text_fields(text: str) -> Iterator[Field]:
    """The fields of a text that is no JSON, line by line."""
    lines = [line.strip()[:_LINE] for line in text.splitlines()[:_MAX_LINES]]
    lines = [line for line in lines if line.casefold() not in NOTHING]
    separator = _table_separator(lines)
    if separator is not None:
        yield from _table(lines, separator)
        return
    for line in lines:
        yield from _line(line)


def shaped_fields(text: str) -> Iterator[Field]:
    """The tokens of a sentence that have a shape; names are not read."""
    return (found for found in _tokens(text[:_LINE]) if found.path != "<name>")


def written(text: str) -> str | int | float:
    """A value as it was written after a key or in a cell: numbers and prices as numbers, quotes dropped."""
    text = text.strip()
    if _PLAIN_NUMBER.fullmatch(text):
        return number_of(text)
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _table_separator(lines: list[str]) -> str | None:
    """What joins the cells, "" for one column; None where the lines are no table."""
    if len(lines) < 2:
        return None
    for separator in ("|", "\t", ","):
        cells = [cell.strip() for cell in lines[0].split(separator)]
        if len(cells) > 1 and all(line.count(separator) == len(cells) - 1 for line in lines[1:]):
            headed = len(set(cells)) == len(cells) and all(map(_HEADING.fullmatch, cells))
            return separator if headed and (separator != "," or all(map(str.isidentifier, cells))) else None
    others = (_KEYED.match(line) or _ENTRY.fullmatch(line) for line in lines[1:])
    return "" if _ONE_COLUMN.fullmatch(lines[0]) and not any(others) else None


def _table(lines: list[str], separator: str) -> Iterator[Field]:
    rows = [[cell.strip() for cell in line.split(separator)] if separator else [line] for line in lines]
    for row in rows[1:]:
        for heading, cell in zip(rows[0], row, strict=True):
            if cell.casefold() not in NOTHING:
                yield field(f"[].{heading}", written(cell))


def _line(line: str) -> Iterator[Field]:
    pairs = _pairs(line)
    if pairs:
        for key, text in pairs:
            path, value = key.strip().replace(" ", "_"), written(text)
            yield field(path, value)
            if isinstance(value, str) and " " in value:
                yield from (found._replace(path=f"{path}.{found.path}") for found in shaped_fields(value))
        return
    entry = _ENTRY.fullmatch(line)
    if entry:
        yield field("entry", entry[1])
        yield from (field("entry[]", name.strip()) for name in entry[2].split(","))
        return
    yield from _record(line)


def _pairs(line: str) -> list[tuple[str, str]]:
    """The keys and values of a line: `a=1 b=2`, `a: 1, b: 2`, or one `key: rest of the line`."""
    found = [(match[1], match[2]) for match in _PAIR.finditer(line)]
    if found:
        return found
    whole = _KEYED.fullmatch(line)
    if whole is None:
        return []
    parts = [_KEYED.fullmatch(part) for part in re.split(r"[,;] ", line)]
    keyed = [(part[1], part[2]) for part in parts if part is not None]
    return keyed if len(keyed) == len(parts) else [(whole[1], whole[2])]


def _record(line: str) -> Iterator[Field]:
    """A line's shaped tokens, names too where it is no sentence; a short line without any is a field."""
    sentence = line.endswith((".", "!", "?"))
    found = [token for token in _tokens(line) if not (sentence and token.path == "<name>")]
    yield from found
    if not found and len(line) <= 80:
        yield field("<line>", line)


def _tokens(text: str) -> Iterator[Field]:
    for match in _SHAPED.finditer(text):
        kind, value = str(match.lastgroup), match[match.lastgroup or 0]
        if kind == "unit":
            number = number_of(match["quantity"])
            yield Field(match["unit"], number, field("", number).type, Shape.QUANTITY)
        elif kind == "id":
            yield field(pattern_of(value), value)
        elif kind in ("money", "number"):
            number = number_of(value)
            shape = Shape.MONEY if kind == "money" else Shape.NUMBER
            yield Field(f"<{kind}>", number, field("", number).type, shape)
        else:
            shape = shape_of(value) if kind in ("name", "quoted") else Shape(kind)
            yield Field(f"<{kind}>", value, "string", shape)
