"""Jobs as sent by clients: defaults and validation of schema and rules together."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.admission import job, task
from support.api_servers import ServerFactory, merge_patch
from support.embedded_apiserver import Server

from batholith.admission import WEBHOOKS
from batholith.model import crds
from batholith.model.names import JOBS, QUEUES


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path, webhooks=WEBHOOKS, crds=crds.load()) as started:
        body = {"apiVersion": QUEUES.api_version, "kind": "Queue", "metadata": {"name": "default"}}
        await started.create(QUEUES.path(), body | {"spec": {"weight": 1}})
        await merge_patch(started, QUEUES.path(name="default", subresource="status"),
                    {"status": {"state": "Open"}})  # fmt: skip
        yield started


async def test_quirk_a2_negative_retries_are_rejected_with_the_field_named(
    server: Server,
) -> None:
    sent = job(task(maxRetry=-1))
    sent["metadata"]["namespace"] = "default"
    response = await server.request("POST", JOBS.path("default"), sent)
    assert response.status == 422
    assert "spec.tasks[0].maxRetry" in response.body["message"]


async def test_quirk_a18_an_empty_queue_and_no_retries_mean_the_defaults(server: Server) -> None:
    """If given explicitly; if omitted, the schema has the same defaults."""
    for name, spec in (("empty", {"queue": "", "maxRetry": 0}), ("absent", {})):
        sent = job(name=name)
        del sent["spec"]["queue"]
        sent["spec"] |= spec
        sent["metadata"]["namespace"] = "default"
        await server.create(JOBS.path("default"), sent)
        stored = (await server.get(JOBS.path("default", name)))["spec"]
        assert (stored["queue"], stored["maxRetry"]) == ("default", 3)
