"""The informer against the API server: broken watches, expired versions, faults."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from support.controller_api import NAMESPACE
from support.examples import examples
from support.loop_time import LoopTime
from support.polling import wait_for
from support.watched_pods import PodsApi, impatient_client, is_watch_list

from batholith.kube.client.client import Client, ClientOptions
from batholith.kube.client.config import Credentials
from batholith.kube.informer.informer import EventHandler, Informer, KindSource, OptionalSource
from batholith.kube.informer.reflector import InformerOptions, Reflector
from batholith.kube.informer.relist import YIELD_EVERY, Relist
from batholith.kube.metrics import ClientMetrics
from batholith.kube.supervision import TASK_RESTARTS
from batholith.kube.timing import Timing
from batholith.local.apiserver.verbs import reads
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta
from batholith.model.names import NAMESPACES, NODES, PODS, Resource
from batholith.testing import RequestMatcher


class Spec(ApiStruct, frozen=True):
    node_name: str = ""


class Pod(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: Spec = Spec()


ObservedEvents = tuple[Pod | None, Pod | None]


class InformerFollower:
    """A running informer and the events that its handler received."""

    def __init__(self, api: PodsApi, client: Client, delays: list[float], **options: Any) -> None:
        self.api = api
        self.delays = delays
        self.events: list[ObservedEvents] = []
        self.informer = Informer(
            client,
            PODS,
            Pod,
            indexes={
                "node": lambda pod: (pod.spec.node_name,) if pod.spec.node_name else (),
                "space": lambda pod: (pod.metadata.namespace,),
                "app": lambda pod: pod.metadata.labels.values(),
            },
            options=InformerOptions(**options),
        )
        self.informer.add_event_handler(lambda old, new: self.events.append((old, new)))

    @property
    def event_summary(self) -> list[tuple[str, str]]:
        """Return (add, update or delete; key) of each event."""
        names = {(True, False): "add", (False, False): "update", (False, True): "delete"}
        return [
            (names[old is None, new is None], (new or old or Pod()).metadata.key)
            for old, new in self.events
        ]

    async def wait_caught_up(self) -> None:
        """Wait until the informer has the server's latest version of the pods."""
        await wait_for(self.is_caught_up)
        self.check()

    def is_caught_up(self) -> bool:
        return int(self.informer.resource_version or -1) >= self.api.pods_version

    def check(self) -> None:
        """The store equals the server's (INV-INF-1), and indexes and counts agree with it."""
        here = {pod.metadata.key: pod.metadata.resource_version for pod in self.informer}
        assert here == self.api.pod_versions()
        self.informer.validate()


@asynccontextmanager
async def running_informer(api: PodsApi, **options: Any) -> AsyncIterator[InformerFollower]:
    delays: list[float] = []
    async with impatient_client(api, delays) as client:
        follower = InformerFollower(api, client, delays, **options)
        task = asyncio.create_task(follower.informer.run())
        try:
            yield follower
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@pytest.fixture
async def api() -> AsyncIterator[PodsApi]:
    async with PodsApi() as api:
        yield api


@pytest.mark.parametrize("streams_lists", [True, False])
async def test_list_and_watch_update_store_indexes_and_handler(
    api: PodsApi, streams_lists: bool
) -> None:
    if not streams_lists:
        api.faults.reject_watch_lists()
    api.put(PODS, "a", spec={"nodeName": "n1"}, metadata={"labels": {"app": "x"}})
    api.put(PODS, "b")
    async with running_informer(api) as follower:
        informer = follower.informer
        assert not informer.synced
        await informer.wait_synced()
        assert follower.event_summary == [("add", "d/a"), ("add", "d/b")]
        assert [pod.metadata.name for pod in informer.by_index("node", "n1")] == ["a"]
        api.put(PODS, "a", spec={"nodeName": "n2"})
        api.remove(PODS, "b")
        api.put(PODS, "c", namespace="e")
        await follower.wait_caught_up()
        assert follower.event_summary[2:] == [("update", "d/a"), ("delete", "d/b"), ("add", "e/c")]
        assert list(informer.by_index("node", "n1")) == []
        assert [pod.metadata.name for pod in informer.by_index("node", "n2")] == ["a"]
        assert [pod.metadata.name for pod in informer.by_index("space", "e")] == ["c"]
        assert [pod.metadata.name for pod in informer.by_index("app", "x")] == ["a"]
        assert len(informer) == 2
        assert "d/a" in informer
        assert informer.get("d/b") is None
    assert api.count("list", PODS) == (0 if streams_lists else 1)


