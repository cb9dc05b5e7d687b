"""A worker that speaks the protocol of `verifiers_worker` without verifiers: counters to be raised.

Started as the real one is; it keeps the real socket, forks and lines, and replaces what imports verifiers.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from pipeline.environments.adapters.verifiers_worker import main

ADD = {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]}


class StandIn:
    """One connection; `value` is the counter of its episode."""

    value, added = 0, 0

    async def answers(self, request: dict[str, Any]) -> AsyncIterator[Any]:
        name = request["do"]
        if name == "tasks":
            for index in range(request["config"].get("rows", 3)):
                by = 7 * index + 7
                gold = [{"name": "add", "arguments": {"by": by}}]
                shown = {"idx": index, "prompt": f"Raise the counter by {by}."}
                yield {"shown": shown, "own": {"start": index, "goal": index + by}, "gold": gold}
            if request["config"].get("short"):
                raise LookupError("no more rows")
            yield None
        elif name == "open":
            if request["data"]["prompt"] == "dies":
                os._exit(3)
            self.data, self.value = request["data"], request["data"]["start"]
            yield {"pid": os.getpid(), "tools": [{"name": "add", "description": "", "parameters": ADD}]}
        elif name == "call":
            yield self._add(request["arguments"])
        elif name == "score":
            answered = request["messages"][-1]["role"] == "assistant" and self.added
            total = float(
                self.value == self.data["goal"] and answered and request["stop"] == "agent_completed"
            )
            yield {"total": total, "rewards": {"right": total}, "metrics": {"added": self.added}}
        elif name == "validate":
            yield request["data"]["idx"] != 3

    def _add(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(arguments.get("by"), int):
            return {"text": "by is an integer", "status": "tool_error"}
        if arguments["by"] == 88:
            time.sleep(600)
        if arguments["by"] == 99:
            raise OSError("the counter jams")
        self.value, self.added = self.value + arguments["by"], self.added + 1
        return {"text": str(self.value), "status": "ok"}

    async def close(self) -> None:
        pass


def begin(spec: dict[str, Any]) -> Any:
    if spec["taskset"] != "counters":
        raise LookupError(f"no taskset {spec['taskset']}")
    return {"taskset": "counters", "validates": True}, StandIn


if __name__ == "__main__":
    main(sys.argv[1], begin)
