"""How good a step is: named scores of a branch as it stands, added up with the weights of a search.

- `outcome`: the verifier's total where the episode is over, else 0.
- `step_reward`: sum of the rewards that tools gave so far.
- `component/NAME`: a component of the verifier's, asked as if the agent ended here (of a copy of the world),
  e.g. `component/turns`, the share of a blueprint's user turns that went well.
- `gold_match`: the calls so far against gold's, graded as by ToolRL (arXiv 2504.13958) and cut to [0, 1].
- `errors`: minus the number of calls that were malformed or that their tool answered with an error, told by
  status.
- `logprob`: mean log-probability per token of everything the policy said; it asks nothing of the world.

`component/NAME` and `gold_match` read what the task keeps private, as the reward does: they may steer what is
trained on, never what is evaluated, so tasks of held-out splits are refused. Not covered: judges.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from data.tasks import Task
from pipeline.checks.matching import made_calls
from pipeline.environments.base import Environment
from pipeline.environments.splits import EVALUATED
from pipeline.errors import ConfigError
from pipeline.rewards.base import GoldCalls
from pipeline.rewards.call_graded import graded_parts
from pipeline.rewards.gold import played_calls
from synthesizers.tree_search.branch import Branch, num_errors

COMPONENT = "component/"


@dataclass(slots=True)
class StepScores:
    """The weighted scores of branches of tasks of one environment."""

    environment: Environment
    weights: Mapping[str, float]
    _gold: dict[str, GoldCalls] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.weights:
            if name not in SCORES and not name.startswith(COMPONENT):
                known = ", ".join(sorted(SCORES))
                raise ConfigError(f"no step score {name!r}; there are {known} and {COMPONENT}NAME")

    def check(self, task: Task) -> None:
        """ConfigError where a score would read the private part of a task that evaluations read."""
        private = [name for name in self.weights if name == "gold_match" or name.startswith(COMPONENT)]
        if private and task.split.startswith(EVALUATED):
            raise ConfigError(
                f"step score {private[0]} reads what task {task.task_id} keeps private, and its split "
                f"{task.split!r} is evaluated on; search on a training split, or without this score"
            )

    async def parts(self, branch: Branch) -> dict[str, float]:
        """Every score of a branch, unweighted. Raises what judging raises."""
        found = {}
        for name in self.weights:
            if name.startswith(COMPONENT):
                found[name] = await _component(branch, name.removeprefix(COMPONENT))
            else:
                found[name] = await SCORES[name](self, branch)
        return found

    def total(self, parts: Mapping[str, float]) -> float:
        """The weighted sum."""
        return math.fsum(weight * parts[name] for name, weight in self.weights.items())

    async def gold(self, task: Task) -> GoldCalls:
        """The calls of the task's gold, which is played once."""
        if task.task_id not in self._gold:
            self._gold[task.task_id] = await played_calls(self.environment, [task])
        return self._gold[task.task_id]


async def _outcome(scores: StepScores, branch: Branch) -> float:
    reward = branch.so_far().reward if branch.over else None
    return reward.total if reward is not None else 0.0


async def _step_reward(scores: StepScores, branch: Branch) -> float:
    given = (turn.result.reward for turn in branch.turns if turn.result is not None)
    return math.fsum(reward for reward in given if reward is not None)


async def _gold_match(scores: StepScores, branch: Branch) -> float:
    wanted = (await scores.gold(branch.task))[branch.task.task_id]
    return graded_parts(wanted, made_calls(branch.turns))["correctness"] / 6 + 0.5


async def _errors(scores: StepScores, branch: Branch) -> float:
    return -float(num_errors(branch.turns))


async def _logprob(scores: StepScores, branch: Branch) -> float:
    said = branch.author.logprobs
    return math.fsum(said) / len(said) if said else 0.0


async def _component(branch: Branch, name: str) -> float:
    reward = await branch.judged_now()
    given = {part.name: part.value for part in reward.components}
    if name in given:
        return given[name]
    if branch.over and not given:  # a budget that is exhausted is not judged: its fixed total stands in
        return reward.total
    raise ConfigError(
        f"step score {COMPONENT}{name}: verifier {reward.verifier} of {branch.environment.name} gives "
        f"{', '.join(given) or 'no components'}; name one of these in search.scores, or another score"
    )


SCORES: dict[str, Callable[[StepScores, Branch], Awaitable[float]]] = {
    "outcome": _outcome,
    "step_reward": _step_reward,
    "gold_match": _gold_match,
    "errors": _errors,
    "logprob": _logprob,
}
