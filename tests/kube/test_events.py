"""Events on the server: counted, aggregated, limited, and never blocking."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from support.controller_api import ControllerApi, Json
from support.examples import examples
from support.polling import wait_for

from batholith.kube.client.client import Client, ClientOptions
from batholith.kube.client.event_correlator import (
    Event,
    EventCorrelator,
    EventSource,
    RecordedEvent,
    event_name,
)
from batholith.kube.client.events import EventRecorder, EventRecorderOptions
from batholith.kube.metrics import ClientMetrics
from batholith.kube.timing import Timing
from batholith.model.meta import ObjectReference
from batholith.model.names import CONFIGMAPS, EVENTS
from batholith.testing import RequestMatcher

JOB = ObjectReference(
    api_version="batch.volcano.sh/v1alpha1", kind="Job", namespace="d", name="train", uid="u1"
)
QUEUE = ObjectReference(kind="Queue", name="research", uid="u2")


class RecorderHarness:
    """A server, a recorder with a fake clock, and the delays that it requested."""

    def __init__(self, api: ControllerApi, options: EventRecorderOptions | None) -> None:
        self.api = api
        self.time = 1000.0
        self.recorded_count = 0
        self.delays: list[float] = []
        self.registry = CollectorRegistry()
        timing = Timing(
            monotonic=lambda: self.time,
            sleep=self._sleep,
            random=lambda: 0.25,
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.time),
        )
        self.client = Client(
            api.credentials,
            user_agent="t",
            options=ClientOptions(timing=timing, metrics=ClientMetrics(self.registry)),
        )
        self.recorder = EventRecorder(
            self.client, component="job-controller", instance="host-1", options=options
        )
        self.task: asyncio.Task[None] | None = None

    async def _sleep(self, seconds: float) -> None:
        self.delays.append(seconds)
        await asyncio.sleep(0)

    def record(self, message: str, *, about: ObjectReference = JOB, reason: str = "Failed") -> None:
        # A microsecond apart, as in practice: names derive from the time.
        self.time += 0.000001
        self.recorder.record(about, type="Warning", reason=reason, message=message)

    async def written(self) -> list[Json]:
        """Wait until all recorded events are processed; return the Events."""
        await wait_for(lambda: self.settled == self.recorded_count)
        return list(self.api.objects(EVENTS).values())

    @property
    def settled(self) -> int:
        counts = self.recorder.stats
        return (
            counts.created
            + counts.patched
            + counts.aggregated
            + counts.dropped_full
            + counts.dropped_spam
            + counts.refused
            + counts.unreachable
        )

    def burst(self, messages: list[str]) -> None:
        for message in messages:
            self.record(message)
        self.recorded_count += len(messages)


@pytest.fixture
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[RecorderHarness]:
    """A recorder with the options that a test gives as a parameter."""
    async with ControllerApi() as api:
        harness = RecorderHarness(api, getattr(request, "param", None))
        async with harness.client:
            harness.task = asyncio.create_task(harness.recorder.run())
            yield harness
            harness.task.cancel()
            with suppress(asyncio.CancelledError):
                await harness.task


async def test_components_that_share_a_recorder_are_the_sources_of_their_events(
    harness: RecorderHarness,
) -> None:
    for component in ("a", "b"):
        recorder = harness.recorder.with_component(component)
        recorder.record(JOB, type="Normal", reason="Created", message="same")
        harness.time += 0.000001
    harness.recorded_count += 2
    events = await harness.written()
    assert {each["source"]["component"]: each["count"] for each in events} == {"a": 1, "b": 1}
    assert {each["reportingComponent"] for each in events} == {"a", "b"}


async def test_event_has_source_object_reason_message_and_times(harness: RecorderHarness) -> None:
    harness.burst(["pods are missing"])
    (event,) = await harness.written()
    assert event["kind"] == "Event"
    assert event["involvedObject"]["uid"] == "u1"
    assert event["metadata"]["namespace"] == "d"
    assert event["metadata"]["name"].startswith("train.")
    assert event["source"] == {"component": "job-controller", "host": "host-1"}
    assert (event["type"], event["reason"], event["count"]) == ("Warning", "Failed", 1)
    assert event["reportingComponent"] == "job-controller"
    assert event["firstTimestamp"] == event["lastTimestamp"] == "2026-01-01T00:16:40Z"


async def test_events_of_cluster_scoped_objects_are_in_default_namespace(
    harness: RecorderHarness,
) -> None:
    harness.record("closed", about=QUEUE)
    await wait_for(lambda: harness.api.objects(EVENTS))
    (event,) = harness.api.objects(EVENTS).values()
    assert event["metadata"]["namespace"] == "default"


async def test_repeated_events_increment_the_count_of_one_event(harness: RecorderHarness) -> None:
    """INV-EV-1: n identical events are one Event whose count is n less what was dropped."""
    harness.burst(["no capacity"] * 30)
    (event,) = await harness.written()
    assert harness.recorder.stats.dropped_spam == 5
    assert event["count"] == 30 - 5
    assert harness.api.count("POST") == 1


async def test_spam_filter_limits_events_of_one_object(harness: RecorderHarness) -> None:
    """INV-EV-2: at most 25 writes and one more each five minutes."""
    for _ in range(100):
        harness.burst(["no capacity"])
        await harness.written()
    assert len(harness.api.faults.requests) == 25
    harness.time += 601
    for _ in range(100):
        harness.burst(["no capacity"])
        await harness.written()
    assert len(harness.api.faults.requests) == 27
    harness.record("other", about=QUEUE)
    await wait_for(lambda: len(harness.api.faults.requests) == 28)


async def test_many_distinct_messages_are_aggregated_into_one_event(
    harness: RecorderHarness,
) -> None:
    """INV-EV-3: nine messages, nine Events; the tenth and later are aggregated."""
    harness.burst([f"pod {number} failed" for number in range(9)])
    assert len(await harness.written()) == 9
    harness.burst([f"pod {number} failed" for number in range(9, 20)])
    events = await harness.written()
    assert len(events) == 10
    combined = events[-1]
    assert combined["message"] == "(combined from similar events): pod 19 failed"
    assert combined["count"] == 11


async def test_aggregation_resets_after_ten_minutes_without_events(
    harness: RecorderHarness,
) -> None:
    harness.burst([f"pod {number} failed" for number in range(12)])
    assert len(await harness.written()) == 10
    harness.time += 601
    harness.burst(["pod 77 failed"])
    assert (await harness.written())[-1]["message"] == "pod 77 failed"


async def test_event_expired_on_the_server_is_created_again(harness: RecorderHarness) -> None:
    harness.burst(["no capacity", "no capacity"])
    (event,) = await harness.written()
    harness.api.remove(EVENTS, event["metadata"]["name"])
    harness.burst(["no capacity"])
    (again,) = await harness.written()
    assert again["count"] == 3


async def test_rejected_event_is_dropped(harness: RecorderHarness) -> None:
    harness.api.fail(403)
    harness.burst(["one", "two"])
    (event,) = await harness.written()
    assert event["message"] == "two"
    assert harness.recorder.stats.refused == 1
    assert harness.delays == []


async def test_event_is_retried_every_ten_seconds_twelve_times_without_connection(
    harness: RecorderHarness,
) -> None:
    harness.api.faults.lose_request(RequestMatcher(count=3))
    harness.burst(["one"])
    assert len(await harness.written()) == 1
    assert harness.delays == [2.5, 10.0, 10.0]
    harness.delays.clear()
    harness.api.faults.lose_request(RequestMatcher(count=12))
    harness.burst(["two"])
    await harness.written()
    assert harness.recorder.stats.unreachable == 1
    assert harness.delays == [2.5] + [10.0] * 10


def about_job(number: int) -> ObjectReference:
    return ObjectReference(kind="Job", namespace="d", name=f"job-{number}", uid=f"u-{number}")


async def test_repeated_and_similar_events_need_no_further_space_in_the_queue(
    harness: RecorderHarness,
) -> None:
    for number in range(100):
        for repeated in range(12):
            harness.record("no capacity", about=about_job(number), reason="Unschedulable")
            harness.record(f"pod {repeated} failed", about=about_job(number))
    harness.recorded_count += 100 * 24
    assert harness.recorder.pending_count == 100 * (1 + 9 + 1)
    assert harness.recorder.stats.dropped_full == 0
    events = await harness.written()
    assert len(events) == harness.api.count("POST") == 100 * 11
    assert harness.api.count("PATCH") == 0
    counts = {
        event["message"]: event["count"]
        for event in events
        if "job-7." in event["metadata"]["name"]
    }
    assert counts["no capacity"] == 12
    assert counts["(combined from similar events): pod 11 failed"] == 3


@pytest.mark.parametrize("harness", [EventRecorderOptions(queue_size=100)], indirect=True)
async def test_events_are_dropped_and_counted_when_the_queue_is_full(
    harness: RecorderHarness, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[int]:
        return [vars(each)["dropped"] for each in caplog.records if "queue full" in each.message]

    for number in range(130):
        harness.record("m", about=about_job(number))
    harness.recorded_count += 130
    assert harness.recorder.pending_count == 100
    assert harness.recorder.stats.dropped_full == 30
    assert warnings() == [1]
    harness.time += 10
    harness.record("m", about=about_job(130))
    harness.recorded_count += 1
    assert warnings() == [1, 30]
    await harness.written()
    dropped = harness.registry.get_sample_value(
        "batholith_events_total", {"result": "dropped_full"}
    )
    assert dropped == 31


async def test_event_of_unknown_type_is_dropped_without_raising(
    harness: RecorderHarness,
) -> None:
    harness.recorder.record(JOB, type="Fatal", reason="x", message="y")  # type: ignore[arg-type]
    assert harness.recorder.stats.dropped_invalid == 1
    assert harness.recorder.pending_count == 0


async def test_cancelled_recorder_writes_nothing_more(harness: RecorderHarness) -> None:
    """INV-EV-4: cancelling the recorder stops the writes, with events still queued."""
    held = harness.api.faults.hold(RequestMatcher())
    harness.burst([f"m{number}" for number in range(5)])
    await held.wait_held()
    assert harness.task is not None
    harness.task.cancel()
    with suppress(asyncio.CancelledError):
        await harness.task
    harness.record("after cancellation")
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert len(harness.api.faults.requests) == 1


async def test_events_have_lower_priority_than_other_writes() -> None:
    async with ControllerApi() as api:
        options = ClientOptions(max_writes_in_flight=2)
        async with Client(api.credentials, user_agent="t", options=options) as client:
            recorder = EventRecorder(client, component="c", options=EventRecorderOptions())
            task = asyncio.create_task(recorder.run())
            writes = [
                asyncio.create_task(
                    client.create(CONFIGMAPS, {"metadata": {"name": f"c{n}"}}, namespace="d")
                )
                for n in range(20)
            ]
            await wait_for(lambda: api.faults.requests)
            recorder.record(JOB, type="Normal", reason="a", message="first")
            await asyncio.gather(*writes)
            await wait_for(lambda: api.objects(EVENTS))
            task.cancel()
        # One write may still be in flight when the event replaces another.
        assert [seen.path.endswith("/events") for seen in api.faults.requests].index(True) >= 19


def test_invalid_event_name_is_replaced_by_a_uuid() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert event_name("train", at) == f"train.{int(at.timestamp()) * 10**9:x}"
    for bad in ("x" * 250, "Upper", "", "a_b"):
        assert len(event_name(bad, at)) == 36


def _fact(name: str, message: str) -> RecordedEvent:
    about = ObjectReference(kind="Job", namespace="d", name=name, uid=name)
    return RecordedEvent(
        regarding=about, type="Normal", reason="r", message=message, timestamp=datetime.now(UTC)
    )


@settings(max_examples=examples(100), deadline=None)
@given(
    stream=st.lists(
        st.tuples(
            st.sampled_from(["a", "b"]), st.integers(0, 14), st.sampled_from([0.0, 1.0, 299, 700])
        ),
        max_size=150,
    )
)
def test_any_event_stream_stays_within_the_limits(stream: list[tuple[str, int, float]]) -> None:
    """INV-EV-1, INV-EV-2 and INV-EV-3 for any order of objects, messages and delays."""
    correlator = EventCorrelator(EventSource(component="c"))
    now, sent = 0.0, list[tuple[float, Event]]()
    recorded: dict[str, int] = {}
    for name, number, delay in stream:
        now += delay
        recorded[name] = recorded.get(name, 0) + 1
        event = correlator.correlate(_fact(name, f"m{number}"), now)
        if event is not None:
            sent.append((now, event))
    for name in "ab":
        mine = [(at, event) for at, event in sent if event.involved_object.name == name]
        for first, (start, _) in enumerate(mine):
            for last in range(first, len(mine)):
                assert last - first + 1 <= 25 + (mine[last][0] - start) / 300 + 1e-6
        final = {event.metadata.name + event.message[:5]: event.count for _, event in mine}
        assert sum(final.values()) <= recorded.get(name, 0)
        combined = {
            event.metadata.name for _, event in mine if event.message.startswith("(combined")
        }
        assert len(combined) <= 1


def test_correlator_tables_are_bounded() -> None:
    correlator = EventCorrelator(EventSource(component="c"))
    for number in range(5000):
        correlator.correlate(_fact(f"job-{number}", "m"), 0.0)
    assert correlator.table_sizes() == (4096, 4096, 4096)
    again = correlator.correlate(_fact("job-0", "m"), 0.0)
    assert again is not None
    assert again.count == 1


@pytest.mark.parametrize("error", [RuntimeError("a mistake"), asyncio.CancelledError()])
async def test_failed_recorder_is_restarted_and_writes_queued_events(
    harness: RecorderHarness, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors, send = [error], harness.recorder._send

    async def failing(event: Event, is_new: bool) -> None:
        if errors:
            raise errors.pop()
        await send(event, is_new)

    monkeypatch.setattr(harness.recorder, "_send", failing)
    harness.record("lost with the mistake")
    harness.record("kept")
    await wait_for(lambda: harness.recorder.stats.created == 1)
    assert [event["message"] for event in harness.api.objects(EVENTS).values()] == ["kept"]
