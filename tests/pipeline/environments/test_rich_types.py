"""Parameters of any shape: the schema admits what the annotation admits, and Python objects arrive."""

from __future__ import annotations

import dataclasses
import datetime
import typing
from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict, Union

import pytest
import typing_extensions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field, create_model

from data import canonical
from pipeline.environments.docstrings import parse_docstring
from pipeline.environments.schemas import ArgumentsError, signature_of
from pipeline.errors import ConfigError


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Kind(NamedTuple):
    """An annotation, the JSON values that fit it, and the Python object each becomes."""

    annotation: Any
    values: st.SearchStrategy[Any]
    made: Callable[[Any], Any]


def same(value: Any) -> Any:
    return value


LEAVES = [
    Kind(int, st.integers(-9, 9), same),
    Kind(str, st.text(max_size=3), same),
    Kind(bool, st.booleans(), same),
    Kind(Literal["a", 3], st.sampled_from(["a", 3]), same),
    Kind(Colour, st.sampled_from(["red", "blue"]), Colour),
    Kind(Level, st.sampled_from([1, 2]), Level),
    Kind(Annotated[int, Field(ge=1, le=9)], st.integers(1, 9), same),
    Kind(datetime.date, st.dates().map(str), datetime.date.fromisoformat),
]


def as_list(inner: Kind) -> Kind:
    values = st.lists(inner.values, max_size=2)
    return Kind(
        list.__class_getitem__(inner.annotation), values, lambda items: [inner.made(item) for item in items]
    )


def as_map(inner: Kind) -> Kind:
    values = st.dictionaries(st.text(max_size=2), inner.values, max_size=2)
    made = lambda items: {key: inner.made(item) for key, item in items.items()}  # noqa: E731
    return Kind(dict.__class_getitem__((str, inner.annotation)), values, made)


def as_pair(inner: Kind) -> Kind:
    values = st.tuples(st.integers(0, 3), inner.values).map(list)
    return Kind(
        tuple.__class_getitem__((int, inner.annotation)), values, lambda pair: (pair[0], inner.made(pair[1]))
    )


def as_optional(inner: Kind) -> Kind:
    made = lambda value: None if value is None else inner.made(value)  # noqa: E731
    return Kind(Optional[inner.annotation], st.none() | inner.values, made)  # noqa: UP045 - both spellings


def _fielded(inner: Kind, kind: Any, make: Callable[..., Any]) -> Kind:
    values = st.fixed_dictionaries({"inner": inner.values}, optional={"size": st.integers(0, 5)})
    return Kind(kind, values, lambda value: make(**{**value, "inner": inner.made(value["inner"])}))


def as_model(inner: Kind) -> Kind:
    model = create_model("Model", inner=(inner.annotation, ...), size=(int, 7))
    return _fielded(inner, model, model)


def as_dataclass(inner: Kind) -> Kind:
    size = ("size", int, dataclasses.field(default=7))
    made = dataclasses.make_dataclass("Data", [("inner", inner.annotation), size])
    return _fielded(inner, made, made)


def as_typed_dict(inner: Kind) -> Kind:
    keys = {"inner": inner.annotation, "size": typing_extensions.NotRequired[int]}
    make: Any = typing_extensions.TypedDict  # the only one that pydantic reads inside models on 3.11
    return _fielded(inner, make("Typed", keys), dict)


WRAPPERS = [as_list, as_map, as_pair, as_optional, as_model, as_dataclass, as_typed_dict]
KINDS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.tuples(st.sampled_from(WRAPPERS), inner).map(lambda pair: pair[0](pair[1])),
    max_leaves=3,
)


def _tool(annotation: Any) -> Any:
    def made(value: Any) -> str:
        """Take a value."""
        return str(value)

    made.__annotations__ = {"value": annotation}
    return made


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(kind=KINDS, other=KINDS, data=st.data())
def test_schema_and_python_agree_on_any_shape(kind: Kind, other: Kind, data: st.DataObject) -> None:
    signature = signature_of(_tool(kind.annotation))
    validator = Draft202012Validator(canonical.loads(signature.spec.parameters))
    value = data.draw(kind.values)
    validator.validate({"value": value})
    assert signature.bind({"value": value}) == {"value": kind.made(value)}

    wrong = {"value": data.draw(other.values)}
    try:
        signature.bind(wrong)
    except ArgumentsError as error:
        assert str(error).startswith("value") or "argument: value" in str(error)
    else:
        assert validator.is_valid(wrong)


@pytest.mark.parametrize("annotation", [Level, list[Level], as_model(LEAVES[5]).annotation])
def test_a_truth_value_is_no_number_of_an_enumeration(annotation: Any) -> None:
    wrong = {Level: True, list[Level]: [1, True]}.get(annotation, {"inner": True})
    with pytest.raises(ArgumentsError, match=r"^value"):
        signature_of(_tool(annotation)).bind({"value": wrong})


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Place(TypedDict, total=False):
    city: typing_extensions.Required[str]
    street: str


