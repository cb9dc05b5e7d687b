"""A large document of the kind companies publish: 12 resources, 5 operations each, all by reference."""

from __future__ import annotations

from typing import Any

RESOURCES = (
    *("customer", "order", "invoice", "product", "warehouse", "shipment"),
    *("refund", "ticket", "employee", "supplier", "contract", "campaign"),
)


def big_document() -> dict[str, Any]:
    """60 operations, 3.1, with paths, schemas, parameters, bodies and answers by reference."""
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = dict(SHARED)
    for number, name in enumerate(RESOURCES):
        title = name.capitalize()
        schemas[title] = _schema(title, RESOURCES[number - 1].capitalize())
        paths[f"/{name}s"] = {
            "get": _operation(f"list{title}s", parameters=_LIST_PARAMETERS, answer=_page(title)),
            "post": _operation(f"create{title}", body=title, answer=_ref("schemas", title), status="201"),
        }
        paths[f"/{name}s/{{id}}"] = {
            "parameters": [_ref("parameters", "Id")],
            "get": _operation(f"get{title}", answer=_ref("schemas", title)),
            "patch": _operation(f"update{title}", body=title, answer=_ref("schemas", title)),
            "delete": _operation(f"delete{title}", status="204"),
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Back office", "version": "7"},
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "parameters": PARAMETERS,
            "schemas": schemas,
        },
    }


def _ref(kind: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/components/{kind}/{name}"}


def _operation(
    name: str,
    *,
    parameters: list[Any] | None = None,
    body: str = "",
    answer: dict[str, Any] | None = None,
    status: str = "200",
) -> dict[str, Any]:
    content = {"application/json": {"schema": answer}} if answer else {}
    made: dict[str, Any] = {
        "operationId": name,
        "summary": f"The operation {name}.",
        "responses": {status: {"description": "ok", "content": content}, "404": {"description": "absent"}},
    }
    if parameters:
        made["parameters"] = parameters
    if body:
        schema = {"content": {"application/json": {"schema": _ref("schemas", body)}}, "required": True}
        made["requestBody"] = schema
    return made


def _schema(title: str, other: str) -> dict[str, Any]:
    return {
        "allOf": [
            _ref("schemas", "Base"),
            {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string", "minLength": 1, "description": f"Name of the {title}."},
                    "address": _ref("schemas", "Address"),
                    "total": _ref("schemas", "Money"),
                    f"{other.lower()}_id": {"type": ["string", "null"]},
                    "notes": {"type": "array", "items": _ref("schemas", "Note")},
                },
            },
        ]
    }


def _page(title: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": _ref("schemas", title)},
            "next": {"type": ["string", "null"]},
        },
    }


_LIST_PARAMETERS = [
    {"$ref": "#/components/parameters/Limit"},
    {"$ref": "#/components/parameters/Filter"},
]
PARAMETERS: dict[str, Any] = {
    "Id": {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "format": "uuid"}},
    "Limit": {
        "name": "limit",
        "in": "query",
        "schema": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    },
    "Filter": {
        "name": "filter",
        "in": "query",
        "style": "deepObject",
        "schema": {"type": "object", "properties": {"name": {"type": "string"}, "min": {"type": "number"}}},
    },
}
SHARED: dict[str, Any] = {
    "Base": {
        "type": "object",
        "required": ["id"],
        "properties": {
            "id": {"type": "string", "readOnly": True},
            "created_at": {"type": "string", "format": "date-time", "readOnly": True},
        },
    },
    "Address": {
        "type": "object",
        "required": ["city"],
        "properties": {"city": {"type": "string"}, "country": {"enum": ["DE", "FR", "IT"]}},
    },
    "Money": {
        "type": "object",
        "properties": {"amount": {"type": "number", "exclusiveMinimum": 0}, "currency": {"const": "EUR"}},
    },
    "Note": {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "replies": {"type": "array", "items": {"$ref": "#/components/schemas/Note"}},
        },
    },
}
