"""What a played tool may not contradict: deterministic checks of one reply against the state it must keep.

The state is one JSON object whose top-level keys are collections (`{"orders": {"17": {...}}}`, or a list of
records with an `id`). Decides:

- a call that only reads, or that fails, changes nothing known; a read may add what it reveals;
- every id in a result is an argument or stands in the state, so that it is found later;
- a record in a result agrees with the record of that id in the state, field by field;
- what the state holds is not answered "not found".

Not covered: contradictions that need the meaning of words; collections are told apart by their names only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_ID = re.compile(r"^id$|_id$|[a-z0-9]Id$")
_BARE = ("id", "key", "number", "code", "name")


class Outcome(StrEnum):
    """What the played tool says of a call."""

    OK = "ok"
    ERROR = "error"
    """The arguments break a rule of the application."""
    NOT_FOUND = "not_found"
    """What the arguments name does not exist."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One structured reply of the chat that plays the tool; `patch` is a JSON merge patch (RFC 7396)."""

    outcome: Outcome
    result: Any
    error: str
    patch: dict[str, Any]


def merge_patch(state: Any, patch: Any) -> Any:
    """`state` after a JSON merge patch (RFC 7396): null removes, objects merge, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(state) if isinstance(state, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def contradiction(
    reply: Reply, *, tool: str, arguments: Mapping[str, Any], state: dict[str, Any], reads: bool
) -> str:
    """The first thing wrong with a reply, in words for the one who gave it; "" for nothing."""
    after = merge_patch(state, reply.patch)
    if reply.outcome is not Outcome.OK:
        return _failure_problem(reply, tool, arguments, state)
    if reads and (changed := _changed(state, reply.patch)):
        return (
            f"{tool} only reads: its patch may add what it reveals and change nothing, but {changed} changes"
        )
    known = {*_scalars(state), *_scalars(after), *_scalars(dict(arguments))}
    lost = sorted(found for found in _ids(reply.result) if found not in known)
    if lost:
        return f"id {lost[0]} is in the result and not in the state: add the whole record through patch"
    return next(_disagreements(reply.result, after), "")


def _failure_problem(reply: Reply, tool: str, arguments: Mapping[str, Any], state: dict[str, Any]) -> str:
    if reply.patch:
        return "a call that fails changes nothing: patch must be {}"
    if not reply.error.strip():
        return "a call that fails says why in `error`"
    named = {name: value for name, value in arguments.items() if _is_scalar(value)}
    held = [name for name, value in named.items() if _holds(state, tool, name, str(value))]
    missing = [name for name in named if _ID.search(name) and name not in held]
    if reply.outcome is Outcome.NOT_FOUND and len(held) == 1 and not missing:
        return f"{held[0]} {named[held[0]]} was not found, but the state holds it"
    return ""


def _changed(state: Any, patch: Mapping[str, Any], path: str = "") -> str:
    """Path of the first known value that a patch replaces or removes."""
    for key, value in patch.items():
        if key not in state or state[key] == value:
            continue
        where = f"{path}/{key}"
        if not (isinstance(value, dict) and isinstance(state[key], dict)):
            return where
        if inner := _changed(state[key], value, where):
            return inner
    return ""


def _holds(state: dict[str, Any], tool: str, argument: str, value: str) -> bool:
    """Whether a collection that the argument (or, for a bare `id`, the tool) is named after has this id."""
    for collection, records in state.items():
        stem = _singular(collection.lower())
        named = stem in argument.lower() or (argument.lower() in _BARE and stem in tool.lower())
        if named and value in {key for key, _ in _records({collection: records})}:
            return True
    return False


def _singular(word: str) -> str:
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if word.endswith("s") else word


def _disagreements(result: Any, state: dict[str, Any]) -> Iterator[str]:
    """For each record of the result: a field in which every record of that id in the state differs."""
    held: dict[str, list[dict[str, Any]]] = {}
    for key, record in _records(state):
        held.setdefault(key, []).append(record)
    for value in _objects(result):
        found = held.get(str(value.get("id", "")), [])
        fields = [_differing(value, record) for record in found]
        if fields and all(fields):
            name = fields[0]
            yield (
                f"record {value['id']}: {name} is {value[name]!r:.60} in the result and "
                f"{found[0][name]!r:.60} in the state"
            )


def _differing(value: dict[str, Any], record: dict[str, Any]) -> str:
    return next(
        (
            name
            for name, item in value.items()
            if name != "id" and name in record and _is_scalar(item) and record[name] != item
        ),
        "",
    )


def _records(state: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(id, record) of every record in the top-level collections."""
    for records in state.values():
        if isinstance(records, dict):
            yield from ((key, item) for key, item in records.items() if isinstance(item, dict))
        elif isinstance(records, list):
            yield from (
                (str(item["id"]), item) for item in records if isinstance(item, dict) and "id" in item
            )


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if _is_scalar(value.get("id")):
            yield value
        for item in value.values():
            yield from _objects(item)
    elif isinstance(value, list):
        for item in value:
            yield from _objects(item)


def _ids(value: Any) -> set[str]:
    """Every value under a key that is named like an id, as text."""
    found: set[str] = set()
    if isinstance(value, dict):
        for key, item in value.items():
            if _ID.search(key) and _is_scalar(item):
                found.add(str(item))
            else:
                found |= _ids(item)
    elif isinstance(value, list):
        for item in value:
            found |= _ids(item)
    return found


def _scalars(value: Any) -> set[str]:
    """Every key and every scalar, as text."""
    if isinstance(value, dict):
        return {*value, *(text for item in value.values() for text in _scalars(item))}
    if isinstance(value, list):
        return {text for item in value for text in _scalars(item)}
    return {str(value)} if _is_scalar(value) else set()


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)
