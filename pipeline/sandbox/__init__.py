"""Sandboxes: where model-written code runs."""
