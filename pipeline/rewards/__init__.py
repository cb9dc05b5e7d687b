"""Rewards by name, one line each; `build_reward` makes one from a recipe row.

A user's own reward is named by its dotted path (`package.module:Class`).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pipeline.checks.options import check_options, not_given
from pipeline.dotted import is_dotted, load_dotted
from pipeline.errors import ConfigError, TrajsmithError
from pipeline.rewards.base import GoldCalls, RewardFunction

__all__ = ["REWARDS", "build_reward", "helped_by_gold", "needs_gold"]

REWARDS = {
    "verified": "pipeline.rewards.verified:Verified",
    "code": "pipeline.rewards.code_tests:CodeTests",
    "math": "pipeline.rewards.math_answer:MathAnswer",
    "search": "pipeline.rewards.search:Search",
    "sql": "pipeline.rewards.sql:Sql",
    "data_analysis": "pipeline.rewards.data_analysis:DataAnalysis",
    "call_match": "pipeline.rewards.call_match:CallMatch",
    "call_graded": "pipeline.rewards.call_graded:CallGraded",
    "call_f1": "pipeline.rewards.call_f1:CallF1",
    "end_state": "pipeline.rewards.end_state:EndState",
    "efficient": "pipeline.rewards.efficient:Efficient",
    "tool_cost": "pipeline.rewards.tool_cost:ToolCost",
    "three_dimensions": "pipeline.rewards.three_dimensions:ThreeDimensions",
    "overlong": "pipeline.rewards.overlong:Overlong",
    "weighted": "pipeline.rewards.weighted:Weighted",
    "judge": "pipeline.rewards.judge:Judge",
    "judge_pairs": "pipeline.rewards.judge_pairs:JudgePairs",
    "checklist": "pipeline.rewards.checklist:Checklist",
    "rubrics": "pipeline.rewards.rubrics:Rubrics",
}
"""Name to class; loaded only when asked for."""


def build_reward(
    row: Mapping[str, Any], *, gold: GoldCalls | None = None, state_dir: Path | None = None
) -> RewardFunction:
    """The reward of a recipe row such as `{"name": "tool_cost", "weight": 0.1}`.

    `gold` goes to rewards that compare with gold calls, `state_dir` to those that learn while they run.
    Raises ConfigError that names the unknown reward or option and what exists.
    """
    kind, options = _kind(row), {key: value for key, value in row.items() if key != "name"}
    parameters = _parameters(kind, row)
    provided = {"gold": gold, "state_dir": state_dir}
    given = {key: value for key, value in provided.items() if parameters.pop(key, None) is not None}
    where = f"reward {row['name']}"
    anything = any(value.kind is value.VAR_KEYWORD for value in parameters.values())
    parameters = {
        key: value
        for key, value in parameters.items()
        if value.kind not in (value.VAR_KEYWORD, value.VAR_POSITIONAL)
    }
    unknown = [] if anything else sorted(set(options) - set(parameters))
    if unknown:
        allowed = ", ".join(parameters) or "none"
        raise ConfigError(f"{where} has no option {', '.join(map(repr, unknown))}; its options: {allowed}")
    if left_out := not_given(parameters, options):
        raise ConfigError(f"{where} needs the option {', '.join(map(repr, left_out))}")
    check_options(kind, options, where=where)
    try:
        built: RewardFunction = kind(**given, **options)
    except TrajsmithError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{where} got an option it cannot use: {error}; given: {dict(row)}") from error
    lacking = [part for part in ("name", "by", "per_group", "score", "close") if not hasattr(built, part)]
    if lacking:
        raise ConfigError(f"{where} lacks {', '.join(lacking)}; docs/rewards.md (Your own) shows a reward")
    return built


def needs_gold(row: Mapping[str, Any]) -> bool:
    """Whether the reward of a row, or a part of it, cannot do without the calls of gold solutions."""
    own = getattr(_kind(row), "needs_gold", False) and not (row.get("gold_key") or row.get("solved"))
    return bool(own) or any(needs_gold(part) for part in _parts(row))


def helped_by_gold(row: Mapping[str, Any]) -> bool:
    """Whether the reward of a row, or a part of it, says more where gold calls are known."""
    return bool(getattr(_kind(row), "helped_by_gold", False)) or any(map(helped_by_gold, _parts(row)))


def _parts(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    parts = [part.get("reward") for part in row.get("parts", ()) if isinstance(part, Mapping)]
    return [part for part in parts if isinstance(part, Mapping)]


def _parameters(kind: Any, row: Mapping[str, Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(kind).parameters)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"reward {row['name']} is no reward class: {error}") from error


def _kind(row: Mapping[str, Any]) -> Any:
    name = row.get("name")
    known = f"there are {', '.join(REWARDS)}; your own: package.module:Class"
    path = REWARDS.get(str(name), str(name))
    if not is_dotted(path):
        close = get_close_matches(str(name), REWARDS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"unknown reward {name!r}; {known}{hint}")
    kind = load_dotted(path, what="reward", hint=known)
    if not callable(kind):
        raise ConfigError(f"reward {name!r} is a {type(kind).__name__}, no reward class; {known}")
    return kind
