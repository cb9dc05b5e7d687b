"""Stages as plain functions, the command line over them, and thin Prefect flows."""
