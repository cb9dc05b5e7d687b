"""OpenAPI and simulated tools in the real loop: failures are no reward, what was played is marked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from data.messages import ToolCall, Turn, assistant
from data.tasks import Budget, Task
from data.trajectories import Blame, Termination, Trajectory
from pipeline.chat.scripted import ScriptedChat
from pipeline.engines.base import Sampling
from pipeline.engines.scripted import ScriptedEngine, continue_turns
from pipeline.environments.base import Environment
from pipeline.environments.openapi import OpenApiEnvironment
from pipeline.environments.simulated import SimulatedEnvironment
from pipeline.renderers.chatml import ChatMLRenderer
from pipeline.rollout import Job, RolloutSettings, rollouts
from tests.pipeline.environments.conftest import Run
from tests.pipeline.environments.openapi.api_server import DOCUMENT, ItemServer, serving
from tests.tiny import make_tiny_tokenizer

OWN_TOOLS = Path(__file__).parents[3] / "examples" / "own_tools"
TASKS = """
- prompt: Add a lamp.
  tools: [createItem]
  gold: [{name: createItem, arguments: {name: lamp}}]
  checks: [{get: /items, at: "0", contains: {name: lamp}}]
"""


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatMLRenderer:
    return ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def server() -> Iterator[ItemServer]:
    with serving() as running:
        yield running


def one_call(renderer: ChatMLRenderer) -> ScriptedEngine:
    def act(prompt: Sequence[int], rng: random.Random) -> Turn:
        if "<tool_response>" in renderer.decode(prompt):
            return assistant("Done.")
        return assistant("", ToolCall(call_id="", name="createItem", arguments='{"name":"lamp"}'))

    return ScriptedEngine(continue_turns(act, renderer))


async def played(environment: Environment, renderer: ChatMLRenderer, *, number: int = 1) -> list[Trajectory]:
    task = next(environment.tasks("train"))
    task = Task.model_validate(task.model_dump() | {"task_id": "", "budget": Budget(max_tokens=4000)})
    stream = rollouts(
        [Job(task, rollout_index=index) for index in range(number)],
        environment=environment,
        engine=one_call(renderer),
        renderer=renderer,
        sampling=Sampling(max_tokens=128),
        settings=RolloutSettings(),
        max_in_flight=number,
    )
    return [trajectory async for trajectory in stream]


def items(tmp_path: Path, server: ItemServer, **options: Any) -> OpenApiEnvironment:
    (tmp_path / "api.json").write_text(json.dumps(DOCUMENT))
    (tmp_path / "tasks.yaml").write_text(TASKS)
    return OpenApiEnvironment(
        document=tmp_path / "api.json",
        tasks=tmp_path / "tasks.yaml",
        url=server.url,
        session_header="X-Session",
        **options,
    )


def test_two_hundred_live_sessions_at_once_are_isolated_and_leave_no_socket(
    run: Run, tmp_path: Path, server: ItemServer, renderer: ChatMLRenderer
) -> None:
    environment = items(tmp_path, server, policy={"timeout": 120})
    trajectories = run(played(environment, renderer, number=200))
    assert [item.success for item in trajectories] == [True] * 200
    assert (environment.num_open, len(server.worlds)) == (0, 200)
    assert all(len(world) == 1 for world in server.worlds.values())
    assert connections_to(server) == 0


def connections_to(server: ItemServer) -> int:
    """Connections of this process to the server that the client has not closed (state 1: established)."""
    port = f"{int(server.url.split(':')[2].split('/')[0]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2].endswith(f":{port}") and row[3] == "01" for row in rows)


def test_a_failing_server_is_no_reward(
    run: Run, tmp_path: Path, server: ItemServer, renderer: ChatMLRenderer
) -> None:
    server.script.append(500)
    trajectory = run(played(items(tmp_path, server), renderer))[0]
    assert (trajectory.termination, trajectory.blame) == (Termination.INFRA_FAILURE, Blame.TOOL)
    assert trajectory.reward is None
    assert "POST" in trajectory.error and "HTTP 500" in trajectory.error
    failing = items(tmp_path, server, policy={"max_tries": 1})
    server.script.extend([(201, {"content-type": "application/json"}, "{}"), 500])
    trajectory = run(played(failing, renderer))[0]
    assert (trajectory.termination, trajectory.blame) == (Termination.INFRA_FAILURE, Blame.JUDGE)


def test_what_a_chat_played_is_marked_in_the_record(
    run: Run, tmp_path: Path, renderer: ChatMLRenderer
) -> None:
    item = {"id": 1, "name": "lamp", "tag": "red"}
    reply = {"outcome": "ok", "result": item, "error": "", "patch": {"items": {"1": item}}}
    (tmp_path / "api.json").write_text(json.dumps(DOCUMENT))
    (tmp_path / "tasks.yaml").write_text(TASKS.replace('get: /items, at: "0"', "state: /items/1"))
    environment = SimulatedEnvironment(
        chat=ScriptedChat([json.dumps(reply)]), document=tmp_path / "api.json", tasks=tmp_path / "tasks.yaml"
    )
    trajectory = run(played(environment, renderer))[0]
    assert trajectory.success
    assert trajectory.environment.version.startswith("simulated-")
    result = next(turn.result for turn in trajectory.turns if turn.result is not None)
    assert ("simulated", 1.0) in [(metric.name, metric.value) for metric in result.metrics]


def test_a_cancelled_episode_ends_its_server(run: Run) -> None:
    environment = OpenApiEnvironment(
        document=OWN_TOOLS / "openapi_rental.yaml",
        tasks=OWN_TOOLS / "openapi_tasks.yaml",
        start=["python", "-S", str(OWN_TOOLS / "openapi_server.py"), "{port}"],
    )

    async def episode() -> tuple[set[int], set[int]]:
        started = set[int]()

        async def act() -> None:
            async with await environment.open(next(environment.tasks("train"))) as session:
                await session.call("find_bikes", {}, "c1")
                started.update(children())
                await asyncio.Event().wait()

        acting = asyncio.create_task(act())
        while not started:
            await asyncio.sleep(0.01)
        acting.cancel()
        await asyncio.gather(acting, return_exceptions=True)
        return started, children()

    before = children()
    started, left = run(episode())
    assert len(started - before) == 1
    assert left - before == set()
    assert environment.num_open == 0


def children() -> set[int]:
    """Servers that this process started and that have not ended."""
    found = set()
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread or a process may end at any moment
            found |= {int(pid) for pid in children.read_text().split()}
    return {pid for pid in found if "openapi_server.py" in command(pid)}


def command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""
