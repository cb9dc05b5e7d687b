"""What a user names by dotted path is found in the working directory, and errors say where it broke."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.dotted import load_dotted
from pipeline.environments.registry import load_environment
from pipeline.errors import ConfigError
from pipeline.rewards import build_reward

OWN = """
from pipeline.rewards.base import Measured, ProgramReward, verified

class Twice(ProgramReward):
    name = "twice"

    def measure(self, task, trajectory):
        return Measured(2 * verified(trajectory).total, {})

NUMBER = 7
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("own_"):
            del sys.modules[name]


def test_a_reward_of_the_working_directory_is_found(here: Path) -> None:
    (here / "own_reward.py").write_text(OWN)
    assert build_reward({"name": "own_reward:Twice"}).name == "twice"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("own_reward", "is no dotted path; write package.module:name"),
        (":x", "is no dotted path"),
        ("own_missing:x", "there is no module 'own_missing'"),
        ("own_reward:nope", "own_reward.py) has no 'nope'"),
        ("own_broken:x", "importing it failed: ZeroDivisionError: division by zero ("),
        ("own_broken:x", "own_broken.py, line 2)"),
        ("own_wants:x", "importing it failed: ModuleNotFoundError: No module named 'not_there' ("),
        ("own_wants:x", "own_wants.py, line 1)"),
        ("own_syntax:x", "importing it failed: SyntaxError"),
    ],
)
def test_errors_name_what_is_missing_and_where(here: Path, path: str, text: str) -> None:
    (here / "own_reward.py").write_text(OWN)
    (here / "own_broken.py").write_text("\n1 / 0\n")
    (here / "own_wants.py").write_text("import not_there\n")
    (here / "own_syntax.py").write_text("def (:\n")
    with pytest.raises(ConfigError) as caught:
        load_dotted(path, what="thing")
    assert text in str(caught.value)


def test_what_is_no_reward_or_environment_is_told(here: Path) -> None:
    (here / "own_reward.py").write_text(OWN)
    with pytest.raises(ConfigError, match=r"reward 'own_reward:NUMBER' is a int, no reward class"):
        build_reward({"name": "own_reward:NUMBER"})
    with pytest.raises(ConfigError, match="reward collections:OrderedDict"):
        build_reward({"name": "collections:OrderedDict"})
    with pytest.raises(ConfigError, match="reward pathlib:PurePath lacks by, per_group, score, close"):
        build_reward({"name": "pathlib:PurePath"})
    with pytest.raises(ConfigError, match=r"environment 'own_reward:Twice': Twice lacks version, splits"):
        load_environment("own_reward:Twice")
