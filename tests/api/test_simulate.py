"""Simulations of jobs over REST, and the endpoint of the scheduler that serves them."""

import asyncio
import re
import ssl
from typing import Any

import pytest
from support.rest import RestClient
from support.simulations import NAMESPACE, STARTS, leading

from batholith.model.job import Job
from batholith.model.names import JOBS, SECRETS
from batholith.model.simulation import ENDPOINT, Forecast, SimulationResult, TriedChange
from batholith.scheduler.simulation.proposed_gang import CannotSimulateError

SHORT = {"image": "python:3.12", "command": ["python"], "replicas": 3, "cpu": "2"}
TASK = {
    "name": "main",
    "replicas": 3,
    "template": {"spec": {"containers": [{"name": "main", "image": "busybox"}]}},
}


async def test_job_is_simulated_with_its_defaults_and_not_created(rest: RestClient) -> None:
    asked: list[Job] = []

    async def simulate(job: Job) -> SimulationResult:
        asked.append(job)
        return STARTS

    async with leading(rest.client, simulate):
        status, body = await rest.call("POST", "/v1/simulate?namespace=default", json=SHORT)
    assert (status, body["starts_now"]) == (200, True)
    assert body["summary"] == "it would start now: 3 pods on 2 nodes"
    assert body["nodes"] == [{"node": "a", "pods": 2}, {"node": "b", "pods": 1}]
    (job,) = asked
    assert (job.spec.queue, job.spec.min_available, job.metadata.namespace) == (
        "default",
        3,
        "default",
    )
    found = await rest.client.list(JOBS, view=Job)
    assert [each.metadata.name for each in found.items] == ["train"]


async def test_next_step_is_the_first_change_with_which_the_job_would_start(
    rest: RestClient,
) -> None:
    changes = (
        TriedChange("pods", starts_now=False, pods=1),
        TriedChange("queue", starts_now=True, queue="other"),
        TriedChange("requests", starts_now=True, requests={"cpu": "1"}),
    )

    async def simulate(_: Job) -> SimulationResult:
        return SimulationResult(starts_now=False, changes=changes, is_complete=False)

    async with leading(rest.client, simulate):
        status, body = await rest.call("POST", "/v1/simulate", json=SHORT)
    assert (status, body["starts_now"], body["all_changes_tried"]) == (200, False, False)
    assert body["next_step"] == "it would start now in queue other"
    assert [each["summary"] for each in body["changes"]] == [
        "it would wait, too, with 1 pod instead of 3",
        "it would start now in queue other",
        "it would start now with at most 1 cpu for each pod",
    ]


@pytest.mark.parametrize(
    ("forecast", "next_step", "expected"),
    [
        (
            Forecast(start=60.0, basis="limit"),
            "wait until 1970-01-01T00:01:00Z, when enough other jobs have ended",
            ("1970-01-01T00:01:00Z", "limit", None),
        ),
        (
            Forecast(start=60.0, basis="estimate"),
            "wait until about 1970-01-01T00:01:00Z, when enough other jobs have ended",
            ("1970-01-01T00:01:00Z", "estimate", None),
        ),
        (
            Forecast(not_before=60.0),
            "wait until other jobs have ended, which takes longer than 1970-01-01T00:01:00Z",
            (None, "", "1970-01-01T00:01:00Z"),
        ),
        (
            Forecast(basis="unknown"),
            "wait until other jobs have ended",
            (None, "unknown", None),
        ),
    ],
)
async def test_without_a_change_that_helps_the_next_step_is_to_wait(
    rest: RestClient, forecast: Forecast, next_step: str, expected: tuple[str | None, ...]
) -> None:
    async def simulate(_: Job) -> SimulationResult:
        return SimulationResult(starts_now=False, forecast=forecast)

    async with leading(rest.client, simulate):
        status, body = await rest.call("POST", "/v1/simulate", json=SHORT)
    assert (status, body["next_step"]) == (200, next_step)
    found = (body["expected_start"], body["start_basis"], body["not_before"])
    assert found == expected


async def test_conditions_before_the_scheduling_are_named_as_they_count_as_met(
    rest: RestClient,
) -> None:
    annotations = {
        "batholith.io/depends-on": "afterok:train,singleton",
        "batholith.io/begin": "2999-01-31T00:00:00Z",
    }
    manifest: dict[str, Any] = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "x", "annotations": annotations},
        "spec": {"suspend": True, "minAvailable": 3, "tasks": [TASK]},
    }
    async with leading(rest.client):
        status, found = await rest.call("POST", "/v1/simulate", json=manifest)
        assert status == 200, found
        assert found["assumed"] == [
            "afterok:train", "singleton", "its begin at 2999-01-31T00:00:00Z", "its release",
        ]  # fmt: skip
        assert found["summary"] == (
            "after afterok:train and singleton and its begin at 2999-01-31T00:00:00Z and its"
            " release, it would start now: 3 pods on 2 nodes"
        )
        del annotations["batholith.io/depends-on"], manifest["spec"]["suspend"]
        annotations["batholith.io/begin"] = "2001-01-31T00:00:00Z"
        _, found = await rest.call("POST", "/v1/simulate", json=manifest)
        assert found["assumed"] == []