async def test_transform_determines_what_is_kept(api: PodsApi) -> None:
    """INV-INF-1: of the initial list and of updates; indexes and handlers see the result."""

    def without_labels(pod: Pod) -> Pod:
        meta = msgspec.structs.replace(pod.metadata, labels={})
        return msgspec.structs.replace(pod, metadata=meta) if pod.spec.node_name else pod

    api.put(PODS, "a", spec={"nodeName": "n"}, metadata={"labels": {"app": "x"}})
    api.put(PODS, "b", metadata={"labels": {"app": "x"}})
    async with Client(api.credentials, user_agent="t") as client:
        informer = Informer(
            client,
            PODS,
            Pod,
            indexes={"app": lambda pod: pod.metadata.labels.values()},
            transform=without_labels,
        )
        events: list[Pod | None] = []
        informer.add_event_handler(lambda old, new: events.append(new))
        task = asyncio.create_task(informer.run())
        await informer.wait_synced()
        assert [pod.metadata.name for pod in informer.by_index("app", "x")] == ["b"]
        api.put(PODS, "b", spec={"nodeName": "n"})
        await wait_for(lambda: len(events) == 3)
        assert list(informer.by_index("app", "x")) == []
        assert [bool(pod and pod.metadata.labels) for pod in events] == [False, True, False]
        informer.validate()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_watch_list_that_never_ends_falls_back_to_pages(api: PodsApi) -> None:
    api.faults.hold(RequestMatcher("watch", where=is_watch_list, count=None))
    for number in range(7):
        api.put(PODS, f"p{number}")
    async with running_informer(api, watch_list_timeout=0.05, page_size=3) as follower:
        await follower.informer.wait_synced()
        follower.check()
    assert api.count("list", PODS) == 3


async def test_object_recreated_with_another_uid_is_a_delete_and_an_add(api: PodsApi) -> None:
    first = api.put(PODS, "a")["metadata"]["uid"]
    async with running_informer(api) as follower:
        await follower.informer.wait_synced()
        api.drop_watches()
        api.remove(PODS, "a")
        second = api.put(PODS, "a")["metadata"]["uid"]
        api.compact()
        await follower.wait_caught_up()
        assert follower.event_summary == [("add", "d/a"), ("delete", "d/a"), ("add", "d/a")]
        uids = [(new or old or Pod()).metadata.uid for old, new in follower.events]
        assert uids == [first, first, second]


async def test_relist_delivers_only_differences(api: PodsApi) -> None:
    """INV-INF-3: what was deleted during the disconnect is delivered as deleted."""
    for name in ("same", "changes", "removed"):
        api.put(PODS, name)
    async with running_informer(api) as follower:
        await follower.informer.wait_synced()
        follower.events.clear()
        api.drop_watches()
        api.put(PODS, "changes", x=1)
        api.remove(PODS, "removed")
        api.put(PODS, "added")
        api.compact()
        await follower.wait_caught_up()
        assert sorted(follower.event_summary) == [
            ("add", "d/added"),
            ("delete", "d/removed"),
            ("update", "d/changes"),
        ]
        assert follower.informer.stats().lists == 2


async def test_ended_watch_is_resumed_from_the_last_version(api: PodsApi) -> None:
    api.put(PODS, "a")
    async with running_informer(api) as follower:
        await follower.informer.wait_synced()
        for end in (api.end_watches, api.drop_watches):
            api.put(PODS, "a", x=end.__name__)
            await follower.wait_caught_up()
            version = follower.informer.resource_version
            end()
            api.put(PODS, "a", y=end.__name__)
            await follower.wait_caught_up()
            assert api.faults.requests[-1].query["resourceVersion"] == version
        assert follower.informer.stats().lists == 1
        assert [logged for logged, _ in follower.event_summary] == ["add"] + ["update"] * 4


