"""tau2 as an environment: customer service under a policy, three domains, the benchmark's own evaluators."""

from pipeline.environments.tau2.environment import Tau2Environment, load

__all__ = ["Tau2Environment", "load"]
