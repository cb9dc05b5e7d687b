"""Parsers of tool-call formats: strict, with a lenient second look that only labels."""
