"""A function's parameters as fields that pydantic can read.

Decides: which parameters a tool may have (named ones with an annotation), where a parameter's text comes
from (`Field(description=...)`, then `Annotated[T, "text"]`, then the docstring), and that a `Field(...)` as
default value means what it means in a pydantic model. Not covered: `*args`, `**kwargs`, positional-only
parameters: one error each.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import typing_extensions
from pydantic import Field
from pydantic.fields import FieldInfo

from pipeline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: its name, its type and its pydantic field."""

    name: str
    annotation: Any
    field: Any
    always: bool
    """Its value is passed where the call leaves it out, too: the function's own default is a Field."""


def parameters_of(function: Callable[..., Any], shown: str, texts: dict[str, str]) -> list[Parameter]:
    """The parameters of tool `shown`, without a leading `self`. Raises ConfigError naming the parameter."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(
            f"an annotation of tool {shown} cannot be resolved: {error}; import it at run time, "
            "at the top level of the tool's module"
        ) from error
    found = []
    for parameter in _named(function, shown):
        if parameter.name not in hints:
            raise ConfigError(
                f"parameter {parameter.name} of tool {shown} has no annotation; add one, e.g. `: str`"
            )
        annotation = portable(hints[parameter.name])
        found.append(Parameter(parameter.name, *_field(parameter, annotation, texts.get(parameter.name))))
    return found


def portable(annotation: Any) -> Any:
    """`annotation` with each `typing.TypedDict` as typing_extensions', which alone pydantic reads on 3.11."""
    if is_typeddict(annotation):
        return _portable_typed_dict(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if not arguments or origin is Literal:
        return annotation
    if origin is Annotated:
        return Annotated[(portable(arguments[0]), *arguments[1:])]
    changed = tuple(portable(argument) for argument in arguments)
    if changed == arguments:
        return annotation
    if origin in (Union, types.UnionType):
        return Union[changed]  # noqa: UP007 - of a tuple
    return annotation.copy_with(changed) if hasattr(annotation, "copy_with") else origin[changed]


def _portable_typed_dict(kind: Any) -> Any:
    if type(kind).__module__ == "typing_extensions":
        return kind
    keys = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        required = name in kind.__required_keys__
        if get_origin(hint) in (Required, NotRequired):
            # Written as a string it was not seen when the class was made, and the keys are wrong.
            required, hint = get_origin(hint) is Required, get_args(hint)[0]
        wrapper = typing_extensions.Required if required else typing_extensions.NotRequired
        keys[name] = wrapper[portable(hint)]
    made = typing_extensions.TypedDict(kind.__name__, keys)  # type: ignore[misc]
    made.__doc__ = kind.__doc__
    return made


def _named(function: Callable[..., Any], shown: str) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name == "self":
        del parameters[0]
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                f"parameter {parameter.name} of tool {shown} is {parameter.kind.description}; "
                "a tool takes named parameters only"
            )
    return parameters


def _field(parameter: inspect.Parameter, annotation: Any, text: str | None) -> tuple[Any, Any, bool]:
    """Type and pydantic field of a parameter, and whether its default must be passed by us."""
    default = parameter.default
    own: dict[str, Any] = {"default": ... if default is inspect.Parameter.empty else default}
    if isinstance(default, FieldInfo):
        annotation = Annotated[annotation, default]
        own = {"default": default.default}
        if default.default_factory is not None:
            own = {"default_factory": default.default_factory}
        elif default.is_required():
            own = {"default": ...}
    text = _annotated_text(annotation) or text
    if text and not any(isinstance(item, FieldInfo) and item.description for item in _metadata(annotation)):
        own["description"] = text
    always = isinstance(default, FieldInfo) and not default.is_required()
    return annotation, Field(alias=parameter.name, **own), always


def _metadata(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()


def _annotated_text(annotation: Any) -> str | None:
    return next((item for item in _metadata(annotation) if isinstance(item, str)), None)
