"""Our environment under verl: an AgentLoop that plays our rollout loop on verl's own inference servers.

    # my_project/loop.py, named in verl's agent-loop config
    TravelDesk = agent_loop(load_environment("travel_desk"), split="train", model_dir=Path("my-model"))

verl's tool classes cannot carry a stateful environment: its own loop creates and releases an instance for
every single call. So the whole loop is replaced. Tokens come from verl's server manager and go back
untouched, with the mask of our spans and the sampled log-probs; `reward_score` is the verifier's total. A
rollout that the infrastructure broke is played again; broken again it raises, because verl has no row
without a reward.

Written to the interface of verl/experimental/agent_loop (AgentLoopBase.run, AgentLoopOutput) and tested
against a stand-in of it; tried by hand with the classes of verl 0.9.1. Its trainer needs a GPU and was not
run. Not covered: context policies that start a new segment (verl takes one token stream), images, verl's own
reward functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.tasks import Task
from data.trajectories import SpanKind, Termination, Trajectory
from pipeline.engines.base import Completion, FinishReason, Sampling
from pipeline.environments.adapters.rows import first_tasks
from pipeline.environments.base import Environment
from pipeline.errors import (
    ConfigError,
    EngineError,
    EngineProtocolError,
    EnvironmentFailure,
    MissingExtraError,
)
from pipeline.renderers.base import Renderer
from pipeline.renderers.load import load_renderer
from pipeline.rollout import RolloutSettings, rollout

_ATTEMPTS = 2


@dataclass
class VerlEngine:
    """An Engine over verl's server manager: token ids in, token ids and log-probs out."""

    manager: Any
    request_id: str
    name: str = "verl"
    weights_version: str = ""

    async def generate(
        self, token_ids: list[int], sampling: Sampling, *, n: int = 1, affinity: str = ""
    ) -> list[Completion]:
        """One continuation. EngineProtocolError where verl was not told to calculate log-probs."""
        if n != 1:
            raise ConfigError(f"verl's server manager samples one completion a request, {n} were asked for")
        params = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "stop_token_ids": list(sampling.stop_token_ids),
            "logprobs": True,
        }
        output = await self.manager.generate(
            request_id=self.request_id, prompt_ids=token_ids, sampling_params=params
        )
        sampled, logprobs = tuple(output.token_ids), output.log_probs
        if logprobs is None:
            raise EngineProtocolError(
                "verl returned no log-probs; set actor_rollout_ref.rollout.calculate_log_probs=True"
            )
        if getattr(output, "stop_reason", None) == "aborted":
            raise EngineError("verl's server aborted the request, which says nothing of the model")
        stopped = bool(sampled) and sampled[-1] in sampling.stop_token_ids
        reason = FinishReason.STOP if stopped else FinishReason.LENGTH
        return [Completion(sampled, tuple(logprobs), reason, self.weights_version)]

    async def score(self, token_ids: list[int]) -> list[float]:
        """verl's rollout servers do not score."""
        raise ConfigError("verl's server manager scores no given tokens; use an engine of kind vllm")

    async def close(self) -> None:
        """Nothing of ours to release."""


def agent_loop(
    environment: Environment,
    *,
    split: str,
    model_dir: Path,
    tasks: int = 10_000,
    settings: RolloutSettings | None = None,
) -> type[Any]:
    """A subclass of verl's AgentLoopBase for the first `tasks` tasks of `split`.

    A dataset row needs `task_id` (`verl_rows` makes them). Raises MissingExtraError without verl.
    """
    try:
        from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput
    except ImportError as error:
        raise MissingExtraError(
            f"verl is not installed ({error}); follow its own installation guide, it needs a GPU stack"
        ) from error
    known = {task.task_id: task for task in first_tasks(environment, split, tasks)}
    renderer = load_renderer(model_dir)

    async def run(self: Any, sampling_params: Mapping[str, Any], **row: Any) -> Any:
        """One rollout of the row's task."""
        task = known.get(str(row.get("task_id")))
        if task is None:
            raise ConfigError(
                f"row with task_id {row.get('task_id')!r} is none of the {len(known)} tasks of split {split}"
            )
        output = await play_for_verl(
            task,
            environment=environment,
            renderer=renderer,
            manager=self.server_manager,
            sampling_params=sampling_params,
            settings=settings or RolloutSettings(),
        )
        return AgentLoopOutput(**output)

    return type("TrajsmithAgentLoop", (AgentLoopBase,), {"run": run, "__doc__": agent_loop.__doc__})


def verl_rows(environment: Environment, *, split: str, tasks: int, agent_name: str) -> list[dict[str, Any]]:
    """Rows of verl's dataset: `prompt`, `task_id`, `agent_name`, and the columns it always asks for."""
    return [
        {
            "prompt": [{"role": str(turn.role), "content": turn.text} for turn in task.prompt],
            "task_id": task.task_id,
            "agent_name": agent_name,
            "data_source": environment.name,
            "reward_model": {"style": "rule", "ground_truth": ""},
        }
        for task in first_tasks(environment, split, tasks)
    ]


async def play_for_verl(
    task: Task,
    *,
    environment: Environment,
    renderer: Renderer,
    manager: Any,
    sampling_params: Mapping[str, Any],
    settings: RolloutSettings,
) -> dict[str, Any]:
    """The fields of an AgentLoopOutput. Raises EnvironmentFailure where the infrastructure broke twice."""
    sampling = Sampling(
        temperature=float(sampling_params.get("temperature", 1.0)),
        top_p=float(sampling_params.get("top_p", 1.0)),
        max_tokens=int(sampling_params.get("max_tokens") or Sampling().max_tokens),
        stop_token_ids=renderer.stop_token_ids,
    )
    for attempt in range(_ATTEMPTS):
        request_id = f"{task.task_id}-{id(sampling)}-{attempt}"
        trajectory = await rollout(
            task,
            environment=environment,
            engine=VerlEngine(manager, request_id),
            renderer=renderer,
            sampling=sampling,
            settings=settings,
            attempt=attempt,
            synthesizer="verl",
        )
        if trajectory.termination is not Termination.INFRA_FAILURE:
            return verl_fields(trajectory)
    raise EnvironmentFailure(
        f"task {task.task_id} broke {_ATTEMPTS} times, last: {trajectory.error}; "
        f"verl has no row without a reward"
    )


def verl_fields(trajectory: Trajectory) -> dict[str, Any]:
    """Prompt and response ids, mask, log-probs and reward of a rollout of one segment. Raises ConfigError."""
    if len(trajectory.segments) != 1:
        raise ConfigError(
            f"trajectory {trajectory.trajectory_id} has {len(trajectory.segments)} segments and verl takes "
            f"one token stream; use context_policy none"
        )
    segment = trajectory.segments[0]
    start = next((s.start for s in segment.spans if s.kind is SpanKind.GENERATED), len(segment.token_ids))
    mask = segment.loss_mask(trajectory.turns)
    return {
        "prompt_ids": list(segment.token_ids[:start]),
        "response_ids": list(segment.token_ids[start:]),
        "response_mask": [int(weight > 0) for weight in mask[start:]],
        "response_logprobs": segment.token_logprobs()[start:],
        "reward_score": None if trajectory.reward is None else trajectory.reward.total,
        "num_turns": len(trajectory.turns),
        "metrics": {"tool_calls": float(trajectory.usage.tool_calls)},
        "extra_fields": {"task_id": trajectory.task_id, "termination": str(trajectory.termination)},
    }
