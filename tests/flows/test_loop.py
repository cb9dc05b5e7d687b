"""The whole loop on a world of one tool: a scripted policy acts, a tiny random model is trained beside it."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import re
import shutil
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from data.store import Store
from data.tasks import Task
from flows.stages import run as runs_
from flows.stages import verbs
from flows.stages.loop import looptool as loop_looptool
from flows.stages.loop import round as loop_round
from flows.stages.loop.baselines import next_wave
from flows.stages.loop.driver import content_digest, improve
from flows.stages.loop.plan import held_out_sections
from flows.stages.loop.round import POINTS, LoopWork
from flows.stages.loop.table import loop_curves, row_markdown
from flows.stages.policy import LivePolicy, open_policy
from flows.stages.progress import silent
from flows.stages.recipe import parse_recipe
from flows.stages.scripted import ScriptedPolicy
from pipeline.diagnosis.plan import Plan
from pipeline.engines.base import Completion, Sampling
from pipeline.environments.travel_desk.generator import TravelDesk
from pipeline.errors import EngineError
from rl.models import checkpoint_digest
from rl.results import finished_result
from synthesizers.looptool import probing
from synthesizers.looptool.probing import Probe, ProbeVerdict
from synthesizers.looptool.rows import RowLog
from tests.flows.lab import Done, trajsmith, write_recipe
from tests.tiny import make_tiny_model

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.flows.loop_worker"])
pytestmark = pytest.mark.timeout(300)
ARMS = ("looptool", "static", "rejection_sampling")


def loop_recipe(model: Path, **loop: Any) -> dict[str, Any]:
    """Two rounds on eight seeds, with both baselines; `loop` changes the section."""
    section: dict[str, Any] = {
        "rounds": 2,
        "seeds": {"synthesizer": "demonstration", "tasks": 8},
        "fresh": 4,
        "expand": {"k": 1},
        "dev": {"split": "dev", "tasks": 6},
        "patience": 9,
        "gate": {"least": 3},
        "k": 2,
    }
    return {
        "name": "loop",
        "environment": {"name": "counter", "options": {"steps": [1], "digits": 3}},
        "policy": {"engine": "scripted", "mistakes": 0.4, "model": str(model), "max_in_flight": 4},
        "sft": {"settings": {"tokens_per_step": 1024, "learning_rate": 1e-3, "precision": "float32"}},
        "evaluate": {"split": "heldout", "tasks": 6},
        "loop": section | loop,
    }


@pytest.fixture(scope="module", autouse=True)
def one_torch_thread() -> None:
    """More of them only wait for each other."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """The folder of a finished loop, and how the command ended."""
    folder = tmp_path_factory.mktemp("loop")
    path = write_recipe(folder, loop_recipe(model))
    done = trajsmith("loop", path, "--runs", folder / "runs", "--json")
    assert done.code == 0, done.err
    return folder, done


def rounds_of(row: dict[str, Any]) -> dict[tuple[int, str], dict[str, Any]]:
    return {(each["round"], each["arm"]): each for each in row["rounds"]}


def test_each_round_is_kept_with_its_data_model_and_dev_table(finished: tuple[Path, Done]) -> None:
    folder, done = finished
    row, root = json.loads(done.out), folder / "runs" / "loop"
    assert row == json.loads((root / "loop.json").read_text())
    assert row["stopped"] == "rounds"
    rounds = rounds_of(row)
    assert set(rounds) == {(0, "start"), *((number, arm) for number in (1, 2) for arm in ARMS)}
    for number, arm in rounds:
        place = root / "rounds" / str(number) / arm
        assert finished_result(place / "models" / "sft", {}) is not None
        assert list(place.glob("eval/*-dev-t0/evaluation.json"))
    for number in (1, 2):
        with Store.open(root / "rounds" / str(number) / "looptool") as store:
            trained = list(store.read_curated())
            assert all(store.manifest(name) for name in ("probe", "repair", "expand", "curate", "train"))
        assert trained and all(each.success for each in trained)
        assert any(turn.weight == 0.0 for each in trained for turn in each.turns), (
            "mastered steps are context"
        )
        assert rounds[number, "looptool"]["data"]["error_seeds"] > 0
    assert rounds[1, "looptool"]["data"]["fresh"] == 2 * rounds[2, "looptool"]["data"]["fresh"] > 0
    assert checkpoint_digest(root / "models" / "loop") == checkpoint_digest(
        root / "rounds" / "2" / "looptool" / "models" / "sft"
    )


def test_the_baselines_take_the_same_steps_and_sample_as_much(finished: tuple[Path, Done]) -> None:
    rounds = rounds_of(json.loads(finished[1].out))
    for number in (1, 2):
        loop, static, sampling = (rounds[number, arm] for arm in ARMS)
        assert loop["steps"] == static["steps"] == sampling["steps"] > 0
        assert static["sampled_tokens"] == 0 < loop["sampled_tokens"]
        per_task = 2 * sampling["sampled_tokens"] / sampling["data"]["rollouts"]
        assert abs(sampling["sampled_tokens"] - loop["sampled_tokens"]) <= per_task, "to within a task"
    assert rounds[1, "static"]["data"]["seeds"] == 12 and rounds[2, "static"]["data"]["seeds"] == 14


def test_weights_are_continued_from_the_kept_model(finished: tuple[Path, Done]) -> None:
    rounds = finished[0] / "runs" / "loop" / "rounds"
    before = checkpoint_digest(rounds / "0" / "start" / "models" / "sft")
    for number in ("1", "2"):
        folder = rounds / number / "looptool" / "models" / "sft"
        identity = json.loads((folder / "training.json").read_text())["identity"]
        assert identity["model"] == before
        before = checkpoint_digest(folder)


def test_again_does_nothing_and_says_the_same(finished: tuple[Path, Done]) -> None:
    folder, done = finished
    root = folder / "runs" / "loop"
    again = trajsmith("loop", folder / "recipe.yaml", "--runs", folder / "runs", "--json")
    assert again.code == 0 and "train step" not in again.err
    played = [line for line in again.err.splitlines() if "episodes/s" in line]
    assert all(line.endswith("nothing to do") for line in played)
    first, second = json.loads(done.out), json.loads(again.out)
    assert first | {"seconds": 0} == second | {"seconds": 0}
    assert second["digest"] == content_digest(root)


def test_work_without_its_manifests_is_found_again(finished: tuple[Path, Done]) -> None:
    """Every arrow as if it had been killed between its last row and its manifest, all at once."""
    folder, done = finished
    manifests = list((folder / "runs" / "loop" / "rounds").glob("*/*/manifests/*.json"))
    assert len(manifests) == 2 + 2 * (6 + 2 + 3)
    for path in manifests:
        path.unlink()
    again = trajsmith("loop", folder / "recipe.yaml", "--runs", folder / "runs", "--json")
    assert again.code == 0 and "train step" not in again.err
    assert json.loads(again.out)["digest"] == json.loads(done.out)["digest"]
    assert all(path.is_file() for path in manifests)


def test_held_out_tasks_are_read_once(finished: tuple[Path, Done]) -> None:
    folder, _ = finished
    more = trajsmith("loop", folder / "recipe.yaml", "--runs", folder / "runs", "--rounds", "3")
    assert more.code == 2
    assert "has read its held-out tasks after round 2; a further round would be chosen by them" in more.err
    assert not (folder / "runs" / "loop" / "rounds" / "3").exists()
    again = trajsmith("loop", folder / "recipe.yaml", "--runs", folder / "runs")
    assert again.code == 0, "what was refused has not become the run's recipe"


def test_the_report_has_the_curve_by_round(finished: tuple[Path, Done]) -> None:
    root = finished[0] / "runs" / "loop"
    page = (root / "report" / "index.html").read_text()
    assert "Weakest capabilities on the steps probed in round 1" in page
    assert "dev success by round" in page and page.count('<path class="line') >= 3
    found = json.loads((root / "report" / "report.json").read_text())
    [curve] = [each for each in found["curves"] if each["name"] == "dev success by round"]
    assert [series["name"] for series in curve["series"]] == sorted(ARMS)
    assert all([x for x, _ in series["points"]] == [0, 1, 2] for series in curve["series"])


# --- killed -------------------------------------------------------------------------------------------------


def points(*arrows: str, when: tuple[str, ...] = ("before", "worked", "after")) -> list[str]:
    return [f"loop.{arrow}.{each}" for arrow in arrows for each in when]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_every_named_point_in_turn_it_ends_in_the_same_digest(
    finished: tuple[Path, Done], tmp_path: Path
) -> None:
    """One loop, killed again and again; every start gets as far as the next point that is left."""
    from tests.flows import loop_worker

    folder, done = finished
    runs, path = tmp_path / "runs", folder / "recipe.yaml"
    own, last = ("probe", "repair", "expand", "curate"), ("train", "evaluate")
    wanted = [
        *points(*last),  # of the start model
        *points(*own, *last),  # of the first round
        *points("sample", *last),  # of its second baseline
        *points(*own, *last, "sample", when=("worked",)),  # of the second round
        "loop.heldout.arm",
    ]
    assert set(POINTS) <= set(wanted)
    for point in wanted:
        process = CONTEXT.Process(target=loop_worker.main, args=(path, runs, point))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL, point
    ended = trajsmith("loop", path, "--runs", runs, "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["digest"] == json.loads(done.out)["digest"]
    assert not list(runs.rglob("*.tmp"))


@pytest.mark.slow
@pytest.mark.parametrize("nth", [3, 17])
def test_killed_while_rows_are_written_it_goes_on_with_the_rows_there_are(
    nth: int, finished: tuple[Path, Done], tmp_path: Path
) -> None:
    from tests.flows import loop_worker

    folder, done = finished
    runs, path = tmp_path / "runs", folder / "recipe.yaml"
    for point in ("loop.probe.before", f"journal.append.middle:{nth}"):
        process = CONTEXT.Process(target=loop_worker.main, args=(path, runs, point))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL, point
    ended = trajsmith("loop", path, "--runs", runs, "--json")
    assert json.loads(ended.out)["digest"] == json.loads(done.out)["digest"]


# --- the gate -----------------------------------------------------------------------------------------------


class Switching:
    """A scripted engine that is good or bad by the model it was given last."""

    def __init__(self, make: Callable[[float], ScriptedPolicy], mistakes: Callable[[Path], float]) -> None:
        self.name, self.weights_version, self.given = "switching", "none", list[Path]()
        self._make, self._mistakes = make, mistakes
        self._acting, self._told = make(0.0), list[Task]()

    def learn(self, tasks: Sequence[Task]) -> None:
        """Know these tasks, too, whichever model is given."""
        self._told += tasks
        self._acting.learn(tasks)

    def give(self, model_dir: Path) -> None:
        """Act as this model does from now on."""
        self.given.append(model_dir)
        self._acting = self._make(self._mistakes(model_dir))
        self._acting.learn(self._told)
        self.weights_version = checkpoint_digest(model_dir)

    async def generate(
        self, token_ids: list[int], sampling: Sampling, *, n: int = 1, affinity: str = ""
    ) -> list[Completion]:
        """See `Engine.generate`."""
        made = await self._acting.generate(token_ids, sampling, n=n, affinity=affinity)
        return [replace(each, weights_version=self.weights_version) for each in made]

    async def score(self, token_ids: list[int]) -> list[float]:
        """See `Engine.score`."""
        return await self._acting.score(token_ids)

    async def close(self) -> None:
        """Nothing to release."""


@dataclass(frozen=True)
class Learner(LivePolicy):
    """A policy whose weights are a `Switching` engine's."""

    def told_of(self, tasks: Sequence[Task]) -> None:
        """See `LivePolicy.told_of`."""
        assert isinstance(self.engine, Switching)
        self.engine.learn(tasks)

    async def load(self, model_dir: Path) -> str:
        """See `LivePolicy.load`."""
        assert isinstance(self.engine, Switching)
        self.engine.give(model_dir)
        return self.engine.weights_version


