"""code_repair: tricks that score nothing, and what never ends is called a timeout."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from data.tasks import Task
from pipeline.environments.code_repair import CodeRepair, load
from pipeline.environments.code_repair.runs import Kind, PlannedCall, read_results, run_calls
from pipeline.environments.gold import call
from pipeline.errors import JudgeError
from pipeline.sandbox.base import Execution, Outcome
from tests.pipeline.environments.conftest import Run
from tests.pipeline.environments.repair import (
    StubSandbox,
    broken,
    played,
    results,
    submitted,
)
from tests.pipeline.environments.scripts import components


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
def test_a_trick_scores_nothing(run: Run, repair_world: CodeRepair, trick: str) -> None:
    task = broken()
    [[_, name]] = task.state_value()["functions"]
    trajectory = submitted(run, repair_world, task, TRICKS[trick](name))
    assert trajectory.reward is not None and trajectory.reward.total == 0, results(trajectory)
    assert components(trajectory)["milestone/all_green"] == 0


def test_knowing_the_shown_values_by_heart_scores_nothing(run: Run, repair_world: CodeRepair) -> None:
    task = broken()
    trajectory = submitted(run, repair_world, task, right_public_only(task))
    assert results(trajectory)[1] == "5 of 5 passed"
    assert components(trajectory)["success"] == 0


def test_no_hidden_case_is_in_anything_the_agent_meets(run: Run, repair_world: CodeRepair) -> None:
    """Not in the files, the tests, the observations; nor does an expected value enter the sandbox."""
    task = broken(program="to_base")
    spied, stub = load(), StubSandbox(Outcome.RUNTIME_ERROR)
    spied.runner._sandbox = stub
    with pytest.raises(JudgeError, match="hidden cases could not be run"):
        played(run, spied, task, call("finish"))
    [program] = stub.seen
    assert json.loads(program.stdin)["calls"][0][2] == task.private_value()["calls"][0][1]
    sent = program.stdin + program.code + "".join(text.decode() for text in program.files.values())
    values = [json.dumps(value) for value in task.private_value()["values"] if len(value) > 2]
    assert values and not [value for value in values if value in sent or value.replace(", ", ",") in sent]
    shown = "\n".join([*results(played(run, repair_world, task)), *(turn.text for turn in task.prompt)])
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
        ("import sys\n    sys.settrace(None)\n    while True:\n        pass", "timed out after 5 s"),
        ("sum(iter(int, 1))", "timed out after 5 s"),
    ],
)
def test_what_never_ends_is_a_timeout(run: Run, repair_world: CodeRepair, body: str, said: str) -> None:
    files = {"loop.py": f"def loop():\n    {body}\n\n\ndef fine():\n    return 7\n"}
    calls = [
        PlannedCall("loop", "fine", []),
        PlannedCall("loop", "loop", []),
        PlannedCall("loop", "fine", []),
    ]
    first, looped, after = run(run_calls(repair_world.runner, files, calls, seconds=5))
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


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_right_repair_may_look_quite_different(run: Run, repair_world: CodeRepair, newline: str) -> None:
    """Imports of 20,000 lines and more are not the agent's steps, a thread left running is not waited for."""
    task = broken(program="merge_sorted")
    [[_, name]] = task.state_value()["functions"]
    code = (
        "from __future__ import annotations\n"
        "import fractions, logging, statistics, threading, time, unittest\n"
        "from typing import Any, Sequence\n\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n\n\n"
        "class Merger:\n\tdef run(self, *lists: Sequence[Any]) -> tuple[Any, ...]:\n"
        "\t\tprint('größer', lists)\n\t\treturn tuple(sorted(lists[0] + lists[1]))\n\n\n"
        f"def {name}(*args: Any) -> Any:\n\treturn Merger().run(*args)\n\n\n"
        "if __name__ == '__main__':\n\traise SystemExit(1)\n"
    )
    trajectory = submitted(run, repair_world, task, code.replace("\n", newline))
    assert results(trajectory)[1] == "5 of 5 passed"
    assert trajectory.reward is not None and trajectory.reward.total == 1.0
