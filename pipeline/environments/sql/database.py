"""What a session does with a database, whichever engine it is, and the limits every statement runs under.

A statement that is refused, wrong or too expensive raises ToolError (the agent's doing); a database that is
damaged raises EnvironmentFailure. Not covered: how an engine keeps to it (`sqlite`, `duckdb`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from pipeline.environments.sql.results import ResultSet, Row
from pipeline.environments.tools import ToolError
from pipeline.errors import ConfigError

MAX_SQL_LENGTH = 10_000


class MachineLimitError(ToolError):
    """A statement ran out of time or memory. To the agent an observation; of its query a verifier learns
    nothing by it, since another day it may pass."""


@dataclass(frozen=True, slots=True)
class SqlLimits:
    """Limits of one statement."""

    max_steps: int = 5_000_000
    """SQLite virtual-machine steps; about 10 to 50 million pass in a second."""
    max_rows: int = 10_000
    """Rows fetched; a result cut here equals nothing."""
    shown_rows: int = 20
    """Rows an agent is shown."""
    max_cell_bytes: int = 200_000
    """Largest text or blob a statement may make or read."""
    max_seconds: float = 10.0
    """A statement is stopped after so long: the limit for DuckDB, which counts no steps, the last resort for
    SQLite."""
    max_growth_bytes: int = 64_000_000
    """How far a writable copy may grow (SQLite), and the memory of a statement beyond that size (DuckDB)."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ConfigError(f"SqlLimits.{name} must be above 0, got {getattr(self, name)}")


class Database(Protocol):
    """One session's copy of a database. Not safe for concurrent statements."""

    small: bool
    """Whether statements are short enough to run on the event loop."""

    def run(self, sql: str, *, measured: bool = False) -> ResultSet:
        """Execute one statement; `measured` asks for its cost. Raises ToolError, EnvironmentFailure."""
        ...

    def reads(self, sql: str) -> frozenset[str]:
        """The tables a query reads; none where that is not known."""
        ...

    def tables(self) -> Sequence[str]:
        """Names of tables and views, sorted."""
        ...

    def describe(self, table: str) -> str:
        """Columns, types and keys, one a line. Raises ToolError for an unknown table."""
        ...

    def contents(self) -> dict[str, tuple[tuple[str, ...], list[Row]]]:
        """Every table's column names and rows, for comparing end states."""
        ...

    def image(self) -> bytes:
        """The whole content as bytes; b"" for a copy that cannot change."""
        ...

    def restore(self, image: bytes) -> None:
        """Return to an image."""
        ...

    def interrupt(self) -> None:
        """Stop a running statement from another thread."""
        ...

    def close(self) -> None:
        """Release the copy; idempotent."""
        ...


class Source(Protocol):
    """A user's database file, copied once so that it is never touched again."""

    digest: str
    """Of the file's content."""
    dialect: str

    def open(self, *, writable: bool, limits: SqlLimits) -> Database:
        """A fresh copy."""
        ...

    def halves(self, reads: frozenset[str], *, limits: SqlLimits) -> Iterator[Database]:
        """Two copies, each with the rows of `reads` that the other lacks; none where they cannot be made."""
        ...
