"""What a user of vf-eval writes to play our environments there."""

from verifiers.v1.harnesses.null import NullHarness

from pipeline.environments.adapters.as_verifiers import TrajsmithTaskset

__all__ = ["NullHarness", "TrajsmithTaskset"]
