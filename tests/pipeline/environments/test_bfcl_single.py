"""BFCL single-turn: gold and wrong calls under the benchmark's checker, refusing, one turn, rows left out."""

from __future__ import annotations

import builtins
import importlib
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from data import canonical
from data.messages import ParseStatus, Role, ToolCall, ToolStatus, Turn, assistant
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.environments.agents import ListedAgent, null_agent, spammer
from pipeline.environments.bfcl import single_check
from pipeline.environments.bfcl.single import REFUSAL, SingleTurnEnvironment, load
from pipeline.environments.bfcl.single_check import convert_source, upstream_verdict
from pipeline.environments.bfcl.single_gold import gold_calls
from pipeline.environments.bfcl.single_rows import CATEGORIES, REFUSING, UNSOLVABLE, single_rows, single_tools
from pipeline.environments.check import CHECKS, check_environment
from pipeline.environments.play import play
from pipeline.errors import ConfigError, EnvironmentFailure
from tests.pipeline.environments.conftest import Run

pytestmark = pytest.mark.skipif(
    find_spec("bfcl_eval") is None, reason="bfcl_eval is not installed; run: make bfcl-setup"
)
SIZES = {
    "simple_python": 400,
    "simple_java": 100,
    "simple_javascript": 50,
    "multiple": 200,
    "parallel": 200,
    "parallel_multiple": 200,
    "live_simple": 258,
    "live_multiple": 1053,
    "live_parallel": 16,
    "live_parallel_multiple": 24,
    "irrelevance": 240,
    "live_irrelevance": 884,
    "live_relevance": 16,
}


def first(category: str, number: int = 0, **options: Any) -> tuple[SingleTurnEnvironment, Task]:
    environment = load(categories=category, **options)
    return environment, list(environment.tasks("all"))[number]


def components(played: Trajectory) -> dict[str, float]:
    assert played.reward is not None
    return {part.name: part.value for part in played.reward.components}


def gold_turn(environment: SingleTurnEnvironment, task: Task) -> Turn:
    turn = environment.gold(task).next_turn(task.prompt)
    assert turn is not None
    return turn


@pytest.mark.parametrize("category", CATEGORIES)
def test_the_checker_accepts_gold_on_every_row_but_the_listed_ones(category: str) -> None:
    rows = single_rows(category)
    refused = []
    for row in rows:
        calls = [] if category in REFUSING else gold_calls(row)
        if upstream_verdict(category, row.functions, row.answers, [{name: given} for name, given in calls]):
            refused.append(row.name)
    assert len(rows) == SIZES[category]
    assert refused == [row.name for row in rows if row.name in UNSOLVABLE]


@pytest.mark.parametrize("category", CATEGORIES)
def test_the_environment_check_is_green(run: Run, category: str) -> None:
    environment = load(categories=category)
    results = run(check_environment(environment, num_tasks=4, num_ids=8))
    assert [result.name for result in results] == list(CHECKS)
    assert [result for result in results if not result.passed] == []
    assert environment.num_open == 0


def test_the_floor_of_the_benchmarks_own_rule_is_printed(run: Run) -> None:
    environment = load(categories="irrelevance", refusal="any")
    results = {one.name: one for one in run(check_environment(environment, num_tasks=5, num_ids=5))}
    assert all(result.passed for result in results.values())
    assert "it scores on 10 of them by this foreign world's own rule" in results["null agent scores 0"].detail


def test_refusing_needs_the_typed_answer_and_both_verdicts_are_kept(run: Run) -> None:
    environment, task = first("irrelevance")
    assert run(play(environment, task, environment.gold(task))).success
    silent = run(play(environment, task, null_agent()))
    assert components(silent) == {"success": 0.0, "bfcl": 1.0, "one_turn": 1.0, "typed_answer": 0.0}
    spelled = run(play(environment, task, ListedAgent([assistant(f" {REFUSAL.lower()}.\n")])))
    assert spelled.success
    explained = run(
        play(environment, task, ListedAgent([assistant(f"None of them does this.\n**{REFUSAL}**")]))
    )
    assert explained.success
    talk = run(play(environment, task, ListedAgent([assistant(f"Sorry, {REFUSAL}, but here is a poem")])))
    assert not talk.success
    called = ListedAgent([assistant("", ToolCall(call_id="a", name="x")), assistant(REFUSAL)])
    assert components(run(play(environment, task, called)))["bfcl"] == 0.0
    assert REFUSAL in task.prompt[0].text


