"""The controller of Volcano's CronJobs against an in-process API server, with a fake clock."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.admission import admit, job
from support.controller_api import NAMESPACE, ControllerApi
from support.polling import wait_for, wait_until_true
from support.running_controller import FakeRecorder, running

from batholith.cron_ctrl.controller import CronJobController
from batholith.kube.client.client import Client
from batholith.machinery.cronjobs.controller import CronJobSettings
from batholith.machinery.testing import FakeClock
from batholith.model import times
from batholith.model.names import CRONJOBS, JOBS

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "report"}, "name": "ignored", "finalizers": ["x.io/ignored"]},
    "spec": job()["spec"],
}


@dataclass
class Harness:
    api: ControllerApi
    client: Client
    recorder: FakeRecorder = field(default_factory=FakeRecorder)
    clock: FakeClock = field(
        default_factory=lambda: FakeClock(
            datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1, seconds=30)
        )
    )

    def controller(self) -> CronJobController:
        return CronJobController(
            self.client,
            settings=CronJobSettings(workers=2, time_zone=UTC),
            clock=self.clock,
            recorder=self.recorder,
        )

    async def create(self, **spec: Any) -> None:
        """Create a CronJob whose times until now are handled."""
        fields = {"schedule": "* * * * *", "jobTemplate": TEMPLATE, **spec}
        body = {"metadata": {"name": "report"}, "spec": fields}
        await self.api.create(CRONJOBS, body, namespace=NAMESPACE)
        handled = {"lastScheduleTime": times.format(self.clock.now())}
        self.api.put(CRONJOBS, "report", status=handled)

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.objects(CRONJOBS)[f"{NAMESPACE}/report"].get("status", {})
        return found

    @property
    def active(self) -> list[str]:
        return [each["name"] for each in self.status.get("active", [])]

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        return {each["metadata"]["name"]: each for each in self.api.objects(JOBS).values()}

    def finish(self, name: str, phase: str = "Completed") -> None:
        state = {"phase": phase, "lastTransitionTime": times.format(self.clock.now())}
        self.api.put(JOBS, name, status={"state": state})

    async def next_minute(self) -> str:
        """Advance to the next scheduled time; return the name of its Job."""
        await self.clock.advance(60 - self.clock.now().timestamp() % 60 + 0.2)
        return f"report-{int(self.clock.now().timestamp()) // 60}"

    def reasons(self) -> list[str]:
        return [event[3] for event in self.recorder.events]


@pytest.fixture
async def world() -> AsyncIterator[Harness]:
    async with ControllerApi(CRONJOBS, JOBS) as api, api.client() as client:
        yield Harness(api, client)


async def test_a_run_from_its_time_to_its_completion(world: Harness) -> None:
    await world.create(timeZone="Europe/Berlin", successfulJobsHistoryLimit=1)
    async with running(world.controller()):
        name = await world.next_minute()
        await wait_for(lambda: world.active == [name])
        created, scheduled = world.jobs[name], world.clock.now().replace(microsecond=0)
        meta = created["metadata"]
        annotation = meta["annotations"]["volcano.sh/cronjob-scheduled-timestamp"]
        assert datetime.fromisoformat(annotation) == scheduled
        assert (meta["labels"], "finalizers" in meta) == ({"app": "report"}, False)
        (owner,) = meta["ownerReferences"]
        assert (owner["apiVersion"], owner["kind"]) == ("batch.volcano.sh/v1alpha1", "CronJob")
        assert (owner["controller"], owner["blockOwnerDeletion"]) == (True, True)
        (active,) = world.status["active"]
        assert (active["kind"], active["uid"]) == ("Job", meta["uid"])
        assert world.status["lastScheduleTime"] == times.format(scheduled)
        world.finish(name)
        await wait_for(lambda: world.active == [])
        assert world.status["lastSuccessfulTime"] == times.format(world.clock.now())
        second = await world.next_minute()
        await wait_for(lambda: world.active == [second])
        world.finish(second)
        await wait_for(lambda: [*world.jobs] == [second])
    assert world.reasons() == [
        *("SuccessfulCreate", "SawCompletedJob", "SuccessfulCreate", "SawCompletedJob"),
        "SuccessfulDelete",
    ]
    assert world.recorder.events[0][4] == f"Created job {name} for CronJob {NAMESPACE}/report"


async def test_replace_reports_and_deletes_what_is_active(world: Harness) -> None:
    await world.create(concurrencyPolicy="Replace")
    async with running(world.controller()):
        first = await world.next_minute()
        await wait_for(lambda: world.active == [first])
        second = await world.next_minute()
        await wait_for(lambda: world.active == [second])
        assert [*world.jobs] == [second]
    assert world.reasons() == [
        *("SuccessfulCreate", "ReplaceConcurrent", "SuccessfulDelete", "SuccessfulCreate")
    ]


async def test_a_job_is_in_the_status_though_the_write_failed_at_first(world: Harness) -> None:
    """Volcano never repeats the write, and then creates the Job again and again."""
    await world.create(concurrencyPolicy="Forbid")
    world.api.fail(500, "patch", "/status", count=3)
    async with running(world.controller()):
        name = await world.next_minute()
        await wait_for(lambda: name in world.jobs)

        async def is_active_later() -> bool:
            # Not three times: it waits only after a response, which arrives later.
            await world.clock.advance(30)
            return world.active == [name]

        await wait_until_true(is_active_later)
    assert world.api.created(JOBS) == 1


async def test_jobs_are_watched_from_the_first_cronjob_on(world: Harness) -> None:
    async with running(world.controller()):
        assert (len(world.api.watches(CRONJOBS)), world.api.watches(JOBS)) == (1, [])
        await world.create(concurrencyPolicy="Forbid")
        first = await world.next_minute()
        await wait_for(lambda: world.active == [first])
        world.finish(first)
        await wait_for(lambda: world.active == [])
        assert len(world.api.watches(JOBS)) == 1


async def test_a_job_of_someone_else_with_the_name_is_left_alone(world: Harness) -> None:
    """Volcano looks for it in no namespace, does not find it, and retries."""
    await world.create()
    following = int(world.clock.now().timestamp()) // 60 + 1
    world.api.put(JOBS, f"report-{following}", spec={"tasks": []})
    async with running(world.controller()):
        await world.next_minute()
        await wait_for(lambda: world.reasons() == ["ForeignJob"])
        assert "ownerReferences" not in world.jobs[f"report-{following}"]["metadata"]
        name = await world.next_minute()
        await wait_for(lambda: world.active == [name])


async def test_jobs_of_batch_cronjobs_of_the_same_name_are_others(world: Harness) -> None:
    await world.create(successfulJobsHistoryLimit=0)
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "report", "controller": True}
    uid = world.api.objects(CRONJOBS)[f"{NAMESPACE}/report"]["metadata"]["uid"]
    world.api.put(JOBS, "theirs", metadata={"ownerReferences": [owner | {"uid": uid}]})
    world.finish("theirs")
    async with running(world.controller()):
        name = await world.next_minute()
        await wait_for(lambda: world.active == [name])
        world.finish(name)
        await wait_for(lambda: [*world.jobs] == ["theirs"])


async def test_a_job_of_another_namespace_with_the_uid_of_the_cronjob_is_not_its_own(
    world: Harness,
) -> None:
    """The API server stores owner references unchecked."""
    await world.create()
    owner = {
        "apiVersion": CRONJOBS.api_version,
        "kind": "CronJob",
        "name": "report",
        "uid": world.api.objects(CRONJOBS)[f"{NAMESPACE}/report"]["metadata"]["uid"],
        "controller": True,
    }
    world.api.put(JOBS, "forged", namespace="mallory", metadata={"ownerReferences": [owner]})
    async with running(world.controller()):
        name = await world.next_minute()
        await wait_for(lambda: world.active == [name])
    assert world.reasons() == ["SuccessfulCreate"]


async def test_the_manifest_of_the_documentation_starts_a_job(world: Harness) -> None:
    page = (Path(__file__).parents[2] / "docs" / "volcano-cronjobs.md").read_text()
    manifest = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    admit(manifest)
    created = await world.api.create(CRONJOBS, manifest, namespace=NAMESPACE)
    monday = datetime(2030, 1, 7, 1, 29, 30, tzinfo=UTC)  # half past two in Berlin
    handled = {"lastScheduleTime": times.format(monday)}
    world.api.put(CRONJOBS, "nightly", status=handled)
    world.clock = FakeClock(monday)
    async with running(world.controller()):
        minute = int((await world.next_minute()).removeprefix("report-"))
        await wait_for(lambda: f"nightly-{minute}" in world.jobs)
    started = world.jobs[f"nightly-{minute}"]
    assert started["spec"] == created["spec"]["jobTemplate"]["spec"]
    assert started["metadata"]["labels"] == {"app": "nightly"}
