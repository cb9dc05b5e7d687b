"""Credentials in a recipe: named, never shown, and no data of tasks taken for one."""

from __future__ import annotations

import html
import json
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from data.errors import ConfigError
from pipeline.checks.credentials import (
    blotted,
    blotted_json,
    check_variable,
    header_secrets,
    read_variable,
    refuse_credentials,
    shown_url,
    url_secrets,
)

KEY = "abcdefghijklmnopqrstuvwx0123456789AB"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"environment": {"options": {"how": f"sk-proj-{KEY}"}}}, "environment.options.how"),
    ({"environment": {"options": {"how": f"hf_{KEY}"}}}, "environment.options.how"),
    ({"environment": {"options": {"how": f"ghp_{KEY}"}}}, "environment.options.how"),
    ({"environment": {"options": {"how": f"github_pat_{KEY}"}}}, "environment.options.how"),
    ({"environment": {"options": {"how": f"glpat-{KEY}"}}}, "environment.options.how"),
    ({"environment": {"options": {"how": f"xoxb-{KEY}"}}}, "environment.options.how"),
    ({"environment": {"options": {"how": "AKIA0123456789ABCDEF"}}}, "environment.options.how"),
    ({"environment": {"options": {"how": f"AIza{KEY}"}}}, "environment.options.how"),
    ({"environment": {"options": {"how": f"eyJ{KEY}.eyJ{KEY}.{KEY}"}}}, "environment.options.how"),
    ({"environment": {"options": {"how": "-----BEGIN RSA PRIVATE KEY-----\nx"}}}, "environment.options.how"),
    ({"environment": {"options": {"headers": {"A": f"Bearer {KEY}"}}}}, "environment.options.headers.A"),
    ({"environment": {"options": {"command": ["run", f"--key=sk-{KEY}"]}}}, "environment.options.command.1"),
    ({"policy": {"url": f"http://me:{KEY}@host:8000"}}, "policy.url"),
    ({"environment": {"options": {"password": "correct horse"}}}, "environment.options.password"),
    ({"environment": {"options": {"API-Key": KEY}}}, "environment.options.API-Key"),
    ({"loop": {"chats": {"sample_judge": {"api_key": KEY}}}}, "loop.chats.sample_judge.api_key"),
    ({"policy": {"server_args": ["--seed", "1", "--api-key", KEY]}}, "policy.server_args.3"),
    (
        {"environment": {"options": {"command": ["run", f"--db_password={KEY}"]}}},
        "environment.options.command.1",
    ),
    ({"environment": {"options": {"url": f"https://host/mcp/?hostApiKey={KEY}"}}}, "environment.options.url"),
    ({"policy": {"url": f"http://host:8000/v1?a=1&token={KEY}"}}, "policy.url"),
    ({"policy": {"api_key_env": f"{KEY} "}}, "policy.api_key_env"),
    (
        {"synth": {"a": {"options": {"chat": {"api_key_env": "correct horse"}}}}},
        "synth.a.options.chat.api_key_env",
    ),
    ({"environment": {"options": {"openai_api_key": KEY}}}, "environment.options.openai_api_key"),
    ({"environment": {"options": {"accessToken": KEY}}}, "environment.options.accessToken"),
    ({"environment": {"options": {"password": 4711}}}, "environment.options.password"),
]
TAKEN: list[dict[str, Any]] = [
    {"environment": {"options": {"auth": {"api_key": "RENTAL_KEY"}, "headers": {"Authorization": "TOKEN"}}}},
    {"synth": {"a": {"options": {"chat": {"url": "http://host:8000/v1", "api_key_env": "KEY"}}}}},
    {"environment": {"options": {"tasks": [{"gold": [{"name": "login", "password": "abc"}]}]}}},
    {"policy": {"model": "task-generator-of-a-very-long-name-indeed", "url": "http://[::1]:8000"}},
    {"environment": {"options": {"password": "", "api_key": None, "eos_token": "<|end|>"}}},
    {"environment": {"options": {"command": ["run", "--api-key", "--quiet", "--max-tokens", "9"]}}},
    {"environment": {"options": {"url": "http://host:8000/list?page_token=abc&tokens=4"}}},
]


