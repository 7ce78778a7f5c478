"""A real API server calls our webhooks, and users get their messages."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.admission import job, queue, task
from support.api_servers import RealServerFactory
from support.embedded_apiserver import Server
from support.webhooks import serve_webhooks

from batholith.admission import WEBHOOKS
from batholith.model.names import JOBS, QUEUES


@pytest.fixture
async def server(real: RealServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with real.start(tmp_path) as started:
        yield started


async def test_they_are_asked_within_the_block_alone(server: Server) -> None:
    lost = queue("lost", parent="nosuch")
    async with serve_webhooks(server, WEBHOOKS):
        refused = await server.request("POST", QUEUES.path(), lost)
        assert (refused.status, refused.body["message"]) == (
            400,
            'admission webhook "validatequeue.volcano.sh" denied the request: parent queue nosuch'
            " not found: failed to get parent queue nosuch of queue lost:"
            ' queue.scheduling.volcano.sh "nosuch" not found',
        )
        assert "reason" not in refused.body
        await server.create(QUEUES.path(), queue("default"))
        stored = await server.create(JOBS.path("default"), job(task(replicas=2)) | NAMED)
        assert stored["spec"]["minAvailable"] == 2, "defaults are filled in"
    assert (await server.request("POST", QUEUES.path(), lost)).status == 201


NAMED = {"metadata": {"name": "j"}}
