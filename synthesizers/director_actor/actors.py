"""Who plays the assistant: a script that follows its cues, or a chat with tools.

An actor sees its own instruction and the dialogue: no outline, no check, nobody else's instruction. A cue
names a tool, the arguments the user gave, and where in which earlier answer the others stand; the script
reads them there, so that an answer that is not what the director expected is the script's problem, too. The
instruction in words holds the gist and never the line (IBSEN). Not covered: when a line is taken back
(`stage`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from data import canonical
from data.messages import Role, ToolCall, ToolSpec, ToolStatus, Turn, assistant
from pipeline.chat.base import Chat
from pipeline.checks.calls import check_call
from synthesizers.director_actor.roles import ACTOR, ActorRequest
from synthesizers.director_actor.subgoals import Read, Step, call_key, read_value
from synthesizers.hints import repeats
from synthesizers.phrasing.requests import TurnCalls, phrase_closing
from synthesizers.phrasing.wording import mentions

RULE = "Value missing: ASK its name. No tool for it: REFUSE tool."
RULE_OF_STAGE = "Nothing found, or it fails: REFUSE and say why. Busy: try again."
MANNERS = (
    "You do what is asked and say briefly what came of it.",
    "You look twice before you change anything.",
    "You answer in full, friendly sentences.",
    "You use as few calls and words as possible.",
)
"""What tells several actors of one outline apart."""
_LINE = 12
"""A shorter line cannot be told from its keywords (ours)."""
_WORDS = 3
"""That many quoted words are a dictated line (ours)."""
_QUOTED = re.compile(r"[\"\u201c]([^\"\u201c\u201d]{8,})[\"\u201d]")


class Cue(NamedTuple):
    """A call to make. `reads`: parameter -> (tool, arguments) of the answer that holds it, and the place."""

    tool: str
    given: Mapping[str, Any]
    reads: Mapping[str, tuple[str, Mapping[str, Any], Read]] = {}


class Instruction(NamedTuple):
    """What the director tells the actor of one sub-goal. `refuse`: what to refuse over, "" for nothing."""

    text: str
    cues: tuple[Cue, ...] = ()
    says: tuple[str, ...] = ()
    refuse: str = ""


class Scene(NamedTuple):
    """What an actor sees. `calls` are its own of this user turn, as far as they were answered."""

    dialogue: Sequence[Turn]
    tools: Sequence[ToolSpec]
    instruction: Instruction
    calls: TurnCalls


class Actor(Protocol):
    """Speaks the assistant's next line: calls, or the words that end the turn."""

    name: str

    async def line(self, scene: Scene) -> Turn:
        """The line. A call that cannot be made is the stage's to cut."""
        ...


class ScriptedActor:
    """Follows its cues and closes with what it found. `index` numbers the actors of one outline."""

    name = "script"

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    async def line(self, scene: Scene) -> Turn:
        """The first cue that has no answer yet, or the closing words."""
        if scene.instruction.refuse:
            return assistant(f"REFUSE: {scene.instruction.refuse}")
        answered = _answered(scene.dialogue)
        wanted: list[str] = []
        for cue in scene.instruction.cues:
            try:
                arguments = _filled(cue, scene.dialogue)
            except LookupError:
                return assistant("REFUSE: that is not there")
            wanted.append(call_key(cue.tool, arguments))
            if answered.count(wanted[-1]) < wanted.count(wanted[-1]):
                call = ToolCall(call_id="line", name=cue.tool, arguments=canonical.dumps(arguments))
                return assistant("", call)
        return assistant(closing(scene.calls, says=scene.instruction.says, rng=self.rng))


class ChatActor:
    """A chat with tools, the policy's own engine among them. `manner` is one of MANNERS."""

    def __init__(self, chat: Chat, *, manner: str = MANNERS[0]) -> None:
        self.chat, self.manner = chat, manner
        self.name = chat.name

    async def line(self, scene: Scene) -> Turn:
        """The chat's next message; calls are checked against the tools shown."""
        rule = f"{RULE} {RULE_OF_STAGE}"
        request = ActorRequest(instruction=scene.instruction.text, manner=self.manner, rule=rule)
        told = ACTOR.turns(request)[0]
        spoken = [turn for turn in scene.dialogue if turn.role is not Role.SYSTEM]
        said = await self.chat.reply([told, *spoken], tools=scene.tools)
        calls = tuple(check_call(call, scene.tools) for call in said.tool_calls)
        return said.model_copy(update={"tool_calls": calls})


