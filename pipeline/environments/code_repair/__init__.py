"""code_repair: small programs broken on purpose, to be read, edited, tested and submitted."""

from pipeline.environments.code_repair.generator import CodeRepair, load

__all__ = ["CodeRepair", "load"]
