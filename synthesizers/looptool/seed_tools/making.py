"""Seed tools by a dual tree (LoopTool, arXiv 2511.09148, step 1): a topic and demands, drawn apart.

A *seed world* is one path of the context tree; each of its tools is asked for by one prompt, with a path of
the constraint tree that the world has not had, and is told which tools there are, so that they fit together
(the paper draws the topic anew for every tool: `tools=1`). What breaks a rule (`rules`) is written once more
with the reason, then rejected with it. A world is written as the tool list and the task file that
`simulated` takes: each tool's example is a task, its call is gold. Which paths are drawn is a function of the
seed; more worlds or tools change nothing before. Not covered: playing the tools (`simulated` does), and
dialogues of several turns (the planners make them in that environment).
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from data import canonical
from data.files import write_atomically
from pipeline.chat.base import Chat
from pipeline.errors import ConfigError, StructuredReplyError
from synthesizers.looptool.seed_tools.demands import DEMANDS
from synthesizers.looptool.seed_tools.roles import SHAPES, TOOL_WRITER, ToolReply, ToolRequest
from synthesizers.looptool.seed_tools.rules import Problem, Reason, tool_problem
from synthesizers.looptool.seed_tools.trees import CONSTRAINTS, CONTEXTS, Leaf, draw_leaf, read_tree

TRIES = 2
"""Times a tool is written. Ours."""
SYSTEM = "Use the tools. End with DONE."
TOOLS, TASKS, REJECTED = "tools.json", "tasks.jsonl", "rejected.jsonl"
"""Files of a world's folder."""


class Rejected(NamedTuple):
    """A tool that was not accepted; `name` is "" where nothing could be read."""

    constraint: Leaf
    reason: Reason
    detail: str
    name: str = ""


class Accepted(NamedTuple):
    """A tool that keeps all rules."""

    constraint: Leaf
    tool: ToolReply


@dataclass(slots=True)
class SeedWorld:
    """The tools of one topic, in the order they were asked for."""

    context: Leaf
    by: str
    """The chat that wrote them."""
    accepted: list[Accepted] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return _folder(self.context)

    def tools(self) -> list[dict[str, Any]]:
        """The tool list, as `pipeline.environments.simulated.tools` reads it, with what each tool came of."""
        return [
            {
                **made.tool.model_dump(exclude={"example"}),
                "context": list(self.context),
                "constraint": list(made.constraint),
                "by": self.by,
            }
            for made in self.accepted
        ]

    def tasks(self) -> list[dict[str, Any]]:
        """The task file's rows: each tool's example, from an empty state."""
        return [
            {
                "system": SYSTEM,
                "prompt": made.tool.example.request,
                "gold": [{"name": made.tool.name, "arguments": made.tool.example.arguments}],
                "template": made.tool.name,
                "tags": list(made.constraint),
            }
            for made in self.accepted
        ]


async def seed_tools(
    chat: Chat | None,
    *,
    worlds: int = 1,
    tools: int = 6,
    seed: int = 0,
    contexts: Path = CONTEXTS,
    constraints: Path = CONSTRAINTS,
) -> list[SeedWorld]:
    """`worlds` topics with up to `tools` tools each. Worlds are written at the same time.

    Raises ConfigError without a chat, for wrong numbers, and for a file that is no tree.
    """
    if chat is None:
        raise ConfigError(
            "seed tools are invented by a chat, and played by one: name it (url, model). Without a chat "
            "astra_environments makes tools of its own that run"
        )
    if worlds < 1 or tools < 1:
        raise ConfigError(f"worlds and tools must be at least 1, got {worlds} and {tools}")
    topics, demands = read_tree(contexts), read_tree(constraints, words=tuple(DEMANDS))
    drawn: list[Leaf] = []
    for number in range(worlds):
        leaf = draw_leaf(topics, _rng(seed, "context", number), used=drawn)
        if leaf in drawn:
            raise ConfigError(f"{contexts} has {len(drawn)} topics, and {worlds} worlds are asked for")
        drawn.append(leaf)
    if len(set(map(_folder, drawn))) < worlds:
        told = "; ".join(" > ".join(leaf) for leaf in drawn)
        raise ConfigError(f"{contexts}: two of these topics would have the same folder: {told}; rename one")
    return list(
        await asyncio.gather(*(_world(chat, leaf, demands, tools=tools, seed=seed) for leaf in drawn))
    )


def write_world(world: SeedWorld, root: Path) -> Path:
    """The world in a folder of its own under `root`; without an accepted tool only what was rejected.

    The folder is replaced: what an earlier command made there came of other replies.
    """
    folder = root / world.folder
    folder.mkdir(parents=True, exist_ok=True)
    if world.accepted:
        write_atomically(folder / TOOLS, json.dumps(world.tools(), indent=1) + "\n")
        write_atomically(folder / TASKS, _lines(world.tasks()))
    else:
        for name in (TOOLS, TASKS):
            (folder / name).unlink(missing_ok=True)
    write_atomically(folder / REJECTED, _lines([row._asdict() for row in world.rejected]))
    return folder


async def _world(chat: Chat, context: Leaf, demands: Any, *, tools: int, seed: int) -> SeedWorld:
    world, used = SeedWorld(context, chat.name), list[Leaf]()
    for number in range(tools):
        constraint = draw_leaf(demands, _rng(seed, *context, number), used=used)
        used.append(constraint)
        made = await _written(chat, world, constraint)
        if isinstance(made, Accepted):
            world.accepted.append(made)
        else:
            world.rejected.append(made)
    return world


async def _written(chat: Chat, world: SeedWorld, constraint: Leaf) -> Accepted | Rejected:
    """One tool, or why there is none."""
    taken = [made.tool.name for made in world.accepted]
    request = ToolRequest(
        topic=world.context,
        demands=tuple(DEMANDS[word].told for word in constraint),
        tools=tuple(_line(made.tool) for made in world.accepted),
    )
    problem, name = Problem(Reason.INVALID_REPLY, ""), ""
    for _ in range(TRIES):
        try:
            tool = await TOOL_WRITER.ask(chat, request, narrow=SHAPES)
        except StructuredReplyError as error:
            return Rejected(constraint, Reason.INVALID_REPLY, str(error))
        found = tool_problem(tool, taken=taken, demands=constraint)
        if found is None:
            return Accepted(constraint, tool)
        problem, name = found, tool.name
        request = request.model_copy(update={"problem": found.detail})
    return Rejected(constraint, problem.reason, problem.detail, name)


def _line(tool: ToolReply) -> str:
    record: Mapping[str, Any] = tool.returns.get("items") or tool.returns
    given, answered = ", ".join(tool.parameters["properties"]), ", ".join(record["properties"])
    return f"{tool.name}({given}) -> {answered}: {tool.description}"


def _folder(context: Leaf) -> str:
    return re.sub(r"\W+", "_", "-".join(context).lower())


def _rng(seed: int, *of: object) -> random.Random:
    return random.Random(canonical.digest("looptool/seed_tools", seed, *of))


def _lines(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
