"""Rewards: scores of a finished trajectory, the same for filters, evaluation and training."""
