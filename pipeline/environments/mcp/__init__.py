"""Tools of an MCP server (in this process, a command, or a URL) as an environment; see `environment`."""

from __future__ import annotations

from typing import Any

from pipeline.environments.base import Environment


def load(**options: Any) -> Environment:
    """The MCP environment; options are those of `environment.McpEnvironment`."""
    from pipeline.environments.mcp.environment import McpEnvironment

    return McpEnvironment(**options)
