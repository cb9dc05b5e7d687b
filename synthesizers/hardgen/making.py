"""The tool maker: a chat names the macro tool and says what it does; the parameters stay what they are.

A name that a tool has, and a description that names a tool of the world or mentions an inner call, are asked
for once more with the problem, then given up. Not covered: the template (`macro.fold`).
"""

from __future__ import annotations

from pipeline.chat.base import Chat
from synthesizers.grounding.calls import GroundedCall, Provenance
from synthesizers.grounding.reading import words
from synthesizers.hardgen.api_graph import ApiGraph
from synthesizers.hardgen.chains import Chain, Unmade
from synthesizers.hardgen.macro import Macro
from synthesizers.hardgen.requests import inner_problem
from synthesizers.hardgen.roles import TOOL_MAKER, ChainCall, ToolReply, ToolRequest
from synthesizers.phrasing.wording import leaked_tool_name, secret_names

ASKS = 2


async def named(macro: Macro, chain: Chain, graph: ApiGraph, chat: Chat | None) -> Macro:
    """The macro tool as the chat names it; without a chat, or for a question, as it is.

    Raises Unmade where no answer is usable, and StructuredReplyError of the chat.
    """
    if chat is None or macro.question:
        return macro
    request = ToolRequest(
        calls=tuple(_shown(call, graph) for call in chain.calls),
        parameters=tuple(one.text if one.reference else " ".join(words(one.name)) for one in macro.arguments),
        do_not_write=tuple(secret_names(graph.tools)),
    )
    problem = ""
    for _ in range(ASKS):
        reply = await TOOL_MAKER.ask(chat, request)
        problem = reply_problem(reply, chain, graph)
        if not problem:
            return macro._replace(name=reply.name, description=reply.description)
        request = request.model_copy(update={"problem": problem})
    raise Unmade("macro_rejected", problem)


def reply_problem(reply: ToolReply, chain: Chain, graph: ApiGraph) -> str:
    """What is wrong with a named tool; "" where nothing is."""
    if reply.name in graph.specs:
        return f"there is a tool {reply.name!r} already"
    name = leaked_tool_name(reply.description, secret_names(graph.tools))
    return f"it names {name!r}" if name else inner_problem(reply.description, chain, graph)


def _shown(call: GroundedCall, graph: ApiGraph) -> ChainCall:
    spec = graph.specs[call.executed.call.name]
    return ChainCall(
        does=spec.description or "(undocumented)",
        given=tuple(" ".join(words(source.name)) for source in call.of(Provenance.USER)),
        found=tuple(" ".join(words(source.name)) for source in call.of(Provenance.OUTPUT)),
    )
