"""tau2 dialogues with a real model as the user, and the benchmark's reference actions as the agent.

    python -m benchmarks.tau2_dialogue --url http://127.0.0.1:8000 --model NAME [--domain retail] [--tasks 3]

The agent needs no model: it greets, does what the reference does, and asks whether there is more. So what is
seen is the user: whether it says its request, keeps to its scenario, and ends the dialogue. Prints each
dialogue without policy and results, then the reward or what broke. It says nothing about how well an agent
does. The server speaks the OpenAI protocol; a key is read from the variable that --api-key-env names.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence

from data.messages import Role, Turn, assistant
from pipeline.chat.base import Chat
from pipeline.chat.load import load_chat
from pipeline.environments.base import GoldScript
from pipeline.environments.play import play
from pipeline.environments.tau2 import Tau2Environment
from pipeline.environments.tau2.package import DOMAINS
from pipeline.errors import UserSimulatorError


class Clerk:
    """Gold between a greeting and at most three questions whether there is more."""

    def __init__(self, gold: GoldScript) -> None:
        self._gold, self._greeted, self._left = gold, False, 3

    def next_turn(self, turns: Sequence[Turn]) -> Turn | None:
        """The next assistant turn; None when it has asked often enough."""
        if not self._greeted:
            self._greeted = True
            return assistant("Hello! What can I do for you?")
        said = self._gold.next_turn(turns)
        if said is None and self._left:
            self._left -= 1
            return assistant("Is there anything else I can do for you?")
        return said


def shown(turn: Turn) -> str:
    """A turn in a line: who, what was called, what was said."""
    calls = ", ".join(f"{call.name}({call.arguments})" for call in turn.tool_calls)
    words = " ".join(turn.text.split())
    return f"{turn.role:9s} {' '.join(filter(None, (calls, words)))[:300]}"


async def dialogues(user: Chat | Mapping[str, object], *, domain: str, tasks: int) -> AsyncIterator[str]:
    """The lines to print, dialogue by dialogue."""
    environment = Tau2Environment(domain=domain, user=user)
    for task in itertools.islice(environment.tasks("heldout"), tasks):
        yield f"--- {domain} task {task.state_value()['name']}"
        try:
            played = await play(environment, task, Clerk(environment.gold(task)))
        except UserSimulatorError as error:
            yield f"user failed: {error}"
            continue
        for turn in played.turns[len(task.prompt) - 1 :]:
            if turn.role in (Role.USER, Role.ASSISTANT):
                yield shown(turn)
        assert played.reward is not None
        parts = ", ".join(f"{part.name} {part.value:g}" for part in played.reward.components)
        yield f"reward {played.reward.total:g} ({parts})"


async def main(arguments: argparse.Namespace) -> None:
    """Every line as it comes."""
    settings = {"url": arguments.url, "model": arguments.model, "params": {"temperature": 0.0}}
    if arguments.api_key_env:
        settings["api_key_env"] = arguments.api_key_env
    user = load_chat(settings, where="user")
    async for line in dialogues(user, domain=arguments.domain, tasks=arguments.tasks):
        print(line, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--domain", default="retail", choices=DOMAINS)
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--api-key-env", default="")
    asyncio.run(main(parser.parse_args()))
