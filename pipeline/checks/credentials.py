"""Credentials are named in a recipe and read from the environment; a recipe is stored, published and printed.

What is a credential is decided by form (keys and tokens of well-known services, JSON web tokens, private
keys, `Bearer ...`, an address with a password or a key in it), by the name of its option (`api_key`,
`db_password`, ...) or of a command's flag (`[run, --api-key, ...]`), and in `api_key_env` by being no name
of a variable. Under `auth`, `env` and `headers` values are names of variables, which their readers check;
lists otherwise, and what lies deeper than a chat's settings, are data of tasks, whose password is anybody's.
Whoever sends one blots it out of what the other side says, since a server may repeat what it was sent.
Not covered: a secret of no known form under a name of no known meaning; one coded in base64 or the like, in
octal escapes, or escaped by several of JSON, URL and HTML one over the other.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html.entities import codepoint2name
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from data import canonical
from data.errors import ConfigError

BLOT = "***"
"""What stands where a secret stood."""

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
_MIN_BLOTTED = 4
"""Shorter secrets would blot out half of every text."""


def check_variable(name: str, *, where: str) -> None:
    """ConfigError where `name` can be no environment variable's: as it may be the secret itself, unshown."""
    if not _VARIABLE.fullmatch(name):
        raise ConfigError(
            f"{where} takes the NAME of an environment variable (letters, digits and _), never a value; what "
            "was given is not shown, as it may be a secret"
        )


def read_variable(name: str, *, where: str) -> str:
    """The value of the environment variable `name`, which a header can hold.

    ConfigError where it is no name, not set, empty, or has what no header takes (a line's end above all).
    """
    check_variable(name, where=where)
    value = os.environ.get(name, "")
    if not value:
        raise ConfigError(f"{where}: the environment variable {name} is not set; export it there")
    if not value.isprintable() or not value.isascii() or value != value.strip():
        raise ConfigError(
            f"{where}: the value of {name} (not shown) is no printable ASCII text, or has blanks at an end; "
            "export it again, without the end of its line"
        )
    return value


def shown_url(url: str) -> str:
    """An address as errors and records may show it: without user, password, query and fragment."""
    return re.sub(r"(?<=//)[^/]*@", "", re.split("[?#]", url)[0])


def blotted(text: str, secrets: Iterable[str]) -> str:
    """`text` without any of the secrets, in whichever letter case and spelling of JSON, URL or HTML."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= _MIN_BLOTTED:
            text = _spellings(secret).sub(BLOT, text)
    return text


def blotted_json(value: Any, secrets: Sequence[str]) -> Any:
    """A JSON value without secrets in its texts, names and numbers; it stays a JSON value."""
    if isinstance(value, list):
        return [blotted_json(item, secrets) for item in value]
    if isinstance(value, dict):
        return {blotted(name, secrets): blotted_json(item, secrets) for name, item in value.items()}
    if value is None or isinstance(value, bool):
        return value
    text = str(value)
    clean = blotted(text, secrets)
    return value if clean == text else clean


def header_secrets(values: Iterable[str]) -> tuple[str, ...]:
    """What the values of credential headers keep secret: each without the scheme before it (`Bearer`)."""
    return tuple(value.partition(" ")[2] or value for value in values)


def url_secrets(url: str) -> tuple[str, ...]:
    """What an address keeps secret: its password and the values of its query."""
    parsed = urlsplit(url)
    return (parsed.password or "", *(value for _, value in parse_qsl(parsed.query)))


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


@functools.lru_cache(maxsize=64)
def _spellings(secret: str) -> re.Pattern[str]:
    return re.compile("".join(_spelling(character) for character in secret), re.IGNORECASE)


def _spelling(character: str) -> str:
    """A pattern of one character as it is, or escaped in JSON, Python, a URL or HTML, also more than once."""
    units = character.encode("utf-16-be", "surrogatepass").hex()
    escaped = "".join(rf"\\{{1,8}}u{units[at : at + 4]}" for at in range(0, len(units), 4))
    octets = character.encode("utf-8", "surrogatepass")
    coded = "".join(f"%(?:25){{0,3}}{octet:02x}" for octet in octets)
    quoted = "".join(rf"\\{{1,8}}x{octet:02x}" for octet in octets)  # as repr shows bytes
    number = ord(character)
    name = "apos" if character == "'" else codepoint2name.get(number, f"#{number}")
    entity = rf"&(?:amp;){{0,3}}(?:\#0*{number}|\#x0*{number:x}|{re.escape(name)});"
    short = re.escape(canonical.dumps(character)[1:-1].lstrip("\\"))  # n of \n
    itself = re.escape(character)
    plus = r"|\+|%(?:25){0,3}2b" if character == " " else ""
    return rf"(?:{escaped}|{coded}|{quoted}|{entity}|\\{{1,8}}(?:{itself}|{short})|{itself}{plus})"
