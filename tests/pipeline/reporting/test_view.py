import re
from collections.abc import Sequence
from math import exp

from data import messages
from data.messages import ParseStatus, ToolStatus
from data.trajectories import Origin, Segment, Span, SpanKind, Trajectory
from pipeline.reporting.view import render_trajectory_html
from tests.pipeline.reporting.test_report import EVIL, parsed
from tests.samples import call, trajectory

PARTS = {1: "<|im_start|>user\n", 2: "hi", 3: "\n", 10: "Zu", 11: "<tool_call>", 12: "end\x1b", 20: "result"}
EMOJI = {30: b"\xf0\x9f", 31: b"\x99\x82"}


def decode(ids: Sequence[int]) -> str:
    raw = b"".join(EMOJI[token] if token in EMOJI else PARTS[token].encode() for token in ids)
    return raw.decode("utf-8", "replace")


def sample(*, weight: float = 1.0, origin: Origin = Origin.SAMPLED) -> Trajectory:
    turns = (
        messages.user("hi"),
        messages.assistant("Zu"),
        messages.user("result"),
        messages.assistant("end", weight=weight),
    )
    spans = (
        Span(0, 3, SpanKind.PROMPT, -1),
        Span(3, 5, SpanKind.GENERATED, 1),
        Span(5, 6, SpanKind.OBSERVATION, 2),
        Span(6, 9, SpanKind.GENERATED, 3),
    )
    logprobs = (-0.1, -3.0, -0.2, -0.25, -0.25) if origin is Origin.SAMPLED else ()
    made = Segment(origin=origin, token_ids=(1, 2, 3, 10, 11, 20, 12, 30, 31), spans=spans, logprobs=logprobs)
    return trajectory("x").model_copy(update={"turns": turns, "segments": (made,)})


def blocks(page: bytes) -> list[tuple[str, str]]:
    """(css class, inner HTML) of each span of tokens."""
    found = re.findall(r'<div class="span ([^"]+)">.*?<pre>(.*?)</pre>', page.decode(), flags=re.S)
    return [(style, inner) for style, inner in found]


def test_spans_are_coloured_by_kind_in_order() -> None:
    shown = blocks(render_trajectory_html(sample(), decode))
    assert [style for style, _ in shown] == ["prompt", "generated", "observation", "generated"]
    assert shown[0][1] == "&lt;|im_start|&gt;user\nhi\n" and shown[2][1] == "result"


def test_weight_0_is_hatched_and_counted_as_untrained() -> None:
    page = render_trajectory_html(sample(weight=0.0), decode)
    assert [style for style, _ in blocks(page)] == [
        "prompt",
        "generated",
        "observation",
        "generated untrained",
    ]
    assert b"9 tokens, 5 generated, 2 trained" in page
    assert b"9 tokens, 5 generated, 5 trained" in render_trajectory_html(sample(weight=0.5), decode)


def test_each_generated_token_shows_its_own_log_prob_and_unlikely_ones_are_marked() -> None:
    _, inner = blocks(render_trajectory_html(sample(), decode))[1]
    assert inner == (
        f'<span title="token 10\nlog p -0.100\np {exp(-0.1):.3g}">Zu</span>'
        f'<span title="token 11\nlog p -3.000\np {exp(-3.0):.3g}" class="low">&lt;tool_call&gt;</span>'
    )


def test_tokens_that_share_a_character_are_shown_as_one() -> None:
    _, inner = blocks(render_trajectory_html(sample(), decode))[3]
    assert inner.endswith(
        f'<span title="token 30 31\nlog p -0.250 -0.250\np {exp(-0.5):.3g}">\U0001f642</span>'
    )
    assert "end\u241b" in inner  # the escape character as its picture


def test_rendered_tokens_have_no_log_prob_and_ids_stand_in_for_a_missing_tokenizer() -> None:
    page = render_trajectory_html(sample(origin=Origin.RENDERED))
    assert b"log p" not in page
    assert blocks(page)[1][1] == '<span title="token 10">10 </span><span title="token 11">11 </span>'


def test_the_dialogue_shows_calls_results_and_why_a_call_is_malformed() -> None:
    bad = call("", status=ParseStatus.NOT_JSON, raw='<tool_call>{"name"').model_copy(
        update={"error": "no JSON"}
    )
    item = trajectory(bad, (call("search", city="Zürich"), ToolStatus.TOOL_ERROR), "Sorry.", reward=0.0)
    text = parsed(render_trajectory_html(item)).text
    for wanted in (
        '<tool_call>{"name"',
        "not_json",
        "no JSON",
        'search({"city": "Zürich"})',
        "tool_error",
        "failure",
    ):
        assert wanted in text, wanted


def test_hostile_text_stays_text_wherever_it_stands() -> None:
    bad = call(EVIL, status=ParseStatus.NOT_A_CALL, raw=EVIL)
    item = trajectory(
        bad, EVIL, prompt=EVIL, template=EVIL, tags=(EVIL,), labels=(EVIL,), policy=EVIL, reward=None
    )
    item = item.model_copy(update={"error": EVIL})
    page = parsed(render_trajectory_html(item, lambda ids: EVIL, back="/?a=1"))
    assert not page.seen & {"script", "img"}
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.text.count('<script>alert("x")</script>') >= 8
