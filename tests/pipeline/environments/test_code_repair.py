"""code_repair, what ships: programs against oracles, mutants re-executed, splits, options."""

from __future__ import annotations

import itertools
import json
import random
import sys
from typing import Any

import pytest

from pipeline.environments.code_repair import CodeRepair, load
from pipeline.environments.code_repair.build import MAX_PER_SITE, try_mutants
from pipeline.environments.code_repair.generator import make_task, pools, split_of_defect
from pipeline.environments.code_repair.mutants import Defect, defects_of
from pipeline.environments.code_repair.mutations import Mutation, apply, proposals
from pipeline.environments.code_repair.program import cases_of, reference, renamed
from pipeline.environments.code_repair.programs import PROGRAMS, SEEN, UNSEEN
from pipeline.environments.code_repair.session import RepairSession
from pipeline.environments.code_repair.workspace import Level, mapping, repairs
from pipeline.errors import ConfigError
from tests.pipeline.environments.conftest import Run
from tests.pipeline.environments.oracles import ORACLES


def test_every_program_agrees_with_an_independent_oracle() -> None:
    rng = random.Random(5)
    assert set(ORACLES) == set(PROGRAMS)
    for name, program in PROGRAMS.items():
        function, cases = reference(program), cases_of(program)
        for arguments, value in (*cases.public, *cases.hidden):
            assert ORACLES[name](*arguments) == value, (name, arguments)
        for _ in range(60):
            arguments = program.draw(rng)
            assert json.loads(json.dumps(function(*json.loads(json.dumps(arguments))))) == json.loads(
                json.dumps(ORACLES[name](*arguments))
            ), (name, arguments)


def test_enough_programs_places_and_operators() -> None:
    rich, operators = [], set()
    for name in PROGRAMS:
        sites = {mutation.site for defect in defects_of(name) for mutation in defect.mutations}
        rich += [name] if len(sites) >= 15 else []
        operators |= {mutation.operator for defect in defects_of(name) for mutation in defect.mutations}
        per_site: dict[tuple[int, int], int] = {}
        for defect in defects_of(name):
            if len(defect.mutations) == 1:
                per_site[defect.mutations[0].site] = per_site.get(defect.mutations[0].site, 0) + 1
        assert max(per_site.values()) <= MAX_PER_SITE
    assert len([name for name in rich if name in SEEN]) >= 20
    assert len(UNSEEN) == 5 and set(UNSEEN) <= set(rich) and "binary_search" in UNSEEN
    assert operators >= {
        "boundary",
        "comparison",
        "off_by_one",
        "wrong_variable",
        "missing_return",
        "wrong_operator",
        "wrong_initial_value",
        "swapped_arguments",
        "missing_case",
        "missing_statement",
    }


def test_a_sample_of_the_mutants_does_what_the_file_says(run: Run, repair_world: CodeRepair) -> None:
    rng = random.Random(11)

    async def check() -> None:
        for name in rng.sample(sorted(PROGRAMS), 6):
            sample = rng.sample(defects_of(name), 4)
            sources = [defect.source() for defect in sample]
            for defect, tried in zip(
                sample, await try_mutants(repair_world.runner, PROGRAMS[name], sources), strict=True
            ):
                assert tried.red == defect.red and tried.misbehaves and not tried.clocked, defect.key

    run(check())


def test_an_equivalent_mutant_is_told_apart(run: Run, repair_world: CodeRepair) -> None:
    program = PROGRAMS["insertion_sort"]
    same = program.source.replace("result[j] > current", "result[j] >= current")
    assert same != program.source
    assert same in [apply(program.source, [mutation]) for mutation in proposals(program.source)]
    [tried] = run(try_mutants(repair_world.runner, program, [same]))
    assert not tried.misbehaves
    assert same not in [defect.source() for defect in defects_of("insertion_sort")]