def instruction_of(
    steps: Sequence[Step], earlier: Mapping[str, Step], *, says: Sequence[str] = ()
) -> Instruction:
    """The instruction for steps, in words and cues. `earlier`: steps of the dialogue by uid."""
    known = {**earlier, **{step.uid: step for step in steps}}
    cues, words = [], []
    for step in steps:
        reads = {
            name: (known[read.step].tool, known[read.step].arguments, read)
            for name, read in step.reads.items()
            if read.step in known
        }
        given = {name: value for name, value in step.arguments.items() if name not in reads}
        cues.append(Cue(step.tool, given, reads))
        from_ = [f"{name} from the answer to {tool}" for name, (tool, _, _) in reads.items()]
        words.append(f"{step.tool}" + (f" ({', '.join(from_)})" if from_ else ""))
    text = f"Use {', then '.join(words)}; then say what came of it." if words else "Answer the user."
    return Instruction(text, tuple(cues), tuple(says))


def leak_in(instruction: str, *, line: str, values: Sequence[Any]) -> str:
    """What an instruction gives away: the line, or a value that only a tool can tell; "" for nothing."""
    dictated = [quoted for quoted in _QUOTED.findall(instruction) if len(quoted.split()) >= _WORDS]
    if dictated or (len(line) >= _LINE and line.strip().casefold() in instruction.casefold()):
        return "the line"
    told = [value for value in values if len(str(value)) > 1 and mentions(instruction, value)]
    return f"the value {told[0]!r}" if told else ""


def tells(turn: Turn, instructions: Sequence[str]) -> bool:
    """Whether a turn repeats an instruction long enough to be told from its keywords."""
    return repeats(turn, [text for text in instructions if len(text) >= _LINE])


def closing(calls: TurnCalls, *, says: Sequence[str], rng: random.Random) -> str:
    """The words that end a turn, with every value they must hold."""
    places = [place for place, call in enumerate(calls.calls) if call.executed.ok]
    done = [calls.calls[place] for place in places]
    untold = [index for index, place in enumerate(places) if place in calls.unmentioned]
    text = phrase_closing(calls._replace(calls=done, unmentioned=untold), rng=rng) if done else "Done."
    if all(mentions(text, value) for value in says):
        return text
    return rng.choice(("The answer: {}.", "I found: {}.", "Here it is: {}.")).format(", ".join(says))


def _answered(dialogue: Sequence[Turn]) -> list[str]:
    """Keys of the calls that were answered since the user spoke last."""
    last = max(index for index, turn in enumerate(dialogue) if turn.role is Role.USER)
    good = {
        turn.result.call_id
        for turn in dialogue[last:]
        if turn.result is not None and turn.result.status is ToolStatus.OK
    }
    calls = [call for turn in dialogue[last:] for call in turn.tool_calls if call.call_id in good]
    return [call_key(call.name, call.parsed_arguments()) for call in calls]


def _filled(cue: Cue, dialogue: Sequence[Turn]) -> dict[str, Any]:
    """The cue's arguments, read from the dialogue. LookupError where an answer does not hold them."""
    arguments = dict(cue.given)
    for name, (tool, source, read) in cue.reads.items():
        text = _answer_to(call_key(tool, source), dialogue)
        arguments[name] = read_value(text, read)
    return arguments


def _answer_to(key: str, dialogue: Sequence[Turn]) -> str:
    made = {
        call.call_id: call_key(call.name, call.parsed_arguments())
        for turn in dialogue
        for call in turn.tool_calls
        if call.ok
    }
    for turn in reversed(dialogue):
        if (
            turn.result is not None
            and turn.result.status is ToolStatus.OK
            and made.get(turn.result.call_id) == key
        ):
            return turn.result.text
    raise LookupError("that call was not answered")
