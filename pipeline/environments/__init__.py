"""Environments: tools + state + verifier, one module or folder per world."""
