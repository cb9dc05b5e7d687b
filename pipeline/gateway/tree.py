"""The dialogues of one episode as a tree of sampled replies, and which reply a request continues.

A request continues the reply that its messages end in, where they are exactly what the harness was shown; its
tokens then extend the sampled ones. Where they are not, but repeat an earlier reply or open with a whole
earlier prompt, the harness has rewritten history: the request follows the reply it has most in common with,
in a new token stream. Anything else opens a conversation. Nothing is ever merged: two requests that continue
one reply, or ask the same anew, are two branches. Not covered: sampling (`episode`), records (`lines`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from data import canonical
from data.messages import Role, ToolCall, ToolSpec, Turn
from data.trajectories import Span, SpanKind
from pipeline.engines.base import Completion, Sampling
from pipeline.errors import ConfigError
from pipeline.gateway.asks import Ask, Reply, RequestError
from pipeline.renderers.base import Rendered, Renderer
from pipeline.renderers.wire import is_well_formed


@dataclass(eq=False, slots=True)
class Exchange:
    """One sampled reply and what was shown before it since its parent."""

    number: int
    """Order of the requests of the episode; the choices of one request share it."""
    choice: int
    parent: Exchange | None
    extends: bool
    """Whether its tokens continue the parent's stream."""
    asked: tuple[Turn, ...]
    turn: Turn
    reply: Reply
    tools: tuple[ToolSpec, ...]
    piece: Rendered
    """A whole prompt, or the tokens between the parent's reply and this one; spans count record turns."""
    completion: Completion
    sampling: Sampling
    dialogue: tuple[Turn, ...]
    """As the harness holds it, this reply included."""
    signatures: tuple[str, ...]
    recorded: tuple[str, ...]
    """Signatures of `asked` and the reply."""
    num_turns: int
    """Turns of the record up to and including the reply."""
    line: str
    mark: str
    """Short digest of the request: what its reply and call ids are made of."""
    children: list[Exchange] = field(default_factory=list)

    def path(self) -> list[Exchange]:
        """From the conversation's first reply to this one."""
        path, one = [self], self
        while one.parent is not None:
            one = one.parent
            path.append(one)
        return path[::-1]

    def stream(self) -> list[int]:
        """The unbroken tokens that end in this reply."""
        pieces: list[Exchange] = [self]
        while pieces[-1].extends and pieces[-1].parent is not None:
            pieces.append(pieces[-1].parent)
        return [
            token for one in reversed(pieces) for token in (*one.piece.token_ids, *one.completion.token_ids)
        ]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request goes: its prompt, and the reply it follows."""

    parent: Exchange | None
    extends: bool
    asked: tuple[Turn, ...]
    """Turns that the record does not have yet."""
    recorded: tuple[str, ...]
    dialogue: tuple[Turn, ...]
    piece: Rendered
    prompt: list[int]
    """What the engine continues."""
    num_new: int
    """Tokens that the stream before did not hold."""
    tools_changed: bool

    @property
    def num_turns(self) -> int:
        """Turns of the record before the reply."""
        return (self.parent.num_turns if self.parent else 0) + len(self.asked)


class Tree:
    """All replies of an episode."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self.exchanges: list[Exchange] = []
        self._ends: dict[str, list[Exchange]] = {}
        self._openings: dict[str, Exchange] = {}

    def place(self, ask: Ask) -> Place:
        """Where `ask` goes. Raises RequestError where nothing is left to reply to."""
        if not ask.turns or ask.turns[-1].role is Role.ASSISTANT:
            raise RequestError(
                "the last message must be a user, tool or system message; continuing an assistant message "
                "that the model did not write is not supported",
                param="messages",
            )
        shown = self._shown_before(ask)
        if shown is not None:
            dialogue = _aligned(ask.turns, shown.dialogue)
            if shown.tools == ask.tools and (place := self._extended(shown, ask, dialogue)):
                return place
            return self._rendered(ask, dialogue, parent=shown)
        known = {one.reply.signature: one.turn for one in self.exchanges}
        stored = [known.get(sign, turn) for turn, sign in zip(ask.turns, ask.signatures, strict=True)]
        dialogue = _aligned(ask.turns, stored, as_shown=False)
        twin = self._openings.get(_key(ask.line, ask.signatures))
        return self._rendered(ask, dialogue, parent=twin.parent if twin else self._rewritten(ask))

    def add(self, exchange: Exchange) -> None:
        """A sampled reply, findable from now on."""
        self.exchanges.append(exchange)
        if exchange.parent is not None:
            exchange.parent.children.append(exchange)
        self._ends.setdefault(_key(exchange.line, exchange.signatures), []).append(exchange)
        self._openings.setdefault(_key(exchange.line, exchange.signatures[:-1]), exchange)

    def _shown_before(self, ask: Ask) -> Exchange | None:
        """The reply that the request's last assistant message is, with all before it as it was."""
        last = max((i for i, turn in enumerate(ask.turns) if turn.role is Role.ASSISTANT), default=-1)
        found = self._ends.get(_key(ask.line, ask.signatures[: last + 1]), []) if last >= 0 else []
        same = [one for one in found if _same_reasoning(ask.turns, one.dialogue)]
        return min(same, key=lambda one: (any(c.extends for c in one.children), one.number), default=None)

    def _extended(self, parent: Exchange, ask: Ask, dialogue: tuple[Turn, ...]) -> Place | None:
        start = len(parent.dialogue)
        new = dialogue[start:]
        try:
            piece = self._renderer.extend(parent.completion.token_ids, new, first_turn=parent.num_turns)
        except ConfigError:  # a format that cannot go on after such a message shows everything anew
            return None
        prompt = [*parent.stream(), *piece.token_ids]
        return Place(
            parent, True, new, ask.signatures[start:], dialogue, piece, prompt, len(piece.token_ids), False
        )

    def _rewritten(self, ask: Ask) -> Exchange | None:
        """The latest reply with most in common, of those whose history the request can be a rewriting of."""
        own = Counter(ask.signatures)

        def common(one: Exchange) -> int:
            return (own & Counter(one.signatures)).total()

        leaves = [one for one in self.exchanges if one.line == ask.line and not one.children]
        related = [one for one in leaves if _is_related(one, ask)]
        return max(related, key=lambda one: (common(one), one.number), default=None)

    def _rendered(self, ask: Ask, dialogue: tuple[Turn, ...], *, parent: Exchange | None) -> Place:
        piece = self._renderer.render(dialogue, ask.tools)
        prompt = list(piece.token_ids)
        if parent is None:
            opening = _unsampled(dialogue)
            return Place(None, False, opening, ask.signatures, dialogue, piece, prompt, len(prompt), False)
        known = Counter(sign for one in parent.path() for sign in one.recorded)
        asked: list[Turn] = []
        signs: list[str] = []
        for turn, sign in zip(dialogue, ask.signatures, strict=True):
            known[sign] -= 1
            if known[sign] < 0:
                asked.append(turn)
                signs.append(sign)
        whole = Rendered(prompt, [Span(0, len(prompt), SpanKind.PROMPT, -1)])
        num_new = max(0, len(prompt) - len(parent.stream()))
        changed = parent.tools != ask.tools
        return Place(
            parent, False, _unsampled(asked), tuple(signs), dialogue, whole, prompt, num_new, changed
        )


