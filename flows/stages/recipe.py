"""The recipe: the frozen configuration of a run, read from YAML, checked once, stored resolved.

A recipe names what to do; it holds no live object and imports nothing heavy. The settings of the
trainers are plain mappings here and are checked by `rl` when a training stage starts. Not covered:
where a run lives (`flows.stages.run`).
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from data.aliases import load_counted
from pipeline.checks.credentials import refuse_credentials
from pipeline.errors import ConfigError
from pipeline.memory.entries import Kind
from pipeline.rollout_settings import ContextPolicy

_HOW_SERVED = (
    "url",
    "api_key_env",
    "max_in_flight",
    "server_args",
    "kv_cache_gib",
    "start_seconds",
    "patience_seconds",
    "group_seconds",
)
VOLATILE = ("description", "curate", *(f"policy.{key}" for key in _HOW_SERVED))
"""Keys that may change between two runs of one directory without making a finished stage new.

Curation is made anew each time it is asked for and plays nothing, so other filters are no other run.
"""


GROWING = (
    *("synth.*.tasks", "synth.*.options.k", "evaluate.tasks", "evaluate.rollouts", "loop.rounds"),
    "loop.tokens",
)
"""Keys that may become larger in a run that is there: only what is missing is then made."""


_MOST = 2**31 - 1
"""Larger numbers fit neither a column nor a server."""
_MOST_VALUES = 100_000
"""Values of a recipe's file, its aliases copied."""


FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]


class Section(BaseModel):
    """Base of all sections: immutable; an unknown key is an error that names the nearest known one."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_number_is_true(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses true where a number belongs and 1 where true does: pydantic takes either for the other."""
        annotation = cls.model_fields[str(info.field_name)].annotation
        kinds = {*get_args(annotation), annotation}
        if isinstance(value, bool) and bool not in kinds and kinds & {int, float}:
            raise ValueError("Input should be a number")
        if isinstance(value, int | float) and not isinstance(value, bool) and bool in kinds:
            raise ValueError("Input should be true or false")
        return value


class EnvironmentSection(Section):
    """Which environment, and the options its factory takes."""

    name: str = "travel_desk"
    """A shipped name or `package.module:factory`."""
    options: dict[str, Any] = {}


class MemorySection(Section):
    """Workflows that the policy is shown in its prompt; see `pipeline.memory`."""

    path: str
    """A memory's file, or the folder `memory` of the run that made it."""
    kind: Kind = Kind.ECHO
    max_entries: int = Field(default=5, ge=1, le=_MOST)
    """Of the workflows that share a word with the request, the best fitting ones."""


class PolicySection(Section):
    """The model that acts, and how it is sampled unless a stage says otherwise."""

    engine: Literal["vllm", "scripted"] = "vllm"
    """`scripted` plays the environment's gold without a model: to try a recipe, not to train by."""
    mistakes: float = Field(default=0.2, ge=0.0, le=1.0)
    """Probability that a turn of the scripted policy goes wrong; a model makes its own mistakes."""
    model: str = "smollm2"
    """A known name or a directory with safetensors and a tokenizer (`scripted`: a tokenizer is enough)."""
    url: str = ""
    """Base URL of a running server; "" starts one for the run and ends it afterwards."""
    api_key_env: str = ""
    """The environment variable that holds the key of the server at `url`."""
    served_name: str = ""
    """The server's name of the model; "" is the one `trajsmith serve` gives, "policy"."""
    temperature: float = Field(default=1.0, ge=0.0)
    max_turn_tokens: int = Field(default=96, ge=1, le=_MOST)
    """New tokens per assistant turn."""
    max_context_tokens: int = Field(default=2048, ge=64, le=_MOST)
    context_policy: ContextPolicy = ContextPolicy.NONE
    """When the next turn does not fit: `none` ends the episode; `drop_old_results` starts a new segment with
    older results left out; `summarise` lets the policy write a summary that a new segment shows instead."""
    keep_results: int = Field(default=2, ge=0, le=_MOST)
    """Newest tool results that `drop_old_results` leaves in place."""
    summary_tokens: int = Field(default=256, ge=1, le=_MOST)
    """New tokens of a summary; one that does not end within them ends the episode."""
    train_summaries: bool = False
    """Whether a summary's tokens are trained like the turns; not, they are context only."""
    max_parallel_calls: int = Field(default=8, ge=1, le=_MOST)
    """Calls executed per turn; each surplus call is told so."""
    group_seconds: float | None = Field(default=None, gt=0.0)
    """Seconds after a group's first rollout began at which its stragglers are cut."""
    max_in_flight: int = Field(default=32, ge=1, le=100_000)
    """Episodes at a time."""
    patience_seconds: float = Field(default=120.0, gt=0.0)
    """Seconds without any answer after which a server that is down or overloaded is given up."""
    kv_cache_gib: int = Field(default=1, ge=1, le=4096)
    """GiB of prompts the server remembers, where it is started without a GPU."""
    start_seconds: float = Field(default=300.0, gt=0.0)
    """Seconds that the server that is started has until it answers."""
    server_args: tuple[str, ...] = ()
    """Further arguments of the server that is started."""
    memory: MemorySection | None = None
    """What the policy is shown in every episode."""


