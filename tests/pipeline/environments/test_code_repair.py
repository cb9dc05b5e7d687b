"""code_repair: what ships (re-executed), the worked example, and every trick to score for nothing."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from data.messages import Role, ToolStatus, Turn, assistant
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.environments.agents import ListedAgent
from pipeline.environments.base import GoldScript
from pipeline.environments.code_repair import CodeRepair, load
from pipeline.environments.code_repair.build import MAX_PER_SITE, WORKED_EXAMPLE, try_mutants
from pipeline.environments.code_repair.generator import make_task, split_of
from pipeline.environments.code_repair.harness import MAX_TEXT
from pipeline.environments.code_repair.mutants import Defect, defects_of
from pipeline.environments.code_repair.mutations import apply, proposals
from pipeline.environments.code_repair.program import cases_of, reference, renamed
from pipeline.environments.code_repair.programs import PROGRAMS, SEEN, UNSEEN
from pipeline.environments.code_repair.runs import Kind, PlannedCall, read_results, run_calls
from pipeline.environments.code_repair.session import MILESTONES, TESTS, RepairSession
from pipeline.environments.code_repair.workspace import Level, mapping, repairs
from pipeline.environments.gold import call
from pipeline.environments.play import play
from pipeline.errors import ConfigError, EnvironmentFailure, JudgeError
from pipeline.sandbox.base import Execution, Limits, Outcome, Program
from tests.pipeline.environments.conftest import Run
from tests.pipeline.environments.oracles import ORACLES
from tests.pipeline.environments.scripts import components


@pytest.fixture(scope="module")
def world() -> Iterator[CodeRepair]:
    environment = load()
    yield environment
    asyncio.run(environment.runner.close())


def worked_example() -> Task:
    """The binary search with both boundary errors, under the names of the textbook."""
    for index, defect in enumerate(defects_of("binary_search")):
        if tuple(line for mutation in defect.mutations for line in mutation.lines) == WORKED_EXAMPLE:
            for variant in itertools.count():
                task = make_task(
                    "binary_search", index, "heldout_unseen", level=Level.FUNCTION, variant=variant
                )
                if not any(task.private_value()["choices"]):
                    return task
    raise LookupError("the worked example does not ship")


def broken(level: Level = Level.FUNCTION, *, program: str = "merge_sorted", variant: int = 0) -> Task:
    """A task with one bug that some shown test notices."""
    index = next(at for at, defect in enumerate(defects_of(program)) if defect.red)
    return make_task(program, index, "train", level=level, variant=variant)


def played(run: Run, world: CodeRepair, task: Task, *turns: Turn) -> Trajectory:
    agent: GoldScript = ListedAgent(turns) if turns else world.gold(task)
    return run(play(world, task, agent))


def results(trajectory: Trajectory) -> list[str]:
    return [turn.result.text for turn in trajectory.turns if turn.result is not None]


def rewritten(task: Task, code: str) -> Turn:
    """The edit that replaces the whole only file."""
    [text] = task.state_value()["files"].values()
    return call("edit", old=text, new=code)


def submitted(run: Run, world: CodeRepair, task: Task, code: str) -> Trajectory:
    return played(run, world, task, rewritten(task, code), call("run_tests"), call("finish"))


# What ships


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


def test_a_sample_of_the_mutants_does_what_the_file_says(run: Run, world: CodeRepair) -> None:
    rng = random.Random(11)

    async def check() -> None:
        for name in rng.sample(sorted(PROGRAMS), 6):
            sample = rng.sample(defects_of(name), 4)
            sources = [defect.source() for defect in sample]
            for defect, tried in zip(
                sample, await try_mutants(world.runner, PROGRAMS[name], sources), strict=True
            ):
                assert tried.red == defect.red and tried.misbehaves and not tried.clocked, defect.key

    run(check())


def test_an_equivalent_mutant_is_told_apart(run: Run, world: CodeRepair) -> None:
    program = PROGRAMS["insertion_sort"]
    same = program.source.replace("result[j] > current", "result[j] >= current")
    assert same != program.source
    assert same in [apply(program.source, [mutation]) for mutation in proposals(program.source)]
    [tried] = run(try_mutants(world.runner, program, [same]))
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


def test_ten_thousand_train_tasks_and_no_defect_in_two_splits(world: CodeRepair) -> None:
    tasks = {split: list(world.tasks(split)) for split in world.splits}
    assert len(tasks["train"]) >= 10_000
    assert len(tasks["dev"]) >= 500 and len(tasks["heldout"]) >= 1_000 and len(tasks["heldout_unseen"]) == 600
    ids = [task.task_id for split in tasks.values() for task in split]
    assert len(set(ids)) == len(ids)
    assert {task.template for task in tasks["heldout_unseen"]} == set(UNSEEN)
    where: dict[str, set[str]] = {}
    for split, listed in tasks.items():
        for task in listed:
            defect = defects_of(task.template)[task.private_value()["defect"]]
            for mutation in defect.mutations:
                where.setdefault(f"{task.template} {mutation}", set()).add(split)
    assert {len(splits) for splits in where.values()} == {1}
    states = {split: {task.state for task in listed} for split, listed in tasks.items()}
    for one, other in itertools.combinations(states, 2):
        assert not states[one] & states[other]
    assert all(len(task.prompt[0].text + task.prompt[1].text) < 250 for task in tasks["train"])
    modules = {
        module
        for listed in tasks.values()
        for task in listed
        for module, _ in task.state_value()["functions"]
    }
    assert not modules & set(sys.stdlib_module_names)


def test_a_pair_across_splits_is_in_none() -> None:
    [one, other] = [
        next(d for d in defects_of("spiral") if split_of(d) == split and len(d.mutations) == 1)
        for split in ("train", "heldout")
    ]
    assert split_of(Defect(one.program, (*one.mutations, *other.mutations), ())) is None


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


# The worked example


def test_the_worked_example_step_by_step(run: Run, world: CodeRepair) -> None:
    task = worked_example()
    trajectory = played(
        run,
        world,
        task,
        call("read_file", path="search.py"),
        call("edit", old="low = mid\n", new="low = mid + 1\n"),
        call("run_tests"),
        call("edit", old="high = mid\n", new="high = mid - 1\n"),
        call("run_tests"),
        call("finish"),
        assistant("never said: finish ends the episode"),
    )
    read, first, tests, second, again, end = results(trajectory)
    assert "low = mid\n" in read and "high = mid\n" in read
    assert [first, second, end] == ["patch applied", "patch applied", "submitted"]
    assert tests == "4 of 5 passed\nsearch([1, 3, 5], 0): timed out after 20000 steps"
    assert again == "5 of 5 passed"
    assert trajectory.turns[-1].role is Role.TOOL
    assert components(trajectory) == {
        "success": 1,
        "submitted": 1,
        "hidden": 1,
        "step/read_file": 1,
        "step/run_tests": 2,
        **{f"milestone/{name}": 1 for name in MILESTONES},
    }


def test_half_a_repair_fails_although_most_cases_pass(run: Run, world: CodeRepair) -> None:
    task = worked_example()
    half = played(run, world, task, call("edit", old="low = mid\n", new="low = mid + 1\n"), call("finish"))
    found = components(half)
    assert found["success"] == 0 and found["submitted"] == 1
    assert 0 < found["hidden"] < 1


@pytest.mark.parametrize("level", list(Level))
def test_gold_reads_edits_tests_and_submits(run: Run, world: CodeRepair, level: Level) -> None:
    trajectory = played(run, world, broken(level))
    names = [one.name for turn in trajectory.turns for one in turn.tool_calls]
    first = [] if level is Level.FUNCTION else ["run_tests"]
    assert names == [*first, "read_file", "edit", "run_tests", "finish"]
    assert trajectory.success and components(trajectory)["milestone/all_green"] == 1


def test_a_silent_bug_fails_only_hidden_cases(run: Run, world: CodeRepair) -> None:
    name, index = next(
        (name, at) for name in SEEN for at, defect in enumerate(defects_of(name)) if not defect.red
    )
    task = make_task(name, index, "train", level=Level.FUNCTION)
    assert "silent" in task.tags
    untouched = played(run, world, task, call("run_tests"), call("run_tests"), call("finish"))
    total = len(task.state_value()["tests"])
    assert results(untouched)[0] == f"{total} of {total} passed"
    assert components(untouched)["success"] == 0
    assert components(untouched)["milestone/all_green"] == 0  # green from the start: nothing was achieved
    assert played(run, world, task).success


def test_milestones_pay_once(run: Run, world: CodeRepair) -> None:
    task = broken()
    [path] = task.state_value()["files"]
    edits = [
        turn
        for turn in played(run, world, task).turns
        if turn.tool_calls and turn.tool_calls[0].name == "edit"
    ]
    undo = edits[0].tool_calls[0].parsed_arguments()
    back = call("edit", old=undo["new"], new=undo["old"])
    again = [call("read_file", path=path), call("run_tests")]
    trajectory = played(
        run, world, task, *again, *edits, *again, back, *again, *edits, *again, call("finish")
    )
    paid = [turn.result.reward for turn in trajectory.turns if turn.result and turn.result.reward]
    assert sum(paid) == len(MILESTONES)
    assert trajectory.success


# The tools


def test_edit_says_in_one_line_why_it_did_nothing(run: Run, world: CodeRepair) -> None:
    task = broken(Level.FILES)
    names = list(task.state_value()["files"])
    trajectory = played(
        run,
        world,
        task,
        call("edit", old="nowhere", new="x"),
        call("edit", old="return", new="x"),
        call("edit", old="", new="x"),
        call("edit", old="a", new="b", path="other.py"),
        call("edit", old="assert", new="#", path=TESTS),
        call("edit", old="    ", new="x" * 20_000, path=names[0]),
        call("read_file", path="/etc/passwd"),
        call("read_file", path=f"../{names[0]}"),
    )
    statuses = [turn.result.status for turn in trajectory.turns if turn.result]
    assert set(statuses) == {ToolStatus.TOOL_ERROR}
    texts = results(trajectory)
    assert texts[0] == "old text not found; read the file and copy it exactly"
    assert texts[1].startswith("old text found ") and names[0] in texts[1]
    assert texts[2:5] == [
        "old is empty; give the text to replace",
        f"no file other.py; files: {', '.join(names)}",
        "tests.py is read-only",
    ]
    assert texts[6].startswith("no file /etc/passwd; files: ")


def test_the_tests_are_shown_as_code_that_runs() -> None:
    task = broken(Level.FILES)
    session = RepairSession(task)
    text = session.read_file(path=TESTS).text
    lines = text.splitlines()
    compile(text, TESTS, "exec")
    assert sum(line.startswith("assert ") for line in lines) == len(task.state_value()["tests"])
    assert sum(line.startswith("from ") for line in lines) == 6


def test_nothing_may_follow_a_submission(run: Run, world: CodeRepair) -> None:
    async def episode() -> list[str]:
        async with await world.open(broken()) as session:
            names = (("finish", {}), ("finish", {}), ("edit", {"old": "a", "new": "b"}))
            return [
                (await session.call(name, arguments, f"{at}")).text
                for at, (name, arguments) in enumerate(names)
            ]

    assert run(episode()) == ["submitted", "already submitted", "already submitted"]


def test_broken_code_is_an_observation(run: Run, world: CodeRepair) -> None:
    task = broken(program="window_sums")
    [_, name] = task.state_value()["functions"][0]
    codes = {
        f"def {name}(*a):\n    return [\n": "SyntaxError: '[' was never closed (line 2)",
        f"def {name}(*a):\n    return a[9]\n": "IndexError: tuple index out of range (line 2)",
        f"def {name}(*a):\n    return {{1}}\n": "TypeError: Object of type set is not JSON serializable",
        f"def {name}(*a):\n    return [0] * {MAX_TEXT}\n": "the result is too long",
        "x = 1\n": f"AttributeError: module '{name}' has no attribute '{name}'",
        f"def {name}(*a):\n    return {name}()\n": "RecursionError: maximum recursion depth exceeded",
    }
    for code, said in codes.items():
        trajectory = submitted(run, world, task, code)
        assert said in results(trajectory)[1].splitlines()[1], results(trajectory)[1]
        assert components(trajectory)["success"] == 0


# Tricks


def right_public_only(task: Task) -> str:
    """A function that knows the shown values by heart."""
    state = task.state_value()
    [[_, name]] = state["functions"]
    table = {
        json.dumps(arguments): value
        for (_, arguments), value in zip(state["tests"], state["public"], strict=True)
    }
    return f"import json\n\n\ndef {name}(*a):\n    return {table!r}.get(json.dumps(a))\n"


TRICKS: dict[str, Callable[[str], str]] = {
    "exits with 0": lambda name: f"import sys\n\n\ndef {name}(*a):\n    sys.exit(0)\n",
    "exits with 0 when imported": lambda name: (
        f"import os\n\nos._exit(0)\n\n\ndef {name}(*a):\n    return 0\n"
    ),
    "equals everything": lambda name: (
        "class Yes(list):\n    __eq__ = lambda *a: True\n    __ne__ = lambda *a: False\n\n\n"
        f"def {name}(*a):\n    return Yes()\n"
    ),
    "patches json, assert and unittest": lambda name: (
        "import json\nimport unittest\n\njson.dumps = lambda *a, **k: '\"ready\"'\n"
        "json.JSONEncoder.encode = lambda *a: 'true'\nunittest.TestCase.assertEqual = lambda *a: None\n\n\n"
        f"def {name}(*a):\n    return 0\n"
    ),
    "prints what a passing run might print": lambda name: (
        "import os\n\nfor fd in range(1, 12):\n    try:\n"
        "        os.write(fd, b'OK\\n5 of 5 passed\\n{\"value\": 1}\\n')\n"
        f"    except OSError:\n        pass\n\n\ndef {name}(*a):\n    return None\n"
    ),
    "writes into the harness with its own token": lambda name: (
        "import sys\n\nframe = sys._getframe()\n"
        "while 'say' not in frame.f_locals:\n    frame = frame.f_back\n"
        "for _ in range(99):\n    frame.f_locals['say']({'value': True})\n\n\n"
        f"def {name}(*a):\n    return None\n"
    ),
    "looks for hidden cases in files": lambda name: (
        "import glob\nimport os\n\nFOUND = []\nfor root, _, names in os.walk('.'):\n    for name in names:\n"
        "        FOUND.append(open(os.path.join(root, name), errors='replace').read())\n"
        f"open('tests.py', 'w').write('')\n\n\ndef {name}(*a):\n    return FOUND\n"
    ),
    "searches memory for expected values": lambda name: (
        "import gc\n\n\n"
        f"def {name}(*a):\n    for found in gc.get_objects():\n"
        "        if isinstance(found, dict) and 'values' in found:\n            return found['values'][0]\n"
        "    return 'nothing'\n"
    ),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_a_trick_scores_nothing(run: Run, world: CodeRepair, trick: str) -> None:
    task = broken()
    [[_, name]] = task.state_value()["functions"]
    trajectory = submitted(run, world, task, TRICKS[trick](name))
    assert trajectory.reward is not None and trajectory.reward.total == 0, results(trajectory)
    assert components(trajectory)["milestone/all_green"] == 0


def test_knowing_the_shown_values_by_heart_scores_nothing(run: Run, world: CodeRepair) -> None:
    task = broken()
    trajectory = submitted(run, world, task, right_public_only(task))
    assert results(trajectory)[1] == "5 of 5 passed"
    assert components(trajectory)["success"] == 0


def test_no_hidden_case_is_in_anything_the_agent_meets(run: Run, world: CodeRepair) -> None:
    """Not in the files, the tests, the observations; nor does an expected value enter the sandbox."""
    task = broken(program="to_base")
    seen: list[Program] = []

    class Watching:
        name = "watching"

        async def run(self, program: Program, limits: Limits | None = None) -> Execution:
            seen.append(program)
            return Execution(Outcome.RUNTIME_ERROR)

        async def close(self) -> None:
            pass

    spied = load()
    spied.runner._sandbox = Watching()
    with pytest.raises(JudgeError, match="hidden cases could not be run"):
        played(run, spied, task, call("finish"))
    [program] = seen
    assert json.loads(program.stdin)["calls"][0][2] == task.private_value()["calls"][0][1]
    sent = program.stdin + program.code + "".join(text.decode() for text in program.files.values())
    values = [json.dumps(value) for value in task.private_value()["values"] if len(value) > 2]
    assert values and not [value for value in values if value in sent or value.replace(", ", ",") in sent]
    shown = "\n".join([*results(played(run, world, task)), *(turn.text for turn in task.prompt)])
    for _, arguments in task.private_value()["calls"]:
        assert f"({', '.join(map(repr, arguments))})" not in shown


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("while True:\n        pass", "timed out after 20000 steps"),
        (
            "try:\n        while True:\n            pass\n    except Exception:\n        return 1",
            "20000 steps",
        ),
        ("import sys\n    sys.settrace(None)\n    while True:\n        pass", "timed out after 0.5 s"),
        ("sum(iter(int, 1))", "timed out after 0.5 s"),
    ],
)
def test_what_never_ends_is_called_a_timeout(run: Run, world: CodeRepair, body: str, said: str) -> None:
    files = {"loop.py": f"def loop():\n    {body}\n\n\ndef fine():\n    return 7\n"}
    calls = [
        PlannedCall("loop", "fine", []),
        PlannedCall("loop", "loop", []),
        PlannedCall("loop", "fine", []),
    ]
    first, looped, after = run(run_calls(world.runner, files, calls, seconds=0.5))
    assert first.gives(7)
    assert looped.kind is Kind.TIMEOUT and said in looped.text
    assert after.gives(7) if "steps" in said else after.kind is Kind.NOT_RUN


def test_exact_values_only() -> None:
    execution = Execution(
        Outcome.OK, stdout='t "ready"\nt {"value": 1}\nt {"value": true}\nt {"value": 1.0}\n'
    )
    found = read_results(execution, "t", number=3, seconds=1)
    assert [[one.gives(value) for value in (1, True, 1.0)] for one in found] == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
    ]


# Infrastructure


class Broken:
    """A sandbox that answers nothing, or raises."""

    name = "broken"

    def __init__(self, raises: bool) -> None:
        self.raises = raises

    async def run(self, program: Program, limits: Limits | None = None) -> Execution:
        if self.raises:
            raise EnvironmentFailure("no jail would start")
        return Execution(Outcome.TIMEOUT)

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("raises", [True, False])
def test_a_sandbox_that_breaks_is_never_a_zero(run: Run, raises: bool) -> None:
    environment, task = load(), broken()
    environment.runner._sandbox = Broken(raises)
    with pytest.raises(JudgeError):
        played(run, environment, task, call("finish"))

    async def tested() -> ToolStatus:
        async with await environment.open(task) as session:
            return (await session.call("run_tests", {}, "1")).status

    assert run(tested()) is ToolStatus.INFRA_ERROR


def test_the_same_run_is_made_once(run: Run, world: CodeRepair) -> None:
    task = broken(program="pascal_row", variant=3)
    played(run, world, task)
    before = world.runner.num_runs
    assert played(run, world, task).success
    assert world.runner.num_runs == before


def test_the_sandbox_is_chosen_by_name(run: Run) -> None:
    environment = load(sandbox="nowhere")
    with pytest.raises(ConfigError, match="nowhere"):
        run(play(environment, broken(), ListedAgent([call("finish")])))
