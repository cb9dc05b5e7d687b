"""Demonstrations, slips and rejection sampling."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Any

import pytest

from data import canonical
from data.errors import ConfigError
from data.messages import ToolCall, ToolSpec, tool, user
from data.messages import ToolResult as Result
from data.messages import text_parts as parts
from data.tasks import Task
from data.trajectories import Blame, Origin, SpanKind, Termination, Trajectory
from pipeline.engines.base import Sampling
from pipeline.errors import EngineError, EnvironmentFailure
from pipeline.renderers.chatml import ChatMLRenderer
from pipeline.rollout import RolloutSettings
from synthesizers import SYNTHESIZERS, load_synthesizer
from synthesizers.demonstration import Demonstration
from synthesizers.rejection_sampling import RejectionSampling, call_skeleton
from synthesizers.slips import other_arguments
from tests.pipeline.rollout_world import Speaker, Speech, World, call_text, make_task
from tests.tiny import make_tiny_tokenizer

GOLD = [[("look", {"key": "a"})], [("look", {"key": "b"}), ("look", {"key": "c"})], "done"]


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatMLRenderer:
    return ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def made(synthesizer: Any, tasks: Iterable[Task], **more: Any) -> list[Trajectory]:
    async def run() -> list[Trajectory]:
        return [trajectory async for trajectory in synthesizer.synthesize(tasks, **more)]

    return asyncio.run(run())


def gold_task(text: str = "Find it.", gold: Any = None, **private: Any) -> Task:
    return make_task(text, private={"gold": gold or GOLD, "looks": ["a", "b", "c"], **private})


def test_gold_is_executed_rendered_and_verified(renderer: ChatMLRenderer) -> None:
    world = World()
    [shown] = made(Demonstration(environment=world, renderer=renderer), [gold_task()])
    assert shown.success and shown.termination is Termination.FINISHED
    assert shown.policy.name == "gold" and shown.synthesizer == "demonstration"
    [segment] = shown.segments
    assert segment.origin is Origin.RENDERED and segment.logprobs == ()
    whole = renderer.render(shown.turns, segment.tools, generation_prompt=False)
    assert list(segment.token_ids) == whole.token_ids and list(segment.spans) == whole.spans
    mask = segment.loss_mask(shown.turns)
    trained = renderer.decode([t for t, m in zip(segment.token_ids, mask, strict=True) if m])
    two = call_text("look", key="b") + "\n" + call_text("look", key="c")
    assert trained == call_text("look", key="a") + "<|im_end|>" + two + "<|im_end|>done<|im_end|>"
    assert len({call.call_id for turn in shown.turns for call in turn.tool_calls}) == 3
    assert world.opened == world.closed == 1


def test_gold_with_a_user_turn_and_a_tool_change(renderer: ChatMLRenderer) -> None:
    gold = [[("unlock", {})], "which?", [("look", {"key": "a"})], "done"]
    [shown] = made(
        Demonstration(environment=World(), renderer=renderer),
        [gold_task(gold=gold, looks=["a"], users=["This one."])],
    )
    assert shown.success
    first, second = shown.segments
    assert len(second.tools) == len(first.tools) + 1
    text = [
        renderer.decode([t for t, m in zip(s.token_ids, s.loss_mask(shown.turns), strict=True) if m])
        for s in (first, second)
    ]
    assert text[0] == call_text("unlock") + "<|im_end|>"
    assert text[1] == "which?<|im_end|>" + call_text("look", key="a") + "<|im_end|>done<|im_end|>"


def test_gold_that_fails_is_recorded_and_raised_with_its_name(renderer: ChatMLRenderer) -> None:
    wrong, right = gold_task("bad", gold=[[("look", {"key": "z"})], "done"]), gold_task("good")
    recorded: list[Trajectory] = []

    async def run() -> None:
        async for shown in Demonstration(environment=World(), renderer=renderer).synthesize([wrong, right]):
            recorded.append(shown)

    with pytest.raises(EnvironmentFailure, match=wrong.task_id):
        asyncio.run(run())
    assert {shown.task_id: shown.success for shown in recorded} == {wrong.task_id: False, right.task_id: True}


def test_gold_in_a_broken_world_is_an_infra_failure_not_a_wrong_gold(renderer: ChatMLRenderer) -> None:
    [shown] = made(Demonstration(environment=World(broken="tool_raises"), renderer=renderer), [gold_task()])
    assert (shown.termination, shown.blame, shown.reward) == (Termination.INFRA_FAILURE, Blame.TOOL, None)


def test_demonstrations_repeat_and_skip_what_is_done(renderer: ChatMLRenderer) -> None:
    tasks = [gold_task(f"Task {n}") for n in range(4)]
    demonstration = Demonstration(environment=World(), renderer=renderer)
    first, second = made(demonstration, tasks), made(demonstration, tasks)
    assert sorted(t.content_digest() for t in first) == sorted(t.content_digest() for t in second)
    done = {t.trajectory_id for t in first[:3]}
    assert [t.trajectory_id for t in made(demonstration, tasks, done=done)] == [first[3].trajectory_id]


def test_a_recorded_failure_gets_a_new_attempt(renderer: ChatMLRenderer) -> None:
    demonstration = Demonstration(environment=World(), renderer=renderer)
    [first] = made(demonstration, [gold_task()])
    [again] = made(demonstration, [gold_task()], failed={first.trajectory_id})
    assert (again.attempt, again.group_id) == (1, first.group_id)
    assert made(demonstration, [gold_task()], failed={first.trajectory_id}, done={again.trajectory_id}) == []


def test_slips_are_seeded_valid_and_kept_with_their_outcome(renderer: ChatMLRenderer) -> None:
    tasks = [gold_task(f"Keys a b c d e f, task {n}") for n in range(20)]
    world = World()
    slipping = Demonstration(environment=world, renderer=renderer, slip=0.3, seed=1)
    first, second = made(slipping, tasks), made(slipping, tasks)
    assert sorted(t.content_digest() for t in first) == sorted(t.content_digest() for t in second)
    assert {t.success for t in first} == {True, False}
    assert all(call.ok for t in first for turn in t.turns for call in turn.tool_calls)
    assert first[0].policy.name == "gold+slip0.3"
    clean = made(Demonstration(environment=world, renderer=renderer, seed=1), tasks)
    assert not {t.group_id for t in clean} & {t.group_id for t in first}


@pytest.mark.parametrize(
    ("schema", "value", "allowed"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 3}, 2, {1, 3}),
        ({"type": "integer"}, 5, {2, 3, 4, 6, 7, 8}),
        ({"enum": ["x", "y"]}, "x", {"y"}),
        ({"type": "boolean"}, True, {False}),
        ({"type": "string"}, "F12", {"F7"}),
        ({"type": "array", "items": {"type": "string"}}, ["q"], None),
        ({"type": "string"}, "nothing like it", None),
    ],
)
def test_a_slip_is_another_valid_value(schema: dict[str, Any], value: Any, allowed: Any) -> None:
    whole = {"type": "object", "properties": {"v": schema}, "required": ["v"]}
    spec = ToolSpec(name="t", parameters=canonical.dumps(whole))
    call = ToolCall(call_id="c", name="t", arguments=canonical.dumps({"v": value}))
    said = [user("take F12, Rome"), tool(Result(call_id="c", name="t", parts=parts("F7 or F12 for 80")))]
    seen = {
        canonical.dumps(
            canonical.loads(other_arguments(call, spec, said, share=1.0, rng=random.Random(n)))["v"]
        )
        for n in range(40)
    }
    assert seen == {canonical.dumps(v) for v in (allowed if allowed is not None else [])} or (
        allowed is None and seen == {canonical.dumps(value)}
    )


def test_impossible_slip_is_refused(renderer: ChatMLRenderer) -> None:
    with pytest.raises(ConfigError, match=r"1\.5"):
        Demonstration(environment=World(), renderer=renderer, slip=1.5)


def seeded(token_ids: list[int], sampling: Sampling) -> Speech:
    seed = sampling.seed or 0
    return call_text("look", key=str(seed % 2)) if seed % 3 == 0 else "done" if seed % 3 == 1 else "lost"


def sampler(renderer: ChatMLRenderer, script: Any = seeded, **more: Any) -> RejectionSampling:
    return RejectionSampling(
        environment=World(),
        engine=Speaker(renderer, script),
        renderer=renderer,
        sampling=Sampling(max_tokens=100),
        settings=RolloutSettings(),
        **more,
    )


def test_all_rollouts_are_kept_with_their_outcome(renderer: ChatMLRenderer) -> None:
    tasks = [make_task(f"Task {n}") for n in range(3)]
    kept = made(sampler(renderer, k=8), tasks)
    assert len(kept) == 24 and {t.success for t in kept} == {True, False}
    by_task = {task.task_id: [t.rollout_index for t in kept if t.task_id == task.task_id] for task in tasks}
    assert all(sorted(indices) == list(range(8)) for indices in by_task.values())


def test_growing_k_only_adds(renderer: ChatMLRenderer) -> None:
    tasks = [make_task()]
    four = made(sampler(renderer, k=4), tasks)
    more = made(sampler(renderer, k=6), tasks, done={t.trajectory_id for t in four})
    assert sorted(t.rollout_index for t in more) == [4, 5]
    assert {t.group_id for t in four} == {t.group_id for t in more}


def test_early_stop_counts_distinct_skeletons_not_successes(renderer: ChatMLRenderer) -> None:
    same = sampler(renderer, lambda ids, s: "done", k=8, wave=2, enough_skeletons=2)
    assert len(made(same, [make_task()])) == 8, "eight successes of one skeleton are one way"

    def two_ways(token_ids: list[int], sampling: Sampling) -> Speech:
        if "<tool_response>" in renderer.decode(token_ids):
            return "done"
        return call_text("look", key="ab"[(sampling.seed or 0) % 2])

    kept = made(sampler(renderer, two_ways, k=32, wave=2, enough_skeletons=2), [make_task()])
    assert len({call_skeleton(t) for t in kept}) == 2 and len(kept) < 32
    assert all(t.success for t in kept) and len(kept) % 2 == 0


def test_ways_that_fail_stop_nothing_early(renderer: ChatMLRenderer) -> None:
    def fails(token_ids: list[int], sampling: Sampling) -> Speech:
        if "<tool_response>" in renderer.decode(token_ids):
            return "lost"
        return call_text("look", key=str(sampling.seed))

    kept = made(sampler(renderer, fails, k=8, wave=2, enough_skeletons=1), [make_task()])
    assert len(kept) == len({call_skeleton(t) for t in kept}) == 8 and not any(t.success for t in kept)


def test_early_stop_is_the_same_after_a_resume(renderer: ChatMLRenderer) -> None:
    tasks = [make_task(f"Task {n}") for n in range(6)]
    options: dict[str, Any] = {"k": 12, "wave": 3, "enough_skeletons": 2, "tasks_at_once": 4}
    whole = made(sampler(renderer, **options), tasks)
    disk = {t.trajectory_id: t for t in whole[::2]}
    rest = made(sampler(renderer, load=disk.get, **options), tasks, done=disk.keys())
    assert {t.trajectory_id for t in whole} == disk.keys() | {t.trajectory_id for t in rest}
    assert not disk.keys() & {t.trajectory_id for t in rest}
    assert len(whole) < 72
    with pytest.raises(ConfigError, match="load"):
        made(sampler(renderer, **options), tasks, done=disk.keys())


def test_infra_failures_are_kept_and_do_not_count(renderer: ChatMLRenderer) -> None:
    kept = made(sampler(renderer, lambda ids, s: EngineError("down"), k=2, infra_retries=1), [make_task()])
    assert len(kept) == 4 and all(t.reward is None for t in kept)


def test_skeleton_ignores_words_case_and_number_form(renderer: ChatMLRenderer) -> None:
    def skeleton(*speech: Speech) -> str:
        script = iter([*speech])
        [kept] = made(sampler(renderer, lambda ids, s: next(script), k=1), [make_task()])
        return call_skeleton(kept)

    base = skeleton(call_text("look", key="Rome"), "done")
    assert base == skeleton("I look.\n" + call_text("look", key=" rome"), "all done now")
    assert base != skeleton(call_text("look", key="Oslo"), "done")
    assert base != skeleton("done")


def test_synthesizers_by_name() -> None:
    assert load_synthesizer("demonstration") is Demonstration
    assert load_synthesizer("rejection_sampling") is RejectionSampling
    assert all(load_synthesizer(name).name == name for name in SYNTHESIZERS)
    with pytest.raises(ConfigError, match="rejection_sampling"):
        load_synthesizer("magic")


def test_impossible_numbers_are_refused(renderer: ChatMLRenderer) -> None:
    with pytest.raises(ConfigError, match="k must be"):
        sampler(renderer, k=0)
    with pytest.raises(ConfigError, match="enough_skeletons"):
        sampler(renderer, enough_skeletons=0)


def test_observation_tokens_of_demonstrations_are_untrained(renderer: ChatMLRenderer) -> None:
    [shown] = made(Demonstration(environment=World(), renderer=renderer), [gold_task()])
    kinds = [span.kind for span in shown.segments[0].spans]
    assert kinds[0] is SpanKind.PROMPT and kinds.count(SpanKind.GENERATED) == 3
    assert kinds.count(SpanKind.OBSERVATION) == 3