class SynthSection(Section):
    """One synthesis: which synthesizer, over which tasks."""

    synthesizer: str
    split: str = "train"
    tasks: int = Field(ge=1, le=_MOST)
    skip: int = Field(default=0, ge=0, le=_MOST)
    """Tasks of the split to pass over first, so that stages can use disjoint tasks."""
    options: dict[str, Any] = {}


class CurateSection(Section):
    """The filters, in order; each a mapping with `name` and the filter's options."""

    filters: tuple[dict[str, Any], ...] = ({"name": "valid_calls"}, {"name": "verified_outcome"})
    synthesizers: tuple[str, ...] = ()
    """Curate only trajectories of these synthesizers; empty = all."""


class SftSection(Section):
    """Supervised fine-tuning."""

    data: str = "curated"
    """`curated`, or the name of a synthesizer: its successful trajectories as they are in the store."""
    settings: dict[str, Any] = {}
    """Fields of `rl.sft.SftConfig`."""


class GrpoSection(Section):
    """Reinforcement learning from a model that can already act."""

    split: str = "train"
    tasks: int = Field(default=64, ge=1, le=_MOST)
    """Tasks the steps take in turn."""
    skip: int = Field(default=0, ge=0, le=_MOST)
    tasks_of: str = ""
    """A synthesizer: train on what it planned from the split, as many as there are up to `tasks`."""
    only_measured: bool = True
    """Train on the tasks whose measured solve rate in the store is neither 0 nor 1, where there are any."""
    reward: dict[str, Any] = {"name": "verified"}
    """What is trained on: a reward's name and options. Verified success is reported whatever it is."""
    settings: dict[str, Any] = {}
    """Fields of `rl.grpo.GrpoConfig`."""


class EvalSection(Section):
    """Evaluation: free-running episodes on tasks that training never saw."""

    split: str = "heldout"
    tasks: int = Field(default=100, ge=1, le=_MOST)
    temperature: float = Field(default=0.0, ge=0.0)
    rollouts: int = Field(default=1, ge=1, le=_MOST)
    """Episodes per task; more than one needs a temperature above 0."""
    tasks_of: str = ""
    """A synthesizer: evaluate on what it planned from the split, as many as there are up to `tasks`. Such
    tasks are in the store that training reads: the result says so, and is no held-out one."""
    memory: MemorySection | None = None
    """Shown in evaluations only, in place of the policy's."""

    @field_validator("rollouts")
    @classmethod
    def _no_copies(cls, rollouts: int, info: ValidationInfo) -> int:
        """Refused here already, so that it is never settled as a run's recipe."""
        if rollouts > 1 and info.data.get("temperature") == 0:
            raise ValueError(f"rollouts {rollouts} at temperature 0 repeat one episode; set a temperature")
        return rollouts


