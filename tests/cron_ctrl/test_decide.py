"""What a CronJob of Volcano needs, where it differs from one of batch/v1, or Volcano errs."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from support.volcano_cronjobs import cronjob, decide, job

from batholith.cron_ctrl.core_types import KIND, Job
from batholith.machinery.cronjobs.build import build_job
from batholith.machinery.cronjobs.decide import Schedule
from batholith.machinery.cronjobs.objects import CronJob

CREATED = datetime(2026, 11, 22, 14, 0, 30, tzinfo=UTC)
NOW = datetime(2026, 11, 22, 14, 30, 0, 100_000, tzinfo=UTC)


def at(text: str) -> datetime:
    """A time of the day."""
    return datetime.fromisoformat(f"2026-11-22T{text}:00+00:00")


def one(schedule: str = "*/10 * * * *", *active: Job, last: str = "", **spec: Any) -> CronJob:
    """A CronJob with Jobs in its status."""
    status: dict[str, Any] = {"active": [msgspec.to_builtins(KIND.reference(it)) for it in active]}
    if last:
        status["lastScheduleTime"] = f"2026-11-22T{last}:00Z"
    return cronjob(schedule, created=CREATED, status=status, **spec)


def reasons(plan: Schedule[Job]) -> list[str]:
    return [event.reason for event in (*plan.changes, *plan.notices)]


@pytest.mark.parametrize("phase", ["Completed", "Failed", "Terminated"])
def test_a_finished_job_leaves_the_status_with_volcanos_event(phase: str) -> None:
    ended = job(at("14:20"), phase)
    plan = decide(one("0 0 * * *", ended, last="14:20"), [ended], NOW)
    assert plan.status.active is None
    (event,) = plan.changes
    assert (event.warning, event.reason) == (False, "SawCompletedJob")
    assert event.message == f"Saw completed job: {ended.metadata.name} in active, remove"
    completed = "2026-11-22T14:20:00Z" if phase == "Completed" else None
    assert plan.status.last_successful_time == completed


@pytest.mark.parametrize(
    "phase", ["", "Pending", "Running", "Restarting", "Aborting", "Aborted", "Completing"]
)
def test_an_unfinished_job_blocks_forbid_also_when_it_is_aborted(phase: str) -> None:
    """It can be resumed."""
    running = job(at("14:20"), phase)
    plan = decide(
        one("*/10 * * * *", running, last="14:20", concurrencyPolicy="Forbid"), [running], NOW
    )
    assert plan.create is None
    assert reasons(plan) == ["ForbidConcurrent"]
    assert plan.next == at("14:40")


def test_terminated_jobs_count_as_failed_ones_in_the_history() -> None:
    """Volcano never deletes them."""
    ended = [
        job(at("14:00"), "Terminated"),
        job(at("14:10"), "Failed"),
        job(at("14:20"), "Terminated"),
        job(at("14:25"), "Completed"),
    ]
    plan = decide(one("0 0 * * *", failedJobsHistoryLimit=1, last="14:20"), ended, NOW)
    assert [*plan.delete] == ended[:2]


def test_replace_deletes_all_active_jobs_at_once() -> None:
    """Volcano removes items from the list that it iterates over, and fails for three or more."""
    active = [job(at(f"14:0{minute}")) for minute in range(4)]
    plan = decide(
        one("*/10 * * * *", *active, last="14:03", concurrencyPolicy="Replace"), active, NOW
    )
    assert [*plan.replace] == active
    assert plan.create == at("14:30")


def test_stale_references_are_all_removed_at_once() -> None:
    deleted = [job(at(f"14:0{minute}")) for minute in range(4)]
    plan = decide(one("0 0 * * *", *deleted, last="14:03"), [], NOW)
    assert plan.status.active is None
    assert reasons(plan) == ["StaleReference"] * 4


def test_a_job_created_before_a_crash_is_added_to_the_status() -> None:
    """Volcano tries to create it again until another time is due, and never counts it."""
    created = job(at("14:30"))
    plan = decide(one(concurrencyPolicy="Forbid"), [created], NOW)
    assert plan.status.active == (KIND.reference(created),)
    assert plan.status.last_schedule_time == "2026-11-22T14:30:00Z"
    assert plan.create is None
    assert reasons(plan) == []


@pytest.mark.parametrize("policy", ["Allow", "Forbid", "Replace"])
def test_a_manual_job_is_neither_reported_nor_replaced_nor_does_it_block(policy: str) -> None:
    annotations = {"cronjob.kubernetes.io/instantiate": "manual"}
    manual = job(at("14:20"), name="now", uid="now", annotations=annotations)
    plan = decide(one(concurrencyPolicy=policy), [manual], NOW)
    assert (plan.create, [*plan.replace], reasons(plan)) == (at("14:30"), [], [])


def test_another_job_of_the_cronjob_is_reported() -> None:
    plan = decide(one("0 0 * * *"), [job(at("14:20"), name="x", uid="x", annotations={})], NOW)
    assert reasons(plan) == ["OrphanedJob"]


def test_jobs_have_names_by_the_minute_so_that_a_minute_has_one() -> None:
    """With a shorter interval Volcano tries to create a Job of the same name again and again."""
    first = decide(one("@every 20s", last="14:29"), [], NOW)
    assert first.create == at("14:30")
    second = decide(one("@every 20s", last="14:30"), [], NOW + timedelta(seconds=21))
    assert second.create is None
    third = decide(one("@every 20s", last="14:30"), [], NOW + timedelta(seconds=61))
    assert third.create == at("14:31")


def test_an_interval_longer_than_the_deadline_is_started() -> None:
    """Volcano measures the interval from the deadline, so that it never ends."""
    plan = decide(one("@every 10m", startingDeadlineSeconds=60, last="14:20"), [], NOW)
    assert plan.create == at("14:30")


@pytest.mark.parametrize(("deadline", "started"), [(None, True), (600, True), (300, False)])
def test_a_missed_time_is_started_within_the_deadline(deadline: int | None, started: bool) -> None:
    late = NOW + timedelta(minutes=6)
    plan = decide(one(startingDeadlineSeconds=deadline), [], late)
    assert plan.create == (at("14:30") if started else None)
    assert reasons(plan) == ([] if started else ["MissSchedule"])
    assert plan.next == at("14:40")


def test_after_a_long_downtime_the_latest_time_is_started_with_a_warning() -> None:
    plan = decide(one("* * * * *"), [], NOW + timedelta(days=400))
    assert plan.create == NOW.replace(microsecond=0) + timedelta(days=400)
    assert reasons(plan) == ["TooManyMissedTimes"]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"schedule": "61 * * * *"}, "UnParseableCronJobSchedule"),
        ({"schedule": "0 0 31 2 *"}, "InvalidSchedule"),
        ({"timeZone": "Nowhere/City"}, "InvalidTimeZone"),
        ({"schedule": "TZ=UTC 0 0 1 1 *"}, "UnsupportedSchedule"),
    ],
)
def test_an_invalid_schedule_or_time_zone_is_reported(spec: dict[str, str], reason: str) -> None:
    plan = decide(one(**spec), [], NOW)
    assert plan.create is None
    assert reasons(plan) == [reason]


def test_a_suspended_cronjob_starts_nothing_and_has_no_timer() -> None:
    plan = decide(one(suspend=True), [], NOW)
    assert (plan.create, plan.next) == (None, None)


def test_the_job_has_the_parts_of_the_template_that_volcano_copies() -> None:
    metadata = {
        "name": "ignored",
        "finalizers": ["example.com/ignored"],
        "labels": {"app": "report"},
        "annotations": {"note": "a"},
    }
    spec = {"queue": "q", "tasks": [{"name": "t", "x": None}], "unknown": 1}
    template = {"metadata": metadata, "spec": spec}
    built: Any = msgspec.json.decode(
        msgspec.json.encode(
            build_job(KIND, one(jobTemplate=template, timeZone="Asia/Tokyo"), at("14:30"))
        )
    )
    assert built == {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {
            "name": f"report-{int(at('14:30').timestamp()) // 60}",
            "namespace": "d",
            "labels": {"app": "report"},
            "annotations": {
                "note": "a",
                "volcano.sh/cronjob-scheduled-timestamp": "2026-11-22T23:30:00+09:00",
            },
            "ownerReferences": [
                {
                    "apiVersion": "batch.volcano.sh/v1alpha1",
                    "kind": "CronJob",
                    "name": "report",
                    "uid": "u",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": spec,
    }
