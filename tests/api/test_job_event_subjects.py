"""Which Events belong to a job, by the names of pods that it had, however many they are."""

import pytest

from batholith.api.jobs.events import Event, EventSubjects
from batholith.model.meta import ObjectReference

SINCE = "2026-01-01T00:00:00Z"


def event(name: str, kind: str = "Pod", at: str = SINCE) -> Event:
    return Event(involved_object=ObjectReference(kind=kind, name=name), last_timestamp=at)


def test_a_job_of_many_pods_does_not_list_their_names() -> None:
    subjects = EventSubjects(since=SINCE, uids={"u"}, replicas={"train-w": 2**31 - 1})
    assert subjects.selectors == [""]
    assert subjects.selects(event("train-w-2147483646"))


def test_a_small_job_selects_the_events_of_each_object() -> None:
    subjects = EventSubjects(since=SINCE, uids={"u"}, pods={"train-w-0"}, replicas={"train-w": 2})
    named = "involvedObject.kind=Pod,involvedObject.name=train-w-"
    assert subjects.selectors == ["involvedObject.uid=u", f"{named}0", f"{named}1"]


@pytest.mark.parametrize(
    "other",
    [
        event("train-w-2"),
        event("train-w-01"),
        event("train-w-"),
        event("train-w-x"),
        event("train-0"),
        event("train-w-1", kind="Job"),
        event("train-w-1", at="2025-12-31T00:00:00Z"),
    ],
)
def test_events_of_other_objects_are_not_selected(other: Event) -> None:
    subjects = EventSubjects(since=SINCE, replicas={"train-w": 2})
    assert subjects.selects(event("train-w-1"))
    assert not subjects.selects(other)
