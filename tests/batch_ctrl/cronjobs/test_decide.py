"""What a CronJob needs, as a pure function."""

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batholith.batch_ctrl.cronjobs.core_types import KIND, SCHEDULED_TIME, Job
from batholith.machinery import cron, cronjobs
from batholith.machinery.cronjobs.build import build_job
from batholith.machinery.cronjobs.decide import Schedule, without
from batholith.machinery.cronjobs.objects import CronJob
from batholith.model import times

decide = partial(cronjobs.decide.schedule, KIND)
with_created = partial(cronjobs.decide.with_created, KIND)

CREATED = "2026-11-22T14:00:30Z"
NOW = datetime(2026, 11, 22, 14, 30, 0, 100_000, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> datetime:
    """A time of the day."""
    return datetime.fromisoformat(f"2026-11-22T{text}+00:00")


def cronjob(
    schedule: str = "*/10 * * * *", *, status: dict[str, Any] | None = None, **spec: Any
) -> CronJob:
    fields: dict[str, Any] = {
        "metadata": {"name": "report", "namespace": "d", "uid": "u", "creationTimestamp": CREATED},
        "spec": {"schedule": schedule, "concurrencyPolicy": "Allow", "jobTemplate": {}, **spec},
        "status": status or {},
    }
    return msgspec.json.decode(msgspec.json.encode(fields), type=CronJob)


def job(scheduled: str, condition: str = "", *, ended: str = "", **metadata: Any) -> Job:
    """The Job for one time of the day."""
    moment = at(scheduled)
    status: dict[str, Any] = {"startTime": times.format(moment)}
    if condition:
        status["conditions"] = [{"type": condition, "status": "True"}]
    if ended:
        status["completionTime"] = times.format(at(ended))
    fields = {
        "metadata": {
            "name": f"report-{int(moment.timestamp() // 60)}",
            "namespace": "d",
            "uid": f"job-{scheduled}",
            "creationTimestamp": times.format(moment),
            "annotations": {SCHEDULED_TIME: times.format(moment)},
            **metadata,
        },
        "status": status,
    }
    return msgspec.json.decode(msgspec.json.encode(fields), type=Job)


def active(*jobs: Job) -> list[Any]:
    return [msgspec.to_builtins(KIND.reference(each)) for each in jobs]


def reasons(plan: Schedule[Job]) -> list[str]:
    return [event.reason for event in (*plan.changes, *plan.notices)]


# When to start.


@pytest.mark.parametrize(
    ("schedule", "last", "create", "following"),
    [
        ("*/10 * * * *", "14:20:00", "14:30:00", "14:40:00"),
        ("*/10 * * * *", "14:30:00", None, "14:40:00"),
        ("*/10 * * * *", None, "14:30:00", "14:40:00"),
        ("15 * * * *", None, "14:15:00", "15:15:00"),
        ("0 14 * * *", None, None, "+14:00:00"),  # before it was created
        ("@every 20m", None, "14:20:30", "14:40:30"),
        ("@every 20m", "14:20:30", None, "14:40:30"),
    ],
)
def test_the_latest_missed_time_is_started(
    schedule: str, last: str | None, create: str | None, following: str
) -> None:
    status = {"lastScheduleTime": times.format(at(last))} if last else {}
    plan = decide(cronjob(schedule, status=status), [], NOW)
    tomorrow = following.startswith("+")
    due_again = at(following.removeprefix("+")) + timedelta(days=tomorrow)
    assert (plan.create, plan.next) == (at(create) if create else None, due_again)
    assert reasons(plan) == []


def test_a_time_zone_applies_to_the_schedule() -> None:
    plan = decide(cronjob("30 15 * * *", timeZone="Europe/Berlin"), [], NOW)
    assert plan.create == at("14:30:00")
    plan = decide(cronjob("30 15 * * *"), [], NOW, local_zone=BERLIN)
    assert plan.create == at("14:30:00")
    assert decide(cronjob("30 15 * * *"), [], NOW).create is None


def test_a_changed_schedule_applies_from_then_on() -> None:
    """Otherwise a CronJob would start at once that is moved to an earlier time of the day."""
    plan = decide(cronjob("15 * * * *"), [], NOW, changed_at=at("14:29:00"))
    assert (plan.create, plan.next) == (None, at("15:15:00"))
    plan = decide(cronjob("15,30 * * * *"), [], NOW, changed_at=at("14:29:00"))
    assert plan.create == at("14:30:00")


def test_a_clock_that_was_put_back_after_a_change_does_not_matter() -> None:
    plan = decide(cronjob("31 * * * *"), [], NOW, changed_at=at("18:00:00"))
    assert (plan.create, plan.next) == (None, at("14:31:00"))


def test_a_suspended_cronjob_starts_nothing_and_missed_times_count_when_it_is_resumed() -> None:
    plan = decide(cronjob(suspend=True), [], NOW)
    assert (plan.create, plan.next) == (None, None)
    assert decide(cronjob(suspend=False), [], NOW).create == at("14:30:00")


def test_a_deleted_cronjob_only_gets_a_status() -> None:
    deleted = cronjob(status={"active": active(job("14:10:00"))}, successfulJobsHistoryLimit=0)
    meta = msgspec.structs.replace(deleted.metadata, deletion_timestamp=CREATED)
    deleted = msgspec.structs.replace(deleted, metadata=meta)
    plan = decide(deleted, [job("14:10:00", "Complete", ended="14:11:00")], NOW)
    assert (plan.create, plan.next, list(plan.delete)) == (None, None, [])
    assert plan.status.active is None


@pytest.mark.parametrize(
    ("deadline", "create", "reason"),
    [(None, "14:20:00", []), (600, None, ["MissSchedule"]), (601, "14:20:00", [])],
)
def test_a_starting_deadline_ends_the_chance_to_start(
    deadline: int | None, create: str | None, reason: list[str]
) -> None:
    spec: dict[str, Any] = {"startingDeadlineSeconds": deadline} if deadline else {}
    plan = decide(cronjob("20 * * * *", **spec), [], NOW)
    assert plan.create == (at(create) if create else None)
    assert (reasons(plan), plan.next) == (reason, at("15:20:00"))


def test_an_interval_is_not_shifted_by_the_deadline() -> None:
    """Kubernetes starts nothing if the interval is longer than the deadline."""
    plan = decide(cronjob("@every 25m", startingDeadlineSeconds=300), [], at("14:26:00"))
    assert plan.create == at("14:25:30")


@pytest.mark.parametrize(
    ("schedule", "spec", "now", "warned"),
    [
        ("* * * * *", {}, "15:40:30", False),
        ("* * * * *", {}, "15:41:30", True),
        ("* * * * *", {"startingDeadlineSeconds": 600}, "15:41:30", False),
        ("* * * * *", {"startingDeadlineSeconds": 86400}, "15:41:30", True),
    ],
)
def test_more_than_a_hundred_missed_times_are_reported_and_the_latest_is_started(
    schedule: str, spec: dict[str, Any], now: str, warned: bool
) -> None:
    plan = decide(cronjob(schedule, **spec), [], at(now))
    assert plan.create == at(now).replace(second=0)
    assert reasons(plan) == (["TooManyMissedTimes"] if warned else [])


@pytest.mark.parametrize(
    ("schedule", "spec", "reason"),
    [
        ("61 * * * *", {}, "UnparseableSchedule"),
        ("* * * * *", {"timeZone": "Nowhere"}, "UnknownTimeZone"),
        ("0 0 30 2 *", {}, "InvalidSchedule"),
    ],
)
def test_an_invalid_schedule_is_reported(schedule: str, spec: dict[str, Any], reason: str) -> None:
    plan = decide(cronjob(schedule, **spec), [], NOW)
    assert (plan.create, plan.next, reasons(plan)) == (None, None, [reason])


def test_a_time_zone_in_the_schedule_takes_precedence_with_a_warning() -> None:
    plan = decide(cronjob("TZ=Europe/Berlin 30 15 * * *", timeZone="Asia/Tokyo"), [], NOW)
    assert (plan.create, reasons(plan)) == (at("14:30:00"), ["UnsupportedSchedule"])


def test_a_last_time_in_the_future_is_reported() -> None:
    """The clock was wrong: a time that was started is not started again."""
    plan = decide(cronjob(status={"lastScheduleTime": times.format(at("18:00:00"))}), [], NOW)
    assert (plan.create, plan.next) == (None, at("18:10:00"))
    assert reasons(plan) == ["ScheduledInFuture"]


def test_there_is_one_job_a_minute() -> None:
    """Names have minutes."""
    status = {"lastScheduleTime": times.format(at("14:30:00"))}
    plan = decide(cronjob("@every 20s", status=status), [], at("14:30:41"))
    assert (plan.create, plan.next) == (None, at("14:31:00"))


# Concurrency.


def test_forbid_waits_for_the_running_job() -> None:
    running = job("14:20:00")
    forbidding = cronjob(concurrencyPolicy="Forbid", status={"active": active(running)})
    plan = decide(forbidding, [running], NOW)
    assert (plan.create, reasons(plan)) == (None, ["JobAlreadyActive"])
    plan = decide(forbidding, [job("14:20:00", "Failed")], NOW)
    assert (plan.create, reasons(plan)) == (at("14:30:00"), ["SawCompletedJob"])


def test_replace_deletes_the_running_jobs() -> None:
    first, second, deleted = (
        job("14:10:00"),
        job("14:20:00"),
        job("14:25:00", deletionTimestamp=CREATED),
    )
    replacing = cronjob(
        concurrencyPolicy="Replace", status={"active": active(first, second, deleted)}
    )
    plan = decide(replacing, [first, second, deleted], NOW)
    assert (plan.create, list(plan.replace)) == (at("14:30:00"), [first, second])
    assert without(plan.status, plan.replace).active == (KIND.reference(deleted),)
    assert decide(replacing, [first, second, deleted], at("14:29:00")).replace == ()


def test_allow_runs_jobs_concurrently() -> None:
    running = job("14:20:00")
    plan = decide(cronjob(status={"active": active(running)}), [running], NOW)
    assert (plan.create, list(plan.replace)) == (at("14:30:00"), [])


# Status.


def test_a_finished_job_leaves_the_status() -> None:
    first, second = job("14:10:00", "Complete", ended="14:12:00"), job("14:20:00")
    plan = decide(
        cronjob(status={"active": active(first, second)}), [second, first], at("14:29:00")
    )
    assert plan.status.active == (KIND.reference(second),)
    assert plan.status.last_successful_time == times.format(at("14:12:00"))
    assert [event.message for event in plan.changes] == [
        f"Saw completed job: {first.metadata.name}, condition: Complete"
    ]


def test_the_last_successful_time_only_increases() -> None:
    late = {"lastSuccessfulTime": times.format(at("14:25:00"))}
    jobs = [job("14:10:00", "Complete", ended="14:12:00"), job("14:20:00", "Failed")]
    assert (
        decide(cronjob(status=late), jobs, NOW).status.last_successful_time
        == late["lastSuccessfulTime"]
    )


def test_a_missing_job_leaves_the_status() -> None:
    plan = decide(cronjob(status={"active": active(job("14:20:00"))}), [], NOW)
    assert (plan.status.active, reasons(plan)) == (None, ["MissingJob"])


@pytest.mark.parametrize("condition", ["", "Complete", "Failed"])
def test_a_job_whose_status_write_was_lost_is_not_started_again(condition: str) -> None:
    started = job("14:30:00", condition)
    plan = decide(cronjob(), [started], NOW)
    assert plan.create is None
    assert plan.status.last_schedule_time == times.format(at("14:30:00"))
    assert plan.status.active == (None if condition else (KIND.reference(started),))
    assert reasons(plan) == []


@pytest.mark.parametrize(
    "metadata", [{"name": "manual"}, {"annotations": {}}, {"annotations": {SCHEDULED_TIME: "x"}}]
)
def test_a_job_of_a_user_is_reported_and_not_counted(metadata: dict[str, Any]) -> None:
    """``kubectl create job --from`` sets the CronJob as controller."""
    manual = job("14:30:00", **metadata)
    plan = decide(cronjob(concurrencyPolicy="Forbid"), [manual], NOW)
    assert (plan.create, plan.status.active) == (at("14:30:00"), None)
    assert reasons(plan) == ["UnexpectedJob"]


def test_the_status_shows_the_created_job() -> None:
    status = with_created(cronjob().status, job("14:30:00"), at("14:30:00"))
    assert status.active == (KIND.reference(job("14:30:00")),)
    assert status.last_schedule_time == times.format(at("14:30:00"))
    assert with_created(status, job("14:30:00"), at("14:30:00")) == status
    assert with_created(status, job("14:10:00", "Failed"), at("14:10:00")) == status


# History.


def test_the_oldest_jobs_beyond_the_limits_are_deleted() -> None:
    complete = [job(f"14:{minute}:00", "Complete") for minute in (10, 11, 12, 13)]
    failed = [job(f"14:{minute}:00", "Failed") for minute in (14, 15)]
    running = job("14:05:00")
    limited = cronjob(successfulJobsHistoryLimit=3, failedJobsHistoryLimit=0)
    plan = decide(limited, [*failed, running, *reversed(complete)], NOW)
    assert list(plan.delete) == [complete[0], *failed]


def test_without_limits_all_jobs_are_kept_and_suspended_cronjobs_have_limits() -> None:
    complete = [job(f"14:{minute}:00", "Complete") for minute in (10, 11, 12, 13)]
    assert list(decide(cronjob(), complete, NOW).delete) == []
    suspended = cronjob(suspend=True, successfulJobsHistoryLimit=1)
    assert list(decide(suspended, complete, NOW).delete) == complete[:3]


def test_jobs_that_are_being_deleted_do_not_count() -> None:
    deleted = job("14:10:00", "Complete", deletionTimestamp=CREATED)
    kept = job("14:11:00", "Complete")
    assert list(decide(cronjob(successfulJobsHistoryLimit=1), [deleted, kept], NOW).delete) == []


# The Job.


def test_a_job_has_the_template_the_time_and_its_cronjob() -> None:
    spec = {"backoffLimit": 3, "unknownField": {"x": [1]}}
    given_meta = {
        "name": "ignored",
        "finalizers": ["example.com/ignored"],
        "labels": {"app": "report"},
        "annotations": {"note": "x"},
        "creationTimestamp": None,
    }
    template = {"metadata": given_meta, "spec": spec}
    built = build_job(KIND, cronjob(jobTemplate=template, timeZone="Europe/Berlin"), at("14:30:00"))
    assert msgspec.json.decode(msgspec.json.encode(built)) == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"report-{int(at('14:30:00').timestamp()) // 60}",
            "namespace": "d",
            "labels": {"app": "report"},
            "annotations": {"note": "x", SCHEDULED_TIME: "2026-11-22T15:30:00+01:00"},
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
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


def test_without_a_time_zone_the_annotation_is_in_utc() -> None:
    built: Any = build_job(KIND, cronjob(jobTemplate={"metadata": None}), at("14:30:00"))
    assert built["metadata"]["annotations"] == {SCHEDULED_TIME: "2026-11-22T14:30:00Z"}


# Properties.

SCHEDULES = st.sampled_from(["* * * * *", "*/7 * * * *", "@every 90s", "@hourly", "5 14 * * *"])


@given(
    SCHEDULES,
    st.sampled_from(["Allow", "Forbid", "Replace"]),
    st.lists(st.integers(1, 4000), max_size=30),
    st.lists(st.booleans(), min_size=30, max_size=30),
)
def test_no_time_is_started_twice_and_the_latest_is_started(
    schedule: str, policy: str, steps: list[int], ends: list[bool]
) -> None:
    """At any moments, and whether or not the status was written."""
    now, current, jobs = (
        at("14:00:30"),
        cronjob(schedule, concurrencyPolicy=policy),
        dict[str, Job](),
    )
    started: list[datetime] = []
    for step, end in zip(steps, ends, strict=False):
        now += timedelta(seconds=step)
        plan = decide(current, jobs.values(), now)
        status = plan.status
        for replaced in plan.replace:
            del jobs[replaced.metadata.name]
        if plan.create is not None:
            one = job(f"{plan.create:%H:%M:%S}", "Complete" if end else "")
            if plan.create.day != 22:
                return
            assert one.metadata.name not in jobs
            assert plan.create <= now
            jobs[one.metadata.name] = one
            started.append(plan.create)
            status = with_created(without(status, plan.replace), one, plan.create)
        if end:  # else it is killed before the write
            current = msgspec.structs.replace(current, status=status)
        assert plan.next is not None
        assert plan.next > now
    assert started == sorted(set(started))
    if policy == "Allow" and started:
        missed = cron.parse(schedule).missed(at("14:00:30"), now)
        assert missed is not None
        assert "every" in schedule or started[-1] == missed.latest


@pytest.mark.parametrize(
    ("schedule", "zone", "years"),
    [("30 2 * * *", "Europe/Berlin", 10), ("0 0 29 2 *", "America/New_York", 10)],
)
def test_ten_years_of_a_cronjob(schedule: str, zone: str, years: int) -> None:
    """Each time is started once, and at once."""
    current = cronjob(schedule, timeZone=zone, successfulJobsHistoryLimit=0)
    now = begin = datetime.fromisoformat(CREATED)
    end, started = begin.replace(year=begin.year + years), []
    while now < end:
        plan = decide(current, [], now)
        status = plan.status
        if plan.create is not None:
            started.append(plan.create)
            text = times.format(plan.create)
            status = msgspec.structs.replace(status, last_schedule_time=text)
        current = msgspec.structs.replace(current, status=status)
        assert plan.next is not None
        now = plan.next + timedelta(seconds=0.1)
    expected, found = [], cron.parse(schedule, ZoneInfo(zone)).next(begin)
    while found is not None and found < end:
        expected.append(found)
        found = cron.parse(schedule, ZoneInfo(zone)).next(found)
    assert started == expected
