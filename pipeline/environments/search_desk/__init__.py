"""search_desk: questions of one to four hops over a made-up encyclopaedia, by chat tools or inline tags."""

from pipeline.environments.search_desk.generator import INLINE, SearchDesk, load

__all__ = ["INLINE", "SearchDesk", "load"]
