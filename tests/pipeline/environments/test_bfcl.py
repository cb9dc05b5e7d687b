"""BFCL multi-turn base: gold on all 200 tasks, upstream's verdicts, neither its cache nor eval, splits."""

from __future__ import annotations

import builtins
import decimal
import importlib
import random
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from data import canonical
from data.messages import Role, ToolStatus, assistant
from data.tasks import Task
from pipeline.environments.agents import ListedAgent
from pipeline.environments.bfcl import dataset, load
from pipeline.environments.bfcl.environment import BfclEnvironment
from pipeline.environments.bfcl.verify import PlayedCall, judge
from pipeline.environments.bfcl.worlds import World, load_class, read_gold
from pipeline.environments.check import CHECKS, check_environment
from pipeline.environments.play import play
from pipeline.environments.tools import ToolLimits
from pipeline.errors import ConfigError, EnvironmentFailure, JudgeError
from tests.pipeline.environments.conftest import Run

installed = pytest.mark.skipif(
    find_spec("bfcl_eval") is None, reason="bfcl_eval is not installed; run: make bfcl-setup"
)
EVAL = "bfcl_eval.eval_checker.multi_turn_eval"


@pytest.fixture(scope="module")
def environment() -> BfclEnvironment:
    return load()


@pytest.fixture(scope="module")
def tasks(environment: BfclEnvironment) -> list[Task]:
    return list(environment.tasks("all"))


def with_class(tasks: list[Task], name: str) -> Task:
    return next(task for task in tasks if name in task.state_value()["classes"])


def done() -> ListedAgent:
    return ListedAgent([assistant("Done.")] * 9)


@installed
def test_gold_solves_all_tasks_and_doing_nothing_none(
    run: Run, environment: BfclEnvironment, tasks: list[Task]
) -> None:
    async def totals(agent: Any) -> list[float]:
        played = [await play(environment, task, agent(task)) for task in tasks]
        return [one.reward.total for one in played if one.reward is not None]

    assert run(totals(environment.gold)) == [1.0] * 200
    assert run(totals(lambda task: done())) == [0.0] * 200
    assert environment.num_open == 0


@installed
@pytest.mark.parametrize("tools", ["all", "gold"])
def test_the_environment_check_is_green(run: Run, tools: Any) -> None:
    environment = load(tools=tools)
    results = run(check_environment(environment, num_tasks=12))
    assert [result.name for result in results] == list(CHECKS)
    assert [result for result in results if not result.passed] == []
    assert environment.num_open == 0


@installed
def test_user_turns_come_one_after_the_other(
    run: Run, environment: BfclEnvironment, tasks: list[Task]
) -> None:
    played = run(play(environment, tasks[0], environment.gold(tasks[0])))
    said = tuple(turn.text for turn in played.turns if turn.role is Role.USER)
    assert said == dataset.rows()[0].users and len(said) == 4
    assert {part.name: part.value for part in played.reward.components} == {
        "success": 1.0,
        "turns": 1.0,
        "called": 1.0,
        "state": 1.0,
        "responses": 1.0,
    }

    async def asked_twice() -> list[str]:
        session = await environment.open(tasks[0])
        replies = [await session.next_user(played.turns[:2]) for _ in range(2)]
        await session.close()
        return [reply.text for reply in replies if reply is not None]

    assert run(asked_twice()) == [said[1], said[1]]


# --- neither eval nor a cache -------------------------------------------------------------------------------


