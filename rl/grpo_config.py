"""Settings of policy-gradient training, each default with its reason."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from data.errors import ConfigError
from pipeline.engines.base import Sampling
from rl.advantages import AdvantageKind, SingletonRule
from rl.lm import LoraSettings, Precision
from rl.selection import SelectionSettings
from rl.settings import adopt_nested, adopt_text
from synthesizers.tree_search.settings import SearchSettings


class LossType(StrEnum):
    """How token losses are averaged (TRL's names)."""

    DAPO = "dapo"
    """Sum over the step's trained tokens / their number."""
    DR_GRPO = "dr_grpo"
    """Sum / (rows x episode_tokens): a constant, so length is neither rewarded nor punished."""
    GRPO = "grpo"
    """Mean over a row's tokens, then over rows: favours short good and long bad episodes."""
    CISPO = "cispo"
    """Capped, detached ratio times log-prob: no token loses its gradient. `epsilon_high` is the cap."""


class Correction(StrEnum):
    """Per-token weight w = p(trainer, before the update) / p(sampler) against the sampler's mismatch."""

    TIS = "tis"
    """min(w, correction_max)."""
    MIS = "mis"
    """w where correction_min <= w <= correction_max, else 0."""
    NONE = "none"


class PushKind(StrEnum):
    """What the model server gets after each step."""

    WEIGHTS = "weights"
    """A whole checkpoint (an adapter merged in); the server's digest is compared with ours."""
    ADAPTER = "adapter"
    """The LoRA adapter; the server must have been started with adapters on."""


_MEMBERS: dict[str, type[StrEnum]] = {
    "advantage": AdvantageKind,
    "singletons": SingletonRule,
    "loss_type": LossType,
    "correction": Correction,
    "precision": Precision,
    "push": PushKind,
}


_NOT_SEMANTIC = ("checkpoint_every", "tokens_per_pass", "share_prefixes", "max_in_flight")
"""Settings that change how the work is done, not what comes out (but for rounding)."""
_OPTIONAL = ("token_budget", "selection", "search", "group_share")
"""Settings that change nothing where they are not set, and are then no part of a run's identity."""


@dataclass(frozen=True, slots=True)
class GrpoConfig:
    """How to train on groups. There is no KL term (beta 0): a second model doubles memory and time, and
    verifiable rewards need no anchor; entropy and the sampler gap are watched instead."""

    steps: int = 20
    """Optimiser steps of the run."""
    token_budget: int = 0
    """End after the step with which row tokens + sampled tokens reach this, dropped candidates included;
    0 = `steps` alone. It is what compares rollouts of different cost at equal compute."""
    groups_per_step: int = 8
    """Tasks per step: each gives one group."""
    group_size: int = 8
    """Rollouts per task (online). Below 4 the group's mean is too noisy to centre on."""
    selection: SelectionSettings | None = None
    """Make `oversample` times as many rollouts and train on `group_size` of them (`rl.selection`)."""
    search: SearchSettings | None = None
    """Make rollouts by tree search (online), `group_size / search.width` searches per task. With `pick: soft`
    advantages carry weights that make the gradient the policy's own; with `top` it is biased, and said so."""
    group_share: float = 1.0
    """Share of a step's groups that is trained on: those whose rewards vary most (TSR's instance filter)."""
    episode_tokens: int = 2048
    """Most tokens of a whole episode. Trainers that bound the completion alone cut multi-turn episodes."""
    overlong: str = "error"
    """What a longer row does: "error", or "drop" (counted); it is never cut, for its end holds the reward."""
    advantage: AdvantageKind = AdvantageKind.GRPO
    singletons: SingletonRule = SingletonRule.REFUSE
    loss_type: LossType = LossType.DAPO
    """Every trained token counts alike: per-row means punish a long failed episode less per token."""
    epsilon: float = 0.2
    """Ratio clip, lower side."""
    epsilon_high: float = 0.28
    """Ratio clip, upper side: higher, so that rare good tokens may gain probability."""
    correction: Correction = Correction.TIS
    """Online mode, per token: a sequence-level product grows with length and zeroes long episodes
    (4,000 tokens of log w = 0.001 each make 54.6). In replay the ratio itself is against the sampler."""
    correction_min: float = 0.5
    """Lower bound of MIS."""
    correction_max: float = 2.0
    """Cap of TIS, upper bound of MIS."""
    allow_truncated_sampling: bool = False
    """Accept top_p, top_k or min_p. They sample from another distribution than is trained, so a
    `correction` must be named with it."""
    temperature: float = 1.0
    """Of sampling and of the trained distribution: at 1 what is trained is what the model is."""
    num_iterations: int = 1
    """Optimiser steps per batch of rollouts; each counts as a step."""
    learning_rate: float = 5e-6
    """Constant: runs are short, and a decaying rate hides whether learning goes on."""
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    tokens_per_pass: int = 2048
    """Most computed tokens per forward pass; memory grows with it (about 1 MB each for 135M parameters)."""
    share_prefixes: bool = True
    """Compute a group's common prompt once; the gradients are the same."""
    precision: Precision = Precision.BFLOAT16
    lora: LoraSettings | None = None
    push: PushKind = PushKind.WEIGHTS
    max_in_flight: int = 64
    """Rollouts at a time (online)."""
    checkpoint_every: int = 0
    """Steps between checkpoints; 0 = none."""
    seed: int = 0

    def __post_init__(self) -> None:
        adopt_text(self, _MEMBERS)
        adopt_nested(self, "selection", SelectionSettings)
        adopt_nested(self, "search", SearchSettings)
        for name in (
            "steps",
            "groups_per_step",
            "group_size",
            "episode_tokens",
            "num_iterations",
            "tokens_per_pass",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in (
            "epsilon",
            "epsilon_high",
            "temperature",
            "learning_rate",
            "max_grad_norm",
            "correction_max",
        ):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}")
        if self.token_budget < 0:
            raise ConfigError(f"token_budget must be at least 0, got {self.token_budget}")
        if not 0 < self.group_share <= 1:
            raise ConfigError(f"group_share must be above 0 and at most 1, got {self.group_share}")
        if self.group_size == 1 and self.singletons is SingletonRule.REFUSE:
            raise ConfigError(
                "group_size 1 leaves nothing to centre over; raise it, or set singletons to 'reinforce'"
            )
        if self.loss_type is LossType.CISPO and self.epsilon_high < 1:
            raise ConfigError(
                f"with cispo, epsilon_high is the cap of the ratio (about 5), got {self.epsilon_high}"
            )
        if self.overlong not in ("error", "drop"):
            raise ConfigError(f"overlong must be 'error' or 'drop', got {self.overlong!r}")
        if self.allow_truncated_sampling and self.correction is Correction.NONE:
            raise ConfigError("allow_truncated_sampling needs a correction ('tis' or 'mis'), got 'none'")
        if self.search is not None:
            self._check_search(self.search)
        if self.push is PushKind.ADAPTER and self.lora is None:
            raise ConfigError("push 'adapter' needs lora settings, got lora=None; use push 'weights'")

    def _check_search(self, search: SearchSettings) -> None:
        if self.selection is not None:
            raise ConfigError("selection and search both choose what is trained on; set one of them")
        if self.group_size % search.width:
            raise ConfigError(
                f"group_size {self.group_size} is no multiple of search.width {search.width}, and a search "
                f"gives that many trajectories; change one of them"
            )

    @property
    def num_rollouts(self) -> int:
        """Rollouts made per task."""
        return self.group_size * (self.selection.oversample if self.selection else 1)

    def identity(self) -> dict[str, Any]:
        """What makes two runs the same work, as plain values."""
        unset = {f.name for f in fields(self) if f.name in _OPTIONAL and getattr(self, f.name) == f.default}
        return {name: value for name, value in asdict(self).items() if name not in {*_NOT_SEMANTIC, *unset}}

    def check_sampling(self, sampling: Sampling) -> None:
        """ConfigError unless what `sampling` draws from can be trained on."""
        if sampling.truncated and not self.allow_truncated_sampling:
            raise ConfigError(
                f"truncated sampling (top_p={sampling.top_p}, top_k={sampling.top_k}, min_p="
                f"{sampling.min_p}) draws from another distribution than is trained; sample without it, or "
                f"set allow_truncated_sampling and a correction"
            )
        if sampling.temperature != self.temperature:
            raise ConfigError(
                f"rollouts at temperature {sampling.temperature} cannot be trained at temperature "
                f"{self.temperature}; make them equal (and above 0)"
            )
