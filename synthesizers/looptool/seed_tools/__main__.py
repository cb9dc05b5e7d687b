"""Invents tools and writes each topic as a simulated environment: the files of its options `tools`, `tasks`.

    python -m synthesizers.looptool.seed_tools OUT --chat '{"url": "http://127.0.0.1:8000", "model": "NAME"}'

Replies are kept in OUT/chats, so that a command that was stopped pays for none twice. Not covered: playing
the tools (`trajsmith env check simulated`).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from data import canonical
from data.errors import TrajsmithError
from pipeline.errors import ConfigError
from synthesizers.looptool.seed_tools.making import SeedWorld, seed_tools, write_world
from synthesizers.looptool.seed_tools.roles import TOOL_WRITER
from synthesizers.looptool.seed_tools.trees import CONSTRAINTS, CONTEXTS
from synthesizers.role_chats import CHATS, RoleChats, check_chats


def main(argv: list[str] | None = None) -> int:
    """The exit code: 0, 1 where a world was left without a tool, or 2 where it cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m synthesizers.looptool.seed_tools")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--chat", help="settings of a chat as JSON, or module:function")
    parser.add_argument("--worlds", type=int, default=1, help="topics")
    parser.add_argument("--tools", type=int, default=6, help="tools of each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--contexts", type=Path, default=CONTEXTS, help="another context tree")
    parser.add_argument("--constraints", type=Path, default=CONSTRAINTS, help="another constraint tree")
    options = parser.parse_args(argv)
    try:
        worlds = asyncio.run(_made(options))
        for world in worlds:
            print(_told(world, write_world(world, options.out)))
    except (TrajsmithError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if all(world.accepted for world in worlds) else 1


async def _made(options: argparse.Namespace) -> list[SeedWorld]:
    chat = _setting(options.chat)
    check_chats(chat, {}, known=(TOOL_WRITER.name,), method="seed_tools")
    if chat is not None:
        options.out.mkdir(parents=True, exist_ok=True)  # an error comes before the first paid reply
    roles = RoleChats(default=chat, directory=options.out / CHATS)
    try:
        return await seed_tools(
            roles.of(TOOL_WRITER.name),
            worlds=options.worlds,
            tools=options.tools,
            seed=options.seed,
            contexts=options.contexts,
            constraints=options.constraints,
        )
    finally:
        await roles.close()


def _setting(text: str | None) -> Any:
    if not text or not text.startswith("{"):
        return text or None
    try:
        return canonical.loads(text)
    except ValueError as error:
        raise ConfigError(f"--chat is not JSON: {error}") from error


def _told(world: SeedWorld, folder: Path) -> str:
    total = len(world.accepted) + len(world.rejected)
    why = Counter(row.reason.value for row in world.rejected)
    reasons = "".join(f", {reason} {count}" for reason, count in sorted(why.items()))
    return f"{' > '.join(world.context)}: {len(world.accepted)} of {total} tools{reasons} -> {folder}"


if __name__ == "__main__":
    sys.exit(main())
