"""Every command that the documents and examples show is one that the program takes.

ECHO's released `run.sh` names a method and flags that its command line does not have. Nothing is run here:
verbs and options are parsed, files of examples and modules of `python -m` must exist.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import typer.main
from typer.core import TyperGroup

from flows.cli import app

USAGE = typer.BadParameter.__mro__[1]  # typer exports this one usage error only

_CODE = re.compile(r"```[a-z]*\n(.*?)```|`([^`\n]+)`|^ {4}(\S.*)$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^[\s#]*(?:\S*/)?(trajsmith [a-z].*|\S*python3? -m [a-z]\S*.*)$", re.MULTILINE)


def commands_in(text: str, *, is_code: bool) -> Iterator[str]:
    """The commands of a file; of prose only what stands as code."""
    parts = [text] if is_code else ["\n".join(filter(None, found)) for found in _CODE.findall(text)]
    for part in parts:
        for command in _COMMAND.findall(part.replace("\\\n", " ")):
            yield re.split(r"\s#|\s&&|\s[|;>]\s|$", command.replace("[", "").replace("]", ""))[0]


def problem(command: str, root: Path) -> str:
    """What is wrong with a command; "" where nothing is."""
    words = shlex.split(command)
    if words[1] == "-m":
        try:
            return "" if importlib.util.find_spec(words[2].rstrip(",.")) else f"no module {words[2]}"
        except ModuleNotFoundError as error:
            return str(error)
    missing = [word for word in words if word.startswith("examples/") and not (root / word).exists()]
    if missing:
        return f"{missing[0]} does not exist"
    verb, context, rest = typer.main.get_command(app), typer.Context(typer.main.get_command(app)), words[1:]
    try:
        while isinstance(verb, TyperGroup):
            _, found, rest = verb.resolve_command(context, rest)
            assert found is not None
            verb, context = found, typer.Context(found, parent=context)
        verb.make_parser(context).parse_args(list(rest))
    except USAGE as error:
        return str(error)
    return ""


def documents(root: Path) -> Iterator[Path]:
    yield from (root / "README.md", root / "Makefile")
    yield from sorted((root / "docs").glob("*.md"))
    for kind in ("yaml", "py", "md"):
        yield from sorted((root / "examples").rglob(f"*.{kind}"))
    yield from sorted((root / "benchmarks").glob("*.py"))


def test_commands_in_documents_parse(repository: Path) -> None:
    found = {
        (str(path.relative_to(repository)), command)
        for path in documents(repository)
        for command in commands_in(path.read_text(encoding="utf-8"), is_code=path.suffix != ".md")
    }
    assert len(found) > 60
    wrong = [(*each, told) for each in sorted(found) if (told := problem(each[1], repository))]
    assert wrong == []


def test_commands_in_messages_parse(repository: Path) -> None:
    """What an error names as the next step can be taken; a command with a value to come is left out."""
    folders = ("data", "pipeline", "filters", "synthesizers", "rl", "flows")
    files = [path for folder in folders for path in sorted((repository / folder).rglob("*.py"))]
    found = {
        (str(path.relative_to(repository)), command)
        for path in files
        for command in re.findall(r"`(trajsmith [a-z][^`{}\n]*)`", path.read_text(encoding="utf-8"))
    }
    assert len(found) > 20
    assert [(*each, told) for each in sorted(found) if (told := problem(each[1], repository))] == []


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("trajsmith fly away", "No such command"),
        ("trajsmith loop r.yaml --round 2", "No such option"),
        ("trajsmith env chek x", "No such command"),
        ("trajsmith train sft examples/none.yaml", "examples/none.yaml does not exist"),
        ("python -m benchmarks.none", "no module benchmarks.none"),
        ("python -m nothing.there", "nothing"),
        ("trajsmith env check counter --options '{}'", ""),
    ],
)
def test_what_is_no_command_is_told(command: str, told: str, repository: Path) -> None:
    found = problem(command, repository)
    assert (told in found) if told else found == ""