@installed
def test_no_eval_and_no_exec_from_open_to_verdict(
    run: Run, environment: BfclEnvironment, tasks: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(play(environment, tasks[0], environment.gold(tasks[0])))
    for name in dataset._DOCUMENTS:
        load_class(name)

    def refuse(*arguments: Any, **named: Any) -> None:
        raise AssertionError("eval or exec on the session's path")

    def code(value: Any, *more: Any, **named: Any) -> Any:
        assert more[1] == "eval" and more[2:3] == (0x400,), "only syntax trees may be compiled"
        return compiled(value, *more, **named)

    compiled = builtins.compile
    scores = []
    with monkeypatch.context() as patched:
        patched.setattr(builtins, "eval", refuse)
        patched.setattr(builtins, "exec", refuse)
        patched.setattr(builtins, "compile", code)
        for task in tasks[:40]:
            scores.append(run(play(environment, task, environment.gold(task))).success)
    assert scores == [True] * 40
    execute = importlib.import_module(f"{EVAL}.multi_turn_utils").execute_multi_turn_func_call
    with monkeypatch.context() as patched:
        patched.setattr(builtins, "eval", refuse)
        answers, _ = execute(["add(1, 2)"], {}, ["MathAPI"], "control", "x")
    _forget_upstream_instances()
    assert answers == ["Error during execution: eval or exec on the session's path"], "the trap does bite"


def _modules() -> list[Any]:
    worlds = {load_class(name).__module__ for name in dataset._DOCUMENTS}
    names = [*sorted(worlds), f"{EVAL}.multi_turn_checker", f"{EVAL}.multi_turn_utils"]
    return [importlib.import_module(name) for name in names]


def _globals() -> dict[str, str]:
    """Name and value of everything at the top of the benchmark's modules."""
    return {
        f"{module.__name__}.{name}": repr(value)
        for module in _modules()
        for name, value in vars(module).items()
        if not name.startswith("__")
    }


@installed
def test_nothing_is_added_to_or_changed_in_the_modules(
    run: Run, environment: BfclEnvironment, tasks: list[Task]
) -> None:
    before = _globals()
    assert len(before) > 50

    async def play_all() -> None:
        for task in tasks:
            await play(environment, task, environment.gold(task))

    run(play_all())
    assert _globals() == before


@installed
def test_two_sessions_of_one_task_do_not_see_each_other(
    run: Run, environment: BfclEnvironment, tasks: list[Task]
) -> None:
    task = with_class(tasks, "GorillaFileSystem")

    async def both() -> tuple[str, str, str]:
        first, second = await environment.open(task), await environment.open(task)
        before = await second.call("ls", {}, "0")
        await first.call("touch", {"file_name": "marker.txt"}, "0")
        changed = await first.call("ls", {}, "1")
        after = await second.call("ls", {}, "1")
        for session in (first, second):
            await session.close()
        return before.text, changed.text, after.text

    before, changed, after = run(both())
    assert before == after and "marker.txt" in changed and "marker.txt" not in after


@installed
def test_a_default_changed_in_one_world_is_not_changed_in_another() -> None:
    first, second = World(["TwitterAPI"], {}), World(["TwitterAPI"], {})
    for world in (first, second):
        world.call("authenticate_twitter", {"username": "john", "password": "john123"})
    first.call("post_tweet", {"content": "one"})
    assert not first.call("mention", {"tweet_id": 0, "mentioned_usernames": ["@ann"]}).failed
    assert "@ann" in first.call("get_tweet", {"tweet_id": 0}).text
    assert '"mentions": []' in second.call("post_tweet", {"content": "two"}).text


def test_the_precision_of_the_process_is_put_back() -> None:
    mpmath = importlib.import_module("mpmath")
    before = mpmath.mp.prec, decimal.getcontext().prec
    world = World(["MathAPI"], {})
    logarithm = world.call("logarithm", {"value": 20, "base": 10, "precision": 2})
    root = world.call("square_root", {"number": 2, "precision": 5})
    assert (logarithm.text, root.text) == ("{'result': mpf('1.3027')}", "{'result': Decimal('1.4142')}")
    assert (mpmath.mp.prec, decimal.getcontext().prec) == before


# --- the verdict --------------------------------------------------------------------------------------------


def _forget_upstream_instances() -> None:
    utils = importlib.import_module(f"{EVAL}.multi_turn_utils")
    for name in [name for name in vars(utils) if name.endswith("_instance")]:
        delattr(utils, name)


@pytest.fixture
def upstream() -> Iterator[Any]:
    """The benchmark's own driver; what it caches is removed afterwards."""
    yield importlib.import_module(f"{EVAL}.multi_turn_checker").multi_turn_checker
    _forget_upstream_instances()


def _dropped(gold: list[list[str]]) -> list[list[str]]:
    longest = max(range(len(gold)), key=lambda index: len(gold[index]))
    return [turn[:-1] if index == longest else turn for index, turn in enumerate(gold)]


def _late(gold: list[list[str]]) -> list[list[str]]:
    return [[], *gold[:-2], gold[-2] + gold[-1]] if len(gold) > 1 else gold


MUTATIONS = {
    "gold": lambda gold: gold,
    "one call dropped": _dropped,
    "each turn backwards": lambda gold: [turn[::-1] for turn in gold],
    "each call twice": lambda gold: [[text for text in turn for _ in range(2)] for turn in gold],
    "a turn late": _late,
    "all in the first turn": lambda gold: [[text for turn in gold for text in turn], *[[] for _ in gold[1:]]],
    "first call of each turn": lambda gold: [turn[:1] for turn in gold],
    "unneeded calls in front": lambda gold: [[*gold[0][:1], *turn] for turn in gold],
}


@installed
@pytest.mark.parametrize("name", MUTATIONS)
def test_our_verdict_is_upstreams(name: str, upstream: Any, tasks: list[Task]) -> None:
    errors = {"called": "empty_turn_model_response", "state": "instance_state_mismatch"}
    errors |= {"responses": "execution_response_mismatch"}
    seen = set()
    for task, row in zip(tasks, dataset.rows(), strict=True):
        gold = [list(turn) for turn in row.gold]
        played = MUTATIONS[name](gold)
        entry = {
            "id": row.name,
            "initial_config": task.state_value()["config"],
            "involved_classes": [*row.classes],
        }
        steps = [[turn] if turn else [] for turn in played]
        theirs = upstream(steps, gold, entry, "multi_turn_base", "test_model")
        ours = judge(task, _as_played(task, played))
        expected = "" if theirs["valid"] else f"multi_turn:{errors[ours.failure]}"
        assert theirs.get("error_type", "") == expected, row.name
        seen.add(ours.failure)
    assert seen == {""} if name == "gold" else len(seen) > 1


def _as_played(task: Task, turns: list[list[str]]) -> list[PlayedCall]:
    state = task.state_value()
    world = World(state["classes"], state["config"])
    calls = []
    for request, turn in enumerate(turns):
        for text in turn:
            name, arguments = read_gold(text, state["classes"])
            kept = canonical.loads(canonical.dumps(arguments))
            calls.append(PlayedCall(request, name, kept, world.call(name, arguments).text))
    return calls


@installed
def test_a_world_that_answers_differently_when_replayed_gives_no_reward(
    run: Run, environment: BfclEnvironment, tasks: list[Task]
) -> None:
    async def tampered() -> None:
        session = await environment.open(tasks[0])
        await session.call("ls", {}, "0")
        session._calls = [PlayedCall(0, "ls", {}, "something else")]
        await session.verify(None)

    with pytest.raises(
        JudgeError, match=r"something else.* in the episode, .*current_directory_content.* when replayed"
    ):
        run(tampered())


ODD_VALUES: tuple[Any, ...] = (
    "",
    ".",
    "/",
    "\ud800",
    0,
    -1,
    10**30,
    1e308,
    True,
    None,
    [],
    {},
    [1, "a", None],
    {"a": {"b": [1]}},
)


@installed
def test_whatever_is_called_can_be_snapshotted_and_judged(
    run: Run, environment: BfclEnvironment, tasks: list[Task]
) -> None:
    """Random calls with words of the state and odd values: no exception, no reward, one verdict."""
    rng = random.Random(0)

    async def one(task: Task) -> tuple[float, float]:
        session = await environment.open(task)
        words = re.findall(r'"([^"]{1,30})"', task.state)
        for index in range(40):
            spec = rng.choice(session.tools)
            names = canonical.loads(spec.parameters)["properties"]
            arguments = {
                name: rng.choice(words) if rng.random() < 0.6 else rng.choice(ODD_VALUES) for name in names
            }
            result = await session.call(spec.name, arguments, str(index))
            assert result.status is not ToolStatus.INFRA_ERROR
        session.restore(session.snapshot())
        totals = [(await session.verify(None)).total for _ in range(2)]
        await session.close()
        return totals[0], totals[1]

    assert {run(one(task)) for task in tasks[::8]} == {(0.0, 0.0)}


# --- calls --------------------------------------------------------------------------------------------------


@installed
@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("nothing", {}, "Error during execution: there is no tool 'nothing'"),
        ("_load_scenario", {"scenario": {}}, "Error during execution: there is no tool '_load_scenario'"),
        ("__init__", {}, "Error during execution: there is no tool '__init__'"),
        ("cd", {}, "Error during execution: GorillaFileSystem.cd() missing 1 required"),
        ("cd", {"folder": "x", "depth": 1}, "unexpected keyword argument 'depth'"),
        ("cd", {"folder": 7}, "Error during execution: 'int' object has no attribute"),
        ("cat", {"file_name": "none"}, '{"error": "cat: ' + "'none'"),
    ],
)
def test_what_a_call_raises_is_its_answer(
    run: Run, environment: BfclEnvironment, tasks: list[Task], name: str, arguments: Any, text: str
) -> None:
    async def answer() -> Any:
        session = await environment.open(with_class(tasks, "GorillaFileSystem"))
        result = await session.call(name, arguments, "0")
        await session.close()
        return result

    result = run(answer())
    assert text in result.text and result.status is ToolStatus.TOOL_ERROR


