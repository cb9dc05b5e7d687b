"""Hindsight: what an episode reached, though it was asked for something else (ECHO, arXiv 2510.10304).

Named `hindsight`, not `echo`: `echo` is here the agent of `env check` that repeats what it is shown.
"""
