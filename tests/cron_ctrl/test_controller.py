"""The CronJob controller against an in-process API server, with a fake clock; both kinds."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.admission import admit
from support.admission import job as volcano_job
from support.controller_api import NAMESPACE, ControllerApi
from support.cronjobs import FLAVOURS, Flavour
from support.polling import wait_for, wait_until_true
from support.running_controller import FakeRecorder, running

from batholith.cron_ctrl.controller import CronJobController, CronJobSettings
from batholith.kube.client.client import Client
from batholith.machinery.testing import FakeClock
from batholith.model import times
from batholith.model.names import BATCH_CRONJOBS, CRONJOBS, JOBS

DOCS = Path(__file__).parents[2] / "docs"
SPECS: dict[str, dict[str, Any]] = {
    "kubernetes": {
        "backoffLimit": 2,
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "busybox", "command": ["true"]}],
            }
        },
    },
    "volcano": volcano_job()["spec"],
}
"""Specs of Jobs by the kind of their CronJobs."""
METADATA = {"labels": {"app": "report"}, "name": "ignored", "finalizers": ["x.io/ignored"]}


def _this_minute() -> datetime:
    """A time at which a CronJob created now exists already."""
    return datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1, seconds=30)


@dataclass
class CronJobHarness:
    api: ControllerApi
    client: Client
    flavour: Flavour
    job_spec: dict[str, Any]
    recorder: FakeRecorder = field(default_factory=FakeRecorder)
    clock: FakeClock = field(default_factory=lambda: FakeClock(_this_minute()))

    def __post_init__(self) -> None:
        self.cronjobs, self.kind_of_jobs = self.flavour.kind.cronjobs, self.flavour.kind.jobs

    def controller(self) -> CronJobController[Any]:
        return CronJobController(
            self.client,
            self.flavour.kind,
            settings=CronJobSettings(workers=2, time_zone=UTC),
            clock=self.clock,
            recorder=self.recorder,
        )

    async def create(self, name: str = "report", **spec: Any) -> None:
        """Create a CronJob whose times until now are handled."""
        template = {"metadata": METADATA, "spec": self.job_spec}
        fields = {"schedule": "* * * * *", "jobTemplate": template, **spec}
        body = {"metadata": {"name": name}, "spec": fields}
        await self.api.create(self.cronjobs, body, namespace=NAMESPACE)
        self.api.put(self.cronjobs, name, status={"lastScheduleTime": self.now()})

    def now(self) -> str:
        return times.format(self.clock.now())

    def cronjob(self, name: str = "report") -> dict[str, Any]:
        found: dict[str, Any] = self.api.objects(self.cronjobs)[f"{NAMESPACE}/{name}"]
        return found

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.cronjob().get("status", {})
        return status

    def active(self, name: str = "report") -> list[str]:
        return [each["name"] for each in self.cronjob(name).get("status", {}).get("active", [])]

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        """By name, oldest first."""
        found = self.api.objects(self.kind_of_jobs).values()
        return {each["metadata"]["name"]: each for each in found}

    def finish(self, name: str, condition: str = "Complete") -> None:
        self.api.put(self.kind_of_jobs, name, status=self.flavour.ended(condition, self.now()))

    def put_job(
        self, name: str, owner: dict[str, Any] | None = None, namespace: str = NAMESPACE
    ) -> None:
        """Store a Job that names the CronJob as its controller, with some fields of *owner*."""
        reference = {
            "apiVersion": self.cronjobs.api_version,
            "kind": "CronJob",
            "name": "report",
            "uid": self.cronjob()["metadata"]["uid"],
            "controller": True,
            **(owner or {}),
        }
        metadata = {"ownerReferences": [reference]}
        self.api.put(self.kind_of_jobs, name, namespace=namespace, metadata=metadata)

    def check_spec(self, job: dict[str, Any], spec: dict[str, Any]) -> None:
        """Check that a Job has the spec of its template; the API server adds defaults to one."""
        if self.cronjobs == BATCH_CRONJOBS:
            assert job["spec"]["backoffLimit"] == spec["backoffLimit"]
        else:
            assert job["spec"].items() >= spec.items()

    async def next_minute(self) -> str:
        """Advance to the next scheduled time; return the name of its Job."""
        await self.clock.advance(60 - self.clock.now().timestamp() % 60 + 0.2)
        return f"report-{int(self.clock.now().timestamp()) // 60}"

    async def start_next(self, *still_active: str) -> str:
        """Advance to the next scheduled time, and wait for its Job; return its name."""
        name = await self.next_minute()
        await wait_for(lambda: self.active() == [*still_active, name])
        return name

    def reasons(self) -> list[str]:
        return [event[3] for event in self.recorder.events]


@pytest.fixture(params=FLAVOURS)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[CronJobHarness]:
    async with ControllerApi(CRONJOBS, JOBS) as api, api.client() as client:
        yield CronJobHarness(api, client, FLAVOURS[request.param], SPECS[request.param])


async def test_a_run_from_its_time_to_its_deletion(world: CronJobHarness) -> None:
    await world.create(timeZone="Europe/Berlin", successfulJobsHistoryLimit=1)
    async with running(world.controller()):
        name = await world.start_next()
        created, scheduled = world.jobs[name], world.clock.now().replace(microsecond=0)
        meta = created["metadata"]
        annotation = datetime.fromisoformat(meta["annotations"][world.flavour.kind.scheduled_time])
        assert annotation == scheduled
        assert annotation.utcoffset() != timedelta()
        assert (meta["labels"], "finalizers" in meta) == ({"app": "report"}, False)
        (owner,) = meta["ownerReferences"]
        assert (owner["apiVersion"], owner["kind"], owner["name"]) == (
            *(world.cronjobs.api_version, "CronJob", "report"),
        )
        assert owner["uid"] == world.cronjob()["metadata"]["uid"]
        assert (owner["controller"], owner["blockOwnerDeletion"]) == (True, True)
        world.check_spec(created, world.job_spec)
        (active,) = world.status["active"]
        assert (active["kind"], active["uid"]) == ("Job", meta["uid"])
        assert world.status["lastScheduleTime"] == times.format(scheduled)
        world.finish(name)
        await wait_for(lambda: world.active() == [])
        assert world.status["lastSuccessfulTime"] == world.now()
        second = await world.start_next()
        world.finish(second)
        await wait_for(lambda: [*world.jobs] == [second])
    assert world.reasons() == [
        *("SuccessfulCreate", "SawCompletedJob", "SuccessfulCreate", "SawCompletedJob"),
        "SuccessfulDelete",
    ]
    suffix = f" for CronJob {NAMESPACE}/report" if world.cronjobs == CRONJOBS else ""
    assert world.recorder.events[0][4] == f"Created job {name}{suffix}"


async def test_a_run_costs_two_writes(world: CronJobHarness) -> None:
    await world.create()
    async with running(world.controller()):
        world.finish(await world.start_next())
        await wait_for(lambda: world.active() == [])
        await world.start_next()
    assert world.api.writes(path="/jobs") == 2
    assert world.api.writes(path="/status") == 3


async def test_two_leaders_create_each_job_once(world: CronJobHarness) -> None:
    await world.create()
    async with running(world.controller()), running(world.controller()):
        first = await world.start_next()
        await world.start_next(first)
    assert world.api.created(world.kind_of_jobs) == 2
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


async def test_jobs_are_watched_from_the_first_cronjob_on(world: CronJobHarness) -> None:
    async with running(world.controller()):
        assert len(world.api.watches(world.cronjobs)) == 1
        assert world.api.watches(world.kind_of_jobs) == []
        await world.create(concurrencyPolicy="Forbid")
        world.finish(await world.start_next())
        await wait_for(lambda: world.active() == [])
        assert len(world.api.watches(world.kind_of_jobs)) == 1


async def test_forbid_starts_the_missed_time_when_the_running_job_ends(
    world: CronJobHarness,
) -> None:
    await world.create(concurrencyPolicy="Forbid")
    async with running(world.controller()):
        first = await world.start_next()
        second = await world.next_minute()
        await wait_for(lambda: world.flavour.reasons["blocked"] in world.reasons())
        assert world.active() == [first]
        world.finish(first, "Failed")
        await wait_for(lambda: world.active() == [second])


async def test_replace_deletes_the_running_job_with_its_pods(world: CronJobHarness) -> None:
    await world.create(concurrencyPolicy="Replace")
    async with running(world.controller()):
        await world.start_next()
        second = await world.start_next()
        assert [*world.jobs] == [second]
    deletes = [each for each in world.api.faults.requests if each.method == "DELETE"]
    assert len(deletes) == 1
    reported = ["ReplaceConcurrent"] if world.cronjobs == CRONJOBS else []
    assert world.reasons() == [
        *("SuccessfulCreate", *reported, "SuccessfulDelete", "SuccessfulCreate")
    ]


async def test_a_suspended_cronjob_starts_the_missed_time_when_it_is_resumed(
    world: CronJobHarness,
) -> None:
    await world.create(suspend=True)
    async with running(world.controller()):
        await world.next_minute()
        name = await world.next_minute()
        assert world.jobs == {}
        world.api.put(world.cronjobs, "report", spec={"suspend": False})
        await wait_for(lambda: world.active() == [name])
    assert [*world.jobs] == [name]


async def test_finished_jobs_beyond_the_limits_are_deleted(world: CronJobHarness) -> None:
    await world.create(successfulJobsHistoryLimit=1, failedJobsHistoryLimit=0)
    async with running(world.controller()):
        for condition in ("Complete", "Failed", "Complete"):
            name = await world.start_next()
            world.finish(name, condition)
            await wait_for(lambda: world.active() == [])
        await wait_for(lambda: [*world.jobs] == [name])


async def test_a_job_is_in_the_status_though_the_write_failed_at_first(
    world: CronJobHarness,
) -> None:
    """Volcano never repeats the write, and then creates the Job again and again."""
    await world.create(concurrencyPolicy="Forbid")
    world.api.fail(500, "patch", "/status", count=3)
    async with running(world.controller()):
        name = await world.next_minute()
        await wait_for(lambda: name in world.jobs)

        async def is_active_later() -> bool:
            # Not three times: it waits only after a response, which arrives later.
            await world.clock.advance(30)
            return world.active() == [name]

        await wait_until_true(is_active_later)
    assert world.api.created(world.kind_of_jobs) == 1


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
        first = await world.start_next()
        world.api.fail(422, "create", "/jobs", count=1000)
        await world.next_minute()
        await wait_for(lambda: "FailedCreate" in world.reasons())
        world.finish(first)
        await wait_for(lambda: world.active() == [])
        assert [*world.jobs] == [first]
        world.api.faults.clear()
        name = await world.next_minute()
        await wait_for(lambda: name in world.active())


async def test_a_job_of_someone_else_with_the_name_is_left_alone(world: CronJobHarness) -> None:
    """Volcano looks for it in no namespace, does not find it, and retries."""
    await world.create()
    following = f"report-{int(world.clock.now().timestamp()) // 60 + 1}"
    world.api.put(world.kind_of_jobs, following, spec={"tasks": []})
    async with running(world.controller()):
        await world.next_minute()
        await wait_for(lambda: world.reasons() == [world.flavour.reasons["foreign"]])
        assert "does not control" in world.recorder.events[0][4]
        assert "ownerReferences" not in world.jobs[following]["metadata"]
        assert world.active() == []
        await world.start_next()


async def test_jobs_of_cronjobs_of_another_group_with_the_same_name_are_others(
    world: CronJobHarness,
) -> None:
    await world.create(successfulJobsHistoryLimit=0)
    other = BATCH_CRONJOBS if world.cronjobs == CRONJOBS else CRONJOBS
    world.put_job("theirs", {"apiVersion": other.api_version})
    world.finish("theirs")
    async with running(world.controller()):
        world.finish(await world.start_next())
        await wait_for(lambda: [*world.jobs] == ["theirs"])


async def test_a_job_of_another_namespace_with_the_uid_of_the_cronjob_is_not_its_own(
    world: CronJobHarness,
) -> None:
    """The API server stores owner references unchecked."""
    await world.create()
    world.put_job("forged", namespace="mallory")
    async with running(world.controller()):
        await world.start_next()
    assert world.reasons() == ["SuccessfulCreate"]


async def test_a_job_by_hand_is_reported_once(world: CronJobHarness) -> None:
    await world.create()
    unexpected = world.flavour.reasons["unexpected"]
    async with running(world.controller()):
        world.put_job("manual")
        await wait_for(lambda: world.reasons() == [unexpected])
        first = await world.start_next()
        await world.start_next(first)
    assert world.reasons().count(unexpected) == 1


async def test_an_invalid_schedule_is_reported_once_and_can_be_mended(
    world: CronJobHarness,
) -> None:
    unparseable = world.flavour.reasons["unparseable"]
    await world.create()
    world.api.put(world.cronjobs, "report", spec={"schedule": "61 * * * *"})
    async with running(world.controller()):
        await wait_for(lambda: world.reasons() == [unparseable])
        world.api.put(world.cronjobs, "report", metadata={"labels": {"a": "b"}})
        await world.next_minute()
        world.api.put(world.cronjobs, "report", spec={"schedule": "TZ=UTC * * * * *"})
        await wait_for(lambda: "UnsupportedSchedule" in world.reasons())
        await world.next_minute()
        await wait_for(lambda: "SuccessfulCreate" in world.reasons())
    assert world.reasons() == [unparseable, "UnsupportedSchedule", "SuccessfulCreate"]


async def test_the_jobs_of_a_deleted_and_recreated_cronjob_are_not_its_own(
    world: CronJobHarness,
) -> None:
    await world.create()
    async with running(world.controller()):
        await world.start_next()
        world.api.remove(world.cronjobs, "report")
        await world.create()
        await world.start_next()


async def test_many_cronjobs_of_one_minute_start_once_each(world: CronJobHarness) -> None:
    for number in range(40):
        await world.create(f"c{number}")
    async with running(world.controller()):
        await world.next_minute()
        await wait_for(
            lambda: all(world.active(f"c{number}") for number in range(40)), "all have started"
        )
    assert world.api.created(world.kind_of_jobs) == 40
    assert world.api.writes() == 80


async def test_the_manifest_of_the_documentation_starts_a_job(world: CronJobHarness) -> None:
    page, monday = ("cronjobs.md", datetime(2030, 1, 7, 8, 59, 30, tzinfo=UTC))  # ten in Berlin
    if world.cronjobs == CRONJOBS:
        page, monday = "volcano-cronjobs.md", datetime(2030, 1, 7, 1, 29, 30, tzinfo=UTC)
    text = (DOCS / page).read_text()
    manifest = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    if world.cronjobs == CRONJOBS:
        admit(manifest)
    created = await world.api.create(world.cronjobs, manifest, namespace=NAMESPACE)
    name = manifest["metadata"]["name"]
    world.api.put(world.cronjobs, name, status={"lastScheduleTime": times.format(monday)})
    world.clock = FakeClock(monday)
    async with running(world.controller()):
        minute = (await world.next_minute()).removeprefix("report-")
        await wait_for(lambda: world.active(name) == [f"{name}-{minute}"])
    template = created["spec"]["jobTemplate"]
    started = world.jobs[f"{name}-{minute}"]
    world.check_spec(started, template["spec"])
    labels = template.get("metadata", {}).get("labels", {})
    assert started["metadata"].get("labels", {}).items() >= labels.items()
