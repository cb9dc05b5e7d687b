"""BFCL's other multi-turn categories and single-turn rows: checks, upstream's driver, the real loop."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from benchmarks.bfcl_scripted import CONTEXT, play_task
from data import canonical
from data.messages import Role
from data.trajectories import Termination, Trajectory
from pipeline.environments.bfcl import load
from pipeline.environments.bfcl.dataset import MULTI_TURN, rows
from pipeline.environments.bfcl.single import load as load_single
from pipeline.environments.bfcl.single_rows import CATEGORIES
from pipeline.environments.bfcl.verify import PlayedCall, fresh_world, judge
from pipeline.environments.bfcl.worlds import read_gold
from pipeline.environments.check import CHECKS, check_environment
from pipeline.environments.play import play
from pipeline.errors import ConfigError
from pipeline.renderers.chatml import ChatMLRenderer
from tests.pipeline.environments.conftest import Run
from tests.tiny import make_tiny_tokenizer

pytestmark = pytest.mark.skipif(
    find_spec("bfcl_eval") is None, reason="bfcl_eval is not installed; run: make bfcl-setup"
)
EVAL = "bfcl_eval.eval_checker.multi_turn_eval"
OTHERS = [name for name in MULTI_TURN if name != "base"]


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatMLRenderer:
    return ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def upstream() -> Iterator[Any]:
    """The benchmark's own driver; what it caches is removed afterwards."""
    yield importlib.import_module(f"{EVAL}.multi_turn_checker").multi_turn_checker
    utils = importlib.import_module(f"{EVAL}.multi_turn_utils")
    for name in [name for name in vars(utils) if name.endswith("_instance")]:
        delattr(utils, name)


@pytest.mark.parametrize("category", OTHERS)
def test_gold_solves_the_category_and_the_check_is_green(run: Run, category: Any) -> None:
    environment = load(category=category)
    tasks = list(environment.tasks("all"))
    assert len(tasks) == 200 and {category} <= set(tasks[0].tags)
    for task in tasks[::5]:
        assert run(play(environment, task, environment.gold(task))).success
    results = run(check_environment(environment, num_tasks=3, num_ids=3))
    assert [result.name for result in results] == list(CHECKS)
    assert [result for result in results if not result.passed] == []
    assert environment.num_open == 0


@pytest.mark.slow
@pytest.mark.parametrize("category", OTHERS)
def test_gold_solves_every_task(run: Run, category: Any) -> None:
    environment = load(category=category)
    played = [run(play(environment, task, environment.gold(task))) for task in environment.tasks("all")]
    assert [one.success for one in played] == [True] * 200


@pytest.mark.parametrize("category", OTHERS)
@pytest.mark.parametrize("dropped", [False, True])
def test_our_verdict_is_upstreams(category: Any, dropped: bool, upstream: Any) -> None:
    environment, verdicts = load(category=category), set()
    for task, row in list(zip(environment.tasks("all"), rows(category), strict=True))[::6]:
        gold = [list(turn) for turn in row.gold]
        played = [turn[:-1] for turn in gold] if dropped else gold
        entry = {
            "id": row.name,
            "initial_config": task.state_value()["config"],
            "involved_classes": [*row.classes],
        }
        steps = [[turn] if turn else [] for turn in played]
        theirs = upstream(steps, gold, entry, f"multi_turn_{category}", "categories")["valid"]
        world, calls = fresh_world(task), []
        for request, turn in enumerate(played):
            for text in turn:
                name, arguments = read_gold(text, row.classes)
                kept = canonical.loads(canonical.dumps(arguments))
                calls.append(PlayedCall(request, name, kept, world.call(name, arguments).text))
        assert theirs == (not judge(task, calls).failure), row.name
        verdicts.add(theirs)
    assert verdicts == {not dropped}


def test_tools_held_back_appear_with_their_user_turn(run: Run, renderer: ChatMLRenderer) -> None:
    environment = load(category="miss_func", max_tokens=CONTEXT)
    task = next(environment.tasks("all"))
    assert task.state_value()["held_back"] == {"3": ["sort"]}
    played = run(play_task(environment, task, renderer=renderer, gold=True))
    assert played.success and played.termination is Termination.FINISHED
    users = [turn.text for turn in played.turns if turn.role is Role.USER]
    assert users[3].startswith("I have updated some more functions")
    changed = [turn for turn in played.turns if turn.tools_changed is not None]
    assert len(changed) == 1 and len(played.segments) == 2
    before, after = ({tool.name for tool in segment.tools} for segment in played.segments)
    assert after - before == {"sort"} and changed[0].tool_calls[0].name == "sort"


def test_long_context_fills_the_worlds_and_shares_nothing(run: Run) -> None:
    short, long = load(), load(category="long_context")
    pairs = list(zip(short.tasks("all"), long.tasks("all"), strict=True))
    modules = [importlib.import_module(f"{EVAL}.func_source_code.long_context")]
    before = repr([vars(module) for module in modules])

    async def size(environment: Any, task: Any) -> int:
        session = await environment.open(task)
        length = len(session.snapshot())
        await session.close()
        return length

    assert run(size(long, pairs[0][1])) > 2 * run(size(short, pairs[0][0]))
    for _, task in pairs[::10]:
        run(play(long, task, long.gold(task)))
    assert repr([vars(module) for module in modules]) == before


def test_an_unknown_category_is_named() -> None:
    with pytest.raises(ConfigError, match="category is one of base, miss_func, miss_param, long_context"):
        load(category="composite")


@pytest.mark.parametrize("category", CATEGORIES)
def test_single_turn_gold_goes_through_the_loop(run: Run, renderer: ChatMLRenderer, category: str) -> None:
    environment: Any = load_single(categories=category, max_tokens=CONTEXT)

    async def both() -> tuple[Trajectory, Trajectory]:
        task = next(environment.tasks("heldout"))
        gold = await play_task(environment, task, renderer=renderer, gold=True)
        return gold, await play_task(environment, task, renderer=renderer, gold=False)

    gold, null = run(both())
    assert (gold.success, null.success) == (True, False)
    assert gold.termination is null.termination is Termination.FINISHED
    assert environment.num_open == 0


def test_gold_that_breaks_its_schema_still_passes_the_loop(run: Run, renderer: ChatMLRenderer) -> None:
    """The benchmark's answers to some rows break the documents they were asked with."""
    environment: Any = load_single(categories="live_simple", max_tokens=CONTEXT)
    task = next(task for task in environment.tasks("all") if task.synthesizer.endswith("live_simple_71-35-0"))
    played = run(play_task(environment, task, renderer=renderer, gold=True))
    [call] = [call for turn in played.turns for call in turn.tool_calls]
    assert not call.ok and "metrics" in call.error and played.success
