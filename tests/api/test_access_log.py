"""Metrics and the access log of requests, and the details of /readyz."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from support.polling import wait_until_true
from support.rest import PATH, RestClient, cluster, rest_at, sqlite

from batholith.api.serving.server import ApiSettings, serve
from batholith.machinery.clock import SystemClock

ACCESS = "batholith.api.http.access_log"


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
async def rest(tmp_path: Path, registry: CollectorRegistry) -> AsyncIterator[RestClient]:
    listener = socket.create_server(("127.0.0.1", 0))
    async with cluster(tmp_path) as (server, client):
        settings = ApiSettings(
            store_url=sqlite(tmp_path), listener=listener, access_log=True, registry=registry
        )
        ready = asyncio.Event()
        serving = asyncio.create_task(serve(client, settings, clock=SystemClock(), ready=ready))
        await ready.wait()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with rest_at(url, server, client) as found:
            yield found
        serving.cancel()
        await asyncio.wait((serving,))


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [vars(record) for record in caplog.records if record.name == ACCESS]


async def test_each_request_is_one_line_without_values_of_its_query(
    rest: RestClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger=ACCESS):
        await rest.call("GET", f"{PATH}/commands?limit=5&secret=hunter2")
        await rest.call("GET", "/v1/nothing%0Ahere")
        await rest.call("GET", PATH, token="wrong")
    first, unknown, rejected = lines(caplog)
    assert first["msg"] == "request served"
    assert (first["verb"], first["status"], first["user"]) == ("GET", 422, "admin")
    assert first["route"] == "/v1/namespaces/{namespace}/{kind}/{name}/commands"
    assert (first["path"], first["query"]) == (f"{PATH}/commands", "limit,secret")
    assert isinstance(first["seconds"], float)
    assert isinstance(first["bytes"], int) and first["bytes"] > 50
    assert (unknown["status"], unknown["path"]) == (404, "/v1/nothing%0Ahere")
    assert "route" not in unknown
    assert rejected["status"] == 401
    assert "user" not in rejected
    assert "hunter2" not in caplog.text
    assert rest.token not in caplog.text


async def test_requests_and_streams_are_counted(
    rest: RestClient, registry: CollectorRegistry
) -> None:
    await rest.call("GET", PATH)
    await rest.call("GET", "/v1/unknown")
    headers = {"Authorization": f"Bearer {rest.token}"}
    async with rest.session.get(f"{rest.url}/v1/watch/jobs", headers=headers) as response:
        await response.content.readuntil(b"event: synced")
        text = generate_latest(registry).decode()
        assert 'batholith_rest_streams{kind="jobs"} 1.0' in text
        assert "batholith_rest_requests_in_flight 1.0" in text
    route = 'method="GET",route="/v1/namespaces/{namespace}/{kind}/{name}"'
    assert f'batholith_rest_requests_total{{{route},status="200"}} 1.0' in text
    assert f"batholith_rest_request_duration_seconds_count{{{route}}} 1.0" in text
    assert 'batholith_rest_requests_total{method="GET",route="",status="404"} 1.0' in text
    assert "batholith_rest_stream_bytes_total" in text
    assert "batholith_rest_stream_lag_seconds_bucket" in text


async def test_readyz_without_credentials_has_states_and_no_counts(rest: RestClient) -> None:
    async with rest.session.get(f"{rest.url}/readyz?verbose") as response:
        text = await response.text()
        assert response.status == 200
    assert "[+]informer jobs.batch.volcano.sh: synced, stale for 0 s" in text
    assert "[+]informer queues.scheduling.volcano.sh" in text
    assert "object" not in text
    assert "stream" not in text


async def test_a_head_request_is_counted_as_such(
    rest: RestClient, registry: CollectorRegistry
) -> None:
    headers = {"Authorization": f"Bearer {rest.token}"}
    async with rest.session.head(f"{rest.url}/v1/watch/jobs", headers=headers) as response:
        assert response.status == 200
    expected = 'method="HEAD",route="/v1/watch/{kind}",status="200"} 1.0'

    async def is_counted() -> bool:
        return expected in generate_latest(registry).decode()

    await wait_until_true(is_counted)
