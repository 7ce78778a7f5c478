"""Unknown and duplicate fields of a body are reported together."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.api_servers import ServerFactory
from support.embedded_apiserver import MAPS, MERGE, RawResponse, Server, config_map, definition
from support.field_ownership import APPLY
from support.polling import wait_until_equal

PODS = "/api/v1/namespaces/default/pods"
POD = b"""{
    "metadata": {"name": "a"},
    "spec": {
        "nope": 1, "nope": {"deep": 1, "deep": 2},
        "hostname": "x", "hostname": "y",
        "containers": [{"name": "c", "image": "i", "image": "i", "ports": [], "wrong": [{"a": 1}]}]
    }
}"""
QUOTED_COLONS = rb'{"metadata":{"name":"n"},"data":{"a":"\":","b":":\":"}}'
REPEATED_KEY = b"""metadata: {name: nn}
kind: ConfigMap
apiVersion: v1
data: {a: "1", a: "2"}
"""
OF_THE_POD = (
    'unknown field "spec.nope"',
    'duplicate field "spec.hostname"',
    'duplicate field "spec.containers[0].image"',
    'unknown field "spec.containers[0].wrong"',
)


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path / "server") as started:
        yield started


async def test_fields_of_a_built_in_kind_are_reported_in_their_order(server: Server) -> None:
    where = f"{PODS}?fieldValidation=Strict&dryRun=All"
    response = await server.request("POST", where, POD)
    assert response.status == 400
    text = 'Pod in version "v1" cannot be handled as a Pod: strict decoding error: '
    assert response.body["message"] == text + ", ".join(OF_THE_POD)
    assert (await server.request("GET", f"{PODS}/a")).status == 404


async def test_duplicates_of_a_custom_kind_precede_unknown_fields(server: Server) -> None:
    crd = definition("doubles", "Double")
    await server.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    where = "/apis/ex.io/v1/namespaces/default/doubles"

    async def status() -> int:
        return (await server.request("GET", where)).status

    await wait_until_equal(status, 200)
    body = b"""{
        "apiVersion": "ex.io/v1", "kind": "Double", "metadata": {"name": "a"},
        "spec": {"nope": 1, "size": 1, "size": 2, "nope": 2}
    }"""
    strict = f"{where}?fieldValidation=Strict"
    response = await server.request("POST", strict, body)
    assert response.status == 400
    assert response.body["message"].endswith(
        'strict decoding error: duplicate field "spec.size", duplicate field "spec.nope", '
        'unknown field "spec.nope"'
    )


async def test_an_apply_may_be_yaml_that_looks_like_json(server: Server) -> None:
    body = b'{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a",}, "data": {%s},}'
    where = f"{MAPS}/a?fieldManager=me"
    for validation in ("", "&fieldValidation=Strict"):
        path = f"{where}{validation}"
        applied = await server.request("PATCH", path, body % b'"a": "1",', content_type=APPLY)
        assert (applied.status, applied.body["data"]) in ((201, {"a": "1"}), (200, {"a": "1"}))
    twice = body % b'"a": "1", "a": "2",'
    strict = f"{where}&fieldValidation=Strict"
    refused = await server.request("PATCH", strict, twice, content_type=APPLY)
    assert refused.status == 400
    assert 'key "a" already set in map' in refused.body["message"]


@pytest.mark.parametrize(
    ("method", "content_type", "body", "text"),
    [
        ("POST", "application/json", b'{"metadata":{"name":"n"},"data":{"a":"1","a":"2"}}',
         'duplicate field "data.a"'),
        ("POST", "application/json", b'{"metadata" :{"name":"n"},"data" :{"a" :"1","a" :"2"}}',
         'duplicate field "data.a"'),
        ("POST", "application/json", b'{"metadata":{"name":"n"},"data":{"a":"1","\\u0061":"2"}}',
         'duplicate field "data.a"'),
        ("POST", "application/json", QUOTED_COLONS, ""),
        ("POST", "application/yaml", REPEATED_KEY, 'line 4: key "a" already set in map'),
        ("PATCH", MERGE, b'{"data":{"a":"1","a":"2"}}', 'duplicate field "data.a"'),
        ("PATCH", "application/strategic-merge-patch+json", b'{"data":{"a":"1","a":"2"}}',
         'duplicate field "data.a"'),
        ("PATCH", "application/json-patch+json",
         b'[{"op":"add","path":"/data","path":"/data/b","value":"x"}]',
         'json patch duplicate field "[0].path"'),
        ("PATCH", "application/json-patch+json",
         b'[{"op":"add","path":"/data/b","value":"x","more":1}]',
         'json patch unknown field "[0].more"'),
    ],
)  # fmt: skip
async def test_a_duplicate_field_is_reported_without_a_request(
    server: Server, method: str, content_type: str, body: bytes, text: str
) -> None:
    await server.create(MAPS, config_map("present"))
    path = f"{MAPS}/present" if method == "PATCH" else MAPS

    async def send(query: str) -> RawResponse:
        where = f"{path}?dryRun=All{query}"
        return await server.request(method, where, body, content_type=content_type)

    assert (await send("")).warnings == ([text] if text else [])
    assert (await send("&fieldValidation=Ignore")).warnings == []
    strict = await send("&fieldValidation=Strict")
    assert (strict.status < 400) == (not text)
    assert not text or text in strict.body["message"]
