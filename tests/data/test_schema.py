"""Records survive JSON, journal and Parquet unchanged, and the stored schema is pinned."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

from data import canonical, journal, schema, shards
from data.errors import ConfigError, RecordError, StoreError
from data.journal import Entry
from data.messages import ToolCall
from data.schema import AnyRecord, Kind
from data.verdicts import Pair
from tests.data import records

GOLDEN = Path(__file__).with_name("golden_schema.txt")


def schema_text() -> str:
    """Every table's schema, one nested field per line."""
    lines: list[str] = []
    for kind in Kind:
        lines.append(f"[{kind}]")
        for field in schema.arrow_schema(kind):
            lines += _lines(field, "  ")
    return "\n".join(lines) + "\n"


def _lines(field: pa.Field, indent: str) -> list[str]:
    optional = "?" if field.nullable else ""
    kind, suffix = field.type, ""
    while pa.types.is_list(kind):
        kind, suffix = kind.value_type, suffix + "[]"
    if not pa.types.is_struct(kind):
        return [f"{indent}{field.name}: {kind}{suffix}{optional}"]
    children = [line for child in kind for line in _lines(child, indent + "  ")]
    return [f"{indent}{field.name}: struct{suffix}{optional}", *children]


def test_schema_is_the_pinned_one() -> None:
    assert schema_text() == GOLDEN.read_text(encoding="utf-8"), (
        "the stored schema changed: raise SCHEMA_VERSION, add a migration, then update golden_schema.txt"
    )


def test_schema_has_no_map_and_no_union() -> None:
    text = schema_text()
    assert "map<" not in text and "union" not in text
    assert "arguments: string" in text and "token_ids: int32[]" in text and "logprobs: double[]" in text


@pytest.mark.parametrize("strategy", [records.tasks, records.trajectories, records.verdicts, records.pairs])
def test_every_record_survives_json_journal_and_parquet(
    strategy: SearchStrategy[AnyRecord], tmp_path: Path
) -> None:
    log = journal.Journal(tmp_path / "00000.log", sync_rows=1 << 30, sync_seconds=1e9)

    @settings(max_examples=25, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def check(record: AnyRecord) -> None:
        _check_round_trips(record, log, tmp_path / "rows.parquet")

    check()
    scanned = [schema.from_json(Kind(entry.kind), entry.payload) for entry in _entries(log)]
    log.close()
    assert len(scanned) >= 25


@pytest.mark.parametrize("text", records.NASTY)
def test_nasty_text_survives_everywhere(text: str, tmp_path: Path) -> None:
    arguments = canonical.dumps({"nested": {"a": [text, None, {}, [], 2**70]}, text: text})
    call = ToolCall(call_id=text, name=text, arguments=arguments, raw=text)
    turns = (records.messages.user(text), records.messages.assistant(text, call, reasoning=text))
    log = journal.Journal(tmp_path / "00000.log")
    task = records.make_task(prompt=turns[:1], private=arguments)
    pair = Pair(pair_id=text, prompt=turns, chosen=turns, rejected=(), parents=(text,))
    for record in (
        records.make_trajectory(turns=turns, error=text),
        task,
        pair,
        records.make_verdict(detail=text),
    ):
        _check_round_trips(record, log, tmp_path / "rows.parquet")
    log.close()


def _check_round_trips(record: AnyRecord, log: journal.Journal, path: Path) -> None:
    line, kind, key = schema.to_json(record), schema.kind_of(record), schema.record_id(record)
    assert b"\n" not in line
    assert schema.from_json(kind, line) == record
    entry = log.read(log.append(kind, key, line))
    assert (entry.kind, entry.key) == (kind, key)
    assert schema.from_json(kind, entry.payload) == record
    assert shards.write_parquet(path, kind, [line]) == 1
    assert list(shards.read_records(path, kind)) == [record]
    assert shards.read_ids(path, kind) == [key]
    assert shards.find(path, kind, key) == record
    assert pq.read_schema(path).equals(schema.arrow_schema(kind))


def _entries(log: journal.Journal) -> list[Entry]:
    return [item for item in journal.scan(log.descriptor, log.path) if isinstance(item, Entry)]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_never_reaches_the_store(value: float) -> None:
    broken = records.make_trajectory().model_copy(update={"weight": value})
    with pytest.raises(RecordError, match=r"Trajectory .* cannot be stored"):
        schema.to_json(broken)


def test_nan_beside_a_surrogate_is_refused_too() -> None:
    broken = records.make_verdict(detail="\ud800").model_copy(update={"score": float("nan")})
    with pytest.raises(RecordError, match=r"Verdict .* cannot be stored"):
        schema.to_json(broken)


def test_an_unvalidated_record_is_refused() -> None:
    broken = records.make_verdict().model_copy(update={"keep": "maybe"})
    with pytest.raises(RecordError, match=r"Verdict .* cannot be stored"):
        schema.to_json(broken)


def test_a_row_that_is_no_record_names_its_table() -> None:
    with pytest.raises(StoreError, match="a row of verdicts is not a valid record"):
        schema.from_json(Kind.VERDICTS, b'{"schema_version":1,"keep":true}')


def test_unknown_table_lists_the_allowed_ones() -> None:
    with pytest.raises(ConfigError, match=r"no table 'task'.*tasks, trajectories, failures, verdicts, pairs"):
        schema.parse_kind("task")


def test_content_digest_ignores_clocks_only() -> None:
    pair = records.Pair(pair_id="p", prompt=(), chosen=(), rejected=(), parents=())
    turn = records.messages.user("x")
    timed = turn.model_copy(update={"started_at": 5.0, "seconds": 1.0})
    with_turn = pair.model_copy(update={"chosen": (turn,)})
    assert schema.content_digest(with_turn) == schema.content_digest(
        pair.model_copy(update={"chosen": (timed,)})
    )
    assert schema.content_digest(with_turn) != schema.content_digest(pair)
