"""Tests of pipeline/engines."""
