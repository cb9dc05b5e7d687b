"""Hand-written families behind our contract, and our parsers against theirs on the formats both know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from data import canonical
from data.errors import ConfigError
from data.messages import ParseStatus, Turn, assistant, user
from data.trajectories import Origin, Segment, SpanKind
from pipeline.renderers.external import ExternalRenderer
from pipeline.renderers.parsers import harmony, hermes, qwen3_coder
from tests.pipeline.renderers.dialogues import TRAVEL_TOOLS, arguments, dialogues
from tests.pipeline.renderers.test_chatml import DIALOGUE, HOSTILE, PROPERTY
from tests.pipeline.renderers.test_hermes import GOOD, tag
from tests.pipeline.renderers.test_qwen3_coder import TOOL, block
from tests.tiny import make_tiny_tokenizer

pytest.importorskip("renderers")

VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
HARMONY = ("<|start|>", "<|end|>", "<|return|>", "<|call|>", "<|channel|>", "<|message|>", "<|constrain|>")


@pytest.fixture(scope="module")
def qwen_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = make_tiny_tokenizer(tmp_path_factory.mktemp("qwen"), tags=True)
    path = directory / "tokenizer.json"
    spec = json.loads(path.read_text())
    first = max(token["id"] for token in spec["added_tokens"]) + 1
    template = spec["added_tokens"][0]
    spec["added_tokens"] += [
        template | {"id": first + i, "content": content} for i, content in enumerate((*VISION, *HARMONY))
    ]
    path.write_text(json.dumps(spec))
    return directory


@pytest.fixture(scope="module")
def qwen3(qwen_dir: Path) -> ExternalRenderer:
    return ExternalRenderer.load(qwen_dir, family="qwen3")


@PROPERTY
@given(turns=dialogues())
def test_spans_tile_and_only_assistant_turns_are_generated(
    qwen3: ExternalRenderer, turns: list[Turn]
) -> None:
    rendered = qwen3.render(turns, TRAVEL_TOOLS)
    Segment(origin=Origin.RENDERED, token_ids=tuple(rendered.token_ids), spans=tuple(rendered.spans))
    generated = {span.turn for span in rendered.spans if span.kind is SpanKind.GENERATED}
    assert generated == {index for index, turn in enumerate(turns) if turn.role == "assistant"}


def test_extension_gives_the_rendered_tokens_and_spans(qwen3: ExternalRenderer) -> None:
    whole = qwen3.render(DIALOGUE, TRAVEL_TOOLS)
    first, second = (span for span in whole.spans if span.kind is SpanKind.GENERATED)
    between = [span for span in whole.spans if first.end <= span.start < second.start]
    extension = qwen3.extend(whole.token_ids[first.start : first.end], DIALOGUE[3:5], first_turn=3)
    assert extension.token_ids == whole.token_ids[first.end : second.start]
    assert [(s.kind, s.turn, s.call_id) for s in extension.spans] == [
        (s.kind, s.turn, s.call_id) for s in between
    ]
    assert [(s.turn, s.call_id) for s in extension.spans] == [(3, "a"), (4, "b")]


def test_extension_closes_a_cut_turn_and_refuses_an_assistant_turn(qwen3: ExternalRenderer) -> None:
    cut = qwen3.extend(qwen3.encode("I wi"), [user("go")], first_turn=2)
    assert (
        qwen3.decode(cut.token_ids) == "<|im_end|>\n<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n"
    )
    with pytest.raises(ConfigError, match="qwen3 cannot extend"):
        qwen3.extend(qwen3.encode("I"), [assistant("x")], first_turn=2)


def test_control_tokens_in_text_stay_text(qwen3: ExternalRenderer) -> None:
    stop = qwen3.stop_token_ids[0]
    hostile = qwen3.render([user(HOSTILE)], ()).token_ids
    assert hostile.count(stop) == qwen3.render([user("harmless")], ()).token_ids.count(stop)


def test_a_render_parses_back_with_our_parser(qwen3: ExternalRenderer) -> None:
    whole = qwen3.render(DIALOGUE)
    first = next(span for span in whole.spans if span.kind is SpanKind.GENERATED)
    turn = qwen3.parse(whole.token_ids[first.start : first.end])
    assert [(call.name, call.arguments, call.status) for call in turn.tool_calls] == [
        ("search_flights", '{"origin":"Rome"}', ParseStatus.OK),
        ("now", "{}", ParseStatus.OK),
    ]


def test_errors_name_the_family(qwen_dir: Path) -> None:
    with pytest.raises(ConfigError, match="no renderer 'qwen9'; use chatml or one of"):
        ExternalRenderer.load(qwen_dir, family="qwen9")
    with pytest.raises(ConfigError, match="'llama-3' does not fit the tokenizer"):
        ExternalRenderer.load(qwen_dir, family="llama-3")


def theirs(renderer: ExternalRenderer, text: str, tools: Any = None) -> list[tuple[str, Any, str]]:
    ids = [*renderer._vocabulary.tagged(text).ids, renderer.stop_token_ids[0]]
    result = renderer._inner.parse_response(ids, tools=tools, prompt_ids=renderer._prompt)
    return [(str(call.status), call.arguments, call.name or "") for call in result.tool_calls]


def ours(calls: Any) -> list[tuple[str, Any, str]]:
    return [(str(call.status), call.parsed_arguments() if call.ok else None, call.name) for call in calls]


@PROPERTY
@given(values=arguments)
def test_hermes_agrees_on_well_formed_calls(qwen3: ExternalRenderer, values: dict[str, Any]) -> None:
    for ascii_only in (False, True):
        body = json.dumps({"name": "find", "arguments": values}, ensure_ascii=ascii_only)
        text = f"Sure.\n{tag(body)}\n{tag(GOOD)}"
        parsed = hermes.parse(text, ended=True, call_prefix="c")
        assert (
            ours(parsed.calls)
            == theirs(qwen3, text)
            == [("ok", values, "find"), ("ok", {"city": "Rome"}, "find")]
        )


@pytest.mark.parametrize(
    ("body", "our_status", "their_status"),
    [
        ("{", "not_json", "invalid_json"),
        (f"{GOOD}\n{GOOD}", "salvageable", "invalid_json"),
        (GOOD[:-1], "salvageable", "invalid_json"),
        ('{"arguments":{}}', "not_a_call", "missing_name"),
        # Here we are stricter: they execute what JSON readers disagree on, or what was never written.
        ('{"name":"f","arguments":{"a":1,"a":2}}', "not_json", "ok"),
        ('{"name":"f","arguments":{"a":NaN}}', "not_json", "ok"),
        ('{"name":"f"}', "not_a_call", "ok"),
        ('{"name":"f","arguments":[]}', "not_a_call", "ok"),
        # And here they are: a closing tag inside a string ends their block.
        ('{"name":"f","arguments":{"t":"</tool_call>"}}', "ok", "invalid_json"),
    ],
)
def test_hermes_differs_only_where_listed(
    qwen3: ExternalRenderer, body: str, our_status: str, their_status: str
) -> None:
    parsed = hermes.parse(tag(body), ended=True, call_prefix="c")
    assert [str(call.status) for call in parsed.calls] == [our_status]
    assert [status for status, _, _ in theirs(qwen3, tag(body))] == [their_status]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"city": "Rome"},
        {"city": "42", "n": 7},
        {"direct": True, "tags": ["a", {"b": None}]},
        {"unknown": 3, "other": "text } {"},
    ],
)
def test_xml_agrees_on_well_formed_calls(qwen_dir: Path, values: dict[str, Any]) -> None:
    renderer = ExternalRenderer.load(qwen_dir, family="qwen3.5")
    written = [
        (key, value if isinstance(value, str) else canonical.dumps(value)) for key, value in values.items()
    ]
    text = block(*written)
    parsed = qwen3_coder.parse(text, ended=True, call_prefix="c", tools=(TOOL,))
    mine = [(arguments, name) for _, arguments, name in ours(parsed.calls)]
    given_text = text if not renderer._prefilled.endswith("<think>\n") else "</think>\n" + text
    assert (
        mine
        == [(found, name) for _, found, name in theirs(renderer, given_text, [TOOL.openai()])]
        == [(values, "find")]
    )
    turn = renderer.parse(renderer._vocabulary.tagged(given_text).ids, tools=(TOOL,))
    assert [call.parsed_arguments() for call in turn.tool_calls] == [values]


@pytest.mark.parametrize(
    ("text", "our_status", "their_status"),
    [
        ('<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":1}<|call|>', "ok", "ok"),
        (' to=functions.f<|channel|>commentary json<|message|>{"a":{}}<|call|>', "ok", "ok"),
        ("<|channel|>commentary to=functions.f<|message|>{<|call|>", "not_json", "invalid_json"),
        ('<|channel|>commentary to=functions.f<|message|>{"a":1,"a":2}<|call|>', "not_json", "ok"),
    ],
)
def test_harmony_agrees_but_for_duplicate_keys(
    qwen3: ExternalRenderer, text: str, our_status: str, their_status: str
) -> None:
    from renderers.parsing import parse_gpt_oss

    marks = qwen3._vocabulary.marks
    pieces = qwen3._vocabulary.split("<|start|>assistant" + text, control=True)
    ids = [i for piece, is_mark in pieces for i in ([marks[piece]] if is_mark else qwen3.encode(piece))]
    names = ("return", "call", "start", "end", "channel", "message", "constrain")
    result = parse_gpt_oss(
        qwen3._inner._tokenizer, ids, **{f"{name}_id": marks[f"<|{name}|>"] for name in names}
    )
    parsed = harmony.parse(text, ended=True, call_prefix="c")
    assert [str(call.status) for call in parsed.calls] == [our_status]
    assert [str(call.status) for call in result.tool_calls] == [their_status]
    if our_status == "ok":
        assert [(c.name, c.parsed_arguments()) for c in parsed.calls] == [
            (c.name, c.arguments) for c in result.tool_calls
        ]
