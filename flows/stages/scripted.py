"""The scripted policy: plays an environment's gold with a seeded share of mistakes, without any model.

It tries a recipe on a laptop and drives tests: what it writes is a function of the prompt's tokens, the
seed and `mistakes`, so a killed run ends like an undisturbed one. Each turn goes wrong with probability
`mistakes`: a wrong argument, a malformed call, or giving up. The dialogue is read back from the tokens and
its calls are made again in a session of its own. Not covered: renderers other than ChatML, live tools, and
two tasks in the same words (the first is played).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from data.messages import Role, ToolCall, ToolResult, ToolSpec, ToolStatus, Turn, assistant, text_parts, user
from data.messages import tool as tool_turn
from data.tasks import Task
from pipeline.engines.base import Completion, Sampling
from pipeline.engines.scripted import ScriptedEngine, TurnPolicy, continue_turns
from pipeline.environments.base import Environment, Session
from pipeline.errors import ConfigError, EngineError
from pipeline.renderers.base import Renderer
from pipeline.renderers.chatml import END, START, ChatMLRenderer, call_text
from synthesizers.slips import other_arguments

VERSION = "1"
"""Raised when the policy plays differently: its rollouts are then another policy's."""
GIVE_UP = "I cannot do that."
_ASSISTANT, _USER = "assistant\n", "user\n"
_RESULT, _RESULT_END = "user\n<tool_response>\n", "\n</tool_response>"


def scripted_label(mistakes: float) -> str:
    """What results call the policy."""
    return f"scripted gold, {mistakes:.0%} mistakes (no model)"


class ScriptedPolicy:
    """An Engine; see the module docstring."""

    def __init__(self, environment: Environment, renderer: Renderer, *, mistakes: float) -> None:
        """ConfigError where the renderer is not ours for ChatML."""
        if not isinstance(renderer, ChatMLRenderer):
            raise ConfigError(
                f"policy.engine: scripted reads ChatML only, the model's format is {renderer.name}; "
                f"name a ChatML model, or engine: vllm"
            )
        self.name, self.weights_version = scripted_label(mistakes), f"scripted-{VERSION}-{mistakes:g}"
        self._environment, self._renderer, self._mistakes = environment, renderer, mistakes
        self._known: dict[str, Task] = {}
        self._unseen = _all_tasks(environment)

    def learn(self, tasks: Sequence[Task]) -> None:
        """Play the gold of `tasks`, too; they go before others that open in the same words."""
        self._known |= {_opening(task.prompt): task for task in reversed(tasks) if task.synthesizer}

    async def generate(
        self, token_ids: list[int], sampling: Sampling, *, n: int = 1, affinity: str = ""
    ) -> list[Completion]:
        """See `Engine.generate`. EngineError where no task of the environment opens like the prompt."""
        read = read_dialogue(self._renderer, token_ids)
        task = self._task(read)
        turns, tools = await self._played(task, read)

        def say(prompt: Sequence[int], rng: random.Random) -> Turn:
            turn = self._gold_turn(task, turns)
            if rng.random() >= self._mistakes:
                return turn
            return rng.choice((_wrong_argument, _malformed, _give_up))(turn, turns, tools, rng)

        return await self._engine(say).generate(token_ids, sampling, n=n, affinity=affinity)

    async def score(self, token_ids: list[int]) -> list[float]:
        """See `Engine.score`; agrees with the log-probs of `generate`."""
        return await self._engine(lambda prompt, rng: assistant(GIVE_UP)).score(token_ids)

    async def close(self) -> None:
        """Nothing to release."""

    def _engine(self, say: TurnPolicy) -> ScriptedEngine:
        writer = continue_turns(say, self._renderer)
        return ScriptedEngine(writer, name=self.name, weights_version=self.weights_version)

    def _task(self, turns: Sequence[Turn]) -> Task:
        opening = _opening(turns)
        while opening not in self._known:
            task = next(self._unseen, None)
            if task is None:
                raise EngineError(
                    f"scripted policy: no task of {self._environment.name} opens with {opening!r:.200}"
                )
            self._known.setdefault(_opening(task.prompt), task)
        return self._known[opening]

    async def _played(self, task: Task, read: Sequence[Turn]) -> tuple[list[Turn], tuple[ToolSpec, ...]]:
        """The dialogue with the status of every result, and the tools shown at its end."""
        session = await self._environment.open(task)
        try:
            turns = list(task.prompt)
            results: list[ToolResult] = []
            for turn in read[sum(turn.role is not Role.SYSTEM for turn in task.prompt) :]:
                if turn.role is Role.TOOL:
                    turn = _with_status(turn, results.pop(0) if results else None)
                elif turn.role is Role.USER:
                    await session.next_user(turns)
                turns.append(turn)
                if turn.role is Role.ASSISTANT:
                    results = [await _result(session, call) for call in turn.tool_calls]
            return turns, session.tools
        finally:
            await session.close()

    def _gold_turn(self, task: Task, turns: Sequence[Turn]) -> Turn:
        """What gold says now: its script is played again over what was said, malformed turns left out."""
        script = self._environment.gold(task)
        try:
            for index, turn in enumerate(turns):
                if turn.role is Role.ASSISTANT and not _is_malformed(turn):
                    script.next_turn(turns[:index])
            return script.next_turn(turns) or assistant(GIVE_UP)
        except (LookupError, ValueError, RuntimeError):
            # An earlier mistake left gold without what it needs; a `next` of it then ends as RuntimeError.
            return assistant(GIVE_UP)


