"""Reports of a run and views of its trajectories, as HTML that opens without a network."""
