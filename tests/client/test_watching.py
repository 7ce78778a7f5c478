"""Watches over broken connections and relists, and waits, without I/O."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.operation_script import LOST, Chunks, Script, reply

from batholith.client import (
    ChangeType,
    JobDeletedError,
    JobSummary,
    NotFoundError,
    PhaseUnreachableError,
    Retries,
    UnreachableError,
    WaitTimeoutError,
)
from batholith.client.effects import Reply
from batholith.client.operations.scopes import Collection, ObjectRef, Server
from batholith.client.operations.waiting import wait, watch_jobs
from batholith.client.watch_state import Change, WatchState


def job(name: str, phase: str = "Running", uid: str = "u") -> dict[str, Any]:
    return {"namespace": "default", "name": name, "uid": uid, "phase": phase}


def event(type_: str, data: object, id_: str = "") -> bytes:
    lines = [f"event: {type_}", f"data: {json.dumps(data)}", *([f"id: {id_}"] if id_ else [])]
    return ("\n".join(lines) + "\n\n").encode()


def jobs(script: Script, **session: Any) -> Collection:
    return Collection(Server(script.session(retries=Retries(base=0.0), **session)), "jobs")


def ref(script: Script) -> ObjectRef:
    return jobs(script).ref("a")


def watched(script: Script, count: int) -> list[tuple[str, str, str]]:
    items = script.items(watch_jobs(jobs(script)))
    found = []
    for _ in range(count):
        change = next(items)
        found.append((str(change.type), change.object.name, change.object.phase))
    items.close()
    return found


def test_a_lost_connection_is_resumed_by_the_last_id() -> None:
    first = [event("list", job("a")), event("synced", {}, "5"), event("added", job("b"), "6")]
    script = Script(
        [
            Chunks([*first, b": heartbeat\n\n", b"event: modi"], lost=True),
            Chunks([event("modified", job("a", "Completed"), "8")]),
        ]
    )
    assert watched(script, 3) == [
        ("added", "a", "Running"),
        ("added", "b", "Running"),
        ("modified", "a", "Completed"),
    ]
    assert [each.headers.get("last-event-id") for each in script.requests] == [None, "6"]


def test_an_expired_position_is_relisted_and_the_difference_reported() -> None:
    listed = [event("list", job(name)) for name in ("old", "same", "changed", "again")]
    relisted = [
        event("list", job("same")),
        event("list", job("changed", "Failed")),
        event("list", job("again", uid="other")),
        event("list", job("new")),
    ]
    script = Script(
        [
            Chunks([*listed, event("synced", {}, "5")], lost=True),
            reply(410),
            Chunks([*relisted, event("synced", {}, "9")]),
        ]
    )
    assert watched(script, 9)[4:] == [
        ("deleted", "old", "Running"),
        ("modified", "changed", "Failed"),
        ("deleted", "again", "Running"),
        ("added", "again", "Running"),
        ("added", "new", "Running"),
    ]
    assert [each.headers.get("last-event-id") for each in script.requests] == [None, "5", None]


def test_an_incomplete_list_is_begun_again() -> None:
    script = Script(
        [
            Chunks([event("list", job("a"), "3")], lost=True),
            Chunks([event("list", job("b")), event("synced", {}, "4")]),
        ]
    )
    assert watched(script, 1) == [("added", "b", "Running")]
    assert [each.headers.get("last-event-id") for each in script.requests] == [None, None]


def test_connections_that_deliver_nothing_are_given_up() -> None:
    script = Script([Chunks([event("end", {})])] * 50)
    with pytest.raises(UnreachableError, match="is broken repeatedly: the server ends it"):
        watched(script, 1)
    assert len(script.requests) == Retries().attempts


def test_an_outage_is_outlasted_after_the_first_connection() -> None:
    first = Chunks([event("list", job("a")), event("synced", {}, "5")], lost=True)
    script = Script([first, *([LOST] * 20), Chunks([event("added", job("b"), "6")])])
    assert watched(script, 2)[1] == ("added", "b", "Running")
    with pytest.raises(UnreachableError):
        watched(Script([LOST] * Retries().attempts), 1)


def test_streams_are_closed_before_the_next_is_opened() -> None:
    script = Script([Chunks([event("synced", {}, "1")], lost=True)] * 9 + [LOST] * 36)
    with pytest.raises(UnreachableError):
        watched(script, 1)
    assert script.open_streams == 0


STATES = st.dictionaries(
    st.sampled_from("abc"), st.tuples(st.sampled_from(["1", "2"]), st.sampled_from("xyz"))
)


@given(st.lists(st.tuples(STATES, st.booleans()), max_size=12))
@settings(max_examples=examples(200))
def test_the_reported_changes_lead_to_the_state_of_the_server(
    history: list[tuple[dict[str, tuple[str, str]], bool]],
) -> None:
    """The server has several states; some are seen by events, others only by a relist."""
    watch: WatchState[JobSummary] = WatchState()
    reported: dict[str, JobSummary] = {}
    server: dict[str, JobSummary] = {}
    for state, by_events in history:
        later = {
            name: JobSummary(namespace="n", name=name, uid=uid, phase=phase)
            for name, (uid, phase) in state.items()
        }
        if by_events:
            for name in server.keys() - later.keys():
                report(reported, watch.delete(server[name]))
            for found in later.values():
                report(reported, watch.store(found))
        else:
            watch.begin_list()
            for found in later.values():
                assert list(watch.store(found)) == []
            report(reported, watch.end_list())
        server = later
        assert reported == server


def report(reported: dict[str, JobSummary], changes: Iterator[Change[JobSummary]]) -> None:
    """Apply changes, each of which must be one of what was reported."""
    for change in changes:
        found = change.object
        known = reported.get(found.name)
        if change.type is ChangeType.ADDED:
            assert known is None
        else:
            assert known is not None and known.uid == found.uid
        if change.type is ChangeType.DELETED:
            del reported[found.name]
        else:
            assert known != found
            reported[found.name] = found


def job_reply(phase: str, uid: str = "u") -> Reply:
    return reply(200, job("a", phase, uid))


def stream(*states: tuple[str, str], lost: bool = False) -> Chunks:
    listed, *later = states
    chunks = [event("list", job("a", listed[1])), event("synced", {}, "1")]
    chunks += [event(type_, job("a", phase), "2") for type_, phase in later]
    return Chunks(chunks, lost=lost)


EMPTY = Chunks([event("synced", {}, "1")])


def test_wait_returns_the_final_state_and_reports_progress() -> None:
    seen: list[str] = []
    states = stream(("list", "Pending"), ("modified", "Running"), ("modified", "Failed"))
    script = Script([job_reply("Pending"), states])
    found = script.run(wait(ref(script), on_change=lambda state: seen.append(state.phase)))
    assert (found.phase, seen) == ("Failed", ["Pending", "Running", "Failed"])


@pytest.mark.parametrize(
    ("arguments", "phase"),
    [
        ({"phase": "Running"}, "Running"),
        ({"phase": ["Completing", "Completed"]}, "Completed"),
        ({"condition": lambda state: state.phase == "Running"}, "Running"),
    ],
)
def test_wait_for_phases_or_a_condition(arguments: dict[str, Any], phase: str) -> None:
    states = (("list", "Pending"), ("modified", "Running"), ("modified", "Completed"))
    script = Script([job_reply("Pending"), stream(*states)])
    assert script.run(wait(ref(script), **arguments)).phase == phase


def test_wait_needs_no_watch_for_a_job_that_has_finished() -> None:
    script = Script([job_reply("Completed")])
    assert script.run(wait(ref(script))).phase == "Completed"


def test_wait_raises_once_the_phase_cannot_be_reached() -> None:
    script = Script([job_reply("Running"), stream(("list", "Running"), ("modified", "Failed"))])
    with pytest.raises(PhaseUnreachableError, match="has finished as Failed, not Completed"):
        script.run(wait(ref(script), "Completed"))


@pytest.mark.parametrize(
    "replies",
    [
        [stream(("list", "Running"), ("deleted", "Running")), reply(404)],
        [EMPTY, reply(404)],
        [EMPTY, job_reply("Running", uid="other")],
    ],
)
def test_wait_raises_if_the_job_is_deleted(replies: list[Any]) -> None:
    script = Script([job_reply("Running"), *replies])
    with pytest.raises(JobDeletedError) as caught:
        script.run(wait(ref(script)))
    assert caught.value.job.phase == "Running"


def test_wait_returns_the_last_state_of_a_job_that_is_deleted_when_it_finishes() -> None:
    states = stream(("list", "Running"), ("deleted", "Completed"))
    script = Script([job_reply("Running"), states])
    assert script.run(wait(ref(script))).phase == "Completed"


def test_a_job_that_the_cache_of_the_server_lacks_is_not_deleted() -> None:
    later = stream(("list", "Running"), ("modified", "Completed"))
    script = Script([job_reply("Pending"), EMPTY, job_reply("Running"), later])
    assert script.run(wait(ref(script))).phase == "Completed"


def test_wait_for_a_job_that_does_not_exist() -> None:
    script = Script([reply(404)])
    with pytest.raises(NotFoundError):
        script.run(wait(ref(script)))


def heartbeats(count: int) -> Chunks:
    return Chunks([event("list", job("a")), event("synced", {}, "1"), *([b":\n\n"] * count)])


@pytest.mark.parametrize(
    "replies",
    [
        lambda: [heartbeats(1000) for _ in range(100)],
        lambda: [heartbeats(3), *([LOST] * 1000)],
        lambda: [LOST] * 1000,
    ],
)
def test_wait_ends_soon_after_its_timeout(replies: Callable[[], list[Any]]) -> None:
    script = Script([job_reply("Running"), *replies()], seconds_per_chunk=1.0)
    retries = Retries(attempts=1000, base=0.5, maximum=0.5)
    job_ref = Collection(Server(script.session(retries=retries)), "jobs").ref("a")
    with pytest.raises(WaitTimeoutError):
        script.run(wait(job_ref, timeout=20.0))
    assert 20.0 <= script.now + 1 <= 22.0


def test_wait_for_a_server_that_is_not_reachable_ends_with_its_timeout() -> None:
    script = Script([LOST] * 1000)
    retries = Retries(attempts=1000, base=0.5, maximum=0.5)
    job_ref = Collection(Server(script.session(retries=retries)), "jobs").ref("a")
    with pytest.raises(WaitTimeoutError, match="cannot read jobs default/a"):
        script.run(wait(job_ref, timeout=5.0))
    assert script.now <= 5.0
