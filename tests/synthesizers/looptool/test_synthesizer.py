"""LoopTool as one synthesis: all that a round needs from one command, resumable, with the scripted policy."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from data.errors import ConfigError
from data.messages import Turn
from data.store import Store
from data.tasks import Task
from data.trajectories import Trajectory
from data.verdicts import Pair, Verdict
from flows.stages.scripted import ScriptedPolicy
from pipeline.chat.core import LEDGER, ChatLedger
from pipeline.chat.scripted import ScriptedChat
from pipeline.engines.scripted import Fault, ScriptedEngine, continue_turns
from pipeline.environments.registry import load_environment
from pipeline.environments.wrapped import WrappedEnvironment
from pipeline.errors import EngineError, EnvironmentFailure
from pipeline.rollout_settings import RolloutSettings
from synthesizers import load_synthesizer
from synthesizers.base import Made
from synthesizers.looptool.probing import Probe
from synthesizers.looptool.records import REPAIRED, Part
from synthesizers.looptool.rows import RowLog
from synthesizers.looptool.samples import step_samples
from synthesizers.looptool.synthesizer import PROBED, VERIFIED, LoopTool
from synthesizers.looptool.weakness import WEAKNESS
from tests.flows.lab import digests, recipe, trajsmith, write_recipe
from tests.synthesizers.looptool.world import Desk, Planted
from tests.tiny import make_tiny_tokenizer


def run(looptool: LoopTool, tasks: Sequence[Task], **options: Any) -> list[Made]:
    async def made() -> list[Made]:
        return [record async for record in looptool.synthesize(tasks, **options)]

    return asyncio.run(made())


def looptool(desk: Desk, engine: Any, **options: Any) -> LoopTool:
    return LoopTool(
        environment=desk.environment, engine=engine, renderer=desk.renderer, **{"k": 2, **options}
    )


def of(kind: Any, made: Sequence[Made]) -> list[Any]:
    return [record for record in made if isinstance(record, kind)]


class Shelf:
    """A store of rows."""

    root = Path("run")

    def __init__(self, rows: Sequence[Trajectory]) -> None:
        self.rows = rows

    def trajectories(self) -> Any:
        return iter(self.rows)


def test_a_synthesis_is_a_round(desk: Desk) -> None:
    tasks = list(desk.tasks.values())[:8]
    made = run(looptool(desk, desk.policy(mistakes=0.4), high_share=0.5), tasks)
    rows: list[Trajectory] = of(Trajectory, made)
    seeds = {row.trajectory_id: row for row in rows if row.synthesizer == "demonstration"}
    assert {row.task_id for row in seeds.values()} == {task.task_id for task in tasks}
    trained = [row for row in rows if row.synthesizer == "looptool"]
    parts = Counter(label for row in trained for label in row.labels)
    assert parts[Part.ERROR_SEED.mark] and parts[Part.HIGH_PERPLEXITY.mark] and parts[Part.EXPANSION.mark]
    verdicts = of(Verdict, made)
    probed = {each.trajectory_id: each for each in verdicts if each.filter == PROBED}
    assert set(probed) == {sample.step_id for row in seeds.values() for sample in step_samples(row)}
    errors = {each.trajectory_id for each in verdicts if each.filter == VERIFIED and each.keep}
    assert errors and all(not probed[step].keep for step in errors)
    chosen = [row for row in trained if Part.EXPANSION.mark not in row.labels]
    steps = {f"{row.parents[0]}#{sample.turn}" for row in chosen for sample in step_samples(row)}
    assert errors == {step for step in steps if not probed[step].keep}
    mastered = {step: each.score for step, each in probed.items() if each.keep}
    kept = [score for step, score in mastered.items() if step in steps]
    dropped = [score for step, score in mastered.items() if step not in steps]
    assert kept and dropped and min(kept) >= max(dropped), "mastered ones of low perplexity are dropped"
    assert len(of(Pair, made)) == len(errors)
    expanded = [row for row in trained if Part.EXPANSION.mark in row.labels]
    assert len(of(Task, made)) == len(expanded) > len(errors)


def test_stored_successes_with_planted_labels_are_repaired(desk: Desk, planted: list[Planted]) -> None:
    rows = [each.row.model_copy(update={"synthesizer": "imported"}) for each in planted]
    shelf: Any = Shelf(rows)
    made = run(looptool(desk, desk.policy(), of="imported", store=shelf), list(desk.tasks.values()))
    repaired = {row.parents[0]: row for row in of(Trajectory, made) if REPAIRED in row.labels}
    assert set(repaired) == {each.row.trajectory_id for each in planted if each.is_wrong}
    assert looptool(desk, desk.policy(), of="imported", store=shelf).inputs().keys() == {"imported"}
    with pytest.raises(ConfigError, match="no success of 'nobody' on these tasks to probe"):
        run(looptool(desk, desk.policy(), of="nobody", store=shelf), list(desk.tasks.values()))
    with pytest.raises(ConfigError, match="read from a run's store"):
        looptool(desk, desk.policy(), of="imported")


def test_one_judge_is_refused_before_anything_is_asked(desk: Desk) -> None:
    def judge(number: int) -> ScriptedChat:
        return ScriptedChat([], name=f"judge {number}")

    with pytest.raises(ConfigError, match="at least 2 chats"):
        looptool(desk, desk.policy(), chats={"label_judge_1": judge(1)})
    two = looptool(desk, desk.policy(), chats={"label_judge_1": judge(1), "label_judge_2": judge(2)})
    assert [each.name for each in two.judges] == ["judge 1", "judge 2"]
    with pytest.raises(ConfigError, match="no role 'judges'"):
        looptool(desk, desk.policy(), chats={"judges": judge(1)})
    with pytest.raises(ConfigError, match="high_share a share"):
        looptool(desk, desk.policy(), high_share=2.0)


def make_writer() -> ScriptedChat:
    """A chat that a recipe names by a string."""
    return ScriptedChat([], name="the whole name")


def test_a_chat_named_by_a_string_is_that_chat_and_no_letter_of_it(desk: Desk) -> None:
    """The released expansion draws a model with random.choice from a string."""
    named = f"{__name__}:make_writer"
    made = looptool(desk, desk.policy(), chat=named)
    for role in ("sample_writer", "sample_judge"):
        chat = made.roles.of(role)
        assert chat is not None and chat.name == "the whole name"
    assert made.judges == [], "judges are named one by one"


def test_a_killed_synthesis_decodes_nothing_twice(desk: Desk, tmp_path: Path) -> None:
    tasks = list(desk.tasks.values())[:4]
    rows = {s.context: s.label for row in desk.rows.values() for s in step_samples(row)}

    def say(prompt: Sequence[int], _: random.Random) -> Turn:
        return rows[tuple(prompt)]

    engine = ScriptedEngine(continue_turns(say, desk.renderer), faults={5: Fault.ERROR, 7: Fault.ERROR})
    with pytest.raises(EngineError, match=r"2 steps could not be probed; the first, .*The same command"):
        run(looptool(desk, engine, chat_dir=tmp_path), tasks)
    asked = engine.num_calls
    made = run(looptool(desk, engine, chat_dir=tmp_path), tasks)
    assert engine.num_calls == asked + 2
    run(looptool(desk, engine, chat_dir=tmp_path), tasks)
    assert engine.num_calls == asked + 2
    probes = len({each.trajectory_id for each in of(Verdict, made) if each.filter == PROBED})
    [(name, (calls, tokens))] = ChatLedger(tmp_path / LEDGER).totals().items()
    assert (name, calls) == ("scripted (probe)", probes) and tokens > 50 * probes
    done = {row.trajectory_id for row in of(Trajectory, made)}
    assert not of(Trajectory, run(looptool(desk, engine, chat_dir=tmp_path), tasks, done=done))
    table = json.loads((tmp_path / WEAKNESS).read_text())
    all_of_them = next(row for row in table if row["name"] == "environment:travel_desk")
    mastered = sum(each.keep for each in of(Verdict, made) if each.filter == PROBED)
    assert all_of_them["mastered"] | {"successes": mastered, "trials": probes} == all_of_them["mastered"]
    shares = [row["mastered"]["successes"] / row["mastered"]["trials"] for row in table]
    assert len(table) > 5 and shares == sorted(shares)


def test_a_repair_that_the_world_broke_is_made_again(desk: Desk, tmp_path: Path) -> None:
    tasks = list(desk.tasks.values())[:3]
    opened = []

    class Shaky(WrappedEnvironment):
        """Its sessions open for the demonstrations, and not afterwards."""

        async def open(self, task: Any, *, seed: int = 0) -> Any:
            opened.append(task)
            if self.down and len(opened) > len(tasks):
                raise OSError("the database is down")
            return await self.inner.open(task, seed=seed)

        down = True

    shaky: Any = Shaky(desk.environment, version=desk.environment.version)
    options = {"environment": shaky, "renderer": desk.renderer, "chat_dir": tmp_path, "k": 1}
    with pytest.raises(EnvironmentFailure, match=r"mismatches could not be verified; .*database is down"):
        run(LoopTool(engine=desk.policy(mistakes=0.5), **options), tasks)
    shaky.down = False
    made = run(LoopTool(engine=desk.policy(mistakes=0.5), **options), tasks)
    verified = [each for each in of(Verdict, made) if each.filter == VERIFIED]
    assert verified and not any("infra" in each.detail for each in verified)


def test_a_world_of_sqlite(desk: Desk) -> None:
    """Another world, whose state is a database in a file."""
    environment = load_environment("sql_desk")
    tasks = list(islice(environment.tasks("train"), 3))
    policy = ScriptedPolicy(environment, desk.renderer, mistakes=0.4)
    settings = RolloutSettings(max_context_tokens=30_000)
    made = run(
        LoopTool(environment=environment, engine=policy, renderer=desk.renderer, settings=settings, k=2),
        tasks,
    )
    words = Counter(each.reason for each in of(Verdict, made) if each.filter == VERIFIED)
    assert words["PRED_WRONG"] and set(words) <= {"PRED_WRONG", "BOTH_CORRECT"}
    expanded = [row for row in of(Trajectory, made) if Part.EXPANSION.mark in row.labels]
    assert expanded and all(row.success for row in expanded)


def test_half_a_synthesis_and_the_rest_of_it_are_the_whole(desk: Desk) -> None:
    tasks = list(desk.tasks.values())[:4]
    whole = run(looptool(desk, desk.policy(mistakes=0.4)), tasks)
    kept = whole[: len(whole) // 2]
    done = {row.trajectory_id for row in of(Trajectory, kept)}
    shelf: Any = Shelf(of(Trajectory, kept))
    rest = run(looptool(desk, desk.policy(mistakes=0.4), store=shelf), tasks, done=done)

    def digests_of(made: Sequence[Made]) -> set[str]:
        return {each.content_digest() for each in of(Trajectory, made)}

    assert digests_of([*kept, *rest]) == digests_of(whole) and not digests_of(kept) & digests_of(rest)
    for kind in (Task, Pair, Verdict):
        assert {each.model_dump_json() for each in of(kind, rest)} == {
            each.model_dump_json() for each in of(kind, whole)
        }


def test_a_chat_is_asked_for_no_sample_twice(desk: Desk, tmp_path: Path) -> None:
    tasks = list(desk.tasks.values())[:2]
    asked = []

    def write(turns: Sequence[Turn], tools: Any) -> str:
        asked.append(turns)
        calls = [{"name": "profile", "arguments": {}}]
        return json.dumps({"request": "Tell me my airline.", "calls": calls, "closing": "-"})

    def made() -> list[Made]:
        chats = {"sample_writer": ScriptedChat(write, name="writer", max_asks=1)}
        options = {"chats": chats, "chat_dir": tmp_path, "k": 1}
        return run(looptool(desk, desk.policy(mistakes=0.6), **options), tasks)

    first, number = made(), len(asked)
    assert number and of(Task, first)
    again = made()
    assert len(asked) == number and [type(each) for each in again] == [type(each) for each in first]


def test_a_torn_line_is_not_there_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "probes.log"
    probe = Probe(trajectory_id="a", turn=2, task_id="t", verdict="mastered", perplexity=1.5)  # type: ignore[arg-type]
    with RowLog(path, Probe) as log:
        log.append(probe.step_id, probe)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    later = probe.model_copy(update={"turn": 4})
    with RowLog(path, Probe) as log:
        log.append(later.step_id, later)
    with RowLog(path, Probe) as log:
        assert [row.turn for row in log.rows()] == [2, 4]


def test_the_command_runs_it_and_runs_it_again(tmp_path: Path) -> None:
    assert load_synthesizer("looptool") is LoopTool
    tokenizer = make_tiny_tokenizer(tmp_path / "tokenizer")
    synth = {"loop": {"synthesizer": "looptool", "tasks": 4, "options": {"k": 2, "high_share": 0.5}}}
    value = recipe(tokenizer, synth=synth, environment={"name": "travel_desk"})
    value["policy"]["mistakes"] = 0.4
    value["evaluate"] = {"tasks": 1}
    path = write_recipe(tmp_path, value)
    first = trajsmith("synth", path, "--runs", tmp_path / "runs")
    assert first.code == 0, first.err
    root = tmp_path / "runs" / "small"
    before = digests(root)
    with Store.open(root) as store:
        rows = list(store.trajectories())
        assert {row.synthesizer for row in rows} == {"demonstration", "looptool"}
        assert {label for row in rows for label in row.labels} >= {Part.ERROR_SEED.mark, Part.EXPANSION.mark}
        assert list(store.pairs()) and {each.filter for each in store.verdicts()} >= {PROBED, VERIFIED}
        known = store.ids("tasks")
        assert all(row.task_id in known for row in rows)
    again = trajsmith("synth", path, "--runs", tmp_path / "runs")
    assert again.code == 0 and digests(root) == before
