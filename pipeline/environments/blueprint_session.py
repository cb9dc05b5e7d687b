"""An episode of a planned task, and its verdict.

Every environment opens planned tasks (`with_blueprints` wraps it): the base task gives tools and state, the
blueprint the user turns and the verdict. After each turn

- the state must be gold's (`end_state`),
- every look-up that the user asked for must have been answered, by the same call or with the same answer of
  its tool; of others the values that gold took must have been seen in an answer: a guess is no look-up,
- the reply must be what the turn wants: any words that hold the values asked for, or, where a value or a tool
  is missing, the typed words `ASK name` or `REFUSE` and no call.

A turn that fails ends the episode: later user turns assume that it went well. The world is opened with the
seed that the plan was executed with, whatever seed the rollout has. Not covered: what a blueprint holds and
how a task is made of it (`blueprint`), and the base task's own verifier, which judges another request.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from data import canonical
from data.messages import (
    NamedValue,
    Role,
    ToolCall,
    ToolResult,
    ToolSpec,
    ToolStatus,
    Turn,
    assistant,
    text_parts,
)
from data.messages import user as user_turn
from data.tasks import Task
from data.trajectories import Reward, Trajectory
from pipeline.checks.answers import says, words_of_turn
from pipeline.checks.typed_answers import AnswerKind, read_answer
from pipeline.environments.base import Environment, GoldScript, Session
from pipeline.environments.blueprint import (
    OUTAGE_METRIC,
    Blueprint,
    Expects,
    PlannedCall,
    PlannedTurn,
    is_blueprint,
    read_blueprint,
    result_digest,
)
from pipeline.environments.end_state import state_digest
from pipeline.environments.gold import Plan, PlannedGold
from pipeline.environments.renamed import gold_of, open_task
from pipeline.environments.wrapped import PassesOn, WrappedEnvironment, no_such_tool


def with_blueprints(environment: Environment) -> BlueprintEnvironment:
    """`environment`, opening blueprint tasks, too."""
    return BlueprintEnvironment(environment, version=environment.version)


class BlueprintEnvironment(WrappedEnvironment):
    """The same tasks, gold, verifier and version; and tasks made from blueprints or renamed, none listed."""

    async def open(self, task: Task, *, seed: int = 0) -> Session:
        """The inner session; around it the blueprint's, where the task has one."""
        if not is_blueprint(task):
            return await open_task(self.inner, task, seed=seed)
        blueprint = read_blueprint(task)
        base = await open_task(self.inner, blueprint.base, seed=blueprint.seed)
        return BlueprintSession(base, task, blueprint)

    def gold(self, task: Task) -> GoldScript:
        """The plan's own calls and replies, or the inner environment's gold."""
        if not is_blueprint(task):
            return gold_of(self.inner, task)
        return PlannedGold(_plan(read_blueprint(task)))


def _plan(blueprint: Blueprint) -> Plan:
    for turn in blueprint.turns:
        for planned in turn.calls:
            yield assistant("", ToolCall(call_id="gold", name=planned.name, arguments=planned.arguments))
        yield assistant(turn.reply)


class _Played(NamedTuple):
    """A call of the agent's, in the user turn `turn`."""

    turn: int
    call: ToolCall
    result: ToolResult


