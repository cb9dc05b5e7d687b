"""BFCL format_sensitivity: 200 single-turn rows under 26 prompts that ask for calls as text.

No tool is shown; the system prompt is the benchmark's own. What is judged is the first assistant turn, read
as its prompt demands (`prompted_text`), by the benchmark's checker. By its rule a reply in tags also counts
where none were asked for in XML and JSON, which the agents of `env check` that know another task's reply can
use: the environment declares itself `foreign`, so that this is printed. The halves are those of the rows.
The benchmark compares the 26 prompts and scores none of them. Not covered: whether a renderer takes such text
for calls of its own; it is then no text, and the task is failed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from data import canonical
from data.messages import Role, ToolResult, ToolSpec, Turn, assistant, system
from data.tasks import Budget, Task
from data.trajectories import Trajectory
from pipeline.environments.benchmark import BenchmarkSession
from pipeline.environments.bfcl.dataset import VERSION, read_whole, require_package
from pipeline.environments.bfcl.prompted_text import PROMPTS, Prompt, read_calls, write_calls
from pipeline.environments.bfcl.single_check import upstream_verdict
from pipeline.environments.bfcl.single_gold import gold_calls
from pipeline.environments.bfcl.single_rows import HALVES, UNSOLVABLE, SingleRow, single_rows
from pipeline.environments.gold import Plan, PlannedGold
from pipeline.environments.host import HostEnvironment
from pipeline.environments.toolkit import source_digest
from pipeline.errors import ConfigError

NAME = "bfcl_prompted"
NOTATIONS = ("python", "json", "verbose_xml", "concise_xml")


class PromptedEnvironment(HostEnvironment):
    """See `pipeline.environments.base.Environment`.

    `notations`: some of NOTATIONS. `whole=True` offers the one split `all`.
    """

    name = NAME
    foreign = True

    def __init__(
        self,
        *,
        notations: Sequence[str] = NOTATIONS,
        whole: bool = False,
        max_tokens: int = 8192,
    ) -> None:
        """Raises MissingExtraError without the benchmark's package, ConfigError for an impossible option."""
        if not notations or not set(notations) <= set(NOTATIONS):
            raise ConfigError(f"{NAME}: notations={notations!r}; some of {', '.join(NOTATIONS)}")
        require_package()
        self.max_tokens = max_tokens
        self.prompts = tuple(prompt for prompt in PROMPTS if prompt.notation in notations)
        self.splits: tuple[str, ...] = ("all",) if whole else HALVES
        source = [source_digest(__name__), source_digest(BenchmarkSession.__module__)]
        self.version = canonical.digest(source, VERSION, length=12)

    def tasks(self, split: str) -> Iterator[Task]:
        """Every row under one prompt, then every row under its next one, and so on."""
        self.check_split(split, known=(*HALVES, "all"))
        rows = [row for row in prompted_rows() if split in (row.half, "all")]
        for turn in range(len(self.prompts)):
            for index, row in enumerate(rows):
                yield self._task(row, self.prompts[(index + turn) % len(self.prompts)])

    async def open(self, task: Task, *, seed: int = 0) -> PromptedSession:
        """A fresh session; nothing is random, so `seed` changes nothing."""
        self.check_task(task)
        session = PromptedSession(task, on_close=self._session_closed)
        self.num_open += 1
        return session

    def gold(self, task: Task) -> PlannedGold:
        """The benchmark's answer in the notation the prompt asks for."""
        return PlannedGold(_plan(task))

    def _task(self, row: SingleRow, prompt: Prompt) -> Task:
        own = [turn.text for turn in row.prompt if turn.role is Role.SYSTEM]
        opening = system("\n\n".join([prompt.text(row.functions), *own]))
        names = [next(iter(answer)) for answer in row.answers]
        gold = [(name, given) for name, (_, given) in zip(names, gold_calls(row), strict=True)]
        private = {"answers": canonical.dumps(row.answers), "gold": canonical.dumps(gold)}
        state = {"category": row.category, "functions": row.functions, "prompt": PROMPTS.index(prompt)}
        return Task(
            environment=NAME,
            split=row.half,
            template=row.category,
            tags=("single_turn", prompt.notation, *(("tag",) if prompt.tag else ())),
            prompt=(opening, *(turn for turn in row.prompt if turn.role is not Role.SYSTEM)),
            state=canonical.dumps(state),
            private=canonical.dumps(private),
            verifier=f"{NAME}/ast/1",
            budget=Budget(max_turns=1, max_tokens=self.max_tokens),
            synthesizer=f"bfcl-eval/{VERSION}/{row.name}/{prompt.name}",
        )


class PromptedSession(BenchmarkSession):
    """See `pipeline.environments.base.Session`. It has no tools and no state."""

    def __init__(self, task: Task, *, on_close: Callable[[], None]) -> None:
        super().__init__(task, on_close=on_close)
        self._state = task.state_value()

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """None: functions stand in the prompt."""
        return ()

    async def next_user(self, turns: Sequence[Turn]) -> Turn | None:
        """None: there is one request."""
        return None

    async def _execute(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        """Calls are to be written as text."""
        return self._said(call_id, name, f"there is no tool {name!r}; tools: none", failed=True)

    def _kept(self) -> None:
        """Nothing but the stored results."""

    def _put_back(self, kept: None) -> None:
        """Nothing."""

    def _reply(self, trajectory: Trajectory) -> str:
        said = (turn for turn in self._played(trajectory) if turn.role is Role.ASSISTANT)
        first = next(said, None)
        return first.text if first is not None and not first.tool_calls else ""

    def _artefact(self, trajectory: Trajectory) -> Any:
        return self._reply(trajectory)

    def _components(self, trajectory: Trajectory) -> dict[str, float]:
        state, reply = self._state, self._reply(trajectory)
        calls = read_calls(reply, PROMPTS[state["prompt"]])
        answers = canonical.loads(self.task.private_value()["answers"])
        verdict = "unread" if not calls else _verdict(state, answers, calls)
        return {"success": float(not verdict), "read": float(bool(calls))}


def _verdict(state: dict[str, Any], answers: Any, calls: Sequence[dict[str, dict[str, Any]]]) -> str:
    return upstream_verdict(state["category"], state["functions"], answers, calls, dotted=True)


@functools.cache
def prompted_rows() -> tuple[SingleRow, ...]:
    """The rows of the category, without those no answer of which is accepted."""
    chosen = read_whole("BFCL_v4_format_sensitivity.json")
    return tuple(
        row
        for category, names in chosen.items()
        for row in single_rows(category)
        if row.name in names and row.name not in UNSOLVABLE
    )


def load(**options: object) -> PromptedEnvironment:
    """The BFCL format_sensitivity environment; options are those of PromptedEnvironment."""
    return PromptedEnvironment(**options)  # type: ignore[arg-type]


def _plan(task: Task) -> Plan:
    gold = canonical.loads(task.private_value()["gold"])
    yield assistant(write_calls(gold, PROMPTS[task.state_value()["prompt"]]))
