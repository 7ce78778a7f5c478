"""Regular expressions in custom resource definitions, on both servers."""

from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory
from support.embedded_apiserver import DEFINITIONS, FOOS, definition, foo


def with_pattern(pattern: str) -> dict[str, Any]:
    crd = definition()
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["mode"] = {"type": "string", "pattern": pattern}
    return crd


@pytest.mark.parametrize("pattern", ["(", "(?=x)", r"(a)\1", "a{1001}", r"\C"])
async def test_a_crd_with_an_invalid_pattern_is_rejected(
    servers: ServerFactory, tmp_path: Path, pattern: str
) -> None:
    async with servers.start(tmp_path) as server:
        response = await server.request("POST", DEFINITIONS, with_pattern(pattern))
    assert (response.status, response.body["reason"]) == (422, "Invalid")
    messages = [cause["message"] for cause in response.body["details"]["causes"]]
    wanted = "must be a valid regular expression, but isn't: error parsing regexp: "
    assert any(wanted in each for each in messages), messages


async def test_a_backtracking_pattern_does_not_block_the_server(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path) as server:
        await server.install_crds(with_pattern("^(a+)+$"))
        response = await server.request("POST", FOOS, foo("x", mode="a" * 5000 + "b"))
        assert response.status == 422
        assert "should match '^(a+)+$'" in response.body["message"]
        await server.create(FOOS, foo("x", mode="a" * 5000))
