"""One way to write JSON and one way to hash it.

`dumps` keeps key order, because the order of a tool's parameters is part of the prompt; `digest`
sorts keys, because identity must not depend on order. Both escape to ASCII, so control characters
and lone surrogates survive any text column, and both refuse NaN and infinities, which JSON lacks.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from data.errors import RecordError

Json = dict[str, Any] | list[Any] | str | int | float | bool | None


def dumps(value: Any, *, sort_keys: bool = False) -> str:
    """Compact ASCII JSON text of `value`; integers of any size are exact. NaN raises RecordError."""
    try:
        return json.dumps(
            value, ensure_ascii=True, allow_nan=False, separators=(",", ":"), sort_keys=sort_keys
        )
    except (TypeError, ValueError) as error:
        raise RecordError(f"value cannot be stored as JSON: {error}; got {value!r:.200}") from error


def loads(text: str) -> Any:
    """Inverse of `dumps`; also refuses the non-standard literals NaN and Infinity."""
    return _DECODER.decode(text)


def digest(*values: Any, length: int = 32) -> str:
    """First `length` hex digits of SHA-256 over the key-sorted JSON of `values`."""
    return hashlib.sha256(dumps(list(values), sort_keys=True).encode("ascii")).hexdigest()[:length]


def _refuse_constant(name: str) -> None:
    raise RecordError(f"JSON text holds {name}, which is not JSON; write null or a string instead")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
