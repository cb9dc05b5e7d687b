"""Whether a right result was spelled out instead of asked for: `SELECT 3`, after having looked.

The rows of the tables that the submitted query reads are split into two halves. Both queries run on the
database without the one and without the other half. A query that asks changes where gold changes; one that
gives the same rows wherever gold gives others has them written into it. Only tables that it reads are split
(gold's, where they share none), so that a query which leaves out a join that changes nothing is not accused.
Not covered: large files, and a query that mixes asking and spelling out.
"""

from __future__ import annotations

from pipeline.environments.sql.database import Database, Source, SqlLimits
from pipeline.environments.sql.results import ResultSet, same_results
from pipeline.environments.tools import ToolError


def is_hard_coded(submitted: str, gold: str, *, source: Source, limits: SqlLimits) -> bool:
    """Whether `submitted`, whose result equals gold's, gives it whatever the database holds."""
    database = source.open(writable=False, limits=limits)
    try:
        read, wanted = database.reads(submitted), database.reads(gold)
        if not wanted:
            return False
        whole = database.run(gold)
    finally:
        database.close()
    gold_changed = False
    for half in source.halves(read if read & wanted else read | wanted, limits=limits):
        try:
            if _gives(half, gold, whole):
                continue
            gold_changed = True
            if not _gives(half, submitted, whole):
                return False
        except ToolError:
            return False
        finally:
            half.close()
    return gold_changed


def _gives(database: Database, sql: str, expected: ResultSet) -> bool:
    return same_results(expected, database.run(sql), ordered=False)
