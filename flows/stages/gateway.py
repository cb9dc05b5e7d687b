"""The gateway stage: a run's policy served to foreign harnesses, their episodes in the run's store.

Not covered: how episodes are recorded (`pipeline.gateway`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from data.store import Store
from data.tasks import Task
from data.trajectories import Trajectory
from flows.stages import run as runs_
from flows.stages.progress import Say
from flows.stages.recipe import Recipe
from flows.stages.verbs import open_work
from pipeline.gateway.gateway import Gateway
from pipeline.gateway.serve import run_gateway
from pipeline.gateway.settings import GatewaySettings


async def serve_gateway(
    recipe: Recipe,
    *,
    runs: Path,
    port: int,
    harness: str,
    say: Say,
    until: Callable[[], Awaitable[object]],
    url: str = "",
    idle_seconds: float = 900.0,
    started: Callable[[str, str], object] = lambda url, token: None,
) -> None:
    """Serve until `until` returns, then seal the store; `started` is told the URL and the token."""
    async with open_work(recipe, runs=runs, url=url, say=say) as work:
        runs_.refuse_other_version(work.store, work.environment)
        policy, known = work.policy, work.store.ids("tasks")

        def record(made: Task | Trajectory) -> None:
            if not isinstance(made, Task) or made.task_id not in known:
                work.store.append(made)
            if isinstance(made, Trajectory):
                reward = "no reward" if made.reward is None else f"reward {made.reward.total:g}"
                say(f"{made.trajectory_id}: {made.termination}, {reward}")

        gateway = Gateway(
            policy.engine,
            renderer=policy.renderer,
            sampling=policy.sampling,
            settings=GatewaySettings(
                harness=harness,
                max_context_tokens=policy.settings.max_context_tokens,
                idle_seconds=idle_seconds,
            ),
            environment=work.environment,
            emit=record,
            first_index=next_indices(work.store),
            run_id=work.store.root.name,
        )
        async with run_gateway(gateway, port=port) as served:
            started(served, gateway.settings.token)
            await until()
        work.store.seal()


def next_indices(store: Store) -> dict[str, int]:
    """Per task the first rollout index that the gateway has not used in this store."""
    found: dict[str, int] = {}
    for kind in (store.trajectories(), store.failures()):
        for row in kind:
            if row.synthesizer == "gateway":
                found[row.task_id] = max(found.get(row.task_id, 0), row.rollout_index + 1)
    return found
