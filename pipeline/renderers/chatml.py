"""Our renderer for SmolLM2- and Qwen2.5-style ChatML with Hermes tool calls.

Decides the same text as `chatml_tools.jinja`, token for token, and additionally that text of users,
tools and tool descriptions is never read as a control token. A server that applies the template to
messages does read it so; that is why rollouts send token ids only, and why the two are compared on
dialogues free of control tokens. Not covered: media parts (refused), and templates of other families
(`pipeline.renderers.external`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from data import canonical
from data.errors import ConfigError
from data.messages import Role, ToolCall, ToolSpec, Turn, text_parts
from data.trajectories import SpanKind
from pipeline.renderers.base import Rendered
from pipeline.renderers.parsers import hermes
from pipeline.renderers.stream import TokenStream
from pipeline.renderers.vocabulary import Vocabulary
from pipeline.renderers.wire import is_well_formed, wire_messages

TEMPLATE = Path(__file__).with_name("chatml_tools.jinja")
START, END = "<|im_start|>", "<|im_end|>"
TOOLS_END = '\n</tools>\nTo call a tool:\n<tool_call>\n{"name":NAME,"arguments":{...}}\n</tool_call>'


class Owner(NamedTuple):
    """The turn, and the call where there is one, that a span belongs to."""

    turn: int
    call_id: str = ""


class ChatMLRenderer:
    """See `pipeline.renderers.base.Renderer`. Make it with `ChatMLRenderer.load(model_dir)`."""

    name = "chatml"

    def __init__(self, vocabulary: Vocabulary) -> None:
        missing = [mark for mark in (START, END) if mark not in vocabulary.marks]
        if missing:
            raise ConfigError(
                f"tokenizer has no token {missing[0]}, which ChatML needs; its added tokens are "
                f"{sorted(vocabulary.marks)[:20]}. Use a model directory of a ChatML model"
            )
        self.vocabulary = vocabulary
        self.stop_token_ids: tuple[int, ...] = (vocabulary.marks[END],)
        template = TEMPLATE.read_text(encoding="utf-8")
        self.digest = canonical.digest(self.name, vocabulary.digest, template, hermes.VERSION)

    @classmethod
    def load(cls, model_dir: Path) -> ChatMLRenderer:
        """The renderer of a directory with `tokenizer.json`. Raises ConfigError where that is missing."""
        return cls(Vocabulary.load(model_dir))

    def render(
        self, turns: Sequence[Turn], tools: Sequence[ToolSpec] = (), *, generation_prompt: bool = True
    ) -> Rendered:
        """See the contract. The prompt span has turn -1 where it holds several turns."""
        stream = TokenStream(self.vocabulary)
        _system(stream, turns, tools)
        skip = 1 if turns and turns[0].role is Role.SYSTEM else 0
        _dialogue(stream, turns[skip:], skip, SpanKind.PROMPT, open_assistant=generation_prompt)
        return stream.rendered()

    def extend(self, sampled: Sequence[int], turns: Sequence[Turn], *, first_turn: int) -> Rendered:
        """See the contract. Raises ValueError for an assistant turn: what was not sampled is no sample."""
        if any(turn.role is Role.ASSISTANT for turn in turns):
            raise ValueError(
                "extend takes tool and user turns; an assistant turn must be sampled or rendered whole"
            )
        stream = TokenStream(self.vocabulary, started=True)
        if not sampled or sampled[-1] not in self.stop_token_ids:
            stream.glue(END)
        _dialogue(stream, turns, first_turn, SpanKind.OBSERVATION, open_assistant=True)
        return stream.rendered()

    def parse(
        self, token_ids: Sequence[int], *, tools: Sequence[ToolSpec] = (), call_prefix: str = "call"
    ) -> Turn:
        """See the contract. Text outside the calls is stripped of outer whitespace."""
        ended = bool(token_ids) and token_ids[-1] in self.stop_token_ids
        text = self.decode(token_ids[:-1] if ended else token_ids)
        parsed = hermes.parse(text, ended=ended, call_prefix=call_prefix)
        return parsed.turn()

    def encode(self, text: str) -> list[int]:
        """See the contract."""
        return self.vocabulary.plain(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """See the contract."""
        return self.vocabulary.decode(token_ids)


def template_messages(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """`turns` as messages from which `chatml_tools.jinja` gives the tokens of `ChatMLRenderer.render`."""
    return wire_messages([_as_text(turn) if _has_raw(turn) else turn for turn in turns])


def call_text(call: ToolCall) -> str:
    """The text of a call: what was sampled where known, else the canonical form."""
    return call.raw or _canonical(call)


def _canonical(call: ToolCall) -> str:
    body = _json({"name": call.name, "arguments": call.parsed_arguments()})
    return f"<tool_call>\n{body}\n</tool_call>"


def _has_raw(turn: Turn) -> bool:
    """Whether a call was written otherwise than a template would write it."""
    return any(
        call.raw and not (is_well_formed(call) and call.raw == _canonical(call)) for call in turn.tool_calls
    )


def _as_text(turn: Turn) -> Turn:
    pieces = [_text(turn).strip(), *map(call_text, turn.tool_calls)]
    return turn.model_copy(update={"parts": text_parts("\n".join(filter(None, pieces))), "tool_calls": ()})


def tool_text(tool: ToolSpec) -> str:
    """One line that shows a tool: plain schemas are shortened without loss, others shown whole.

    In the short form a parameter is its type, "type: description" or the list of its allowed values, and
    every parameter is required unless `required` says otherwise.
    """
    schema = canonical.loads(tool.parameters)
    shown: dict[str, object] = {"name": tool.name}
    if tool.description:
        shown["description"] = tool.description
    if schema.keys() - {"type", "properties", "required"}:
        return _json(shown | {"parameters": schema})
    known, required = schema.get("properties") or {}, schema.get("required") or []
    shown["parameters"] = {key: _short(value) for key, value in known.items()}
    if len(required) != len(known):
        shown["required"] = required
    return _json(shown)


def _short(value: Any) -> Any:
    keys = sorted(value) if isinstance(value, dict) else []
    if keys == ["type"]:
        return value["type"]
    if keys == ["enum", "type"]:
        return value["enum"]
    if keys == ["description", "type"] and isinstance(value["type"], str):
        return f"{value['type']}: {value['description']}"
    return value


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _system(stream: TokenStream, turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> None:
    head = _text(turns[0]) if turns and turns[0].role is Role.SYSTEM else ""
    if not head and not tools:
        return
    stream.glue(START + "system\n")
    stream.text(head)
    if tools:
        stream.glue("\n<tools>" if head else "<tools>")
        for tool in tools:
            stream.text("\n" + tool_text(tool))
        stream.glue(TOOLS_END)
    stream.glue(END)


def _dialogue(
    stream: TokenStream, turns: Sequence[Turn], first_turn: int, kind: SpanKind, *, open_assistant: bool
) -> None:
    shown: Owner | None = None
    for index, turn in enumerate(turns, first_turn):
        if turn.role is Role.ASSISTANT:
            _open(stream, "assistant\n")
            stream.close(kind, *_owner(kind, shown, index))
            _assistant(stream, turn)
            stream.close(SpanKind.GENERATED, index)
            kind, shown = SpanKind.OBSERVATION, None
            continue
        if kind is SpanKind.OBSERVATION and shown is not None:
            stream.close(kind, *shown)
        _message(stream, turn)
        shown = Owner(index, turn.result.call_id if turn.result else "")
    if open_assistant:
        _open(stream, "assistant\n")
    stream.close(kind, *_owner(kind, shown, first_turn + len(turns)))


def _owner(kind: SpanKind, shown: Owner | None, following: int) -> Owner:
    """Whom a span before turn `following` belongs to: the turn it shows, or the one its glue opens."""
    if kind is SpanKind.PROMPT:
        return Owner(0 if following == 1 else -1)
    return shown or Owner(following)


def _open(stream: TokenStream, header: str) -> None:
    stream.glue(("\n" if stream.started else "") + START + header)


def _message(stream: TokenStream, turn: Turn) -> None:
    is_tool = turn.role is Role.TOOL
    _open(stream, "user\n<tool_response>\n" if is_tool else f"{turn.role}\n")
    stream.text(_text(turn))
    stream.glue("\n</tool_response>" + END if is_tool else END)


def _assistant(stream: TokenStream, turn: Turn) -> None:
    reasoning, content = turn.reasoning.strip(), _text(turn).strip()
    if reasoning:
        stream.glue("<think>\n")
        stream.text(reasoning)
        stream.glue("\n</think>" + ("\n" if content or turn.tool_calls else ""))
    stream.text(content)
    for index, call in enumerate(turn.tool_calls):
        stream.glue("\n" if content or index else "")
        _call(stream, call)
    stream.glue(END)


def _call(stream: TokenStream, call: ToolCall) -> None:
    opening, closing, text = "<tool_call>", "</tool_call>", call_text(call)
    inner = text.removeprefix(opening)
    stream.markup(opening if inner != text else "")
    body = inner.removesuffix(closing)
    stream.text(body)
    stream.markup(closing if body != inner else "")


def _text(turn: Turn) -> str:
    """A medium is shown as its placeholder (`Part.shown`): these templates know text only."""
    return turn.text
