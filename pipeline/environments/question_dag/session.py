"""One episode of question_dag: generated tools, and the verdict over sub-questions.

A call's arguments are checked against the schema, then the tool's code runs, in the sandbox where the task
brought it; nothing is remembered from one call to the next but that it was made. The final answer is typed:
`ANSWER ...` in the last turn. Success: the answer is right and every sub-question that needs a tool was
solved, so neither guessing nor calling everything is enough. A sub-question is solved by an answered call of
its tool: with the very arguments for tools over our own tables (`exact`), with a result that says the
sub-answer for tools made by a chat, which were perturbed so that other arguments do not say it. Beside it:
`solved`, `required`, `calls`, `recall`, `precision`, `f1` (ASTRA, arXiv 2601.21558; the reward `call_f1`
reads the first two).

State of a task: {"world": word} for our own tables, or {"tools": [...]} with code and data; the agent sees
neither, only what the tools answer. Private: {"item": JSON text with answer, sub-questions and calls}. Not
covered: tools that change something.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from data import canonical
from data.messages import ToolResult, ToolSpec, ToolStatus, Turn, text_parts
from data.tasks import Task
from data.trajectories import Reward, Trajectory
from pipeline.checks.answers import bare, last_words, marked_answer, states
from pipeline.checks.calls import argument_problems
from pipeline.checks.matching import call_f1
from pipeline.environments.guarded import JsonStateSession
from pipeline.environments.question_dag.calls import Answer, call_own_tool, call_tool
from pipeline.environments.question_dag.dag import same_answer
from pipeline.environments.question_dag.items import MadeCall, MadeTool
from pipeline.environments.question_dag.tasks import asked
from pipeline.environments.sandboxed import SandboxRunner
from pipeline.environments.tools import ToolLimits, truncate
from pipeline.errors import JudgeError, TrajsmithError


class QuestionSession(JsonStateSession):
    """See `pipeline.environments.base.Session`. `state` lists the calls made: name, arguments, ok, text.

    Without a `runner` the tools are our own (`calls.call_own_tool`).
    """

    def __init__(
        self,
        task: Task,
        *,
        tools: Mapping[str, MadeTool],
        data: Callable[[MadeTool], Mapping[str, Any]],
        runner: SandboxRunner | None,
        limits: ToolLimits,
        seed: int = 0,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(task, seed=seed)
        self.state: list[list[Any]] = []
        self._made, self._data, self._runner = tools, data, runner
        self._limits, self._on_close = limits, on_close

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools shown, in the task's order."""
        return tuple(tool.spec for tool in self._made.values())

    def end_state(self) -> None:
        """Nothing: the tools look things up and change none."""

    async def next_user(self, turns: Sequence[Turn]) -> Turn | None:
        """Nobody asks again."""
        return None

    async def verify(self, trajectory: Trajectory) -> Reward:
        """See the module docstring. Raises JudgeError."""
        self._refuse_if_poisoned()
        try:
            outcome = self._judge(trajectory)
        except Exception as error:
            raise JudgeError(
                f"verifier {self.task.verifier} failed on task {self.task.task_id}: {error}"
            ) from error
        artefact = canonical.digest(self.state)
        return Reward.of(outcome, verifier=self.task.verifier, artefact_digest=artefact)

    def _judge(self, trajectory: Trajectory) -> dict[str, float]:
        dag, calls_wanted = asked(self.task)
        wanted = [
            (step.answer, call)
            for step, call in zip(dag.steps, calls_wanted, strict=True)
            if call is not None
        ]
        solved = sum(any(self._solves(made, *pair) for made in self.state) for pair in wanted)
        given = marked_answer(last_words(trajectory.turns))
        right = given is not None and same_answer(bare(given), dag.answer)
        calls = len(self.state)
        return {
            "success": float(right and solved == len(wanted)),
            "answered": float(given is not None),
            "right": float(right),
            "solved": float(solved),
            "required": float(len(wanted)),
            "calls": float(calls),
            "recall": solved / len(wanted),
            "precision": min(1.0, solved / calls) if calls else 0.0,
            "f1": call_f1(solved, len(wanted), calls),
        }

    def _solves(self, made: Sequence[Any], answer: str, wanted: MadeCall) -> bool:
        name, arguments, ok, text = made
        if not ok or name != wanted.tool:
            return False
        tool = self._made[name]
        if not tool.exact:
            return says(text, answer)
        return _spelled(arguments, tool) == _spelled(wanted.arguments, tool)

    async def _execute(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        tool = self._made.get(name)
        problems = (
            argument_problems(arguments, tool.parameters)
            if tool is not None
            else [f"no tool {name}; tools: {', '.join(self._made)}"]
        )
        if problems or tool is None:
            return self._said(call_id, name, arguments, False, "; ".join(problems))
        try:
            answer = await self._answer(tool, arguments)
        except TrajsmithError as error:
            return self._failed(call_id, name, ToolStatus.INFRA_ERROR, str(error))
        return self._said(call_id, name, arguments, answer.ok, answer.text)

    async def _answer(self, tool: MadeTool, arguments: dict[str, Any]) -> Answer:
        if self._runner is None:
            return call_own_tool(tool, arguments, data=self._data(tool))
        return await call_tool(self._runner, tool, arguments, data=self._data(tool))

    def _said(self, call_id: str, name: str, arguments: dict[str, Any], ok: bool, text: str) -> ToolResult:
        self.state.append([name, arguments, ok, text])
        if not ok:
            return self._failed(call_id, name, ToolStatus.TOOL_ERROR, text)
        parts, cut = truncate(text_parts(text), self._limits)
        return ToolResult(call_id=call_id, name=name, parts=parts, truncated=cut)

    async def _release(self) -> None:
        if self._on_close is not None:
            self._on_close()


def says(text: str, answer: str) -> bool:
    """Whether a result says a sub-answer: it is it, or states it as a number or as whole words."""
    return same_answer(text, answer) or states(text, answer)


def _spelled(arguments: Mapping[str, Any], tool: MadeTool) -> str:
    """Arguments as compared: lists without order; values alone, without names or order, where symmetric."""
    values = {name: _plain(value) for name, value in arguments.items()}
    if tool.symmetric:
        return canonical.dumps(sorted(values.values()))
    return canonical.dumps(values, sort_keys=True)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return canonical.dumps(sorted(_plain(item) for item in value))
    return value.strip() if isinstance(value, str) else canonical.dumps(value)