def _key(line: str, signatures: Sequence[str]) -> str:
    return canonical.digest(line, list(signatures))


def _is_related(one: Exchange, ask: Ask) -> bool:
    path = one.path()
    opening = path[0].signatures[:-1]
    replies = {exchange.reply.signature for exchange in path}
    repeats = any(
        sign in replies
        for sign, turn in zip(ask.signatures, ask.turns, strict=True)
        if turn.role is Role.ASSISTANT
    )
    return repeats or ask.signatures[: len(opening)] == opening


def _same_reasoning(turns: Sequence[Turn], stored: Sequence[Turn]) -> bool:
    return all(
        not turn.reasoning.strip() or turn.reasoning.strip() == known.reasoning.strip()
        for turn, known in zip(turns, stored, strict=False)
    )


def _aligned(turns: Sequence[Turn], stored: Sequence[Turn], *, as_shown: bool = True) -> tuple[Turn, ...]:
    """`turns` with the stored replies in place of their echoes, and results answering the stored call ids.

    Without `as_shown` only the calls are the stored ones (as the model wrote them): the rest is as sent.
    """
    renamed: dict[str, ToolCall] = {}
    aligned: list[Turn] = []
    for turn, known in zip(turns, [*stored, *turns[len(stored) :]], strict=True):
        if turn.role is Role.ASSISTANT and known is not turn:
            calls = tuple(call for call in known.tool_calls if is_well_formed(call))
            renamed |= {echo.call_id: call for echo, call in zip(turn.tool_calls, calls, strict=True)}
            turn = known if as_shown else turn.model_copy(update={"tool_calls": calls})
        elif turn.result is not None and (call := renamed.get(turn.result.call_id)):
            result = turn.result.model_copy(update={"call_id": call.call_id, "name": call.name})
            turn = turn.model_copy(update={"result": result})
        aligned.append(turn)
    return tuple(aligned)


def _unsampled(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Assistant turns that a harness wrote are context, never something to learn."""
    return tuple(
        turn.model_copy(update={"weight": 0.0}) if turn.role is Role.ASSISTANT else turn for turn in turns
    )