async def test_bookmark_advances_the_resource_version(
    api: PodsApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "BOOKMARK_INTERVAL", 0.01)
    api.put(PODS, "a")
    async with running_informer(api) as follower:
        await follower.informer.wait_synced()
        for number in range(5):
            api.put(NODES, "n", x=number)  # another kind: no event here, but versions pass
        await wait_for(lambda: int(follower.informer.resource_version) >= api.newest_version)
        api.compact()
        api.end_watches()
        api.put(PODS, "b")
        await follower.wait_caught_up()
        assert follower.informer.stats().lists == 1


@pytest.mark.parametrize(("status", "times", "lists"), [(500, 1, 2), (410, 1, 2), (429, 3, 1)])
async def test_only_errors_that_invalidate_the_version_cause_a_relist(
    api: PodsApi, status: int, times: int, lists: int
) -> None:
    api.put(PODS, "a")
    async with running_informer(api) as follower:
        await follower.wait_caught_up()
        api.faults.error(RequestMatcher("watch", PODS, count=times), status)
        api.end_watches()
        await wait_for(lambda: follower.informer.stats().failures >= 1 and api.watches(PODS))
        api.put(PODS, "a", x=1)
        await follower.wait_caught_up()
        assert follower.informer.stats().lists == lists
        assert follower.event_summary == [("add", "d/a"), ("update", "d/a")]


async def test_backoff_between_failures_doubles(api: PodsApi) -> None:
    api.faults.lose_request(RequestMatcher(count=99))
    async with running_informer(api) as follower:
        await wait_for(lambda: len(follower.delays) >= 5)
        assert follower.delays[:5] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8])


async def test_outage_is_logged_at_start_and_end(
    api: PodsApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "batholith.kube.informer.reflector")
    api.faults.lose_request(RequestMatcher(count=20))
    async with running_informer(api) as follower:
        api.put(PODS, "a")
        await follower.wait_caught_up()
        assert len(follower.delays) > 3
        assert follower.informer.stale_seconds == 0
    logged = [(line.levelname, line.message) for line in caplog.records if "reflector" in line.name]
    assert logged == [
        ("INFO", "watch failed, resuming"),
        ("WARNING", "watch failed, resuming"),
        ("INFO", "watch re-established"),
    ]
    assert "?" not in vars(caplog.records[0])["error"]


async def test_the_absence_of_an_optional_resource_is_logged_once(
    api: PodsApi, caplog: pytest.LogCaptureFixture
) -> None:
    """Its informers ask for it forever, and a warning each minute would hide others."""
    caplog.set_level(logging.INFO, "batholith.kube.informer.reflector")
    resource = Resource("example.com", "v1beta1", "widgets", "Widget")
    delays: list[float] = []
    async with impatient_client(api, delays) as client:
        informer = Informer(client, resource, Pod)
        source = OptionalSource(informer, lambda old, new: None)
        task = asyncio.create_task(source.run())
        await wait_for(lambda: len(delays) >= 5)
        assert informer.is_absent
        task.cancel()
        await asyncio.wait([task])
    (line,) = caplog.records
    assert (line.levelname, vars(line)["api_version"]) == ("INFO", "example.com/v1beta1")


async def test_unreachable_server_is_retried_with_short_backoff() -> None:
    api = PodsApi()
    delays: list[float] = []

    async def sleep(seconds: float) -> None:
        delays.append(seconds)
        await asyncio.sleep(0)

    options = ClientOptions(timing=Timing(sleep=sleep, random=lambda: 0.0), max_read_attempts=1)
    server = Credentials(server="http://127.0.0.1:1")
    async with Client(server, user_agent="t", options=options) as client:
        follower = InformerFollower(api, client, delays)
        task = asyncio.create_task(follower.informer.run())
        await wait_for(lambda: len(delays) >= 7)
        task.cancel()
    assert delays[:7] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 1.5])
    assert not follower.informer.synced
    assert follower.informer.stale_seconds > 0


