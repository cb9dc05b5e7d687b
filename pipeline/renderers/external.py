"""Families the package `renderers` writes by hand (Qwen3, Qwen3.5, GPT-OSS, ...), behind our contract.

Rendering and extension are that package's; parsing is ours where we have the format, so that one strictness
holds everywhere and lost calls are labelled, and the package's otherwise. Control tokens in text stay text;
tags that a tokenizer lists as ordinary added tokens are still recognised in text, unlike in our renderer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from data import canonical
from data.errors import ConfigError
from data.messages import ParseStatus, Role, ToolCall, ToolSpec, Turn
from data.trajectories import Span, SpanKind
from pipeline.errors import MissingExtraError
from pipeline.renderers.base import Rendered
from pipeline.renderers.parsers import harmony, hermes, qwen3_coder
from pipeline.renderers.parsers.base import Parsed, Parser, as_call, bad_call, make_call
from pipeline.renderers.vocabulary import Vocabulary
from pipeline.renderers.wire import wire_messages

_PARSERS: dict[str, tuple[Parser, str]] = {
    "qwen3": (hermes.parse, hermes.VERSION),
    "qwen3.5": (qwen3_coder.parse, qwen3_coder.VERSION),
    "qwen3.6": (qwen3_coder.parse, qwen3_coder.VERSION),
    "gpt-oss": (harmony.parse, harmony.VERSION),
}
_OPTIONS: dict[str, dict[str, Any]] = {
    # Its preamble would otherwise show today's date, and no two runs would have equal tokens.
    "gpt-oss": {"conversation_start_date": "2026-01-01"},
}
_STATUS = {
    "invalid_json": ParseStatus.NOT_JSON,
    "unclosed_block": ParseStatus.TRUNCATED,
    "unknown_tool": ParseStatus.UNKNOWN_TOOL,
}


class ExternalRenderer:
    """See `pipeline.renderers.base.Renderer`. Make it with `ExternalRenderer.load`."""

    def __init__(self, inner: Any, vocabulary: Vocabulary, *, family: str, version: str) -> None:
        self._inner, self._vocabulary = inner, vocabulary
        self.name = family
        self.stop_token_ids: tuple[int, ...] = tuple(inner.get_stop_token_ids())
        own = _PARSERS.get(family)
        self._parser: Parser | None = own[0] if own else None
        self.digest = canonical.digest(
            family, _OPTIONS.get(family, {}), version, vocabulary.digest, own[1] if own else ""
        )
        probe = [{"role": "user", "content": "."}]
        self._prompt: list[int] = inner.render_ids(probe, add_generation_prompt=True)
        self._prefilled = vocabulary.decode(self._prompt).rpartition("assistant")[2].removeprefix("\n")

    @classmethod
    def load(cls, model_dir: Path, *, family: str) -> ExternalRenderer:
        """Raises MissingExtraError without the package, ConfigError for a family it does not have."""
        try:
            import renderers
            from renderers.base import RENDERER_REGISTRY, _populate_registry
            from renderers.configs import _config_class_for
        except ImportError as error:
            raise MissingExtraError(
                f"renderer {family!r} needs the package renderers; pip install 'trajsmith[renderers]'"
            ) from error
        _populate_registry()
        if family not in RENDERER_REGISTRY or family == "default":
            known = ", ".join(sorted(RENDERER_REGISTRY.keys() - {"default"}))
            raise ConfigError(f"no renderer {family!r}; use chatml or one of {known}")
        vocabulary = Vocabulary.load(model_dir)
        config = _config_class_for(family)(thinking_retention="all", **_OPTIONS.get(family, {}))
        try:
            inner = renderers.create_renderer(_Tokenizer(vocabulary, str(model_dir)), config)
        except Exception as error:  # whatever a hand-written renderer finds wrong with the tokenizer
            raise ConfigError(
                f"renderer {family!r} does not fit the tokenizer in {model_dir}: {error}; name another family"
            ) from error
        return cls(inner, vocabulary, family=family, version=renderers.__version__)

    def render(
        self, turns: Sequence[Turn], tools: Sequence[ToolSpec] = (), *, generation_prompt: bool = True
    ) -> Rendered:
        """See the contract."""
        result = self._inner.render(
            wire_messages(turns), tools=_tools(tools), add_generation_prompt=generation_prompt
        )
        return Rendered(list(result.token_ids), list(_spans(result, turns)))

    def extend(self, sampled: Sequence[int], turns: Sequence[Turn], *, first_turn: int) -> Rendered:
        """See the contract. Raises ConfigError where the family cannot extend without re-rendering."""
        before = [*self._prompt, *sampled]
        result = self._inner.bridge_to_next_turn(self._prompt, list(sampled), wire_messages(turns))
        if result is None or list(result.token_ids[: len(before)]) != before:
            raise ConfigError(
                f"renderer {self.name} cannot extend by {[str(turn.role) for turn in turns]} without "
                "rendering sampled tokens again; use a family that can, or single-turn tasks"
            )
        tokens = list(result.token_ids[len(before) :])
        shown = [index if index >= 0 else None for index in result.message_indices[len(before) :]]
        spans: list[Span] = []
        for turn, group in groupby(_filled(shown, 0)):
            start = spans[-1].end if spans else 0
            end = start + len(list(group))
            spans.append(Span(start, end, SpanKind.OBSERVATION, first_turn + turn, _call_id(turns[turn])))
        return Rendered(tokens, spans)

    def parse(
        self, token_ids: Sequence[int], *, tools: Sequence[ToolSpec] = (), call_prefix: str = "call"
    ) -> Turn:
        """See the contract."""
        ended = bool(token_ids) and token_ids[-1] in self.stop_token_ids
        if self._parser is None:
            parsed = self._foreign(token_ids, tools, call_prefix)
        else:
            text = self._prefilled + self.decode(token_ids[:-1] if ended else token_ids)
            parsed = self._parser(text, ended=ended, call_prefix=call_prefix, tools=tools)
        return parsed.turn()

    def encode(self, text: str) -> list[int]:
        """See the contract."""
        return self._vocabulary.plain(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """See the contract."""
        return self._vocabulary.decode(token_ids)

    def _foreign(self, token_ids: Sequence[int], tools: Sequence[ToolSpec], prefix: str) -> Parsed:
        result = self._inner.parse_response(list(token_ids), tools=_tools(tools), prompt_ids=self._prompt)
        calls = tuple(_call(call, f"{prefix}_{index}") for index, call in enumerate(result.tool_calls))
        return Parsed(result.content.strip(), result.reasoning_content or "", calls)


class _Tokenizer:
    """The few methods of a transformers tokenizer that hand-written renderers call."""

    unk_token_id = None

    def __init__(self, vocabulary: Vocabulary, name: str) -> None:
        self._vocabulary, self.name_or_path = vocabulary, name

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(self._vocabulary.tagged(text).ids)

    def decode(self, token_ids: Any, **_options: Any) -> str:
        return self._vocabulary.decode([token_ids] if isinstance(token_ids, int) else token_ids)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        return (
            self._vocabulary.marks.get(tokens)
            if isinstance(tokens, str)
            else [self._vocabulary.marks.get(token) for token in tokens]
        )

    def __call__(self, text: str, **_options: Any) -> dict[str, Any]:
        encoding = self._vocabulary.tagged(text)
        return {"input_ids": encoding.ids, "offset_mapping": encoding.offsets}


def _tools(tools: Sequence[ToolSpec]) -> list[dict[str, Any]] | None:
    return [tool.openai() for tool in tools] or None


def _call(call: Any, call_id: str) -> ToolCall:
    status = str(call.status)
    if status != "ok":
        return bad_call(
            call_id, call.raw, _STATUS.get(status, ParseStatus.NOT_A_CALL), status.replace("_", " ")
        )
    try:
        return make_call(call_id, call.raw, as_call({"name": call.name, "arguments": call.arguments}))
    except ValueError as error:
        return bad_call(call_id, call.raw, ParseStatus.NOT_A_CALL, str(error))


def _spans(result: Any, turns: Sequence[Turn]) -> Iterator[Span]:
    """Spans of a whole render: sampled tokens are generated, all else is prompt or observation."""
    position, kind = 0, SpanKind.PROMPT
    for generated, group in groupby(
        zip(result.sampled_mask, result.message_indices, strict=True), lambda x: x[0]
    ):
        indices = [index for _, index in group]
        if generated:
            kind = SpanKind.OBSERVATION
            runs = [(turn, len(list(run))) for turn, run in groupby(indices)]
            owners = [(SpanKind.GENERATED, turn, length) for turn, length in runs]
        else:
            owners = _between(indices, turns, kind, position + len(indices), result)
        for owner, turn, length in owners:
            call_id = _call_id(turns[turn]) if owner is SpanKind.OBSERVATION and turn < len(turns) else ""
            yield Span(position, position + length, owner, turn, call_id)
            position += length


def _between(
    indices: list[int], turns: Sequence[Turn], kind: SpanKind, end: int, result: Any
) -> list[tuple[SpanKind, int, int]]:
    following = result.message_indices[end] if end < len(result.message_indices) else len(turns)
    if kind is SpanKind.PROMPT:
        return [(kind, 0 if following == 1 else -1, len(indices))]
    shown = [i if i >= 0 and turns[i].role is not Role.ASSISTANT else None for i in indices]
    return [(kind, turn, len(list(run))) for turn, run in groupby(_filled(shown, following))]


def _filled(shown: list[int | None], default: int) -> list[int]:
    """Glue (None) belongs to the turn it opens, else to the one it closes, else to `default`."""
    filled, following = list(shown), None
    for position in reversed(range(len(filled))):
        following = filled[position] if filled[position] is not None else following
        filled[position] = following
    last = next((index for index in reversed(shown) if index is not None), default)
    return [last if index is None else index for index in filled]


def _call_id(turn: Turn) -> str:
    return turn.result.call_id if turn.result else ""
