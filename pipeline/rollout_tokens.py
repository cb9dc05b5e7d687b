"""The token side of a rollout: a segment under construction, and the two protocols of writing calls.

Sampled ids enter a segment exactly as the engine returned them and are never encoded again; text is
encoded only for what the world says. Not covered: when to sample or stop (`pipeline.rollout_author`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Protocol

from data import canonical
from data.messages import ParseStatus, Role, ToolCall, ToolSpec, Turn, assistant
from data.trajectories import Origin, Segment, Span, SpanKind
from pipeline.engines.base import Completion
from pipeline.renderers.base import Rendered, Renderer
from pipeline.rollout_settings import InlineFormat


class SegmentBuilder:
    """One unbroken token stream being grown: a prompt, then generated and observed runs."""

    def __init__(self, prompt: Rendered, tools: Sequence[ToolSpec]) -> None:
        self.tools = tuple(tools)
        self.token_ids = list(prompt.token_ids)
        self.spans = [span._replace(kind=SpanKind.PROMPT, weights_version="") for span in prompt.spans]
        self.logprobs: list[float] = []

    def __len__(self) -> int:
        return len(self.token_ids)

    def generated(self, completion: Completion, *, turn: int) -> None:
        """Append sampled tokens and their log-probs as a generated span of `turn`."""
        start, end = len(self.token_ids), len(self.token_ids) + len(completion.token_ids)
        self.token_ids.extend(completion.token_ids)
        self.logprobs.extend(completion.logprobs)
        self.spans.append(Span(start, end, SpanKind.GENERATED, turn, "", completion.weights_version))

    def observed(self, rendered: Rendered) -> None:
        """Append what the world said; the spans of `rendered` count from 0."""
        start = len(self.token_ids)
        self.token_ids.extend(rendered.token_ids)
        self.spans.extend(Span(start + span.start, start + span.end, *span[2:]) for span in rendered.spans)

    def copy(self) -> SegmentBuilder:
        """The same stream, to be grown in another way."""
        twin = copy.copy(self)
        twin.token_ids, twin.spans, twin.logprobs = (
            list(self.token_ids),
            list(self.spans),
            list(self.logprobs),
        )
        return twin

    def build(self) -> Segment:
        """The finished segment."""
        return Segment(
            origin=Origin.SAMPLED,
            tools=self.tools,
            token_ids=tuple(self.token_ids),
            spans=tuple(self.spans),
            logprobs=tuple(self.logprobs),
        )


class PromptCache:
    """First prompts by task and tools, so that the rollouts of a group render theirs once."""

    def __init__(self, renderer: Renderer, *, size: int = 256) -> None:
        self._renderer, self._size = renderer, size
        self._prompts: dict[tuple[str, tuple[ToolSpec, ...]], Rendered] = {}

    def render(self, task_id: str, turns: Sequence[Turn], tools: tuple[ToolSpec, ...]) -> Rendered:
        """`turns` is the prompt of `task_id`. The result is shared: read it, never change it."""
        key = (task_id, tools)
        if key not in self._prompts:
            if len(self._prompts) == self._size:
                del self._prompts[next(iter(self._prompts))]
            self._prompts[key] = self._renderer.render(turns, tools)
        return self._prompts[key]


class CallProtocol(Protocol):
    """How calls are read out of sampled tokens and how answers follow them."""

    stop: tuple[str, ...]
    """Stop strings generation must end at."""

    def shown(self, tools: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
        """The tools the prompt is rendered with."""
        ...

    def parse(
        self, token_ids: Sequence[int], *, tools: Sequence[ToolSpec] = (), call_prefix: str = "call"
    ) -> Turn:
        """The assistant turn in sampled tokens: see `Renderer.parse`."""
        ...

    def extend(self, sampled: Sequence[int], turns: Sequence[Turn], *, first_turn: int) -> Rendered:
        """The tokens that follow `sampled`: see `Renderer.extend`."""
        ...


class ChatProtocol:
    """Calls as the chat template writes them; answers are turns."""

    stop: tuple[str, ...] = ()

    def __init__(self, renderer: Renderer) -> None:
        self.parse = renderer.parse
        self.extend = renderer.extend

    def shown(self, tools: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
        """All of them."""
        return tools


class InlineProtocol:
    """Calls between two tags; the answer is spliced into the same template turn, without any glue.

    In the record each resumption is an assistant turn of its own, so that calls and results keep
    their order; in the tokens nothing but the observation stands between them.
    """

    def __init__(self, renderer: Renderer, format: InlineFormat) -> None:
        self.renderer, self.format = renderer, format
        self.stop = format.stop

    def shown(self, tools: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
        """None: the task's own prompt explains the tags."""
        return ()

    def parse(
        self, token_ids: Sequence[int], *, tools: Sequence[ToolSpec] = (), call_prefix: str = "call"
    ) -> Turn:
        """Text of the piece, with the call it ends in, if any."""
        stopped = bool(token_ids) and token_ids[-1] in self.renderer.stop_token_ids
        text = self.renderer.decode(token_ids[:-1] if stopped else token_ids)
        call = self._call(text, call_id=f"{call_prefix}_0")
        return assistant(text, call) if call else assistant(text)

    def _call(self, text: str, *, call_id: str) -> ToolCall | None:
        tags, name = self.format, self.format.tool
        start, end = text.rfind(tags.open), text.rfind(tags.close)
        if start < 0 and end < 0:
            return None
        if start < 0 or 0 <= end < start:
            status, error = ParseStatus.NOT_A_CALL, f"{tags.close} without {tags.open}"
            return ToolCall(call_id=call_id, name=name, arguments="", raw=text, status=status, error=error)
        if end < 0:
            status, error = ParseStatus.TRUNCATED, f"{tags.open} without {tags.close}"
            return ToolCall(
                call_id=call_id, name=name, arguments="", raw=text[start:], status=status, error=error
            )
        raw = text[start : end + len(tags.close)]
        written = raw[len(tags.open) : -len(tags.close)].strip()
        return ToolCall(
            call_id=call_id, name=name, arguments=canonical.dumps({tags.argument: written}), raw=raw
        )

    def extend(self, sampled: Sequence[int], turns: Sequence[Turn], *, first_turn: int) -> Rendered:
        """Results spliced in as plain text; later user turns open a new template turn as in a chat."""
        if any(turn.role is not Role.TOOL for turn in turns):
            return self.renderer.extend(sampled, turns, first_turn=first_turn)
        token_ids: list[int] = []
        spans: list[Span] = []
        for index, turn in enumerate(turns, start=first_turn):
            piece = self.renderer.encode(self.format.observation.replace("{result}", turn.text, 1))
            start = len(token_ids)
            token_ids.extend(piece)
            call_id = turn.result.call_id if turn.result else ""
            spans.append(Span(start, len(token_ids), SpanKind.OBSERVATION, index, call_id))
        return Rendered(token_ids, spans)
