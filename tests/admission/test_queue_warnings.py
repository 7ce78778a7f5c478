"""Warnings about jobs that their queue can never run, and about the jobs of deleted queues."""

from pathlib import Path
from typing import Any

import pytest
from support.admission import container, job, queue, task, warnings
from support.embedded_apiserver import embedded_server

from batholith.admission import AdmissionSettings
from batholith.admission.webhooks import webhooks
from batholith.model import crds
from batholith.model.names import JOBS, QUEUES

Json = dict[str, Any]


def requesting(
    name: str = "t", replicas: int = 1, *, pod: Json | None = None, **amounts: str
) -> Json:
    spec = {"containers": [container(resources={"requests": amounts})]} | (pod or {})
    return task(name, replicas, minAvailable=replicas, pod=spec)


SMALL = queue("small", capability={"cpu": "4", "memory": "1Gi"})


def test_a_job_whose_gang_exceeds_the_capability_of_its_queue_is_warned_of() -> None:
    given = job(requesting(replicas=5, cpu="1", memory="1Gi"), queue="small", minAvailable=5)
    assert warnings(given, SMALL) == [
        "spec.minAvailable: the job can never run: the 5 pods that must run together need more than"
        " queue 'small' may have: 5 cpu (the capability is 4), 5Gi memory (the capability is 1Gi)"
    ]


@pytest.mark.parametrize(
    "given",
    [
        job(requesting(replicas=5, cpu="1"), queue="small", minAvailable=4),
        job(requesting(replicas=4, cpu="1"), queue="small", minAvailable=4),
        job(requesting(replicas=50, cpu="1"), queue="default", minAvailable=50),
        job(requesting(replicas=50, cpu="1"), queue="none", minAvailable=50),
        job(
            requesting("a", 1, cpu="9", pod={"priorityClassName": "high"}),
            requesting("b", 4, cpu="1"),
            queue="small",
            minAvailable=1,
        ),
    ],
)
def test_a_job_that_may_run_is_not_warned_of(given: Json) -> None:
    assert warnings(given, SMALL) == []


def test_an_update_is_warned_of_only_if_it_changes_the_spec() -> None:
    given = job(requesting(replicas=5, cpu="1"), queue="small", minAvailable=5)
    assert warnings(given, SMALL, old=given) == []
    smaller = job(requesting(replicas=4, cpu="1"), queue="small", minAvailable=4)
    assert len(warnings(given, SMALL, old=smaller)) == 1


def test_the_deletion_of_a_queue_with_jobs_is_warned_of_with_their_number() -> None:
    counts = {"pending": 2, "inqueue": 1, "running": 3, "unknown": 1, "completed": 9}
    busy = SMALL | {"status": {"state": "Closed", **counts}}
    (text,) = warnings(None, old=busy)
    assert text.startswith("queue 'small' is deleted with 7 jobs that have not finished")
    assert warnings(None, old=SMALL) == []
    assert warnings(busy, old=busy) == []


async def test_the_embedded_server_sends_both_warnings(tmp_path: Path) -> None:
    hooks = webhooks(AdmissionSettings())
    async with embedded_server(tmp_path, webhooks=hooks, crds=crds.load()) as server:
        body = {key: value for key, value in SMALL.items() if key != "status"}
        assert (await server.request("POST", QUEUES.path(), body)).status == 201
        given = job(requesting(replicas=5, cpu="1"), queue="small", minAvailable=5)
        given["metadata"] = {"name": "j"}
        created = await server.request("POST", JOBS.path("default"), given)
        assert created.status == 201, created.body
        assert any("the job can never run" in text for text in created.warnings)
        status = {"status": {"state": "Closed", "pending": 1}}
        patched = await server.request(
            "PATCH",
            f"{QUEUES.path()}/small/status",
            status,
            content_type="application/merge-patch+json",
        )
        assert patched.status == 200, patched.body
        deleted = await server.request("DELETE", f"{QUEUES.path()}/small")
        assert deleted.status == 200, deleted.body
        assert any("1 job that has not finished" in text for text in deleted.warnings)
