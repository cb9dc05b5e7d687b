"""Rewrites constraints.txt from this environment: the exact version of everything `trajsmith[all]` pulls in.

Run it with the environment's own Python, after an upgrade that passed the tests. Local version labels
(`+cpu`) are dropped, so that the same file serves machines with and without a GPU.
"""

import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HEADER = (
    "# Tested together on Python 3.11; written by scripts/lock.py. pyproject.toml has the allowed ranges.\n"
)


def closure(name: str, extras: frozenset[str]) -> dict[str, str]:
    """Name to version of every installed distribution reachable from `name[extras]`, itself left out."""
    versions: dict[str, str] = {}
    done: set[tuple[str, frozenset[str]]] = set()
    queue = [(name, extras)]
    while queue:
        current, wanted = queue.pop()
        if (current, wanted) in done:
            continue
        done.add((current, wanted))
        try:
            found = distribution(current)
        except PackageNotFoundError:
            continue
        versions[current] = found.version.split("+")[0]
        for line in found.requires or []:
            requirement = Requirement(line)
            environments = [{"extra": extra} for extra in wanted or {""}]
            if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
                queue.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    versions.pop(name, None)
    return versions


def main() -> int:
    target = Path(__file__).resolve().parent.parent / "constraints.txt"
    versions = closure("trajsmith", frozenset({"all"}))
    target.write_text(HEADER + "".join(f"{name}=={versions[name]}\n" for name in sorted(versions)))
    print(f"{len(versions)} packages written to {target.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
