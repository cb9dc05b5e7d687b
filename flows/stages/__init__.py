"""Compositions of everything below, without Prefect: one module per stage."""
