"""The tools of code_repair, what counts as success, and milestones.

State: {"files": {name: text}, "functions": [[module, name], ...], "tests": [[index of function, arguments],
...], "public": their right values, "submitted": whether, "paid": milestones}. Private: {"calls", "values":
hidden cases, "broken": index of the file, "red": tests that fail at first, "defect", "choices": for gold}.

Success: the patch was submitted with `finish` and every hidden case gives the right value, in a
run of its own from the submitted files; expected values are compared here and never enter the sandbox. A
submission that fails scores 0, and so does a budget used up before `finish`; a sandbox that broke scores
nothing. Milestones (the broken file read, the first red test green, all shown tests green) are process
components: each is paid once. Not covered: style of the patch; any program that behaves right is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from data.trajectories import Reward, RewardComponent, RewardWhen, Trajectory
from pipeline.environments.code_repair.runs import CallResult, PlannedCall, run_calls
from pipeline.environments.sandboxed import SandboxRunner
from pipeline.environments.toolkit import ToolSession
from pipeline.environments.tools import ToolError, ToolResponse, tool
from pipeline.errors import EnvironmentFailure, JudgeError

TESTS = "tests.py"
MAX_FILE_LENGTH = 10_000
MILESTONES = ("located", "first_green", "all_green")
TEST_SECONDS = 5.0
"""The sandbox's clock for the shown tests. Endless loops meet the count of steps long before."""
VERIFY_SECONDS = 20.0


class RepairSession(ToolSession):
    """One workspace. `runner` is set by the environment."""

    runner: SandboxRunner
    _hidden: Sequence[bool] = ()

    @property
    def finished(self) -> bool:
        """Whether the patch was submitted."""
        return bool(self.state["submitted"])

    @tool
    def read_file(self, path: str) -> ToolResponse:
        """Show a file."""
        if path == TESTS:
            return ToolResponse(test_file(self._shown_calls(), self.state["public"]))
        text = self.state["files"].get(path)
        if text is None:
            raise ToolError(f"no file {path}; files: {', '.join((*self.state['files'], TESTS))}")
        return self._paid(text, ["located"] if path == self._broken_file() else [])

    @tool
    def edit(self, old: str, new: str, path: str | None = None) -> str:
        """Replace text that occurs exactly once."""
        self._refuse_if_submitted()
        files: dict[str, str] = self.state["files"]
        if path == TESTS:
            raise ToolError(f"{TESTS} is read-only")
        if path is not None and path not in files:
            raise ToolError(f"no file {path}; files: {', '.join(files)}")
        if not old:
            raise ToolError("old is empty; give the text to replace")
        found = [name for name in files if path in (None, name) for _ in range(files[name].count(old))]
        if len(found) != 1:
            raise ToolError(_not_once(found))
        text = files[found[0]].replace(old, new)
        if len(text) > MAX_FILE_LENGTH:
            raise ToolError(f"{found[0]} would have {len(text)} characters; allowed: {MAX_FILE_LENGTH}")
        files[found[0]] = text
        return "patch applied"

    @tool
    async def run_tests(self) -> ToolResponse:
        """Run the tests."""
        results = await self._run(self._shown_calls(), TEST_SECONDS)
        right = _right(results, self.state["public"])
        red = set(self.task.private_value()["red"])
        reached = []
        if red & {index for index, passed in enumerate(right) if passed}:
            reached.append("first_green")
        if red and all(right):
            reached.append("all_green")
        return self._paid(self._report(results, right), reached, passed=sum(right), tests=len(right))

    @tool
    def finish(self) -> str:
        """Submit the code."""
        self._refuse_if_submitted()
        self.state["submitted"] = True
        return "submitted"

    async def verify(self, trajectory: Trajectory) -> Reward:
        """Run the hidden cases where something was submitted, then judge; milestones are components."""
        if self.finished:
            private = self.task.private_value()
            try:
                results = await self._run(self._calls(private["calls"]), VERIFY_SECONDS)
            except EnvironmentFailure as error:
                raise JudgeError(f"the hidden cases could not be run: {error}") from error
            self._hidden = _right(results, private["values"])
        reward = await super().verify(trajectory)
        paid = [
            RewardComponent(
                name=f"milestone/{name}", value=float(name in self.state["paid"]), when=RewardWhen.PROCESS
            )
            for name in MILESTONES
        ]
        return reward.model_copy(update={"components": (*reward.components, *paid)})

    def judge(self, trajectory: Trajectory) -> Mapping[str, float]:
        """`submitted`; `hidden`: share of the hidden cases that are right; `success`: all of them are."""
        if not self.finished:
            return {"success": 0.0, "submitted": 0.0, "hidden": 0.0}
        share = sum(self._hidden) / len(self._hidden)
        return {"success": float(all(self._hidden)), "submitted": 1.0, "hidden": share}

    def end_state(self) -> Any:
        """The files and whether they were submitted; milestones that were paid are a log."""
        return {"files": self.state["files"], "submitted": self.state["submitted"]}

    def artefact(self) -> Any:
        """The files as submitted."""
        return self.state["files"]

    def _shown_calls(self) -> list[PlannedCall]:
        return self._calls(self.state["tests"])

    def _calls(self, cases: Sequence[Sequence[Any]]) -> list[PlannedCall]:
        functions = self.state["functions"]
        return [
            PlannedCall(module, name, arguments)
            for (module, name), arguments in ((functions[index], arguments) for index, arguments in cases)
        ]

    def _broken_file(self) -> str | None:
        index = self.task.private_value()["broken"]
        names = list(self.state["files"])
        return names[index] if index < len(names) else None

    def _refuse_if_submitted(self) -> None:
        if self.finished:
            raise ToolError("already submitted")

    async def _run(self, calls: Sequence[PlannedCall], seconds: float) -> list[CallResult]:
        return await run_calls(self.runner, self.state["files"], calls, seconds=seconds)

    def _report(self, results: Sequence[CallResult], right: Sequence[bool]) -> str:
        lines = [f"{sum(right)} of {len(right)} passed"]
        for call, result, expected, passed in zip(
            self._shown_calls(), results, self.state["public"], right, strict=True
        ):
            if not passed:
                lines.append(f"{call}: {result.describe(expected)}")
        return "\n".join(lines)

    def _paid(self, text: str, reached: Sequence[str], **metrics: float) -> ToolResponse:
        """The answer, with the milestones it reaches for the first time as its step reward."""
        new = [name for name in reached if name not in self.state["paid"]]
        self.state["paid"] += new
        return ToolResponse(text, reward=float(len(new)) if new else None, metrics=metrics)


def test_file(calls: Sequence[PlannedCall], values: Sequence[Any]) -> str:
    """The shown tests as the agent reads them."""
    imports = dict.fromkeys(f"from {call.module} import {call.function}" for call in calls)
    tests = [f"assert {call} == {value!r}" for call, value in zip(calls, values, strict=True)]
    return "\n".join([*imports, "", *tests]) + "\n"


def _right(results: Sequence[CallResult], values: Sequence[Any]) -> list[bool]:
    if len(results) != len(values):
        raise EnvironmentFailure(f"{len(values)} cases gave {len(results)} results")
    return [result.gives(value) for result, value in zip(results, values, strict=True)]


def _not_once(found: Sequence[str]) -> str:
    """Why an edit was refused, given the file of each occurrence."""
    if not found:
        return "old text not found; read the file and copy it exactly"
    where = ", ".join(dict.fromkeys(found))
    return f"old text found {len(found)} times ({where}); give more of the text around it"