@installed
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("power", {"base": 10, "exponent": 10**9}),
        ("logarithm", {"value": 3, "base": 2, "precision": 10**9}),
        ("square_root", {"number": 2, "precision": 10**9}),
        ("round_number", {"number": 5, "decimal_places": -(10**9)}),
    ],
)
def test_a_call_that_would_hold_the_process_is_refused(name: str, arguments: dict[str, Any]) -> None:
    answer = World(["MathAPI"], {}).call(name, arguments)
    assert answer.failed and "must be between -1000 and 1000" in answer.text


@installed
def test_repeated_ids_snapshots_truncation_and_closing(run: Run, tasks: list[Task]) -> None:
    environment = load(limits=ToolLimits(max_tool_response_length=20))
    task = with_class(tasks, "GorillaFileSystem")

    async def scene() -> None:
        session = await environment.open(task)
        first = await session.call("mkdir", {"dir_name": "new"}, "0")
        kept = session.snapshot()
        assert await session.call("mkdir", {"dir_name": "new"}, "0") == first and first.text == "None"
        assert session.snapshot() == kept
        again = await session.call("mkdir", {"dir_name": "new"}, "1")
        assert again.truncated and len(again.text) == 20 and again.status is ToolStatus.TOOL_ERROR
        elsewhere = await environment.open(task)
        elsewhere.restore(kept)
        assert await elsewhere.call("mkdir", {"dir_name": "new"}, "1") == again
        assert elsewhere.snapshot() != kept
        foreign = await environment.open(tasks[-1])
        with pytest.raises(ConfigError, match="snapshot belongs to task"):
            foreign.restore(kept)
        for opened in (session, session, elsewhere, foreign):
            await opened.close()
        with pytest.raises(EnvironmentFailure, match="on a closed session"):
            await session.call("ls", {}, "2")

    run(scene())
    assert environment.num_open == 0


@installed
def test_gold_strings_are_read_as_literals() -> None:
    files = ("GorillaFileSystem",)
    assert read_gold("sort('a.txt')", files) == ("sort", {"file_name": "a.txt"})
    assert read_gold("mv('a', destination='b')", files) == ("mv", {"source": "a", "destination": "b"})
    for text in ("__import__('os').system('true')", "ls(a=open('x'))", "ls"):
        with pytest.raises(ValueError):
            read_gold(text, files)