async def improved(
    model: Path, runs: Path, mistakes: Callable[[Path], float], **loop: Any
) -> tuple[dict[str, Any], Switching]:
    """A loop of a policy that makes the `mistakes` of the model it was given; its row."""
    recipe = parse_recipe(loop_recipe(model, **loop))
    environment = runs_.environment_of(recipe)
    with runs_.open_run(recipe, runs) as store:
        async with open_policy(
            recipe.policy, model_dir=model, label="x", environment=environment
        ) as scripted:
            engine = Switching(
                lambda share: ScriptedPolicy(environment, scripted.renderer, mistakes=share), mistakes
            )
            fields = {name: getattr(scripted, name) for name in LivePolicy.__dataclass_fields__}
            policy = Learner(**fields | {"engine": engine})
            row = await improve(LoopWork(recipe, store, environment, policy, model, silent))
    return row, engine


def test_a_round_that_got_worse_is_refused_and_the_model_before_stays(model: Path, tmp_path: Path) -> None:
    def mistakes(folder: Path) -> float:
        return 0.3 if folder == model or "start" in folder.parts else float("looptool" in folder.parts)

    dev = {"split": "dev", "tasks": 12}
    row, engine = asyncio.run(
        improved(model, tmp_path, mistakes, rounds=2, patience=3, dev=dev, arms=["static"])
    )
    rounds = rounds_of(row)
    for number in (1, 2):
        refused = rounds[number, "looptool"]
        assert not refused["accepted"] and refused["dev"][0] == 0
        assert refused["reason"].startswith("worse on overall")
        assert rounds[number, "static"]["accepted"], "the baseline passes the same gate"
    start = tmp_path / "loop" / "rounds" / "0" / "start" / "models" / "sft"
    identity = json.loads(
        (tmp_path / "loop" / "rounds" / "2" / "looptool" / "models" / "sft" / "training.json").read_text()
    )["identity"]
    assert identity["model"] == checkpoint_digest(start), "the second round goes on from the start model"
    assert (tmp_path / "loop" / "models" / "loop").resolve() == start
    held_out = {arm: each["evaluations"] for arm, each in row["arms"].items()}
    assert held_out["looptool"] == held_out["start"] != held_out["static"]
    assert row["arms"]["looptool"]["row_tokens"] > 0, "refused rounds are paid for"
    lost = start.parents[3] / "1" / "looptool" / "models" / "sft"
    assert start in engine.given[engine.given.index(lost) :], "the second round probes the start model"


