"""Opening a run: its directory, its environment, its model, from a recipe.

A run is `<runs>/<recipe name>`. Finished stages have a manifest whose key covers the stage's
configuration, its inputs and the code version; `stage_done` skips exactly those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from data.manifests import stage_key
from data.media import FOLDER, MediaStore
from data.recipe import FILE, check_recipe
from data.store import Store
from flows.stages.recipe import GROWING, VOLATILE, Recipe, default_recipe
from pipeline.environments.base import Environment
from pipeline.environments.registry import load_environment
from pipeline.errors import ConfigError

CODE_VERSION = "1"
"""Raised when a stage's meaning changes: finished stages of older runs are then made again."""


def open_run(recipe: Recipe, runs: Path) -> Store:
    """The run's store, open for writing. ConfigError where the stored recipe differs in what matters."""
    return Store.create_or_open(runs / recipe.name, recipe.model_dump(mode="json"), **_may_differ())


@contextmanager
def rehearsed_run(recipe: Recipe, runs: Path) -> Iterator[Store]:
    """The run's store for reading, checked as `open_run` does; an empty one where there is none yet.

    The run stays as it is; the empty store is gone at the end.
    """
    root = runs / recipe.name
    if (root / FILE).is_file():
        check_recipe(root, recipe.model_dump(mode="json"), **_may_differ())
        with Store.open(root) as store:
            yield store
    else:
        with (
            TemporaryDirectory(prefix="trajsmith-dry-run-") as empty,
            open_run(recipe, Path(empty)) as store,
        ):
            yield store


def _may_differ() -> dict[str, Any]:
    """What a recipe may have that the stored one has not."""
    return {"volatile": VOLATILE, "growing": GROWING, "defaults": default_recipe()}


def environment_of(recipe: Recipe, *, root: Path | None = None) -> Environment:
    """The recipe's environment; media that its tools answer go to the run directory `root`."""
    environment = load_environment(recipe.environment.name, **recipe.environment.options)
    if root is not None and hasattr(environment, "media"):
        environment.media = MediaStore(root / FOLDER)
    return environment


def refuse_other_version(store: Store, environment: Environment) -> None:
    """ConfigError where the run was begun in another version of the environment."""
    begun = next((row.environment for row in store.trajectories()), None)
    if begun is None or begun.name != environment.name or begun.version == environment.version:
        return
    raise ConfigError(
        f"{store.root} was begun with {environment.name} of version {begun.version}, now it is "
        f"{environment.version}, and episodes of both would mix. Choose: put the old version back; or give "
        f"the recipe another name for a new run; or delete {store.root} to start over"
    )


def stage_done(store: Store, stage: str, *, config: Any, inputs: Mapping[str, str]) -> bool:
    """Whether `stage` has finished for exactly this configuration and these inputs."""
    manifest = store.manifest(stage)
    return manifest is not None and manifest["key"] == stage_key(config, inputs, CODE_VERSION)


def finish(
    store: Store, stage: str, *, config: Any, inputs: Mapping[str, str], counts: Mapping[str, int]
) -> None:
    """Write the stage's manifest; the last thing a stage does."""
    store.finish_stage(
        stage,
        key=stage_key(config, inputs, CODE_VERSION),
        counts=counts,
        versions=versions(),
        inputs=inputs,
    )


def versions() -> dict[str, str]:
    """Versions of what shapes the result, where installed."""
    found = {}
    for name in ("trajsmith", "torch", "transformers", "trl", "pyarrow", "tokenizers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
