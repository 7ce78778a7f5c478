"""The reader of audit logs finds violations: the chaos tests rely on it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.audit_log import (
    AuditedRequest,
    AuditLog,
    leaderships,
    pod_creations,
    stale_writes,
    write_counts,
)

LEASE = "volcano-system/vc-scheduler"
Json = dict[str, Any]


def at(seconds: float) -> str:
    return f"2026-05-04T12:00:{seconds:09.6f}Z"


def audited_write(
    user: str, second: float, resource: str = "jobs/status", verb: str = "patch", **more: Any
) -> AuditedRequest:
    """A write that the server took a tenth of a second for."""
    given = {"name": "default/j", "code": 200, "received": at(second), "done": at(second + 0.1)}
    return AuditedRequest(user=user, verb=verb, resource=resource, **{**given, **more})


def lease(
    user: str, second: float, holder: str, transitions: int = 0, **more: Any
) -> AuditedRequest:
    """A write of the Lease."""
    spec = {"holderIdentity": holder, "leaseTransitions": transitions}
    return audited_write(user, second, "leases", "update", name=LEASE, body={"spec": spec}, **more)


HANDOVER = (
    lease("a", 1, "id-a"),
    lease("a", 3, "id-a"),
    lease("b", 4, "id-b", 1, code=409),
    lease("b", 10, "id-b", 1),
    lease("b", 12, "id-b", 1),
)
"""a leads from 1.1 to 10, b from 10.1 on."""


def stale_write_reasons(*requests: AuditedRequest) -> list[tuple[str, str]]:
    """Users of stale writes, and the start of their description."""
    everything: Sequence[AuditedRequest] = (*HANDOVER, *requests)
    return [
        (stray.request.user, stray.reason.split()[0])
        for stray in stale_writes(everything, LEASE, ["a", "b", "c"])
    ]


def test_reigns_are_read_off_the_lease() -> None:
    stored = [(one.user, one.identity, one.transitions) for one in leaderships(HANDOVER, LEASE)]
    assert stored == [("a", "id-a", 0), ("b", "id-b", 1)]
    first, second = leaderships(HANDOVER, LEASE)
    assert (first.began, first.ended) == (at(1.1), at(10))
    assert (second.began, second.ended) == (at(10.1), "~")
    assert leaderships(HANDOVER, "volcano-system/other") == []


def test_a_patch_that_only_renews_is_no_new_reign() -> None:
    renewal = audited_write(
        "b", 13, "leases", "patch", name=LEASE, body={"spec": {"renewTime": "now"}}
    )
    assert len(leaderships((*HANDOVER, renewal), LEASE)) == 2


def test_writes_inside_a_reign_are_no_strays() -> None:
    assert (
        stale_write_reasons(
            audited_write("a", 2),
            audited_write("a", 9.5),
            audited_write("b", 11),
            audited_write("b", 50),
        )
        == []
    )


def test_a_write_after_another_took_over_is_a_stray() -> None:
    delayed = audited_write("a", 10.2), audited_write("a", 11, "pods/binding", "create", code=201)
    assert stale_write_reasons(*delayed) == [("a", "was"), ("a", "was")]


def test_a_write_that_came_in_time_and_took_long_is_none() -> None:
    assert stale_write_reasons(audited_write("a", 9.9, done=at(10.5))) == []


def test_a_write_before_one_leads_and_by_one_who_never_did_are_strays() -> None:
    assert stale_write_reasons(
        audited_write("a", 0.5), audited_write("b", 5), audited_write("c", 5)
    ) == [
        ("a", "led"),
        ("b", "led"),
        ("c", "had"),
    ]


def test_a_write_between_release_and_successor_is_a_stray() -> None:
    release = lease("b", 14, "", 1)
    delayed, early = audited_write("b", 14.2), audited_write("b", 13.8)
    (only,) = stale_writes((*HANDOVER, release, delayed, early), LEASE, ["b"])
    assert only.request == delayed


def test_a_second_reign_counts_from_its_own_beginning() -> None:
    again = lease("b", 14, "", 1), lease("a", 20, "id-a2", 2)
    assert stale_write_reasons(*again, audited_write("a", 21)) == []
    assert stale_write_reasons(*again, audited_write("a", 15)) == [("a", "was")]


def test_what_was_refused_read_or_somebody_elses_is_none() -> None:
    assert (
        stale_write_reasons(
            audited_write("a", 11, code=409),
            audited_write("a", 11, verb="get"),
            audited_write("d", 11),
        )
        == []
    )


def test_what_may_have_taken_effect_counts_as_if_it_had() -> None:
    assert stale_write_reasons(audited_write("a", 11, code=504)) == [("a", "was")]


def test_events_about_the_lease_are_the_candidates_own() -> None:
    reported = audited_write("a", 11, "events", "create", name=f"{LEASE}.18ea1a23")
    assert stale_write_reasons(reported) == []


def test_spared_resources_are_not_looked_at() -> None:
    delayed = audited_write("a", 11, "events", "create")
    assert len(stale_writes((*HANDOVER, delayed), LEASE, ["a"])) == 1
    assert stale_writes((*HANDOVER, delayed), LEASE, ["a"], exempt=["events"]) == []


def pod_creation(name: str, version: str, code: int = 201) -> AuditedRequest:
    body = {"metadata": {"annotations": {"volcano.sh/job-version": version}}}
    return audited_write("a", 2, "pods", "create", name=f"default/{name}", body=body, code=code)


def test_a_pod_made_twice_for_a_version_is_seen() -> None:
    log = (
        pod_creation("j-t-0", "0"),
        pod_creation("j-t-0", "1"),
        pod_creation("j-t-1", "0"),
        pod_creation("j-t-1", "0"),
    )
    assert pod_creations(log) == {
        ("default/j-t-0", "0"): 1,
        ("default/j-t-0", "1"): 1,
        ("default/j-t-1", "0"): 2,
    }
    assert (
        pod_creations([pod_creation("j-t-0", "0"), pod_creation("j-t-0", "0", code=409)]).total()
        == 1
    )


def test_writes_are_counted_for_reports() -> None:
    log = (
        audited_write("a", 1),
        audited_write("a", 2),
        audited_write("a", 3, code=409),
        audited_write("b", 1, "pods", "delete"),
    )
    assert list(write_counts(log)) == [("a patch jobs/status", 2), ("b delete pods", 1)]


def line(user: str, second: float) -> Json:
    return {
        "kind": "Event",
        "auditID": "x",
        "stage": "ResponseComplete",
        "verb": "update",
        "user": {"username": user, "groups": ["system:masters"]},
        "objectRef": {
            "resource": "leases",
            "namespace": "volcano-system",
            "name": "vc-scheduler",
        },
        "responseStatus": {"metadata": {}, "code": 200},
        "requestObject": {"spec": {"holderIdentity": f"id-{user}"}},
        "requestReceivedTimestamp": at(second),
        "stageTimestamp": at(second + 0.1),
    }


def test_a_growing_log_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.touch()
    log = AuditLog(path)
    assert log.leader(LEASE) == ""
    first, second = (json.dumps(line(user, n)) for n, user in enumerate("ab"))
    with path.open("a") as sink:
        sink.write(first + "\n" + second[:40])
        sink.flush()
        assert log.leader(LEASE) == "a"
        sink.write(second[40:] + "\n")
        sink.flush()
        assert log.leader(LEASE) == "b"
        assert len(log.requests()) == 2
