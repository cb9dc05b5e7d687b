"""DuckDB copies: kinds of statement, locked settings, stopped bombs, exact restore."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.environments.sql import duckdb_engine
from pipeline.environments.sql.database import SqlLimits
from pipeline.environments.sql.duckdb_engine import DuckDatabase, DuckSource
from pipeline.environments.tools import ToolError

duckdb = pytest.importorskip("duckdb")
LIMITS = SqlLimits(max_seconds=100.0)
BOMB = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("duck") / "own.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY, born DATE)")
        connection.execute("CREATE TABLE child (id INTEGER, parent_id INTEGER REFERENCES parent(id))")
        connection.execute("INSERT INTO parent SELECT range, DATE '2031-01-01' FROM range(1000)")
        connection.execute("INSERT INTO child VALUES (1, 1), (2, NULL)")
    return file


@pytest.fixture(scope="module")
def source(path: Path) -> DuckSource:
    return DuckSource(path, limits=LIMITS)


@pytest.fixture
def reader(source: DuckSource) -> Iterator[DuckDatabase]:
    database = source.open(writable=False, limits=LIMITS)
    yield database
    database.close()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM sniff_csv('/etc/passwd')",
        "COPY parent TO '/tmp/stolen.csv'",
        "EXPORT DATABASE '/tmp/stolen'",
        "ATTACH ':memory:' AS other",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET memory_limit = '100GB'",
        "RESET lock_configuration",
        "PRAGMA threads = 8",
        "CALL pragma_version()",
        "CREATE TEMP TABLE more AS SELECT 1",
        "BEGIN",
        "PREPARE p AS SELECT 1",
        "SET VARIABLE v = 1",
        "EXPLAIN ANALYZE DELETE FROM child",
        "SELECT * FROM duckdb_settings()",
        "SELECT current_setting('temp_directory')",
        "SELECT repeat('x', 3000000000)",
        "INSERT INTO child VALUES (3, 3)",
        "DELETE FROM child",
    ],
)
def test_a_reader_reads_only(reader: DuckDatabase, sql: str) -> None:
    with pytest.raises(ToolError, match="not allowed"):
        reader.run(sql)
    assert reader.run("SELECT count(*) FROM child").rows == ((2,),)


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("SELECT 1; SELECT 2", "one statement at a time, got 2"),
        ("", "one statement at a time, got 0"),
        ("SELECT nothing FROM parent", "nothing"),
        ("SELEC 1", "syntax error"),
        ("SELECT '\ud800'", "surrogates"),
        ("SELECT * FROM '/etc/passwd'", "does not exist"),
        ("SELECT list(range) FROM range(2000000000)", "."),
    ],
)
def test_wrong_statements_are_the_agents_doing(reader: DuckDatabase, sql: str, text: str) -> None:
    with pytest.raises(ToolError, match=text):
        reader.run(sql)
    assert reader.run("SELECT count(*) FROM child").rows == ((2,),)


def test_a_bomb_is_stopped_and_the_session_goes_on(source: DuckSource) -> None:
    database = source.open(writable=False, limits=SqlLimits(max_seconds=0.2))
    with pytest.raises(ToolError, match=r"longer than 0\.2 s"):
        database.run(BOMB)
    assert database.tables() == ["child", "parent"]
    database.close()


class Interrupted:
    """A connection that does something else when it is interrupted for the first time."""

    def __init__(self, connection: Any, instead: Callable[[], Any]) -> None:
        self._connection, self._instead, self.count = connection, instead, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def interrupt(self) -> None:
        self.count += 1
        if self.count == 1:
            self._instead()
        else:
            self._connection.interrupt()


def test_a_bomb_is_stopped_though_an_interruption_is_lost(source: DuckSource) -> None:
    database = source.open(writable=False, limits=SqlLimits(max_seconds=0.2))
    database._connection = connection = Interrupted(database._connection, lambda: None)
    with pytest.raises(ToolError, match=r"longer than 0\.2 s"):
        database.run(BOMB)
    assert connection.count > 1
    database.close()


def test_a_late_interruption_does_not_hit_the_next_statement(source: DuckSource) -> None:
    database = source.open(writable=False, limits=SqlLimits(max_seconds=0.01))
    begun, done = threading.Event(), threading.Event()

    def slowly() -> None:
        begun.set()
        time.sleep(0.3)
        done.set()

    database._connection = Interrupted(database._connection, slowly)
    with database._deadline():
        assert begun.wait(60)
    assert done.is_set(), "it was still to come"
    database.close()


class SlowlyUndone(Interrupted):
    """A connection that is asked to undo for longer than the pause between two interruptions."""

    def execute(self, sql: str) -> Any:
        if sql == "ROLLBACK":
            before = self.count
            time.sleep(0.3)
            assert self.count == before, "undoing was interrupted"
        return self._connection.execute(sql)


def test_a_late_write_is_undone(source: DuckSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_engine, "_INTERRUPT_AGAIN_SECONDS", 0.05)
    database = source.open(writable=True, limits=SqlLimits(max_seconds=0.2))
    connection = database._connection
    database._connection = SlowlyUndone(connection, connection.interrupt)
    with pytest.raises(ToolError, match=r"longer than 0\.2 s"):
        database.run(f"INSERT INTO child SELECT 3, 3 FROM ({BOMB})")
    database._limits = LIMITS
    assert database.run("DELETE FROM child WHERE id = 1").rows == ((1,),)
    database.close()


def test_what_an_agent_needs_works(reader: DuckDatabase) -> None:
    assert reader.describe("child") == "id INTEGER\nparent_id INTEGER -> parent.id"
    assert reader.describe("PARENT") == "id INTEGER KEY\nborn DATE"
    measured = reader.run("SELECT count(*) FROM parent WHERE id < 500", measured=True)
    assert measured.rows == ((500,),) and (measured.cost or 0) >= 1000
    assert reader.run("FROM child ORDER BY id").rows == ((1, 1), (2, None))
    assert reader.run("EXPLAIN SELECT 1").complete


def test_a_writer_has_its_own_file_and_is_restored_exactly(path: Path, source: DuckSource) -> None:
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    writer = source.open(writable=True, limits=LIMITS)
    reader = source.open(writable=False, limits=LIMITS)
    image = writer.image()
    writer.run("DELETE FROM child WHERE id = 1")
    assert writer.run("SELECT id FROM child").rows == ((2,),)
    assert reader.run("SELECT count(*) FROM child").rows == ((2,),)
    assert writer.image() != image and writer.image() == writer.image()
    writer.restore(image)
    assert writer.run("SELECT count(*) FROM child").rows == ((2,),) and writer.image() == image
    with pytest.raises(ToolError, match="Constraint"):
        writer.run("INSERT INTO child VALUES (4, 99999)")
    folder = writer._folder
    assert folder is not None and folder.exists()
    writer.close()
    reader.close()
    assert not folder.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == before
