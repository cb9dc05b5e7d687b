"""The page of a diagnosis, with the trajectories it names beside it, so that an example is one click away.

    report/diagnosis.html   report/trajectories/<id>.html

Opens without a network; a trajectory's page shows its tokens coloured by span. Only trajectories that the
page names are written. Not covered: what was found (`pipeline.diagnosis`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from data import canonical
from data.files import write_atomically
from data.trajectories import Trajectory
from pipeline.diagnosis.diagnose import Diagnosis, Group
from pipeline.reporting.html import page
from pipeline.reporting.report import kind_class, kinds_present, stack
from pipeline.reporting.view import Decode, render_trajectory_html

PAGE = "diagnosis.html"
_FOLDER = "trajectories"
_PLAIN = re.compile(r"[0-9A-Za-z_-]{1,64}")
_SECTIONS = {
    "tag": "declared",
    "call": "what gold's calls are like",
    "environment": "by environment",
    "tool": "by tool",
    "pair": "by tool after tool",
}


def write_diagnosis(
    found: Diagnosis,
    directory: Path,
    *,
    title: str,
    load: Callable[[str], Trajectory | None],
    decode: Decode | None,
) -> Path:
    """Write the page and its trajectories into `directory`; returns the page's path.

    `load` gives a trajectory by id; one it does not know is named without a link. Raises StoreError where a
    file cannot be written.
    """
    links = dict(_written(found.shown_ids, directory, load=load, decode=decode))
    write_atomically(directory / PAGE, diagnosis_html(found, title=title, links=links).decode())
    return directory / PAGE


def diagnosis_html(found: Diagnosis, *, title: str, links: Mapping[str, str]) -> bytes:
    """The page as UTF-8 bytes. `links`: trajectory id to the address of its page."""
    return page(
        "diagnosis.html.j2",
        title=title,
        found=found,
        links=links,
        examples={group.name: group.examples for group in found.by_capability},
        parts=_sections(found),
        kinds=kinds_present(found),
        stack=stack,
        kind_class=kind_class,
    )


def _sections(found: Diagnosis) -> list[tuple[str, list[Group]]]:
    """All groups under their headings; capabilities by prefix, in the order of _SECTIONS."""
    by_prefix: dict[str, list[Group]] = {name: [] for name in _SECTIONS}
    for group in found.by_capability:
        by_prefix.setdefault(group.name.partition(":")[0], []).append(group)
    parts = [(_SECTIONS.get(name, name), members) for name, members in by_prefix.items()]
    return [("", [found.overall]), *parts, ("by template", list(found.by_template))]


def _written(
    ids: Iterable[str], directory: Path, *, load: Callable[[str], Trajectory | None], decode: Decode | None
) -> Iterator[tuple[str, str]]:
    """Each trajectory that is known, written, with its address relative to the page."""
    for trajectory_id in ids:
        trajectory = load(trajectory_id)
        if trajectory is not None:
            plain = _PLAIN.fullmatch(trajectory_id)
            name = f"{trajectory_id if plain else canonical.digest(trajectory_id, length=24)}.html"
            shown = render_trajectory_html(trajectory, decode, back=f"../{PAGE}")
            write_atomically(directory / _FOLDER / name, shown.decode())
            yield trajectory_id, f"{_FOLDER}/{name}"
