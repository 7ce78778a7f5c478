"""A few bytes must not crash the server, nor block it for long."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.embedded_apiserver import MAPS, EmbeddedServer, config_map, embedded_server

LAUGHS = b"a: &a [x,x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 10)) for i in range(9)
)
DEEP = {
    "sequence": b"- " * 100_000,
    "flow": b"[" * 100_000 + b"]" * 100_000,
    "mapping": b"{a: " * 100_000 + b"}" * 100_000,
    "laughs": LAUGHS,
    "itself": b"metadata: &m {name: x, annotations: *m}",
}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with embedded_server(tmp_path) as server:
        yield server


@pytest.mark.process
@pytest.mark.parametrize("body", DEEP.values(), ids=DEEP)
async def test_yaml_that_expands_exponentially_is_rejected(
    server: EmbeddedServer, body: bytes
) -> None:
    response = await server.request("POST", MAPS, body, content_type="application/yaml")
    assert (response.status, response.body["reason"]) == (400, "BadRequest")


async def test_a_patch_with_doubling_copies_is_rejected(server: EmbeddedServer) -> None:
    await server.create(MAPS, config_map("p"))
    start = {"op": "add", "path": "/data/a", "value": ["x"] * 10}
    double = {"op": "copy", "from": "/data/a", "path": "/data/a/-"}
    response = await server.request(
        "PATCH",
        f"{MAPS}/p",
        [start] + [double] * 60,
        content_type="application/json-patch+json",
    )
    assert (response.status, response.body["reason"]) == (413, "RequestEntityTooLarge")


async def test_yaml_of_usual_depth_is_decoded(server: EmbeddedServer) -> None:
    body = b"metadata: {name: plain, labels: {a: b}}\ndata:\n  k: |\n    - {}\n"
    response = await server.request("POST", MAPS, body, content_type="application/yaml")
    assert (response.status, response.body["data"]) == (201, {"k": "- {}\n"})


async def test_a_directive_of_the_wrong_type_is_rejected(server: EmbeddedServer) -> None:
    await server.create(MAPS, config_map("p"))
    media = "application/strategic-merge-patch+json"
    response = await server.request("PATCH", f"{MAPS}/p", {"$retainKeys": 1}, content_type=media)
    assert (response.status, response.body["reason"]) == (400, "BadRequest")
