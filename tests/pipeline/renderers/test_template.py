"""One template, four readers: our renderer, transformers, TRL and vLLM give the same tokens and masks.

Each comparison also fails on a planted bug (see `dialogues`), so that it is known to be able to.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis.errors import NoSuchExample

from data import canonical
from data.messages import ParseStatus, ToolCall, ToolSpec, Turn, assistant, user
from data.trajectories import SpanKind
from pipeline.renderers.chatml import TEMPLATE, ChatMLRenderer, template_messages
from tests.pipeline.renderers.dialogues import (
    TRAVEL_TOOLS,
    dialogues,
    not_extending_template,
    planted_template,
    tool_sets,
    unmarked_stop_template,
)
from tests.pipeline.renderers.test_chatml import DIALOGUE, PROPERTY

transformers = pytest.importorskip("transformers")
_CACHE = Path(os.environ.get("TRAJSMITH_CACHE", Path.home() / ".cache" / "trajsmith"))
SMOLLM2 = _CACHE.expanduser() / "models" / "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(model_dir)


def templated(
    tokenizer: Any, turns: list[Turn], tools: tuple[ToolSpec, ...], prompt: bool, template: str = ""
) -> list[int]:
    return tokenizer.apply_chat_template(
        template_messages(turns),
        tools=[tool.openai() for tool in tools] or None,
        chat_template=template or None,
        add_generation_prompt=prompt,
        return_dict=False,
    )


@PROPERTY
@given(turns=dialogues(), tools=tool_sets)
def test_transformers_gives_our_tokens(
    renderer: ChatMLRenderer, tokenizer: Any, turns: list[Turn], tools: tuple[ToolSpec, ...]
) -> None:
    for prompt in (False, True):
        ours = renderer.render(turns, tools, generation_prompt=prompt).token_ids
        assert templated(tokenizer, turns, tools, prompt) == ours


def test_the_comparison_catches_a_missing_newline(renderer: ChatMLRenderer, tokenizer: Any) -> None:
    ours = renderer.render(DIALOGUE, TRAVEL_TOOLS).token_ids
    assert templated(tokenizer, DIALOGUE, TRAVEL_TOOLS, True) == ours
    assert templated(tokenizer, DIALOGUE, TRAVEL_TOOLS, True, planted_template()) != ours


def test_malformed_and_odd_calls_are_shown_as_written(renderer: ChatMLRenderer, tokenizer: Any) -> None:
    odd = ToolCall(call_id="a", name="now", raw='<tool_call>{"name": "now", "arguments": {}}</tool_call>')
    cut = ToolCall(call_id="b", arguments="", raw='<tool_call>\n{"name"', status=ParseStatus.TRUNCATED)
    turns = [user("u"), assistant("text", odd, cut)]
    assert templated(tokenizer, turns, (), False) == renderer.render(turns, generation_prompt=False).token_ids


@PROPERTY
@given(turns=dialogues(), tools=tool_sets)
def test_assistant_mask_is_our_generated_spans(
    renderer: ChatMLRenderer, tokenizer: Any, turns: list[Turn], tools: tuple[ToolSpec, ...]
) -> None:
    rendered = renderer.render(turns, tools, generation_prompt=False)
    assert assistant_mask(tokenizer, turns, tools) == our_mask(rendered)


def test_the_mask_comparison_catches_an_untrained_stop_token(
    renderer: ChatMLRenderer, tokenizer: Any
) -> None:
    rendered = renderer.render(DIALOGUE, generation_prompt=False)
    assert assistant_mask(tokenizer, DIALOGUE, ()) == our_mask(rendered)
    assert assistant_mask(tokenizer, DIALOGUE, (), unmarked_stop_template()) != our_mask(rendered)


def assistant_mask(
    tokenizer: Any, turns: list[Turn], tools: tuple[ToolSpec, ...], template: str = ""
) -> list[int]:
    result = tokenizer.apply_chat_template(
        template_messages(turns),
        tools=[tool.openai() for tool in tools] or None,
        chat_template=template or None,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    return result["assistant_masks"]


def our_mask(rendered: Any) -> list[int]:
    mask = [0] * len(rendered.token_ids)
    for span in rendered.spans:
        if span.kind is SpanKind.GENERATED:
            mask[span.start : span.end] = [1] * (span.end - span.start)
    return mask


@pytest.mark.rl
def test_trl_accepts_the_template(tokenizer: Any) -> None:
    trl = pytest.importorskip("trl.chat_template_utils")
    assert trl.is_chat_template_prefix_preserving(tokenizer)
    assert trl.supports_tool_calling(tokenizer)
    assert trl.is_chat_template_stop_token_trained(tokenizer)
    assert trl.has_generation_markers(tokenizer.chat_template)


@pytest.mark.rl
def test_trl_refuses_the_planted_templates(model_dir: Path) -> None:
    trl = pytest.importorskip("trl.chat_template_utils")
    planted = transformers.AutoTokenizer.from_pretrained(model_dir)
    planted.chat_template = unmarked_stop_template()
    assert not trl.is_chat_template_stop_token_trained(planted)
    planted.chat_template = not_extending_template()
    assert not trl.is_chat_template_prefix_preserving(planted)
    planted.chat_template = TEMPLATE.read_text().replace("message.tool_calls", "message.calls")
    assert not trl.supports_tool_calling(planted)


@pytest.mark.skipif(not SMOLLM2.is_dir(), reason=f"the embedded model is not in {SMOLLM2}; run serve once")
def test_the_embedded_model_has_our_template_and_a_small_tool_section() -> None:
    renderer = ChatMLRenderer.load(SMOLLM2)
    real = transformers.AutoTokenizer.from_pretrained(SMOLLM2)
    ours = renderer.render(DIALOGUE, TRAVEL_TOOLS).token_ids
    assert templated(real, DIALOGUE, TRAVEL_TOOLS, True, TEMPLATE.read_text()) == ours
    assert len(ours) - len(renderer.render(DIALOGUE).token_ids) <= 150


@pytest.fixture(scope="module")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from pipeline.server import ModelServer, ServerSettings
    from tests.tiny import make_tiny_model

    directory = make_tiny_model(tmp_path_factory.mktemp("served"))
    settings = ServerSettings(max_num_seqs=2, extra_args=("--trust-request-chat-template",))
    with ModelServer(directory, settings=settings) as server:
        yield directory, server.url


@pytest.mark.vllm
@pytest.mark.timeout(1200)
def test_vllm_applies_the_template_to_our_tokens(server_url: Any) -> None:
    directory, url = server_url
    renderer = ChatMLRenderer.load(directory)

    def served(turns: list[Turn], tools: tuple[ToolSpec, ...], template: str = "") -> list[int]:
        body = {
            "model": "policy",
            "messages": vllm_messages(turns),
            "tools": [tool.openai() for tool in tools] or None,
            "chat_template": template or None,
        }
        reply = httpx.post(f"{url}/tokenize", json=body, timeout=60)
        assert reply.status_code == 200, reply.text
        return reply.json()["tokens"]

    @settings(PROPERTY, max_examples=60)
    @given(turns=dialogues(), tools=tool_sets)
    def compare(turns: list[Turn], tools: tuple[ToolSpec, ...]) -> None:
        assert served(turns, tools) == renderer.render(turns, tools).token_ids

    compare()
    ours = renderer.render(DIALOGUE, TRAVEL_TOOLS).token_ids
    assert served(DIALOGUE, TRAVEL_TOOLS) == ours
    assert served(DIALOGUE, TRAVEL_TOOLS, planted_template()) != ours


def vllm_messages(turns: list[Turn]) -> list[dict[str, Any]]:
    """What vLLM's protocol calls them: arguments as JSON text, `reasoning` for what templates read as
    `reasoning_content` (a request with the latter name loses it without a word)."""
    messages = template_messages(turns)
    for message in messages:
        if "reasoning_content" in message:
            message["reasoning"] = message.pop("reasoning_content")
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = canonical.dumps(call["function"]["arguments"])
    return messages


def test_the_published_habit_of_looking_ahead_breaks_extension(tokenizer: Any) -> None:
    """The prefix property, on a planted template that renders a call-only turn by what follows it."""
    shorter, longer = DIALOGUE[:-1], [*DIALOGUE, user("thanks")]
    good = templated(tokenizer, shorter, (), False)
    assert templated(tokenizer, longer, (), False)[: len(good)] == good
    with_text = [user("u"), assistant("a")]
    bad = templated(tokenizer, with_text, (), False, not_extending_template())
    assert (
        templated(tokenizer, [*with_text, user("v")], (), False, not_extending_template())[: len(bad)] != bad
    )


def test_planted_bugs_are_found_by_search_too(renderer: ChatMLRenderer, tokenizer: Any) -> None:
    """The generator reaches the planted bug within the number of examples the comparisons run."""
    planted = planted_template()

    def differs(turns: list[Turn]) -> bool:
        return (
            templated(tokenizer, turns, (), False, planted)
            != renderer.render(turns, generation_prompt=False).token_ids
        )

    quick = settings(max_examples=60, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    try:
        find(dialogues(), differs, settings=quick)
    except NoSuchExample:
        pytest.fail("60 generated dialogues never reached an assistant turn")
