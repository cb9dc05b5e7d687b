"""A local gateway that any agent harness can point at: ordinary replies out, token-exact records in."""
