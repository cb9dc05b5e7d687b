"""Seed tools of LoopTool: `seed_tools` invents them, `write_world` makes a simulated environment of them."""

from synthesizers.looptool.seed_tools.making import SeedWorld, seed_tools, write_world

__all__ = ["SeedWorld", "seed_tools", "write_world"]
