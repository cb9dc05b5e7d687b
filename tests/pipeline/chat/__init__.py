"""Tests of pipeline/chat."""
