"""Magnet (arXiv 2503.07826): dialogues planned as paths through the signature graph."""
