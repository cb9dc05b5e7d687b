"""The tasks of the files world: seeded, disjoint across splits by the digest of the request.

`heldout_unseen` has the unseen templates only and shows every tool under another name. Every task shows the
tools it needs and up to two others. Not covered: one tree shared by several tasks.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any

from data import canonical
from data.messages import assistant, system, user
from data.tasks import Budget, Task
from pipeline.environments.files.templates import TEMPLATES, Template
from pipeline.environments.files.tree import Tree
from pipeline.environments.files.world import RENAMED, FilesSession
from pipeline.environments.gold import Plan, PlannedGold, call
from pipeline.environments.splits import UNSEEN, split_of
from pipeline.environments.templated import TemplatedEnvironment, with_distractors
from pipeline.errors import ConfigError

MAX_DRAWS = 400


class Files(TemplatedEnvironment[Template]):
    """`templates`: only these (names of TEMPLATES); by default all. A choice changes no task."""

    name = "files"
    session = FilesSession
    all_templates = TEMPLATES
    renamed = RENAMED

    def stream(self, template: Template, split: str) -> Iterator[Task]:
        """One tree after the other."""
        return (draw_task(template, split, index) for index in itertools.count())

    def gold(self, task: Task) -> PlannedGold:
        """The listed calls, then the answer or DONE."""
        return PlannedGold(_plan(task, self.rename(task)))


def load(**options: Any) -> Files:
    """The files environment; options are those of Files."""
    return Files(**options)


def draw_task(template: Template, split: str, index: int) -> Task:
    """The `index`-th task of a template in a split."""
    for attempt in range(MAX_DRAWS):
        tree = Tree(random.Random(f"files/{split}/{template.name}/{index}/{attempt}"))
        request = template.draw(tree)
        if split in (UNSEEN, split_of(request)):
            tree.add_noise()
            return _task(template, split, tree, request)
    raise ConfigError(f"template {template.name} has too few requests: no draw of {MAX_DRAWS} is in {split}")


def _task(template: Template, split: str, tree: Tree, request: str) -> Task:
    shown = with_distractors(template.tools, FilesSession, tree.rng)
    rename = RENAMED if split == UNSEEN else {}
    files = dict(tree.rng.sample(sorted(tree.files.items()), len(tree.files)))
    private = {
        "files": tree.expected,
        "answer": tree.answer,
        # One text each, because the paths in them may well stand in the request.
        "must_read": canonical.dumps(tree.must_read),
        "steps": canonical.dumps(tree.steps),
    }
    return Task(
        environment="files",
        split=split,
        template=template.name,
        tags=template.tags,
        prompt=(system(template.system), user(request)),
        tools=tuple(rename.get(name, name) for name in shown),
        state=canonical.dumps({"files": files, "read": []}),
        private=canonical.dumps(private),
        verifier="files/end_state/2",
        budget=Budget(max_turns=len(tree.steps) + 4, max_tokens=512 + 96 * len(tree.steps)),
    )


def _plan(task: Task, rename: Mapping[str, str]) -> Plan:
    private = task.private_value()
    for name, arguments in canonical.loads(private["steps"]):
        yield call(rename.get(name, name), **arguments)
    yield assistant(private["answer"] or "DONE")
