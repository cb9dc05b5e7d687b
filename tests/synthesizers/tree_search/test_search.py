"""Searches with a scripted engine: what is kept, what is written down, and what it cost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from data import canonical
from data.errors import ConfigError
from data.messages import ToolResult, Turn, user
from data.tasks import Task
from data.trajectories import Blame, Reward, RewardComponent, SpanKind, Termination, Trajectory
from data.verdicts import Verdict
from pipeline.engines.base import Completion, Sampling
from pipeline.errors import EngineError, JudgeError
from pipeline.renderers.chatml import ChatMLRenderer
from pipeline.rollout import RolloutSettings, rollout
from pipeline.rollout_settings import Deadlines
from synthesizers import load_synthesizer
from synthesizers.tree_search.records import REPLAYED, is_searched, search_weight
from synthesizers.tree_search.settings import SearchSettings
from synthesizers.tree_search.synthesizer import TreeSearch
from tests.pipeline.rollout_world import Room, Speaker, World, call_text, make_task
from tests.tiny import make_tiny_tokenizer

GOLD = [[("look", {"key": "a"})], [("look", {"key": "b"})], "done"]
A, B, C = (call_text("look", key=key) for key in "abc")


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatMLRenderer:
    return ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


class Teller(Speaker):
    """Says, at each place of a dialogue, what `options` lists for it, round and round; keeps what it said."""

    def __init__(self, renderer: ChatMLRenderer, options: Callable[[str], Sequence[Any]]) -> None:
        super().__init__(renderer, self._next)
        self.options, self.asked = options, Counter[str]()
        self.said: dict[tuple[int, ...], list[Completion]] = {}

    def _next(self, token_ids: list[int], sampling: Sampling) -> Any:
        place = story(self.renderer.decode(token_ids))
        offered = self.options(place)
        self.asked[place] += 1
        return offered[(self.asked[place] - 1) % len(offered)]

    async def generate(
        self, token_ids: list[int], sampling: Sampling, *, n: int = 1, affinity: str = ""
    ) -> list[Completion]:
        made = await super().generate(token_ids, sampling, n=n, affinity=affinity)
        self.said.setdefault(tuple(token_ids), []).extend(made)
        return made

    @property
    def num_tokens(self) -> int:
        return sum(len(one.token_ids) for made in self.said.values() for one in made)


def story(prompt: str) -> str:
    """The keys looked at so far, as in "ab"."""
    spoken = prompt.split("<|im_start|>assistant")[1:]
    return "".join(part.split('"key":"')[1][0] if '"key":"' in part else "-" for part in spoken[:-1])


def gold_task(**private: Any) -> Task:
    return make_task(private={"gold": GOLD, "looks": ["a", "b"], **private})


def records(synthesizer: Any, tasks: Sequence[Task], **more: Any) -> tuple[list[Trajectory], list[Verdict]]:
    async def run() -> list[Any]:
        return [record async for record in synthesizer.synthesize(tasks, **more)]

    made = asyncio.run(run())
    kept = [one for one in made if isinstance(one, Trajectory)]
    return sorted(kept, key=lambda one: (one.rollout_index, one.attempt)), [
        one for one in made if isinstance(one, Verdict)
    ]


def search(
    renderer: ChatMLRenderer, engine: Speaker, world: World | None = None, **options: Any
) -> TreeSearch:
    known = {name: options.pop(name) for name in ("k", "max_in_flight", "infra_retries") if name in options}
    options.setdefault("scores", {"gold_match": 1.0})
    return TreeSearch(
        environment=world or World(),
        engine=engine,
        renderer=renderer,
        sampling=Sampling(max_tokens=120),
        search=options,
        **{"k": options.get("width", 2), **known},
    )


def good_and_bad(place: str) -> list[str]:
    """At every place a right and two wrong things."""
    return {"": [C, A, "no"], "a": [C, "done", B], "ab": [C, "done", A]}.get(place, ["done", C, A])


def test_one_candidate_is_the_plain_rollout(renderer: ChatMLRenderer) -> None:
    task = gold_task()
    synthesizer = search(renderer, Teller(renderer, good_and_bad), candidates=1, width=1)
    [found], _ = records(synthesizer, [task])
    plain = asyncio.run(
        rollout(
            task,
            environment=World(),
            engine=Teller(renderer, good_and_bad),
            renderer=renderer,
            sampling=Sampling(max_tokens=120),
            settings=RolloutSettings(),
        )
    )
    assert found.segments == plain.segments and found.reward == plain.reward
    assert found.usage.generated_tokens == plain.usage.generated_tokens
    assert [turn.text for turn in found.turns] == [turn.text for turn in plain.turns]
    assert found.policy.harness != plain.policy.harness and found.group_id != plain.group_id


def test_a_beam_keeps_the_better_steps_and_a_verdict_on_every_candidate(renderer: ChatMLRenderer) -> None:
    engine, world = Teller(renderer, good_and_bad), World()
    kept, verdicts = records(search(renderer, engine, world, candidates=3, width=1), [gold_task()])
    (found,) = kept
    assert found.success and found.synthesizer == "tree_search"
    assert [verdict.keep for verdict in verdicts].count(True) == 3 and len(verdicts) == 9
    assert {verdict.reason for verdict in verdicts} == {"chosen", "outscored"}
    assert len({verdict.trajectory_id for verdict in verdicts}) == 9
    scores = {score.name: score.value for score in found.scores}
    assert scores["search/0/rank"] == 1 and scores["search/0/candidates"] == 3
    assert scores["search/2/turn"] == 6 and "search/0/probability" not in scores
    assert search_weight(found) is None and is_searched(found)
    assert world.opened == world.closed == 1 + 1 + 3 * 2  # gold, the start, and two forks a step
    assert found.usage.generated_tokens == engine.num_tokens and found.usage.engine_calls == 9


def test_what_is_kept_is_what_was_sampled_token_by_token(renderer: ChatMLRenderer) -> None:
    engine = Teller(renderer, good_and_bad)
    kept, verdicts = records(search(renderer, engine, candidates=3, width=2), [gold_task()])
    assert len(kept) == 2 and len({one.trajectory_id for one in kept}) == 2
    for found in kept:
        (segment,) = found.segments
        logprobs = list(segment.logprobs)
        for span in (span for span in segment.spans if span.kind is SpanKind.GENERATED):
            said = [(one.token_ids, one.logprobs) for one in engine.said[segment.token_ids[: span.start]]]
            size = span.end - span.start
            assert (segment.token_ids[span.start : span.end], tuple(logprobs[:size])) in said
            del logprobs[:size]
    assert sum(one.usage.generated_tokens for one in kept) == engine.num_tokens
    details = {one.trajectory_id: canonical.loads(one.detail) for one in verdicts}
    dropped = [one for one in details.values() if "kept_in" not in one]
    assert sum(len(one["token_ids"]) for one in dropped) + num_kept(kept) == engine.num_tokens
    assert all(len(one["token_ids"]) == len(one["logprobs"]) for one in dropped)
    assert {one["parent"] for one in details.values()} <= {"", *details}
    ids = {one.trajectory_id for one in kept}
    assert {one["kept_in"] for one in details.values() if one not in dropped} == ids
    assert not any("seconds" in turn for one in dropped for turn in one["turns"])


def num_kept(kept: Sequence[Trajectory]) -> int:
    """Sampled tokens of trajectories of one search, what they share counted once."""
    steps = {
        segment.token_ids[: span.end]: span.end - span.start
        for found in kept
        for segment in found.segments
        for span in segment.spans
        if span.kind is SpanKind.GENERATED
    }
    return sum(steps.values())


def misleading(place: str) -> list[str]:
    """What scores best first leads nowhere."""
    return {"": [A, B], "a": ["giving up"], "b": ["done"]}[place]


def test_a_beam_is_as_wide_as_it_says(renderer: ChatMLRenderer) -> None:
    """The second best step is the one that succeeds: a beam of width 1, as released, never finds it."""
    task = make_task(private={"gold": [[("look", {"key": "a"})], "done"], "looks": ["b"], "echo": 1})
    scores = {"gold_match": 0.1, "outcome": 1.0}
    world = AnyGold()
    for width, solved in ((1, [False]), (2, [True, True])):
        engine = Teller(renderer, misleading)
        kept, _ = records(search(renderer, engine, world, candidates=2, width=width, scores=scores), [task])
        assert [one.success for one in kept] == solved


class AnyGold(World):
    """Scores gold as right whatever it looked at: only to mislead."""

    async def open(self, task: Task, *, seed: int = 0) -> Room:
        return AnyRoom(self, task)


class AnyRoom(Room):
    async def verify(self, trajectory: Trajectory) -> Reward:
        reward = await super().verify(trajectory)
        return reward if trajectory.policy.name != "script" else reward.model_copy(update={"total": 1.0})


def test_a_lookahead_plays_on_before_it_scores_and_draws_the_next_step_anew(renderer: ChatMLRenderer) -> None:
    task = make_task(private={"gold": [[("look", {"key": "a"})], "done"], "looks": ["b"]})
    scores, world = {"gold_match": 0.1, "outcome": 1.0}, AnyGold()
    beam, _ = records(
        search(renderer, Teller(renderer, misleading), world, candidates=2, width=1, scores=scores), [task]
    )
    engine = Teller(renderer, misleading)
    ahead, verdicts = records(
        search(renderer, engine, world, kind="lookahead", depth=1, candidates=2, width=1, scores=scores),
        [task],
    )
    assert [beam[0].success, ahead[0].success] == [False, True]
    assert engine.asked == {"": 2, "a": 1, "b": 3}  # one look each, then the chosen one's two candidates
    assert ahead[0].usage.generated_tokens == engine.num_tokens and len(verdicts) == 4
    seeds = [one.seed for one in engine.requests]
    assert len(set(seeds)) == len(seeds)


def test_best_of_n_compares_whole_episodes(renderer: ChatMLRenderer) -> None:
    engine = Teller(renderer, lambda place: {"": [A, B, A, C], "a": [B], "ab": ["done"]}.get(place, ["done"]))
    kept, verdicts = records(
        search(renderer, engine, kind="best_of_n", candidates=4, width=2, scores={"outcome": 1.0}, k=4),
        [gold_task()],
    )
    assert [one.rollout_index for one in kept] == [0, 1, 2, 3] and len(verdicts) == 8
    assert [one.success for one in kept] == [True] * 4
    assert sum(one.usage.generated_tokens for one in kept) == engine.num_tokens


def test_what_cannot_be_parsed_is_recorded_and_goes_on_only_without_another(renderer: ChatMLRenderer) -> None:
    broken = "<tool_call>\n{look\n</tool_call>"
    engine = Teller(renderer, lambda place: {"": [broken, "oh", broken]}.get(place, [broken]))
    kept, verdicts = records(
        search(renderer, engine, candidates=3, width=1, scores={"errors": -1.0}), [gold_task()]
    )  # an error pays here, and still ranks below what can be read
    assert [one.reason for one in verdicts] == ["unparsable", "chosen", "unparsable"]
    assert all(canonical.loads(one.detail)["token_ids"] for one in verdicts if not one.keep)
    assert kept[0].turns[-1].text == "oh"
    engine = Teller(renderer, lambda place: [broken])
    kept, verdicts = records(
        search(renderer, engine, candidates=2, width=1, scores={"errors": 1.0}), [gold_task()]
    )
    assert kept[0].termination is Termination.REPETITION and kept[0].reward is not None
    assert Counter(one.reason for one in verdicts) == {"chosen": 3, "unparsable": 3}


class Forgetful(World):
    """Its sessions keep no snapshot; `lies` makes them answer differently the second time."""

    lies = False

    async def open(self, task: Task, *, seed: int = 0) -> Room:
        self.opened += 1
        return (Liar if self.lies and self.opened > 1 else NoSnapshot)(self, task)


class NoSnapshot(Room):
    def snapshot(self) -> bytes:
        raise NotImplementedError


class Liar(NoSnapshot):
    async def call(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        return await super().call(name, {"key": arguments["key"] + "!"}, call_id)


def test_without_snapshots_the_calls_are_made_again(renderer: ChatMLRenderer) -> None:
    task = gold_task(users=["And now?"], looks=["a", "b", "a", "b"])
    options = {"candidates": 3, "width": 2, "scores": {"outcome": 1.0, "errors": 0.1}}
    found = [
        records(search(renderer, Teller(renderer, good_and_bad), world, replay=replay, **options), [task])
        for world, replay in ((World(), True), (Forgetful(), False))
    ]
    one, other = ([turn.text for turn in kept[0].turns] for kept, _ in found)
    assert one == other and all(REPLAYED in kept[0].labels for kept, _ in found)
    plain = make_task(private={"gold": GOLD, "looks": ["a", "b"]})
    snapshots, _ = records(search(renderer, Teller(renderer, good_and_bad), **options), [plain])
    again, _ = records(search(renderer, Teller(renderer, good_and_bad), replay=True, **options), [plain])
    assert [one.segments for one in snapshots] == [one.segments for one in again]
    assert not snapshots[0].labels and again[0].labels == (REPLAYED,)


def test_an_answer_that_differs_when_made_again_is_no_reward(renderer: ChatMLRenderer) -> None:
    world = Forgetful()
    world.lies = True
    options = {"candidates": 2, "width": 2, "scores": {"outcome": 1.0}, "infra_retries": 0}
    kept, verdicts = records(
        search(renderer, Teller(renderer, good_and_bad), world, **options), [gold_task()]
    )
    broken = [canonical.loads(one.detail)["error"] for one in verdicts if one.reason == "infra_failure"]
    assert broken and all("differently when it was made again" in error for error in broken)
    assert not any(one.error for one in kept)


def test_a_broken_candidate_leaves_the_pool_and_the_others_go_on(renderer: ChatMLRenderer) -> None:
    engine = Teller(renderer, lambda place: [EngineError("gone"), A, B] if not place else good_and_bad(place))
    kept, verdicts = records(search(renderer, engine, candidates=3, width=1), [gold_task()])
    assert kept[0].success
    (broken,) = [one for one in verdicts if one.reason == "infra_failure"]
    assert broken.score is None and "gone" in canonical.loads(broken.detail)["error"]
    assert {one.name: one.value for one in kept[0].scores}["search/0/candidates"] == 2


def test_too_few_candidates_left_is_an_infrastructure_failure_and_tried_again(
    renderer: ChatMLRenderer,
) -> None:
    world, synthesizer = World(), None
    engine = Teller(renderer, lambda place: [EngineError("gone")])
    synthesizer = search(renderer, engine, world, candidates=2, width=2)
    kept, _ = records(synthesizer, [gold_task()])
    assert [(one.rollout_index, one.attempt) for one in kept] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {(one.termination, one.blame, one.reward) for one in kept} == {
        (Termination.INFRA_FAILURE, Blame.INFRASTRUCTURE, None)
    }
    assert world.opened == world.closed
    failed = {one.trajectory_id for one in kept}
    again, _ = records(search(renderer, Teller(renderer, good_and_bad), candidates=2, width=2), [gold_task()],
                       failed=failed)  # fmt: skip
    assert [(one.rollout_index, one.attempt) for one in again] == [(0, 2), (1, 2)]


def test_a_world_that_cannot_be_opened_is_one_too(renderer: ChatMLRenderer) -> None:
    synthesizer = search(
        renderer, Teller(renderer, good_and_bad), World(broken="open"), candidates=2, width=2, infra_retries=0
    )
    kept, verdicts = records(synthesizer, [gold_task()])
    assert [(one.rollout_index, one.termination, one.reward) for one in kept] == [
        (0, Termination.INFRA_FAILURE, None),
        (1, Termination.INFRA_FAILURE, None),
    ]
    assert not verdicts and "no room" in kept[0].error


def test_what_stops_everything_stops_a_search_and_leaves_no_session(renderer: ChatMLRenderer) -> None:
    world = World()
    engine = Teller(renderer, lambda place: [A, ConfigError("no such model")])
    with pytest.raises(ConfigError, match="no such model"):
        records(search(renderer, engine, world, candidates=2, width=1, scores={"errors": 1.0}), [gold_task()])
    assert world.opened == world.closed == 2


def test_a_search_repeats_and_makes_only_what_is_missing(renderer: ChatMLRenderer) -> None:
    tasks = [gold_task(), make_task("Find it again.", private={"gold": GOLD, "looks": ["a", "b"]})]

    def digests(**more: Any) -> tuple[list[str], list[str]]:
        kept, verdicts = records(
            search(renderer, Teller(renderer, good_and_bad), candidates=3, width=2, max_in_flight=1),
            tasks,
            **more,
        )
        return sorted(one.content_digest() for one in kept), sorted(one.model_dump_json() for one in verdicts)

    first, second = digests(), digests()
    assert first == second and len(first[0]) == 4
    kept, _ = records(search(renderer, Teller(renderer, good_and_bad), candidates=3, width=2), tasks)
    assert len({(one.task_id, one.group_id) for one in kept}) == len({one.group_id for one in kept}) == 2
    everything = {one.trajectory_id for one in kept}
    assert digests(done=everything) == ([], [])
    left_out = kept[0]
    left, _ = digests(done=everything - {left_out.trajectory_id})
    assert left == [left_out.content_digest()]


def test_soft_choices_record_probabilities_and_weights_of_mean_one(renderer: ChatMLRenderer) -> None:
    engine = Teller(renderer, good_and_bad)
    kept, _ = records(
        search(renderer, engine, candidates=3, width=2, pick="soft", temperature=1.0, k=40), [gold_task()]
    )
    weights = [search_weight(one) for one in kept]
    assert len(kept) == 40 and all(weight is not None and weight > 0 for weight in weights)
    assert len(set(weights)) > 2
    probabilities = [s.value for one in kept for s in one.scores if s.name.endswith("/probability")]
    assert all(0 < value <= 1 for value in probabilities)


def test_scores_that_read_private_parts_refuse_what_is_evaluated(renderer: ChatMLRenderer) -> None:
    held = gold_task().model_copy(update={"split": "heldout_unseen", "task_id": "held"})
    synthesizer = search(renderer, Teller(renderer, good_and_bad), candidates=2, width=1)
    with pytest.raises(ConfigError, match="'heldout_unseen' is evaluated on"):
        records(synthesizer, [held])
    fair = search(renderer, Teller(renderer, good_and_bad), candidates=2, width=1, scores={"errors": 1.0})
    assert len(records(fair, [held])[0]) == 1


class Graded(World):
    """A verifier with a component for the share of looks that are right so far; counts what it is asked."""

    asked = 0
    fails = False

    async def open(self, task: Task, *, seed: int = 0) -> Room:
        self.opened += 1
        return GradedRoom(self, task)


class GradedRoom(Room):
    async def verify(self, trajectory: Trajectory) -> Reward:
        assert isinstance(self.world, Graded)
        self.world.asked += 1
        if self.world.fails and trajectory.turns[-1].result is not None:
            raise JudgeError("no idea")
        reward = await super().verify(trajectory)
        right = sum(one == two for one, two in zip(self.looks, "ab", strict=False)) / 2
        self.looks.append("judged")  # judging may change the world: it must be a copy
        return reward.model_copy(update={"components": (RewardComponent(name="share", value=right),)})


def test_the_verifier_is_asked_of_a_copy_of_the_world(renderer: ChatMLRenderer) -> None:
    world = Graded()
    options = {"candidates": 3, "width": 1, "scores": {"component/share": 1.0, "outcome": 1.0}}
    kept, _ = records(search(renderer, Teller(renderer, good_and_bad), world, **options), [gold_task()])
    assert kept[0].success and world.opened == world.closed and world.asked > 3
    with pytest.raises(ConfigError, match="gives share"):
        bad = {**options, "scores": {"component/sure": 1.0}}
        records(search(renderer, Teller(renderer, good_and_bad), Graded(), **bad), [gold_task()])
    world.fails = True
    kept, verdicts = records(
        search(renderer, Teller(renderer, good_and_bad), world, infra_retries=0, **options), [gold_task()]
    )
    assert kept[0].reward is not None or {one.reason for one in verdicts} == {"infra_failure"}


def test_settings_that_cannot_be_searched_with_are_refused(renderer: ChatMLRenderer) -> None:
    engine = Teller(renderer, good_and_bad)
    for options, said in (
        ({"kind": "mcts"}, "best_of_n, beam, lookahead"),
        ({"width": 5}, "could not fill the beam"),
        ({"k": 3}, "multiple of search.width 2"),
        ({"scores": {"beauty": 1.0}}, "no step score 'beauty'"),
        ({"breadth": 2}, "unknown breadth"),
        ({"pick": "soft", "floor": 0.0}, "above 0"),
    ):
        with pytest.raises(ConfigError, match=said):
            search(renderer, engine, **options)
    with pytest.raises(ConfigError, match="no stragglers"):
        settings = RolloutSettings(deadlines=Deadlines(group=5.0))
        records(TreeSearch(environment=World(), engine=engine, renderer=renderer, settings=settings), [])
    assert load_synthesizer("tree_search") is TreeSearch
    assert SearchSettings().digest != SearchSettings(width=1).digest
    assert SearchSettings().digest == SearchSettings(depth=9, max_weight=2.0).digest


def test_turns_of_the_user_are_steps_too(renderer: ChatMLRenderer) -> None:
    class Saying(World):
        async def open(self, task: Task, *, seed: int = 0) -> Room:
            return SayingRoom(self, task)

    class SayingRoom(Room):
        async def next_user(self, turns: Sequence[Turn]) -> Turn | None:
            told = sum(turn.role.value == "user" for turn in turns) - 1
            left = self.task.private_value()["users"][told:]
            return user(left[0]) if left else None

    task = make_task(private={"users": ["More?", "Sure?"]})
    engine = Teller(renderer, lambda place: ["done", "oh"])
    kept, verdicts = records(
        search(renderer, engine, Saying(), candidates=2, width=2, scores={"outcome": 1.0}), [task]
    )
    assert [sum(turn.role.value == "user" for turn in one.turns) for one in kept] == [3, 3]
    assert any(one.success for one in kept) and len(verdicts) == 2 + 4 + 4