def test_undoing_the_mutations_gives_the_program_back() -> None:
    rng = random.Random(3)
    for name, program in PROGRAMS.items():
        for defect in rng.sample(defects_of(name), 12):
            names = mapping(program, [rng.randint(0, 2) for _ in program.names])
            around = "def other():\n    return 0\n\n\n{}\n\ndef more():\n    return 1\n"
            text = around.format(renamed(defect.source(), names))
            for edit in repairs(defect, names, text):
                assert text.count(edit.old) == 1
                text = text.replace(edit.old, edit.new)
            assert text == around.format(renamed(program.source, names)), defect.key


def test_names_change_in_code_and_backticks_only() -> None:
    text = 'def f(a):\n    """A word, `a` and a."""\n    return a + len("a") + banana\n'
    assert renamed(text, {"f": "g", "a": "b"}) == (
        'def g(b):\n    """A word, `b` and a."""\n    return b + len("a") + banana\n'
    )


def test_ten_thousand_train_tasks_and_short_prompts(repair_world: CodeRepair) -> None:
    tasks = {split: list(repair_world.tasks(split)) for split in repair_world.splits}
    assert len(tasks["train"]) >= 10_000
    assert len(tasks["dev"]) >= 500 and len(tasks["heldout"]) >= 1_000 and len(tasks["heldout_unseen"]) == 600
    ids = [task.task_id for split in tasks.values() for task in split]
    assert len(set(ids)) == len(ids)
    for split, listed in tasks.items():
        assert {task.template for task in listed} == set(UNSEEN if split == "heldout_unseen" else SEEN)
        assert all(len(task.prompt[0].text + task.prompt[1].text) < 250 for task in listed)
        for task in listed[:100]:
            modules = {module for module, _ in task.state_value()["functions"]}
            assert not modules & set(sys.stdlib_module_names)


def test_no_mutation_is_in_two_splits(repair_world: CodeRepair) -> None:
    for name in PROGRAMS:
        where: dict[Mutation, set[str]] = {}
        for split in repair_world.splits:
            for index in itertools.chain(*pools(name, split)):
                for mutation in defects_of(name)[index].mutations:
                    where.setdefault(mutation, set()).add(split)
        assert {len(splits) for splits in where.values()} == {1}, name


def test_the_edits_of_gold_restore_the_programs(repair_world: CodeRepair) -> None:
    """Without running anything: that the restored code passes is known."""
    rng = random.Random(8)
    for name, program in PROGRAMS.items():
        for level, index in itertools.product(Level, rng.sample(range(len(defects_of(name))), 4)):
            task = make_task(name, index, "train", level=level, variant=rng.randrange(9))
            session, gold = RepairSession(task), repair_world.gold(task)
            private = task.private_value()
            while turn := gold.next_turn([]):
                [made] = turn.tool_calls
                if made.name == "edit":
                    assert session.edit(**made.parsed_arguments()) == "patch applied", task.task_id
            text = list(session.state["files"].values())[private["broken"]]
            assert renamed(program.source, mapping(program, private["choices"])) in text, task.task_id


def test_a_pair_across_splits_is_in_none() -> None:
    [one, other] = [
        next(d for d in defects_of("spiral") if split_of_defect(d) == split and len(d.mutations) == 1)
        for split in ("train", "heldout")
    ]
    assert split_of_defect(Defect(one.program, (*one.mutations, *other.mutations), ())) is None


@pytest.mark.parametrize("options", [{"levels": ("function",), "bugs": (1,)}, {"levels": ("files",)}])
def test_options_choose_tasks_and_change_none(options: dict[str, Any]) -> None:
    chosen = list(itertools.islice(load(**options).tasks("dev"), 20))
    assert {task.task_id for task in chosen} <= {task.task_id for task in load().tasks("dev")}
    for task in chosen:
        assert options["levels"][0] in task.tags
        assert "bugs" not in options or "two_bugs" not in task.tags


def test_wrong_options_are_named() -> None:
    with pytest.raises(ConfigError, match="'module'"):
        load(levels=("module",))
    with pytest.raises(ConfigError, match="bugs 1 and 2"):
        load(bugs=(3,))
