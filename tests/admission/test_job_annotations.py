"""Annotations of jobs that are not Volcano's."""

from collections.abc import Callable
from typing import Any

import pytest
from support.admission import ObjectReaderStub, queue, write_request
from support.cel_policies import batch_job
from support.training_manifests import valid_jobs

from batholith.admission.annotations import RULES
from batholith.admission.other_jobs import batch_job_webhook
from batholith.admission.settings import AdmissionSettings
from batholith.admission.training import webhooks
from batholith.model.admission import DeniedError, Webhook
from batholith.training_ctrl.frameworks import FRAMEWORKS

Json = dict[str, Any]

BATCH = batch_job_webhook(AdmissionSettings())
TRAINING = {hook.resource.kind: hook for hook in webhooks(AdmissionSettings(frameworks=FRAMEWORKS))}
TEAM = ObjectReaderStub(
    queue("team", parent="root", annotations={"batholith.io/max-time-limit": "2h"})
)
MALFORMED = (
    ({"time-limit": "soon"}, "time-limit]: Invalid value"),
    ({"time-limit-warning": "1m"}, "must be less than"),
    ({"running-estimate": "0s"}, "must be more than 0"),
    ({"notify": "ftp://x/"}, "must be a URL of http"),
    ({"notify": "https://x/", "notify-events": "birth"}, "must be some of start"),
)


def annotated(body: Json, annotations: dict[str, str]) -> Json:
    named = {f"batholith.io/{name}": text for name, text in annotations.items()}
    return body | {"metadata": body["metadata"] | {"annotations": named}}


def validate(hook: Webhook, obj: Json, old: Json | None = None) -> str:
    """Return why the write is denied; empty if it is admitted."""
    assert hook.validate is not None
    try:
        hook.validate(write_request(obj, old), TEAM)
    except DeniedError as error:
        return str(error)
    return ""


def training_job() -> tuple[Webhook, Json]:
    body = next(iter(valid_jobs()))
    return TRAINING[body["kind"]], body


def any_batch_job() -> tuple[Webhook, Json]:
    return BATCH, batch_job({})


ANY = pytest.mark.parametrize("new", [any_batch_job, training_job])
New = Callable[[], tuple[Webhook, Json]]


@ANY
@pytest.mark.parametrize(("annotations", "text"), MALFORMED)
def test_malformed_annotations_are_denied(new: New, annotations: dict[str, str], text: str) -> None:
    hook, body = new()
    assert text in validate(hook, annotated(body, annotations))
    assert text in validate(hook, annotated(body, annotations), body)


@ANY
def test_annotations_that_an_update_leaves_block_nothing(new: New) -> None:
    hook, body = new()
    stored = annotated(body, {"notify": "ftp://x/"})
    labelled = stored | {"metadata": stored["metadata"] | {"labels": {"a": "b"}}}
    assert validate(hook, labelled, stored) == ""
    other = annotated(body, {"notify": "ftp://x/", "time-limit": "1h"})
    assert validate(hook, other, stored) == ""


def test_the_maximum_of_the_queue_holds_for_what_is_scheduled_in_it() -> None:
    template = {
        "metadata": {"annotations": {"scheduling.volcano.sh/queue-name": "team"}},
        "spec": {"schedulerName": "volcano", "containers": []},
    }
    body = annotated(batch_job({}, template=template), {"time-limit": "3h"})
    assert "queue `team` permits at most 2h" in validate(BATCH, body)
    elsewhere = template | {"spec": {"schedulerName": "default-scheduler"}}
    body = annotated(batch_job({}, template=elsewhere), {"time-limit": "3h"})
    assert validate(BATCH, body) == ""
    hook, training = training_job()
    policy = {"runPolicy": {"schedulingPolicy": {"queue": "team"}}}
    limited = annotated(training | {"spec": training["spec"] | policy}, {"time-limit": "3h"})
    assert "queue `team` permits at most 2h" in validate(hook, limited)


def in_team(body: Json, *, seconds: int | None) -> Json:
    """The job in a queue that permits two hours, with a deadline."""
    deadline = {} if seconds is None else {"activeDeadlineSeconds": seconds}
    if body["apiVersion"] != "batch/v1":
        policy = {"runPolicy": {"schedulingPolicy": {"queue": "team"}, **deadline}}
        return body | {"spec": body["spec"] | policy}
    template = {
        "metadata": {"annotations": {"scheduling.volcano.sh/queue-name": "team"}},
        "spec": {"schedulerName": "volcano", "containers": []},
    }
    return body | {"spec": body["spec"] | deadline | {"template": template}}


@ANY
def test_the_maximum_of_the_queue_holds_for_deadlines(new: New) -> None:
    hook, body = new()
    text = "activeDeadlineSeconds: Invalid value: 7201: queue `team` permits at most 2h"
    short, long = in_team(body, seconds=7200), in_team(body, seconds=7201)
    assert validate(hook, short) == ""
    assert text in validate(hook, long)
    assert text in validate(hook, long, short)
    labelled = long | {"metadata": long["metadata"] | {"labels": {"a": "b"}}}
    assert validate(hook, labelled, long) == "", "the queue may have got its maximum later"
    limited = annotated(long, {"time-limit": "1h"})
    assert validate(hook, limited) == "", "the lesser of both ends the job"
    assert text in validate(hook, long, limited)


@ANY
def test_annotations_that_only_jobs_of_volcano_have_cause_a_warning(new: New) -> None:
    hook, body = new()
    names = [name for rule in RULES if rule.volcano_only for name in rule.names]
    assert names
    given = annotated(body, {name.removeprefix("batholith.io/"): "x" for name in names})
    assert validate(hook, given) == ""
    assert hook.warn is not None
    warnings = hook.warn(write_request(given), TEAM)
    assert [name for name in names if any(name in text for text in warnings)] == names
    assert not any("no effect" in text for text in hook.warn(write_request(given, given), TEAM))
