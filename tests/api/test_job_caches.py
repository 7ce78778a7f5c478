"""Caches of jobs that cannot be listed."""

from pathlib import Path

import aiohttp
from support.controller_api import ControllerApi
from support.rest import sqlite, starting_api

from batholith.model.names import BATCH_JOBS, COMMANDS, JOBS, PODGROUPS, QUEUES
from batholith.testing import RequestMatcher


async def test_jobs_that_the_account_may_not_list_do_not_keep_the_api_from_being_ready(
    tmp_path: Path,
) -> None:
    async with ControllerApi(JOBS, COMMANDS, QUEUES, PODGROUPS) as api, api.client() as client:
        api.faults.error(RequestMatcher("GET", BATCH_JOBS, count=None), 403)
        headers = {"Authorization": f"Bearer {api.credentials.token}"}
        async with (
            starting_api(client, sqlite(tmp_path)) as (url, ready, _),
            aiohttp.ClientSession(headers=headers) as session,
        ):
            await ready.wait()
            async with session.get(f"{url}/readyz") as response:
                assert response.status == 200
            async with session.get(f"{url}/v1/jobs") as response:
                assert response.status == 200
            async with session.get(f"{url}/v1/batchjobs") as response:
                assert response.status == 503
                assert "not listed yet" in (await response.json())["detail"]
