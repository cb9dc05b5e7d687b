"""The diagnosis stage: gold is played once and never trusted, and what is written is complete."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

import pytest

from data.store import Store
from flows.stages.diagnose import diagnose_run, gold_book, save_diagnosis
from flows.stages.evaluate import Evaluation
from flows.stages.progress import silent
from flows.stages.recipe import Recipe
from flows.stages.show import recipe_of
from pipeline.environments.registry import load_environment
from tests.flows.lab import recipe, trajsmith, write_recipe


def test_gold_that_does_not_score_or_breaks_is_not_known_and_said() -> None:
    for factory in ("wrong_gold", "torn_gold"):
        environment = load_environment(f"tests.flows.lab:{factory}")
        tasks = list(islice(environment.tasks("train"), 3))
        lines: list[str] = []
        book = asyncio.run(gold_book(environment, tasks, say=lines.append))
        assert [book.turns(task.task_id) for task in tasks] == [None] * 3
        assert book.capabilities(tasks[0].task_id) == ("environment:counter", "tag:call")
        assert lines == ["gold of 3 tasks does not score 1 here: of them only what they declare is known"]


def test_gold_gives_capabilities_with_the_schemas_the_prompt_shows() -> None:
    environment = load_environment("counter")
    task = next(iter(environment.tasks("train")))
    book = asyncio.run(gold_book(environment, [task]))
    names = book.capabilities(task.task_id)
    assert names is not None and {"tag:call", "environment:counter"} < set(names)
    assert any(name.startswith("tool:") for name in names)


def test_page_json_and_examples_are_written(workplace: Path, tokenizer: Path) -> None:
    assert trajsmith("synth", write_recipe(workplace, recipe(tokenizer)), "rollouts").code == 0
    with Store.open(Path("runs/small")) as store:
        found = asyncio.run(diagnose_run(store))
        assert found is not None and found.of_what == "all that the policy sampled"
        page = save_diagnosis(store, found)
    assert page == Path("runs/small/report/diagnosis.html")
    written = json.loads(page.with_suffix(".json").read_text())
    assert written == found.diagnosis.model_dump(mode="json")
    pages = {path.stem for path in (page.parent / "trajectories").iterdir()}
    assert pages == set(found.diagnosis.shown_ids)
    for key in pages:
        text = (page.parent / "trajectories" / f"{key}.html").read_text()
        assert ('class="span generated"' in text and "&lt;tool_call&gt;" in text) or "cannot" in text


def test_without_a_tokenizer_tokens_are_shown_as_ids(workplace: Path, tokenizer: Path) -> None:
    moved = workplace / "model"
    shutil.copytree(tokenizer, moved)
    assert trajsmith("synth", write_recipe(workplace, recipe(moved)), "rollouts").code == 0
    shutil.rmtree(moved)
    done = trajsmith("diagnose", "runs/small")
    assert done.code == 0 and "trajectories show token ids" in done.err
    assert Path("runs/small/report/diagnosis.html").is_file()


def test_the_command_prints_what_it_found(workplace: Path, tokenizer: Path) -> None:
    path = write_recipe(workplace, recipe(tokenizer))
    assert trajsmith("synth", path, "rollouts").code == 0
    done = trajsmith("diagnose", "runs/small")
    assert done.code == 0 and "weak capabilities" in done.out and "written: runs/small/report" in done.out


def test_only_what_the_policy_sampled_is_diagnosed(workplace: Path, tokenizer: Path) -> None:
    path = write_recipe(workplace, recipe(tokenizer))
    assert trajsmith("synth", path, "demonstrations").code == 0
    refused = trajsmith("diagnose", "runs/small")
    assert refused.code == 2 and "no trajectory that its policy sampled" in refused.err
    assert trajsmith("synth", path, "rollouts").code == 0
    done = trajsmith("diagnose", "runs/small")
    assert done.code == 0 and "all that the policy sampled: 12 trajectories" in done.out


def test_an_evaluation_is_read_with_the_options_of_its_run(workplace: Path, tokenizer: Path) -> None:
    environment = {"name": "travel_desk", "options": {"templates": ["cheapest"]}}
    path = write_recipe(workplace, recipe(tokenizer, environment=environment))
    assert trajsmith("eval", path).code == 0
    (folder,) = Path("runs/small/eval").iterdir()
    with Store.open(folder) as store:
        assert recipe_of(store)["environment"]["options"] == environment["options"]
    assert trajsmith("diagnose", folder).code == 0
    done = trajsmith("report", folder)
    assert done.code == 0 and (folder / "report" / "index.html").is_file()
    (folder / "evaluation.json").write_text("{")
    torn = trajsmith("report", "runs/small")
    assert torn.code == 4 and "evaluation.json is no summary of `trajsmith eval`" in torn.err
    (folder / "evaluation.json").unlink()
    assert trajsmith("eval", path).code == 0 and trajsmith("report", "runs/small").code == 0


def test_the_flow_publishes_the_diagnosis(
    workplace: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluation flow's own body, without a Prefect server."""
    from flows import evaluation as flow
    from flows.stages import verbs

    tables: dict[str, str] = {}

    async def publish(loaded: Recipe, what: str, markdown: str) -> None:
        tables[what] = markdown

    async def evaluate(loaded: Recipe, model: str, name: str, runs: Path, url: str) -> Evaluation:
        return await verbs.run_evaluation(loaded, model, name=name, runs=runs, url=url, say=silent)

    @asynccontextmanager
    async def alone(loaded: Recipe, runs: Path) -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(flow, "publish_table", publish)
    monkeypatch.setattr(flow, "evaluate", evaluate)
    monkeypatch.setattr(flow, "one_flow_per_run", alone)
    monkeypatch.setattr(flow, "say", lambda: silent)
    path = write_recipe(workplace, recipe(tokenizer))
    assert trajsmith("synth", path, "demonstrations").code == 0
    asyncio.run(flow.evaluation.fn(path))
    assert tables["diagnosis"].startswith("| capability | success | failures |\n| --- | --- | --- |\n| all |")
    assert "| tag:call |" in tables["diagnosis"]
    assert Path("runs/small/report/diagnosis.html").is_file()
