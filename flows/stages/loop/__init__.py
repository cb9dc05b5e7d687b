"""The closed loop: rounds of data from a model's own errors, and the baselines beside them."""
