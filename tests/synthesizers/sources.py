"""What the sources of a planned task's arguments must be, whatever method planned it."""

from __future__ import annotations

from data import canonical
from data.messages import ToolStatus
from data.tasks import Task
from pipeline.environments.blueprint import read_blueprint
from synthesizers.phrasing.wording import mentions


def check_sources(task: Task) -> None:
    """What is the user's was said; what is an output's names an earlier call that was answered."""
    said = ""
    answered: list[str] = []
    for turn in read_blueprint(task).turns:
        said += f"\n{turn.text}"
        for call in turn.calls:
            given = canonical.loads(call.arguments)
            assert set(given) <= {source.argument for source in call.sources}
            for source in call.sources:
                if source.provenance == "user":
                    assert mentions(said, given[source.argument]), (source, said)
                if source.of:
                    name, _, number = source.of.split(":")[0].rpartition("#")
                    assert 1 <= int(number) <= answered.count(name), (source, answered)
            answered += [call.name] * (call.status is ToolStatus.OK)
