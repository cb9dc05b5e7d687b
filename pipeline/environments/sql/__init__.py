"""Bring your own SQLite or DuckDB file: tools, limits, and a reward by equal results or end state."""

from pipeline.environments.sql.environment import SqlEnvironment, load
from pipeline.environments.sql.session import SqlSession

__all__ = ["SqlEnvironment", "SqlSession", "load"]
