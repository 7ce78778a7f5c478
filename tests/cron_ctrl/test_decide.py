"""What a CronJob needs, as a pure function: of batch/v1 and of Volcano, which often errs here."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import cronjobs
from support.cronjobs import FLAVOURS, KUBERNETES, VOLCANO, Decision, Flavour, decide

from batholith.cron_ctrl import volcano
from batholith.cron_ctrl.decide import with_created, without
from batholith.machinery import cron
from batholith.model import times
from batholith.model.cronjob import CronJob

CREATED = datetime(2026, 11, 22, 14, 0, 30, tzinfo=UTC)
NOW = datetime(2026, 11, 22, 14, 30, 0, 100_000, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")
RECHECK = 86400.0


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> Flavour:
    return FLAVOURS[request.param]


def at(text: str) -> datetime:
    """A time of the day."""
    return datetime.fromisoformat(f"2026-11-22T{text}+00:00")


def one(schedule: str = "*/10 * * * *", *, last: str = "", **fields: Any) -> CronJob:
    """A CronJob, and perhaps the last time that was started."""
    status = fields.pop("status", {})
    if last:
        status = {**status, "lastScheduleTime": times.format(at(last))}
    return cronjobs.cronjob(schedule, created=CREATED, status=status, **fields)


def plan(cronjob: CronJob, now: datetime = NOW, *jobs: Any, **view: Any) -> Decision:
    """What is decided for a CronJob of either kind."""
    return decide(KUBERNETES, cronjob, jobs, now, **view)


# When to start.


@pytest.mark.parametrize(
    ("schedule", "last", "create", "following"),
    [
        ("*/10 * * * *", "14:20:00", "14:30:00", "14:40:00"),
        ("*/10 * * * *", "14:30:00", None, "14:40:00"),
        ("*/10 * * * *", "", "14:30:00", "14:40:00"),
        ("15 * * * *", "", "14:15:00", "15:15:00"),
        ("0 14 * * *", "", None, "+14:00:00"),  # before it was created
        ("@every 20m", "", "14:20:30", "14:40:30"),
        ("@every 20m", "14:20:30", None, "14:40:30"),
    ],
)
def test_the_latest_missed_time_is_started(
    schedule: str, last: str, create: str | None, following: str
) -> None:
    decided = plan(one(schedule, last=last))
    tomorrow = following.startswith("+")
    due_again = at(following.removeprefix("+")) + timedelta(days=tomorrow)
    assert (decided.create, decided.next) == (at(create) if create else None, due_again)
    assert decided.reasons == []


def test_a_time_zone_applies_to_the_schedule() -> None:
    assert plan(one("30 15 * * *", timeZone="Europe/Berlin")).create == at("14:30:00")
    assert plan(one("30 15 * * *"), local_zone=BERLIN).create == at("14:30:00")
    assert plan(one("30 15 * * *")).create is None


def test_a_changed_schedule_applies_from_then_on() -> None:
    """Otherwise a CronJob would start at once that is moved to an earlier time of the day."""
    decided = plan(one("15 * * * *"), changed_at=at("14:29:00"))
    assert (decided.create, decided.next) == (None, at("15:15:00"))
    assert plan(one("15,30 * * * *"), changed_at=at("14:29:00")).create == at("14:30:00")


def test_a_clock_that_was_put_back_after_a_change_does_not_matter() -> None:
    decided = plan(one("31 * * * *"), changed_at=at("18:00:00"))
    assert (decided.create, decided.next) == (None, at("14:31:00"))


def test_a_suspended_cronjob_starts_nothing_and_missed_times_count_when_it_is_resumed() -> None:
    decided = plan(one(suspend=True))
    assert (decided.create, decided.requeue_after) == (None, None)
    assert plan(one(suspend=False)).create == at("14:30:00")


def test_a_deleted_cronjob_only_gets_a_status(flavour: Flavour) -> None:
    status = flavour.active(flavour.job(at("14:10:00")))
    deleted = one(status=status, successfulJobsHistoryLimit=0)
    meta = msgspec.structs.replace(deleted.metadata, deletion_timestamp=times.format(CREATED))
    deleted = msgspec.structs.replace(deleted, metadata=meta)
    decided = decide(flavour, deleted, [flavour.job(at("14:10:00"), "Complete")], NOW)
    assert (decided.create, decided.requeue_after, decided.delete) == (None, None, ())
    assert decided.status.active is None


@pytest.mark.parametrize(
    ("deadline", "create", "reason"),
    [(None, "14:20:00", []), (600, None, ["MissSchedule"]), (601, "14:20:00", [])],
)
def test_a_starting_deadline_ends_the_chance_to_start(
    deadline: int | None, create: str | None, reason: list[str]
) -> None:
    decided = plan(one("20 * * * *", startingDeadlineSeconds=deadline))
    assert decided.create == (at(create) if create else None)
    assert (decided.reasons, decided.next) == (reason, at("15:20:00"))


def test_an_interval_longer_than_the_deadline_is_started() -> None:
    """Kubernetes and Volcano measure the interval from the deadline, so that it never ends."""
    decided = plan(one("@every 25m", startingDeadlineSeconds=300), at("14:26:00"))
    assert decided.create == at("14:25:30")


@pytest.mark.parametrize(
    ("spec", "late", "warned"),
    [
        ({}, timedelta(minutes=70, seconds=29), False),
        ({}, timedelta(minutes=71, seconds=29), True),
        ({"startingDeadlineSeconds": 600}, timedelta(minutes=71, seconds=29), False),
        ({"startingDeadlineSeconds": 86400}, timedelta(minutes=71, seconds=29), True),
        ({}, timedelta(days=400), True),
    ],
)
def test_more_than_a_hundred_missed_times_are_reported_and_the_latest_is_started(
    spec: dict[str, Any], late: timedelta, warned: bool
) -> None:
    now = NOW + late
    decided = plan(one("* * * * *", **spec), now)
    assert decided.create == now.replace(second=0, microsecond=0)
    assert decided.reasons == (["TooManyMissedTimes"] if warned else [])


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"schedule": "61 * * * *"}, "unparseable"),
        ({"timeZone": "Nowhere/City"}, "unknown_zone"),
        ({"schedule": "0 0 30 2 *"}, "InvalidSchedule"),
    ],
)
def test_an_invalid_schedule_is_reported_and_checked_again_after_a_day(
    flavour: Flavour, spec: dict[str, Any], reason: str
) -> None:
    decided = decide(flavour, one(**spec), [], NOW)
    assert (decided.create, decided.requeue_after) == (None, RECHECK)
    assert decided.reasons == [flavour.reasons.get(reason, reason)]


def test_a_time_zone_in_the_schedule_takes_precedence_with_a_warning() -> None:
    decided = plan(one("TZ=Europe/Berlin 30 15 * * *", timeZone="Asia/Tokyo"))
    assert (decided.create, decided.reasons) == (at("14:30:00"), ["UnsupportedSchedule"])


def test_a_last_time_in_the_future_is_reported() -> None:
    """The clock was wrong: a time that was started is not started again."""
    decided = plan(one(last="18:00:00"))
    assert (decided.create, decided.next) == (None, at("18:10:00"))
    assert decided.reasons == ["ScheduledInFuture"]


def test_jobs_have_names_by_the_minute_so_that_a_minute_has_one() -> None:
    """With a shorter interval Volcano tries to create a Job of the same name again and again."""
    assert plan(one("@every 20s", last="14:29:00")).create == at("14:30:00")
    decided = plan(one("@every 20s", last="14:30:00"), at("14:30:41"))
    assert (decided.create, decided.next) == (None, at("14:31:00"))
    assert plan(one("@every 20s", last="14:30:00"), at("14:31:01")).create == at("14:31:00")


# Concurrency.


def test_forbid_waits_for_the_running_job(flavour: Flavour) -> None:
    running = flavour.job(at("14:20:00"))
    forbidding = one(concurrencyPolicy="Forbid", status=flavour.active(running))
    decided = decide(flavour, forbidding, [running], NOW)
    assert (decided.create, decided.reasons) == (None, [flavour.reasons["blocked"]])
    assert decided.next == at("14:40:00")
    decided = decide(flavour, forbidding, [flavour.job(at("14:20:00"), "Failed")], NOW)
    assert (decided.create, decided.reasons) == (at("14:30:00"), ["SawCompletedJob"])


@pytest.mark.parametrize(
    "phase", ["", "Pending", "Restarting", "Aborting", "Aborted", "Completing"]
)
def test_an_unfinished_job_of_volcano_blocks_forbid_also_when_it_is_aborted(phase: str) -> None:
    """It can be resumed."""
    job, state = VOLCANO.job(at("14:20:00")), volcano.JobState(phase=phase)
    running = msgspec.structs.replace(job, status=volcano.JobStatus(state=state))
    status = VOLCANO.active(running)
    decided = decide(VOLCANO, one(status=status, concurrencyPolicy="Forbid"), [running], NOW)
    assert (decided.create, decided.reasons) == (None, ["ForbidConcurrent"])


def test_replace_deletes_all_active_jobs_at_once(flavour: Flavour) -> None:
    """Volcano removes items from the list that it iterates over, and fails for three or more."""
    running = [flavour.job(at(f"14:0{minute}:00")) for minute in range(4)]
    deleted = flavour.job(at("14:25:00"), deletionTimestamp=times.format(CREATED))
    jobs = [*running, deleted]
    replacing = one(concurrencyPolicy="Replace", status=flavour.active(*jobs))
    decided = decide(flavour, replacing, jobs, NOW)
    assert (decided.create, [*decided.replace]) == (at("14:30:00"), running)
    assert without(decided.status, decided.replace).active == (flavour.kind.reference(deleted),)
    assert decide(flavour, replacing, jobs, at("14:29:00")).replace == ()


def test_allow_runs_jobs_concurrently(flavour: Flavour) -> None:
    running = flavour.job(at("14:20:00"))
    decided = decide(flavour, one(status=flavour.active(running)), [running], NOW)
    assert (decided.create, decided.replace) == (at("14:30:00"), ())


# Status.


@pytest.mark.parametrize(
    ("flavour", "ended_as", "text"),
    [
        (KUBERNETES, "Complete", ", condition: Complete"),
        (KUBERNETES, "Failed", ", condition: Failed"),
        (VOLCANO, "Complete", " in active, remove"),
        (VOLCANO, "Failed", " in active, remove"),
        (VOLCANO, "Terminated", " in active, remove"),
    ],
)
def test_a_finished_job_leaves_the_status(flavour: Flavour, ended_as: str, text: str) -> None:
    first, second = flavour.job(at("14:10:00"), ended_as), flavour.job(at("14:20:00"))
    listed = one(status=flavour.active(first, second))
    decided = decide(flavour, listed, [second, first], at("14:29:00"))
    assert decided.status.active == (flavour.kind.reference(second),)
    (event,) = decided.changes
    assert (event.warning, event.reason) == (False, "SawCompletedJob")
    assert event.message == f"Saw completed job: {first.metadata.name}{text}"
    completed = times.format(at("14:10:00")) if ended_as == "Complete" else None
    assert decided.status.last_successful_time == completed


def test_the_last_successful_time_only_increases(flavour: Flavour) -> None:
    late = {"lastSuccessfulTime": times.format(at("14:25:00"))}
    jobs = [flavour.job(at("14:10:00"), "Complete"), flavour.job(at("14:20:00"), "Failed")]
    decided = decide(flavour, one(status=late), jobs, NOW)
    assert decided.status.last_successful_time == late["lastSuccessfulTime"]


def test_missing_jobs_leave_the_status_all_at_once(flavour: Flavour) -> None:
    deleted = [flavour.job(at(f"14:0{minute}:00")) for minute in range(4)]
    decided = decide(flavour, one("0 0 * * *", status=flavour.active(*deleted)), [], NOW)
    assert decided.status.active is None
    assert decided.reasons == [flavour.reasons["missing"]] * 4


@pytest.mark.parametrize("ended_as", ["", "Complete", "Failed"])
def test_a_job_whose_status_write_was_lost_is_not_started_again(
    flavour: Flavour, ended_as: str
) -> None:
    """Volcano tries to create it again until another time is due, and never counts it."""
    started = flavour.job(at("14:30:00"), ended_as)
    decided = decide(flavour, one(concurrencyPolicy="Forbid"), [started], NOW)
    assert (decided.create, decided.reasons) == (None, [])
    assert decided.status.last_schedule_time == times.format(at("14:30:00"))
    assert decided.status.active == (None if ended_as else (flavour.kind.reference(started),))


@pytest.mark.parametrize("policy", ["Allow", "Forbid", "Replace"])
@pytest.mark.parametrize("changed", ["name", "no annotation", "no time"])
def test_a_job_of_a_user_is_reported_and_not_counted(
    flavour: Flavour, policy: str, changed: str
) -> None:
    """``kubectl create job --from`` sets the CronJob as controller."""
    annotations = {"no annotation": {}, "no time": {flavour.kind.scheduled_time: "x"}}
    metadata = {"name": "m"} if changed == "name" else {"annotations": annotations[changed]}
    manual = flavour.job(at("14:30:00"), **metadata)
    decided = decide(flavour, one(concurrencyPolicy=policy), [manual], NOW)
    assert (decided.create, decided.status.active) == (at("14:30:00"), None)
    assert (decided.reasons, decided.replace) == ([flavour.reasons["unexpected"]], ())


@pytest.mark.parametrize("policy", ["Allow", "Forbid", "Replace"])
def test_a_job_of_volcano_that_is_marked_as_manual_is_not_reported(policy: str) -> None:
    annotations = {"cronjob.kubernetes.io/instantiate": "manual"}
    manual = VOLCANO.job(at("14:20:00"), name="now", uid="now", annotations=annotations)
    decided = decide(VOLCANO, one(concurrencyPolicy=policy), [manual], NOW)
    assert (decided.create, decided.replace, decided.reasons) == (at("14:30:00"), (), [])


def test_the_status_shows_the_created_job(flavour: Flavour) -> None:
    kind, started = flavour.kind, flavour.job(at("14:30:00"))
    status = with_created(kind, one().status, started, at("14:30:00"))
    assert status.active == (kind.reference(started),)
    assert status.last_schedule_time == times.format(at("14:30:00"))
    assert with_created(kind, status, started, at("14:30:00")) == status
    failed = flavour.job(at("14:10:00"), "Failed")
    assert with_created(kind, status, failed, at("14:10:00")) == status


# History.


def test_the_oldest_jobs_beyond_the_limits_are_deleted(flavour: Flavour) -> None:
    complete = [flavour.job(at(f"14:{minute}:00"), "Complete") for minute in (10, 11, 12, 13)]
    failed = [flavour.job(at(f"14:{minute}:00"), "Failed") for minute in (14, 15)]
    running = flavour.job(at("14:05:00"))
    limited = one(successfulJobsHistoryLimit=3, failedJobsHistoryLimit=0)
    decided = decide(flavour, limited, [*failed, running, *reversed(complete)], NOW)
    assert [*decided.delete] == [complete[0], *failed]


def test_terminated_jobs_of_volcano_count_as_failed_ones_in_the_history() -> None:
    """Volcano never deletes them."""
    ends = {"14:00:00": "Terminated", "14:10:00": "Failed", "14:20:00": "Terminated"}
    ended = [VOLCANO.job(at(moment), phase) for moment, phase in ends.items()]
    decided = decide(VOLCANO, one("0 0 * * *", failedJobsHistoryLimit=1), ended, NOW)
    assert [*decided.delete] == ended[:2]


def test_without_limits_all_jobs_are_kept_and_suspended_cronjobs_have_limits() -> None:
    complete = [KUBERNETES.job(at(f"14:{minute}:00"), "Complete") for minute in (10, 11, 12, 13)]
    assert plan(one(), NOW, *complete).delete == ()
    suspended = one(suspend=True, successfulJobsHistoryLimit=1)
    assert [*plan(suspended, NOW, *complete).delete] == complete[:3]


def test_jobs_that_are_being_deleted_do_not_count() -> None:
    deletion = times.format(CREATED)
    deleted = KUBERNETES.job(at("14:10:00"), "Complete", deletionTimestamp=deletion)
    kept = KUBERNETES.job(at("14:11:00"), "Complete")
    assert plan(one(successfulJobsHistoryLimit=1), NOW, deleted, kept).delete == ()


# The Job.


def test_a_job_has_the_template_the_time_and_its_cronjob(flavour: Flavour) -> None:
    kind, spec = flavour.kind, {"backoffLimit": 3, "unknownField": {"x": [None, 1]}}
    given_meta = {
        "name": "ignored",
        "finalizers": ["example.com/ignored"],
        "labels": {"app": "report"},
        "annotations": {"note": "x"},
        "creationTimestamp": None,
    }
    template = {"metadata": given_meta, "spec": spec}
    built = kind.build_job(one(jobTemplate=template, timeZone="Europe/Berlin"), at("14:30:00"))
    api_version, prefix = ("batch/v1", "batch.kubernetes.io")
    if flavour is VOLCANO:
        api_version, prefix = "batch.volcano.sh/v1alpha1", "volcano.sh"
    assert msgspec.json.decode(msgspec.json.encode(built)) == {
        "apiVersion": api_version,
        "kind": "Job",
        "metadata": {
            "name": f"report-{int(at('14:30:00').timestamp()) // 60}",
            "namespace": "d",
            "labels": {"app": "report"},
            "annotations": {
                "note": "x",
                f"{prefix}/cronjob-scheduled-timestamp": "2026-11-22T15:30:00+01:00",
            },
            "ownerReferences": [
                {
                    "apiVersion": api_version,
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


def test_without_a_time_zone_the_annotation_is_in_utc(flavour: Flavour) -> None:
    built: Any = flavour.kind.build_job(one(jobTemplate={"metadata": None}), at("14:30:00"))
    annotations = {flavour.kind.scheduled_time: "2026-11-22T14:30:00Z"}
    assert built["metadata"]["annotations"] == annotations


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
    now, current, jobs = CREATED, one(schedule, concurrencyPolicy=policy), dict[str, Any]()
    started: list[datetime] = []
    for step, end in zip(steps, ends, strict=False):
        now += timedelta(seconds=step)
        decided = plan(current, now, *jobs.values())
        status = decided.status
        for replaced in decided.replace:
            del jobs[replaced.metadata.name]
        if decided.create is not None:
            job = KUBERNETES.job(decided.create, "Complete" if end else "")
            assert job.metadata.name not in jobs
            assert decided.create <= now
            jobs[job.metadata.name] = job
            started.append(decided.create)
            status = with_created(
                KUBERNETES.kind, without(status, decided.replace), job, decided.create
            )
        if end:  # else it is killed before the write
            current = msgspec.structs.replace(current, status=status)
        assert decided.next is not None
        assert decided.next > now
    assert started == sorted(set(started))
    if policy == "Allow" and started:
        missed = cron.parse(schedule).missed(CREATED, now)
        assert missed is not None
        assert "every" in schedule or started[-1] == missed.latest
