"""CronJobs over REST: list, suspend and resume, and a job now."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.admission import cronjob
from support.rest import RestClient, cronjob_api, rest_api

from batholith.cron_ctrl.volcano import KIND, Job
from batholith.model.cronjob import CronJob
from batholith.model.names import CRONJOBS, JOBS
from batholith.testing import RequestMatcher

PATH = "/v1/namespaces/default/cronjobs"
ONE = f"{PATH}/report"


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[RestClient]:
    async with rest_api(tmp_path) as found:
        spec = cronjob("0 9 * * 1-5", timeZone="Europe/Berlin")["spec"]
        template = spec["jobTemplate"] | {"metadata": {"annotations": {"note": "a"}}}
        body = {"metadata": {"name": "report"}, "spec": spec | {"jobTemplate": template}}
        await found.client.create(CRONJOBS, body, namespace="default")
        yield found


async def stored(rest: RestClient) -> CronJob:
    return await rest.client.get(CRONJOBS, "report", namespace="default", view=CronJob)


async def jobs(rest: RestClient) -> dict[str, Job]:
    """Jobs of the CronJob by name."""
    found = (await rest.client.list(JOBS, namespace="default", view=Job)).items
    return {each.metadata.name: each for each in found if KIND.owner(each)}


async def test_cronjobs_are_listed_as_summaries(rest: RestClient) -> None:
    status, body = await rest.call("GET", ONE)
    assert status == 200
    found = (body["name"], body["schedule"], body["time_zone"], body["suspend"], body["active"])
    assert found == ("report", "0 9 * * 1-5", "Europe/Berlin", False, [])
    assert (await rest.call("GET", PATH))[1]["items"] == [body]
    assert (await rest.call("GET", "/v1/cronjobs"))[1]["items"] == [body]
    assert (await rest.call("GET", "/v1/namespaces/other/cronjobs"))[1]["items"] == []


async def test_a_cronjob_is_suspended_and_resumed(rest: RestClient) -> None:
    for suspend in (True, True, False):
        status, body = await rest.call("PATCH", ONE, json={"suspend": suspend})
        assert (status, body["suspend"]) == (200, suspend)
        assert (await stored(rest)).spec.suspend is suspend


async def test_a_job_is_created_now_from_the_template(rest: RestClient) -> None:
    await rest.call("PATCH", ONE, json={"suspend": True})
    status, body = await rest.call("POST", f"{ONE}/jobs")
    assert (status, body["replicas"]) == (201, 1)
    [(name, job)] = (await jobs(rest)).items()
    assert name == body["name"]
    assert name.startswith("report-")
    assert job.metadata.annotations == {"note": "a", "cronjob.kubernetes.io/instantiate": "manual"}
    assert KIND.is_controlled_by(job, await stored(rest))
    assert (await rest.call("POST", f"{ONE}/jobs"))[1]["name"] != name


async def test_a_request_with_a_name_can_be_repeated(rest: RestClient) -> None:
    first = await rest.call("POST", f"{ONE}/jobs", json={"name": "report-now"})
    assert await rest.call("POST", f"{ONE}/jobs", json={"name": "report-now"}) == first
    assert [*await jobs(rest)] == ["report-now"]
    status, body = await rest.call("POST", f"{ONE}/jobs", json={"name": "train"})
    assert (status, body["detail"]) == (
        409,
        "job 'train' exists, and was not created by such a request",
    )


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", f"{PATH}/none", None),
        ("PATCH", f"{PATH}/none", {"suspend": True}),
        ("POST", f"{PATH}/none/jobs", None),
    ],
)
async def test_an_unknown_cronjob_is_not_found(
    rest: RestClient, method: str, path: str, body: Any
) -> None:
    status, problem = await rest.call(method, path, json=body)
    assert status == 404
    assert problem["detail"] == "CronJob 'none' not found in namespace 'default'"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", ONE, {}),
        ("PATCH", ONE, {"suspend": None}),
        ("PATCH", ONE, {"suspend": True, "schedule": "* * * * *"}),
        ("POST", f"{ONE}/jobs", {"name": "No"}),
        ("POST", f"{ONE}/jobs", {"name": "n" * 64}),
    ],
)
async def test_invalid_bodies_are_rejected(
    rest: RestClient, method: str, path: str, body: Any
) -> None:
    status, _ = await rest.call(method, path, json=body)
    assert status == 422
    assert await jobs(rest) == {}
    assert not (await stored(rest)).spec.suspend


REQUESTS = (
    ("GET", PATH, None),
    ("GET", ONE, None),
    ("PATCH", ONE, {"suspend": True}),
    ("POST", f"{ONE}/jobs", None),
)


async def test_requests_on_cronjobs_have_the_identity_of_the_caller(tmp_path: Path) -> None:
    async with cronjob_api(tmp_path) as (api, session):
        before = len(api.faults.requests)
        for method, path, body in REQUESTS:
            async with session.request(method, path, json=body) as response:
                assert response.status < 300, await response.text()
        sent = [
            each
            for each in list(api.faults.requests)[before:]
            if each.resource == "cronjobs" or (each.resource == "jobs" and each.verb == "create")
        ]
        token = api.credentials_of("admin").token
        assert [(each.verb, each.resource) for each in sent] == [
            ("list", "cronjobs"),
            ("get", "cronjobs"),
            ("patch", "cronjobs"),
            ("get", "cronjobs"),
            ("create", "jobs"),
        ]
        assert {each.headers["authorization"] for each in sent} == {f"Bearer {token}"}


async def test_a_caller_without_rights_changes_nothing(tmp_path: Path) -> None:
    async with cronjob_api(tmp_path) as (api, session):
        api.faults.error(RequestMatcher("", CRONJOBS, count=None), 403, message="not you")
        for method, path, body in REQUESTS:
            async with session.request(method, path, json=body) as response:
                assert response.status == 403
                assert (await response.json())["detail"] == "not you"
        assert api.created(JOBS) == 0
        assert api.objects(CRONJOBS)["default/report"]["spec"]["suspend"] is False
