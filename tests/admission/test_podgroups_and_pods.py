"""PodGroups and pods of other clients, and the list of admission paths."""

import copy
from typing import Any

import pytest
from support.admission import ObjectReaderStub, admit, check, denial, job, queue, stored_spec

from batholith.admission import WEBHOOKS, AdmissionSettings, webhooks
from batholith.model.names import PODS, QUEUE_GATE

Json = dict[str, Any]


def group(**spec: Any) -> Json:
    return {"kind": "PodGroup", "metadata": {"name": "g", "namespace": "ns"}, "spec": spec}


def namespace(name: str, queue_name: str) -> Json:
    annotations = {"scheduling.volcano.sh/queue-name": queue_name}
    return {"kind": "Namespace", "metadata": {"name": name, "annotations": annotations}}


@pytest.mark.parametrize(
    ("asked", "got"), [("default", "theirs"), ("other", "other"), (None, "theirs")]
)
def test_the_namespace_may_define_the_queue(asked: str | None, got: str) -> None:
    reader = ObjectReaderStub(namespace("ns", "theirs"), queue("theirs"), queue("other"))
    sent = group(minMember=1) if asked is None else group(queue=asked)
    assert stored_spec(admit(sent, reader))["queue"] == got


def test_without_an_annotation_the_queue_is_kept() -> None:
    assert stored_spec(admit(group(queue="default")))["queue"] == "default"
    assert (
        stored_spec(admit(group(queue="default"), ObjectReaderStub(namespace("ns", ""))))["queue"]
        == "default"
    )


@pytest.mark.parametrize(
    ("asked", "got"), [("default", "theirs"), ("other", "other"), ("", "theirs"), (None, "theirs")]
)
def test_quirk_a16_the_queue_of_the_namespace_applies_to_its_jobs(
    asked: str | None, got: str
) -> None:
    reader = ObjectReaderStub(namespace("ns", "theirs"), queue("theirs"), queue("other"))
    sent = job()
    del sent["spec"]["queue"]
    sent["spec"] |= {} if asked is None else {"queue": asked}
    assert stored_spec(admit(sent, reader))["queue"] == got


@pytest.mark.parametrize("stored", ["default", "theirs", "another"])
def test_quirk_a16_a_job_that_is_applied_again_keeps_its_queue(stored: str) -> None:
    """Even if the namespace's annotation has changed since."""
    reader = ObjectReaderStub(namespace("ns", "theirs"), queue("theirs"))
    old = admit(job(queue=stored), ObjectReaderStub(queue(stored)))
    assert stored_spec(admit(job(), reader, old=old))["queue"] == stored
    assert "changed: spec.queue" in denial(job(queue="other"), reader, old=old)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"queue": "shut"}, "queue `shut` status is `Closing`"),
        ({"networkTopology": {"highestTierAllowed": 1, "highestTierName": "a"}}, "simultaneously"),
    ],
)
def test_invalid_podgroups_are_denied(spec: Json, expected: str) -> None:
    assert expected in denial(group(**spec), ObjectReaderStub(queue("shut", state="Closing")))


def test_quirk_p13_a_podgroup_may_be_created_right_after_its_queue() -> None:
    admit(group(queue="new"), ObjectReaderStub(queue("new", state="")))


def test_quirk_p14_queues_that_deny_jobs_deny_podgroups() -> None:
    reader = ObjectReaderStub(queue("parent"), queue("child", parent="parent"))
    admit(group(queue="child"), reader)
    assert "can not submit PodGroup to root queue" in denial(group(queue="root"), reader)
    text = denial(group(queue="parent"), reader)
    assert text == "can only submit PodGroup to leaf queue, queue `parent` has 1 child queues"


def pod(scheduler: str = "volcano", **annotations: str) -> Json:
    keys = {"least": "volcano.sh/jdb-min-available", "most": "volcano.sh/jdb-max-unavailable"}
    return {
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "annotations": {keys[name]: value for name, value in annotations.items()},
        },
        "spec": {"schedulerName": scheduler},
    }


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (pod(), ""),
        (pod(least="1"), ""),
        (pod(most="99%"), ""),
        (pod(least="-3"), "it must be a positive integer"),
        (pod(least="0%"), "between 1% ~ 99%"),
        (pod(most="5%0"), "neither int nor percentage"),
        (pod("default-scheduler", least="few"), ""),
    ],
)
def test_quirks_a12_and_a13_annotations_of_pods(sent: Json, expected: str) -> None:
    check(expected, sent)


def test_pods_of_all_configured_schedulers_are_validated() -> None:
    settings = AdmissionSettings(scheduler_names=("one", "two"))
    assert "few" in denial(pod("two", least="few"), settings=settings)
    admit(pod("volcano", least="few"), settings=settings)


def test_names_and_paths_are_volcanos() -> None:
    assert {hook.path: hook.name for hook in WEBHOOKS} == {
        "/jobs/mutate": "mutatejob.volcano.sh",
        "/queues/mutate": "mutatequeue.volcano.sh",
        "/podgroups/mutate": "mutatepodgroup.volcano.sh",
        "/pods/mutate": "mutatepod.volcano.sh",
        "/jobflows/validate": "validatejobflow.volcano.sh",
        "/jobs/validate": "validatejob.volcano.sh",
        "/queues/validate": "validatequeue.volcano.sh",
        "/podgroups/validate": "validatepodgroup.volcano.sh",
        "/pods/validate": "validatepod.volcano.sh",
        "/cronjobs/validate": "validatecronjob.volcano.sh",
        "/hypernodes/validate": "validatehypernodes.volcano.sh",
    }


def test_each_path_mutates_or_validates_and_mutating_ones_are_first() -> None:
    kinds = [hook.mutate is not None for hook in webhooks(AdmissionSettings())]
    assert kinds == sorted(kinds, reverse=True)
    assert all((hook.mutate is None) != (hook.validate is None) for hook in WEBHOOKS)


def test_only_deletions_of_queues_are_validated() -> None:
    deleting = [hook.path for hook in WEBHOOKS if "DELETE" in hook.operations]
    assert deleting == ["/queues/validate"]
    assert {hook.resource for hook in WEBHOOKS if hook.path.startswith("/pods/")} == {PODS}


GATE = {"name": QUEUE_GATE}


def gates(pod: Json, *, on: bool = True) -> Any:
    """Return the gates of *pod* after mutation, with or without the feature."""
    stored = admit(copy.deepcopy(pod), settings=AdmissionSettings(queue_gates=on))
    return stored["spec"].get("schedulingGates")


def test_quirk_a15_a_pod_that_requests_it_gets_the_queue_gate() -> None:
    asking = pod() | {"metadata": {"name": "p", "annotations": {QUEUE_GATE: "true"}}}
    assert gates(asking) == [GATE]
    assert gates(asking, on=False) is None
    asking["spec"]["schedulingGates"] = [{"name": "x.io/a"}]
    assert gates(asking) == [{"name": "x.io/a"}, GATE]
    asking["spec"]["schedulingGates"] = [GATE]
    assert gates(asking) == [GATE]


def test_pods_without_the_annotation_or_of_other_schedulers_get_no_gate() -> None:
    for scheduler, value in (("volcano", "yes"), ("default-scheduler", "true")):
        asking = pod(scheduler)
        asking["metadata"] = {"name": "p", "annotations": {QUEUE_GATE: value}}
        assert gates(asking) is None
