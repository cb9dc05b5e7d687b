"""The runtime core: engines, renderers, environments, the rollout loop, and the checks they share."""
