"""sql_desk: questions about generated databases, some of them with terms that must be looked up first."""

from pipeline.environments.sql_desk.generator import SqlDesk, load

__all__ = ["SqlDesk", "load"]
