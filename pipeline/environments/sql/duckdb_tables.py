"""Tables of a DuckDB database: which there are, which a plan scans, and copies without half of their rows.

For statements of ours only, on connections of ours. Not covered: what an agent's statement may do
(`duckdb_engine`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def scanned_tables(nodes: Any) -> Iterator[Any]:
    """The names of the tables in a plan."""
    for node in nodes:
        if "Table" in node.get("extra_info", {}):
            yield node["extra_info"]["Table"]
        yield from scanned_tables(node.get("children", ()))


def halve(connection: Any, reads: frozenset[str], remainder: int) -> None:
    """Make every table anew without constraints, which would keep rows, and `reads` without half of theirs.

    Raises duckdb.Error where that cannot be done.
    """
    from duckdb import CatalogException

    tables = base_tables(connection)
    for number, name in enumerate(tables):
        kept = f"WHERE rowid % 2 <> {remainder}" if name in reads else ""
        connection.execute(f"CREATE TABLE __half_{number} AS SELECT * FROM {quoted(name)} {kept}")
    left = list(tables)
    while left:  # a table can only go once no other refers to it
        before = len(left)
        left = [name for name in left if not _dropped(connection, name)]
        if len(left) == before:
            raise CatalogException(f"tables {left} cannot be dropped")
    for number, name in enumerate(tables):
        connection.execute(f"ALTER TABLE __half_{number} RENAME TO {quoted(name)}")


def _dropped(connection: Any, name: str) -> bool:
    from duckdb import Error

    try:
        connection.execute(f"DROP TABLE {quoted(name)}")
    except Error:
        return False
    return True


def base_tables(connection: Any) -> list[str]:
    """Tables of the main schema, not views, sorted."""
    found = connection.execute(
        "SELECT table_name FROM information_schema.tables "
        "WHERE table_schema = 'main' AND table_type = 'BASE TABLE' ORDER BY 1"
    )
    return [str(name) for (name,) in found.fetchall()]


def quoted(name: str) -> str:
    """A name as a statement writes it."""
    return '"' + name.replace('"', '""') + '"'
