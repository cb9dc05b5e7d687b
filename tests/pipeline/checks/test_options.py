"""Options of recipes are checked against what their taker is annotated to take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

import pytest

from data.errors import ConfigError
from pipeline.checks.options import check_least, check_options, check_shares


@dataclass
class Inner:
    rank: int = 8


@dataclass
class Taker:
    k: int = 8
    share: float = 0.5
    limit: int | None = None
    name: str = ""
    on: bool = False
    inner: Inner | None = None
    target: Mapping[str, float] | None = None
    file: str | Path = ""
    kinds: Sequence[str] | str = ()
    mode: Literal["a", "b"] = "a"
    speaker: Speaks | str | None = None
    side: Side = "left"  # type: ignore[assignment]
    names: frozenset[str] = frozenset()
    rows: Sequence[Mapping[str, Any] | Speaks] = ()


class Side(StrEnum):
    LEFT = "left"
    RIGHT = "right"


class Speaks(Protocol):
    def speak(self) -> str: ...


class Base:
    def __init__(self, *, size: int = 0, **options: Any) -> None: ...


class Passes(Base):
    def __init__(self, *, name: str = "", **options: Any) -> None: ...


@pytest.mark.parametrize(
    "options",
    [
        {"k": 3, "share": 1, "limit": None, "name": "a", "on": True},
        {"inner": {"rank": 2}},
        {},
        {"target": {"x": 1}, "file": Path("a"), "kinds": ["a"], "mode": "b", "speaker": object()},
        {"side": "right", "names": ["a"]},
        {"file": "a", "kinds": "a", "speaker": "m:f", "rows": [{"a": 1}, object()]},
    ],
)
def test_what_fits_passes(options: dict[str, Any]) -> None:
    check_options(Taker, options, where="options")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"k": "many"}, "options.k: Input should be a valid integer; got 'many'"),
        ({"k": True}, "options.k: Input should be a valid integer; got True"),
        ({"k": 1.5}, "options.k: .*; got 1.5"),
        ({"k": None}, "options.k: Input should be a valid integer; got None"),
        ({"limit": "x"}, "options.limit: Input should be a valid integer; got 'x'"),
        ({"share": "half"}, "options.share: Input should be a valid number; got 'half'"),
        ({"share": math.nan}, "options.share: Input should be a finite number; got nan"),
        ({"name": 3}, "options.name: Input should be a valid string; got 3"),
        ({"on": "yes"}, "options.on: Input should be a valid boolean; got 'yes'"),
        ({"target": 5}, "options.target must be a mapping to a number or null; got 5"),
        ({"target": {"x": "y"}}, "options.target must be a mapping to a number"),
        ({"file": 3}, "options.file must be a text or a path; got 3"),
        ({"kinds": 3}, "options.kinds must be a list, each a text or a text; got 3"),
        ({"kinds": [3]}, "options.kinds must be a list, each a text"),
        ({"side": "up"}, "options.side must be 'left' or 'right'; got 'up'"),
        ({"names": "a"}, "options.names must be a list, each a text"),
        ({"mode": "c"}, "options.mode must be 'a' or 'b'; got 'c'"),
        ({"speaker": 3}, "options.speaker must be a Speaks or a text or null; got 3"),
        ({"rows": "abc"}, "options.rows must be a list, each a mapping or a Speaks; got 'abc'"),
        ({"rows": {"a": 1}}, "options.rows must be a list"),
        ({"rows": [3]}, "options.rows must be a list"),
        ({"inner": {"rang": 1}}, "options.inner has no rang; it has rank"),
        ({"inner": {"rank": "x"}}, "options.inner.rank: Input should be a valid integer; got 'x'"),
    ],
)
def test_a_wrong_type_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_options(Taker, options, where="options")


def test_options_that_are_passed_on_are_checked_as_well() -> None:
    with pytest.raises(ConfigError, match=r"x.size: Input should be a valid integer; got 'a'"):
        check_options(Passes, {"name": "n", "size": "a", "unknown": 1}, where="x")


def test_ranges_name_the_attribute_the_bound_and_the_value() -> None:
    inner = Inner(rank=0)
    check_least(inner, {"rank": 0})
    with pytest.raises(ConfigError, match="rank must be at least 1, got 0"):
        check_least(inner, {"rank": 1})
    check_shares(inner, "rank")
    with pytest.raises(ConfigError, match="rank is a share between 0 and 1, got 8"):
        check_shares(Inner(), "rank")
