"""The hard request: written against the macro tool only, checked to mention nothing of the chain (step 5).

By template the macro tool's description becomes an imperative with its arguments; a chat is shown the macro
tool and its arguments and nothing else. Whoever wrote it, a request must say every value that only the user
knows, and must not hold: the name of any tool; a value that an inner call finds; what an inner call does
(the verb of a change; the verb of a look-up with its object, or any such verb where the target looks up
nothing). Not covered: whether another chain would serve it as well (`uniqueness`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

from data.messages import ToolSpec
from pipeline.chat.base import Chat
from synthesizers.grounding.calls import GroundedCall, Provenance
from synthesizers.grounding.reading import parts_of, singular, words
from synthesizers.hardgen.api_graph import ApiGraph
from synthesizers.hardgen.chains import Chain, Unmade
from synthesizers.hardgen.macro import Macro, MacroArgument, inner_names
from synthesizers.hardgen.roles import QUERY_WRITER, MacroValue, QueryRequest
from synthesizers.phrasing.clauses import Slot, clause_of, unnamed
from synthesizers.phrasing.closings import TurnCalls
from synthesizers.phrasing.headings import imperative
from synthesizers.phrasing.requests import FRAMES, request_problem
from synthesizers.phrasing.saying import Told, told_of, with_question, without_question
from synthesizers.phrasing.vocabulary import LOOK_UPS, PREPOSITIONS
from synthesizers.phrasing.wording import leaked_tool_name, mentions, name_in, without_values

DRAWS = 12
ASKS = 2
"""Times that a chat is asked for a request; the second time with what was wrong."""
_LOOKING = frozenset({*LOOK_UPS, "find", "look", "check", "search", "read", "query", "open"})
"""Verbs that ask for a look-up."""
_IDLE = frozenset({"a", "an", "the", "of", "to", "for", "my", "me", "and", "or", "in", "on", "with", "by"})


class Written(NamedTuple):
    """A request and who wrote it: "template", "task" or a chat's name."""

    text: str
    by: str


async def write_request(
    macro: Macro, chain: Chain, graph: ApiGraph, *, rng: random.Random, chat: Chat | None = None
) -> Written:
    """The request. Raises Unmade where none passes, and StructuredReplyError of the chat."""
    if macro.question:
        problem = inner_problem(macro.question, chain, graph)
        if problem:
            raise Unmade("mentions_inner_call", problem)
        return Written(macro.question, "task")
    if chat is not None:
        return await _by_chat(chat, macro, chain, graph)
    told, problem = told_of([chain.target.executed]), ""
    for _ in range(DRAWS):
        text = _by_template(macro, told, graph, rng=rng)
        problem = hard_problem(text, macro, chain, graph)
        if not problem:
            return Written(text, "template")
    raise Unmade("mentions_inner_call" if "inner" in problem else "unphrased", problem)


def hard_problem(text: str, macro: Macro, chain: Chain, graph: ApiGraph) -> str:
    """What is wrong with a hard request, whoever wrote it; "" where nothing is."""
    asked = GroundedCall(chain.target.executed, macro.said)
    turn = TurnCalls((asked,), (macro.spec, *graph.tools), chain.history)
    problem = request_problem(text, turn)
    unsaid = [one.text for one in macro.arguments if one.reference and not mentions(text, one.text)]
    if not problem and unsaid:
        problem = f"it does not say {unsaid[0]!r}"
    asked_for = without_question(text, turn.told)
    return problem or inner_problem(asked_for, chain, graph, said=[one.value for one in macro.said])


def inner_problem(text: str, chain: Chain, graph: ApiGraph, *, said: Sequence[object] = ()) -> str:
    """What of the chain's inner calls a request mentions, "" where nothing; `said` is for the user to say."""
    target = graph.specs[chain.names[-1]]
    rest = without_values(text, said)
    own = set(_flat(target.description))
    for call in chain.calls[:-1]:
        name = call.executed.call.name
        spec = graph.specs[name]
        if leaked_tool_name(rest, [name]) and not name_in(target.description, name):
            return f"it names the inner tool {name!r}"
        verb, *objects = _flat(imperative(spec.description) or spec.description) or [""]
        given = set(_flat(rest))
        told = set() if call.executed.changes else set(objects[:1])
        if verb in given and verb not in own and told <= given:
            return f"it asks for what the inner tool {name!r} does"
    looked = {word for word in _flat(rest) if word in _LOOKING}
    if inner_names(chain) and looked and not own & _LOOKING:
        return f"it asks for an inner look-up: {sorted(looked)[0]!r}"
    return _found_value(text, chain, said)


def _found_value(text: str, chain: Chain, said: Sequence[object]) -> str:
    """A value that an inner call finds and the text says, though it is not the user's to say."""
    given = " ".join(str(value) for value in said)
    for call in chain.calls:
        for source in call.of(Provenance.OUTPUT):
            if mentions(text, source.value) and not mentions(given, source.value):
                return f"it says {source.value!r}, which an inner call is to find"
    return ""


def _by_template(macro: Macro, told: Told, graph: ApiGraph, *, rng: random.Random) -> str:
    names = [macro.name, *(tool.name for tool in graph.tools)]
    apart = [one for one in macro.arguments if _is_said_apart(one)]
    slots = [
        Slot(_plain_name(one.name), one.value, one.text, reference=one.reference)
        for one in macro.arguments
        if one not in apart
    ]
    clause = clause_of(_plainly(macro.spec), slots, names=names, rng=rng).filled()
    text = rng.choice(FRAMES).format(clause)
    facts = " and ".join(f"the {' '.join(parts_of(_plain_name(one.name)))} is {one.text}" for one in apart)
    said = [text, unnamed(facts, names, rng=rng) + "."] if facts else [text]
    return with_question(" ".join(part[:1].upper() + part[1:] for part in said), told)


def _is_said_apart(one: MacroArgument) -> bool:
    """Whether a value that only an inner call takes fits no sentence about the target: a password."""
    found = [PREPOSITIONS[part] for part in reversed(parts_of(one.name)) if part in PREPOSITIONS]
    return one.inner and (not found or found[0] in ("called", "saying"))


def _plainly(spec: ToolSpec) -> ToolSpec:
    """The macro tool with plain parameter names, as the slots have them."""
    return spec.model_copy(update={"parameters": re.sub(r"_\d+(?=\":)", "", spec.parameters)})


def _plain_name(name: str) -> str:
    return re.sub(r"_\d+$", "", name)


async def _by_chat(chat: Chat, macro: Macro, chain: Chain, graph: ApiGraph) -> Written:
    request = QueryRequest(
        name=macro.name,
        description=macro.description,
        say=tuple(
            MacroValue(name=" ".join(words(one.name)), value=one.value)
            for one in macro.arguments
            if not one.reference
        ),
        point_at=tuple(one.text for one in macro.arguments if one.reference),
    )
    problem = ""
    for _ in range(ASKS):
        reply = await QUERY_WRITER.ask(chat, request)
        text = with_question(reply.request, told_of([chain.target.executed]))
        problem = hard_problem(text, macro, chain, graph)
        if not problem:
            return Written(text, chat.name)
        told = "it speaks of how it is done" if "inner" in problem else problem
        request = request.model_copy(update={"problem": told, "last": text})
    raise Unmade("mentions_inner_call" if "inner" in problem else "request_rejected", problem)


def _flat(text: str) -> list[str]:
    """Words in order, singular and lower case, without little ones."""
    return [singular(word) for word in re.findall(r"[a-z]+", text.lower()) if word not in _IDLE]
