"""An MCP tool result as a ToolResponse: text, structured content, media, resource links.

Text content is what the agent sees. Structured content stands in where there is no text, because servers
repeat it as text where they have both. Not covered: icons, annotations and `_meta`, which are for clients.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from data import canonical
from pipeline.checks.credentials import blotted
from pipeline.environments.responses import Content, Media, ToolResponse
from pipeline.errors import EnvironmentFailure


def response_of(result: Any, *, secrets: Sequence[str] = ()) -> ToolResponse:
    """The content of a `CallToolResult`, without `secrets`.

    Raises EnvironmentFailure where the server sent broken data.
    """
    items = [_content(block) for block in result.content]
    if not items and result.structured_content is not None:
        items = [canonical.dumps(result.structured_content)]
    items = [blotted(item, secrets) if isinstance(item, str) else item for item in items]
    if all(isinstance(item, str) for item in items):
        return ToolResponse(text="\n".join(str(item) for item in items) or "ok")
    return ToolResponse(media=items)


def _content(block: Any) -> Content:
    if block.type == "text":
        return str(block.text)
    if block.type in ("image", "audio"):
        return _media(block.data, block.mime_type)
    if block.type == "resource_link":
        kind = f" {block.mime_type}" if block.mime_type else ""
        return f"[resource {block.name}: {block.uri}{kind}]"
    resource = block.resource
    if hasattr(resource, "text"):
        return str(resource.text)
    return _media(resource.blob, resource.mime_type or "application/octet-stream")


def _media(data: str, media_type: str) -> Media:
    try:
        return Media(base64.b64decode(data, validate=True), media_type)
    except binascii.Error as error:
        raise EnvironmentFailure(f"the MCP server sent {media_type} that is no base64: {error}") from error
