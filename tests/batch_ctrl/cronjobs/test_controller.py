"""The CronJob controller against an in-process API server, with a fake clock."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.controller_api import NAMESPACE, ControllerApi
from support.polling import wait_for
from support.running_controller import FakeRecorder, running

from batholith.batch_ctrl.cronjobs.controller import CronJobController
from batholith.kube.client.client import Client
from batholith.machinery.cronjobs.controller import CronJobSettings
from batholith.machinery.testing import FakeClock
from batholith.model import times
from batholith.model.names import BATCH_CRONJOBS, BATCH_JOBS

SCHEDULED_TIME = "batch.kubernetes.io/cronjob-scheduled-timestamp"
TEMPLATE: dict[str, Any] = {
    "spec": {
        "backoffLimit": 2,
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "busybox", "command": ["true"]}],
            }
        },
    }
}


def _this_minute() -> datetime:
    """A time at which a CronJob created now exists already."""
    return datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1, seconds=30)


@dataclass
class CronJobHarness:
    api: ControllerApi
    client: Client
    recorder: FakeRecorder = field(default_factory=FakeRecorder)
    clock: FakeClock = field(default_factory=lambda: FakeClock(_this_minute()))

    def controller(self, **settings: Any) -> CronJobController:
        return CronJobController(
            self.client,
            settings=CronJobSettings(time_zone=UTC, **settings),
            clock=self.clock,
            recorder=self.recorder,
        )

    async def create(self, name: str = "report", **spec: Any) -> None:
        """Create a CronJob whose times until now are handled."""
        fields = {"schedule": "* * * * *", "jobTemplate": TEMPLATE, **spec}
        cronjob = {"metadata": {"name": name}, "spec": fields}
        await self.api.create(BATCH_CRONJOBS, cronjob, namespace=NAMESPACE)
        self.api.put(BATCH_CRONJOBS, name, status={"lastScheduleTime": self.now()})

    def now(self) -> str:
        return times.format(self.clock.now())

    def cronjob(self, name: str = "report") -> dict[str, Any]:
        found: dict[str, Any] = self.api.objects(BATCH_CRONJOBS)[f"{NAMESPACE}/{name}"]
        return found

    def status(self, name: str = "report") -> dict[str, Any]:
        status: dict[str, Any] = self.cronjob(name).get("status", {})
        return status

    def active(self, name: str = "report") -> list[str]:
        return [each["name"] for each in self.status(name).get("active", [])]

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        """By name, oldest first."""
        found = self.api.objects(BATCH_JOBS).values()
        return {each["metadata"]["name"]: each for each in found}

    def finish(self, name: str, condition: str = "Complete") -> None:
        ended = {"completionTime": self.now()} if condition == "Complete" else {}
        conditions = [{"type": condition, "status": "True"}]
        self.api.put(BATCH_JOBS, name, status={"conditions": conditions, **ended})

    async def next_minute(self) -> str:
        """Advance to the next scheduled time; return the name of its Job."""
        seconds = 60 - self.clock.now().timestamp() % 60
        await self.clock.advance(seconds + 0.2)
        return f"report-{int(self.clock.now().timestamp()) // 60}"

    def reasons(self) -> list[str]:
        return [event[3] for event in self.recorder.events]


@pytest.fixture
async def world() -> AsyncIterator[CronJobHarness]:
    async with ControllerApi() as api, api.client() as client:
        yield CronJobHarness(api, client)


async def test_a_job_is_created_at_its_time_and_leaves_the_status_when_it_ends(
    world: CronJobHarness,
) -> None:
    await world.create(timeZone="Europe/Berlin")
    async with running(world.controller()):
        name = await world.next_minute()
        await wait_for(lambda: world.active() == [name])
        job, scheduled = world.jobs[name], world.clock.now().replace(microsecond=0)
        annotation = datetime.fromisoformat(job["metadata"]["annotations"][SCHEDULED_TIME])
        assert annotation == scheduled
        assert annotation.utcoffset() != timedelta()
        assert job["spec"]["backoffLimit"] == 2
        (owner,) = job["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("CronJob", "report", True)
        assert owner["uid"] == world.cronjob()["metadata"]["uid"]
        assert world.status()["active"][0]["uid"] == job["metadata"]["uid"]
        assert world.status()["lastScheduleTime"] == times.format(scheduled)
        world.finish(name)
        await wait_for(lambda: world.active() == [])
        assert world.status()["lastSuccessfulTime"] == world.now()
        await wait_for(lambda: world.reasons() == ["SuccessfulCreate", "SawCompletedJob"])


async def test_a_run_costs_two_writes(world: CronJobHarness) -> None:
    await world.create()
    async with running(world.controller()):
        name = await world.next_minute()
        await wait_for(lambda: world.active() == [name])
        world.finish(name)
        await wait_for(lambda: world.active() == [])
        second = await world.next_minute()
        await wait_for(lambda: world.active() == [second])
    assert world.api.writes(path="/jobs") == 2
    assert world.api.writes(path="/status") == 3


async def test_two_leaders_create_each_job_once(world: CronJobHarness) -> None:
    await world.create()
    async with running(world.controller()), running(world.controller()):
        first = await world.next_minute()
        await wait_for(lambda: world.active() == [first])
        second = await world.next_minute()
        await wait_for(lambda: world.active() == [first, second])
    assert world.api.created(BATCH_JOBS) == 2
    assert world.reasons().count("SuccessfulCreate") == 2


async def test_a_standby_starts_nothing_until_it_is_elected(world: CronJobHarness) -> None:
    await world.create()
    ready, elected = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(world.controller().run(ready=ready, elected=elected))
    await ready.wait()
    name = await world.next_minute()
    assert world.jobs == {}
    elected.set()
    await wait_for(lambda: world.active() == [name])
    task.cancel()
    await asyncio.wait([task])


async def test_forbid_starts_the_missed_time_when_the_running_job_ends(
    world: CronJobHarness,
) -> None:
    await world.create(concurrencyPolicy="Forbid")
    async with running(world.controller()):
        first = await world.next_minute()
        await wait_for(lambda: world.active() == [first])
        second = await world.next_minute()
        await wait_for(lambda: "JobAlreadyActive" in world.reasons())
        assert world.active() == [first]
        world.finish(first, "Failed")
        await wait_for(lambda: world.active() == [second])


async def test_replace_deletes_the_running_job_with_its_pods(world: CronJobHarness) -> None:
    await world.create(concurrencyPolicy="Replace")
    async with running(world.controller()):
        first = await world.next_minute()
        await wait_for(lambda: world.active() == [first])
        second = await world.next_minute()
        await wait_for(lambda: world.active() == [second])
        assert [*world.jobs] == [second]
    deletes = [each for each in world.api.faults.requests if each.method == "DELETE"]
    assert len(deletes) == 1
    assert world.reasons() == ["SuccessfulCreate", "SuccessfulDelete", "SuccessfulCreate"]


async def test_a_suspended_cronjob_starts_the_missed_time_when_it_is_resumed(
    world: CronJobHarness,
) -> None:
    await world.create(suspend=True)
    async with running(world.controller()):
        await world.next_minute()
        name = await world.next_minute()
        assert world.jobs == {}
        world.api.put(BATCH_CRONJOBS, "report", spec={"suspend": False})
        await wait_for(lambda: world.active() == [name])
    assert [*world.jobs] == [name]


async def test_a_changed_schedule_applies_from_then_on(world: CronJobHarness) -> None:
    await world.create(schedule="0 0 1 1 *")
    async with running(world.controller()):
        await world.next_minute()
        minute = world.clock.now().minute
        # The event on the zone reports that the change is observed.
        this_and_next = f"TZ=UTC {minute},{(minute + 1) % 60} * * * *"
        world.api.put(BATCH_CRONJOBS, "report", spec={"schedule": this_and_next})
        await wait_for(lambda: world.reasons() == ["UnsupportedSchedule"])
        assert world.jobs == {}, "this minute was before the change of the schedule"
        name = await world.next_minute()
        await wait_for(lambda: world.active() == [name])


async def test_finished_jobs_beyond_the_limits_are_deleted(world: CronJobHarness) -> None:
    await world.create(successfulJobsHistoryLimit=1, failedJobsHistoryLimit=0)
    async with running(world.controller()):
        names = []
        for condition in ("Complete", "Failed", "Complete"):
            names.append(await world.next_minute())
            await wait_for(lambda: world.active() == names[-1:])
            world.finish(names[-1], condition)
            await wait_for(lambda: world.active() == [])
        await wait_for(lambda: [*world.jobs] == names[-1:])


async def test_a_job_that_cannot_be_created_is_reported_and_tried_again(
    world: CronJobHarness,
) -> None:
    await world.create()
    world.api.fail(403, "create", "/jobs")
    async with running(world.controller()):
        name = await world.next_minute()
        await wait_for(lambda: "FailedCreate" in world.reasons())
        await world.clock.advance(1)
        await wait_for(lambda: world.active() == [name])
    assert world.reasons() == ["FailedCreate", "SuccessfulCreate"]


async def test_a_job_that_is_refused_does_not_prevent_the_rest(world: CronJobHarness) -> None:
    await world.create()
    async with running(world.controller()):
        first = await world.next_minute()
        await wait_for(lambda: world.active() == [first])
        world.api.fail(422, "create", "/jobs", count=1000)
        await world.next_minute()
        await wait_for(lambda: "FailedCreate" in world.reasons())
        world.finish(first)
        await wait_for(lambda: world.active() == [])
        assert [*world.jobs] == [first]
        world.api.faults.clear()
        name = await world.next_minute()
        await wait_for(lambda: name in world.active())


async def test_a_job_by_hand_is_reported_once(world: CronJobHarness) -> None:
    await world.create()
    async with running(world.controller()):
        owner = {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "name": "report",
            "uid": world.cronjob()["metadata"]["uid"],
            "controller": True,
        }
        world.api.put(BATCH_JOBS, "manual", metadata={"ownerReferences": [owner]})
        await wait_for(lambda: world.reasons() == ["UnexpectedJob"])
        for _ in range(2):
            await world.next_minute()
        await wait_for(lambda: len(world.active()) == 2)
    assert world.reasons().count("UnexpectedJob") == 1


async def test_an_invalid_schedule_is_reported_once_and_can_be_mended(
    world: CronJobHarness,
) -> None:
    await world.create()
    world.api.put(BATCH_CRONJOBS, "report", spec={"schedule": "61 * * * *"})
    async with running(world.controller()):
        await wait_for(lambda: world.reasons() == ["UnparseableSchedule"])
        world.api.put(BATCH_CRONJOBS, "report", metadata={"labels": {"a": "b"}})
        await world.next_minute()
        world.api.put(BATCH_CRONJOBS, "report", spec={"schedule": "TZ=UTC * * * * *"})
        await wait_for(lambda: "UnsupportedSchedule" in world.reasons())
        await world.next_minute()
        await wait_for(lambda: "SuccessfulCreate" in world.reasons())
    assert world.reasons() == ["UnparseableSchedule", "UnsupportedSchedule", "SuccessfulCreate"]


async def test_the_jobs_of_a_deleted_and_recreated_cronjob_are_not_its_own(
    world: CronJobHarness,
) -> None:
    await world.create()
    async with running(world.controller()):
        first = await world.next_minute()
        await wait_for(lambda: world.active() == [first])
        world.api.remove(BATCH_CRONJOBS, "report")
        await world.create()
        second = await world.next_minute()
        await wait_for(lambda: world.active() == [second])


async def test_many_cronjobs_of_one_minute_start_once_each(world: CronJobHarness) -> None:
    for number in range(40):
        await world.create(f"c{number}")
    async with running(world.controller()):
        await world.next_minute()
        await wait_for(
            lambda: all(world.active(f"c{number}") for number in range(40)), "all have started"
        )
    assert world.api.created(BATCH_JOBS) == 40
    assert world.api.writes() == 80


async def test_the_manifest_of_the_documentation_starts_a_job(world: CronJobHarness) -> None:
    page = (Path(__file__).parents[3] / "docs" / "cronjobs.md").read_text()
    manifest = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    await world.api.create(BATCH_CRONJOBS, manifest, namespace=NAMESPACE)
    monday = datetime(2030, 1, 7, 8, 59, 30, tzinfo=UTC)  # a minute before ten in Berlin
    world.api.put(BATCH_CRONJOBS, "report", status={"lastScheduleTime": times.format(monday)})
    world.clock = FakeClock(monday)
    async with running(world.controller()):
        name = await world.next_minute()
        await wait_for(lambda: world.active() == [name])
    assert world.jobs[name]["spec"]["backoffLimit"] == 2
