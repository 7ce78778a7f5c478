"""Validation of CronJobs, and warnings about templates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.admission import admit, cronjob, denial, job, task, warnings

from batholith.machinery import cron


@pytest.mark.parametrize(
    "schedule",
    ["* * * * *", "*/5 0-6,22-23 ? jan-MAR mon", "@hourly", "@every 1h30m", "  0   0 1 1 *  "],
)
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires"])
def test_what_the_controller_understands_is_admitted(schedule: str, zone: str | None) -> None:
    admit(cronjob(schedule, timeZone=zone))


@pytest.mark.parametrize(
    "schedule",
    ["* * * *", "* * * * * *", "60 * * * *", "* * * * 7", "5-1 * * * *", "*/0 * * * *", "@often"],
)  # fmt: skip
def test_other_schedules_are_denied_with_the_reason(schedule: str) -> None:
    text = denial(cronjob(schedule))
    assert text.startswith("spec.schedule: schedule is not a valid cron expression: ")


@given(st.text())
def test_any_text_is_admitted_or_denied(text: str) -> None:
    if not text or "TZ" in text:
        assert "schedule" in denial(cronjob(text))
        return
    try:
        cron.parse(text)
    except cron.ScheduleError as error:
        assert str(error) in denial(cronjob(text))
    else:
        admit(cronjob(text))


@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        ("/etc/localtime", "invalid timeZone"),
        ("../UTC", "invalid timeZone"),
        ("-x", "invalid timeZone"),
        ("Europe/Averylongcityname", "invalid timeZone"),
        ("LOCAL", "timeZone can't be Local"),
        ("Europe/Atlantis", 'unknown timeZone "Europe/Atlantis"'),
    ],
)
def test_time_zones_that_are_denied(zone: str, expected: str) -> None:
    assert denial(cronjob(timeZone=zone)).startswith(f"spec.timeZone: {expected}")


def test_all_errors_are_in_one_line() -> None:
    text = denial(cronjob("x", name="c" * 53, timeZone=""))
    assert [each.partition(":")[0] for each in text.split("; ")] == [
        *("spec.schedule", "spec.timeZone", "metadata.name")
    ]
    admit(cronjob(name="c" * 52))


def test_an_update_is_denied_only_for_what_it_changes() -> None:
    """A CronJob stored without webhooks can be suspended."""
    wrong = cronjob("x", name="c" * 53, timeZone="Nowhere")
    admit(cronjob("x", name="c" * 53, timeZone="Nowhere", suspend=True), old=wrong)
    text = denial(cronjob("x", name="c" * 53, timeZone="Elsewhere"), old=wrong)
    assert text == 'spec.timeZone: unknown timeZone "Elsewhere"'
    assert "valid cron" in denial(cronjob("y"), old=cronjob("x"))


def test_a_template_from_which_no_job_can_be_created_causes_a_warning() -> None:
    """Volcano reports nothing, and each creation fails."""
    twice = {"spec": job(task("t"), task("t"))["spec"]}
    new = cronjob(jobTemplate=twice)
    admit(new)
    (warning,) = warnings(new)
    assert warning.startswith("spec.jobTemplate: no job can be created from it: ")
    assert "duplicated task name t" in warning
    assert warnings(new, old=new) == []
    assert len(warnings(new, old=cronjob())) == 1
    assert "No task specified" in warnings(cronjob(jobTemplate={}))[0]


def test_a_template_may_name_a_queue_that_does_not_exist_yet() -> None:
    assert warnings(cronjob(jobTemplate={"spec": job(queue="later")["spec"]})) == []
    assert "root" in warnings(cronjob(jobTemplate={"spec": job(queue="root")["spec"]}))[0]