@pytest.mark.parametrize(("recipe", "place"), REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_a_credential_is_refused_by_its_place_and_not_shown(recipe: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError, match="environment variable") as caught:
        refuse_credentials({**recipe, "name": "x"}, where="r.yaml")
    told = str(caught.value)
    assert told.startswith(f"r.yaml: {place} holds")
    assert KEY not in told and "horse" not in told


@pytest.mark.parametrize("recipe", TAKEN)
def test_names_of_variables_and_data_are_taken(recipe: dict[str, Any]) -> None:
    refuse_credentials(recipe, where="r.yaml")


@pytest.mark.parametrize("pasted", ["sk-live-4711", "Bearer 4711", "KEY=4711", "", "4711"])
def test_a_secret_in_the_place_of_a_variables_name_is_not_repeated(pasted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_variable(pasted, where="api_key_env")
    assert str(caught.value).startswith("api_key_env takes the NAME of an environment variable")
    assert "4711" not in str(caught.value)
    check_variable("MY_KEY", where="api_key_env")


def test_a_variable_is_read_and_an_unset_or_empty_one_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FULL", "4711")
    monkeypatch.setenv("EMPTY", "")
    assert read_variable("FULL", where="api_key_env") == "4711"
    for name in ("EMPTY", "ABSENT"):
        with pytest.raises(
            ConfigError, match=f"api_key_env: the environment variable {name} is not set; export"
        ):
            read_variable(name, where="api_key_env")


@pytest.mark.parametrize("value", ["4711-abc\n", " 4711-abc", "4711\x00", "4711-ü"])
def test_a_value_that_no_header_takes_is_refused_unshown(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {"KEY": value})  # the real one takes no NUL
    with pytest.raises(ConfigError, match=r"api_key_env: the value of KEY \(not shown\) is no") as caught:
        read_variable("KEY", where="api_key_env")
    assert "4711" not in str(caught.value)


SECRET = 'a/b+"c\\ d=é&<x>'


@pytest.mark.parametrize(
    "spelled",
    [
        SECRET,
        json.dumps(SECRET),
        json.dumps(json.dumps(SECRET)),
        json.dumps(SECRET, ensure_ascii=False),
        json.dumps(SECRET).replace("/", "\\/").replace("+", "\\u002B"),
        "".join(f"\\u{ord(character):04x}" for character in SECRET),
        quote(SECRET),
        quote(SECRET, safe=""),
        quote(SECRET, safe="").lower(),
        quote_plus(SECRET),
        repr({"key": SECRET}),
        SECRET.upper(),
        quote(quote(SECRET, safe="")),
        quote(quote(quote_plus(SECRET))),
        html.escape(SECRET),
        html.escape(html.escape(SECRET)),
        "".join(f"&#{ord(character)};" for character in SECRET),
        "".join(f"&#x{ord(character):04X};" for character in SECRET),
        "".join(f"\\x{octet:02x}" for octet in SECRET.encode()),
        repr(SECRET.encode())[2:-1],
    ],
)
def test_a_secret_is_blotted_out_however_it_is_spelled(spelled: str) -> None:
    clean = blotted(f"<{spelled}>", [SECRET[:6], SECRET])
    assert clean.strip("<>\"'{} key:\\") == "***"


def test_only_what_is_secret_is_blotted_out() -> None:
    assert blotted("key abc of 4711", ["abc", "", "4712"]) == "key abc of 4711"
    assert blotted("a &;&;&;&; of 4711", ["4712"]) == "a &;&;&;&; of 4711"
    value = {"4711": [4711, True, None, 0.5, float("nan")], "text": "none of null"}
    clean = blotted_json(value, ["4711", "null", "True"])
    assert list(clean) == ["***", "text"] and clean["text"] == "none of ***"
    assert clean["***"][:4] == ["***", True, None, 0.5]


def test_what_headers_and_addresses_keep_secret() -> None:
    assert header_secrets(["Bearer 4711", "4712"]) == ("4711", "4712")
    assert url_secrets("https://me:4711@host/mcp?key=47%2F12&page=3") == ("4711", "47/12", "3")
    assert url_secrets("https://host/mcp") == ("",)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:4711@host:8000/mcp/?key=4711#4711", "https://host:8000/mcp/"),
        ("http://4711@[::1]:8000", "http://[::1]:8000"),
        ("http://host/a@b", "http://host/a@b"),
        ("", ""),
    ],
)
def test_an_address_is_shown_without_what_may_be_secret(url: str, shown: str) -> None:
    assert shown_url(url) == shown