class GateSection(Section):
    """What a round of a loop may not make worse on the dev split."""

    protect: tuple[str, ...] = ("tag:*", "call:*")
    """Protected capabilities, by name or pattern; all dev tasks together are protected always."""
    least: int = Field(default=10, ge=1, le=_MOST)
    """Dev tasks below which a capability that only a pattern names is not judged."""
    tolerance: float = Field(default=0.05, ge=0.0, le=1.0)
    """Loss of success, as a share of the tasks, that is let pass."""
    significance: float = Field(default=0.2, gt=0.0, le=1.0)
    """Largest chance at which a larger loss counts (exact, paired, adjusted); 1 = every larger loss."""


class LoopSection(Section):
    """Rounds of probe, repair, expand, curate, train and evaluate, and the arms they are compared with."""

    rounds: int = Field(default=2, ge=1, le=1000)
    """Most rounds after the start model."""
    tokens: int = Field(default=0, ge=0, le=_MOST)
    """Trainer row tokens + sampled tokens of all rounds together, never exceeded by a round as dear as the
    dearest so far; 0 = no such limit."""
    patience: int = Field(default=2, ge=1, le=_MOST)
    """Rounds without gain after which the loop has reached its plateau."""
    min_gain: float = Field(default=0.01, ge=0.0, le=1.0)
    """Gain of dev success, as a share, that ends a plateau."""
    seeds: SynthSection = SynthSection(synthesizer="demonstration", tasks=160)
    """The data the start model is trained on and the first round probes."""
    fresh: int = Field(default=32, ge=0, le=_MOST)
    """Tasks never seen before whose seeds the first round adds; every further round adds half as many."""
    probe: dict[str, Any] = {}
    """Options of `synthesizers.looptool.probing`."""
    repair: dict[str, Any] = {}
    """Options of `synthesizers.looptool.repairing`."""
    expand: dict[str, Any] = {}
    """Options of `synthesizers.looptool.expansion`."""
    compose: dict[str, Any] = {}
    """Options of `synthesizers.looptool.rounds`."""
    chat: Any = None
    """Who plays every role of repair and expansion that `chats` does not name; None = execution decides."""
    chats: dict[str, Any] = {}
    """Role (label_judge_1, label_judge_2, ..., sample_writer, sample_judge) to chat."""
    train: Literal["sft", "grpo"] = "sft"
    """How the rounds of the loop and of `static` are trained: supervised, or by GRPO on single steps."""
    train_tokens: int = Field(default=0, ge=0, le=_MOST)
    """Row tokens a round trains on at the most, to the nearest step (with grpo: and samples in training);
    0 = the settings' epochs or steps over its data, however many."""
    settings: dict[str, Any] = {}
    """Fields of `rl.sft.SftConfig` that differ from `sft.settings` in the rounds of all arms; with
    `train: grpo` fields of `rl.grpo.GrpoConfig` that differ from `grpo.settings`."""
    dev: EvalSection = EvalSection(split="dev")
    """What is evaluated after every round, and all that the loop decides by."""
    gate: GateSection = GateSection()
    arms: tuple[Literal["static", "rejection_sampling"], ...] = ("static", "rejection_sampling")
    """Baselines: the same steps on all seeds; own successes at equal sampled tokens and the same steps."""
    k: int = Field(default=4, ge=1, le=_MOST)
    """Rollouts per task of the arm `rejection_sampling`."""

    @field_validator("arms")
    @classmethod
    def _named_once(cls, arms: tuple[str, ...]) -> tuple[str, ...]:
        """Each arm once: a second one of a name would be the first again, counted twice."""
        if len(set(arms)) < len(arms):
            raise ValueError(f"each arm can be named once, got {', '.join(arms)}")
        return arms


class Recipe(Section):
    """The configuration of one run."""

    name: FileName
    description: str = ""
    seed: int = Field(default=0, ge=0, le=_MOST)
    environment: EnvironmentSection = EnvironmentSection()
    policy: PolicySection = PolicySection()
    synth: dict[FileName, SynthSection] = {}
    """Stage name -> synthesis."""
    curate: CurateSection = CurateSection()
    sft: SftSection = SftSection()
    grpo: GrpoSection = GrpoSection()
    evaluate: EvalSection = EvalSection()
    loop: LoopSection = LoopSection()


