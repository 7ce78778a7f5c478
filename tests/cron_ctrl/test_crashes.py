"""A crash or a lost response at each point of a start, and informers that lag."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.cronjob_stateful import WORLDS, CronJobWorld


@pytest.fixture(params=WORLDS)
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world(flavour: str) -> Iterator[CronJobWorld]:
    world = WORLDS[flavour]()
    yield world
    world.close()
    assert world.violations == []


def settle(world: CronJobWorld) -> None:
    world.run(world.run_until_quiet())
    world.check_invariants()


def start_at_the_minute(world: CronJobWorld) -> None:
    """Advance to the first scheduled time, without running tasks."""
    world.run(world.start())
    world.run(world.pass_time(60))
    world.clock.tick(0.15)


@pytest.mark.parametrize("policy", ["Allow", "Forbid", "Replace"])
@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("downtime", [0, 60])
def test_a_crash_at_any_point_starts_no_time_twice_and_loses_none(
    flavour: str, policy: str, ended: bool, downtime: int
) -> None:
    """INV-CRON-1, INV-CRON-2.

    Killed after each number of loop iterations, until it has nothing left to do.
    """
    starts = set()
    for iterations in range(40):
        world = WORLDS[flavour]()
        spec = {"concurrencyPolicy": policy, "successfulJobsHistoryLimit": 0}
        world.put_cronjob("a", schedule="* * * * *", **spec)
        start_at_the_minute(world)
        if iterations:
            world.run(world.run_iterations(iterations))
        world.run(world.kill())
        if ended:
            for job in world.jobs(world.cronjobs["a"]):
                world.finish(job)
        world.run(world.pass_time(downtime))
        settle(world)
        (names,) = world.started.values()
        starts.add(len(names))
        world.close()
        assert world.violations == []
        assert len(names) == len(set(names))
    # After a downtime only the latest time is started, or the first and the latest.
    blocked = policy == "Forbid" and not ended
    assert starts == ({1, 2} if downtime and not blocked else {1})


@pytest.mark.parametrize("fault", ["lost", "done 504", "drop", 500, 429])
@pytest.mark.parametrize("path", ["/jobs", "/status"])
def test_a_failed_or_lost_request_is_repeated(
    world: CronJobWorld, fault: int | str, path: str
) -> None:
    world.put_cronjob("a", schedule="* * * * *")
    method = "POST" if path == "/jobs" else "PATCH"
    world.api.inject_fault(fault, method=method, path=path)
    start_at_the_minute(world)
    settle(world)
    assert len(world.jobs(world.cronjobs["a"])) == 1
    assert world.cronjobs["a"]["status"]["lastScheduleTime"] == "2026-01-01T00:01:00Z"


def test_forbid_knows_a_job_that_neither_the_status_nor_the_informer_shows(
    world: CronJobWorld,
) -> None:
    world.put_cronjob("a", schedule="* * * * *", concurrencyPolicy="Forbid")
    world.run(world.start())
    world.run(world.run_until_idle())
    world.api.hold_watches(world.kind.jobs)
    world.api.inject_fault(500, times=1000, method="PATCH", path="/status")
    world.run(world.pass_time(200))
    assert len(world.jobs(world.cronjobs["a"])) == 1
    world.api.clear_faults()
    world.run(world.pass_time(40))
    settle(world)
    assert len(world.cronjobs["a"]["status"]["active"]) == 1


def test_a_job_that_has_ended_is_not_replaced_though_the_informer_does_not_show_its_end(
    world: CronJobWorld,
) -> None:
    """INV-CRON-5: the own write shows that it runs, and its time is not in the status."""
    world.put_cronjob("a", schedule="* * * * *", concurrencyPolicy="Replace")
    world.run(world.start())
    world.run(world.run_until_idle())
    world.api.hold_watches(world.kind.jobs)
    world.api.inject_fault(500, times=1000, method="PATCH", path="/status")
    world.run(world.pass_time(61))
    (job,) = world.jobs(world.cronjobs["a"])
    world.finish(job)
    world.run(world.pass_time(61))
    world.api.clear_faults()
    world.run(world.pass_time(40))
    settle(world)
    kept, _ = world.jobs(world.cronjobs["a"])
    assert kept["metadata"]["uid"] == job["metadata"]["uid"]


def test_a_lagging_informer_of_cronjobs_starts_nothing_twice(world: CronJobWorld) -> None:
    """The Job has been deleted by the history limit, and only the last write shows its time."""
    world.put_cronjob("a", schedule="* * * * *", successfulJobsHistoryLimit=0)
    world.run(world.start())
    world.run(world.run_until_idle())
    world.api.hold_watches(world.kind.cronjobs)
    world.run(world.pass_time(61))
    (job,) = world.jobs(world.cronjobs["a"])
    world.finish(job)
    world.run(world.pass_time(10))
    assert world.jobs(world.cronjobs["a"]) == []
    settle(world)
    assert len(next(iter(world.started.values()))) == 1


def test_a_changed_schedule_applies_from_when_the_controller_sees_the_change(
    world: CronJobWorld,
) -> None:
    """Its spec does not show when it was changed: earlier times do not count as missed."""
    world.put_cronjob("a", schedule="*/5 * * * *")
    world.run(world.start())
    world.run(world.run_until_idle())
    world.api.hold_watches(world.kind.cronjobs)
    world.put_cronjob("a", schedule="* * * * *")
    world.run(world.pass_time(400))
    settle(world)
    assert world.cronjobs["a"]["status"]["lastScheduleTime"] == "2026-01-01T00:05:00Z"
    world.run(world.pass_time(20))
    settle(world)
    assert world.cronjobs["a"]["status"]["lastScheduleTime"] == "2026-01-01T00:07:00Z"


def test_a_policy_applies_until_the_controller_sees_the_next(world: CronJobWorld) -> None:
    world.put_cronjob("a", schedule="* * * * *", concurrencyPolicy="Allow")
    settle(world)
    world.put_cronjob("a", schedule="* * * * *", concurrencyPolicy="Replace")
    world.run(world.run_until_idle())
    world.api.hold_watches(world.kind.cronjobs)
    world.put_cronjob("a", schedule="* * * * *", concurrencyPolicy="Allow")
    world.run(world.pass_time(121))
    assert len(world.jobs(world.cronjobs["a"])) == 1
    settle(world)
    world.run(world.pass_time(60))
    settle(world)
    assert len(world.jobs(world.cronjobs["a"])) == 2


def test_another_leader_that_is_faster_is_no_error(world: CronJobWorld) -> None:
    """The Job exists when it is created: it is taken for the own one, by its uid."""
    world.put_cronjob("a", schedule="* * * * *")
    world.run(world.start())
    world.run(world.run_until_idle())
    world.api.hold_watches(world.kind.jobs)
    fields: dict[str, Any] = {
        "annotations": {world.kind.scheduled_time: "2026-01-01T00:01:00Z"},
        "ownerReferences": [
            {
                "apiVersion": world.kind.cronjobs.api_version,
                "kind": "CronJob",
                "name": "a",
                "uid": world.cronjobs["a"]["metadata"]["uid"],
                "controller": True,
            }
        ],
    }
    minute = int(world.clock.now().timestamp()) // 60 + 1
    world.api.put(world.kind.jobs, f"a-{minute}", metadata=fields)
    world.run(world.pass_time(61))
    assert [each["name"] for each in world.cronjobs["a"]["status"]["active"]] == [f"a-{minute}"]
    assert not [event for event in world.recorder.events if event[2] == "Warning"]
    settle(world)


def test_a_clock_that_is_put_forward_is_noticed(world: CronJobWorld) -> None:
    """As after the suspension of a laptop: what waits is elapsed time."""
    world.put_cronjob("a", schedule="0 * * * *")
    world.run(world.start())
    world.run(world.pass_time(30))
    world.clock.step_wall(3600)
    world.run(world.pass_time(6))
    assert world.cronjobs["a"]["status"]["lastScheduleTime"] == "2026-01-01T01:00:00Z"
    settle(world)


def test_a_clock_that_is_put_back_starts_no_time_again(world: CronJobWorld) -> None:
    world.put_cronjob("a", schedule="*/10 * * * *", successfulJobsHistoryLimit=0)
    world.run(world.start())
    world.run(world.pass_time(601))
    (job,) = world.jobs(world.cronjobs["a"])
    world.finish(job)
    world.clock.step_wall(-300)
    world.run(world.pass_time(310))
    assert world.jobs(world.cronjobs["a"]) == []
    world.run(world.pass_time(600))
    assert len(world.jobs(world.cronjobs["a"])) == 1
    settle(world)
