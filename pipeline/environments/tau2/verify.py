"""The benchmark's verdict on one episode: its evaluators of end state, actions and what was communicated.

`EnvironmentEvaluator` replays all calls of both sides on a fresh world, runs the reference actions on another
and compares; a reply that differs when replayed is an error, no reward. The product over the task's own
`reward_basis` is the total, as in the benchmark's `evaluate_simulation`, which is not imported because it
brings the judge's vendors. Not covered: natural-language assertions: no task of the base set has them in its
basis, and a task that does cannot be judged here.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data import canonical
from data.messages import Role, Turn
from data.tasks import Task
from pipeline.environments.tau2.package import load_module
from pipeline.environments.tau2.worlds import Side, make_environment


@dataclass(frozen=True, slots=True)
class PlayedCall:
    """A call that reached the world, of either side."""

    side: Side
    name: str
    arguments: dict[str, Any]
    text: str


def judge(task: Task, calls: Sequence[PlayedCall], turns: Sequence[Turn]) -> dict[str, float]:
    """`success` and what it is made of; `turns` are those after the prompt. Raises where it cannot judge."""
    state = task.state_value()
    row = task_model(task)
    messages = [*_tool_messages(calls), *_texts(turns)]
    environment = _end_state(state, row, messages)
    actions = _evaluator("action", "ActionEvaluator").calculate_reward(row, messages)
    said = _evaluator("communicate", "CommunicateEvaluator").calculate_reward(row, messages)
    basis = {kind.value for kind in row.evaluation_criteria.reward_basis}
    if "NL_ASSERTION" in basis:
        raise ValueError("the task is judged by natural-language assertions, which need a judge")
    asserted = all(check.met for check in environment.env_assertions or [])
    parts = {
        "DB": float(environment.db_check.db_match if environment.db_check else True),
        "ENV_ASSERTION": float(asserted),
        "ACTION": float(actions.reward),
        "COMMUNICATE": float(said.reward),
    }
    success = all(parts[kind] == 1.0 for kind in basis)
    return {"success": float(success), **{kind.lower(): value for kind, value in parts.items()}}


def task_model(task: Task) -> Any:
    """The benchmark's own record of a task."""
    state = task.state_value()
    return load_module("data_model.tasks").Task.model_validate(
        {
            "id": state["name"],
            "user_scenario": {"instructions": ""},
            "initial_state": state["initial"],
            "evaluation_criteria": canonical.loads(task.private_value()["criteria"]),
        }
    )


def _end_state(state: dict[str, Any], row: Any, messages: list[Any]) -> Any:
    with warnings.catch_warnings():
        # A tool that keeps an argument of another type than its field's makes pydantic warn while hashing.
        warnings.simplefilter("ignore")
        return _evaluator("env", "EnvironmentEvaluator").calculate_reward(
            environment_constructor=functools.partial(make_environment, state["domain"]),
            task=row,
            full_trajectory=messages,
            solo_mode=state["solo"] and state["domain"] == "telecom",
        )


def _evaluator(module: str, name: str) -> Any:
    return getattr(load_module(f"evaluator.evaluator_{module}"), name)


def _tool_messages(calls: Sequence[PlayedCall]) -> list[Any]:
    kinds = load_module("data_model.message")
    messages = []
    for index, call in enumerate(calls):
        made = kinds.ToolCall(id=str(index), name=call.name, arguments=call.arguments, requestor=call.side)
        speaker = kinds.AssistantMessage if call.side == "assistant" else kinds.UserMessage
        messages.append(speaker(role=call.side, tool_calls=[made]))
        messages.append(kinds.ToolMessage(id=str(index), role="tool", content=call.text, requestor=call.side))
    return messages


def _texts(turns: Sequence[Turn]) -> list[Any]:
    """What the agent said; the evaluators look for words in it, wherever they stand."""
    kind = load_module("data_model.message").AssistantMessage
    said = [turn.text for turn in turns if turn.role is Role.ASSISTANT and turn.text.strip()]
    return [kind(role="assistant", content=text) for text in said]
