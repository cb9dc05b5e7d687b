"""DuckDB databases for sessions: a private copy, statement kinds, locked configuration, a deadline.

Only SELECT and EXPLAIN of a SELECT run (on a writable copy INSERT, UPDATE and DELETE too), one at a time;
external access is off and the configuration locked, so no file, network, extension or setting is reachable.
DuckDB counts no steps that could be limited, so a statement is stopped by memory and after `max_seconds`; its
cost is rows, not time: those scanned plus those handed from operator to operator. Not covered: `random()` and
`now()` (they do not replay). Opening a writable copy takes 10 to 30 ms, which is DuckDB's own start.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from data import canonical
from pipeline.environments.sql.database import MAX_SQL_LENGTH, MachineLimitError, SqlLimits
from pipeline.environments.sql.duckdb_tables import base_tables, halve, quoted, scanned_tables
from pipeline.environments.sql.results import ResultSet, Row
from pipeline.environments.tools import ToolError
from pipeline.errors import ConfigError, EnvironmentFailure, MissingExtraError

_INTROSPECTION = re.compile(
    r"\b(duckdb_(settings|databases|secrets|temporary_files|logs|log_contexts|extensions|external_file_cache)"
    r"|pragma_(database_list|database_size|storage_info)|current_setting|which_secret)\b",
    re.IGNORECASE,
)
"""They show paths of this machine."""
_INFLATING = re.compile(r"\b(repeat|lpad|rpad|printf|format)\s*\(", re.IGNORECASE)
"""One call makes gigabytes and cannot be stopped."""
_INTERRUPT_AGAIN_SECONDS = 1.0
_READS = ("SELECT",)
_WRITES = ("SELECT", "INSERT", "UPDATE", "DELETE", "MERGE_INTO")


class DuckDatabase:
    """A cursor on a shared read-only copy, or a writable copy of its own. See `database.Database`."""

    small = False

    def __init__(self, connection: Any, *, folder: Path | None = None, limits: SqlLimits) -> None:
        """`folder`: holds a writable copy, removed on close."""
        self._connection, self._folder, self._limits = connection, folder, limits
        self._image = b""

    def run(self, sql: str, *, measured: bool = False) -> ResultSet:
        """Execute one statement; all effects of a failed one are undone. Measuring a SELECT runs it twice."""
        kind = self._kind(sql)
        with self._translating():
            if kind not in ("SELECT", "EXPLAIN"):
                return self._write(sql)
            with self._deadline():
                cost = self._measure(sql) if measured and kind == "SELECT" else None
                return self._fetch(sql, cost)

    def reads(self, sql: str) -> frozenset[str]:
        """The tables a query names, and those that its plan scans: behind views, too."""
        known = {name.lower(): name for name in base_tables(self._connection)}
        try:
            self._kind(sql)
            with self._translating():
                [(_, plan)] = self._connection.execute(f"EXPLAIN (FORMAT JSON) {sql}").fetchall()
        except ToolError:
            return frozenset()
        scanned = {str(name).split(".", 2)[-1].lower() for name in scanned_tables(canonical.loads(plan))}
        named: set[str] = set()
        with suppress(_duckdb().Error):  # it cannot bind the views of a database
            named = {name.lower() for name in self._connection.get_table_names(sql)}
        return frozenset(known[name] for name in scanned | named if name in known)

    def tables(self) -> Sequence[str]:
        """Names of tables and views of the main schema, sorted."""
        found = self._connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'main' ORDER BY 1"
        )
        return [str(name) for (name,) in found.fetchall()]

    def describe(self, table: str) -> str:
        """`column TYPE [KEY] [-> table.column]`, one a line."""
        known = {name.lower(): name for name in self.tables()}
        if table.lower() not in known:
            raise ToolError(f"no table {table}; tables: {', '.join(known.values())}")
        name = known[table.lower()]
        notes: dict[str, str] = {}
        constraints = self._connection.execute(
            "SELECT constraint_type, constraint_column_names, referenced_table, referenced_column_names "
            "FROM duckdb_constraints() WHERE table_name = ? AND schema_name = 'main'",
            [name],
        ).fetchall()
        for kind, columns, target, target_columns in constraints:
            for index, column in enumerate(columns):
                if kind == "PRIMARY KEY":
                    notes[column] = " KEY" + notes.get(column, "")
                elif kind == "FOREIGN KEY":
                    notes[column] = notes.get(column, "") + f" -> {target}.{target_columns[index]}"
        found = self._connection.execute(
            "SELECT column_name, data_type FROM duckdb_columns() "
            "WHERE table_name = ? AND schema_name = 'main' ORDER BY column_index",
            [name],
        )
        return "\n".join(f"{column} {kind}{notes.get(column, '')}" for column, kind in found.fetchall())

    def contents(self) -> dict[str, tuple[tuple[str, ...], list[Row]]]:
        """Tables only, not views."""
        result = {}
        for name in base_tables(self._connection):
            cursor = self._connection.execute(f"SELECT * FROM {quoted(name)}")
            result[name] = (tuple(item[0] for item in cursor.description), cursor.fetchall())
        return result

    def image(self) -> bytes:
        """The bytes of the writable copy's file; b"" for a shared copy."""
        if self._folder is not None and not self._image:
            self._connection.execute("CHECKPOINT")
            self._image = (self._folder / _FILE).read_bytes()
        return self._image

    def restore(self, image: bytes) -> None:
        """Reopen the writable copy on the image."""
        if self._folder is None:
            return
        self._connection.close()
        for path in self._folder.iterdir():
            path.unlink()
        (self._folder / _FILE).write_bytes(image)
        self._connection = _connect(self._folder / _FILE, read_only=False, limits=self._limits)
        self._image = image

    def interrupt(self) -> None:
        """Stop the statement that another thread runs."""
        self._connection.interrupt()

    def close(self) -> None:
        """Release the copy."""
        self._connection.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _kind(self, sql: str) -> str:
        """The kind of the one statement. Raises ToolError where it may not run."""
        duckdb = _duckdb()
        if len(sql) > MAX_SQL_LENGTH:
            raise ToolError(f"the statement is longer than {MAX_SQL_LENGTH} characters")
        if _INTROSPECTION.search(sql):
            raise ToolError("not allowed: the statement asks for settings of the machine")
        if _INFLATING.search(sql):
            raise ToolError("not allowed: repeat, lpad, rpad, printf and format")
        with self._translating():
            sql.encode("utf-8")
            statements = duckdb.extract_statements(sql)
        if len(statements) != 1:
            raise ToolError(f"one statement at a time, got {len(statements)}")
        kind = statements[0].type.name
        allowed = _READS if self._folder is None else _WRITES
        if kind == "EXPLAIN" and not re.match(r"\s*explain\s+(analyze\s+)?(select|with|from)\b", sql, re.I):
            raise ToolError("not allowed: EXPLAIN of a SELECT only")
        if kind not in allowed and kind != "EXPLAIN":
            raise ToolError(f"not allowed: {kind}; only {', '.join(allowed)} is")
        return str(kind)

    def _measure(self, sql: str) -> int:
        """Profiling a query needs no setting this way; settings are locked."""
        [(_, plan)] = self._connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}").fetchall()
        return _rows_handled(canonical.loads(plan)["operator"])

    def _fetch(self, sql: str, cost: int | None = None) -> ResultSet:
        cursor = self._connection.execute(sql)
        rows = cursor.fetchmany(self._limits.max_rows + 1)
        columns = tuple(str(item[0]) for item in cursor.description or ())
        complete = len(rows) <= self._limits.max_rows
        return ResultSet(columns, tuple(rows[: self._limits.max_rows]), complete, cost)

    def _write(self, sql: str) -> ResultSet:
        assert self._folder is not None
        before = _size(self._folder)
        self._image = b""
        self._connection.execute("BEGIN")
        try:
            with self._deadline():
                result = self._fetch(sql)
                if _size(self._folder) - before > self._limits.max_growth_bytes:
                    raise ToolError("the database may not grow any further")
                self._connection.execute("COMMIT")
        except BaseException:
            self._connection.execute("ROLLBACK")  # which no deadline may interrupt
            raise
        return result

    @contextmanager
    def _deadline(self) -> Iterator[None]:
        """Interrupt what runs after `max_seconds`, and nothing that runs afterwards."""
        over = threading.Event()

        def interrupt() -> None:
            patience = self._limits.max_seconds
            while not over.wait(patience):  # again and again: between two statements one is lost
                self._connection.interrupt()
                patience = _INTERRUPT_AGAIN_SECONDS

        timer = threading.Thread(target=interrupt, daemon=True)
        timer.start()
        try:
            yield
        finally:
            over.set()
            timer.join()

    @contextmanager
    def _translating(self) -> Iterator[None]:
        duckdb = _duckdb()
        try:
            yield
        except duckdb.InterruptException:
            limit = f"{self._limits.max_seconds:g} s"
            raise MachineLimitError(
                f"stopped: the statement took longer than {limit}; ask for less"
            ) from None
        except (duckdb.FatalException, duckdb.InternalException, duckdb.IOException) as error:
            raise EnvironmentFailure(f"the database copy is damaged: {error}") from error
        except duckdb.OutOfMemoryException:
            raise MachineLimitError("the statement needs too much memory") from None
        except duckdb.PermissionException:
            raise ToolError("not allowed: files, network and extensions are switched off") from None
        except (duckdb.Error, UnicodeError) as error:
            raise ToolError(str(error).split("\n\nLINE")[0].strip()) from None


