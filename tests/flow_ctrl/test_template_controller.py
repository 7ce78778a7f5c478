"""The status of JobTemplates, on the embedded API server."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.running_controller import running

from batholith.flow_ctrl.template_controller import JobTemplateController
from batholith.model import crds
from batholith.model.names import JOBS, JOBTEMPLATES
from batholith.testing import ApiServer, RequestMatcher

Json = dict[str, Any]

KEY = "volcano.sh/createdByJobTemplate"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with (
        ApiServer(crds=crds.load()) as server,
        server.client() as client,
        running(JobTemplateController(client)),
    ):
        yield server


async def create_job(server: ApiServer, name: str, template: str, **annotations: str) -> None:
    metadata = {"name": name, "labels": {KEY: template}, "annotations": annotations}
    await server.create(JOBS, {"metadata": metadata, "spec": {}})


async def wait_jobs(server: ApiServer, template: str, *names: str) -> None:
    def holds(stored: Json) -> bool:
        found: list[str] = stored["status"].get("jobDependsOnList", [])
        return found == [*names]

    await server.wait_for(JOBTEMPLATES, template, holds)


async def test_the_status_lists_the_jobs_of_a_template(server: ApiServer) -> None:
    await server.create(JOBTEMPLATES, {"metadata": {"name": "a"}, "spec": {}})
    await create_job(server, "two", "default.a")
    await create_job(server, "one", "default.a")
    await create_job(server, "other", "default.b")
    await wait_jobs(server, "a", "one", "two")


async def test_jobs_that_exist_before_their_template_are_listed(server: ApiServer) -> None:
    await create_job(server, "one", "default.a")
    await create_job(server, "elsewhere", "other.a")
    await server.create(JOBTEMPLATES, {"metadata": {"name": "a"}, "spec": {}})
    await wait_jobs(server, "a", "one")


async def test_quirk_f15_deleted_jobs_are_removed_up_to_the_last(server: ApiServer) -> None:
    await server.create(JOBTEMPLATES, {"metadata": {"name": "a"}, "spec": {}})
    await create_job(server, "one", "default.a")
    await create_job(server, "two", "default.a")
    await wait_jobs(server, "a", "one", "two")
    await server.delete(JOBS, "one")
    await wait_jobs(server, "a", "two")
    await server.delete(JOBS, "two")
    await wait_jobs(server, "a")


async def test_a_long_name_or_one_with_dots_is_in_the_annotation(server: ApiServer) -> None:
    name = "a.b" + "c" * 70
    await server.create(JOBTEMPLATES, {"metadata": {"name": name}, "spec": {}})
    await create_job(server, "one", "default.a.bc-0123456789", **{KEY: f"default.{name}"})
    await wait_jobs(server, name, "one")


@pytest.mark.parametrize("status", [409, 500])
async def test_a_failed_write_is_repeated(server: ApiServer, status: int) -> None:
    matcher = RequestMatcher("patch", f"{JOBTEMPLATES.plural}/status")
    failed = server.faults.error(matcher, status)
    await server.create(JOBTEMPLATES, {"metadata": {"name": "a"}, "spec": {}})
    await create_job(server, "one", "default.a")
    await wait_jobs(server, "a", "one")
    assert failed.injected == 1
