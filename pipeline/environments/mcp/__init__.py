"""Tools of an MCP server (in this process, a command, or a URL) as an environment; see `environment`."""

from pipeline.environments.mcp.environment import McpEnvironment, load

__all__ = ["McpEnvironment", "load"]
