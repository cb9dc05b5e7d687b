"""BFCL multi-turn base as an environment: 200 tasks of a foreign benchmark, judged by its own comparisons."""

from pipeline.environments.bfcl.environment import BfclEnvironment, load

__all__ = ["BfclEnvironment", "load"]