@pytest.mark.slow
def test_it_stops_on_a_plateau_and_on_its_budget(model: Path, tmp_path: Path) -> None:
    def mistakes(folder: Path) -> float:
        return 0.3

    row, _ = asyncio.run(
        improved(model, tmp_path / "a", mistakes, rounds=5, patience=1, arms=[], min_gain=1.0)
    )
    assert row["stopped"] == "plateau" and max(each["round"] for each in row["rounds"]) == 1
    row, _ = asyncio.run(
        improved(
            model, tmp_path / "b", mistakes, rounds=5, patience=5, arms=[], tokens=1000,
            expand={"k": 1, "by": "plan"},
        )
    )  # fmt: skip
    assert row["stopped"] == "budget" and max(each["round"] for each in row["rounds"]) == 1
    [made] = tmp_path.glob("**/rounds/1/looptool/plan.json")
    assert not [each for each in Plan.model_validate_json(made.read_bytes()).samples if each.count], (
        "eight tasks show no weakness: every error gets k"
    )


def test_it_stops_where_there_is_nothing_left_to_learn(model: Path, tmp_path: Path) -> None:
    options = {"arms": ["rejection_sampling"], "fresh": 0, "compose": {"high_share": 0.0}}
    row, _ = asyncio.run(improved(model, tmp_path, lambda folder: 0.0, **options))
    again, _ = asyncio.run(improved(model, tmp_path, lambda folder: 0.0, **options))
    assert again == row
    assert row["stopped"] == "mastered" and [each["round"] for each in row["rounds"]] == [0]
    assert loop_curves(row) == (), "there is nothing to draw"
    assert "| 0 | start |" in row_markdown(row)


