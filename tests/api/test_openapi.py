"""The OpenAPI document: complete, as committed, and changed without breaking clients."""

import copy
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs
import pytest
from support.openapi_changes import breaking_changes
from tools import openapi as tool

from batholith.api.serving.app import document
from batholith.api.serving.openapi import TAGS

Document = dict[str, Any]


def operations() -> Iterator[tuple[str, Document]]:
    for path, item in document()["paths"].items():
        for method, operation in item.items():
            yield f"{method.upper()} {path}", operation


OPERATIONS = dict(operations())
JSON = "application/json"


def test_the_committed_document_is_that_of_the_application() -> None:
    assert tool.PAGE.read_text() == tool.rendered(), "run `make openapi`"


def test_operations_have_readable_unique_ids() -> None:
    ids = [operation["operationId"] for operation in OPERATIONS.values()]
    assert sorted(ids) == sorted(set(ids))
    assert all(re.fullmatch("[a-z]+(_[a-z]+)*", each) for each in ids), ids


@pytest.mark.parametrize("where", OPERATIONS)
def test_operations_are_described(where: str) -> None:
    operation = OPERATIONS[where]
    assert operation["summary"]
    assert operation["description"]
    (tag,) = operation["tags"]
    assert tag in TAGS
    responses = operation["responses"]
    assert any(status < "4" for status in responses)
    assert {"401", "403", "422", "429", "502", "503"} <= set(responses)
    assert ("413" in responses) == ("requestBody" in operation)
    assert "400" in responses or "requestBody" not in operation
    for status, response in responses.items():
        assert response["description"]
        if status >= "4":
            assert set(response["content"]) == {"application/problem+json"}, status
            schema = response["content"]["application/problem+json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/Problem"}


def test_all_references_are_defined_and_used() -> None:
    text = json.dumps(document())
    used = set(re.findall('"#/components/schemas/([^"]+)"', text))
    assert used == set(document()["components"]["schemas"])


def test_a_bearer_token_is_required() -> None:
    assert document()["security"] == [{"bearer": []}]
    scheme = document()["components"]["securitySchemes"]["bearer"]
    assert scheme == {"type": "http", "scheme": "bearer"}
    assert document()["openapi"].startswith("3.1.")


def resolve(schema: Document) -> Document:
    while "$ref" in schema:
        schema = document()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


@pytest.mark.parametrize(
    "where",
    [
        where
        for where, operation in OPERATIONS.items()
        if JSON in operation.get("requestBody", {}).get("content", {})
    ],
)
def test_bodies_have_valid_examples(where: str) -> None:
    content = OPERATIONS[where]["requestBody"]["content"][JSON]
    found = [each["value"] for each in content.get("examples", {}).values()]
    alternatives = content["schema"].get("anyOf", [content["schema"]])
    for schema in map(resolve, alternatives):
        found += schema.get("examples", ())
    assert found, "bodies have examples"
    validator = jsonschema_rs.validator_for(
        {**content["schema"], "components": document()["components"]}
    )
    for example in found:
        validator.validate(example)


# Breaking changes


BASE: Document = {
    "paths": {
        "/jobs": {
            "get": {
                "operationId": "list_jobs",
                "parameters": [
                    {"name": "limit", "in": "query", "schema": {"type": "integer", "maximum": 9}},
                    {
                        "name": "phase",
                        "in": "query",
                        "schema": {"type": "array", "items": {"$ref": "#/components/schemas/P"}},
                    },
                ],
                "responses": {
                    "200": {
                        "headers": {"ETag": {}},
                        "content": {
                            "application/json": {"schema": {"$ref": "#/components/schemas/Out"}}
                        },
                    },
                    "404": {},
                },
            },
            "post": {
                "operationId": "create_job",
                "requestBody": {
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/In"}}}
                },
                "responses": {"201": {}},
            },
        }
    },
    "components": {
        "schemas": {
            "P": {"type": "string", "enum": ["Pending", "Running"]},
            "In": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string", "maxLength": 63},
                    "size": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                    "phase": {"$ref": "#/components/schemas/P"},
                },
                "additionalProperties": False,
            },
            "Out": {
                "type": "object",
                "required": ["items", "next"],
                "properties": {
                    "items": {"type": "array", "items": {"$ref": "#/components/schemas/Item"}},
                    "next": {"type": "string"},
                },
            },
            "Item": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "phase": {"type": "string"}},
            },
        }
    },
}


def get(changed: Document) -> Document:
    found: Document = changed["paths"]["/jobs"]["get"]
    return found


def schema(changed: Document, name: str) -> Document:
    found: Document = changed["components"]["schemas"][name]
    return found


Edit = Callable[[Document], object]