def read_dialogue(renderer: ChatMLRenderer, prompt: Sequence[int]) -> list[Turn]:
    """The turns in a prompt that ends with an open assistant turn; no system turn, every result as `ok`."""
    turns: list[Turn] = []
    for piece in renderer.decode(prompt).split(START)[1:-1]:
        text = piece.rpartition(END)[0]
        if text.startswith(_ASSISTANT):
            written = [*renderer.encode(text.removeprefix(_ASSISTANT)), *renderer.stop_token_ids]
            turns.append(renderer.parse(written, call_prefix=f"read_{len(turns)}"))
        elif text.startswith(_RESULT):
            parts = text_parts(text.removeprefix(_RESULT).removesuffix(_RESULT_END))
            turns.append(tool_turn(ToolResult(call_id="read", name="", parts=parts)))
        elif text.startswith(_USER):
            turns.append(user(text.removeprefix(_USER)))
    return turns


async def _result(session: Session, call: ToolCall) -> ToolResult:
    """What the call answers when it is made again; a malformed one answers a tool error."""
    if call.ok:
        return await session.call(call.name, call.parsed_arguments(), call.call_id)
    return ToolResult(call_id=call.call_id, name=call.name, status=ToolStatus.TOOL_ERROR)


def _with_status(turn: Turn, result: ToolResult | None) -> Turn:
    """The read turn with everything but the text from the call made again."""
    if result is None:
        return turn
    return turn.model_copy(update={"result": result.model_copy(update={"parts": turn.content})})


def _is_malformed(turn: Turn) -> bool:
    return any(not call.ok for call in turn.tool_calls)


def _wrong_argument(turn: Turn, turns: Sequence[Turn], tools: Sequence[ToolSpec], rng: random.Random) -> Turn:
    """Values of the first call replaced by others its schema allows; giving up where there are none."""
    specs = {tool.name: tool for tool in tools}
    for call in turn.tool_calls[:1]:
        if call.name in specs:
            other = other_arguments(call, specs[call.name], turns, share=1.0, rng=rng)
            if other != call.arguments:
                return assistant("", call.model_copy(update={"arguments": other}))
    return assistant(GIVE_UP)


def _malformed(turn: Turn, turns: Sequence[Turn], tools: Sequence[ToolSpec], rng: random.Random) -> Turn:
    """The first call with a closing brace missing; giving up where there is no call."""
    if not turn.tool_calls:
        return assistant(GIVE_UP)
    return assistant(call_text(turn.tool_calls[0]).replace("}\n", "\n"))


def _give_up(turn: Turn, turns: Sequence[Turn], tools: Sequence[ToolSpec], rng: random.Random) -> Turn:
    return assistant(GIVE_UP)


def _all_tasks(environment: Environment) -> Iterator[Task]:
    """The tasks of all splits, splits taking turns, so that no long split hides a short one."""
    for row in zip_longest(*(environment.tasks(split) for split in environment.splits)):
        yield from (task for task in row if task is not None)


def _opening(turns: Sequence[Turn]) -> str:
    return next((turn.text for turn in turns if turn.role is Role.USER), "")
