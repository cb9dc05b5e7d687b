"""BFCL single-turn as an environment: one reply with calls, judged by the benchmark's own checker.

The tools execute nothing: they take any call that fits its schema and say so. What is judged is the first
assistant turn with calls, as the benchmark judges one reply; calls in a later turn fail the task. Calls are
judged as written, also one that broke its schema, because the schema is ours and the verdict is theirs.

`refusal="typed"` (default): a task of the irrelevance categories is passed by calling nothing *and* ending on
the typed answer REFUSAL as its last line, so that doing nothing scores 0. `refusal="any"` is the benchmark's
rule, calling nothing, under which an agent that does nothing scores on all of them; that floor is printed by
`env check`. The benchmark's own verdict is the component `bfcl` in either case. Not covered: decoding calls
from text, which is the renderer's; upstream would count text it cannot decode as no call; and that always
refusing solves the third of the tasks that are to be refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from data import canonical
from data.messages import (
    Role,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
    assistant,
    system,
)
from data.tasks import Budget, Task
from data.trajectories import Trajectory
from pipeline.checks.answers import bare
from pipeline.checks.calls import argument_problems
from pipeline.environments.benchmark import BenchmarkSession
from pipeline.environments.bfcl.dataset import VERSION, require_package
from pipeline.environments.bfcl.single_check import upstream_verdict
from pipeline.environments.bfcl.single_gold import gold_calls
from pipeline.environments.bfcl.single_rows import (
    CALLING,
    CATEGORIES,
    HALVES,
    REFUSING,
    UNSOLVABLE,
    SingleRow,
    single_rows,
    single_tools,
)
from pipeline.environments.gold import Plan, PlannedGold
from pipeline.environments.host import HostEnvironment
from pipeline.environments.toolkit import source_digest
from pipeline.errors import ConfigError

NAME = "bfcl_single_turn"
REFUSAL = "NO TOOL FITS"
SYSTEM = "Answer with the tool calls the request needs, all in one message."
SYSTEM_TYPED = f"{SYSTEM} If no tool fits or a needed value is missing, call nothing and reply: {REFUSAL}"
RECORDED = "Received."


class SingleTurnEnvironment(HostEnvironment):
    """See `pipeline.environments.base.Environment`.

    `categories`: "all" or some of CATEGORIES. `whole=True` offers the one split `all`. `max_tokens` is each
    episode's budget.
    """

    name = NAME

    def __init__(
        self,
        *,
        categories: Sequence[str] | str = "all",
        refusal: Literal["typed", "any"] = "typed",
        whole: bool = False,
        max_tokens: int = 8192,
    ) -> None:
        """Raises MissingExtraError without the benchmark's package, ConfigError for an impossible option."""
        listed = [categories] if isinstance(categories, str) else list(categories)
        self.categories = CATEGORIES if listed == ["all"] else tuple(listed)
        unknown = [name for name in self.categories if name not in CATEGORIES]
        if unknown or not self.categories or refusal not in ("typed", "any"):
            raise ConfigError(
                f"{NAME}: categories={categories!r}, refusal={refusal!r}; categories is 'all' or some of "
                f"{', '.join(CATEGORIES)}; refusal is 'typed' or 'any'"
            )
        require_package()
        self.refusal, self.max_tokens = refusal, max_tokens
        self.splits: tuple[str, ...] = ("all",) if whole else HALVES
        self.foreign = refusal == "any"
        """Whether `env check` prints what doing nothing scores instead of refusing it."""
        self.version = canonical.digest(
            source_digest(__name__), source_digest(BenchmarkSession.__module__), VERSION, refusal, length=12
        )

    def tasks(self, split: str) -> Iterator[Task]:
        """The tasks of `train`, `heldout` or `all`, category by category, without the UNSOLVABLE rows."""
        self.check_split(split, known=(*HALVES, "all"))
        for category in self.categories:
            for row in single_rows(category):
                if row.name not in UNSOLVABLE and split in (row.half, "all"):
                    yield self._task(row)

    async def open(self, task: Task, *, seed: int = 0) -> SingleTurnSession:
        """A fresh session; nothing is random, so `seed` changes nothing."""
        self.check_task(task)
        session = SingleTurnSession(task, refusal=self.refusal, on_close=self._session_closed)
        self.num_open += 1
        return session

    def gold(self, task: Task) -> PlannedGold:
        """All calls in one turn, then "Done."; the typed answer where nothing may be called."""
        return PlannedGold(
            _plan(
                canonical.loads(task.private_value()["gold"]),
                refuse=task.state_value()["category"] in REFUSING,
            )
        )

    def _task(self, row: SingleRow) -> Task:
        sentence = SYSTEM_TYPED if self.refusal == "typed" else SYSTEM
        own = [turn.text for turn in row.prompt if turn.role is Role.SYSTEM]
        opening = system("\n\n".join([sentence, *own]))
        spoken = [turn for turn in row.prompt if turn.role is not Role.SYSTEM]
        refuse = row.category in REFUSING
        gold = [] if refuse else gold_calls(row)
        shown = [spec.model_dump() for spec in single_tools(row)]
        # Kept as text: the answers repeat words of the request, which alone give nothing away.
        private = {"answers": canonical.dumps(row.answers), "gold": canonical.dumps(gold)}
        return Task(
            environment=NAME,
            split=row.half,
            template=row.category,
            tags=("single_turn", *(("refuse",) if refuse else ())),
            prompt=(opening, *spoken),
            state=canonical.dumps({"category": row.category, "functions": row.functions, "tools": shown}),
            private=canonical.dumps(private),
            verifier=f"{NAME}/ast/2",
            budget=Budget(max_turns=3, max_tokens=self.max_tokens),
            synthesizer=f"bfcl-eval/{VERSION}/{row.name}",
        )


