"""Showing single trajectories of a run: the local page and the mask audit in the terminal."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any

from pydantic import BaseModel, ValidationError

from data.recipe import FILE as RECIPE_FILE
from data.recipe import read_recipe
from data.store import Store
from data.trajectories import Trajectory
from flows.stages.policy import policy_model
from flows.stages.recipe import EnvironmentSection, PolicySection
from pipeline.errors import ConfigError, StoreError
from pipeline.renderers.base import Renderer
from pipeline.renderers.load import load_renderer
from pipeline.reporting.server import Source, make_server


class _Read(BaseModel):
    """What is read of a stored recipe, whatever else it holds."""

    environment: EnvironmentSection
    policy: PolicySection
    seed: int


def recipe_of(store: Store) -> dict[str, Any]:
    """The recipe of a run, or of the run that an evaluation's directory belongs to.

    StoreError where what is read of it is not there or of a wrong type.
    """
    is_evaluation = "evaluation" in store.recipe
    root = store.root.resolve().parents[1] if is_evaluation else store.root
    recipe = read_recipe(root)
    try:
        _Read.model_validate(recipe)
    except ValidationError as error:
        found = error.errors()[0]
        place = ".".join(map(str, found["loc"]))
        raise StoreError(
            f"{root / RECIPE_FILE} is no recipe of a run: {place}: {found['msg']}; restore it from a copy"
        ) from error
    return recipe


def policy_of(store: Store) -> PolicySection:
    """The policy of what `recipe_of` names."""
    return PolicySection.model_validate(recipe_of(store)["policy"])


def renderer_of(store: Store) -> Renderer:
    """The renderer of the run's model."""
    return load_renderer(policy_model(policy_of(store)))


@contextmanager
def open_view(store: Store, *, port: int) -> Iterator[tuple[ThreadingHTTPServer, str]]:
    """The local page's server and its address; closed at the end. ConfigError where the port is taken."""

    def get(trajectory_id: str) -> Trajectory | None:
        found = store.get("trajectories", trajectory_id) or store.get("failures", trajectory_id)
        return found if isinstance(found, Trajectory) else None

    def read() -> Iterator[Trajectory]:
        return itertools.chain(store.trajectories(), store.failures())

    decode: Callable[[Sequence[int]], str] = renderer_of(store).decode
    server = make_server(Source(read=read, get=get), title=store.root.name, decode=decode, port=port)
    try:
        yield server, f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.server_close()


def audit_run(store: Store, *, count: int, trajectory_id: str = "") -> bool:
    """Print trajectories coloured by span and the audit of all masks; whether every mask is right.

    ConfigError where there is none to check.
    """
    from rl.audit import audit, print_audit

    renderer = renderer_of(store)
    shown: list[Trajectory]
    if trajectory_id:
        found = store.get("trajectories", trajectory_id)
        if not isinstance(found, Trajectory):
            raise ConfigError(
                f"{store.root} has no trajectory {trajectory_id!r}; `trajsmith view` lists them"
            )
        shown = [found]
    else:
        shown = list(itertools.islice(store.trajectories(), count))
    for trajectory in shown:
        print(f"{trajectory.trajectory_id}  {trajectory.template}  {trajectory.termination}")
        print_audit(trajectory, renderer.decode)
    stops = renderer.stop_token_ids
    report = audit(store.trajectories(), stop_token_ids=stops, allow_cut_off=True, allow_untrained=True)
    if not report.trajectories:
        raise ConfigError(
            f"{store.root} holds no trajectories with a reward, whose masks are checked; "
            f"run `trajsmith synth` first"
        )
    print(
        f"{report.trajectories} trajectories, {report.tokens} tokens, {report.trained_tokens} trained, "
        f"{report.cut_off_turns} turns cut off, {len(report.problems)} problems"
    )
    for problem in report.problems[:20]:
        print(f"  {problem}")
    return not report.problems
