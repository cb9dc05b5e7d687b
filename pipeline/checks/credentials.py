"""Credentials are named in a recipe and read from the environment; a recipe is stored, published and printed.

What is a credential is decided by form (keys and tokens of well-known services, JSON web tokens, private
keys, `Bearer ...`, an address with a password or a key in it), by the name of its option (`api_key`,
`db_password`, ...) or of a command's flag (`[run, --api-key, ...]`), and in `api_key_env` by being no name
of a variable. Under `auth`, `env` and `headers` values are names of variables, which their readers check;
lists otherwise, and what lies deeper than a chat's settings, are data of tasks, whose password is anybody's.
Not covered: a secret of no known form under a name of no known meaning.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from data.errors import ConfigError

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FORMS = re.compile(
    r"\b(?:sk|pk|rk)-[\w-]{20,}|\bhf_\w{20,}|\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{20,}"
    r"|\bxox[abeprs]-[\w-]{10,}|\bAKIA[0-9A-Z]{16}\b|\bAIza[\w-]{30,}|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|(?i:\bbearer )\S{8,}|://[^/\s:@]*:[^/\s@]+@"
    r"|(?i:://\S*[?&](?:token|[\w.-]*(?:api[_-]?key|(?:access|api|auth)[_-]?token|secret|password))=[^\s&])"
)
_ENDINGS = (
    *("accesskey", "accesstoken", "apikey", "apitoken", "authtoken", "authorization", "clientsecret"),
    *("passwd", "password", "privatekey", "secretkey"),
)
"""Of an option's name, written small and without _ and -."""
_FLAG = re.compile(r"--?([A-Za-z][\w-]*)(=\S)?.*", re.DOTALL)
_OF_VARIABLES = frozenset({"auth", "env", "headers"})
"""Mappings whose values are names of environment variables."""
_DEEPEST = 5
"""Keys down to an option: loop.chats.<role>.api_key has four."""


def check_variable(name: str, *, where: str) -> None:
    """ConfigError where `name` can be no environment variable's: as it may be the secret itself, unshown."""
    if not _VARIABLE.fullmatch(name):
        raise ConfigError(
            f"{where} takes the NAME of an environment variable (letters, digits and _), never a value; what "
            "was given is not shown, as it may be a secret"
        )


def read_variable(name: str, *, where: str) -> str:
    """The value of the environment variable `name`. ConfigError where it is no name, not set or empty."""
    check_variable(name, where=where)
    value = os.environ.get(name, "")
    if not value:
        raise ConfigError(f"{where}: the environment variable {name} is not set; export it there")
    return value


def shown_url(url: str) -> str:
    """An address as errors and records may show it: without user, password, query and fragment."""
    return re.sub(r"(?<=//)[^/]*@", "", re.split("[?#]", url)[0])


def refuse_credentials(value: Mapping[str, Any], *, where: str) -> None:
    """ConfigError names the options of `value` that hold a credential, and never what they hold."""
    found = sorted(_found(value, ()))
    if found:
        raise ConfigError(
            f"{where}: {', '.join(found)} holds what looks like a key, a token or a password (not shown). "
            "Recipes are stored beside their data: export it as an environment variable, and name that where "
            "an option asks for a name (api_key_env, auth, env), or read it where your own code needs it"
        )


def _found(value: Any, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _found(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _found(item, (*path, str(place)))
        yield from (".".join((*path, str(place))) for place in _flagged(value))
    elif _is_credential(value, path):
        yield ".".join(path)


def _is_credential(value: Any, path: tuple[str, ...]) -> bool:
    if isinstance(value, str) and _FORMS.search(value):
        return True
    if value in ("", None) or isinstance(value, bool) or len(path) > _DEEPEST:
        return False
    if path[-1] == "api_key_env":
        return not _VARIABLE.fullmatch(str(value))
    is_item = any(key.isdigit() for key in path)
    return not is_item and not _OF_VARIABLES.intersection(path[:-1]) and _means_credential(path[-1])


def _flagged(items: Sequence[Any]) -> Iterator[int]:
    """Places of a command's arguments that are the value of a flag such as --api-key, or hold it."""
    for place, (item, following) in enumerate(pairwise((*items, None))):
        flag = _FLAG.fullmatch(item) if isinstance(item, str) else None
        if flag and _means_credential(flag[1]):
            if flag[2]:
                yield place
            elif isinstance(following, str) and not following.startswith("-"):
                yield place + 1


def _means_credential(name: str) -> bool:
    return re.sub("[_-]", "", name.lower()).endswith(_ENDINGS)