async def test_very_short_watches_are_retried_with_backoff(api: PodsApi) -> None:
    async with running_informer(api) as follower:
        await follower.informer.wait_synced()

        # On a busy machine a watch may last long enough not to be very short: end more of them.
        def ended_often() -> bool:
            api.end_watches()
            return len(follower.delays) >= 3

        await wait_for(ended_often)
        assert follower.informer.stats().short_watches >= 3


async def test_watch_without_data_is_resumed_after_the_idle_timeout(
    api: PodsApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put(PODS, "a")
    time = LoopTime(monkeypatch)
    async with running_informer(api, idle_timeout=50) as follower:
        await follower.wait_caught_up()
        for watches in (2, 3):
            time.advance(51)  # no bookmark is due yet
            await wait_for(lambda: follower.informer.stats().watches == watches)  # noqa: B023
            await follower.wait_caught_up()
        api.put(PODS, "a", x=1)
        await follower.wait_caught_up()
        assert follower.informer.stats().lists == 1


async def test_truncated_event_is_delivered_after_resuming(api: PodsApi) -> None:
    api.put(PODS, "a")
    async with running_informer(api) as follower:
        await follower.wait_caught_up()
        api.watches(PODS)[0].abort_after(40)
        api.put(PODS, "a", x="y" * 100)
        await follower.wait_caught_up()
        assert follower.event_summary == [("add", "d/a"), ("update", "d/a")]


async def test_malformed_event_causes_a_relist(api: PodsApi) -> None:
    api.put(PODS, "a")
    async with running_informer(api) as follower:
        await follower.informer.wait_synced()
        api.watches(PODS)[0].send(b"<html>proxy error</html>\n")
        await wait_for(lambda: follower.informer.stats().lists == 2)
        await follower.wait_caught_up()
        assert follower.event_summary == [("add", "d/a")]


@pytest.mark.parametrize("streams_lists", [True, False])
async def test_undecodable_object_is_skipped_and_counted(
    api: PodsApi, streams_lists: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if not streams_lists:
        api.faults.reject_watch_lists()
    api.put(PODS, "bad", spec={"nodeName": 7})
    api.put(PODS, "invalid", spec={"nodeName": "n"})
    async with running_informer(api) as follower:
        await follower.informer.wait_synced()
        assert list(map(str, follower.event_summary)) == [str(("add", "d/invalid"))]
        api.put(PODS, "invalid", spec={"nodeName": 8})
        api.put(PODS, "good")
        await wait_for(lambda: "d/good" in follower.informer)
        assert follower.informer.stats().undecodable == 2
        api.drop_watches()
        api.compact()
        api.put(PODS, "later")
        api.compact()
        await wait_for(lambda: "d/later" in follower.informer)
        former = follower.informer.get("d/invalid")
        assert former is not None
        assert former.spec.node_name == "n"
        api.remove(PODS, "invalid")
        await wait_for(lambda: "d/invalid" not in follower.informer)
    assert any("cannot decode object" in record.message for record in caplog.records)


async def test_failing_handler_does_not_affect_other_handlers(
    api: PodsApi, caplog: pytest.LogCaptureFixture
) -> None:
    def bad(old: Pod | None, new: Pod | None) -> None:
        raise RuntimeError("a bug")

    api.put(PODS, "a")
    async with running_informer(api) as follower:
        follower.informer.add_event_handler(bad)
        received: list[ObservedEvents] = []
        follower.informer.add_event_handler(lambda old, new: received.append((old, new)))
        await follower.informer.wait_synced()
        api.put(PODS, "b")
        await follower.wait_caught_up()
        assert received == follower.events
        assert follower.informer.stats().handler_errors == 2
    logged = [record for record in caplog.records if record.message == "event handler failed"]
    assert {record.__dict__["key"] for record in logged} == {"d/a", "d/b"}
    assert logged[0].levelno == logging.ERROR


async def test_late_handler_receives_initial_replay(api: PodsApi) -> None:
    api.put(PODS, "a")
    api.put(PODS, "b")
    async with running_informer(api) as follower:
        await follower.wait_caught_up()
        received: list[ObservedEvents] = []
        handler: EventHandler[Pod] = lambda old, new: received.append((old, new))  # noqa: E731
        follower.informer.add_event_handler(handler)
        assert received == [
            (None, follower.informer.get("d/a")),
            (None, follower.informer.get("d/b")),
        ]
        api.remove(PODS, "a")
        await follower.wait_caught_up()
        assert len(received) == 3


async def test_cancelled_informer_closes_its_watch(api: PodsApi) -> None:
    async with running_informer(api) as follower:
        await follower.informer.wait_synced()
        assert len(api.watches(PODS)) == 1
    await api.wait_until(lambda: not api.watches(PODS))


async def test_unchanged_objects_are_not_redelivered(api: PodsApi) -> None:
    """INV-INF-5: a repetition of the same version reaches no handler."""
    obj = api.put(PODS, "a")
    async with running_informer(api) as follower:
        await follower.wait_caught_up()
        for _ in range(3):
            api.watches(PODS)[0].send_event("MODIFIED", obj)
        api.put(PODS, "b")
        await follower.wait_caught_up()
        assert follower.event_summary == [("add", "d/a"), ("add", "d/b")]


async def test_large_list_yields_to_other_tasks(api: PodsApi) -> None:
    for number in range(1000):
        api.put(PODS, f"p{number}")
    api.faults.reject_watch_lists()
    yields = 0

    async def other() -> None:
        nonlocal yields
        while True:
            yields += 0 < len(follower.events) < 1000
            await asyncio.sleep(0)

    async with running_informer(api, page_size=5000) as follower:
        task = asyncio.create_task(other())
        await follower.informer.wait_synced()
        task.cancel()
        follower.check()
        assert api.count("list", PODS) == 1
        assert yields >= 1000 // YIELD_EVERY - 1


async def test_shared_informer_runs_until_the_last_runner_ends(api: PodsApi) -> None:
    api.put(PODS, "a")
    async with running_informer(api) as follower:
        await follower.wait_caught_up()
        other = asyncio.create_task(follower.informer.run())
        await asyncio.sleep(0)
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        api.put(PODS, "b")
        await follower.wait_caught_up()
        assert follower.informer.stats().watches == 1
    api.put(PODS, "c")
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert "d/c" not in follower.informer


async def test_informer_run_again_resumes_from_its_version(api: PodsApi) -> None:
    api.put(PODS, "a")
    async with Client(api.credentials, user_agent="t") as client:
        informer = Informer(client, PODS, Pod)
        for _ in range(2):
            task = asyncio.create_task(informer.run())
            await wait_for(lambda: informer.synced and len(informer) == len(api.objects(PODS)))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert informer.stats().lists == 1
            api.put(PODS, "b")


async def test_an_informer_that_has_ended_is_not_reported(api: PodsApi) -> None:
    """A controller whose kind is no longer served does not cause its process to count as stale."""
    metrics = ClientMetrics()
    options = ClientOptions(metrics=metrics)
    async with Client(api.credentials, user_agent="t", options=options) as client:
        informer = Informer(client, PODS, Pod)
        assert metrics.informers() == [informer], "readiness waits for it"
        for _ in range(2):
            task, other = (asyncio.create_task(informer.run()) for _ in range(2))
            await asyncio.sleep(0)
            await informer.wait_synced()
            other.cancel()
            await asyncio.wait([other])
            assert metrics.informers() == [informer]
            task.cancel()
            await asyncio.wait([task])
            assert metrics.informers() == []


async def test_a_source_that_has_ended_gets_no_events_from_a_shared_informer(api: PodsApi) -> None:
    """Otherwise each new controller of a kind that is served again would leave one more handler."""
    events: list[str] = []

    def source(name: str) -> KindSource[Pod]:
        def handler(old: Pod | None, new: Pod | None) -> None:
            assert new is not None
            events.append(f"{name} {new.metadata.name}")

        return KindSource(informer, handler)

    api.put(PODS, "a")
    async with Client(api.credentials, user_agent="t") as client:
        informer = Informer(client, PODS, Pod)
        sources = [source("first"), source("second")]
        tasks = [asyncio.create_task(each.run()) for each in sources]
        for each in sources:
            await each.wait_synced()
            await each.attach()
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        api.put(PODS, "b")
        await wait_for(lambda: "second b" in events)
        tasks[1].cancel()
        await asyncio.wait(tasks[1:])
    assert events == ["first a", "second a", "second b"]


async def test_metrics_report_informer_counts(api: PodsApi) -> None:
    registry = CollectorRegistry()
    api.put(PODS, "a")
    options = ClientOptions(metrics=ClientMetrics(registry))
    async with Client(api.credentials, user_agent="t", options=options) as client:
        informer = Informer(client, PODS, Pod)
        task = asyncio.create_task(informer.run())
        await informer.wait_synced()
        task.cancel()
        assert registry.get_sample_value("batholith_cache_objects", {"name": "pods"}) == 1
        assert registry.get_sample_value("reflector_lists_total", {"name": "pods"}) == 1
        assert registry.get_sample_value("batholith_cache_added_total", {"name": "pods"}) == 1
        silent = "batholith_cache_out_of_touch_seconds"
        assert registry.get_sample_value(silent, {"name": "pods"}) == 0


# Random histories.

Example = Callable[[InformerFollower], Awaitable[None]]
RunExample = Callable[[Example], None]

NAMES = st.sampled_from(["a", "b", "c", "d"])
STEPS = st.one_of(
    st.tuples(st.just("put"), NAMES),
    st.tuples(st.just("put"), NAMES),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("drop"), NAMES),
    st.tuples(st.just("end"), NAMES),
    st.tuples(st.just("forget"), NAMES),
    st.tuples(st.just("cut"), NAMES),
    st.tuples(st.sampled_from(["refuse-500", "refuse-429", "refuse-410", "lose"]), NAMES),
    st.tuples(st.just("reject watch lists"), NAMES),
    st.tuples(st.just("breathe"), NAMES),
    st.tuples(st.just("wait"), NAMES),
)


async def apply_step(follower: InformerFollower, step: str, name: str) -> None:
    api = follower.api
    plain: dict[str, Callable[[], object]] = {
        "drop": api.drop_watches,
        "end": api.end_watches,
        "forget": api.compact,
        "cut": lambda: api.drop_watches(after=30),
        "reject watch lists": api.faults.reject_watch_lists,
        "put": lambda: api.put(PODS, name, spec={"nodeName": f"n{api.newest_version % 3}"}),
        "remove": lambda: api.remove(PODS, name),
        "lose": lambda: api.faults.lose_request(RequestMatcher()),
    }
    if step in plain:
        plain[step]()
    elif step.startswith("refuse"):
        api.faults.error(RequestMatcher(), int(step.removeprefix("refuse-")))
    elif step == "breathe":
        await asyncio.sleep(0.001)
    else:
        await follower.wait_caught_up()


def check_event_history(follower: InformerFollower) -> None:
    """INV-INF-2 and INV-INF-3, object by object."""
    there: dict[str, list[str]] = {}
    for change in follower.api.changes:
        if change.type != "DELETED":
            meta = change.object["metadata"]
            there.setdefault(meta["uid"], []).append(meta["resourceVersion"])
    last: dict[str, Pod] = {}
    observed: dict[str, list[str]] = {}
    for old, new in follower.events:
        key = (new or old or Pod()).metadata.key
        assert last.get(key) is old  # the very object delivered before
        if new is None:
            del last[key]
            continue
        assert old is None or old.metadata.uid == new.metadata.uid
        last[key] = new
        observed.setdefault(new.metadata.uid, []).append(new.metadata.resource_version)
    assert last == {pod.metadata.key: pod for pod in follower.informer}
    for uid, versions in observed.items():
        rest = iter(there[uid])
        assert all(version in rest for version in versions), "not a subsequence of the states"


@pytest.fixture(scope="module")
def run_example() -> Iterator[RunExample]:
    """Runs each example on the same server, without pods and faults."""
    with asyncio.Runner() as runner:
        api = PodsApi()
        runner.run(api.__aenter__())

        async def run(example: Example) -> None:
            api.faults.clear()
            for key in api.pod_versions():
                api.remove(PODS, key.removeprefix(f"{NAMESPACE}/"))
            await api.get(NAMESPACES, NAMESPACE)  # after the removals are committed
            api.changes.clear()
            async with running_informer(api) as follower:
                await example(follower)

        yield lambda example: runner.run(run(example))
        runner.run(api.__aexit__(None, None, None))


@settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEPS, max_size=40))
def test_store_and_events_stay_consistent_under_random_faults(
    run_example: RunExample, steps: list[tuple[str, str]]
) -> None:
    """INV-INF-1, INV-INF-2, INV-INF-3 under random writes, drops, refusals and lost history."""

    async def run(follower: InformerFollower) -> None:
        for step, name in steps:
            await apply_step(follower, step, name)
        await follower.wait_caught_up()
        check_event_history(follower)

    run_example(run)


