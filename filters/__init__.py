"""Filters: each gives a verdict on a trajectory, one file per filter.

`FILTERS` maps the name used in recipes to the class; `build_filters` makes a chain from recipe rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from data.errors import ConfigError
from filters.astra_score import AstraScore
from filters.base import Filter
from filters.difficulty import Difficulty
from filters.efficiency import Efficiency, GoldLength
from filters.exact_duplicate import ExactDuplicate
from filters.mix import Mix
from filters.rewarded import Rewarded, TaskLookup
from filters.valid_calls import ValidCalls
from filters.verified_outcome import VerifiedOutcome
from pipeline.checks.options import check_options, not_given
from pipeline.rewards.base import GoldCalls

__all__ = ["FILTERS", "build_filters"]

FILTERS: dict[str, type[Any]] = {
    filter_.name: filter_
    for filter_ in (
        AstraScore,
        Difficulty,
        ValidCalls,
        VerifiedOutcome,
        ExactDuplicate,
        Efficiency,
        Rewarded,
        Mix,
    )
}
_NEEDS_WHOLE_POOL = Difficulty.name
_REJECTS_NOTHING = {Difficulty.name}


def build_filters(
    rows: Sequence[Mapping[str, Any]],
    *,
    gold_length: GoldLength | None = None,
    tasks: TaskLookup | None = None,
    gold: GoldCalls | None = None,
) -> list[Filter]:
    """A chain from recipe rows such as `{"name": "efficiency", "max_ratio": 2}`.

    `gold_length` goes to the filters that compare with gold, `tasks` and `gold` to those that score. Raises
    ConfigError that names the unknown filter or option and what exists, a repeated filter, or difficulty that
    would see survivors only.
    """
    given = {"gold_length": gold_length, "tasks": tasks, "gold": gold}
    filters = [_build(row, given) for row in rows]
    rejecting = ""
    for index, filter_ in enumerate(filters):
        if filter_.name in {earlier.name for earlier in filters[:index]}:
            raise ConfigError(f"filter {filter_.name} stands in the chain twice; drop one")
        if filter_.name == _NEEDS_WHOLE_POOL and rejecting:
            raise ConfigError(
                f"filter {filter_.name} stands after {rejecting}, it would see survivors only; put it first"
            )
        if filter_.name not in _REJECTS_NOTHING:
            rejecting = rejecting or filter_.name
    return filters


def _build(row: Mapping[str, Any], given: Mapping[str, Any]) -> Filter:
    options = dict(row)
    name = options.pop("name", None)
    if name not in FILTERS:
        close = get_close_matches(str(name), FILTERS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"unknown filter {name!r}; there are {', '.join(FILTERS)}{hint}")
    parameters = dict(inspect.signature(FILTERS[name]).parameters)
    provided = {key: value for key, value in given.items() if parameters.pop(key, None)}
    if "gold_length" in provided and provided["gold_length"] is None:
        raise ConfigError(f"filter {name} compares with gold, but no demonstrations or gold calls are given")
    if "tasks" in provided and provided["tasks"] is None:
        raise ConfigError(f"filter {name} scores trajectories by their task, but no tasks are given")
    unknown = sorted(set(options) - set(parameters))
    if unknown:
        allowed = ", ".join(parameters) or "none"
        raise ConfigError(
            f"filter {name} has no option {', '.join(map(repr, unknown))}; its options: {allowed}"
        )
    if left_out := not_given(parameters, options):
        raise ConfigError(f"filter {name} needs the option {', '.join(map(repr, left_out))}")
    check_options(FILTERS[name], options, where=f"filter {name}")
    try:
        built: Filter = FILTERS[name](**provided, **options)
    except TypeError as error:
        raise ConfigError(
            f"filter {name} got an option of the wrong type: {error}; options given: {dict(row)}"
        ) from error
    return built
