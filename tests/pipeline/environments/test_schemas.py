"""Schemas from signatures: every kind of annotation, the check of arguments, what is refused."""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from data import canonical
from pipeline.environments.docstrings import parse_docstring
from pipeline.environments.schemas import ArgumentsError, signature_of
from pipeline.errors import ConfigError


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: int = 0


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


def everything(
    city: str,
    colour: Colour,
    size: Literal["s", "m"],
    where: Point,
    ids: list[int],
    limit: Annotated[int, Field(ge=1, le=9)] = 5,
    note: str | None = None,
    either: int | str = "x",
    copy: bool = False,
) -> str:
    """Look for
    things.

    A longer story.

    Args:
        city: where to look,
            on two lines
        limit (int): how many
    Returns:
        nothing: of interest
    """
    return city


def _parameters(function: Any) -> dict[str, Any]:
    return canonical.loads(signature_of(function).spec.parameters)


def test_every_kind_of_annotation() -> None:
    spec = signature_of(everything).spec
    assert (spec.name, spec.description) == ("everything", "Look for things.")
    parameters = _parameters(everything)
    assert list(parameters["properties"]) == list(inspect.signature(everything).parameters)
    assert parameters["required"] == ["city", "colour", "size", "where", "ids"]
    properties = parameters["properties"]
    assert properties["city"] == {"type": "string", "description": "where to look, on two lines"}
    assert properties["colour"] == {"type": "string", "enum": ["red", "blue"]}
    assert properties["size"] == {"type": "string", "enum": ["s", "m"]}
    assert properties["where"]["properties"] == {
        "x": {"type": "integer"},
        "y": {"type": "integer", "default": 0},
    }
    assert properties["ids"] == {"type": "array", "items": {"type": "integer"}}
    expected = {"type": "integer", "minimum": 1, "maximum": 9, "default": 5, "description": "how many"}
    assert properties["limit"] == expected
    assert properties["note"] == {"type": "string"}
    assert properties["either"] == {"anyOf": [{"type": "integer"}, {"type": "string"}], "default": "x"}
    assert "title" not in signature_of(everything).spec.parameters
    assert "$ref" not in signature_of(everything).spec.parameters


def test_a_property_may_be_called_title() -> None:
    def name_it(title: str) -> str:
        """Name it."""
        return title

    assert _parameters(name_it)["properties"] == {"title": {"type": "string"}}


def test_recursive_models_keep_their_reference() -> None:
    def plant(tree: Tree) -> str:
        """Plant."""
        return str(tree)

    schema = _parameters(plant)
    Draft202012Validator(schema).validate({"tree": {"value": 1, "children": [{"value": 2, "children": []}]}})
    assert not Draft202012Validator(schema).is_valid({"tree": {"value": 1, "children": [{"value": "2"}]}})


GOOD = {"city": "Rome", "colour": "red", "size": "m", "where": {"x": 1}, "ids": [1]}


def test_arguments_arrive_typed_and_defaults_stay_python() -> None:
    bound = signature_of(everything).bind({**GOOD, "either": 3, "copy": True})
    assert bound["colour"] is Colour.RED
    assert bound["where"] == Point(x=1)
    assert (bound["either"], bound["copy"]) == (3, True)
    assert "limit" not in bound


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"city": 3}, "city: Input should be a valid string"),
        ({"ids": ["1"]}, "ids.0: Input should be a valid integer"),
        ({"limit": 10}, "limit: Input should be less than or equal to 9"),
        ({"limit": True}, "limit: Input should be a valid integer"),
        ({"colour": "green"}, "colour: Input should be 'red' or 'blue'"),
        ({"where": {}}, "missing argument: where.x"),
        ({"town": "Rome"}, "unknown argument: town"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentsError) as caught:
        signature_of(everything).bind({**GOOD, **change})
    assert str(caught.value) == text


def test_missing_argument_is_named() -> None:
    with pytest.raises(ArgumentsError, match=r"^missing argument: city$"):
        signature_of(everything).bind({key: value for key, value in GOOD.items() if key != "city"})


def test_what_cannot_be_shown_is_refused() -> None:
    def silent(x: int) -> int:
        return x

    def loose(x) -> int:  # type: ignore[no-untyped-def]
        """Has no annotation."""
        return int(x)

    def many(*xs: int) -> int:
        """Takes any number."""
        return sum(xs)

    with pytest.raises(ConfigError, match="tool silent has no docstring"):
        signature_of(silent)
    with pytest.raises(ConfigError, match="parameter x of tool loose has no annotation"):
        signature_of(loose)
    with pytest.raises(ConfigError, match="parameter xs of tool many is variadic positional"):
        signature_of(many)


TYPES: dict[type, st.SearchStrategy[Any]] = {
    int: st.integers(),
    str: st.text(max_size=5),
    bool: st.booleans(),
    float: st.floats(allow_nan=False, allow_infinity=False),
}
VALUES = st.one_of(
    st.none(), *TYPES.values(), st.lists(st.integers(), max_size=2), st.dictionaries(st.text(), st.none())
)


def _tool(kinds: list[type], num_required: int) -> Any:
    def made(**arguments: Any) -> None:
        """Made up."""

    parameters = [
        inspect.Parameter(
            f"a{index}",
            inspect.Parameter.KEYWORD_ONLY,
            annotation=kind,
            default=inspect.Parameter.empty if index < num_required else kind(),
        )
        for index, kind in enumerate(kinds)
    ]
    made.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    made.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return made


@settings(max_examples=60)
@given(
    kinds=st.lists(st.sampled_from(list(TYPES)), max_size=4), num_required=st.integers(0, 4), data=st.data()
)
def test_bind_accepts_what_the_schema_accepts(
    kinds: list[type], num_required: int, data: st.DataObject
) -> None:
    signature = signature_of(_tool(kinds, num_required))
    names = st.sampled_from([*(f"a{index}" for index in range(len(kinds))), "other"])
    right = {f"a{index}": data.draw(TYPES[kind]) for index, kind in enumerate(kinds)}
    arguments = right | data.draw(st.dictionaries(names, VALUES, max_size=2))
    schema = canonical.loads(signature.spec.parameters) | {"additionalProperties": False}
    valid = Draft202012Validator(schema).is_valid(arguments)
    # JSON Schema calls 1.0 an integer; Python's strict reading does not.
    whole_float = any(isinstance(value, float) and value == int(value) for value in arguments.values())
    try:
        bound = signature.bind(arguments)
    except ArgumentsError:
        assert not valid or whole_float
    else:
        assert valid
        assert bound == arguments


def test_docstring_without_arguments() -> None:
    assert parse_docstring("One line.") == ("One line.", {})
