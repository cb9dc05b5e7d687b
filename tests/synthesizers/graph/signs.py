"""Small signatures for tests: ports from short texts."""

from __future__ import annotations

from typing import Any

from data import canonical
from data.messages import ToolSpec
from synthesizers.graph.dependency import Evidence, Link, SignatureGraph
from synthesizers.graph.ports import Signature
from synthesizers.graph.signatures import signature_of


def schema(text: str) -> dict[str, Any]:
    """ "flight_id:string price:number?" as a JSON Schema object; `?` marks what is not required."""
    properties: dict[str, Any] = {}
    required = []
    for part in text.split():
        name, _, kind = part.rstrip("?").partition(":")
        properties[name] = {"type": kind or "string"}
        required += [] if part.endswith("?") else [name]
    return {"type": "object", "properties": properties, "required": required}


def sign(name: str, takes: str = "", gives: str = "", *, category: str = "", **texts: Any) -> Signature:
    """A signature with documented return fields."""
    spec = ToolSpec(name=name, parameters=canonical.dumps(schema(takes)), **texts)
    return signature_of(spec, category=category, returns=schema(gives) if gives else None)


def graph_of_edges(*edges: str, takes: str = "what:string", extra: str = "") -> SignatureGraph:
    """A graph from texts "a>b"; every tool takes `takes`, and the edges bring nothing by name."""
    names = dict.fromkeys(name for edge in (*edges, *extra.split()) for name in edge.split(">"))
    pairs = [edge.split(">") for edge in edges]
    links = [Link(source, target, "x", "", Evidence.JUDGED, 0.5) for source, target in pairs]
    return SignatureGraph([sign(name, takes) for name in names], links)
