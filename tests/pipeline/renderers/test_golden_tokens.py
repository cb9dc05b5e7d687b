"""Golden tokens of one call in each format: what is stored today must be read the same tomorrow."""

from __future__ import annotations

from pathlib import Path

import pytest

from data.messages import ParseStatus
from pipeline.renderers.chatml import ChatMLRenderer
from pipeline.renderers.parsers import harmony, hermes, qwen3_coder
from pipeline.renderers.parsers.base import Parser
from pipeline.renderers.vocabulary import Vocabulary
from tests.pipeline.renderers.test_external import qwen_dir  # noqa: F401

PARSERS: dict[str, Parser] = {
    "hermes": hermes.parse,
    "qwen3_coder": qwen3_coder.parse,
    "gpt_oss": harmony.parse,
}
TEXTS = {
    "hermes": '<tool_call>\n{"name":"find","arguments":{"city":"Rome"}}\n</tool_call>',
    "qwen3_coder": (
        "<tool_call>\n<function=find>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"
    ),
    "gpt_oss": '<|channel|>commentary to=functions.find <|constrain|>json<|message|>{"city":"Rome"}',
}
# Of the tokenizer with tags and control tokens as added tokens: 479 and 480, 493 to 495.
GOLDEN = {
    "hermes": [479, 201, 276, 291, 270, 72, 420, 273, 445, 299, 69, 372, 270, 457, 346, 201, 480],
    "qwen3_coder": [
        *(479, 201, 30, 72, 87, 80, 69, 284, 31, 72, 420, 265, 30, 82, 338, 268, 84, 31, 69, 372, 265, 457),
        *(201, 277, 82, 338, 268, 84, 265, 277, 72, 87, 80, 69, 284, 265, 480),
    ],
    "gpt_oss": [
        *(
            493,
            69,
            81,
            79,
            301,
            266,
            91,
            417,
            31,
            72,
            87,
            80,
            69,
            284,
            85,
            16,
            72,
            420,
            223,
            495,
            76,
            85,
            267,
        ),
        *(494, 276, 69, 372, 270, 457, 305),
    ],
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_tokens_are_one_call(name: str, qwen_dir: Path) -> None:  # noqa: F811
    vocabulary = Vocabulary.load(qwen_dir)
    text = vocabulary.decode(GOLDEN[name])
    assert text == TEXTS[name]
    (call,) = PARSERS[name](text, ended=True, call_prefix="c").calls
    assert (call.name, call.arguments, call.status) == ("find", '{"city":"Rome"}', ParseStatus.OK)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_tokens_are_written_again(name: str, qwen_dir: Path) -> None:  # noqa: F811
    vocabulary = Vocabulary.load(qwen_dir)
    pieces = vocabulary.split(TEXTS[name], control=True)
    ids = [
        i for piece, mark in pieces for i in ([vocabulary.marks[piece]] if mark else vocabulary.plain(piece))
    ]
    assert ids == GOLDEN[name]


def test_our_renderer_reads_the_golden_tokens(qwen_dir: Path) -> None:  # noqa: F811
    renderer = ChatMLRenderer.load(qwen_dir)
    (call,) = renderer.parse([*GOLDEN["hermes"], *renderer.stop_token_ids]).tool_calls
    assert (call.name, call.arguments, call.raw) == ("find", '{"city":"Rome"}', TEXTS["hermes"])