def default_recipe() -> dict[str, Any]:
    """What a key has where a recipe does not name it; `synth.*` stands for any synthesis."""
    synth = SynthSection(synthesizer="", tasks=1).model_dump(mode="json")
    return Recipe(name="default").model_dump(mode="json") | {"synth": {"*": synth}}


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping, of which YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key.value!r} stands twice", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def load_recipe(path: Path) -> Recipe:
    """Read and check a recipe file. Raises ConfigError naming file, key, value and what is allowed."""
    if not os.path.isfile(path):  # Path.is_file raises for a name that is too long
        raise ConfigError(f"recipe {path} does not exist; write one or start from examples/demo.yaml")
    try:
        text = path.read_text(encoding="utf-8")
        value = load_counted(text, _UniqueKeys, where=f"recipe {path}", most=_MOST_VALUES)
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or no such date
        raise ConfigError(f"recipe {path} is not YAML in UTF-8: {error}") from error
    except OSError as error:
        raise ConfigError(f"recipe {path} cannot be read: {error.strerror}") from error
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise ConfigError(f"recipe {path} holds a {kind}, not a mapping; see examples/demo.yaml")
    return parse_recipe(value, source=str(path))


def parse_recipe(value: dict[str, Any], *, source: str = "recipe") -> Recipe:
    """Check a recipe given as a mapping; `source` names it in errors."""
    try:
        refuse_credentials(value, where=source)
        recipe = Recipe.model_validate(value)
    except RecursionError as error:
        raise ConfigError(f"{source} holds a value that contains itself; write it out") from error
    except ValidationError as error:
        problems = "\n".join(f"  {_describe(item)}" for item in error.errors())
        raise ConfigError(f"{source} is not a valid recipe:\n{problems}") from error
    _refuse_held_out(recipe, source)
    return recipe


def _refuse_held_out(recipe: Recipe, source: str) -> None:
    """ConfigError where a stage that feeds training takes tasks of a split that evaluations read.

    Planned tasks are evaluated in the split that they were planned from, so that one is not held out.
    """
    evaluated = recipe.evaluate
    if evaluated.tasks_of and evaluated.split.startswith("heldout"):
        raise ConfigError(
            f"{source}: evaluate.split is {evaluated.split!r}, from which a run plans nothing; with "
            f"tasks_of: {evaluated.tasks_of} name the split that it plans from, such as train"
        )
    held_out = ("heldout",) if evaluated.tasks_of else ("heldout", evaluated.split)
    used = {f"synth.{name}.split": section.split for name, section in recipe.synth.items()}
    if "grpo" in recipe.model_fields_set:
        used["grpo.split"] = recipe.grpo.split
    if "loop" in recipe.model_fields_set:
        used |= {"loop.seeds.split": recipe.loop.seeds.split, "loop.dev.split": recipe.loop.dev.split}
        if recipe.loop.dev.tasks_of:
            raise ConfigError(
                f"{source}: a loop is judged on its environment's own tasks; leave out loop.dev.tasks_of"
            )
        if recipe.loop.dev.split == recipe.loop.seeds.split:
            raise ConfigError(
                f"{source}: loop.dev.split and loop.seeds.split are both {recipe.loop.dev.split!r}; a loop "
                f"is judged on tasks that it does not train on, such as dev"
            )
    for key, split in used.items():
        if any(split == name or split.startswith(f"{name}_") for name in held_out):
            raise ConfigError(
                f"{source}: {key} is {split!r}, which evaluations read; train on another split, such as train"
            )


def _describe(item: Any) -> str:
    """One line for one pydantic error: where, what was given, what is allowed."""
    where = ".".join(str(key) for key in item["loc"])
    if item["type"] == "extra_forbidden":
        known = _fields_at(item["loc"][:-1])
        near = difflib.get_close_matches(str(item["loc"][-1]), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(known)}"
        return f"{where}: unknown key; {hint}"
    return f"{where}: {item['msg'].removeprefix('Value error, ')}; got {item['input']!r}"


def _fields_at(path: tuple[int | str, ...]) -> list[str]:
    """Names of the fields of the section at `path` of a recipe."""
    model: type[BaseModel] = Recipe
    for key in path:
        field = model.model_fields.get(str(key))
        if field is None:
            continue
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), model)
    return sorted(model.model_fields)