def test_unions_find_their_member_and_stay_in_the_schema() -> None:
    def feed(
        pet: Annotated[Cat | Dog, Field(discriminator="kind")],
        amount: Union[int, list[int]],  # noqa: UP007 - both spellings
        at: list[Place],
        near: Place | None = None,
    ) -> str:
        """Feed."""
        return ""

    signature = signature_of(feed)
    shown = canonical.loads(signature.spec.parameters)
    assert [pet["properties"]["kind"]["const"] for pet in shown["properties"]["pet"]["oneOf"]] == [
        "cat",
        "dog",
    ]
    assert shown["properties"]["near"]["required"] == ["city"]
    assert "$ref" not in signature.spec.parameters and "discriminator" not in signature.spec.parameters
    bound = signature.bind(
        {"pet": {"kind": "dog", "name": "Rex"}, "amount": [1], "at": [{"city": "Rome"}], "near": None}
    )
    assert bound == {
        "pet": Dog(kind="dog", name="Rex"),
        "amount": [1],
        "at": [{"city": "Rome"}],
        "near": None,
    }
    with pytest.raises(ArgumentsError, match="pet"):
        signature.bind({"pet": {"kind": "cow"}, "amount": 1, "at": []})


def test_defaults_limits_and_texts_from_wherever_they_are_written() -> None:
    def order(
        size: int = Field(3, ge=2, description="from Field"),
        items: list[str] = Field(default_factory=list),  # noqa: B008 - what users write
        name: Annotated[str, "from Annotated"] = "x",
        colour: Colour = Colour.RED,
        place: Annotated[str, Field(max_length=2, description="own")] = "",
        plain: int = 1,
    ) -> str:
        """Order.

        Args:
            plain: from the docstring
            place: not this one
        """
        return ""

    signature = signature_of(order)
    shown = canonical.loads(signature.spec.parameters)
    assert "required" not in shown
    assert shown["properties"]["size"] == {
        "type": "integer",
        "minimum": 2,
        "default": 3,
        "description": "from Field",
    }
    texts = {name: schema.get("description") for name, schema in shown["properties"].items()}
    assert texts == {
        "size": "from Field",
        "items": None,
        "name": "from Annotated",
        "colour": None,
        "place": "own",
        "plain": "from the docstring",
    }
    assert shown["properties"]["colour"]["default"] == "red"
    assert signature.bind({}) == {"size": 3, "items": []}
    with pytest.raises(ArgumentsError, match="place: String should have at most 2"):
        signature.bind({"place": "abc"})


GOOGLE = """Do
it.

Args:
    x (int): The number
        on two lines.
    y: Another.

Returns:
    z: nothing
"""
NUMPY = """Do
it.

Parameters
----------
x : int
    The number
    on two lines.
y
    Another.

Returns
-------
int
    Nothing.
"""
SPHINX = """Do
it.

:param int x: The number
    on two lines.
:param y: Another.
:returns: nothing
"""


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX])
def test_docstrings_of_every_style(text: str) -> None:
    assert parse_docstring(text) == ("Do it.", {"x": "The number on two lines.", "y": "Another."})


@pytest.mark.parametrize("text", ["Do it.", "Do it.\n\nArgs are: x.\n:not a field", "Do it.\n\nArgs:\n"])
def test_prose_is_no_section(text: str) -> None:
    assert parse_docstring(text) == ("Do it.", {})


class Opaque:
    """No type of pydantic's."""


def test_what_cannot_be_described_is_one_clear_error() -> None:
    def many(*names: str) -> str:
        """Many."""
        return ""

    def named(**names: str) -> str:
        """Named."""
        return ""

    def bare(x, y: int) -> str:  # type: ignore[no-untyped-def]
        """Bare."""
        return ""

    def odd(x: int, y: Opaque) -> str:
        """Odd."""
        return ""

    def callback(x: Callable[[int], int]) -> str:
        """Callback."""
        return ""

    for function, text in (
        (many, "parameter names of tool many is variadic positional; a tool takes named parameters only"),
        (named, "parameter names of tool named is variadic keyword; a tool takes named parameters only"),
        (bare, "parameter x of tool bare has no annotation; add one, e.g. `: str`"),
        (odd, "parameter y of tool odd has a type that cannot be read"),
        (callback, "tool callback has a parameter that JSON Schema cannot describe"),
    ):
        with pytest.raises(ConfigError) as caught:
            signature_of(function)
        assert str(caught.value).startswith(text)


def test_an_annotation_that_does_not_exist_is_named() -> None:
    def made(x: int) -> str:
        """Made."""
        return ""

    made.__annotations__ = {"x": "Nowhere"}
    with pytest.raises(ConfigError, match="an annotation of tool made cannot be resolved: name 'Nowhere'"):
        signature_of(made)


def test_a_default_that_is_no_json_is_python_business() -> None:
    sentinel = object()

    def search(limit: int | None = typing.cast(Any, sentinel)) -> str:
        """Search."""
        return "all" if limit is sentinel else str(limit)

    signature = signature_of(search)
    assert "required" not in canonical.loads(signature.spec.parameters)
    assert search(**signature.bind({})) == "all"


def test_a_models_own_strictness_is_kept() -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(extra="forbid")
        x: int

    made = _tool(Strict)
    with pytest.raises(ArgumentsError, match=r"unknown argument: value\.y"):
        signature_of(made).bind({"value": {"x": 1, "y": 2}})