class BlueprintSession(PassesOn):
    """One episode; see the module docstring."""

    inner: Session

    def __init__(self, inner: Session, task: Task, blueprint: Blueprint) -> None:
        self.inner, self.task, self.blueprint = inner, task, blueprint
        self._played: list[_Played] = []
        self._turn = 0
        self._states: list[str] = []

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The inner tools that the task, or the latest turn that says so, shows."""
        said = [turn.tools for turn in self.blueprint.turns[: self._turn + 1] if turn.tools is not None]
        shown = said[-1] if said else self.task.tools
        known = {spec.name: spec for spec in self.inner.tools}
        return tuple(known[name] for name in (known if shown is None else shown) if name in known)

    async def call(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        """The inner call, noted for the verdict; a tool that is not shown is no tool."""
        shown = [spec.name for spec in self.tools]
        if name not in shown:
            return no_such_tool(name, call_id, shown=shown)
        made = ToolCall(call_id=call_id, name=name, arguments=canonical.dumps(arguments))
        again = next((played for played in self._played if played.call.call_id == call_id), None)
        if again is not None:
            return again.result
        result = self._outage(name, call_id) or await self.inner.call(name, arguments, call_id)
        self._played.append(_Played(self._turn, made, result))
        return result

    async def next_user(self, turns: Sequence[Turn]) -> Turn | None:
        """The next planned turn where the one before went well, else None."""
        said = sum(turn.role is Role.USER for turn in turns) - 1
        if said == self._turn:
            self._end_turn()
        if said + 1 >= len(self.blueprint.turns) or self._failure(turns, said):
            return None
        self._turn = said + 1
        return user_turn(self.blueprint.turns[self._turn].text)

    def snapshot(self) -> bytes:
        """The inner snapshot and what was played."""
        return pickle.dumps((self.inner.snapshot(), self._played, self._turn, self._states))

    def restore(self, snapshot: bytes) -> None:
        """Return to a snapshot of a session of the same task."""
        inner, self._played, self._turn, self._states = pickle.loads(snapshot)
        self.inner.restore(inner)

    async def verify(self, trajectory: Trajectory) -> Reward:
        """1 where every turn went well; components: the share of turns that did, the check that failed."""
        self._end_turn()
        number = len(self.blueprint.turns)
        failures = [self._failure(trajectory.turns, index) for index in range(number)]
        failure = next(filter(None, failures), "")
        passed = failures.index(failure) if failure else number
        values = {"success": float(not failure), "turns": passed / number}
        values |= {check: float(check != failure) for check in ("reached", "state", "results", "reply")}
        made = [each.call.arguments for each in self._played]
        artefact = canonical.digest(self._states, made)
        return Reward.of(values, verifier=self.task.verifier, artefact_digest=artefact)

    async def close(self) -> None:
        """Close the inner session."""
        await self.inner.close()

    def _end_turn(self) -> None:
        """Note the state after the turn that is over, once."""
        if len(self._states) == self._turn:
            self._states.append(state_digest(self.inner, [played.call for played in self._answered()]))

    def _outage(self, name: str, call_id: str) -> ToolResult | None:
        """What the tool answers where it is down now."""
        called = any(played.turn == self._turn and played.call.name == name for played in self._played)
        down = [out for out in self.blueprint.outages if (out.turn, out.name) == (self._turn, name)]
        if called or not down:
            return None
        metrics = (NamedValue(name=OUTAGE_METRIC, value=1.0),)
        return ToolResult(
            call_id=call_id, name=name, parts=text_parts(down[0].text), status=down[0].status, metrics=metrics
        )

    def _answered(self) -> Iterator[_Played]:
        return (played for played in self._played if played.result.status is ToolStatus.OK)

    def _failure(self, turns: Sequence[Turn], index: int) -> str:
        """Which check user turn `index` fails; "" where none."""
        planned = self.blueprint.turns[index]
        if index >= len(self._states):
            return "reached"
        acts = planned.expects is Expects.ACT or planned.calls
        if not acts and any(played.turn == index for played in self._played):
            return "results"
        if self._states[index] != planned.state:
            return "state"
        if not all(c.changes or self._made(c, index) or self._is_spared(c, index) for c in planned.calls):
            return "results"
        ended = index + 1 == len(self.blueprint.turns) and getattr(self.inner, "finished", False)
        return "" if ended or reply_fits(planned, words_of_turn(turns, index)) else "reply"

    def _made(self, planned: PlannedCall, index: int) -> bool:
        """Whether a look-up of gold's was made by now, or one of the same tool with the same answer.

        What failed need not be made, but where it is what a refusal rests on.
        """
        wanted = _key(planned.arguments)
        if planned.status is not ToolStatus.OK:
            tried = ((played.call.name, _key(played.call.arguments)) for played in self._played)
            return (
                self.blueprint.turns[index].expects is not Expects.REFUSE or (planned.name, wanted) in tried
            )
        return any(
            played.turn <= index
            and played.call.name == planned.name
            and (result_digest(played.result) == planned.result or _key(played.call.arguments) == wanted)
            for played in self._answered()
        )

    def _is_spared(self, planned: PlannedCall, index: int) -> bool:
        """Whether a look-up that the user did not ask for may be missing: others show that the turn was done,
        and all that they took from it, or that is to be told, was seen elsewhere."""
        turn = self.blueprint.turns[index]
        done = turn.must_say or any(call.mentioned for call in turn.calls)
        if planned.mentioned or turn.expects is not Expects.ACT or not done:
            return False
        answers = "\n".join(played.result.text for played in self._answered() if played.turn <= index)
        return all(says(answers, value) for value in turn.must_say) and all(
            says(self._seen_before(call, value, index), value)
            for call in turn.calls
            for value in _taken(planned.name, call)
        )

    def _seen_before(self, planned: PlannedCall, value: str, index: int) -> str:
        """All answers until a call like `planned` was made with the value."""
        texts: list[str] = []
        for played in self._answered():
            used = played.call.name == planned.name and says(played.call.arguments, value)
            if played.turn > index or (used and played.turn == index):
                break
            texts.append(played.result.text)
        return "\n".join(texts)


def _taken(name: str, planned: PlannedCall) -> Iterator[str]:
    """The argument values of a call that came from answers of the tool `name`."""
    arguments = canonical.loads(planned.arguments)
    for source in planned.sources:
        if source.of.split("#")[0] == name and source.argument in arguments:
            value = arguments[source.argument]
            yield from (str(item) for item in (value if isinstance(value, list) else [value]))


def reply_fits(planned: PlannedTurn, reply: str) -> bool:
    """Whether an assistant's last words of a turn are what the turn wants."""
    answer, told = read_answer(reply), all(says(reply, value) for value in planned.must_say)
    if planned.expects is Expects.ASK:
        return answer == read_answer(planned.reply)
    if planned.expects is Expects.REFUSE:
        return answer.kind is AnswerKind.REFUSE and told
    typed = answer.kind in (AnswerKind.ASK, AnswerKind.REFUSE, AnswerKind.SILENT)
    return not typed and told


def _key(arguments: str) -> str:
    return canonical.dumps(canonical.loads(arguments), sort_keys=True).lower()