def test_only_the_first_turn_with_calls_counts(run: Run) -> None:
    environment, task = first("parallel")
    calls = gold_turn(environment, task).tool_calls
    assert len(calls) == 2
    spread = ListedAgent([*(assistant("", call) for call in calls), assistant("Done.")])
    assert components(run(play(environment, task, spread))) == {"success": 0.0, "bfcl": 0.0, "one_turn": 0.0}
    swapped = ListedAgent([assistant("", *reversed(calls)), assistant("Done.")])
    assert run(play(environment, task, swapped)).success, "the order of parallel calls is free"
    again = ListedAgent([assistant("", *calls), assistant("", *calls), assistant("Done.")])
    assert components(run(play(environment, task, again))) == {"success": 0.0, "bfcl": 1.0, "one_turn": 0.0}
    one_more = ListedAgent([assistant("", *calls, calls[0]), assistant("Done.")])
    assert not run(play(environment, task, one_more)).success


@pytest.mark.parametrize("category", ["simple_python", "simple_java", "simple_javascript", "live_multiple"])
def test_a_changed_argument_fails(run: Run, category: str) -> None:
    environment = load(categories=category)
    for task in list(environment.tasks("train"))[:20]:
        [call] = gold_turn(environment, task).tool_calls
        arguments = call.parsed_arguments()
        name = next(iter(arguments))
        other = {**arguments, name: "none of the answers" if isinstance(arguments[name], str) else 987654321}
        wrong = call.model_copy(update={"arguments": canonical.dumps(other)})
        played = run(play(environment, task, ListedAgent([assistant("", wrong), assistant("Done.")])))
        assert components(played)["bfcl"] == 0.0


def test_java_and_javascript_values_are_written_as_source() -> None:
    java = {row.name: row for row in single_rows("simple_java")}
    assert gold_calls(java["simple_java_1"])[0][1] == {
        "object": "Customers",
        "useShortName": "true",
        "params": 'new HashMap<String, Object>() {{ put("limit", 50); put("schemaFilter", "public"); }}',
    }
    [(_, given)] = gold_calls(java["simple_java_22"])
    assert given["ids"] == "new ArrayList<>(Arrays.asList(101L, 202L, 303L))"
    assert convert_source(given["ids"], "ArrayList", "long", "simple_java") == [101, 202, 303]
    script = {row.name: row for row in single_rows("simple_javascript")}
    [(_, given)] = gold_calls(script["simple_javascript_3"])
    assert given["coordinates"] == "[60, 30]"
    for row in (*java.values(), *script.values()):
        for tool in single_tools(row):
            kinds = {p["type"] for p in canonical.loads(tool.parameters)["properties"].values()}
            assert kinds <= {"string"}


def test_calls_are_received_or_told_what_is_wrong(run: Run) -> None:
    environment, task = first("simple_python")

    async def scene() -> None:
        session = await environment.open(task)
        good = await session.call("calculate_triangle_area", {"base": 10, "height": 5}, "0")
        assert (good.text, good.status) == ("Received.", ToolStatus.OK)
        assert await session.call("calculate_triangle_area", {}, "0") == good
        bad = await session.call("calculate_triangle_area", {"base": "10", "side": 1}, "1")
        assert bad.status is ToolStatus.TOOL_ERROR
        assert "missing argument: height" in bad.text and "unknown argument: side" in bad.text
        unknown = await session.call("verify", {}, "2")
        assert "there is no tool 'verify'" in unknown.text
        await session.close()
        await session.close()
        with pytest.raises(EnvironmentFailure, match="on a closed session"):
            await session.call("calculate_triangle_area", {}, "3")

    run(scene())
    assert environment.num_open == 0


