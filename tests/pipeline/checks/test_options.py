"""Options of recipes are checked against what their taker is annotated to take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from data.errors import ConfigError
from pipeline.checks.options import check_options


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


@pytest.mark.parametrize(
    "options",
    [{"k": 3, "share": 1, "limit": None, "name": "a", "on": True}, {"inner": {"rank": 2}}, {"target": 5}, {}],
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
        ({"inner": {"rank": "x"}}, "options.inner.rank: Input should be a valid integer; got 'x'"),
    ],
)
def test_a_wrong_type_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_options(Taker, options, where="options")
