"""What a loop would do and whether its options are those of its parts, before anything is made."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from flows.stages import run as runs_
from flows.stages.curate import check_filters
from flows.stages.evaluate import check_section, unseen_section
from flows.stages.loop.baselines import SAMPLING, behind_seeds, first_wave, fresh_tasks, seed_section
from flows.stages.loop.training import check_training
from flows.stages.policy import policy_label
from flows.stages.recipe import EvalSection, LoopSection, Recipe
from flows.stages.synthesize import checked_synthesizer, refuse_script, select_tasks
from pipeline.checks.options import check_options
from pipeline.environments.base import Environment
from pipeline.errors import ConfigError
from synthesizers.looptool.agreement import check_temperature
from synthesizers.looptool.expansion import WEIGHTS, K, check_weights, expand
from synthesizers.looptool.judging import check_judge_names
from synthesizers.looptool.probing import probe
from synthesizers.looptool.repairing import repair
from synthesizers.looptool.roles import JUDGES
from synthesizers.looptool.rounds import check_composition, compose
from synthesizers.role_chats import check_chats, setting_name

_PARTS: dict[str, Callable[..., Any]] = {
    "probe": probe,
    "repair": repair,
    "expand": expand,
    "compose": compose,
}
_GIVEN = {
    *(
        "rows",
        "probes",
        "repairs",
        "expansions",
        "fresh",
        "round_number",
        "judges",
        "writer",
        "judge",
        "used",
    ),
    *("engine", "renderer", "environment", "load", "load_task", "sampling", "settings", "max_in_flight"),
    *("done", "failed", "seed", "run_id", "plan", "capabilities"),
}
"""What the loop gives its parts; everything else they take is an option of the recipe."""
ROLES = (JUDGES, "sample_writer", "sample_judge")


def loop_plan(recipe: Recipe, *, rounds: int = 0) -> list[str]:
    """One line per part. ConfigError where the recipe asks for a split or tasks that are not there."""
    section, environment = recipe.loop, runs_.environment_of(recipe)
    most = rounds or section.rounds
    check_loop(recipe)
    check_tasks(recipe.model_copy(update={"loop": section.model_copy(update={"rounds": most})}), environment)
    fresh = ", ".join(str(fresh_tasks(section, number)) for number in range(1, most + 1))
    arms = ("looptool", *section.arms)
    tokens = f"{section.tokens} tokens" if section.tokens else "no token limit"
    held_out = [f"{each.tasks} tasks of {each.split}" for each in held_out_sections(recipe, environment)]
    each = f"at most about {section.train_tokens} row tokens" if section.train_tokens else "all of its data"
    return [
        f"start model: {section.seeds.tasks} seeds of {section.seeds.synthesizer} on {environment.name}, "
        f"trained as sft.settings say",
        f"at most {most} rounds ({tokens}), less after {section.patience} rounds that gain under "
        f"{section.min_gain:.1%}; fresh seeds by round: {fresh}",
        f"each round and arm ({', '.join(arms)}) trains on {each} by {section.train} "
        f"and evaluates {section.dev.tasks} tasks of {section.dev.split}",
        f"at the end {' and '.join(held_out)} for {len(arms) + 1} models",
    ]


def check_tasks(recipe: Recipe, environment: Environment) -> None:
    """ConfigError where a split that the loop reads, be it at its very end, has too few tasks."""
    section = recipe.loop
    for number in range(section.rounds + 1):
        seeds = seed_section(section, number)
        select_tasks(environment, seeds.split, count=seeds.tasks, skip=seeds.skip)
    if SAMPLING in section.arms:
        wave = section.rounds * first_wave(section, recipe.policy.max_in_flight)
        select_tasks(environment, section.seeds.split, count=wave, skip=behind_seeds(section))
    for read in (section.dev, recipe.evaluate):
        check_section(read, environment)
        if not read.tasks_of:
            select_tasks(environment, read.split, count=read.tasks)


def held_out_sections(recipe: Recipe, environment: Environment) -> list[EvalSection]:
    """The recipe's held-out evaluation, and up to half as many tasks of unseen templates."""
    section = recipe.evaluate
    unseen = unseen_section(section, environment, most=max(1, section.tasks // 2))
    return [section] if unseen is None else [section, unseen]


def check_loop(recipe: Recipe) -> None:
    """ConfigError where the section names an option, a role or a synthesizer that there is not."""
    section = recipe.loop
    checked_synthesizer(section.seeds)
    if recipe.policy.engine == "scripted":
        refuse_script(section.seeds)
    check_filters(recipe.curate, policy_name=policy_label(recipe.policy))
    check_chats(section.chat, section.chats, known=ROLES, method="loop")
    check_training(recipe)
    for name, part in _PARTS.items():
        _check_part(part, getattr(section, name), where=f"loop.{name}")
    _check_values(section)
    if section.expand.get("teacher") == "agreement":
        check_temperature(recipe.policy.temperature)


def _check_values(section: LoopSection) -> None:
    """ConfigError where a value of the right type makes no sense: before a model is trained for it."""
    if (k := section.expand.get("k", K)) < 0:
        raise ConfigError(f"loop.expand.k is at least 0, got {k}")
    check_weights(section.expand.get("weights") or WEIGHTS)
    check_composition(**section.compose)
    named = (section.chats[role] for role in sorted(section.chats) if fnmatchcase(role, JUDGES))
    judges = [setting_name(judge) for judge in named if judge is not None]
    if judges:
        check_judge_names(judges)


def _check_part(part: Callable[..., Any], options: dict[str, Any], *, where: str) -> None:
    allowed = sorted(set(inspect.signature(part).parameters) - _GIVEN)
    if unknown := sorted(set(options) - set(allowed)):
        raise ConfigError(f"{where}: unknown {', '.join(unknown)}; there are {', '.join(allowed) or 'none'}")
    check_options(part, options, where=where)
