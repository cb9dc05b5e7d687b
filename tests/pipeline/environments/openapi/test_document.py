"""From a document to tools: references, schemas, names, and the requests calls become."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from data import canonical
from pipeline.checks.calls import argument_problems
from pipeline.environments.openapi.document import Document, load_document
from pipeline.environments.openapi.operations import Operation, read_operations
from pipeline.environments.openapi.request import build_request
from pipeline.environments.openapi.schema import Side, plain_schema
from pipeline.environments.tools import ToolError
from pipeline.errors import ConfigError
from tests.pipeline.environments.openapi.api_server import DOCUMENT
from tests.pipeline.environments.openapi.big_document import big_document


def document(paths: dict[str, Any] | None = None, *, version: str = "3.1.0", **components: Any) -> Document:
    value = {"openapi": version, "paths": paths or {}, "components": components}
    return Document(value, where="api.yaml")


def schema(node: Any, *, side: Side = Side.REQUEST, **schemas: Any) -> dict[str, Any]:
    return plain_schema(document(schemas=schemas), node, side=side, where="test")


def one(item: dict[str, Any], *, path: str = "/a", method: str = "get", **components: Any) -> Operation:
    return next(iter(read_operations(document({path: {method: item}}, **components)).values()))


def parameters(operation: Operation) -> dict[str, Any]:
    return canonical.loads(operation.spec.parameters)


def test_a_large_document_becomes_sound_tools() -> None:
    operations = read_operations(Document(big_document(), where="big.yaml"))
    assert len(operations) == 60
    create = parameters(operations["createOrder"])
    assert create["required"] == ["name"]
    assert list(create["properties"]) == ["name", "address", "total", "customer_id", "notes"]
    assert create["properties"]["total"]["properties"]["amount"] == {"type": "number", "exclusiveMinimum": 0}
    assert create["properties"]["notes"]["items"] == {"$ref": "#/$defs/Note"}
    good = {"name": "a", "notes": [{"text": "b", "replies": [{"text": "c"}]}], "customer_id": None}
    assert argument_problems(good, create) == []
    bad = {"name": "", "notes": [{"replies": [{"text": 3}]}], "total": {"currency": "USD"}}
    assert len(argument_problems(bad, create)) == 3
    update = parameters(operations["updateOrder"])
    assert update["required"] == ["id", "name"]
    answer = canonical.loads(operations["getOrder"].response)
    assert {"id", "created_at"} <= answer["properties"].keys()
    request = build_request(operations["listOrders"], {"filter": {"name": "a b", "min": 2.5}})
    assert request.query == "filter[name]=a%20b&filter[min]=2.5"
    assert operations["listOrders"].reads and not operations["deleteOrder"].reads
    assert max(len(item.spec.parameters) for item in operations.values()) < 1200


def test_references_nest_recur_and_merge() -> None:
    node = {"type": "object", "properties": {"child": {"$ref": "#/components/schemas/Node"}}}
    found = schema({"$ref": "#/components/schemas/Node"}, Node=node)
    assert found["properties"]["child"] == {"$ref": "#/$defs/Node"}
    assert found["$defs"]["Node"] == {"type": "object", "properties": {"child": {"$ref": "#/$defs/Node"}}}
    beside = {"$ref": "#/components/schemas/A", "description": "Said here."}
    assert schema(
        beside, A={"$ref": "#/components/schemas/B"}, B={"type": "string", "description": "There."}
    ) == {
        "type": "string",
        "description": "Said here.",
    }
    mutual = schema(
        {"$ref": "#/components/schemas/A"},
        A={"properties": {"b": {"$ref": "#/components/schemas/B"}}},
        B={"properties": {"a": {"$ref": "#/components/schemas/A"}}},
    )
    assert mutual["properties"]["b"]["properties"]["a"] == {"$ref": "#/$defs/A"}
    assert "A" in mutual["$defs"]


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ({"type": "integer", "format": "int32", "nullable": True}, {"type": ["integer", "null"]}),
        (
            {"type": "string", "enum": ["a"], "nullable": True},
            {"type": ["string", "null"], "enum": ["a", None]},
        ),
        (
            {
                "type": "number",
                "minimum": 0,
                "exclusiveMinimum": True,
                "maximum": 5,
                "exclusiveMaximum": False,
            },
            {"type": "number", "exclusiveMinimum": 0, "maximum": 5},
        ),
        ({"type": "string", "title": "T", "example": "x", "xml": {}, "x-a": 1}, {"type": "string"}),
        (True, {}),
        (
            {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}, {"required": ["a"]}]},
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        ),
        (
            {"allOf": [{"type": "integer"}, {"type": "string"}]},
            {"allOf": [{"type": "integer"}, {"type": "string"}]},
        ),
        (
            {"oneOf": [{"type": "integer", "default": 3}, {"type": "null"}], "description": "a\nb\n\nc"},
            {"oneOf": [{"type": "integer", "default": 3}, {"type": "null"}], "description": "a b"},
        ),
    ],
)
def test_schemas_are_translated(node: Any, expected: dict[str, Any]) -> None:
    assert schema(node) == expected


def test_read_only_and_write_only_stand_on_their_side() -> None:
    node = {
        "type": "object",
        "required": ["id", "password"],
        "properties": {
            "id": {"type": "string", "readOnly": True},
            "password": {"$ref": "#/components/schemas/Secret"},
        },
    }
    secret = {"type": "string", "writeOnly": True}
    assert list(schema(node, Secret=secret)["properties"]) == ["password"]
    answer = schema(node, side=Side.RESPONSE, Secret=secret)
    assert (list(answer["properties"]), answer["required"]) == (["id"], ["id"])


def test_hostile_documents_are_refused() -> None:
    doubled = {
        f"S{number}": {"properties": {side: {"$ref": f"#/components/schemas/S{number + 1}"} for side in "ab"}}
        for number in range(30)
    }
    with pytest.raises(ConfigError, match="more than 20000 parts"):
        schema({"$ref": "#/components/schemas/S0"}, **doubled, S30={"type": "string"})
    with pytest.raises(ConfigError, match="leads in a circle"):
        schema({"$ref": "#/components/schemas/A"}, A={"$ref": "#/components/schemas/A"})
    with pytest.raises(
        ConfigError, match=r"refers to 'https://evil.example/a.json#/A', and nothing is fetched"
    ):
        schema({"$ref": "https://evil.example/a.json#/A"})
    with pytest.raises(ConfigError, match=r"'file:///etc/passwd', and nothing is fetched"):
        schema({"$ref": "file:///etc/passwd"})
    with pytest.raises(ConfigError, match="there is no 'Nope'"):
        schema({"$ref": "#/components/schemas/Nope"})


def test_other_documents_are_read_where_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "main.yaml").write_text(
        "openapi: 3.0.0\npaths:\n  /a:\n    get:\n      parameters:\n"
        "        - {name: k, in: query, schema: {$ref: './common.json#/Kind'}}\n"
        "      responses: {200: {description: ok}}\n"
    )
    (tmp_path / "copy.json").write_text('{"Kind": {"$ref": "#/Deep/x~1y"}, "Deep": {"x/y": {"enum": [1]}}}')
    found = load_document(tmp_path / "main.yaml", refs={"common.json": tmp_path / "copy.json"})
    assert parameters(read_operations(found)["get_a"])["properties"] == {"k": {"enum": [1]}}
    with pytest.raises(ConfigError, match=r"refs=\{'./common.json'"):
        read_operations(load_document(tmp_path / "main.yaml"))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"swagger": "2.0", "paths": {}}, "version '2.0'; 3.0 and 3.1 are read"),
        ({"paths": {}}, "version 'unknown'"),
        ([], "is no OpenAPI document"),
    ],
)
def test_other_versions_are_refused(value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Document(value, where="api.yaml")


def test_names_are_made_unique_in_document_order() -> None:
    same: dict[str, Any] = {"operationId": "get item!"}
    paths = {
        "/a": {"get": same, "post": same},
        "/b/{x}": {"parameters": [x("x")], "get": {}},
        "/c": {"get": same},
    }
    names = ["get_item", "get_b_x", "get_item_2", "get_item_3"]
    assert sorted(read_operations(document(paths))) == sorted(names)
    chosen = read_operations(document(paths), chosen=["get_b_x", "get_item"])
    assert list(chosen) == ["get_b_x", "get_item"]
    with pytest.raises(ConfigError, match=r"no operation \['nope'\]; it has: get_item,"):
        read_operations(document(paths), chosen=["nope"])
    taken = {"/a": {"get": {"operationId": "a"}, "put": {"operationId": "a"}, "post": {"operationId": "a_2"}}}
    assert sorted(read_operations(document(taken))) == ["a", "a_2", "a_3"]


def x(name: str, place: str = "path", **more: Any) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}, **more}


def test_arguments_of_one_name_are_told_apart() -> None:
    body = {"content": {"application/json": {"schema": {"properties": {"id": {"type": "integer"}}}}}}
    operation = one(
        {
            "parameters": [x("id"), x("id", "query"), x("X-Trace", "header"), x("Accept", "header")],
            "requestBody": body,
        },
        path="/a/{id}",
        method="post",
    )
    names = ["path_id", "query_id", "X-Trace", "body_id"]
    assert list(parameters(operation)["properties"]) == names
    assert parameters(operation)["required"] == ["path_id"]
    request = build_request(operation, {"path_id": "p", "query_id": "q", "X-Trace": "t", "body_id": 1})
    assert (request.path, request.query, request.headers["x-trace"]) == ("/a/p", "id=q", "t")
    assert request.content == b'{"id":1}'
    assert build_request(operation, {"path_id": "p"}).content is None


def test_an_operations_own_parameter_replaces_its_paths_and_credentials_are_not_shown() -> None:
    path = {
        "parameters": [x("a", "query"), x("b", "query")],
        "get": {"parameters": [x("a", "query", required=True)]},
    }
    found = read_operations(document({"/p": path}))["get_p"]
    assert parameters(found)["required"] == ["a"]
    keyed = copy.deepcopy(DOCUMENT)
    keyed["paths"]["/items"]["get"]["parameters"].append(x("X-Api-Key", "header"))
    listed = read_operations(Document(keyed, where="keyed"))["listItems"]
    assert list(parameters(listed)["properties"]) == ["tag"]
    assert listed.security == (("key",),)


STYLES = [
    ("path", "simple", False, [1, 2], "/a/1,2", ""),
    ("path", "simple", True, {"k": "v w"}, "/a/k=v%20w", ""),
    ("path", "simple", False, {"k": "v"}, "/a/k,v", ""),
    ("path", "label", False, [1, 2], "/a/.1,2", ""),
    ("path", "label", True, [1, 2], "/a/.1.2", ""),
    ("path", "matrix", False, [1, 2], "/a/;p=1,2", ""),
    ("path", "matrix", True, [1, 2], "/a/;p=1;p=2", ""),
    ("path", "matrix", True, {"k": 1}, "/a/;k=1", ""),
    ("path", "simple", False, "x/../y?z", "/a/x%2F..%2Fy%3Fz", ""),
    ("query", "form", True, [1, "b&c"], "/a", "p=1&p=b%26c"),
    ("query", "form", False, [1, "b,c"], "/a", "p=1,b%2Cc"),
    ("query", "form", True, {"k": 1, "l": True}, "/a", "k=1&l=true"),
    ("query", "form", False, {"k": 1}, "/a", "p=k,1"),
    ("query", "spaceDelimited", False, [1, 2], "/a", "p=1%202"),
    ("query", "pipeDelimited", False, [1, 2], "/a", "p=1%7C2"),
    ("query", "deepObject", True, {"k": {"l": [1, 2]}}, "/a", "p[k][l]=1&p[k][l]=2"),
    ("query", "form", True, None, "/a", "p="),
    ("query", "form", True, 2.5, "/a", "p=2.5"),
]


@pytest.mark.parametrize(("place", "style", "explode", "value", "path", "query"), STYLES)
def test_every_style_is_spoken(
    place: str, style: str, explode: bool, value: Any, path: str, query: str
) -> None:
    item = {
        "name": "p",
        "in": place,
        "required": place == "path",
        "style": style,
        "explode": explode,
        "schema": {},
    }
    operation = one({"parameters": [item]}, path="/a/{p}" if place == "path" else "/a")
    request = build_request(operation, {"p": value})
    assert (request.path, request.query) == (path, query)


def test_headers_cookies_and_json_parameters() -> None:
    content = {"application/json": {"schema": {"type": "object"}}}
    items = [
        {"name": "L", "in": "header", "schema": {"type": "array"}},
        {"name": "c", "in": "cookie", "schema": {"type": "string"}},
        {"name": "j", "in": "query", "content": content},
        {"name": "r", "in": "query", "allowReserved": True, "schema": {"type": "string"}},
    ]
    operation = one({"parameters": items})
    request = build_request(operation, {"L": [1, "a"], "c": "x;y", "j": {"a": 1}, "r": "a/b:c&d"})
    assert (request.headers["l"], request.headers["cookie"]) == ("1,a", "c=x%3By")
    assert request.query == "j=%7B%22a%22%3A1%7D&r=a/b:c%26d"


@pytest.mark.parametrize("value", ["", ".", "..", "..."])
def test_a_value_cannot_leave_its_path_segment(value: str) -> None:
    operation = one({"parameters": [x("id")]}, path="/a/{id}/b")
    with pytest.raises(ToolError, match="cannot stand in a path"):
        build_request(operation, {"id": value})


def test_half_a_character_is_the_agents_mistake() -> None:
    operation = one({"parameters": [x("q", "query")]})
    with pytest.raises(ToolError, match="cannot be sent"):
        build_request(operation, {"q": "\ud800"})


def test_a_value_cannot_start_a_header() -> None:
    operation = one({"parameters": [x("H", "header")]})
    with pytest.raises(ToolError, match="printable ASCII"):
        build_request(operation, {"H": "a\r\nX-Admin: 1"})


def body(media: str, node: dict[str, Any], *, required: bool = True) -> Operation:
    content = {"content": {media: {"schema": node}}, "required": required}
    return one({"requestBody": content}, method="post")


def test_bodies_travel_as_their_media_type_says() -> None:
    node = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}, "l": {}, "o": {}}}
    values = {"n": 1, "l": ["a b", "c"], "o": {"k": 1}}
    form = build_request(body("application/x-www-form-urlencoded", node), values)
    assert form.content == b"n=1&l=a%20b&l=c&o=%7B%22k%22%3A1%7D"
    assert form.headers["content-type"] == "application/x-www-form-urlencoded"
    problem = build_request(body("application/merge-patch+json; charset=utf-8", node), values)
    assert problem.headers["content-type"] == "application/merge-patch+json; charset=utf-8"
    file = {"properties": {"file": {"type": "string", "format": "binary"}, "o": {}}}
    parts = build_request(body("multipart/form-data", file), {"file": "hello", "o": {"k": 1}}).files
    assert parts == (
        ("file", ("file", b"hello", "application/octet-stream")),
        ("o", (None, b'{"k":1}', "application/json")),
    )
    text = body("text/plain", {"type": "string"})
    assert build_request(text, {"body": "h\u00e9"}).content == "h\u00e9".encode()
    listed = body("application/json", {"type": "array", "items": {"type": "integer"}})
    assert parameters(listed)["required"] == ["body"]
    assert build_request(listed, {"body": [1]}).content == b"[1]"
    with pytest.raises(ConfigError, match="its body is application/xml; read are application/json"):
        body("application/xml", {})


def test_a_choice_of_bodies_is_one_argument() -> None:
    node = {"oneOf": [{"required": ["a"], "properties": {"a": {}}}, {"required": ["b"]}]}
    operation = body("application/json", node)
    assert parameters(operation)["properties"]["body"]["oneOf"] == node["oneOf"]
    assert argument_problems({"body": {"c": 1}}, parameters(operation))
    assert not argument_problems({"body": {"b": 1}}, parameters(operation))


def test_a_path_and_its_parameters_must_agree() -> None:
    with pytest.raises(ConfigError, match=r"\['id'\] are not both in the path"):
        one({}, path="/a/{id}")
    with pytest.raises(ConfigError, match="parameter 'p' is in 'body'"):
        one({"parameters": [{"name": "p", "in": "body"}]})
    with pytest.raises(ConfigError, match="no JSON Schema"):
        one({"parameters": [{"name": "p", "in": "query", "schema": {"type": "strange"}}]})
