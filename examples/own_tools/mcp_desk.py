"""An MCP server as an environment: a process per episode, used again after its `reset`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pipeline.environments.mcp.environment import McpEnvironment

HERE = Path(__file__).parent


def load(**options: Any) -> McpEnvironment:
    return McpEnvironment(
        name="ticket_desk",
        command=[sys.executable, str(HERE / "mcp_server.py")],
        tasks=str(HERE / "mcp_desk.yaml"),
        reset_tool="reset",
        hidden=["closed_tickets"],
        reads=["find"],
        **options,
    )