def test_broken_probes_stop_the_round_and_are_tried_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = probing.probe

    async def flaky(*rows: Any, **options: Any) -> AsyncGenerator[Probe]:
        async for row in real(*rows, **options):
            broken = row.turn == 1 and not options["done"]
            changes = {"verdict": ProbeVerdict.INFRA, "reason": "EngineError: gone for a moment"}
            yield row.model_copy(update=changes) if broken else row

    monkeypatch.setattr(loop_looptool, "probe", flaky)
    small: dict[str, Any] = {"rounds": 1, "arms": [], "seeds": {"synthesizer": "demonstration", "tasks": 3}}
    with pytest.raises(EngineError, match="3 probes were broken by infrastructure; the first: EngineError"):
        asyncio.run(improved(model, tmp_path, lambda folder: 0.3, **small))
    with RowLog(tmp_path / "loop" / "rounds" / "1" / "looptool" / "probes.log", Probe) as log:
        assert log.keys and all(not key.endswith("#1") for key in log.keys)
    asyncio.run(improved(model, tmp_path, lambda folder: 0.3, **small))
    with Store.open(tmp_path / "loop" / "rounds" / "1" / "looptool") as store:
        counts = loop_round.counts_of(store, "probe")
    assert counts["infra"] == 0 and sum(counts.values()) == 6