WRITES = st.lists(st.tuples(st.sampled_from(["put", "remove"]), NAMES), max_size=8)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(before=WRITES, gap=WRITES, after=WRITES)
def test_disconnect_and_relist_at_any_point_are_equivalent_to_none(
    run_example: RunExample,
    before: list[tuple[str, str]],
    gap: list[tuple[str, str]],
    after: list[tuple[str, str]],
) -> None:
    """INV-INF-4: the same store and keys, except for objects added and deleted in the gap."""

    async def run(follower: InformerFollower) -> None:
        api = follower.api
        for name in "ab":
            api.put(PODS, name)
        await follower.wait_caught_up()
        follower.events.clear()
        api.changed.clear()
        for step, name in before:
            await apply_step(follower, step, name)
        await follower.wait_caught_up()
        touched, known = set(api.changed), set(api.pod_versions())
        api.changed.clear()
        api.drop_watches()
        for step, name in gap:  # no await, so no reconnect in between
            await apply_step(follower, step, name)
        api.compact()
        touched |= api.changed & (known | set(api.pod_versions()))
        await follower.wait_caught_up()
        api.changed.clear()
        for step, name in after:
            await apply_step(follower, step, name)
        await follower.wait_caught_up()
        assert {key for _, key in follower.event_summary} == touched | api.changed

    run_example(run)


