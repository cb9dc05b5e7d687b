"""SQLite databases for sessions: a private copy, an authorizer, a step limit.

A statement may SELECT, call harmless functions and read the schema; a writable copy may also INSERT, UPDATE
and DELETE. Refused: ATTACH, VACUUM, transactions, schema changes, every PRAGMA but those that describe
tables, load_extension, random values (they would not replay) and functions that inflate memory. Steps of
SQLite's virtual machine are counted and limited; they depend on the query, the data and SQLite's version, not
on the machine; `max_seconds` is the last resort against single steps that are slow. Not covered:
`date('now')` (replays differ from day to day); limits on the whole process other than the 2 GB that SQLite
may use in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sqlite3
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.environments.sql.database import MAX_SQL_LENGTH, MachineLimitError, SqlLimits
from pipeline.environments.sql.results import ResultSet, Row
from pipeline.environments.tools import ToolError
from pipeline.errors import ConfigError, EnvironmentFailure

STEP_UNIT = 50
"""Steps are counted in units of so many; cheaper queries cost 0 to a unit."""
_SMALL_BYTES = 4_000_000
_HEAP_LIMIT_BYTES = 2_000_000_000
"""All SQLite memory of this process, open copies included: what stops a statement that sorts without end."""
_READ_PRAGMAS = {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "foreign_key_list"}
_INTERNAL_PRAGMAS = {"data_version"}
"""Full-text tables ask for it themselves."""
_REFUSED_FUNCTIONS = {
    "load_extension", "fts3_tokenizer", "random", "randomblob", "zeroblob", "printf", "format",
    "readfile", "writefile", "edit", "sqlite_compileoption_get", "sqlite_compileoption_used",
}  # fmt: skip
_REFUSED_TABLES = {"sqlite_stmt", "dbstat", "sqlite_dbpage"}
_REFUSALS = ("not authorized", "prohibited", "may not be modified", "vtable constructor failed")
_BROKEN = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
}
_LENGTHS = {
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: MAX_SQL_LENGTH,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 500,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}


class SqliteDatabase:
    """A copy in memory made from an image, or a shared read-only file. See `database.Database`."""

    def __init__(
        self, image: bytes = b"", *, path: Path | None = None, writable: bool = False, limits: SqlLimits
    ) -> None:
        self._limits, self._writable = limits, writable
        self._steps = 0
        self._running = False
        self._stop_at = 0.0
        self.small = path is None and len(image) <= _SMALL_BYTES
        target = ":memory:" if path is None else f"{path.as_uri()}?mode=ro&immutable=1"
        self._connection = sqlite3.connect(
            target, isolation_level=None, check_same_thread=False, uri=path is not None, cached_statements=0
        )
        self._connection.text_factory = _decode
        if path is None:
            self.restore(image)
        else:
            self._guard()

    def reads(self, sql: str) -> frozenset[str]:
        """The tables a query reads, those behind views, too; none where it does not run."""
        found: set[str] = set()

        def note(action: int, name: str | None, *rest: str | None) -> int:
            if action == sqlite3.SQLITE_READ and name and not name.startswith("sqlite_"):
                found.add(name)
            return _reader(action, name, *rest)

        self._connection.set_authorizer(note)
        try:
            self._connection.execute(f"EXPLAIN {sql}").fetchall()
        except sqlite3.Error:
            return frozenset()
        finally:
            self._arm()
        return frozenset(found)

    def run(self, sql: str, *, measured: bool = False) -> ResultSet:
        """Execute one statement, always measured; all effects of a failed one are undone."""
        if len(sql) > MAX_SQL_LENGTH:
            raise ToolError(f"the statement is longer than {MAX_SQL_LENGTH} characters")
        self._steps, self._running = 0, True
        self._stop_at = time.perf_counter() + self._limits.max_seconds
        cursor = self._connection.cursor()
        try:
            cursor.execute(sql)
            rows = cursor.fetchmany(self._limits.max_rows + 1)
        except (sqlite3.Error, sqlite3.Warning, MemoryError, UnicodeEncodeError) as error:
            self._arm()  # a refused statement may have dropped the schema, and open full-text tables with it
            raise self._translated(error) from None
        finally:
            cursor.close()
            self._running = False
        columns = tuple(str(item[0]) for item in cursor.description or ())
        complete = len(rows) <= self._limits.max_rows
        return ResultSet(columns, tuple(rows[: self._limits.max_rows]), complete, self._steps)

    def tables(self) -> Sequence[str]:
        """Names of tables and views, sorted."""
        found = self._connection.execute(
            "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite~_%' "
            "ESCAPE '~' ORDER BY name"
        )
        return [str(name) for (name,) in found.fetchall()]

    def describe(self, table: str) -> str:
        """`column TYPE [KEY] [-> table.column]`, one a line."""
        known = {name.lower(): name for name in self.tables()}
        if table.lower() not in known:
            raise ToolError(f"no table {table}; tables: {', '.join(known.values())}")
        quoted = _quoted(known[table.lower()])
        targets = {
            row[3]: f" -> {row[2]}.{row[4] or 'key'}"
            for row in self._connection.execute(f"PRAGMA foreign_key_list({quoted})").fetchall()
        }
        columns = self._connection.execute(f"PRAGMA table_info({quoted})").fetchall()
        return "\n".join(
            f"{name} {kind}{' KEY' if key else ''}{targets.get(name, '')}"
            for _, name, kind, _, _, key in columns
        )

    def contents(self) -> dict[str, tuple[tuple[str, ...], list[Row]]]:
        """Tables only, not views."""
        found = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        result = {}
        for (name,) in found.fetchall():
            cursor = self._connection.execute(f"SELECT * FROM {_quoted(name)}")
            result[str(name)] = (tuple(item[0] for item in cursor.description), cursor.fetchall())
        return result

    def image(self) -> bytes:
        """The serialised database; b"" where it cannot change."""
        return self._connection.serialize() if self._writable else b""

    def restore(self, image: bytes) -> None:
        """Replace the content; nothing to do for a copy that cannot change once it is loaded."""
        if not image:
            return
        self._connection.set_authorizer(None)
        try:
            self._connection.deserialize(image)
        except MemoryError as error:
            raise EnvironmentFailure(
                f"no room for a copy of {len(image)} bytes: SQLite may use {_HEAP_LIMIT_BYTES} in one process"
            ) from error
        if self._writable:
            pages = (len(image) + self._limits.max_growth_bytes) // max(512, _page_size(image))
            self._connection.execute(f"PRAGMA max_page_count = {pages}")
        self._guard()

    def interrupt(self) -> None:
        """Stop the statement that another thread runs."""
        self._connection.interrupt()

    def close(self) -> None:
        """Release the copy."""
        self._connection.close()

    def _guard(self) -> None:
        connection = self._connection
        connection.execute(f"PRAGMA hard_heap_limit = {_HEAP_LIMIT_BYTES}")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA trusted_schema = OFF")
        for category, limit in _LENGTHS.items():
            connection.setlimit(category, limit)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(self._limits.max_cell_bytes, MAX_SQL_LENGTH))
        connection.set_progress_handler(self._count, STEP_UNIT)
        self._arm()

    def _arm(self) -> None:
        """Set the authorizer, after two things that no statement can do: read the schema at no cost and
        open full-text tables (it would not be allowed to)."""
        self._running = False
        self._connection.set_authorizer(None)
        found = self._connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage = 0"
        )
        for (name,) in found.fetchall():
            self._connection.execute(f"SELECT * FROM {_quoted(name)} LIMIT 0").fetchall()
        self._connection.set_authorizer(_writer if self._writable else _reader)

    def _count(self) -> bool:
        """Whether to stop; what we ask ourselves (tables, contents) is not limited."""
        self._steps += STEP_UNIT
        over = self._steps > self._limits.max_steps or time.perf_counter() > self._stop_at
        return over and self._running

    def _translated(self, error: BaseException) -> Exception:
        if isinstance(error, MemoryError):
            return MachineLimitError("the statement needs too much memory")
        if isinstance(error, UnicodeEncodeError):
            return ToolError("the statement is not valid text")
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_INTERRUPT:
            if self._steps <= self._limits.max_steps:
                return MachineLimitError(f"stopped after {self._limits.max_seconds:g} s; ask for less")
            return ToolError(f"stopped at the limit of {self._limits.max_steps} engine steps; ask for less")
        if code == sqlite3.SQLITE_AUTH or any(words in str(error) for words in _REFUSALS):
            allowed = "SELECT, INSERT, UPDATE and DELETE" if self._writable else "SELECT"
            return ToolError(f"not allowed: {error}; only {allowed} without file access is")
        if code == sqlite3.SQLITE_FULL:
            return ToolError("the database may not grow any further")
        if code in _BROKEN:
            return EnvironmentFailure(f"the database copy is damaged: {error}")
        return ToolError(str(error))


class SqliteSource:
    """A SQLite file: read once with its write-ahead log, never opened in place. See `database.Source`."""

    dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        """Raises ConfigError where the file is no SQLite database."""
        self.digest = hashlib.sha256(_log(path) + path.read_bytes()).hexdigest()[:16]
        self._folder = tempfile.mkdtemp(prefix="trajsmith-sql-")
        self._file = Path(self._folder) / "copy.sqlite"
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        shutil.copyfile(path, self._file)
        if _log(path):
            shutil.copyfile(f"{path}-wal", f"{self._file}-wal")
        try:
            connection = sqlite3.connect(self._file)
            connection.execute("PRAGMA journal_mode = DELETE").fetchall()
            connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
            self._image = connection.serialize() if self._file.stat().st_size <= _SMALL_BYTES else b""
            connection.close()
        except sqlite3.Error as error:
            raise ConfigError(f"{path} is not a readable SQLite database: {error}") from error

    def halves(self, reads: frozenset[str], *, limits: SqlLimits) -> Iterator[SqliteDatabase]:
        """Copies of a small database, each without every second row of the tables in `reads`: what one lacks
        the other has. None for a large database."""
        for remainder in (0, 1) if self._image else ():
            connection = sqlite3.connect(":memory:", isolation_level=None)
            try:
                connection.deserialize(self._image)
                for name in reads:
                    with contextlib.suppress(sqlite3.Error):  # views, virtual tables, tables without a rowid
                        connection.execute(f"DELETE FROM {_quoted(name)} WHERE rowid % 2 = {remainder}")
                image = connection.serialize()
            finally:
                connection.close()
            yield SqliteDatabase(image, limits=limits)

    def open(self, *, writable: bool, limits: SqlLimits) -> SqliteDatabase:
        """A small database is copied in memory; a large one is shared while it is only read."""
        if self._image or writable:
            return SqliteDatabase(self._image or self._file.read_bytes(), writable=writable, limits=limits)
        return SqliteDatabase(path=self._file, limits=limits)


def _reader(action: int, name: str | None, detail: str | None, *_: str | None) -> int:
    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_READ:
        return sqlite3.SQLITE_DENY if name in _REFUSED_TABLES else sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_DENY if (detail or "").lower() in _REFUSED_FUNCTIONS else sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA:
        known = name in _READ_PRAGMAS or (name in _INTERNAL_PRAGMAS and detail is None)
        return sqlite3.SQLITE_OK if known else sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_DENY


def _writer(action: int, name: str | None, detail: str | None, *rest: str | None) -> int:
    if action in (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE):
        return sqlite3.SQLITE_DENY if (name or "").lower().startswith("sqlite_") else sqlite3.SQLITE_OK
    return _reader(action, name, detail, *rest)


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _page_size(image: bytes) -> int:
    size = int.from_bytes(image[16:18], "big")
    return 65536 if size == 1 else size


def _log(path: Path) -> bytes:
    log = Path(f"{path}-wal")
    return log.read_bytes() if log.exists() else b""
