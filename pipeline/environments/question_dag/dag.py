"""Sub-questions as a dependency graph, and the rules that a graph must keep. Everything fails closed.

A sub-question's text names the answers it builds on as `#0`, `#1`, ...: the numbers it names are its
dependencies, neither more nor fewer, so that an edge which nothing uses cannot stand. A leaf is a
sub-question that no other builds on. Rules (ASTRA, arXiv 2601.21558, section 6 of its pipeline: dependency
indices, non-tool sub-questions only at leaves; the others are ours): indices exist, no cycle, at most `hops`
sub-questions, one question each, a sub-question without a tool is a leaf, one leaf gives the final answer and
every sub-question leads to it. Not covered: what only a reader can tell (four judges, `synthesizers.astra`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from pipeline.checks.answers import bare, exact_match
from pipeline.environments.python_math.answers import read_number

MAX_STEPS = 16
_REFERENCE = re.compile(r"#(\d{1,3})(?!\d)")


class Strict(BaseModel):
    """Base of what is read from files: immutable, strictly typed, no unknown keys. Read it from JSON text."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SubQuestion(Strict):
    """One node. Example: `SubQuestion(text="What is the crew of #0?", answer="42", depends_on=(0,))`."""

    text: str = Field(min_length=1, max_length=600)
    answer: str = Field(min_length=1, max_length=300)
    depends_on: tuple[int, ...] = Field(default=(), max_length=MAX_STEPS)
    needs_tool: bool = True


class QuestionDag(Strict):
    """A question, its answer and its sub-questions, in any order that `depends_on` allows."""

    question: str = Field(min_length=1, max_length=2000)
    answer: str = Field(min_length=1, max_length=300)
    steps: tuple[SubQuestion, ...] = Field(max_length=MAX_STEPS)

    def leaves(self) -> tuple[int, ...]:
        """Indices of the sub-questions that no other builds on."""
        used = {parent for step in self.steps for parent in step.depends_on}
        return tuple(index for index in range(len(self.steps)) if index not in used)

    def resolved(self, index: int) -> str:
        """The text of a sub-question with the answers it names filled in."""
        return _REFERENCE.sub(lambda found: self.steps[int(found[1])].answer, self.steps[index].text)

    def order(self) -> list[int]:
        """All indices, what is built on first. Raises ValueError on a cycle."""
        left, ordered = list(range(len(self.steps))), list[int]()
        while left:
            ready = [index for index in left if set(self.steps[index].depends_on) <= set(ordered)]
            if not ready:
                raise ValueError(f"sub-questions {left} wait for each other")
            ordered += ready
            left = [index for index in left if index not in ready]
        return ordered


def dag_problems(dag: QuestionDag, *, hops: int = MAX_STEPS) -> list[str]:
    """Which rules a graph breaks, the first kind only where later ones make no sense; empty where none."""
    number = len(dag.steps)
    if not 1 <= number <= hops:
        return [f"{number} sub-questions; allowed: 1 to {hops}"]
    wrong = [
        f"sub-question {index} depends on {parent}; there are 0 to {number - 1}"
        for index, step in enumerate(dag.steps)
        for parent in step.depends_on
        if not 0 <= parent < number or parent == index
    ]
    if wrong:
        return wrong
    try:
        dag.order()
    except ValueError as error:
        return [f"a cycle: {error}"]
    return [*_text_problems(dag.steps), *_shape_problems(dag)]


def same_answer(given: str, wanted: str) -> bool:
    """Whether an answer is the wanted one: numbers by value, words by exact match once normalised."""
    number = read_number(bare(wanted))
    if number is not None:
        return read_number(bare(given)) == number
    return exact_match(given, [wanted])


def _text_problems(steps: Sequence[SubQuestion]) -> list[str]:
    problems = []
    for index, step in enumerate(steps):
        named = {int(found) for found in _REFERENCE.findall(step.text)}
        if named != set(step.depends_on) or len(set(step.depends_on)) < len(step.depends_on):
            problems.append(
                f"sub-question {index} names the answers {sorted(named)}, its dependencies are "
                f"{list(step.depends_on)}"
            )
        if step.text.count("?") > 1:
            problems.append(f"sub-question {index} asks {step.text.count('?')} questions")
    return problems


def _shape_problems(dag: QuestionDag) -> list[str]:
    leaves = dag.leaves()
    problems = [
        f"sub-question {index} needs no tool and is no leaf"
        for index, step in enumerate(dag.steps)
        if not step.needs_tool and index not in leaves
    ]
    if all(not step.needs_tool for step in dag.steps):
        problems.append("no sub-question needs a tool")
    if len(leaves) > 1:
        problems.append(f"sub-questions {list(leaves[:-1])} lead nowhere")
    if not same_answer(dag.steps[leaves[-1]].answer, dag.answer):
        problems.append(f"the last sub-question answers {dag.steps[leaves[-1]].answer!r}, not {dag.answer!r}")
    return problems