@pytest.mark.parametrize("error", [RuntimeError("a mistake"), asyncio.CancelledError()])
async def test_reflector_is_restarted_after_an_unexpected_error(
    api: PodsApi, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [error]
    async with running_informer(api) as follower:
        api.put(PODS, "a")
        await follower.wait_caught_up()
        take = Reflector._apply_events

        def failing(self: Reflector[Pod], lines: Sequence[bytes]) -> None:
            if errors:
                raise errors.pop()
            take(self, lines)

        monkeypatch.setattr(Reflector, "_apply_events", failing)
        before = TASK_RESTARTS["watch pods"]
        api.put(PODS, "b")
        await follower.wait_caught_up()
        assert follower.event_summary == [("add", "d/a"), ("add", "d/b")]
        assert TASK_RESTARTS["watch pods"] == before + 1


async def test_cancelled_error_of_a_handler_does_not_affect_others(
    api: PodsApi,
) -> None:
    def handler(old: Pod | None, new: Pod | None) -> None:
        raise asyncio.CancelledError

    async with running_informer(api) as follower:
        follower.informer.add_event_handler(handler)
        before = TASK_RESTARTS["watch pods"]
        api.put(PODS, "a")
        await follower.wait_caught_up()
        assert follower.informer.stats().handler_errors == 1
        assert TASK_RESTARTS["watch pods"] == before


async def test_background_relist_is_restarted_after_a_cancelled_error(
    api: PodsApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [asyncio.CancelledError()]
    async with running_informer(api) as follower:
        api.put(PODS, "a")
        await follower.wait_caught_up()
        watch_list = Reflector._watch_list

        async def failing(
            self: Reflector[Pod], relist: Relist[Pod], *, keep_watching: bool
        ) -> bool:
            if errors:
                raise errors.pop()
            return await watch_list(self, relist, keep_watching=keep_watching)

        monkeypatch.setattr(Reflector, "_watch_list", failing)
        api.remove(PODS, "a")
        api.put(PODS, "b")
        api.compact()
        api.drop_watches()
        await follower.wait_caught_up()
        assert not errors
        assert {pod.metadata.key for pod in follower.informer} == {"d/b"}
