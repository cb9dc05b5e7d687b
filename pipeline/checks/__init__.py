"""Checks shared by filters and rewards: pure functions over records."""