class SingleTurnSession(BenchmarkSession):
    """See `pipeline.environments.base.Session`. It holds no state but the answers it gave."""

    def __init__(self, task: Task, *, refusal: str, on_close: Callable[[], None]) -> None:
        super().__init__(task, on_close=on_close)
        self.refusal = refusal
        self._state = task.state_value()
        self._tools = tuple(ToolSpec(**spec) for spec in self._state["tools"])
        self._schemas = {spec.name: canonical.loads(spec.parameters) for spec in self._tools}

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The row's tools."""
        return self._tools

    async def next_user(self, turns: Sequence[Turn]) -> Turn | None:
        """None: there is one request."""
        return None

    async def _execute(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        """RECORDED for a call that fits its schema; the problem as `tool_error` for another."""
        problem = self._problem(name, arguments)
        return self._said(call_id, name, problem or RECORDED, failed=bool(problem))

    def _kept(self) -> None:
        """Nothing but the stored results."""

    def _put_back(self, kept: None) -> None:
        """Nothing."""

    def _artefact(self, trajectory: Trajectory) -> Any:
        return [[call.name, call.arguments] for turn in self._replies(trajectory) for call in turn.tool_calls]

    def _problem(self, name: str, arguments: dict[str, Any]) -> str:
        if name not in self._schemas:
            return f"there is no tool {name!r}; tools: {', '.join(self._schemas) or 'none'}"
        return "; ".join(argument_problems(arguments, self._schemas[name]))[:200]

    def _replies(self, trajectory: Trajectory) -> list[Turn]:
        return [turn for turn in self._played(trajectory) if turn.role is Role.ASSISTANT]

    def _fits(self, call: ToolCall) -> bool:
        return call.ok and not self._problem(call.name, _arguments(call))

    def _components(self, trajectory: Trajectory) -> dict[str, float]:
        said = self._replies(trajectory)
        category, calling = self._state["category"], [turn for turn in said if turn.tool_calls]
        calls = calling[0].tool_calls if calling else ()
        answers = canonical.loads(self.task.private_value()["answers"])
        read = [_as_read(call) for call in calls]
        verdict = upstream_verdict(category, self._state["functions"], answers, read)
        checks = {"bfcl": not verdict, "one_turn": len(calling) <= 1}
        if category == CALLING:
            checks["valid_calls"] = all(self._fits(call) for call in calls)
        if category in REFUSING and self.refusal == "typed":
            lines = said[-1].text.strip().splitlines() if said else []
            checks["typed_answer"] = bool(lines) and bare(lines[-1]).upper() == REFUSAL
        return {name: float(passed) for name, passed in {"success": all(checks.values()), **checks}.items()}


def load(**options: object) -> SingleTurnEnvironment:
    """The BFCL single-turn environment; options are those of SingleTurnEnvironment."""
    return SingleTurnEnvironment(**options)  # type: ignore[arg-type]


def _arguments(call: ToolCall) -> dict[str, Any]:
    """The arguments as far as they could be read."""
    try:
        return call.parsed_arguments()
    except ValueError:
        return {}


def _as_read(call: ToolCall) -> dict[str, dict[str, Any]]:
    return {call.name: _arguments(call)}


def _plan(calls: Sequence[tuple[str, dict[str, Any]]], *, refuse: bool) -> Plan:
    if refuse:
        yield assistant(REFUSAL)
        return
    made = [ToolCall(call_id="gold", name=name, arguments=canonical.dumps(given)) for name, given in calls]
    yield assistant("", *made)
    yield assistant("Done.")
