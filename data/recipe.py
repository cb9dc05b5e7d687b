"""The resolved recipe of a run, and what happens when it is no longer the same.

Values are plain YAML (JSON types). A *volatile* key, a dotted path such as "engine.url", may change from
one invocation to the next without making another run of it; so may everything below that path. A *growing*
key, such as "synth.*.tasks" where * stands for any one name, holds a number that may become larger. A key
that the stored recipe lacks, because it was written before the key existed, had its *default* then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from data import canonical
from data.errors import ConfigError, RecordError, StoreError
from data.files import write_atomically
from data.lock import FILE as LOCK

FILE = "recipe.yaml"
_ABSENT = "(absent)"
_MOST_VALUES = 1_000_000
"""Values of a stored recipe: more than a recipe that is read from a file can have with all its defaults."""


def read_recipe(root: Path) -> dict[str, Any]:
    """The recipe of a run directory; ConfigError where there is none."""
    import yaml

    from data.aliases import load_counted

    path = root / FILE
    try:
        text = path.read_text(encoding="utf-8")
        value = load_counted(text, yaml.SafeLoader, where=str(path), most=_MOST_VALUES)
    except ConfigError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{root} is not a run directory: it has no {FILE}") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not YAML in UTF-8: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds {type(value).__name__}, expected a mapping of keys to values")
    return value


def settle_recipe(
    root: Path,
    recipe: Mapping[str, Any],
    *,
    volatile: Collection[str] = (),
    growing: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> None:
    """Write the recipe of a new run, or the one that `check_recipe` takes in its place."""
    import yaml

    wanted = check_recipe(root, recipe, volatile=volatile, growing=growing, defaults=defaults)
    if wanted is not None:
        write_atomically(root / FILE, yaml.safe_dump(wanted, sort_keys=False, allow_unicode=False))


def check_recipe(
    root: Path,
    recipe: Mapping[str, Any],
    *,
    volatile: Collection[str] = (),
    growing: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """The recipe to be stored, after a check against the one of the run; None where it is stored already.

    A run that holds nothing yet takes any recipe: its first command may have been refused for a wrong one.
    ConfigError with every differing key that is neither volatile, nor a growing one that grew, nor absent
    from the stored recipe and now at its default. `defaults` is shaped like a recipe; * is any one name.
    """
    try:
        wanted: dict[str, Any] = canonical.loads(canonical.dumps(dict(recipe)))
    except RecordError as error:
        raise ConfigError(f"the recipe holds a value that YAML cannot: {error}") from error
    path = root / FILE
    if path.exists():
        stored = read_recipe(root)
        usual = _flatten(canonical.loads(canonical.dumps(dict(defaults or {}))))
        changes = [
            f"  {key}: {was} -> {now}"
            for key, was, now in _differences(stored, wanted)
            if not _is_volatile(key, volatile)
            and not _has_grown(key, was, now, growing)
            and not (was == _ABSENT and any(_fits(key, path) and now == usual[path] for path in usual))
        ]
        if changes and not _holds_nothing(root):
            raise ConfigError(_refusal(root, changes))
        if stored == wanted:
            return None
    return wanted


def _holds_nothing(root: Path) -> bool:
    """Whether a run has no file with content but its recipe, its lock and what the model server said."""
    files = (path for path in root.rglob("*") if path.is_file() and path.stat().st_size > 0)
    return all(path.name in (FILE, LOCK, "server.log") for path in files)


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(key, old value, new value) as JSON text, where they differ."""
    before, after = _flatten(old), _flatten(new)
    keys = sorted(before.keys() | after.keys())
    lines = [(key, before.get(key, _ABSENT), after.get(key, _ABSENT)) for key in keys]
    return [(key, was, now) for key, was, now in lines if was != now]


def _flatten(value: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(value, Mapping) and value:
        flat: dict[str, str] = {}
        for key, item in value.items():
            flat |= _flatten(item, f"{prefix}.{key}" if prefix else str(key))
        return flat
    return {prefix: canonical.dumps(value)} if prefix else {}


def _is_volatile(key: str, volatile: Collection[str]) -> bool:
    return any(key == path or key.startswith(path + ".") for path in volatile)


def _has_grown(key: str, was: str, now: str, growing: Collection[str]) -> bool:
    grows = any(_fits(key, pattern) for pattern in growing)
    return grows and was.isdecimal() and now.isdecimal() and int(now) > int(was)


def _fits(key: str, pattern: str) -> bool:
    """Whether the dotted key is the pattern's, in which * stands for any one name."""
    names, parts = key.split("."), pattern.split(".")
    return len(parts) == len(names) and all(
        part in ("*", name) for part, name in zip(parts, names, strict=True)
    )


def _refusal(root: Path, changes: list[str]) -> str:
    return "\n".join(
        [
            f"the recipe differs from the one {root} was made with (stored -> given):",
            *changes,
            "Choose: put the stored values back to go on with this run; "
            f"or name another directory for a new run; or delete {root} to start over.",
        ]
    )
