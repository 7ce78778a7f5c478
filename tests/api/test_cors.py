"""Cross-origin requests: off by default, preflight requests, marked responses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from support.controller_api import ControllerApi
from support.rest import running_api, sqlite

from batholith.api.http.cors import OriginPatternError, OriginPatterns
from batholith.api.identity.authentication import SecuritySettings
from batholith.model.names import COMMANDS, JOBFLOWS, JOBS

PATH = "/v1/jobflows"
PREFLIGHT = {
    "Origin": "https://console.example.org",
    "Access-Control-Request-Method": "GET",
    "Access-Control-Request-Headers": "authorization",
}


@asynccontextmanager
async def rest(tmp_path: Path, *origins: str) -> AsyncIterator[aiohttp.ClientSession]:
    """A session without token at a REST API that allows *origins*."""
    security = SecuritySettings(cors_allowed_origins=origins)
    async with ControllerApi(JOBFLOWS, COMMANDS, JOBS) as api, api.client() as client:
        token = api.credentials_of("admin").token
        async with (
            running_api(client, sqlite(tmp_path), security=security) as url,
            aiohttp.ClientSession(url) as session,
        ):
            session.headers["X-Token"] = token
            yield session


def bearer(session: aiohttp.ClientSession) -> dict[str, str]:
    return {"Authorization": f"Bearer {session.headers['X-Token']}"}


def permissions(response: aiohttp.ClientResponse) -> dict[str, str]:
    """The headers of a response that concern other origins."""
    return {
        name: value
        for name, value in response.headers.items()
        if name.lower().startswith("access-control") or name.lower() == "vary"
    }


async def test_by_default_no_origin_is_allowed(tmp_path: Path) -> None:
    async with rest(tmp_path) as session:
        async with session.options(PATH, headers=PREFLIGHT) as response:
            assert response.status == 401
            assert permissions(response) == {}
        origin = {"Origin": PREFLIGHT["Origin"]}
        async with session.get(PATH, headers=bearer(session) | origin) as response:
            assert response.status == 200
            assert permissions(response) == {}


async def test_a_script_of_an_allowed_origin_may_call(tmp_path: Path) -> None:
    async with rest(tmp_path, "^https://other$", r"//console\.example\.org(:|$)") as session:
        async with session.options(PATH, headers=PREFLIGHT) as response:
            assert (response.status, await response.read()) == (204, b"")
            found = permissions(response)
            assert found["Access-Control-Allow-Origin"] == PREFLIGHT["Origin"]
            assert found["Vary"] == "Origin"
            assert "PATCH" in found["Access-Control-Allow-Methods"].split(", ")
            allowed = found["Access-Control-Allow-Headers"].split(", ")
            assert {"Authorization", "Idempotency-Key", "If-Match", "Last-Event-ID"} <= {*allowed}
            assert int(found["Access-Control-Max-Age"]) > 0
            assert "Access-Control-Allow-Credentials" not in found
        origin = {"Origin": PREFLIGHT["Origin"]}
        for headers, status in ((bearer(session), 200), ({}, 401)):
            async with session.get(PATH, headers=headers | origin) as response:
                assert response.status == status
                found = permissions(response)
                assert found["Access-Control-Allow-Origin"] == PREFLIGHT["Origin"]
                assert "Location" in found["Access-Control-Expose-Headers"]


async def test_other_origins_get_no_permission_and_caches_know_why(tmp_path: Path) -> None:
    async with rest(tmp_path, r"^https://console\.example\.org$") as session:
        for origin in (
            "https://console.example.org.evil.com",
            "null",
            "https://consoleXexample.org",
        ):
            headers = PREFLIGHT | {"Origin": origin}
            async with session.options(PATH, headers=headers) as response:
                assert response.status == 204
                assert permissions(response) == {"Vary": "Origin"}
            async with session.get(PATH, headers=bearer(session) | {"Origin": origin}) as response:
                assert response.status == 200
                assert permissions(response) == {"Vary": "Origin"}
        async with session.get(PATH, headers=bearer(session)) as response:
            assert permissions(response) == {"Vary": "Origin"}


async def test_an_options_request_that_is_no_preflight_needs_a_token(tmp_path: Path) -> None:
    async with (
        rest(tmp_path, "^https://a$") as session,
        session.options(PATH, headers={"Origin": "https://a"}) as response,
    ):
        assert response.status == 401


@pytest.mark.parametrize(
    ("pattern", "origin", "allowed"),
    [
        (r"^https://example\.org$", "https://example.org", True),
        (r"^https://example\.org$", "https://example.org:8443", False),
        (r"//example\.org(:|$)", "https://example.org:8443", True),
        (r"//example\.org(:|$)", "http://example.org", True),
        (r"//example\.org(:|$)", "https://example.org.evil.com", False),
        (r"//(.+\.)?example\.org$", "https://a.example.org", True),
        (r"^https://(a|b)\.org$", "https://b.org", True),
        (r"(?i)^https://a\.org$", "https://A.org", True),
    ],
)
def test_origins_match_as_in_kube_apiserver(pattern: str, origin: str, allowed: bool) -> None:
    assert OriginPatterns([pattern]).match(origin) is allowed


@pytest.mark.parametrize(
    "pattern",
    ["example.org", "^https://example.org", "example.org$", "^a$|b$", "^(", "^a(?=b)$", "*", ".*"],
)
def test_patterns_that_do_not_determine_the_whole_host_are_rejected(pattern: str) -> None:
    with pytest.raises(OriginPatternError, match="invalid origin pattern"):
        OriginPatterns([pattern])