def test_a_model_is_judged_on_all_dev_tasks_or_not_at_all(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, broken = verbs.evaluation_stage, [3, 1]

    async def flaky(*given: Any, **options: Any) -> Any:
        found = await real(*given, **options)
        return found.model_copy(update={"infra_failures": broken.pop() if broken else 0})

    monkeypatch.setattr(loop_round, "evaluation_stage", flaky)
    small: dict[str, Any] = {"rounds": 1, "arms": []}
    for number in (1, 3):
        with pytest.raises(EngineError, match=f"{number} episodes of start .* were broken by infrastructure"):
            asyncio.run(improved(model, tmp_path / "a", lambda folder: 0.3, **small))
    row, _ = asyncio.run(improved(model, tmp_path / "a", lambda folder: 0.3, **small))
    undisturbed, _ = asyncio.run(improved(model, tmp_path / "b", lambda folder: 0.3, **small))
    assert row["digest"] == undisturbed["digest"]


def test_other_filters_are_refused_once_a_round_was_trained(
    finished: tuple[Path, Done], model: Path, tmp_path: Path
) -> None:
    runs = finished[0] / "runs"
    before = content_digest(runs / "loop")
    value = loop_recipe(model) | {"curate": {"filters": [{"name": "exact_duplicate"}]}}
    kept = (runs / "loop" / "recipe.yaml").read_bytes()
    done = trajsmith("loop", write_recipe(tmp_path, value), "--runs", runs)
    assert done.code == 2 and "were made with other filters" in done.err, done.err
    assert content_digest(runs / "loop") == before
    assert (runs / "loop" / "recipe.yaml").read_bytes() == kept


@pytest.mark.parametrize(
    "deleted",
    [
        ("1/looptool/models", "1/static/models"),
        tuple(f"2/{arm}/{name}" for arm in ARMS[:2] for name in ("round.json", "manifests/evaluate.json")),
    ],
)
def test_what_was_deleted_of_a_finished_loop_is_made_again(
    finished: tuple[Path, Done], tmp_path: Path, deleted: tuple[str, ...]
) -> None:
    folder, done = finished
    shutil.copytree(folder / "runs", tmp_path / "runs", symlinks=True)
    for name in deleted:
        path = tmp_path / "runs" / "loop" / "rounds" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = trajsmith("loop", folder / "recipe.yaml", "--runs", tmp_path / "runs", "--json")
    assert again.code == 0, again.err
    assert json.loads(again.out)["digest"] == json.loads(done.out)["digest"]


@pytest.mark.parametrize("more", [{"rounds": 3}, {"tokens": 10**9}])
def test_more_of_a_loop_that_has_ended_is_refused_and_not_stored(
    finished: tuple[Path, Done], model: Path, tmp_path: Path, more: dict[str, int]
) -> None:
    runs = finished[0] / "runs"
    kept = (runs / "loop" / "recipe.yaml").read_bytes()
    done = trajsmith("loop", write_recipe(tmp_path, loop_recipe(model, **more)), "--runs", runs)
    assert done.code == 2 and "has read its held-out tasks after round 2; a further" in done.err
    assert (runs / "loop" / "recipe.yaml").read_bytes() == kept


def test_a_run_that_was_evaluated_before_its_loop_is_refused_before_anything_is_trained(
    model: Path, tmp_path: Path
) -> None:
    path = write_recipe(tmp_path, loop_recipe(model))
    assert trajsmith("eval", path, "--runs", tmp_path / "runs").code == 0
    done = trajsmith("loop", path, "--runs", tmp_path / "runs")
    assert done.code == 2 and "has read its held-out tasks after round 0" in done.err
    assert not (tmp_path / "runs" / "loop" / "rounds").exists()


def test_a_round_is_published_as_a_run_is(finished: tuple[Path, Done], tmp_path: Path) -> None:
    round_ = finished[0] / "runs" / "loop" / "rounds" / "2" / "looptool"
    done = trajsmith("publish", round_, "--to", tmp_path / "out")
    assert done.code == 0, done.err


# --- what is refused before anything is made ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        ({"compose": {"hihg_share": 0.1}}, "loop.compose: unknown hihg_share; there are .*high_share"),
        ({"compose": {"high_share": "much"}}, "loop.compose.high_share: .* valid number; got 'much'"),
        ({"chats": {"label_juge_1": "policy"}}, "has no role 'label_juge_1'; did you mean"),
        ({"seeds": {"synthesizer": "demonstrations", "tasks": 3}}, "no synthesizer 'demonstrations'"),
        ({"dev": {"split": "dev", "tasks": 5, "tasks_of": "magnet"}}, "leave out loop.dev.tasks_of"),
        ({"settings": {"learning_rat": 1.0}}, "loop.settings: unknown learning_rat"),
        ({"expand": {"by": "luck"}}, "loop.expand.*by.*luck"),
        ({"expand": {"plan": None}}, "loop.expand: unknown plan"),
        ({"expand": {"k": -1}}, "loop.expand.k is at least 0, got -1"),
        ({"expand": {"weights": {"date": 1}}}, "weights of the kinds .*'date'"),
        ({"expand": {"weights": {"data": 0}}}, "weights of the kinds .*not all 0"),
        ({"compose": {"size": 0}}, "size, .* is at least 1, or null for all; got 0"),
        ({"compose": {"high_share": 2.0}}, "high_share is a share between 0 and 1, got 2.0"),
        ({"chats": {"label_judge_1": "policy"}}, "at least 2 chats of different names"),
        (
            {"chats": {"label_judge_1": "policy", "label_judge_2": "policy"}},
            r"different names, got \['policy', 'policy'\]",
        ),
        (
            {"chats": {"label_judge_1": None, "label_judge_2": "policy"}},
            "at least 2 chats of different names",
        ),
        (
            {"chats": {"label_judge_1": "nosuch:thing", "label_judge_2": "policy"}},
            "chats.label_judge_1.*nosuch",
        ),
        ({"dev": {"split": "dev", "tasks": 5, "rollouts": 2}}, "repeat one episode; set a temperature"),
        ({"rounds": 1001}, "loop.rounds.*less than or equal to 1000"),
        ({"fresh": 2400}, "split 'train' of counter ends after"),
        ({"seeds": {"synthesizer": "demonstration", "tasks": 10**7}}, "split 'train' of counter ends after"),
    ],
)
def test_a_wrong_option_is_named_before_anything_is_made(
    loop: dict[str, Any], message: str, model: Path, tmp_path: Path
) -> None:
    path = write_recipe(tmp_path, loop_recipe(model, **loop))
    for extra in ((), ("--dry-run",)):
        done = trajsmith("loop", path, "--runs", tmp_path / "runs", *extra)
        assert done.code == 2
        assert re.search(message, done.err), done.err
        assert not (tmp_path / "runs").exists()


