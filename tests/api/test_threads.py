"""The REST API serves requests and streams in its event loop alone."""

import asyncio
import inspect
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from support.rest import PATH, cluster, rest_at, running_api, sqlite

from batholith.api.serving.app import ROUTERS

ROUTES = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]


def calls(dependant: Dependant) -> Iterator[Any]:
    """The functions that FastAPI calls for a request."""
    yield dependant.call
    for each in dependant.dependencies:
        yield from calls(each)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.methods} {route.path}")
def test_no_function_of_a_route_is_called_in_a_thread(route: APIRoute) -> None:
    """FastAPI calls what is not a coroutine function in one of forty threads."""
    for call in calls(route.dependant):
        assert inspect.iscoroutinefunction(call), call


async def test_many_streams_and_requests_start_no_thread(tmp_path: Path) -> None:
    paths = ("/v1/watch/jobs?phase=Running", "/v1/jobs", "/v1/podgroups", "/v1/history/jobs", PATH)
    async with (
        cluster(tmp_path) as (server, client),
        running_api(client, sqlite(tmp_path)) as url,
        rest_at(url, server, client) as rest,
    ):
        headers = {"Authorization": f"Bearer {rest.token}"}

        async def request(path: str) -> int:
            async with rest.session.get(url + path, headers=headers) as response:
                return response.status

        for path in paths:  # the threads of the store are started
            assert await request(path) == 200
        before = threading.active_count()
        for _ in range(10):
            found = await asyncio.gather(*(request(path) for path in paths * 10))
            assert set(found) == {200}
        assert threading.active_count() <= before + 1  # the second reader of the store
        assert "AnyIO worker thread" not in [each.name for each in threading.enumerate()]
