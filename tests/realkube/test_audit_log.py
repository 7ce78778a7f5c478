"""The reader of audit logs finds what it must: it is what the tests of chaos stand on."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.audit_log import AuditLog, Request, counted, pods_made, reigns, strays

LEASE = "volcano-system/vc-scheduler"
Json = dict[str, Any]


def at(seconds: float) -> str:
    return f"2026-05-04T12:00:{seconds:09.6f}Z"


def wrote(
    user: str, second: float, resource: str = "jobs/status", verb: str = "patch", **more: Any
) -> Request:
    """A write that the server took a tenth of a second for."""
    given = {"name": "default/j", "code": 200, "received": at(second), "done": at(second + 0.1)}
    return Request(user=user, verb=verb, resource=resource, **{**given, **more})


def lease(user: str, second: float, holder: str, transitions: int = 0, **more: Any) -> Request:
    """A write of the Lease."""
    spec = {"holderIdentity": holder, "leaseTransitions": transitions}
    return wrote(user, second, "leases", "update", name=LEASE, body={"spec": spec}, **more)


HANDOVER = (
    lease("a", 1, "id-a"),
    lease("a", 3, "id-a"),
    lease("b", 4, "id-b", 1, code=409),
    lease("b", 10, "id-b", 1),
    lease("b", 12, "id-b", 1),
)
"""a leads from 1.1 to 10, b from 10.1 on."""


def found(*requests: Request) -> list[tuple[str, str]]:
    """Users of strays, and the first word of what is said of them."""
    everything: Sequence[Request] = (*HANDOVER, *requests)
    return [
        (stray.request.user, stray.why.split()[0])
        for stray in strays(everything, LEASE, ["a", "b", "c"])
    ]


def test_reigns_are_read_off_the_lease() -> None:
    held = [(one.user, one.identity, one.transitions) for one in reigns(HANDOVER, LEASE)]
    assert held == [("a", "id-a", 0), ("b", "id-b", 1)]
    first, second = reigns(HANDOVER, LEASE)
    assert (first.began, first.ended) == (at(1.1), at(10))
    assert (second.began, second.ended) == (at(10.1), "~")
    assert reigns(HANDOVER, "volcano-system/other") == []


def test_a_patch_that_only_renews_is_no_new_reign() -> None:
    renewal = wrote("b", 13, "leases", "patch", name=LEASE, body={"spec": {"renewTime": "now"}})
    assert len(reigns((*HANDOVER, renewal), LEASE)) == 2


def test_writes_inside_a_reign_are_no_strays() -> None:
    assert found(wrote("a", 2), wrote("a", 9.5), wrote("b", 11), wrote("b", 50)) == []


def test_a_write_after_another_took_over_is_a_stray() -> None:
    late = wrote("a", 10.2), wrote("a", 11, "pods/binding", "create", code=201)
    assert found(*late) == [("a", "was"), ("a", "was")]


def test_a_write_that_came_in_time_and_took_long_is_none() -> None:
    assert found(wrote("a", 9.9, done=at(10.5))) == []


def test_a_write_before_one_leads_and_by_one_who_never_did_are_strays() -> None:
    assert found(wrote("a", 0.5), wrote("b", 5), wrote("c", 5)) == [
        ("a", "led"),
        ("b", "led"),
        ("c", "had"),
    ]


def test_a_write_between_release_and_successor_is_a_stray() -> None:
    release = lease("b", 14, "", 1)
    late, early = wrote("b", 14.2), wrote("b", 13.8)
    (only,) = strays((*HANDOVER, release, late, early), LEASE, ["b"])
    assert only.request == late


def test_a_second_reign_counts_from_its_own_beginning() -> None:
    again = lease("b", 14, "", 1), lease("a", 20, "id-a2", 2)
    assert found(*again, wrote("a", 21)) == []
    assert found(*again, wrote("a", 15)) == [("a", "was")]


def test_what_was_refused_read_or_somebody_elses_is_none() -> None:
    assert found(wrote("a", 11, code=409), wrote("a", 11, verb="get"), wrote("d", 11)) == []


def test_what_may_have_taken_effect_counts_as_if_it_had() -> None:
    assert found(wrote("a", 11, code=504)) == [("a", "was")]


def test_events_about_the_lease_are_the_candidates_own() -> None:
    told = wrote("a", 11, "events", "create", name=f"{LEASE}.18ea1a23")
    assert found(told) == []


def test_spared_resources_are_not_looked_at() -> None:
    late = wrote("a", 11, "events", "create")
    assert len(strays((*HANDOVER, late), LEASE, ["a"])) == 1
    assert strays((*HANDOVER, late), LEASE, ["a"], spared=["events"]) == []


def made(name: str, version: str, code: int = 201) -> Request:
    body = {"metadata": {"annotations": {"volcano.sh/job-version": version}}}
    return wrote("a", 2, "pods", "create", name=f"default/{name}", body=body, code=code)


def test_a_pod_made_twice_for_a_version_is_seen() -> None:
    log = made("j-t-0", "0"), made("j-t-0", "1"), made("j-t-1", "0"), made("j-t-1", "0")
    assert pods_made(log) == {
        ("default/j-t-0", "0"): 1,
        ("default/j-t-0", "1"): 1,
        ("default/j-t-1", "0"): 2,
    }
    assert pods_made([made("j-t-0", "0"), made("j-t-0", "0", code=409)]).total() == 1


def test_writes_are_counted_for_reports() -> None:
    log = wrote("a", 1), wrote("a", 2), wrote("a", 3, code=409), wrote("b", 1, "pods", "delete")
    assert list(counted(log)) == [("a patch jobs/status", 2), ("b delete pods", 1)]


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
