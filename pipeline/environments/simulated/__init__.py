"""Tools that only have a document, played by a Chat: `load(chat=..., tools=..., tasks=...)`."""

from pipeline.environments.simulated.environment import SimulatedEnvironment, load

__all__ = ["SimulatedEnvironment", "load"]
