"""The verbs of the command line; each calls `flows.stages` and prints."""