async def test_a_job_that_can_never_start_is_impossible(rest: RestClient) -> None:
    async def simulate(_: Job) -> SimulationResult:
        return SimulationResult(starts_now=False, impossible=True)

    async with leading(rest.client, simulate):
        _, found = await rest.call("POST", "/v1/simulate", json=SHORT)
    assert (found["impossible"], found["next_step"]) == (
        True,
        "ask for less: it could not start even if nothing else ran",
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [({"kind": "Pod"}, "kind"), ({"replicas": 0}, "replicas"), ({"cpus": "1"}, "cpus")],
)
async def test_invalid_body_is_an_error_that_names_the_field(
    rest: RestClient, change: dict[str, Any], field: str
) -> None:
    async with leading(rest.client):
        status, body = await rest.call("POST", "/v1/simulate", json=SHORT | change)
    assert status == 422
    assert field in body["detail"]


async def test_namespace_of_the_manifest_counts_if_none_is_given(rest: RestClient) -> None:
    manifest = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "x", "namespace": "kube-public"},
        "spec": {"minAvailable": 1, "tasks": [{"replicas": 1, "name": "a", "template": {}}]},
    }
    asked: list[str] = []

    async def simulate(job: Job) -> SimulationResult:
        asked.append(job.metadata.namespace)
        raise CannotSimulateError("spec.tasks[a].template: no containers")

    async with leading(rest.client, simulate):
        status, body = await rest.call("POST", "/v1/simulate", json=manifest)
        assert (status, body["detail"]) == (422, "spec.tasks[a].template: no containers")
        assert asked == ["kube-public"]
        status, body = await rest.call("POST", "/v1/simulate?namespace=default", json=manifest)
        assert (status, body["errors"][0]["field"]) == (422, "metadata.namespace")


async def test_without_a_scheduler_the_service_is_unavailable(rest: RestClient) -> None:
    status, body = await rest.call("POST", "/v1/simulate", json=SHORT)
    assert (status, ENDPOINT in body["detail"]) == (503, True)
    async with leading(rest.client):
        pass
    status, body = await rest.call("POST", "/v1/simulate", json=SHORT)
    assert status == 503
    text = r"the scheduler does not respond: cannot connect to 127\.0\.0\.1:\d+"
    assert re.fullmatch(text, body["detail"])


async def test_a_new_leader_is_asked_and_none_that_only_claims_to_be_it(rest: RestClient) -> None:
    async with leading(rest.client) as first:
        async with leading(rest.client) as second:
            assert first["token"] != second["token"]
            assert (await rest.call("POST", "/v1/simulate", json=SHORT))[0] == 200
        # The former leader is at the published address, perhaps of a reused port.
        await rest.client.patch(
            SECRETS, ENDPOINT, {"stringData": {"url": first["url"]}}, namespace=NAMESPACE
        )
        status, body = await rest.call("POST", "/v1/simulate", json=SHORT)
        assert (status, "certificate" in body["detail"].lower()) == (503, True)


@pytest.mark.parametrize("token", ["", "Bearer x", "Basic x"])
async def test_endpoint_needs_its_token(rest: RestClient, token: str) -> None:
    async with leading(rest.client) as found:
        assert await _status(rest, found, {"Authorization": token} if token else {}) == 401
        assert await _status(rest, found, {"Authorization": f"Bearer {found['token']}"}) == 422


async def _status(rest: RestClient, found: dict[str, str], headers: dict[str, str]) -> int:
    """The status of an empty request to the endpoint itself."""
    async with rest.session.post(
        f"{found['url']}/simulate",
        data=b"{}",
        headers=headers,
        ssl=ssl.create_default_context(cadata=found["ca.crt"]),
        server_hostname="batholith-scheduler",
    ) as response:
        return response.status


async def test_one_simulation_runs_at_a_time_and_few_wait(rest: RestClient) -> None:
    running, most, release = 0, 0, asyncio.Event()

    async def simulate(_: Job) -> SimulationResult:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1
        return STARTS

    async with leading(rest.client, simulate):
        calls = [
            asyncio.create_task(rest.call("POST", "/v1/simulate", json=SHORT)) for _ in range(12)
        ]
        done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        assert {each.result()[0] for each in done} == {503}
        release.set()
        statuses = sorted([(await each)[0] for each in calls])
    assert (most, statuses) == (1, [200] * 8 + [503] * 4)