BREAKING: dict[str, tuple[Edit, str]] = {
    "path": (lambda d: d["paths"].pop("/jobs"), "path removed"),
    "operation": (lambda d: d["paths"]["/jobs"].pop("post"), "operation removed"),
    "operationId": (lambda d: get(d).update(operationId="jobs"), "operationId changed"),
    "parameter": (lambda d: get(d)["parameters"].pop(), "parameter phase removed"),
    "required parameter": (
        lambda d: get(d)["parameters"].append(
            {"name": "x", "in": "query", "required": True, "schema": {}}
        ),
        "new required parameter x",
    ),
    "parameter required": (
        lambda d: get(d)["parameters"][0].update(required=True),
        "parameter limit is required now",
    ),
    "type of a parameter": (
        lambda d: get(d)["parameters"][0]["schema"].update(type="boolean"),
        "type integer is not accepted any more",
    ),
    "limit": (lambda d: get(d)["parameters"][0]["schema"].update(maximum=8), "maximum lowered"),
    "new limit": (
        lambda d: get(d)["parameters"][0]["schema"].update(minimum=1), "minimum raised",
    ),
    "enum value": (lambda d: schema(d, "P")["enum"].pop(), "value Running removed"),
    "new enum": (
        lambda d: schema(d, "In")["properties"]["name"].update(enum=["a"]),
        "limited to some values",
    ),
    "pattern": (
        lambda d: schema(d, "In")["properties"]["name"].update(pattern="a+"), "pattern changed",
    ),
    "body required": (
        lambda d: d["paths"]["/jobs"]["post"]["requestBody"].update(required=True),
        "the body is required now",
    ),
    "required field": (
        lambda d: schema(d, "In")["required"].append("size"), "size is required now",
    ),
    "request field": (
        lambda d: schema(d, "In")["properties"].pop("size"), "size is not accepted any more",
    ),
    "nullable field": (
        lambda d: schema(d, "In")["properties"].update(size={"type": "integer"}),
        "type null is not accepted any more",
    ),
    "status": (lambda d: get(d)["responses"].pop("200"), "status removed"),
    "header": (lambda d: get(d)["responses"]["200"].pop("headers"), "header ETag removed"),
    "content": (
        lambda d: get(d)["responses"]["200"].update(content={"text/plain": {}}),
        "content application/json removed",
    ),
    "response field": (lambda d: schema(d, "Item")["properties"].pop("phase"), "phase removed"),
    "field optional": (
        lambda d: schema(d, "Out")["required"].remove("next"), "next may be missing",
    ),
    "field nullable": (
        lambda d: schema(d, "Out")["properties"].update(
            next={"anyOf": [{"type": "string"}, {"type": "null"}]}
        ),
        "may be null now",
    ),
    "field of another type": (
        lambda d: schema(d, "Item")["properties"]["name"].update(type="integer"),
        "may be integer now",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKING)
def test_each_kind_of_breaking_change_is_found(name: str) -> None:
    edit, expected = BREAKING[name]
    changed = copy.deepcopy(BASE)
    edit(changed)
    found = breaking_changes(BASE, changed)
    assert len(found) >= 1 and all(expected in each for each in found), found


HARMLESS: dict[str, Edit] = {
    "nothing": lambda d: None,
    "path": lambda d: d["paths"].update({"/queues": {}}),
    "parameter": lambda d: get(d)["parameters"].append({"name": "x", "in": "query", "schema": {}}),
    "request field": lambda d: schema(d, "In")["properties"].update(new={"type": "string"}),
    "response field": lambda d: schema(d, "Item")["properties"].update(new={"type": "string"}),
    "enum value": lambda d: schema(d, "P")["enum"].append("Failed"),
    "limit": lambda d: get(d)["parameters"][0]["schema"].update(maximum=10),
    "removed limit": lambda d: get(d)["parameters"][0]["schema"].pop("maximum"),
    "required response field": lambda d: schema(d, "Item")["required"].append("phase"),
    "error status": lambda d: get(d)["responses"].update({"410": {}}),
    "description": lambda d: get(d).update(summary="x", description="y"),
    "type of a request field": lambda d: schema(d, "In")["properties"].update(
        name={"anyOf": [{"type": "string", "maxLength": 63}, {"type": "integer"}]}
    ),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_other_changes_are_accepted(name: str) -> None:
    changed = copy.deepcopy(BASE)
    HARMLESS[name](changed)
    assert breaking_changes(BASE, changed) == []


def test_a_breaking_change_is_not_written_unless_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "openapi.json"
    richer = copy.deepcopy(document())
    richer["paths"]["/v1/removed"] = {}
    page.write_text(json.dumps(richer))
    monkeypatch.setattr(tool, "PAGE", page)
    monkeypatch.setattr("sys.argv", ["openapi"])
    with pytest.raises(SystemExit, match="nothing is written"):
        tool.main()
    assert "/v1/removed: path removed" in capsys.readouterr().out
    assert tool.committed() == richer
    monkeypatch.setattr("sys.argv", ["openapi", "--break"])
    tool.main()
    assert page.read_text() == tool.rendered()
