"""Decide what is worth training on."""
