"""Tests of the record and of the run directory."""
