"""A small MCP server, a ticket desk. `python mcp_server.py` speaks over standard input and output."""

from __future__ import annotations

from typing import Literal

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

OPEN = {"printer": 101, "screen": 102, "keyboard": 103, "network": 104, "badge": 105, "mail": 106}


def build() -> MCPServer:
    """A fresh desk with all its tickets open."""
    server = MCPServer("ticket_desk")
    closed: dict[str, str] = {}

    @server.tool()
    def find(topic: str) -> int:
        """Number of the open ticket on a topic."""
        if topic not in OPEN:
            raise ToolError(f"no ticket on {topic}; topics: {', '.join(OPEN)}")
        return OPEN[topic]

    @server.tool()
    def close(ticket: int, outcome: Literal["fixed", "rejected"]) -> str:
        """Close a ticket."""
        if ticket not in OPEN.values():
            raise ToolError(f"there is no ticket {ticket}")
        closed[str(ticket)] = outcome
        return "closed"

    @server.tool()
    def closed_tickets() -> dict[str, str]:
        """Closed tickets with their outcomes."""
        return closed

    @server.tool()
    def reset() -> str:
        """Open all tickets again."""
        closed.clear()
        return "ok"

    return server


if __name__ == "__main__":
    build().run()