def test_agreement_of_greedy_samples_is_refused_before_anything_is_made(model: Path, tmp_path: Path) -> None:
    value = loop_recipe(model, expand={"teacher": "agreement"})
    value["policy"] = value["policy"] | {"temperature": 0.0}
    done = trajsmith("loop", write_recipe(tmp_path, value), "--runs", tmp_path / "runs")
    assert done.code == 2 and "two greedy samples always agree" in done.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--curve", "c.svg"), "name it with --table --results DIR"),
        (("--json", "--table", "--results", "rows"), "leave out --table and --dry-run"),
        (("--json", "--dry-run"), "leave out --table and --dry-run"),
        (("--seed", "1", "--table", "--results", "rows"), "leave out --rounds, --seed and --dry-run"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    model: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    path = write_recipe(tmp_path, loop_recipe(model))
    done = trajsmith("loop", path, "--runs", tmp_path / "runs", *options)
    assert done.code == 2 and message in done.err


def test_a_wrong_filter_is_named_before_anything_is_made(model: Path, tmp_path: Path) -> None:
    value = loop_recipe(model) | {"curate": {"filters": [{"name": "valid_call"}]}}
    done = trajsmith("loop", write_recipe(tmp_path, value), "--runs", tmp_path / "runs")
    assert done.code == 2 and "valid_call" in done.err and not (tmp_path / "runs").exists()


def test_a_protected_capability_that_is_nowhere_is_named_before_anything_is_trained(
    model: Path, tmp_path: Path
) -> None:
    path = write_recipe(tmp_path, loop_recipe(model, gate={"protect": ["tag:no_such"]}))
    done = trajsmith("loop", path, "--runs", tmp_path / "runs")
    assert done.code == 2 and "names tag:no_such, which no dev task exercises" in done.err
    assert not (tmp_path / "runs" / "loop" / "rounds").exists()


def test_held_out_tasks_that_are_not_there_are_named_before_anything_is_made(
    model: Path, tmp_path: Path
) -> None:
    sections: list[dict[str, Any]] = [{"split": "heldout", "tasks": 10**7}, {"split": "held_out"}]
    for section in sections:
        path = write_recipe(tmp_path, loop_recipe(model) | {"evaluate": section})
        for extra in ((), ("--dry-run",)):
            done = trajsmith("loop", path, "--runs", tmp_path / "runs", *extra)
            assert done.code == 2 and section["split"] in done.err
            assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("templates", "unseen"), [(["price", "cancel"], []), (["price", "two_cities"], [3]), (None, [3])]
)
def test_unseen_templates_are_read_where_the_chosen_ones_have_any(
    templates: list[str] | None, unseen: list[int]
) -> None:
    recipe = parse_recipe({"name": "loop", "evaluate": {"split": "heldout", "tasks": 6}})
    sections = held_out_sections(recipe, TravelDesk(templates=templates))
    assert [each.tasks for each in sections if each.split == "heldout_unseen"] == unseen


