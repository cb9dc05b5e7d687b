"""Cassettes: live answers once, then from the file; misses, secrets, torn files, the check."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from data import canonical
from data.messages import ToolResult, ToolStatus, assistant, text_parts, user
from data.tasks import Task
from data.trajectories import Blame, Termination, Trajectory
from pipeline.engines.base import Sampling
from pipeline.environments.cassette import CassetteEnvironment, with_cassette
from pipeline.environments.check import check_environment
from pipeline.environments.gold import PlannedGold, call
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment
from pipeline.environments.tape import Cassette, CassetteMode
from pipeline.environments.toolkit import ToolEnvironment, ToolSession
from pipeline.environments.tools import tool
from pipeline.errors import ConfigError, EnvironmentFailure, StoreError
from pipeline.renderers.chatml import ChatMLRenderer
from pipeline.rollout import RolloutSettings, rollout
from tests.disks import no_file_beyond
from tests.pipeline.environments.conftest import Run
from tests.pipeline.rollout_world import Speaker, World, call_text
from tests.pipeline.rollout_world import make_task as world_task
from tests.tiny import make_tiny_tokenizer

KEY = "sk-very-secret"


class NewsSession(ToolSession):
    """A live source that never answers the same twice."""

    numbers = itertools.count()

    @tool(deterministic=False)
    def latest(self, topic: str, api_key: str = "") -> dict[str, Any]:
        """Latest number."""
        if topic == "broken":
            raise OSError("no network")
        return {"number": next(self.numbers), "asked_with": api_key, "topic": topic}

    @tool
    def keep(self, topic: str) -> str:
        """Keep a topic."""
        self.state["kept"].append(topic)
        return str(len(self.state["kept"]))

    def judge(self, trajectory: Trajectory) -> Mapping[str, float]:
        return {"success": self.state["kept"] == [self.task.private_value()["topic"]]}


class News(ToolEnvironment):
    name, splits, session = "news", ("train", "heldout"), NewsSession

    def tasks(self, split: str) -> Iterator[Task]:
        for topic in ("rain", "wind") if split == "train" else ("snow", "hail"):
            yield Task(
                environment=self.name,
                split=split,
                template="keep",
                prompt=(user(f"Look up {topic}, then keep it."),),
                state='{"kept":[]}',
                private=canonical.dumps({"topic": topic}),
                verifier="news/1",
            )

    def gold(self, task: Task) -> PlannedGold:
        topic = task.private_value()["topic"]
        turns = [call("latest", topic=topic), call("keep", topic=topic), assistant("Done.")]
        return PlannedGold(turn for turn in turns)


def taped(path: Path, mode: str, **options: Any) -> CassetteEnvironment:
    return with_cassette(News(), path, mode=mode, **options)


async def ask(environment: CassetteEnvironment, *calls: tuple[str, dict[str, Any]]) -> list[ToolResult]:
    session = await environment.open(next(environment.tasks("train")))
    try:
        return [await session.call(name, given, f"c{n}") for n, (name, given) in enumerate(calls)]
    finally:
        await session.close()


RAIN = ("latest", {"topic": "rain"})
WIND = ("latest", {"topic": "wind"})


def texts(results: list[ToolResult]) -> list[str]:
    return [result.text for result in results]


def test_a_replay_answers_what_was_recorded_call_by_call(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "news.jsonl"
    recorded = run(ask(taped(path, "record"), RAIN, WIND, RAIN, ("keep", {"topic": "rain"})))
    assert len(set(texts(recorded))) == 4
    replayed = run(ask(taped(path, "replay"), RAIN, WIND, RAIN, ("keep", {"topic": "rain"})))
    assert replayed == recorded
    row = canonical.loads(path.read_text().splitlines()[2])
    assert (row["tool"], row["arguments"], row["occurrence"]) == ("latest", {"topic": "rain"}, 1)
    assert len(path.read_text().splitlines()) == 3  # the deterministic tool is not recorded


def test_a_repeated_call_id_is_answered_once(run: Run, tmp_path: Path) -> None:
    async def episode() -> None:
        environment = taped(tmp_path / "c.jsonl", "record")
        session = await environment.open(next(environment.tasks("train")))
        assert await session.call(*RAIN, "a") == await session.call(*RAIN, "a")
        await session.close()

    run(episode())
    assert len((tmp_path / "c.jsonl").read_text().splitlines()) == 1


def test_auto_gives_every_rollout_of_a_task_one_world_and_record_asks_again(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    environment = taped(path, "auto")
    assert run(ask(environment, RAIN)) == run(ask(environment, RAIN)) == run(ask(taped(path, "auto"), RAIN))
    again = run(ask(taped(path, "record"), RAIN))
    assert again != run(ask(environment, RAIN))
    assert run(ask(taped(path, "replay"), RAIN)) == again


def test_a_miss_is_an_infrastructure_failure_that_names_the_call(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    run(ask(taped(path, "record"), RAIN))
    environment = taped(path, "replay")
    with pytest.raises(
        EnvironmentFailure, match=r'no answer for latest\({"topic":"rain"}\), asked for the 2\. time'
    ):
        run(ask(environment, RAIN, RAIN))
    with pytest.raises(ConfigError, match="there is no cassette"):
        taped(tmp_path / "absent.jsonl", "replay")
    with pytest.raises(ConfigError, match="choose one of record, replay, auto"):
        taped(path, "play")


def test_a_miss_in_a_rollout_has_no_reward(run: Run, tmp_path: Path) -> None:
    renderer = ChatMLRenderer.load(make_tiny_tokenizer(tmp_path / "tokenizer"))
    path = tmp_path / "c.jsonl"
    path.touch()
    environment = with_cassette(World(), path, mode="replay", tools=["look"])
    trajectory = run(
        rollout(
            world_task(),
            environment=environment,
            engine=Speaker(renderer, [call_text("look", key="a"), "done"]),
            renderer=renderer,
            sampling=Sampling(max_tokens=200),
            settings=RolloutSettings(),
        )
    )
    assert (trajectory.termination, trajectory.blame) == (Termination.INFRA_FAILURE, Blame.TOOL)
    assert trajectory.reward is None and 'look({"key":"a"})' in trajectory.error


def test_infrastructure_errors_are_not_recorded(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    [result] = run(ask(taped(path, "record"), ("latest", {"topic": "broken"})))
    assert result.status is ToolStatus.INFRA_ERROR
    assert not path.exists()


def test_secrets_are_nowhere(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEWS_TOPIC", "storm-at-home")
    path = tmp_path / "c.jsonl"
    calls = [
        ("latest", {"topic": "rain", "api_key": KEY}),
        ("latest", {"topic": "storm-at-home"}),
    ]
    seen = run(ask(taped(path, "record", scrub_env=["NEWS_TOPIC"]), *calls))
    for text in (path.read_text(), canonical.dumps(texts(seen))):
        assert KEY not in text and "storm-at-home" not in text and "***" in text
    other = [("latest", {"topic": "rain", "api_key": "another key"}), calls[1]]
    assert run(ask(taped(path, "replay", scrub_env=["NEWS_TOPIC"]), *other)) == seen
    absent = ("latest", {"topic": "hail", "api_key": KEY})
    with pytest.raises(EnvironmentFailure) as caught:
        run(ask(taped(path, "replay"), absent))
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("secret", ["12345678", "null", "true", 'a"b\\c', "topic"])
def test_a_secret_that_looks_like_json_leaves_json_behind(run: Run, tmp_path: Path, secret: str) -> None:
    path = tmp_path / "c.jsonl"
    asked = ("latest", {"topic": f"about {secret}", "api_key": secret})
    seen = run(ask(taped(path, "record"), asked))
    assert seen[0].status is ToolStatus.OK and "about ***" in canonical.loads(seen[0].text).values()
    assert secret not in str(canonical.loads(path.read_text())["arguments"].values())
    assert run(ask(taped(path, "replay"), asked)) == seen
    cassette = taped(path, "replay").cassette
    text, secrets = cassette.scrubbed({"password": 12345678, "number": 12345678, "on": True, "none": None})
    assert canonical.loads(text) == {"password": "***", "number": "***", "on": True, "none": None}
    assert secrets == ["12345678"]


def test_a_torn_line_is_cut_and_garbage_is_named(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    recorded = run(ask(taped(path, "record"), RAIN, WIND))
    whole = path.read_text()
    path.write_text(whole[:-20])
    environment = taped(path, "auto")
    assert run(ask(environment, RAIN))[0] == recorded[0]
    run(ask(environment, WIND))
    assert len(taped(path, "replay").cassette) == 2
    path.write_text('{"task_id": 1}\n' + whole)
    with pytest.raises(ConfigError, match="line 1 is no recorded answer"):
        taped(path, "replay")


def test_a_full_disk_leaves_no_half_line_that_the_next_would_join(tmp_path: Path) -> None:
    tape = Cassette(tmp_path / "news.jsonl", CassetteMode.RECORD)
    answer = ToolResult(call_id="", name="headline", parts=text_parts("rain"))
    tape.add(("task", "headline", "{}", 0), answer)
    with no_file_beyond(tape.path.stat().st_size + 20), pytest.raises(StoreError, match="no space left"):
        tape.add(("task", "headline", "{}", 1), answer)
    tape.add(("task", "headline", "{}", 2), answer)
    again = Cassette(tape.path, CassetteMode.REPLAY)
    found = [again.find(("task", "headline", "{}", number)) is not None for number in range(3)]
    assert found == [True, False, True]


def test_a_restored_session_goes_on_where_it_was(run: Run, tmp_path: Path) -> None:
    async def episode() -> None:
        environment = taped(tmp_path / "c.jsonl", "auto")
        session = await environment.open(next(environment.tasks("train")))
        await session.call(*RAIN, "a")
        kept = session.snapshot()
        second = await session.call(*RAIN, "b")
        session.restore(kept)
        assert await session.call(*RAIN, "b") == second
        await session.close()

    run(episode())


def test_the_answers_of_an_episode_are_replayed_exactly(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    task = next(News().tasks("train"))

    def answers(world: CassetteEnvironment | News) -> list[ToolResult | None]:
        return [turn.result for turn in run(play(world, task, News().gold(task))).turns]

    recorded = answers(taped(path, "record"))
    assert any(recorded) and answers(taped(path, "replay")) == recorded
    assert answers(News()) != recorded


def test_any_environment_takes_the_option_cassette(tmp_path: Path) -> None:
    path = str(tmp_path / "c.jsonl")
    environment = load_environment("counter", cassette={"path": path, "mode": "auto"}, digits=2).inner
    assert isinstance(environment, CassetteEnvironment) and environment.inner.name == "counter"
    with pytest.raises(ConfigError, match=r"option cassette: .*unexpected keyword argument 'file'"):
        load_environment("counter", cassette={"file": path})


def test_the_environment_check_records_live_tools(run: Run) -> None:
    results = run(check_environment(News()))
    assert [result for result in results if not result.passed] == []
