"""The customer: a Chat told the benchmark's guidelines and the task's scenario, with the user's own tools.

It sees what the agent says, never the agent's calls; its own calls are executed on the user's side of the
world and are not shown to the agent, as in the benchmark. It ends the dialogue with one of the benchmark's
three marks. Whatever the Chat fails at is a UserSimulatorError, never the agent's fault. Not covered: whether
it plays its part well.
"""

from __future__ import annotations

from collections.abc import Sequence

from data.messages import (
    Role,
    ToolCall,
    ToolResult,
    ToolSpec,
    ToolStatus,
    Turn,
    assistant,
    system,
    text_parts,
    user,
)
from data.messages import tool as tool_turn
from pipeline.chat.base import Chat
from pipeline.checks.calls import check_call
from pipeline.environments.tau2.package import user_guidelines
from pipeline.environments.tau2.verify import PlayedCall
from pipeline.environments.tau2.worlds import World
from pipeline.errors import BudgetExceededError, TrajsmithError, UserSimulatorError

MARKS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
OPENING = "Hello, I need some help."
_MOST_CALLS = 12
"""Calls of the user's before it has to say something."""


class Customer:
    """One episode's user. `heard` is its dialogue from its own side: it is the assistant there."""

    def __init__(self, chat: Chat, scenario: str, tools: Sequence[ToolSpec]) -> None:
        self.chat, self.tools = chat, tuple(tools)
        told = f"{user_guidelines(with_tools=bool(tools))}\n\n<scenario>\n{scenario}\n</scenario>"
        self.heard: list[Turn] = [system(told), user("Hi! How can I help you today?"), assistant(OPENING)]

    async def answer(self, said: str, world: World, calls: list[PlayedCall]) -> str | None:
        """The next message, or None where the user ends the dialogue. Its calls are added to `calls`."""
        self.heard.append(user(said))
        for _ in range(_MOST_CALLS):
            reply = await self._reply()
            self.heard.append(assistant(reply.text, *reply.tool_calls))
            if not reply.tool_calls:
                return self._spoken(reply.text)
            self.heard += [tool_turn(self._execute(call, world, calls)) for call in reply.tool_calls]
        raise UserSimulatorError(f"the simulated user called {_MOST_CALLS} tools in a row and said nothing")

    async def _reply(self) -> Turn:
        try:
            return await self.chat.reply(self.heard, tools=self.tools)
        except BudgetExceededError:
            raise
        except TrajsmithError as error:
            raise UserSimulatorError(f"chat {self.chat.name} as the user: {error}") from error

    def _spoken(self, text: str) -> str | None:
        if not text.strip():
            raise UserSimulatorError(f"chat {self.chat.name} as the user said nothing")
        return None if any(mark in text for mark in MARKS) else text

    def _execute(self, call: ToolCall, world: World, calls: list[PlayedCall]) -> ToolResult:
        checked = check_call(call, self.tools)
        if not checked.ok:
            parts = text_parts(f"{checked.status}: {checked.error}")
            return ToolResult(call_id=call.call_id, name=call.name, parts=parts, status=ToolStatus.TOOL_ERROR)
        arguments = call.parsed_arguments()
        answer = world.call(call.name, arguments, side="user")
        if answer.executed:
            calls.append(PlayedCall("user", call.name, call.parsed_arguments(), answer.text))
        status = ToolStatus.TOOL_ERROR if answer.failed else ToolStatus.OK
        return ToolResult(call_id=call.call_id, name=call.name, parts=text_parts(answer.text), status=status)


def last_said(turns: Sequence[Turn]) -> str:
    """The agent's latest text."""
    return next((turn.text for turn in reversed(turns) if turn.role is Role.ASSISTANT), "")