@pytest.mark.parametrize("short", [1, 3, 10])
def test_waves_end_near_the_budget_although_the_first_tasks_are_short(short: int) -> None:
    def costs(tasks: int) -> int:
        return sum(20 if number % 12 < short else 200 for number in range(tasks))

    tasks = 2
    while wave := next_wave(6_000, tokens=costs(tasks), tasks=tasks):
        tasks += wave
    assert abs(costs(tasks) - 6_000) <= 2 * 200


def test_the_plan_says_what_would_be_done(model: Path, tmp_path: Path) -> None:
    path = write_recipe(tmp_path, loop_recipe(model))
    done = trajsmith("loop", path, "--runs", tmp_path / "runs", "--dry-run")
    assert done.code == 0, done.err
    assert "8 seeds of demonstration on counter" in done.out
    assert "fresh seeds by round: 4, 2" in done.out
    assert "6 tasks of heldout for 4 models" in done.out
    assert not (tmp_path / "runs").exists()


def test_the_table_joins_the_seeds(finished: tuple[Path, Done], tmp_path: Path) -> None:
    folder, done = finished
    row = json.loads(done.out)
    for seed in (0, 1):
        (tmp_path / f"seed-{seed}.json").write_text(json.dumps(row | {"seed": seed}))
    svg = tmp_path / "curve.svg"
    table = trajsmith("loop", folder / "recipe.yaml", "--table", "--results", tmp_path, "--curve", svg)
    assert table.code == 0, table.err
    assert "Seeds: 0, 1." in table.out and "] to looptool | " in table.out
    assert "seed 0: rounds, seed 1: rounds" in table.out
    assert "| 2 | static |" in table.out and "2 of 2" in table.out
    drawn = ElementTree.parse(svg).getroot()
    texts = [found.text for found in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert set(ARMS) <= set(texts) and "round" in texts
    missing = trajsmith("loop", folder / "recipe.yaml", "--table", "--results", tmp_path / "none")
    assert missing.code == 2 and "trajsmith loop RECIPE --seed 0" in missing.err