def test_a_call_that_broke_the_schema_is_judged_as_written_and_an_unreadable_one_fails(run: Run) -> None:
    environment, task = first("simple_python")
    [call] = gold_turn(environment, task).tool_calls

    async def verdict(written: ToolCall) -> bool:
        session = await environment.open(task)
        turns = (*task.prompt, assistant("", written), assistant("Done."))
        played = await play(environment, task, ListedAgent([assistant("Done.")]))
        reward = await session.verify(played.model_copy(update={"turns": turns}))
        await session.close()
        return reward.total == 1.0

    assert run(verdict(call.model_copy(update={"status": ParseStatus.BAD_ARGUMENTS})))
    unreadable = call.model_copy(update={"status": ParseStatus.NOT_JSON, "arguments": "", "name": ""})
    assert not run(verdict(unreadable))


def test_live_relevance_wants_a_valid_call_in_one_turn(run: Run) -> None:
    environment, task = first("live_relevance")
    assert run(play(environment, task, environment.gold(task))).success

    async def tools() -> Any:
        session = await environment.open(task)
        await session.close()
        return session.tools

    assert not run(play(environment, task, spammer(run(tools())))).success
    made_up = ListedAgent([assistant("", ToolCall(call_id="a", name="no_such_tool")), assistant("Done.")])
    assert components(run(play(environment, task, made_up)))["valid_calls"] == 0.0


def test_the_checker_is_imported_without_vendors_and_without_eval(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    single_check._checker()
    assert "bfcl_eval.constants.model_config" not in sys.modules
    assert not [name for name in sys.modules if name.startswith("bfcl_eval.model_handler.api")]
    module = importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker")
    assert single_check._checker() is module.ast_checker

    evaluate, callers = builtins.eval, []

    def watched(*arguments: Any) -> Any:
        callers.append(sys._getframe(1).f_globals["__name__"])
        return evaluate(*arguments)

    environment = load(categories=["simple_python", "simple_java", "simple_javascript"])
    tasks = list(environment.tasks("all"))[::60]
    with monkeypatch.context() as patched:
        patched.setattr(builtins, "eval", watched)
        assert all(run(play(environment, task, environment.gold(task))).success for task in tasks)
        watched("1", {})
    assert callers.pop() == __name__, "the trap does bite"
    assert not [name for name in callers if name.startswith(("bfcl_eval", "pipeline"))]


def test_halves_are_disjoint_and_live_halves_share_no_set_of_functions() -> None:
    environment = load(categories=["simple_java", "live_simple", "live_parallel", "live_irrelevance"])
    train, heldout = list(environment.tasks("train")), list(environment.tasks("heldout"))
    together = list(environment.tasks("all"))
    left_out = [name for name in UNSOLVABLE if name.rsplit("_", 1)[0] in environment.categories]
    total = sum(SIZES[category] for category in environment.categories)
    assert len(train) + len(heldout) == len(together) == total - len(left_out)
    assert not {task.task_id for task in train} & {task.task_id for task in heldout}

    def groups(tasks: list[Task]) -> set[tuple[str, str]]:
        names = [task.synthesizer.rsplit("/", 1)[1] for task in tasks if task.template.startswith("live")]
        return {(name.rsplit("_", 1)[0], name.split("-")[1]) for name in names}

    assert not groups(train) & groups(heldout)
    assert load(whole=True).splits == ("all",)


def test_prompts_keep_the_rows_own_turns() -> None:
    environment = load(categories="live_irrelevance")
    tasks = {task.synthesizer.rsplit("/", 1)[1]: task for task in environment.tasks("all")}
    roles = [turn.role for turn in tasks["live_irrelevance_132-11-7"].prompt]
    assert roles == [Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.USER]
    assert tasks["live_irrelevance_132-11-7"].prompt[2].weight == 0.0
    assert "refuse" in tasks["live_irrelevance_132-11-7"].tags


@pytest.mark.parametrize("options", [{"categories": "rest"}, {"categories": []}, {"refusal": "maybe"}])
def test_impossible_options_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"live_parallel_multiple.*refusal is 'typed' or 'any'"):
        load(**options)
    with pytest.raises(ConfigError, match="has no split 'dev'"):
        list(load().tasks("dev"))
