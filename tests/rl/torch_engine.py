"""A small served model in this process: samples with torch from the checkpoint it was last given."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from data.messages import ToolResult, ToolSpec, Turn, system, user
from data.tasks import Budget, Task
from data.trajectories import Reward, SpanKind, Trajectory
from pipeline.engines.base import Completion, FinishReason, Sampling
from rl.models import checkpoint_digest


class TorchEngine:
    """An `UpdatableEngine` over a tiny checkpoint; `pushes` counts weight updates."""

    name = "tiny"

    def __init__(self, directory: Path) -> None:
        self.weights_version, self.pushes = "", 0
        self._model: Any = AutoModelForCausalLM.from_pretrained(directory).eval()
        self._base = directory

    async def generate(
        self, token_ids: list[int], sampling: Sampling, *, n: int = 1, affinity: str = ""
    ) -> list[Completion]:
        generator = torch.Generator().manual_seed(sampling.seed or 0)
        return [self._sample(list(token_ids), sampling, generator) for _ in range(n)]

    @torch.no_grad()
    def _sample(self, ids: list[int], sampling: Sampling, generator: torch.Generator) -> Completion:
        tokens: list[int] = []
        logprobs: list[float] = []
        while len(tokens) < sampling.max_tokens and (not tokens or tokens[-1] not in sampling.stop_token_ids):
            logits = self._model(input_ids=torch.tensor([ids + tokens])).logits[0, -1] / sampling.temperature
            distribution = torch.log_softmax(logits, -1)
            tokens.append(int(torch.multinomial(distribution.exp(), 1, generator=generator)))
            logprobs.append(float(distribution[tokens[-1]]))
        stopped = tokens[-1] in sampling.stop_token_ids
        reason = FinishReason.STOP if stopped else FinishReason.LENGTH
        return Completion(tuple(tokens), tuple(logprobs), reason, self.weights_version)

    async def score(self, token_ids: list[int]) -> list[float]:
        raise NotImplementedError

    async def reload_weights(self, directory: Path) -> str:
        self._model = AutoModelForCausalLM.from_pretrained(directory).eval()
        self.weights_version, self.pushes = checkpoint_digest(directory), self.pushes + 1
        return self.weights_version

    async def load_adapter(self, directory: Path, *, name: str = "adapter", version: str) -> None:
        from peft import PeftModel

        base = AutoModelForCausalLM.from_pretrained(self._base)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            self._model = PeftModel.from_pretrained(base, directory).merge_and_unload().eval()
        self.weights_version, self.pushes = version, self.pushes + 1

    async def close(self) -> None:
        return None


class FirstTokenWorld:
    """One-turn episodes; the reward is 1 where the first generated token is even."""

    name, version, splits = "first_token", "1", ("train",)

    def __init__(self, count: int = 4, *, instruction: str = "name", question: str = "city {}") -> None:
        self._tasks = [
            Task(
                environment=self.name,
                split="train",
                template="t",
                prompt=(system(instruction), user(question.format(index))),
                verifier="first_token/1",
                budget=Budget(max_turns=1, max_tokens=256),
            )
            for index in range(count)
        ]

    def tasks(self, split: str) -> Iterator[Task]:
        return iter(self._tasks)

    async def open(self, task: Task, *, seed: int = 0) -> FirstTokenSession:
        return FirstTokenSession()

    def gold(self, task: Task) -> Any:
        raise NotImplementedError


class FirstTokenSession:
    """See `FirstTokenWorld`."""

    tools: tuple[ToolSpec, ...] = ()

    async def call(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        raise NotImplementedError

    async def next_user(self, turns: Any) -> Turn | None:
        return None

    def snapshot(self) -> bytes:
        return b""

    def restore(self, snapshot: bytes) -> None:
        return None

    async def verify(self, trajectory: Trajectory) -> Reward:
        segment = trajectory.segments[0]
        start = next(span.start for span in segment.spans if span.kind is SpanKind.GENERATED)
        return Reward(total=float(segment.token_ids[start] % 2 == 0), verifier="first_token/1")

    async def close(self) -> None:
        return None
