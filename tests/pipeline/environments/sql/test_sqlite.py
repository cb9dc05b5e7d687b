"""SQLite copies: nothing gets out, nothing runs for ever, the user's file is never touched."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.environments.sql.database import SqlLimits
from pipeline.environments.sql.sqlite_engine import SqliteDatabase, SqliteSource
from pipeline.environments.tools import ToolError
from pipeline.errors import ConfigError

LIMITS = SqlLimits(max_steps=200_000, max_rows=1000, max_cell_bytes=20_000, max_growth_bytes=100_000)
SCRIPT = """
CREATE TABLE parent (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE child (id INTEGER PRIMARY KEY, parent_id INTEGER REFERENCES parent(id), note TEXT);
CREATE VIEW names AS SELECT name FROM parent;
CREATE VIRTUAL TABLE docs USING fts5(body);
INSERT INTO parent VALUES (1, 'Ada'), (2, 'Bo');
INSERT INTO child VALUES (1, 1, 'x'), (2, 1, NULL);
INSERT INTO docs VALUES ('a lamp of glass');
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "own.sqlite"
    connection = sqlite3.connect(file)
    connection.executescript(SCRIPT)
    connection.close()
    return file


@pytest.fixture
def reader(path: Path) -> Iterator[SqliteDatabase]:
    database = SqliteSource(path).open(writable=False, limits=LIMITS)
    yield database
    database.close()


@pytest.fixture
def writer(path: Path) -> Iterator[SqliteDatabase]:
    database = SqliteSource(path).open(writable=True, limits=LIMITS)
    yield database
    database.close()


NEVER = [
    "ATTACH '/tmp/other.sqlite' AS other",
    "DETACH main",
    "VACUUM INTO '/tmp/stolen.sqlite'",
    "VACUUM",
    "PRAGMA writable_schema = ON",
    "PRAGMA query_only = OFF",
    "PRAGMA journal_mode = WAL",
    "PRAGMA hard_heap_limit = 1",
    "PRAGMA database_list",
    "PRAGMA temp_store_directory = '/tmp'",
    "SELECT load_extension('/tmp/evil.so')",
    "SELECT fts3_tokenizer('simple')",
    "SELECT random()",
    "SELECT hex(randomblob(1000000000))",
    "SELECT length(zeroblob(1000000000))",
    "SELECT printf('%999999999d', 1)",
    "SELECT * FROM sqlite_stmt",
    "CREATE TABLE more (a)",
    "CREATE TEMP TABLE more (a)",
    "CREATE TEMP TRIGGER t AFTER DELETE ON parent BEGIN SELECT 1; END",
    "DROP TABLE parent",
    "ALTER TABLE parent RENAME TO other",
    "BEGIN",
    "SAVEPOINT s",
    "ANALYZE",
    "CREATE VIRTUAL TABLE v USING fts5(x)",
    "INSERT INTO sqlite_master VALUES (1, 2, 3, 4, 5)",
    "DELETE FROM sqlite_master",
]
WRITES = ["INSERT INTO parent VALUES (3, 'Cleo')", "UPDATE parent SET name = 'x'", "DELETE FROM parent"]


@pytest.mark.parametrize("sql", [*NEVER, *WRITES])
def test_a_reader_reads_only(reader: SqliteDatabase, sql: str) -> None:
    before = reader.contents()
    with pytest.raises(ToolError, match="not allowed"):
        reader.run(sql)
    assert reader.contents() == before


@pytest.mark.parametrize("sql", NEVER)
def test_a_writer_changes_rows_only(writer: SqliteDatabase, sql: str) -> None:
    before, rows = writer.image(), writer.contents()
    with pytest.raises(ToolError, match="not allowed"):
        writer.run(sql)
    assert writer.image() == before and writer.contents() == rows


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("SELECT absent FROM parent", "no such column: absent"),
        ("SELEC 1", "syntax error"),
        ("SELECT 1; DELETE FROM parent", "one statement at a time"),
        ("SELECT '" + "x" * 20_000 + "'", "longer than"),
        ("SELECT '\ud800'", "not valid text"),
        ("SELECT " + "(" * 900 + "1" + ")" * 900, "."),
        ("SELECT 1 " + "UNION SELECT 1 " * 100, "too many terms"),
        ("SELECT * FROM parent WHERE name = ?", "binding"),
        (
            "WITH RECURSIVE d(s) AS (SELECT 'aaaa' UNION ALL SELECT s || s FROM d) SELECT max(s) FROM d",
            "too big",
        ),
    ],
)
def test_wrong_statements_are_the_agents_doing(reader: SqliteDatabase, sql: str, text: str) -> None:
    with pytest.raises(ToolError, match=text):
        reader.run(sql)
    assert reader.run("SELECT count(*) FROM parent").rows == ((2,),)


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r",
        "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT x FROM r ORDER BY -x",
        "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r LIMIT 900) "
        "SELECT count(*) FROM r a, r b, r c",
    ],
)
def test_a_bomb_ends_at_the_step_limit_and_the_session_goes_on(reader: SqliteDatabase, sql: str) -> None:
    with pytest.raises(ToolError, match="stopped at the limit of 200000 engine steps"):
        reader.run(sql)
    assert list(reader.tables())[:2] == ["child", "docs"]
    assert reader.run("SELECT name FROM names").rows == (("Ada",), ("Bo",))


