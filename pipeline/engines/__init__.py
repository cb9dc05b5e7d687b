"""Engines: token ids in, token ids and log-probs out. Import the kind you need from its module."""