class DuckSource:
    """A DuckDB file: copied once, never opened in place. See `database.Source`."""

    dialect = "duckdb"

    def __init__(self, path: Path, *, limits: SqlLimits) -> None:
        """Raises MissingExtraError, and ConfigError where the file is no DuckDB database."""
        duckdb = _duckdb()
        self.digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        self._folder = Path(tempfile.mkdtemp(prefix="trajsmith-sql-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._file = self._folder / _FILE
        shutil.copyfile(path, self._file)
        log = Path(f"{path}.wal")
        if log.exists():
            shutil.copyfile(log, f"{self._file}.wal")
        try:
            duckdb.connect(self._file).close()  # a leftover log is folded in
            self._shared = _connect(self._file, read_only=True, limits=limits)
        except duckdb.Error as error:
            raise ConfigError(f"{path} is not a readable DuckDB database: {error}") from error

    def halves(self, reads: frozenset[str], *, limits: SqlLimits) -> Iterator[DuckDatabase]:
        """Copies of a small database, each without every second row of the tables in `reads`: what one lacks
        the other has. None for a large database, and none where its tables cannot be made anew."""
        for remainder in (0, 1) if self._file.stat().st_size <= _SMALL_BYTES else ():
            folder = Path(tempfile.mkdtemp(prefix="trajsmith-sql-"))
            try:
                shutil.copyfile(self._file, folder / _FILE)
                with _duckdb().connect(str(folder / _FILE)) as connection:
                    halve(connection, reads, remainder)
                half = _connect(folder / _FILE, read_only=False, limits=limits)
            except _duckdb().Error:
                shutil.rmtree(folder, ignore_errors=True)
                return
            yield DuckDatabase(half, folder=folder, limits=limits)

    def open(self, *, writable: bool, limits: SqlLimits) -> DuckDatabase:
        """Readers share one copy, each through a cursor; a writer gets a file of its own."""
        if not writable:
            return DuckDatabase(self._shared.cursor(), limits=limits)
        folder = Path(tempfile.mkdtemp(prefix="trajsmith-sql-"))
        shutil.copyfile(self._file, folder / _FILE)
        connection = _connect(folder / _FILE, read_only=False, limits=limits)
        return DuckDatabase(connection, folder=folder, limits=limits)


_FILE = "copy.duckdb"
_SMALL_BYTES = 32_000_000


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtraError(
            "DuckDB files need the package duckdb: pip install 'trajsmith[duckdb]'"
        ) from error
    return duckdb


def _connect(path: Path, *, read_only: bool, limits: SqlLimits) -> Any:
    memory = (256_000_000 + limits.max_growth_bytes) // 1_000_000
    config = {
        "enable_external_access": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
        "max_temp_directory_size": "0B",
        "memory_limit": f"{memory}MB",
        "threads": "1",
        "lock_configuration": "true",
    }
    return _duckdb().connect(str(path), read_only=read_only, config=config)


def _rows_handled(operators: Sequence[dict[str, Any]]) -> int:
    """Rows scanned plus rows handed on, over the operator tree."""
    return sum(
        int(node.get("rows_scanned", 0))
        + int(node.get("intermediate_rows", 0))
        + _rows_handled(node.get("children", []))
        for node in operators
    )


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())
