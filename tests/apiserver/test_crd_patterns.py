"""Regular expressions in custom resource definitions, on both servers."""

from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory
from support.embedded_apiserver import DEFINITIONS, FOOS, definition, foo


def with_pattern(pattern: str) -> dict[str, Any]:
    made = definition()
    schema = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["mode"] = {"type": "string", "pattern": pattern}
    return made


@pytest.mark.parametrize("pattern", ["(", "(?=x)", r"(a)\1", "a{1001}", r"\C"])
async def test_a_pattern_that_cannot_be_compiled_is_refused_with_its_definition(
    servers: ServerFactory, tmp_path: Path, pattern: str
) -> None:
    async with servers.start(tmp_path) as server:
        answer = await server.request("POST", DEFINITIONS, with_pattern(pattern))
    assert (answer.status, answer.body["reason"]) == (422, "Invalid")
    told = [cause["message"] for cause in answer.body["details"]["causes"]]
    wanted = "must be a valid regular expression, but isn't: error parsing regexp: "
    assert any(wanted in each for each in told), told


async def test_a_pattern_that_would_backtrack_holds_nothing_up(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path) as server:
        await server.install_crds(with_pattern("^(a+)+$"))
        answer = await server.request("POST", FOOS, foo("x", mode="a" * 5000 + "b"))
        assert answer.status == 422
        assert "should match '^(a+)+$'" in answer.body["message"]
        await server.create(FOOS, foo("x", mode="a" * 5000))
