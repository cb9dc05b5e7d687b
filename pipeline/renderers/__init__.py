"""Renderers: turns to tokens and back, one module per chat format."""
