"""Synthesizers by name; nothing is imported before it is asked for."""

from __future__ import annotations

import importlib
from typing import Any

from data.errors import ConfigError

__all__ = ["SYNTHESIZERS", "load_synthesizer"]

SYNTHESIZERS = {
    "agreement_sampling": "synthesizers.looptool.agreement:AgreementSampling",
    "astra_chains": "synthesizers.astra.chains:AstraChains",
    "astra_environments": "synthesizers.astra.environments:AstraEnvironments",
    "demonstration": "synthesizers.demonstration:Demonstration",
    "hindsight": "synthesizers.hindsight.synthesizer:Hindsight",
    "hardgen": "synthesizers.hardgen.synthesizer:HardGen",
    "looptool": "synthesizers.looptool.synthesizer:LoopTool",
    "magnet": "synthesizers.magnet.synthesizer:Magnet",
    "director_actor": "synthesizers.director_actor.synthesizer:DirectorActor",
    "rejection_sampling": "synthesizers.rejection_sampling:RejectionSampling",
    "tree_search": "synthesizers.tree_search.synthesizer:TreeSearch",
}


def load_synthesizer(name: str) -> type[Any]:
    """The class behind a name; see `synthesizers.base.Synthesizer`. Raises ConfigError for others."""
    if name not in SYNTHESIZERS:
        raise ConfigError(f"no synthesizer {name!r}; there are: {', '.join(sorted(SYNTHESIZERS))}")
    module, attribute = SYNTHESIZERS[name].split(":")
    loaded: type[Any] = getattr(importlib.import_module(module), attribute)
    return loaded
