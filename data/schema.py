"""The Arrow schema of every stored record, and the way between a record, a row and a table.

A *row* is the record as plain JSON values (dicts, lists, strings, numbers, None) with its text escaped:
what a journal line and a Parquet shard both hold. Decided here:

- The schema follows the pydantic models field by field (`tests/data/golden_schema.txt` pins the result).
  Names with values are `list<struct<name, value>>`; JSON stays a string; there is no map and no union.
- Token ids are int32, every other integer int64, every float a double: nothing is rounded.
- Text columns are UTF-8, which has no lone surrogates, and JSON cannot tell a lone pair from one
  character. So U+FDD0 (a noncharacter, never in real text) is our escape: a surrogate becomes U+FDD0
  and its four hex digits, U+FDD0 itself becomes U+FDD0 twice. Text without either is stored as it is.

Not covered: migration of older rows (`data.migrate`), files (`data.shards`, `data.journal`).
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Callable
from enum import StrEnum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import pyarrow as pa
from pydantic import BaseModel, ValidationError

from data import canonical, migrate
from data.errors import ConfigError, RecordError, StoreError
from data.tasks import SCHEMA_VERSION, Task
from data.trajectories import Trajectory
from data.verdicts import Pair, Verdict

Row = dict[str, Any]
AnyRecord = Task | Trajectory | Verdict | Pair

ESCAPE = "\ufdd0"
_ESCAPE_UTF8 = ESCAPE.encode()
_TO_ESCAPE = re.compile("[\ud800-\udfff\ufdd0]")
_TO_UNESCAPE = re.compile("\ufdd0(\ufdd0|d[89a-f][0-9a-f]{2})")
_LONG_NUMBER = re.compile(rb"[\[:,]-?[0-9]{10,}[,\]}]")
"""What may be an integer beyond 32 bits; inside a text it is a false alarm."""
_INT32_FIELDS = frozenset({"token_ids"})
_CURRENT = b'{"schema_version":%d,' % SCHEMA_VERSION


class Kind(StrEnum):
    """The tables of a run directory; each is a folder of that name."""

    TASKS = "tasks"
    TRAJECTORIES = "trajectories"
    FAILURES = "failures"
    """Trajectories without a reward that the environment never judged; nothing trains on them."""
    VERDICTS = "verdicts"
    PAIRS = "pairs"


MODELS: dict[Kind, type[AnyRecord]] = {
    Kind.TASKS: Task,
    Kind.TRAJECTORIES: Trajectory,
    Kind.FAILURES: Trajectory,
    Kind.VERDICTS: Verdict,
    Kind.PAIRS: Pair,
}

ID_COLUMNS: dict[Kind, tuple[str, ...]] = {
    Kind.TASKS: ("task_id",),
    Kind.TRAJECTORIES: ("trajectory_id",),
    Kind.FAILURES: ("trajectory_id",),
    Kind.VERDICTS: ("trajectory_id", "filter"),
    Kind.PAIRS: ("pair_id",),
}


def parse_kind(name: str) -> Kind:
    """`name` as a Kind; ConfigError with the allowed names otherwise."""
    try:
        return Kind(name)
    except ValueError:
        raise ConfigError(f"no table {name!r} in a run directory; choose one of {', '.join(Kind)}") from None


def kind_of(record: AnyRecord) -> Kind:
    """The table a record belongs to; a trajectory without a reward is a failure."""
    if isinstance(record, Trajectory):
        return Kind.FAILURES if record.reward is None else Kind.TRAJECTORIES
    for kind, model in MODELS.items():
        if isinstance(record, model):
            return kind
    raise RecordError(
        f"cannot store a {type(record).__name__}; a store takes Task, Trajectory, Verdict and Pair"
    )


def record_id(record: AnyRecord) -> str:
    """The id of a record within its table; a verdict's is `trajectory_id/filter`."""
    return "/".join(getattr(record, column) for column in ID_COLUMNS[kind_of(record)])


@cache
def arrow_schema(kind: Kind) -> pa.Schema:
    """The explicit Arrow schema of a table."""
    model = MODELS[Kind(kind)]
    return pa.schema(_struct_fields(model))


def to_json(record: AnyRecord) -> bytes:
    """The record as one line of escaped JSON, checked to read back.

    RecordError where the record does not obey its own model, which `model_copy(update=...)` allows to
    happen (a NaN weight, a list for a tuple).
    """
    try:
        line = record.__pydantic_serializer__.to_json(record, warnings="error")
        if _ESCAPE_UTF8 not in line:
            type(record).__pydantic_validator__.validate_json(line)
            return _fits_columns(record, line)
    except ValueError as error:
        if "surrogates not allowed" not in str(error):
            raise _unstorable(record, error) from error
    return _to_json_escaped(record)


