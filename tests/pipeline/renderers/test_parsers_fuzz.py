"""Whatever a model writes: no parser raises, loses raw text, or executes without a reason to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.renderers.parsers import harmony, hermes, qwen3_coder
from pipeline.renderers.parsers.base import Parser
from tests.pipeline.renderers.dialogues import TRAVEL_TOOLS
from tests.pipeline.renderers.test_chatml import PROPERTY

PIECES = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            "<think>",
            "</think>",
            "```json\n",
            "```",
            "\n",
            " ",
            "prose",
            "<tool_",
        ),
        *(
            '{"name":"now","arguments":{}}',
            '{"name":"now",',
            '"arguments":{"a":1',
            "}",
            "{",
            "'",
            '"',
            "\\",
            "NaN",
        ),
        *("<function=now>", "</function>", "<parameter=a>", "</parameter>", "7", "<function="),
        *("<|start|>assistant", "<|channel|>commentary", "<|channel|>analysis", "<|message|>", "<|call|>"),
        *(" to=functions.now", "<|end|>", "\ud800", "\x00", "é"),
    ]
)


@pytest.mark.parametrize(
    "parser", [hermes.parse, qwen3_coder.parse, harmony.parse], ids=["hermes", "xml", "harmony"]
)
@PROPERTY
@given(text=st.lists(PIECES, max_size=14).map("".join), ended=st.booleans())
def test_any_text(parser: Parser, text: str, ended: bool) -> None:
    parsed = parser(text, ended=ended, call_prefix="c", tools=TRAVEL_TOOLS)
    position = 0
    for index, call in enumerate(parsed.calls):
        assert call.call_id == f"c_{index}"
        assert call.raw
        position = text.index(call.raw, position) + len(call.raw)
        assert bool(call.error) is not call.ok
        if call.ok:
            assert call.name
            assert isinstance(call.parsed_arguments(), dict)
