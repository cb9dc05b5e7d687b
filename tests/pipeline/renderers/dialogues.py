"""Property-generated dialogues, a travel tool set, and planted bugs the equality tests must catch."""

from __future__ import annotations

import unicodedata
from pathlib import Path

from hypothesis import strategies as st

from data import canonical
from data.messages import ToolCall, ToolResult, ToolSpec, Turn, assistant, system, text_parts, tool, user
from pipeline.renderers.base import Rendered
from pipeline.renderers.chatml import TEMPLATE, ChatMLRenderer
from pipeline.renderers.stream import TokenStream
from tests.tiny import SPECIALS, TAGS

TRAVEL_TOOLS = (
    ToolSpec(
        name="search_flights",
        description="Flights of one day.",
        parameters=canonical.dumps(
            {
                "type": "object",
                "properties": {
                    "origin": {"type": "string"},
                    "destination": {"type": "string"},
                    "date": {"type": "string", "description": "YYYY-MM-DD"},
                },
                "required": ["origin", "destination", "date"],
            }
        ),
    ),
    ToolSpec(
        name="book_flight",
        description="Book a flight.",
        parameters=canonical.dumps(
            {
                "type": "object",
                "properties": {
                    "flight_id": {"type": "string"},
                    "seat": {"type": "string", "enum": ["aisle", "window"]},
                },
                "required": ["flight_id"],
            }
        ),
    ),
    ToolSpec(
        name="cancel_booking",
        description="Cancel a booking.",
        parameters=canonical.dumps(
            {"type": "object", "properties": {"booking_id": {"type": "string"}}, "required": ["booking_id"]}
        ),
    ),
)
NESTED_TOOL = ToolSpec(
    name="filter",
    parameters=canonical.dumps(
        {
            "type": "object",
            "properties": {"rules": {"type": "array", "items": {"type": "string"}}},
            "additionalProperties": False,
        }
    ),
)
BARE_TOOL = ToolSpec(name="now", parameters="{}")

_snippets = st.sampled_from(
    [
        "",
        " ",
        "\n",
        "  lead",
        "trail \n",
        '{"a": 1}',
        "é",
        "日本語",
        "🙂",
        "</tool",
        "<",
        "\t",
        "\r\n",
        "\x00",
        "\u2028",
    ]
)
_free = st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=12)
texts = (
    st.lists(st.one_of(_snippets, _free), max_size=3)
    .map(lambda pieces: unicodedata.normalize("NFC", "".join(pieces)))
    .filter(lambda text: _is_harmless(text))
)
"""Text that spells no control token, tag or call; test_chatml tests what such text becomes."""
json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False, allow_infinity=False),
        texts,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(texts, inner, max_size=2)),
    max_leaves=4,
)
arguments = st.dictionaries(texts, json_values, max_size=3)
tool_sets = st.sampled_from([(), TRAVEL_TOOLS, (NESTED_TOOL, BARE_TOOL), (BARE_TOOL,)])


def _is_harmless(text: str) -> bool:
    return not any(mark in text for mark in (*SPECIALS, *TAGS, '"name"'))


@st.composite
def dialogues(draw: st.DrawFn) -> list[Turn]:
    """A dialogue with 0-3 parallel calls a turn, empty contents and unicode; may end in any role."""
    turns = [system(draw(texts))] if draw(st.booleans()) else []
    turns.append(user(draw(texts)))
    for index in range(draw(st.integers(0, 3))):
        names = draw(st.lists(st.sampled_from(["search_flights", "book", 'quo"ted', "é"]), max_size=3))
        calls = tuple(
            ToolCall(call_id=f"c{index}_{i}", name=name, arguments=canonical.dumps(draw(arguments)))
            for i, name in enumerate(names)
        )
        turns.append(assistant(draw(texts), *calls, reasoning=draw(st.sampled_from(["", "why\nnot"]))))
        answers = [ToolResult(call_id=c.call_id, name=c.name, parts=text_parts(draw(texts))) for c in calls]
        turns.extend(tool(answer) for answer in answers)
        if not calls or draw(st.booleans()):
            turns.append(user(draw(texts)))
    return turns if draw(st.booleans()) else [*turns, assistant(draw(texts))]


def planted_template() -> str:
    """The template with one newline missing: between the header of an assistant turn and its text."""
    text = TEMPLATE.read_text(encoding="utf-8")
    planted = text.replace('{{- "assistant\\n" -}}', '{{- "assistant" -}}')
    assert planted != text
    return planted


def not_extending_template() -> str:
    """The template with a message that looks at what follows it, as many published ones do."""
    text = TEMPLATE.read_text(encoding="utf-8")
    planted = text.replace("{{- content -}}", '{{- content if loop.last else content + " " -}}')
    assert planted != text
    return planted


def unmarked_stop_template() -> str:
    """The template with the stop token outside the trained span."""
    text = TEMPLATE.read_text(encoding="utf-8")
    planted = text.replace(
        '{{- "<|im_end|>" -}}\n        {%- endgeneration -%}',
        '{%- endgeneration -%}\n        {{- "<|im_end|>" -}}',
    )
    assert planted != text
    return planted


class DropsSeparator(ChatMLRenderer):
    """A planted bug: the newline before a tool or user turn is lost on extension (verl#3720)."""

    @classmethod
    def at(cls, model_dir: Path) -> DropsSeparator:
        return cls(ChatMLRenderer.load(model_dir).vocabulary)

    def extend(self, sampled, turns, *, first_turn):
        whole = super().extend(sampled, turns, first_turn=first_turn)
        newline = self.encode("\n")
        cut = whole.token_ids.index(newline[0])
        return Rendered(whole.token_ids[:cut] + whole.token_ids[cut + 1 :], whole.spans)


class ReadsControlTokens(ChatMLRenderer):
    """A planted bug: text is encoded with control tokens recognised, so that a tool can end a turn."""

    @classmethod
    def at(cls, model_dir: Path) -> ReadsControlTokens:
        return cls(ChatMLRenderer.load(model_dir).vocabulary)

    def encode(self, text):
        stream = TokenStream(self.vocabulary)
        stream.glue(text)
        stream._flush()
        return stream.rendered().token_ids