def _to_json_escaped(record: AnyRecord) -> bytes:
    try:
        value = map_text(record.model_dump(mode="json", warnings="error"), escape)
        line = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")
        type(record).model_validate(map_text(json.loads(line), _unescape))
        return _fits_columns(record, line)
    except ValueError as error:
        raise _unstorable(record, error) from error


def _fits_columns(record: AnyRecord, line: bytes) -> bytes:
    """`line`; RecordError where a whole number is too large for its column, or sealing would find it."""
    if _LONG_NUMBER.search(line):
        try:
            pa.RecordBatch.from_pylist([decode(line)], schema=arrow_schema(kind_of(record)))
        except (OverflowError, pa.ArrowInvalid) as error:
            raise _unstorable(record, error) from error
    return line


def _unstorable(record: AnyRecord, error: Exception) -> RecordError:
    return RecordError(f"{type(record).__name__} {record_id(record)!a} cannot be stored: {error}")


def from_json(kind: Kind, line: bytes) -> AnyRecord:
    """Inverse of `to_json`, through any migration the line needs."""
    escaped = _has_escape(line)
    if not escaped and line.startswith(_CURRENT):
        try:
            return MODELS[kind].model_validate_json(line)
        except ValidationError as error:
            raise StoreError(f"a row of {kind} is not a valid record: {error}") from error
    return from_row(kind, json.loads(line), escaped=escaped)


def decode(line: bytes) -> Row:
    """A JSON line as a row for `arrow_schema`, still escaped: spans become structs with named fields."""
    value: Row = json.loads(line)
    for segment in value.get("segments", ()):
        segment["spans"] = [
            span if isinstance(span, dict) else dict(zip(_SPAN_FIELDS, span, strict=True))
            for span in segment["spans"]
        ]
    return value


def from_row(kind: Kind, row: Row, *, escaped: bool = True) -> AnyRecord:
    """The record of a row, migrated and validated. `escaped=False` promises that no text holds an escape."""
    row = migrate.migrate(kind, row)
    if escaped:
        row = map_text(row, _unescape)
    try:
        return MODELS[kind].model_validate(row)
    except ValidationError as error:
        raise StoreError(f"a row of {kind} is not a valid record: {error}") from error


_SPAN_FIELDS = ("start", "end", "kind", "turn", "call_id", "weights_version")


def _struct_fields(model: type) -> list[pa.Field[Any]]:
    hints = get_type_hints(model)
    names = model.model_fields if issubclass(model, BaseModel) else hints
    return [_field(name, hints[name]) for name in names]


def _field(name: str, hint: Any) -> pa.Field[Any]:
    arguments = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return pa.field(name, _type(name, inner), nullable=True)
    return pa.field(name, _type(name, hint), nullable=False)


def _type(name: str, hint: Any) -> pa.DataType:
    if get_origin(hint) is tuple:
        if name in _INT32_FIELDS:
            return pa.list_(pa.field("item", pa.int32(), nullable=False))
        return pa.list_(_field("item", get_args(hint)[0]))
    if issubclass(hint, str):
        return pa.string()
    if hint is bool:
        return pa.bool_()
    if hint is int:
        return pa.int64()
    if hint is float:
        return pa.float64()
    return pa.struct(_struct_fields(hint))


def escape(text: str) -> str:
    """`text` as a text column holds it."""
    return _TO_ESCAPE.sub(
        lambda match: ESCAPE + (ESCAPE if match[0] == ESCAPE else f"{ord(match[0]):04x}"), text
    )


def _unescape(text: str) -> str:
    return _TO_UNESCAPE.sub(lambda match: ESCAPE if match[1] == ESCAPE else chr(int(match[1], 16)), text)


def map_text(value: Any, change: Callable[[str], str]) -> Any:
    """`value` with `change` applied to every string in it but dictionary keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: map_text(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [map_text(item, change) for item in value]
    return value


def unescape(text: str) -> str:
    """Undo the escape of one text column's value."""
    return _unescape(text) if ESCAPE in text else text


def content_digest(record: AnyRecord) -> str:
    """Digest of everything but clocks and the run's name: equal where two runs made the same record."""
    if isinstance(record, Trajectory):
        return record.content_digest()
    value = record.model_dump(mode="json")
    for name in ("prompt", "chosen", "rejected"):
        for turn in value.get(name, ()):
            turn.pop("started_at"), turn.pop("seconds")
    return canonical.digest(value)


def batch_has_escape(batch: pa.RecordBatch) -> bool:
    """Whether text of the batch may hold an escape. Looks at raw buffers: numbers can raise false alarms."""
    buffers = (buffer for column in batch.columns for buffer in column.buffers() if buffer is not None)
    return any(_ESCAPE_UTF8 in buffer.to_pybytes() for buffer in buffers)


def _has_escape(line: bytes) -> bool:
    return _ESCAPE_UTF8 in line or b"\\ufdd0" in line