def test_a_flood_of_rows_is_cut_and_said_to_be(reader: SqliteDatabase) -> None:
    flood = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT x FROM r"
    result = reader.run(flood)
    assert len(result.rows) == LIMITS.max_rows and not result.complete


def test_what_an_agent_needs_works(reader: SqliteDatabase) -> None:
    assert "child" in reader.tables() and "names" in reader.tables()
    assert reader.describe("CHILD") == "id INTEGER KEY\nparent_id INTEGER -> parent.id\nnote TEXT"
    assert reader.run("PRAGMA table_info(parent)").rows[0][1] == "id"
    assert reader.run("SELECT body FROM docs WHERE docs MATCH 'lamp'").rows == (("a lamp of glass",),)
    assert reader.run("SELECT sql FROM sqlite_master WHERE name = 'parent'").complete
    with pytest.raises(ToolError, match="no table nowhere; tables: child"):
        reader.describe("nowhere")


def test_cost_is_steps_and_the_same_every_time(reader: SqliteDatabase) -> None:
    cheap, dear = "SELECT 1", "SELECT count(*) FROM parent a, parent b, parent c, parent d, parent e, child f"
    assert reader.run(dear).cost == reader.run(dear).cost
    assert (reader.run(cheap).cost or 0) < (reader.run(dear).cost or 0)


def test_a_writer_is_restored_exactly_and_cannot_grow_without_end(writer: SqliteDatabase) -> None:
    image = writer.image()
    writer.run("UPDATE parent SET name = 'changed'")
    changed = writer.image()
    with pytest.raises(ToolError, match="may not grow"):
        writer.run(
            "INSERT INTO child (note) "
            "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r LIMIT 900) "
            "SELECT substr('" + "x" * 5000 + "', 1, 5000) FROM r"
        )
    assert writer.image() == changed
    writer.restore(image)
    assert writer.run("SELECT name FROM parent").rows == (("Ada",), ("Bo",)) and writer.image() == image
    with pytest.raises(ToolError, match="not allowed"):
        writer.run("DROP TABLE parent")


def test_sessions_do_not_share_and_the_file_stays_as_it_was(path: Path) -> None:
    before, beside = hashlib.sha256(path.read_bytes()).hexdigest(), sorted(path.parent.iterdir())
    source = SqliteSource(path)
    one, two = (source.open(writable=True, limits=LIMITS) for _ in range(2))
    one.run("DELETE FROM child")
    assert two.run("SELECT count(*) FROM child").rows == ((2,),)
    one.close()
    two.close()
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before and sorted(path.parent.iterdir()) == beside


def test_rows_still_in_the_write_ahead_log_are_seen(path: Path) -> None:
    held = sqlite3.connect(path, isolation_level=None)
    held.execute("PRAGMA journal_mode = WAL").fetchall()
    held.execute("INSERT INTO parent VALUES (3, 'Cleo')")
    log = Path(f"{path}-wal").read_bytes()
    database = SqliteSource(path).open(writable=False, limits=LIMITS)
    assert database.run("SELECT count(*) FROM parent").rows == ((3,),)
    database.close()
    assert Path(f"{path}-wal").read_bytes() == log
    held.close()


def test_large_files_are_shared_by_readers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.environments.sql.sqlite_engine._SMALL_BYTES", 1)
    source = SqliteSource(path)
    one, two = (source.open(writable=False, limits=LIMITS) for _ in range(2))
    assert not one.small and one.image() == b""
    one.restore(b"")
    assert one.run("SELECT count(*) FROM parent").rows == two.run("SELECT count(*) FROM parent").rows
    with pytest.raises(ToolError, match="not allowed"):
        one.run("DELETE FROM parent")
    writer = source.open(writable=True, limits=LIMITS)
    writer.run("DELETE FROM parent")
    assert two.run("SELECT count(*) FROM parent").rows == ((2,),)
    for database in (one, two, writer):
        database.close()


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    file = tmp_path / "broken.sqlite"
    file.write_bytes(b"SQLite format 3\x00" + b"\xff" * 2000)
    with pytest.raises(ConfigError, match=r"broken\.sqlite is not a readable SQLite database"):
        SqliteSource(file)
