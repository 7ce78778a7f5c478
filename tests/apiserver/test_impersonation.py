"""The embedded server handles impersonating requests of the admin alone."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.embedded_apiserver import MAPS, EmbeddedServer, config_map, embedded_server
from support.impersonation import CASES, JANE, self_review


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with embedded_server(tmp_path) as started:
        yield started


async def test_the_admin_may_impersonate(server: EmbeddedServer) -> None:
    headers = (JANE, ("Impersonate-Group", "a"), ("Impersonate-Uid", "1"))
    status, review = await self_review(server, server.tokens["admin"], headers)
    assert status == 201
    groups = ["a", "system:authenticated"]
    assert review["status"]["userInfo"] == {"username": "jane", "uid": "1", "groups": groups}


async def test_nothing_of_the_impersonating_user_is_left(server: EmbeddedServer) -> None:
    """Neither the uid nor the group system:masters."""
    _, review = await self_review(server, server.tokens["admin"], (JANE,))
    expected = {"username": "jane", "groups": ["system:authenticated"]}
    assert review["status"]["userInfo"] == expected


@pytest.mark.parametrize("user", ["controllers", "scheduler", "agent", "api", "proxy"])
@pytest.mark.denied
async def test_components_may_not_impersonate(server: EmbeddedServer, user: str) -> None:
    for headers in (
        (JANE,),
        (("Impersonate-User", "admin"), ("Impersonate-Group", "system:masters")),
    ):
        status, body = await self_review(server, server.tokens[user], headers)
        assert (status, body["reason"]) == (403, "Forbidden")
        assert f'User "{user}" cannot impersonate-on:user-info:create' in body["message"]


@pytest.mark.denied
async def test_a_forbidden_impersonating_request_is_not_executed(server: EmbeddedServer) -> None:
    headers = {"Impersonate-User": "jane"}
    token = server.tokens["scheduler"]
    for path in (MAPS, "/version", "/healthz", "/metrics", "/nothing"):
        response = await server.request("GET", path, headers=headers, token=token)
        assert response.status == 403, path
    created = await server.request("POST", MAPS, config_map("m"), headers=headers, token=token)
    assert created.status == 403
    assert (await server.request("GET", f"{MAPS}/m")).status == 404


async def test_attributes_without_a_user_are_an_error(server: EmbeddedServer) -> None:
    for headers in CASES:
        if not any(name == "Impersonate-User" for name, _ in headers):
            status, _ = await self_review(server, server.tokens["admin"], headers)
            assert status == 400


async def test_an_anonymous_user_may_read_only_health_and_version(server: EmbeddedServer) -> None:
    headers = {"Impersonate-User": "system:anonymous"}
    assert (await server.request("GET", "/version", headers=headers)).status == 200
    assert (await server.request("GET", MAPS, headers=headers)).status == 403


async def test_repeated_headers_of_other_names_are_not_joined(server: EmbeddedServer) -> None:
    """Only the last one counts, as before."""
    headers = (("Authorization", "Bearer wrong"), ("Authorization", "Bearer also-wrong"))
    status, _ = await self_review(server, server.tokens["admin"], headers)
    assert status == 401
