"""OpenAPI v2, which describes all kinds in one document."""

import re
from typing import Any

import msgspec
from support.embedded_apiserver import DEFINITIONS, Server, definition
from support.polling import wait_until_true

from batholith.local.apiserver.builtin.kinds import BUILT_IN, COMPUTED
from batholith.local.apiserver.discovery import openapi_protobuf, openapi_v2

Json = dict[str, Any]
_HEAD = ("apiVersion", "kind", "metadata")


def with_schema(schema: Json) -> Json:
    crd = definition()
    crd["spec"]["versions"][0]["schema"] = {"openAPIV3Schema": schema}
    return crd


async def published(server: Server, crd: Json) -> Json:
    """Create a definition; return its schema in the document, which a real server updates late."""
    await server.install_crds(crd)
    group = ".".join(reversed(crd["spec"]["group"].split(".")))
    name = f"{group}.v1.{crd['spec']['names']['kind']}"

    async def is_published() -> bool:
        return name in (await server.get("/openapi/v2"))["definitions"]

    await wait_until_true(is_published)
    found: Json = (await server.get("/openapi/v2"))["definitions"][name]
    return found


STRING, OBJECT = {"type": "string"}, {"type": "object"}
PRESERVE, EMBEDDED = "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"
FIELDS: dict[str, Json] = {
    "plain": {"type": "string", "description": "A text.", "enum": ["a", "b"], "default": "a"},
    "nullable": {"type": "object", "nullable": True, "properties": {"a": STRING}},
    "preserved": {"type": "object", PRESERVE: True, "properties": {"a": STRING}},
    "any": {"type": "object", "properties": {"a": STRING}, "anyOf": [{"required": ["a"]}]},
    "either": {"x-kubernetes-int-or-string": True},
    "items": {"type": "array", "items": {"type": "object", "nullable": True}},
    "map": {"type": "object", "additionalProperties": {"type": "integer", "format": "int64"}},
    "inner": {
        "type": "object",
        "required": ["a", "b"],
        "properties": {"a": STRING, "b": {"type": "string", "nullable": True}},
    },
    "embedded": {"type": "object", EMBEDDED: True, "properties": {"spec": OBJECT}},
    "preserved-embedded": {"type": "object", EMBEDDED: True, PRESERVE: True},
}


async def test_schemas_of_custom_kinds_are_converted_as_by_kube_apiserver(server: Server) -> None:
    schema = {"description": "Foo.", "type": "object", "properties": FIELDS}
    found = await published(server, with_schema(schema))
    assert found["description"] == "Foo."
    properties = found["properties"]
    metadata = "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    assert properties["metadata"]["$ref"] == metadata
    plain = {key: each for key, each in FIELDS["plain"].items() if key != "default"}
    assert properties["plain"] == plain
    assert properties["nullable"] == {}
    assert properties["preserved"] == {PRESERVE: True}
    assert properties["any"] == {"type": "object", "properties": {"a": STRING}}
    assert properties["either"] == FIELDS["either"]
    assert properties["items"] == {"type": "array", "items": {}}
    assert properties["map"] == FIELDS["map"]
    assert properties["inner"]["required"] == ["a"]
    assert properties["embedded"]["properties"].keys() == {*_HEAD, "spec"}
    assert properties["preserved-embedded"] == {EMBEDDED: True, PRESERVE: True}


async def test_a_kind_that_preserves_unknown_fields_has_no_properties(server: Server) -> None:
    schema = {"type": "object", PRESERVE: True, "properties": {"spec": OBJECT}}
    found = await published(server, with_schema(schema))
    gvk = found.pop("x-kubernetes-group-version-kind")
    assert gvk == [{"group": "ex.io", "kind": "Foo", "version": "v1"}]
    assert found == {"type": "object"}


async def test_a_deleted_definition_disappears(server: Server) -> None:
    crd = with_schema(OBJECT)
    await published(server, crd)
    await server.request("DELETE", f"{DEFINITIONS}/{crd['metadata']['name']}")

    async def is_removed() -> bool:
        document = await server.get("/openapi/v2")
        return not any(name.endswith(".v1.Foo") for name in document["definitions"])

    await wait_until_true(is_removed)


async def test_what_has_not_changed_is_not_sent_again(server: Server) -> None:
    tag = (await server.request("GET", "/openapi/v2")).headers["Etag"]
    again = await server.request("GET", "/openapi/v2", headers={"If-None-Match": tag})
    assert again.status == 304


def test_every_reference_can_be_resolved() -> None:
    document = openapi_v2.document((*BUILT_IN, *COMPUTED))
    text = msgspec.json.encode(document).decode()
    names = set(re.findall(r'"\$ref":"([^"]+)"', text))
    assert names == {each for each in names if each.startswith("#/definitions/")}
    assert {name.removeprefix("#/definitions/") for name in names} <= document["definitions"].keys()
    assert '"oneOf":[' not in text


def test_operations_have_bodies_and_responses_of_version_2() -> None:
    paths = openapi_v2.document(BUILT_IN)["paths"]
    create = paths["/api/v1/namespaces/{namespace}/configmaps"]["post"]
    body = create["parameters"][-1]
    reference = {"$ref": "#/definitions/io.k8s.api.core.v1.ConfigMap"}
    assert body == {"name": "body", "in": "body", "schema": reference, "required": True}
    assert create["responses"]["200"]["schema"] == reference
    assert "application/json" in create["consumes"]
    listing = paths["/api/v1/namespaces/{namespace}/configmaps"]["get"]
    assert {"name": "limit", "in": "query", "type": "integer", "uniqueItems": True} in listing[
        "parameters"
    ]


PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


async def test_clients_choose_json_or_protobuf(server: Server) -> None:
    """What is in the latter, a Go client reads in `tests/realkube/test_go_client.py`."""
    admin = {"Authorization": f"Bearer {server.tokens['admin']}"}
    for accept, served in (
        (PROTOBUF, PROTOBUF),
        (PROTOBUF.replace("v2.v1", "v2@v1"), PROTOBUF),  # as client-go writes it
        (f"application/json,{PROTOBUF};q=0.5", "application/json"),
        ("*/*", "application/json"),
    ):
        headers = admin | {"Accept": accept}
        async with server.session.get(f"{server.url}/openapi/v2", headers=headers) as found:
            assert (found.status, found.headers["Content-Type"]) == (200, served), accept
            assert b"PodTemplateSpec" in await found.read()
    refused = await server.request("GET", "/openapi/v2", headers={"Accept": "text/html"})
    assert refused.status == 406


def test_values_of_a_wrong_type_are_left_out_of_protobuf() -> None:
    """Another API server may have published them."""

    def encoded(schema: object) -> bytes:
        return openapi_protobuf.encode({"paths": 1, "definitions": {"K": schema}})

    wrong = {"description": 7, "maximum": "1", "required": {}, "properties": 1, "minimum": 10**400}
    assert encoded({**wrong, "title": "T"}) == encoded({"title": "T", "properties": {}})
    parameters = [{"in": []}, 1, {"in": "query"}]
    get = {"get": {"parameters": parameters, "responses": {"200": 1}}}
    assert openapi_protobuf.encode({"paths": {"/a": get}, "definitions": []})
