"""Make tasks and trajectories."""
