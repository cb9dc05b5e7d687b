"""OpenAPI documents as tools, against a real server on the loopback."""
