"""What a recipe may not say although every key of it is valid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from data.errors import ConfigError
from flows.stages.demo import DEMO_RECIPE
from flows.stages.prove import CONTROL, TRAINING
from flows.stages.prove_methods import METHODS
from flows.stages.recipe import load_recipe, parse_recipe

ROLES_RECIPE = DEMO_RECIPE.with_name("roles.yaml")
LOOPS = (DEMO_RECIPE.with_name("loop.yaml"), DEMO_RECIPE.with_name("loop-files.yaml"))
SYNTH = {"synthesizer": "demonstration", "tasks": 1}


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ({"synth": {"a": SYNTH | {"split": "heldout"}}}, "synth.a.split is 'heldout'"),
        ({"synth": {"a": SYNTH | {"split": "heldout_unseen"}}}, "synth.a.split is 'heldout_unseen'"),
        ({"grpo": {"split": "heldout"}, "evaluate": {"split": "dev"}}, "grpo.split is 'heldout'"),
        ({"grpo": {"split": "dev"}, "evaluate": {"split": "dev"}}, "grpo.split is 'dev'"),
    ],
)
def test_what_evaluations_read_trains_nothing(value: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        parse_recipe({"name": "leaky", **value})


def test_the_shipped_recipes_and_a_dev_split_for_training_pass() -> None:
    proofs = (proof.recipe for proof in (TRAINING, CONTROL, METHODS))
    for path in (DEMO_RECIPE, ROLES_RECIPE, *LOOPS, *proofs):
        load_recipe(path)
    assert parse_recipe({"name": "small", "grpo": {"split": "dev"}}).grpo.split == "dev"
    assert parse_recipe({"name": "small", "evaluate": {"split": "train"}}).evaluate.split == "train"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"policy": {"max_turn_tokens": True}}, "policy.max_turn_tokens: Input should be a number; got True"),
        ({"policy": {"group_seconds": True}}, "policy.group_seconds: Input should be a number; got True"),
        ({"policy": {"temperature": False}}, "policy.temperature: Input should be a number; got False"),
        ({"seed": True}, "seed: Input should be a number; got True"),
        ({"synth": {"a": SYNTH | {"tasks": True}}}, "synth.a.tasks: Input should be a number; got True"),
        ({"loop": {"dev": {"tasks": True}}}, "loop.dev.tasks: Input should be a number; got True"),
        ({"grpo": {"only_measured": 0}}, "grpo.only_measured: Input should be true or false; got 0"),
        (
            {"policy": {"train_summaries": 1.0}},
            "policy.train_summaries: Input should be true or false; got 1.0",
        ),
    ],
)
def test_true_is_no_number_and_no_number_is_true(value: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse_recipe({"name": "typed", **value})


def test_what_is_a_number_or_true_or_false_is_taken() -> None:
    policy = {"max_turn_tokens": 1, "temperature": 1, "train_summaries": True, "group_seconds": None}
    read = parse_recipe({"name": "typed", "policy": policy}).policy
    assert (read.max_turn_tokens, read.temperature, read.train_summaries) == (1, 1.0, True)


def test_aliases_that_do_not_multiply_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("name: a\nsynth:\n  one: &one {synthesizer: demonstration, tasks: 3}\n  two: *one\n")
    read = load_recipe(path).synth
    assert read["one"] == read["two"] and read["two"].tasks == 3
