"""Faults of the API server, as the bytes of a connection show them."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from batholith.model.names import CONFIGMAPS, PODS, SECRETS
from batholith.testing import ApiServer, RequestMatcher, WaitTimeoutError

MAPS = CONFIGMAPS.path("default")
Json = dict[str, Any]


def config_map(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer() as api:
        yield api


@pytest.fixture
async def http(api: ApiServer) -> AsyncIterator[aiohttp.ClientSession]:
    """A client that sends each request once."""
    trust = ssl.create_default_context(cadata=api.credentials.ca_data.decode())
    headers = {"Authorization": f"Bearer {api.credentials.token}", "User-Agent": "plain/1"}
    connector = aiohttp.TCPConnector(ssl=trust)
    async with aiohttp.ClientSession(api.url, connector=connector, headers=headers) as session:
        yield session


async def create(http: aiohttp.ClientSession, name: str) -> int:
    async with http.post(MAPS, json=config_map(name)) as response:
        return response.status


async def read(http: aiohttp.ClientSession, path: str) -> str:
    async with http.get(path) as response:
        return await response.text()


async def test_an_error_has_status_reason_and_retry_after(
    api: ApiServer, http: aiohttp.ClientSession
) -> None:
    api.faults.error(RequestMatcher("create", CONFIGMAPS), 429, retry_after=7)
    async with http.post(MAPS, json=config_map("a")) as response:
        assert response.status == 429
        assert response.headers["Retry-After"] == "7"
        status = await response.json()
    assert (status["kind"], status["reason"], status["code"]) == ("Status", "TooManyRequests", 429)
    assert "default/a" not in api.objects(CONFIGMAPS)
    assert await create(http, "a") == 201


async def test_reason_and_message_of_an_error_can_be_chosen(
    api: ApiServer, http: aiohttp.ClientSession
) -> None:
    fault = RequestMatcher("POST", path="/configmaps")
    api.faults.error(fault, 403, reason="Forbidden", message="exceeded quota")
    async with http.post(MAPS, json=config_map("a")) as response:
        assert (await response.json())["message"] == "exceeded quota"


async def test_a_fault_begins_with_the_nth_match_and_applies_to_so_many(
    api: ApiServer, http: aiohttp.ClientSession
) -> None:
    fault = api.faults.error(RequestMatcher("create", "configmaps", nth=2, count=2), 503)
    assert [await create(http, name) for name in "abcde"] == [201, 503, 503, 201, 201]
    assert fault.injected == 2
    assert not fault.pending


async def test_a_fault_without_a_count_applies_until_it_is_removed(
    api: ApiServer, http: aiohttp.ClientSession
) -> None:
    fault = api.faults.error(RequestMatcher("create", count=None), 500)
    assert [await create(http, "a") for _ in range(3)] == [500] * 3
    fault.remove()
    assert await create(http, "a") == 201


@pytest.mark.parametrize(
    "matcher",
    [
        RequestMatcher("update"),
        RequestMatcher("PUT"),
        RequestMatcher("create", SECRETS),
        RequestMatcher("create", "configmaps.apps"),
        RequestMatcher("create", "configmaps/status"),
        RequestMatcher("create", "configmaps", name="b"),
        RequestMatcher("create", "configmaps", namespace="other"),
        RequestMatcher(path="/secrets"),
        RequestMatcher(user_agent="kubectl"),
        RequestMatcher(where=lambda request: request.json()["metadata"]["name"] != "a"),
    ],
)
async def test_other_requests_are_left_alone(
    api: ApiServer, http: aiohttp.ClientSession, matcher: RequestMatcher
) -> None:
    fault = api.faults.error(matcher, 500)
    assert await create(http, "a") == 201
    assert fault.injected == 0


@pytest.mark.parametrize(
    "matcher",
    [
        RequestMatcher(),
        RequestMatcher("create", "configmaps/*", name="a", namespace="default"),
        RequestMatcher("POST", CONFIGMAPS, user_agent="plain"),
        RequestMatcher(where=lambda request: request.json()["metadata"]["name"] == "a"),
    ],
)
async def test_a_request_that_matches_is_refused(
    api: ApiServer, http: aiohttp.ClientSession, matcher: RequestMatcher
) -> None:
    api.faults.error(matcher, 500)
    assert await create(http, "a") == 500


async def test_a_lost_request_is_not_carried_out(
    api: ApiServer, http: aiohttp.ClientSession
) -> None:
    api.faults.lose_request(RequestMatcher("create", CONFIGMAPS))
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await create(http, "a")
    assert "default/a" not in api.objects(CONFIGMAPS)


async def test_a_lost_response_is_that_of_a_request_that_was_carried_out(
    api: ApiServer, http: aiohttp.ClientSession
) -> None:
    api.faults.lose_response(RequestMatcher("create", CONFIGMAPS))
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await create(http, "a")
    assert "default/a" in api.objects(CONFIGMAPS)
    assert await create(http, "a") == 409


async def test_a_delayed_request_is_carried_out_late(
    api: ApiServer, http: aiohttp.ClientSession
) -> None:
    api.faults.delay(RequestMatcher("create", name="a"), 3600)
    api.faults.delay(RequestMatcher("create", name="b"), 0.01)
    creating = asyncio.create_task(create(http, "a"))
    await api.wait_until(lambda: api.count("create") == 1)
    assert await create(http, "b") == 201
    assert "default/a" not in api.objects(CONFIGMAPS)
    api.faults.clear()
    assert await creating == 201


async def test_a_held_request_is_carried_out_when_it_is_released(
    api: ApiServer, http: aiohttp.ClientSession
) -> None:
    held = api.faults.hold(RequestMatcher("create", name="a"))
    creating = asyncio.create_task(create(http, "a"))
    await held.wait_held()
    assert await create(http, "b") == 201
    assert "default/a" not in api.objects(CONFIGMAPS)
    held.release()
    assert await creating == 201


async def test_a_held_request_arrives_though_its_client_has_gone(
    api: ApiServer, http: aiohttp.ClientSession
) -> None:
    held = api.faults.hold(RequestMatcher("create"))
    creating = asyncio.create_task(create(http, "a"))
    await held.wait_held()
    creating.cancel()
    await asyncio.wait([creating])
    held.release()
    await api.wait_for(CONFIGMAPS, "a", lambda _: True)


async def test_held_requests_can_be_lost(api: ApiServer, http: aiohttp.ClientSession) -> None:
    held = api.faults.hold(RequestMatcher("create", count=2))
    creating = [asyncio.create_task(create(http, name)) for name in "ab"]
    await held.wait_held(2)
    held.lose()
    results = await asyncio.gather(*creating, return_exceptions=True)
    assert all(isinstance(each, aiohttp.ServerDisconnectedError) for each in results)
    assert not api.objects(CONFIGMAPS).keys() & {"default/a", "default/b"}


async def test_a_held_response_shows_the_state_before_later_changes(
    api: ApiServer, http: aiohttp.ClientSession
) -> None:
    api.put(CONFIGMAPS, "before")
    held = api.faults.hold_response(
        RequestMatcher(where=lambda each: each.method == "GET", count=2)
    )
    listing = asyncio.create_task(read(http, MAPS))
    watch = f"{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
    watching = asyncio.create_task(read(http, f"{watch}&allowWatchBookmarks=true&timeoutSeconds=1"))
    await held.wait_held(2)
    assert await create(http, "after") == 201
    held.release()
    listed, watched = await asyncio.gather(listing, watching)
    assert '"before"' in listed
    assert '"after"' not in listed
    assert watched.index('"before"') < watched.index("initial-events-end")
    assert watched.index("initial-events-end") < watched.index('"after"')


async def test_held_responses_can_be_lost(api: ApiServer, http: aiohttp.ClientSession) -> None:
    held = api.faults.hold_response(RequestMatcher("create"))
    creating = asyncio.create_task(create(http, "a"))
    await held.wait_held()
    held.lose()
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await creating
    assert "default/a" in api.objects(CONFIGMAPS)


async def test_a_request_passes_all_faults_in_order(
    api: ApiServer, http: aiohttp.ClientSession
) -> None:
    held = api.faults.hold(RequestMatcher("create"))
    api.faults.lose_response(RequestMatcher("create"))
    creating = asyncio.create_task(create(http, "a"))
    await held.wait_held()
    held.release()
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await creating
    assert "default/a" in api.objects(CONFIGMAPS)


async def test_clear_removes_faults_and_releases_requests(
    api: ApiServer, http: aiohttp.ClientSession
) -> None:
    held = api.faults.hold(RequestMatcher("create", name="a"))
    api.faults.error(RequestMatcher("create", name="b", count=None), 500)
    creating = asyncio.create_task(create(http, "a"))
    await held.wait_held()
    api.faults.clear()
    assert await creating == 201
    assert await create(http, "b") == 201


async def test_a_server_stops_while_requests_are_held_and_delayed() -> None:
    async with ApiServer() as api, api.client() as client:
        held = api.faults.hold(RequestMatcher("list", CONFIGMAPS))
        api.faults.delay(RequestMatcher("list", PODS), 3600)
        reading = [
            asyncio.create_task(client.list(resource, view=dict)) for resource in (CONFIGMAPS, PODS)
        ]
        await held.wait_held()
        await api.wait_until(lambda: api.count("list") == 2)
    await asyncio.wait(reading)
    for each in reading:
        each.exception()


async def test_requests_are_recorded(api: ApiServer, http: aiohttp.ClientSession) -> None:
    await create(http, "a")
    async with http.get(f"{MAPS}?labelSelector=app%3Dx") as response:
        await response.read()
    async with http.get("/version") as response:
        await response.read()
    async with http.delete(f"{MAPS}/a") as response:
        await response.read()
    seen = api.faults.requests
    assert [request.verb for request in seen] == ["create", "list", "get", "delete"]
    assert [request.resource for request in seen] == ["configmaps", "configmaps", "", "configmaps"]
    assert [request.name for request in seen] == ["a", "", "", "a"]
    assert seen[0].json() == config_map("a")
    assert seen[0].user_agent == "plain/1"
    assert seen[1].query == {"labelSelector": "app=x"}
    assert api.count("create", CONFIGMAPS) == api.count("POST") == 1
    assert api.count("create", SECRETS) == 0
    assert api.count(path="/configmaps") == 3


async def test_helpers_are_neither_recorded_nor_subject_to_faults(api: ApiServer) -> None:
    api.faults.error(RequestMatcher(count=None), 500)
    await api.create(CONFIGMAPS, config_map("a"))
    assert (await api.get(CONFIGMAPS, "a"))["metadata"]["name"] == "a"
    assert api.faults.requests == []


async def test_what_does_not_happen_is_told_with_the_state_of_the_object(api: ApiServer) -> None:
    await api.create(CONFIGMAPS, config_map("a"))
    with pytest.raises(WaitTimeoutError, match=r"within 0.01 s; ConfigMap a: \{'apiVersion'"):
        await api.wait_for(CONFIGMAPS, "a", lambda obj: obj["data"]["k"], timeout=0.01)
    with pytest.raises(WaitTimeoutError, match="ConfigMap b: not found"):
        await api.wait_for(CONFIGMAPS, "b", lambda obj: True, timeout=0.01)
