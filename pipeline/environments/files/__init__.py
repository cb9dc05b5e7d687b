"""files: a small file tree in memory, with tasks that rename, collect, repair and tidy."""

from pipeline.environments.files.generator import Files, load

__all__ = ["Files", "load"]
