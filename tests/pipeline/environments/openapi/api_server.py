"""A stateful API on a free loopback port: items by session header, and every way a server can fail."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.serving import PatientServer

DOCUMENT: dict[str, Any] = {
    "openapi": "3.0.3",
    "info": {"title": "Items", "version": "1"},
    "servers": [{"url": "https://production.example/v1"}],
    "security": [{"key": []}],
    "paths": {
        "/items": {
            "get": {
                "operationId": "listItems",
                "summary": "Items, or those with a tag.",
                "parameters": [{"name": "tag", "in": "query", "schema": {"type": "string"}}],
            },
            "post": {
                "operationId": "createItem",
                "summary": "Add an item.",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Item"}}},
                },
            },
        },
        "/items/{id}": {
            "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}],
            "get": {"operationId": "getItem", "summary": "One item."},
            "delete": {"operationId": "deleteItem", "summary": "Remove an item."},
        },
        "/echo": {
            "get": {"operationId": "echo", "summary": "What was received.", "security": [{"query": []}]}
        },
        "/moved": {"get": {"operationId": "moved", "summary": "Moved here."}},
        "/away": {"get": {"operationId": "away", "summary": "Moved elsewhere."}},
        "/reset": {"post": {"operationId": "reset", "summary": "Begin anew.", "security": []}},
    },
    "components": {
        "securitySchemes": {
            "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
            "query": {"type": "apiKey", "in": "query", "name": "api_key"},
            "login": {"type": "http", "scheme": "basic"},
        },
        "schemas": {
            "Item": {
                "type": "object",
                "required": ["id", "name"],
                "properties": {
                    "id": {"type": "integer", "readOnly": True},
                    "name": {"type": "string", "maxLength": 40},
                    "tag": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                },
            }
        },
    },
}


class ItemServer:
    """The server and what it received; `script` holds answers that go before the ordinary ones."""

    def __init__(self) -> None:
        self.worlds: dict[str, dict[int, dict[str, Any]]] = {}
        self.received: list[tuple[str, str, dict[str, str], bytes]] = []
        self.script: deque[Any] = deque()
        """Statuses, (status, headers, text), or "cut" (the connection ends without an answer)."""
        self.url = ""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    """An answer leaves in one piece; in two, each would wait for an acknowledgement."""
    owner: ItemServer

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.owner.received.append((self.command, self.path, headers, body))
        planned = self.owner.script.popleft() if self.owner.script else None
        if planned == "cut":
            self.close_connection = True
            self.connection.shutdown(2)
        elif planned is not None:
            self.say(*(planned if isinstance(planned, tuple) else (planned, {}, f"planned {planned}")))
        else:
            self.ordinary(headers, body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

    def ordinary(self, headers: dict[str, str], body: bytes) -> None:
        url = urlsplit(self.path)
        path, query = url.path.removeprefix("/v1"), dict(parse_qsl(url.query))
        items = self.owner.worlds.setdefault(headers.get("x-session", ""), {})
        if path == "/reset":
            items.clear()
            self.say(204, {}, "")
        elif path == "/echo":
            self.json(200, {"headers": headers, "query": query})
        elif path == "/moved":
            self.say(302, {"location": "/v1/items"}, "")
        elif path == "/away":
            self.say(302, {"location": "http://127.0.0.2:9/v1/items?" + url.query}, "")
        elif path == "/items" and self.command == "POST":
            number = len(items) + 1
            items[number] = {"id": number, "tag": "red", **json.loads(body)}
            self.json(201, items[number])
        elif path == "/items":
            tag = query.get("tag")
            self.json(200, [item for item in items.values() if tag in (None, item["tag"])])
        else:
            self.one(items, path)

    def one(self, items: dict[int, dict[str, Any]], path: str) -> None:
        number = int(path.rsplit("/", 1)[-1])
        if number not in items:
            self.json(404, {"type": "about:blank", "detail": f"no item {number}"})
        elif self.command == "DELETE":
            del items[number]
            self.say(204, {}, "")
        else:
            self.json(200, items[number])

    def json(self, status: int, value: Any) -> None:
        self.say(status, {"content-type": "application/json"}, json.dumps(value, indent=2))

    def say(self, status: int, headers: dict[str, str], text: str) -> None:
        data = text.encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[ItemServer]:
    """A running server."""
    owner = ItemServer()
    handler = type("Bound", (Handler,), {"owner": owner})
    server = PatientServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    owner.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield owner
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
