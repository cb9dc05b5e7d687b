"""Workflow memory: what worked before, kept as goal and workflow, and shown to a policy in its prompt."""
