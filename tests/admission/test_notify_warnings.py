"""Annotations of notifications that would not be sent: kubectl shows why."""

from typing import Any

import pytest
from support.admission import ObjectReaderStub, job, queue
from support.cel_policies import batch_job
from support.training_manifests import valid_jobs

from batholith.admission import AdmissionSettings, webhooks
from batholith.admission.other_jobs import batch_job_webhook
from batholith.cli.flag_groups import FlagError, notification_rules
from batholith.model.admission import AdmissionRequest
from batholith.model.notification_destinations import Destinations, NotificationRules
from batholith.training_ctrl.frameworks import FRAMEWORKS

Json = dict[str, Any]
NOTIFY = "batholith.io/notify"
SENT = NotificationRules(destinations=Destinations.parse(["10.0.0.0/8"]))
UNKNOWN = NotificationRules(is_known=False)
DISABLED = NotificationRules()

OBJECTS = [job(), queue("q", parent="root"), batch_job({}), valid_jobs()[0]]


def warnings(obj: Json, rules: NotificationRules, old: Json | None = None) -> list[str]:
    settings = AdmissionSettings(frameworks=FRAMEWORKS, notifications=rules)
    hooks = [*webhooks(settings), batch_job_webhook(settings)]
    found = [
        each.warn
        for each in hooks
        if each.warn is not None
        and (each.resource.api_version, each.resource.kind) == (obj["apiVersion"], obj["kind"])
    ]
    assert found
    request = AdmissionRequest(
        operation="CREATE" if old is None else "UPDATE",
        namespace="default",
        name=obj["metadata"]["name"],
        object=obj,
        old_object=old,
    )
    reader = ObjectReaderStub()
    return [text for warn in found for text in warn(request, reader) if NOTIFY in text]


def notified(obj: Json, url: str) -> Json:
    return obj | {"metadata": obj["metadata"] | {"annotations": {NOTIFY: url}}}


@pytest.mark.parametrize("obj", OBJECTS)
def test_where_nothing_is_sent_the_annotation_causes_a_warning(obj: Json) -> None:
    (text,) = warnings(notified(obj, "https://x.example/"), DISABLED)
    assert "nothing will be sent: this installation sends no notifications" in text


@pytest.mark.parametrize("obj", OBJECTS)
@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://127.0.0.1/", "127.0.0.1 is not a public address"),
        ("http://169.254.169.254/latest", "169.254.169.254 is not a public address"),
        ("https://[::1]:8443/", "::1 is not a public address"),
        ("https://10.1.2.3/", ""),
        ("http://10.1.2.3/", ""),
        ("https://x.example/", ""),
        ("none", ""),
    ],
)
def test_urls_that_are_refused_later_cause_a_warning(obj: Json, url: str, reason: str) -> None:
    found = warnings(notified(obj, url), SENT)
    assert bool(found) == bool(reason)
    assert not reason or reason in found[0]


def test_an_update_that_leaves_the_annotation_warns_not_again() -> None:
    obj = notified(job(), "https://127.0.0.1/")
    assert warnings(obj, SENT, obj) == []
    assert warnings(obj, SENT, job()) != []


def test_without_knowledge_of_the_rest_api_there_is_no_warning() -> None:
    assert warnings(notified(job(), "https://127.0.0.1/"), UNKNOWN) == []


def test_flags_say_whether_notifications_are_sent_and_where_to() -> None:
    assert notification_rules(None, None) == UNKNOWN
    assert notification_rules(False, None) == DISABLED
    assert notification_rules(True, ["10.0.0.0/8"]) == SENT
    with pytest.raises(FlagError, match="requires --notifications"):
        notification_rules(None, ["localhost"])
    with pytest.raises(FlagError, match="--notify-allow: 'a b'"):
        notification_rules(True, ["a b"])
