"""Worlds whose tasks are drawn from templates: which templates, whose turn it is, under which tool names.

Every template of a split draws a stream of its own, and the chosen ones take turns, so that a choice of
templates changes no task. `heldout_unseen` has the unseen templates only, and shows tools under other names
where a world has such names. Not covered: how a template draws a task.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from data.tasks import Task
from pipeline.environments.splits import NUM_TASKS, UNSEEN
from pipeline.environments.toolkit import ToolEnvironment, ToolSession, all_tools
from pipeline.errors import ConfigError

MAX_DISTRACTORS = 2


class NamedTemplate(Protocol):
    """What is asked of a template here."""

    @property
    def name(self) -> str:
        """Its name, which an option may choose."""
        ...

    @property
    def unseen(self) -> bool:
        """Whether it is one of `heldout_unseen`."""
        ...


Drawn = TypeVar("Drawn", bound=NamedTemplate)


class TemplatedEnvironment(ToolEnvironment, Generic[Drawn]):
    """`templates`: only these; by default all. Subclasses set `all_templates`, perhaps `renamed`."""

    splits = tuple(NUM_TASKS)
    all_templates: Mapping[str, Drawn]
    renamed: ClassVar[Mapping[str, str]] = {}
    """Own name of a tool to the one that `heldout_unseen` shows."""

    def __init__(self, *, templates: Sequence[str] | None = None, **options: Any) -> None:
        super().__init__(**options)
        known = self.all_templates
        unknown = [name for name in templates or () if name not in known]
        if unknown:
            raise ConfigError(f"{self.name} has no templates {unknown}; it has {', '.join(known)}")
        self.templates = tuple(templates or known)

    @abstractmethod
    def stream(self, template: Drawn, split: str) -> Iterator[Task]:
        """The tasks of one template in a split, without end."""

    def tasks(self, split: str) -> Iterator[Task]:
        """`NUM_TASKS[split]` tasks, the templates taking turns."""
        self.check_split(split)
        chosen = [self.all_templates[name] for name in self.templates]
        streams = [self.stream(made, split) for made in chosen if made.unseen == (split == UNSEEN)]
        for index in range(NUM_TASKS[split] if streams else 0):
            yield next(streams[index % len(streams)])

    def rename(self, task: Task) -> Mapping[str, str]:
        """The other names in `heldout_unseen`."""
        return self.renamed if task.split == UNSEEN else {}


def with_distractors(needed: Sequence[str], kind: type[ToolSession], rng: random.Random) -> list[str]:
    """The needed tools of a session class and up to MAX_DISTRACTORS others, shuffled."""
    others = [name for name in all_tools(kind) if name not in needed]
    shown = [*needed, *rng.sample(others, min(len(others), rng.randint(0, MAX_DISTRACTORS)))]
    rng.shuffle(shown)
    return shown
