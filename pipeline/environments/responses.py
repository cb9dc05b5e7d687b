"""What a tool returned, as what the record keeps: text, media by hash, step reward, metrics.

A tool returns text, anything JSON can say, bytes, a path, a PIL image, a Media, a list that mixes text with
media, or a ToolResponse with all of it. Decides that order is kept and that media never stand in a record as
bytes. Not covered: what a renderer shows for a medium (`Part.shown`).
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data import canonical
from data.media import MediaStore, guess_type
from data.messages import NamedValue, Part, text_parts
from pipeline.errors import ConfigError


class NoMediaStoreError(ConfigError):
    """A tool returned a medium and the environment has no `media` to keep it in."""


@dataclass(frozen=True, slots=True)
class Media:
    """Bytes that are no text; `media_type` "" = recognised by their beginning."""

    data: bytes
    media_type: str = ""


Content = str | Part | Media


@dataclass(frozen=True, slots=True)
class ToolResponse:
    """What a tool answers: text, parts and media for the agent; step reward and metrics for training only.

    `media` takes what a tool may return bare: bytes, paths, PIL images, Media.
    """

    text: str = ""
    parts: tuple[Part, ...] = ()
    reward: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    media: Sequence[Any] = ()

    def content(self, store: MediaStore | None = None) -> tuple[Part, ...]:
        """Text, parts, then media, which go to `store`. Raises NoMediaStoreError, MediaTooLargeError."""
        stored = tuple(_to_part(_as_media(item), store) for item in self.media)
        return text_parts(self.text) + self.parts + stored

    def named_metrics(self) -> tuple[NamedValue, ...]:
        """The metrics as the record keeps them."""
        return tuple(NamedValue(name=name, value=float(value)) for name, value in self.metrics.items())


def as_response(value: Any) -> ToolResponse:
    """What a tool returned: text as it is, None as "ok", media as such, anything else as compact JSON."""
    if isinstance(value, ToolResponse):
        return value
    if isinstance(value, str):
        return ToolResponse(text=value)
    if is_media(value):
        return ToolResponse(media=(value,))
    if isinstance(value, list | tuple) and any(is_media(item) for item in value):
        return ToolResponse(media=tuple(value))
    return ToolResponse(text="ok" if value is None else canonical.dumps(value))


def is_media(value: Any) -> bool:
    """Whether a returned value is a medium and no text."""
    return isinstance(value, bytes | bytearray | Path | Media) or _is_image(value)


def _is_image(value: Any) -> bool:
    # PIL is never imported here: an image object exists only where the tool has imported it.
    return any(kind.__module__ == "PIL.Image" and kind.__name__ == "Image" for kind in type(value).__mro__)


def _as_media(value: Any) -> Content:
    if isinstance(value, str | Part | Media):
        return value
    if isinstance(value, bytes | bytearray):
        return Media(bytes(value))
    if isinstance(value, Path):
        data = value.read_bytes()
        return Media(data, guess_type(data, value.name))
    if _is_image(value):
        buffer = io.BytesIO()
        value.save(buffer, format="PNG")
        return Media(buffer.getvalue(), "image/png")
    return canonical.dumps(value)


def _to_part(value: Content, store: MediaStore | None) -> Part:
    if isinstance(value, str):
        return Part(text=value)
    if isinstance(value, Part):
        return value
    media_type = value.media_type or guess_type(value.data)
    if store is None:
        raise NoMediaStoreError(
            f"a tool returned {media_type}, and there is nowhere to keep it: set `environment.media = "
            'MediaStore(run / "media")` (a run of the command line does)'
        )
    return store.put(value.data, media_type)
