"""A deterministic engine that ships: a function or a policy over turns writes the continuations.

Same prompt, sampling and seed give the same completion, whatever runs beside it. Faults are planned
by call number, latency by a function and an injected sleep, so tests need no clock and no patches.
Log-probs are made up but reproducible; nothing here is a language model.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum

from data import canonical
from data.messages import Turn
from pipeline.engines.base import Completion, FinishReason, Sampling
from pipeline.errors import EngineError, EngineProtocolError
from pipeline.renderers.base import Renderer

Continue = Callable[[Sequence[int], random.Random], Sequence[int]]
"""Prompt ids and a generator seeded by (prompt, seed, sample index) to the ids that follow, stop included."""

TurnPolicy = Callable[[Sequence[int], random.Random], Turn]
"""The same, but the policy writes an assistant turn."""


class Fault(StrEnum):
    """What a planned fault does to one call."""

    DIE = "die"
    """This call and all later ones raise EngineError."""
    ERROR = "error"
    """Only this call raises EngineError."""
    HANG = "hang"
    """The call never returns."""
    GARBAGE = "garbage"
    """The call raises EngineProtocolError."""
    FEW_LOGPROBS = "few_logprobs"
    """The completion lacks its last log-prob, as a caller that trusts engines would see it."""


class ScriptedEngine:
    """Continuations by `continue_`; `faults` maps the number of a `generate` call (from 0) to a fault."""

    def __init__(
        self,
        continue_: Continue,
        *,
        name: str = "scripted",
        weights_version: str = "scripted-0",
        faults: dict[int, Fault] | None = None,
        latency: Callable[[int], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`latency` gives the seconds of a call from its number of new tokens."""
        self.name, self.weights_version = name, weights_version
        self._continue, self._faults, self._latency, self._sleep = (
            continue_,
            dict(faults or {}),
            latency,
            sleep,
        )
        self.num_calls = 0
        self._dead = False

    async def generate(
        self, token_ids: list[int], sampling: Sampling, *, n: int = 1, affinity: str = ""
    ) -> list[Completion]:
        """See `Engine.generate`."""
        fault = self._faults.get(self.num_calls)
        self.num_calls += 1
        await self._suffer(fault)
        completions = [self._complete(token_ids, sampling, index) for index in range(n)]
        if self._latency:
            await self._sleep(self._latency(max(len(one.token_ids) for one in completions)))
        if fault is Fault.FEW_LOGPROBS:
            completions = [_without_last_logprob(one) for one in completions]
        return completions

    async def score(self, token_ids: list[int]) -> list[float]:
        """See `Engine.score`; agrees with what `generate` returns for the same tokens."""
        return [_logprob(token_ids[:end], token_ids[end]) for end in range(1, len(token_ids))]

    async def close(self) -> None:
        """Nothing to release."""

    async def _suffer(self, fault: Fault | None) -> None:
        if fault is Fault.DIE:
            self._dead = True
        if self._dead or fault is Fault.ERROR:
            raise EngineError(f"scripted engine {self.name!r}: planned failure at call {self.num_calls - 1}")
        if fault is Fault.GARBAGE:
            raise EngineProtocolError(
                f"scripted engine {self.name!r}: planned garbage at call {self.num_calls - 1}"
            )
        if fault is Fault.HANG:
            await asyncio.Event().wait()

    def _complete(self, prompt: list[int], sampling: Sampling, index: int) -> Completion:
        seed = canonical.digest(list(prompt), sampling.seed, index if sampling.temperature > 0 else 0)
        written = list(self._continue(prompt, random.Random(seed)))
        kept = written[: sampling.max_tokens]
        reason = FinishReason.STOP if len(kept) == len(written) else FinishReason.LENGTH
        return Completion(tuple(kept), _logprobs(prompt, kept), reason, self.weights_version)


def continue_turns(policy: TurnPolicy, renderer: Renderer) -> Continue:
    """A policy over turns as a continuation: its turn is rendered as the model would have written it."""

    def write(prompt: Sequence[int], rng: random.Random) -> Sequence[int]:
        rendered = renderer.render([policy(prompt, rng)], generation_prompt=False)
        generated = [span for span in rendered.spans if span.kind == "generated"]
        if len(generated) != 1:
            raise EngineError(f"the policy's turn rendered to {len(generated)} generated spans, expected 1")
        return rendered.token_ids[generated[0].start : generated[0].end]

    return write


def continue_text(answer: Callable[[str, random.Random], str], renderer: Renderer) -> Continue:
    """A text-to-text function as a continuation; the stop token is added."""

    def write(prompt: Sequence[int], rng: random.Random) -> Sequence[int]:
        return [*renderer.encode(answer(renderer.decode(prompt), rng)), renderer.stop_token_ids[0]]

    return write


def _logprobs(prompt: Sequence[int], new: Sequence[int]) -> tuple[float, ...]:
    return tuple(_logprob([*prompt, *new[:index]], token) for index, token in enumerate(new))


def _logprob(context: Sequence[int], token: int) -> float:
    """A number in (-2, 0) from the last three tokens and this one."""
    text = ",".join(map(str, [*context[-3:], token]))
    return -2.0 * int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") / 2**32


def _without_last_logprob(completion: Completion) -> Completion:
    return Completion(
        completion.token_ids, completion.logprobs[:-1], completion.finish_reason, completion.weights_version
    )
