"""Opening a run again: what may not have changed since it was begun."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.lab import digests, recipe, trajsmith, write_recipe


def test_a_changed_environment_does_not_add_to_a_run_of_the_old_one(
    tokenizer: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_recipe(workplace, recipe(tokenizer))
    assert trajsmith("synth", path, "demonstrations").code == 0
    before = digests(Path("runs/small"))
    monkeypatch.setattr("pipeline.environments.toolkit.source_digest", lambda module: "mended")
    for stage in ("demonstrations", "rollouts"):
        done = trajsmith("synth", path, stage)
        assert done.code == 2 and "was begun with counter of version" in done.err, done
    assert digests(Path("runs/small")) == before
    assert trajsmith("synth", path, "--runs", "fresh").code == 0
