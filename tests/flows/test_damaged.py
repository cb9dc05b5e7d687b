"""A damaged file of a run is one clear error that names it, whichever verb reads it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from data.curated import read_curated
from data.errors import StoreError
from data.messages import Turn
from flows.stages.loop.round import read_result
from pipeline.rewards.rubric_book import RubricBook
from pipeline.rewards.rubrics import Rubrics
from rl.results import finished_result
from synthesizers.looptool.rows import RowLog
from tests.flows.lab import digests, recipe, trajsmith, write_recipe

DAMAGED = (
    *("{", "[]", "{}", '{"identity": 1, "result": 2}'),
    '{"identity": {}, "result": {"history": [{"step": 1}]}}',
)


def test_the_report_names_what_is_damaged(workplace: Path, tokenizer: Path) -> None:
    path = write_recipe(workplace, recipe(tokenizer))
    assert trajsmith("synth", path, "demonstrations").code == 0
    for name in ("models/sft/training.json", "loop.json", "curation.json"):
        damaged = Path("runs/small") / name
        damaged.parent.mkdir(parents=True, exist_ok=True)
        for content in ("{", "{}"):
            damaged.write_text(content)
            done = trajsmith("report", "runs/small")
            assert done.code == 4 and "Traceback" not in done.err, done.err
            assert f"{damaged.name} is no summary of" in done.err and "delete" in done.err, done.err
        damaged.unlink()


def test_a_damaged_recipe_of_a_run_is_named(workplace: Path, tokenizer: Path) -> None:
    path = write_recipe(workplace, recipe(tokenizer))
    assert trajsmith("synth", path, "demonstrations").code == 0
    stored = Path("runs/small/recipe.yaml")
    for content, said in (
        ("{}", "environment: Field required"),
        ("environment: {name: counter}\npolicy: 3\nseed: 0\n", "policy: Input should be a valid dictionary"),
    ):
        stored.write_text(content)
        for verb in ("report", "audit", "diagnose", "view", "publish --to out"):
            name, *options = verb.split()
            done = trajsmith(name, "runs/small", *options)
            assert done.code == 4 and f"{stored} is no recipe of a run: {said}" in done.err, done


@pytest.mark.parametrize("name", ["00000.log", "00001.log", "notes.log"])
def test_a_folder_in_the_place_of_a_journal_is_named(workplace: Path, tokenizer: Path, name: str) -> None:
    path = write_recipe(workplace, recipe(tokenizer))
    assert trajsmith("synth", path, "demonstrations").code == 0
    folder = Path("runs/small/journal")
    [log] = folder.iterdir()
    aside = log.rename(folder / "aside")
    (folder / name).mkdir()
    reading = ("report", "audit", "diagnose", "view", "publish --to out")
    commands = [[verb.split()[0], "runs/small", *verb.split()[1:]] for verb in reading]
    for command in (*commands, ["synth", "recipe.yaml"], ["curate", "recipe.yaml"]):
        done = trajsmith(*command)
        assert done.code == 4 and f"{folder / name} is no journal file; move it away" in done.err, done
    (folder / name).rmdir()
    aside.rename(log)
    assert trajsmith("synth", path, "demonstrations").code == 0


def test_rows_of_a_loop_are_kept_in_no_folder(tmp_path: Path) -> None:
    (tmp_path / "rows.log").mkdir()
    with pytest.raises(StoreError, match=r"rows\.log: Is a directory"):
        RowLog(tmp_path / "rows.log", Turn)


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_damaged_manifest_is_named(workplace: Path, tokenizer: Path, content: str) -> None:
    path = write_recipe(workplace, recipe(tokenizer))
    assert trajsmith("synth", path, "demonstrations").code == 0
    manifest = Path("runs/small/manifests/synth-demonstrations.json")
    manifest.write_text(content)
    done = trajsmith("synth", path, "demonstrations")
    assert done.code == 4 and f"{manifest} is no summary of stage synth-demonstrations" in done.err, done
    manifest.unlink()
    assert trajsmith("synth", path, "demonstrations").code == 0


@pytest.mark.parametrize("table", ["tasks", "trajectories"])
def test_rows_of_a_damaged_shard_are_made_again_as_the_error_says(
    workplace: Path, tokenizer: Path, table: str
) -> None:
    path = write_recipe(workplace, recipe(tokenizer))
    assert trajsmith("synth", path).code == 0
    root = Path("runs/small")
    before = digests(root)
    shard = sorted((root / table).iterdir())[0]
    shard.write_bytes(shard.read_bytes()[:-20])
    done = trajsmith("report", root)
    said = (
        f"cannot read {shard}: .*Restore the file from a copy, or delete it and {root / 'manifests'}, and run"
    )
    assert done.code == 4 and re.search(said, done.err), done
    shard.unlink()
    shutil.rmtree(root / "manifests")
    assert trajsmith("synth", path).code == 0
    assert digests(root) == before


def test_a_damaged_curated_file_is_made_again_as_the_error_says(workplace: Path, tokenizer: Path) -> None:
    path = write_recipe(workplace, recipe(tokenizer))
    assert trajsmith("synth", path, "demonstrations").code == trajsmith("curate", path).code == 0
    [shard] = Path("runs/small/curated").glob("*.parquet")
    before = list(read_curated(shard.parent))
    shard.write_bytes(shard.read_bytes()[:-20])
    with pytest.raises(StoreError, match=r"from a copy, or make its folder anew \(`trajsmith curate`\)"):
        list(read_curated(shard.parent))
    assert trajsmith("curate", path).code == 0
    assert before and list(read_curated(shard.parent)) == before


@pytest.mark.parametrize("content", DAMAGED)
def test_training_does_not_trip_over_a_damaged_result(tmp_path: Path, content: str) -> None:
    (tmp_path / "training.json").write_text(content)
    with pytest.raises(StoreError, match=r"training\.json is no summary of a finished training"):
        finished_result(tmp_path, {"stage": "sft"})


def test_files_of_a_round_and_rows_of_a_table(tmp_path: Path) -> None:
    place = tmp_path / "rounds" / "1" / "looptool"
    place.mkdir(parents=True)
    (place / "round.json").write_text('{"round": 1}')
    with pytest.raises(StoreError, match=r"round\.json is no summary of .* arm: Field required; delete it"):
        read_result(place)
    row = tmp_path / "rows" / "seed-0.json"
    row.parent.mkdir()
    for content in ("{", json.dumps({"seed": 0})):
        row.write_text(content)
        done = trajsmith(
            "loop",
            write_recipe(tmp_path, {"name": "loop", "environment": {"name": "counter"}}),
            "--table",
            "--results",
            row.parent,
        )
        assert done.code == 4 and "seed-0.json is no summary of `trajsmith loop" in done.err, done.err


@pytest.mark.parametrize("content", ["{", "{}", '{"active": 3, "retired": []}'])
def test_what_a_reward_keeps(tmp_path: Path, content: str) -> None:
    for name in ("book.json", "success.json"):
        (tmp_path / name).write_text(content)
    with pytest.raises(StoreError, match=r"success\.json is no summary of the last successes"):
        Rubrics(judges=[{"url": "http://localhost:9", "model": "m"}], state_dir=tmp_path)
    with pytest.raises(StoreError, match=r"book\.json is no summary of a task's rubrics"):
        RubricBook.load(tmp_path / "book.json")
