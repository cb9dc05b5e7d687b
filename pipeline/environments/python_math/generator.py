"""The tasks of python_math: drawn questions, disjoint across splits by the digest of their numbers.

`heldout_unseen` has the unseen templates only. `protocol` says how the tool is used: `chat` (calls of the
template), or `inline` (`<code>` answered by `<interpreter>` within one turn; roll out with INLINE). Not
covered: questions whose answer is no number.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

from data import canonical
from data.messages import Turn, assistant, system, user
from data.tasks import Budget, Task
from pipeline.environments.gold import Plan, PlannedGold, call, last_result
from pipeline.environments.python_math.session import MathSession
from pipeline.environments.python_math.template import Question, Template
from pipeline.environments.python_math.templates_counting import COUNTING
from pipeline.environments.python_math.templates_numbers import NUMBERS
from pipeline.environments.sandboxed import SandboxRunner
from pipeline.environments.splits import split_of
from pipeline.environments.templated import TemplatedEnvironment
from pipeline.environments.toolkit import ToolSession
from pipeline.errors import ConfigError
from pipeline.rollout_settings import InlineFormat
from pipeline.sandbox.load import SandboxChoice

TEMPLATES = {template.name: template for template in (*NUMBERS, *COUNTING)}
INLINE = InlineFormat(
    tool="python",
    argument="code",
    open="<code>",
    close="</code>",
    observation="\n<interpreter>{result}</interpreter>\n",
    final="</answer>",
)
"""The inline protocol of ReTool."""
MAX_ANSWER_LENGTH = 20
"""Longer answers would look like private text in a tool's output, and are hard to copy besides."""
_MAX_DRAWS = 2_000


class Protocol(StrEnum):
    """How code is written."""

    CHAT = "chat"
    INLINE = "inline"


_SYSTEM = {
    Protocol.CHAT: "Compute with python. End with \\boxed{} around the exact number or fraction.",
    Protocol.INLINE: (
        "Compute in <code></code>; its output follows in <interpreter></interpreter>. "
        "End with <answer>\\boxed{}</answer> around the exact number or fraction."
    ),
}


class PythonMath(TemplatedEnvironment[Template]):
    """`templates`: only these (names of TEMPLATES); `protocol`: chat or inline.

    `sandbox`: what runs the code, a name or `{name: remote, url: ...}`.
    """

    name = "python_math"
    session = MathSession
    all_templates = TEMPLATES

    def __init__(
        self,
        *,
        templates: Sequence[str] | None = None,
        protocol: str = "chat",
        sandbox: SandboxChoice = "bubblewrap",
        **options: Any,
    ) -> None:
        super().__init__(templates=templates, **options)
        if protocol not in tuple(Protocol):
            raise ConfigError(f"python_math has no protocol {protocol!r}; it has {', '.join(Protocol)}")
        self.protocol = Protocol(protocol)
        self.inline = INLINE if self.protocol is Protocol.INLINE else None
        self.runner = SandboxRunner(sandbox)

    def stream(self, template: Template, split: str) -> Iterator[Task]:
        """One question after the other, no numbers twice."""
        return (self._task(template, drawn, split) for drawn in draw_questions(template, split))

    async def open(self, task: Task, *, seed: int = 0) -> ToolSession:
        """See `ToolEnvironment.open`."""
        session = await super().open(task, seed=seed)
        assert isinstance(session, MathSession)
        session.runner = self.runner
        return session

    def gold(self, task: Task) -> PlannedGold:
        """One piece of code, and what it printed as the answer."""
        return PlannedGold(_plan(task.private_value()["code"], inline="inline" in task.tags))

    def _task(self, template: Template, drawn: Question, split: str) -> Task:
        inline = ("inline",) if self.protocol is Protocol.INLINE else ()
        return Task(
            environment=self.name,
            split=split,
            template=template.name,
            tags=(*template.tags, *inline),
            prompt=(system(_SYSTEM[self.protocol]), user(drawn.text)),
            private=canonical.dumps({"answer": str(drawn.answer), "code": drawn.code}),
            verifier="python_math/boxed/1",
            budget=Budget(max_turns=6, max_tokens=1024),
        )


def load(**options: Any) -> PythonMath:
    """The python_math environment; options are those of PythonMath."""
    return PythonMath(**options)


def draw_questions(template: Template, split: str) -> Iterator[Question]:
    """The questions of a template in a split, no numbers twice. Raises ConfigError where they run out."""
    seen: set[str] = set()
    for index in itertools.count():
        for attempt in range(_MAX_DRAWS):
            drawn = template.draw(random.Random(f"python_math/{split}/{template.name}/{index}/{attempt}"))
            wanted = drawn.code not in seen and len(str(drawn.answer)) <= MAX_ANSWER_LENGTH
            # By its numbers: other words do not move a question.
            if wanted and (template.unseen or split_of(drawn.code) == split):
                break
        else:
            raise ConfigError(f"template {template.name} has no more than {len(seen)} questions in {split}")
        seen.add(drawn.code)
        yield drawn


def _plan(code: str, *, inline: bool) -> Plan:
    turns = yield _code_turn(code) if inline else call("python", code=code)
    answer = f"\\boxed{{{last_result(turns).text}}}"
    yield assistant(f"<answer>{answer}</answer>" if inline else answer)


def _code_turn(code: str) -> Turn:
    """The call as the inline protocol writes it: the text is what counts, the call is what it means."""
    turn = call("python", code=code)
    return assistant(f"{INLINE.open}\n{code}\n{INLINE.close}", *turn.tool_calls)
