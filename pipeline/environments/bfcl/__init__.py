"""BFCL as environments: a foreign benchmark, multi-turn and single-turn, judged by its own comparisons."""

from pipeline.environments.bfcl.environment import BfclEnvironment, load

__all__ = ["BfclEnvironment", "load"]
