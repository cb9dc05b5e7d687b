"""The benchmark's verdict on one episode: its two comparison functions, driven over worlds of our own.

Upstream's driver, `multi_turn_checker`, caches instances in globals and evaluates call strings, so only
`state_checker` and `response_checker` are taken from it, and its loop over user turns is written here: the
agent's calls and gold's are run on two fresh sets of instances; after each turn in which gold calls
something, the agent must have called something, the public attributes must be equal, and every answer gold
got in this turn must be among those the agent got so far. The first failure ends it. Not covered: the order
of calls, which upstream does not judge either.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data.tasks import Task
from pipeline.environments.bfcl.worlds import World, read_gold


@dataclass(frozen=True, slots=True)
class PlayedCall:
    """A call the session executed. `request` is the index of the user turn it was made in."""

    request: int
    name: str
    arguments: dict[str, Any]
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """`passed` of `total` user turns were right before `failure`: "called", "state", "responses" or ""."""

    passed: int
    total: int
    failure: str = ""

    def components(self) -> dict[str, float]:
        """`success`, the share of turns passed, and a 0 for the comparison that failed."""
        checks = {name: float(name != self.failure) for name in ("called", "state", "responses")}
        return {"success": float(not self.failure), "turns": self.passed / self.total, **checks}


def judge(task: Task, calls: Sequence[PlayedCall]) -> Outcome:
    """The verdict on the calls of one episode. RuntimeError where an answer differs this time."""
    gold = task.private_value()["gold"]
    own, truth = fresh_world(task), fresh_world(task)
    answers: list[str] = []
    for index, turn in enumerate(gold):
        played = [call for call in calls if call.request == index]
        answers += [_again(own, call) for call in played]
        wanted = [truth.call(*read_gold(text, tuple(truth.instances))).text for text in turn]
        failure = _failure(own, truth, answers, wanted, index, called=bool(played)) if turn else ""
        if failure:
            return Outcome(index, len(gold), failure)
    return Outcome(len(gold), len(gold))


def fresh_world(task: Task) -> World:
    """A world in the task's initial state."""
    state = task.state_value()
    return World(state["classes"], state["config"], long_context=state.get("long_context", False))


def _again(world: World, call: PlayedCall) -> str:
    text = world.call(call.name, copy.deepcopy(call.arguments)).text  # worlds keep and change arguments
    if text != call.text:
        raise RuntimeError(
            f"{call.name} answered {call.text!r:.80} in the episode, {text!r:.80} when replayed"
        )
    return text


def _failure(
    own: World, truth: World, answers: list[str], wanted: list[str], index: int, *, called: bool
) -> str:
    checker = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")
    if not called:
        return "called"
    if not checker.state_checker(own.instances, truth.instances)["valid"]:
        return "state"
    return "" if checker.response_checker(answers, wanted, index)["valid"] else "responses"
