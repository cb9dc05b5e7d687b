"""What the tests of hindsight share: episodes played by a script, a store of them, records by kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from data import canonical
from data.messages import Turn, assistant, system, user
from data.store import Store
from data.tasks import Task
from data.trajectories import Reward, Trajectory
from data.verdicts import Verdict
from pipeline.chat.scripted import ScriptedChat
from pipeline.environments.base import Environment
from pipeline.environments.gold import PlannedGold, call
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment
from synthesizers.base import Turned
from synthesizers.hindsight.synthesizer import Hindsight

MARKS = ("Zebulon", "PX8841", "cheapest")
"""Planted in the old request, the policy's own words and the private part."""
SEARCH = call("flights", src="Paris", dst="Miami", day="May 14")


class Records(NamedTuple):
    """What was made, by kind."""

    tasks: list[Task]
    trajectories: list[Trajectory]
    verdicts: list[Verdict]

    @property
    def reasons(self) -> list[str]:
        """Why goals made nothing."""
        return [verdict.reason for verdict in self.verdicts if not verdict.keep]

    @property
    def ends(self) -> list[str]:
        """What became of the episodes."""
        return [verdict.reason for verdict in self.verdicts if verdict.reason in list(Turned)]

    @property
    def calls(self) -> list[list[str]]:
        """Names of the calls of each trajectory."""
        return [[c.name for turn in row.turns for c in turn.tool_calls] for row in self.trajectories]


def desk() -> Any:
    """The travel desk, as a recipe loads it."""
    return load_environment("travel_desk")


def paris_to_miami() -> Task:
    """A task of the desk with planted words, all tools shown. May 14: F773 07:20 $310, F219 15:10 $230, F111
    13:00 $200."""
    task = list(islice(desk().tasks("train"), 2))[1]
    private = canonical.dumps(task.private_value() | {"note": "for Zebulon, PX8841"})
    request = "Zebulon, number PX8841, wants the cheapest flight Paris to Miami, May 14. Reserve it for me."
    prompt = (system("You work at a desk."), user(request))
    changes = {"task_id": "", "tools": None, "private": private, "prompt": prompt}
    return Task.model_validate(task.model_copy(update=changes).model_dump())


def wordy(turn: Turn) -> Turn:
    """The turn as a policy that thinks aloud about what it was asked."""
    calls = tuple(c.model_copy(update={"raw": f"<tool_call>Zebulon {c.arguments}"}) for c in turn.tool_calls)
    said = assistant("For Zebulon, PX8841, the cheapest.", *calls, reasoning="Zebulon wants the cheapest.")
    return said


def episode(
    task: Task,
    *turns: Turn,
    index: int = 0,
    reward: float | None = None,
    environment: Environment | None = None,
) -> Trajectory:
    """What the turns do in the task's world; `reward` in place of the verifier's."""

    def plan() -> Any:
        for turn in turns:  # noqa: UP028 a tuple takes nothing sent
            yield turn
        yield assistant("I cannot do what Zebulon wants.")

    world = environment or desk()
    played = asyncio.run(play(world, task, PlannedGold(plan())))
    assert played.reward is not None
    total = played.reward.total if reward is None else reward
    verdict = Reward(total=total, verifier="v/1")
    changes = {
        "trajectory_id": "",
        "rollout_index": index,
        "synthesizer": "rejection_sampling",
        "reward": verdict,
    }
    return Trajectory.model_validate(played.model_copy(update=changes).model_dump())


def looked_back(
    root: Path,
    renderer: Any,
    tasks: Sequence[Task],
    episodes: Sequence[Trajectory],
    *,
    environment: Environment | None = None,
    done: Sequence[str] = (),
    known: Sequence[Task] = (),
    **options: Any,
) -> Records:
    """Hindsight on the episodes; `known` are tasks in the store."""

    async def run(store: Store) -> Records:
        found = Records([], [], [])
        kinds: dict[type, list[Any]] = {
            Task: found.tasks,
            Trajectory: found.trajectories,
            Verdict: found.verdicts,
        }
        made = Hindsight(
            environment=environment or desk(),
            renderer=renderer,
            store=store,
            chat_dir=root / "chats",
            **options,
        )
        async for record in made.synthesize(tasks, done=set(done)):
            kinds[type(record)].append(record)
        return found

    with Store.create_or_open(root, {"name": "lab"}) as store:
        there = store.ids("trajectories")
        for task in known:
            store.append(task)
        for row in episodes:
            if row.trajectory_id not in there:
                store.append(row)
        return asyncio.run(run(store))


def chat(answers: Callable[[str], Any] | Sequence[Any], *, name: str = "teacher") -> ScriptedChat:
    """A chat whose answers are JSON values, given its last user turn where it is a function."""
    if callable(answers):
        function = answers
        return ScriptedChat(
            lambda turns, tools: canonical.dumps(function(turns[-1].text)), name=name, max_asks=1
        )
    texts = [answer if isinstance(answer, str) else canonical.dumps(answer) for answer in answers]
    return ScriptedChat(texts, name=name, max_asks=1)
