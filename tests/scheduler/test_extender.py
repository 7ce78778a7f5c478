"""The plugin ``extender``: a service that is asked over HTTP."""

from collections.abc import Iterator
from queue import SimpleQueue
from threading import Event, current_thread, main_thread
from typing import Any

import pytest
from support.extender_server import ExtenderServer, extender_server
from support.polling import wait_for
from support.preemption import EvictingWorld
from support.preemption import conf as preempting
from support.scheduled_gangs import GangServer
from support.scheduler import SchedulerWorld, node, pod, podgroup

from batholith.model.names import PODS
from batholith.scheduler import conf
from batholith.scheduler.framework.framework import Framework
from batholith.scheduler.plugins.extender_responses import Extender, Responses, parse_prefix
from batholith.scheduler.state.queue.scheduling_queue import ANY, ClusterEvent
from batholith.testing import RequestMatcher

WAITING = "waits for the response of the extender"
MAY_POST = Event()
"""Whether requests are sent."""
MAY_POST.set()


@pytest.fixture(autouse=True)
def requests_wait_for_the_end_of_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    post = Extender.post

    def wait_and_post(self: Extender, *arguments: Any) -> Any:
        assert current_thread() is main_thread() or MAY_POST.wait(60)
        return post(self, *arguments)

    monkeypatch.setattr(Extender, "post", wait_and_post)


@pytest.fixture
def service() -> Iterator[ExtenderServer]:
    with extender_server() as started:
        yield started


def configuration(service: ExtenderServer, arguments: str, actions: str) -> str:
    given = f"{{extender.urlPrefix: '{service.url}', {arguments}}}"
    plugins = f"[{{name: gang}}, {{name: extender, arguments: {given}}}]"
    return f'actions: "{actions}"\ntiers:\n- plugins: {plugins}'


class ExtendedWorld(SchedulerWorld):
    """A cluster whose scheduler asks an extender."""

    def __init__(self, service: ExtenderServer, arguments: str, *, actions: str) -> None:
        text = configuration(service, arguments, actions)
        super().__init__(text)
        self.woken: SimpleQueue[ClusterEvent] = SimpleQueue()
        read = conf.load(text)
        self.core.configure(Framework(read.tiers, self.woken.put), read.actions)

    def schedule(self) -> dict[str, str]:
        """Run a cycle, in which no response arrives."""
        MAY_POST.clear()
        try:
            return super().schedule()
        finally:
            MAY_POST.set()

    def responded(self) -> dict[str, str]:
        """Run a cycle, and others until the extender has responded; return what these allocate."""
        assert self.schedule() == {}
        while True:
            self.cluster.scheduling_queue.publish(self.woken.get(timeout=20))
            allocated = self.schedule()
            if allocated or (self.woken.empty() and not self._is_waiting()):
                return allocated

    def _is_waiting(self) -> bool:
        return any(WAITING in self.fit_message(key[3:]) for key in self.cluster.gangs)


def world(service: ExtenderServer, arguments: str, *, actions: str = "allocate") -> ExtendedWorld:
    """Two nodes and a gang of one pod."""
    found = ExtendedWorld(service, arguments, actions=actions)
    found.upsert(
        node("a", labels={"zone": "one"}),
        node("b"),
        podgroup("g", 1, phase="", resources={"cpu": 2}),
    )
    found.upsert(pod("g-0", "g", cpu=2))
    return found


def only(name: str) -> Any:
    """Reject all nodes but one."""
    return lambda body: {"status": "" if body["node"]["Name"] == name else "no licence"}


def test_nodes_that_the_extender_rejects_are_infeasible(service: ExtenderServer) -> None:
    service.verbs["filter"] = only("b")
    here = world(service, "extender.predicateVerb: filter")
    assert here.responded() == {"g-0": "b"}
    bodies = {body["node"]["Name"]: body for _, body in service.asked}
    assert bodies["a"]["task"]["Resreq"]["MilliCPU"] == 2000
    assert bodies["a"]["node"]["Node"]["metadata"]["labels"] == {"zone": "one"}
    assert bodies["a"]["node"]["Idle"]["MilliCPU"] == 8000


def test_the_gang_shows_why_the_extender_rejects_nodes(service: ExtenderServer) -> None:
    service.verbs["filter"] = only("none")
    here = world(service, "extender.predicateVerb: filter")
    assert here.responded() == {}
    assert "no licence" in here.fit_message("g")


def test_responses_are_kept_and_asked_for_again_when_they_are_old(service: ExtenderServer) -> None:
    service.verbs["filter"] = only("a")
    here = world(service, "extender.predicateVerb: filter, extender.cacheTime: 10s")
    here.remove(node("b"))
    here.time = 1000.0
    assert here.responded() == {"g-0": "a"}
    here.upsert(podgroup("h", 1), pod("h-0", "h", cpu=2))
    assert here.schedule() == {"h-0": "a"}
    assert len(service.asked) == 1
    service.verbs["filter"] = only("none")
    here.time = 1011.0
    here.upsert(podgroup("i", 1), pod("i-0", "i", cpu=2))
    assert here.schedule() == {"i-0": "a"}, "the former response counts until there is a new one"
    here.woken.get(timeout=20)
    here.upsert(podgroup("j", 1), pod("j-0", "j", cpu=2))
    assert here.schedule() == {}
    assert "no licence" in here.fit_message("j")


def test_a_node_that_has_changed_is_asked_about_again(service: ExtenderServer) -> None:
    service.verbs["filter"] = lambda body: {
        "status": "" if body["node"]["Node"]["metadata"]["labels"].get("ready") else "not ready"
    }
    here = world(service, "extender.predicateVerb: filter")
    assert here.responded() == {}
    here.upsert(node("b", labels={"ready": "yes"}))
    assert here.responded() == {"g-0": "b"}


def test_the_extender_scores_nodes(service: ExtenderServer) -> None:
    service.verbs["score"] = lambda body: {
        "nodeScore": {each["Name"]: 10 * (each["Name"] == "b") for each in body["nodes"]}
    }
    here = world(service, "extender.prioritizeVerb: score")
    assert here.schedule() == {"g-0": "a"}, "without a response all nodes are equal"
    here.woken.get(timeout=20)
    here.upsert(podgroup("h", 1), pod("h-0", "h", cpu=2))
    assert here.schedule() == {"h-0": "b"}


def test_only_pods_with_a_managed_resource_are_asked_about(service: ExtenderServer) -> None:
    service.verbs["filter"] = only("none")
    managed = "extender.managedResources: [example.com/card]"
    here = world(service, f"extender.predicateVerb: filter, {managed}")
    assert here.schedule() == {"g-0": "a"}
    assert service.asked == []
    here.upsert(node("c", extra={"example.com/card": 1}), podgroup("h", 1))
    here.upsert(pod("h-0", "h", extra={"example.com/card": 1}))
    assert here.responded() == {}
    assert "no licence" in here.fit_message("h")


@pytest.mark.parametrize(("vote", "admitted"), [(1, True), (0, True), (-1, False), (None, False)])
def test_the_extender_votes_on_admission(
    service: ExtenderServer, vote: int | None, admitted: bool
) -> None:
    service.verbs |= {"admit": lambda body: {"status": vote}, "admitted": lambda body: {}}
    verbs = "extender.jobEnqueueableVerb: admit, extender.jobEnqueuedVerb: admitted"
    here = world(service, verbs, actions="enqueue, allocate")
    here.responded()
    assert here.cluster.gangs["ns/g"].phase == ("Inqueue" if admitted else "Pending")
    assert service.asked[0][1]["job"]["UID"] == "ns/g"
    if not admitted:
        assert "the extender rejects the gang" in here.fit_message("g")


def test_a_queue_that_the_extender_calls_overused_gets_nothing(service: ExtenderServer) -> None:
    service.verbs["queue"] = lambda body: {"overused": body["queue"]["Name"] == "default"}
    here = world(service, "extender.queueOverusedVerb: queue")
    assert here.schedule() == {}
    here.cluster.scheduling_queue.publish(here.woken.get(timeout=20))
    assert here.schedule() == {}
    service.verbs["queue"] = lambda body: {"overused": False}
    here.time = 31.0
    assert here.schedule() == {}
    here.cluster.scheduling_queue.publish(here.woken.get(timeout=20))
    assert here.schedule() == {"g-0": "a"}


@pytest.mark.parametrize("ignorable", [False, True])
@pytest.mark.parametrize("failure", ["status", "json", "nested", "list", "closed", "slow"])
def test_what_fails_rejects_unless_the_extender_is_ignorable(
    service: ExtenderServer, ignorable: bool, failure: str
) -> None:
    responses = {
        "json": lambda body: b"{",
        "nested": lambda body: b"[" * 200_000,
        "list": lambda body: [],
    }
    if failure in responses:
        service.verbs["filter"] = responses[failure]
    if failure == "slow":
        service.may_respond.clear()
    if failure == "closed":
        service.url = service.url.replace("127.0.0.1:", "127.0.0.1:1/")
    flags = f"extender.ignorable: {str(ignorable).lower()}, extender.httpTimeout: 50ms"
    here = world(service, f"extender.predicateVerb: filter, {flags}")
    assert here.responded() == ({"g-0": "a"} if ignorable else {})
    if not ignorable:
        assert "without a response: filter: " in here.fit_message("g")


def test_a_verb_that_cannot_be_sent_rejects(service: ExtenderServer) -> None:
    here = world(service, "extender.predicateVerb: prüfen")
    assert here.responded() == {}
    assert "without a response: prüfen: " in here.fit_message("g")


def test_a_cycle_does_not_wait_for_the_extender(service: ExtenderServer) -> None:
    service.may_respond.clear()
    service.verbs["filter"] = only("b")
    here = world(service, "extender.predicateVerb: filter, extender.httpTimeout: 20s")
    assert here.schedule() == {}
    assert WAITING in here.fit_message("g")
    assert here.woken.empty()
    service.may_respond.set()
    assert here.woken.get(timeout=20) is ANY
    here.cluster.scheduling_queue.publish(ANY)
    assert here.schedule() == {"g-0": "b"}


class VotedWorld(EvictingWorld):
    """Two nodes, each with a pod of low priority, and a pod of high priority that needs one."""

    def __init__(self, service: ExtenderServer, arguments: str) -> None:
        given = f"{{extender.urlPrefix: '{service.url}', {arguments}}}"
        text = preempting(gang=False, more=f"  - name: extender\n    arguments: {given}\n")
        super().__init__(text)
        self.woken: SimpleQueue[ClusterEvent] = SimpleQueue()
        read = conf.load(text)
        self.core.configure(Framework(read.tiers, self.woken.put), read.actions)
        self.upsert(node("a", cpu=1), node("b", cpu=1))
        self.gang("x", 1, nodes=("a",), priority="low", preemptable="true")
        self.gang("y", 1, nodes=("b",), priority="low", preemptable="true")
        self.gang("high", 1, priority="high")


VERBS = "extender.preemptableVerb: evict"


def test_only_pods_that_the_extender_names_are_evicted(service: ExtenderServer) -> None:
    service.verbs["evict"] = lambda body: {
        "status": 1,
        "victims": [each for each in body["evictees"] if each["NodeName"] == "b"],
    }
    here = VotedWorld(service, f"{VERBS}, extender.httpTimeout: 60s")
    here.run()
    here.run()
    assert here.evicted == ["y-t-0"]
    assert {(verb, body["evictor"]["Job"]) for verb, body in service.asked} == {
        ("evict", "ns/high")
    }
    evictees = {each["Name"] for _, body in service.asked for each in body["evictees"]}
    assert evictees == {"x-t-0", "y-t-0"}
    # What a cycle has waited for wakes no other.
    assert here.woken.empty()


@pytest.mark.parametrize(
    ("response", "ignorable", "evicts"),
    [
        ({"status": 1, "victims": []}, False, False),
        ({"status": 1, "victims": [{"UID": "another"}, 3]}, False, False),
        ({"status": 1, "victims": "x"}, False, False),
        ({"status": -1, "victims": []}, False, False),
        ({"status": 0}, False, True),
        (b"{", False, False),
        (b"{", True, True),
    ],
)
def test_a_rejection_or_a_failure_evicts_nothing_and_an_abstention_leaves_it_to_others(
    service: ExtenderServer, response: Any, ignorable: bool, evicts: bool
) -> None:
    service.verbs["evict"] = lambda body: response
    here = VotedWorld(service, f"{VERBS}, extender.ignorable: {str(ignorable).lower()}")
    here.run()
    here.run()
    assert len(here.evicted) == evicts


def test_a_cycle_waits_no_longer_than_for_one_response(service: ExtenderServer) -> None:
    service.may_respond.clear()
    service.verbs["evict"] = lambda body: {"status": 1, "victims": body["evictees"]}
    here = VotedWorld(service, f"{VERBS}, extender.httpTimeout: 50ms")
    here.gang("urgent", 1, priority="high")
    here.run()
    here.run()
    assert here.evicted == []
    # Both questions have failed; the response to the second one was not awaited.
    here.cluster.scheduling_queue.publish(here.woken.get(timeout=20))
    service.may_respond.set()
    here.time = 31.0
    while not here.evicted:
        here.run()
        here.time += 31.0


def test_no_more_is_asked_in_a_cycle_than_it_may_wait_for(service: ExtenderServer) -> None:
    service.verbs["evict"] = lambda body: {"status": 1, "victims": []}
    prefix = parse_prefix(service.url)
    responses = Responses(Extender(prefix, timeout=20), keep=30, on_responses=lambda: None)
    responses.begin_cycle()
    found = [responses.require("evict", number, dict, 0.0) for number in range(70)]
    assert [each is None for each in found] == [number >= 64 for number in range(70)]
    assert len(service.asked) == 64
    responses.begin_cycle()
    assert responses.require("evict", 69, dict, 0.0) is not None
    assert responses.require("evict", 0, dict, 0.0) is not None
    assert len(service.asked) == 65


SESSION_VERBS = "extender.onSessionOpenVerb: open, extender.onSessionCloseVerb: close"


def test_the_extender_gets_the_whole_cluster_before_and_its_end_after_each_session(
    service: ExtenderServer,
) -> None:
    service.verbs |= {"open": lambda body: {}, "close": lambda body: {}}
    here = world(service, SESSION_VERBS)
    here.upsert(node("z", labels={"volcano.sh/revocable-zone": "one"}))
    assert here.schedule() == {"g-0": "a"}
    here.schedule()
    assert [verb for verb, _ in service.asked] == ["open", "close"] * 2
    first, later = service.asked[0][1], service.asked[2][1]
    assert first["NodeList"] == list(first["Nodes"]) == ["a", "b", "z"]
    assert list(first["RevocableNodes"]) == ["z"]
    assert first["Queues"]["default"]["Name"] == "default"
    (task,) = first["Jobs"]["ns/g"]["Tasks"].values()
    assert (task["Name"], task["Status"], task["NodeName"]) == ("g-0", 1, "")
    (task,) = later["Jobs"]["ns/g"]["Tasks"].values()
    assert (task["Name"], task["Status"], task["NodeName"]) == ("g-0", 8, "a")
    assert later["Nodes"]["a"]["Used"]["MilliCPU"] == 2000
    assert service.asked[1][1] == {}


@pytest.mark.parametrize("ignorable", [False, True])
def test_a_session_of_which_the_extender_does_not_know_decides_nothing_unless_it_is_ignorable(
    service: ExtenderServer, ignorable: bool
) -> None:
    service.verbs["close"] = lambda body: {}
    verbs = f"{SESSION_VERBS}, extender.predicateVerb: filter"
    here = world(service, f"{verbs}, extender.ignorable: {str(ignorable).lower()}")
    if ignorable:
        assert here.responded() == {"g-0": "a"}
        return
    assert here.schedule() == {}
    assert 'plugin "extender" failed in on_session_open' in here.fit_message("g")
    service.verbs |= {"open": lambda body: {}, "filter": only("b")}
    assert here.responded() == {"g-0": "b"}


@pytest.mark.parametrize(("response", "starts"), [(True, True), (False, False), (None, False)])
def test_a_gang_starts_when_the_extender_calls_it_ready(
    service: ExtenderServer, response: bool | None, starts: bool
) -> None:
    if response is not None:
        service.verbs["ready"] = lambda body: {"status": response}
    here = EvictingWorld(
        configuration(service, "extender.jobReadyVerb: ready", "allocate, preempt").replace(
            "[{name: gang}", "[{name: priority}, {name: gang}, {name: conformance}"
        )
    )
    here.upsert(node("a", cpu=2))
    here.gang("low", 1, nodes=("a",), priority="low", preemptable="true")
    here.gang("high", 1, priority="high")
    here.run()
    (body,) = (body for _, body in service.asked)
    (task,) = body["job"]["Tasks"].values()
    assert (body["job"]["MinAvailable"], task["NodeName"], task["Status"]) == (1, "a", 2)
    assert here.evicted == []
    if not starts:
        message = here.fit_message("high")
        assert ("500" if response is None else "not ready for the extender") in message
    service.verbs["ready"] = lambda body: {"status": True}
    while not here.cluster.gangs["ns/high"].counts.allocated:
        assert not starts
        here.time += 31.0
        here.run()


async def test_the_extender_is_told_which_pods_get_a_node_and_which_lose_it(
    service: ExtenderServer,
) -> None:
    for verb in ("allocated", "released"):
        service.verbs[verb] = lambda body: {}
    verbs = "extender.allocateFuncVerb: allocated, extender.deallocateFuncVerb: released"
    async with GangServer() as server:
        server.prepare()
        server.node("a")
        held = server.faults.hold(RequestMatcher("create", "pods/binding"))
        async with server.scheduler(conf=configuration(service, verbs, "enqueue, allocate")):
            server.gang("g", 1)
            await held.wait_held()
            server.remove(PODS, "g-0")
            held.release()
            await wait_for(lambda: len(service.asked) == 2)
    assert sorted(
        (verb, body["task"]["Name"], body["task"]["NodeName"]) for verb, body in service.asked
    ) == [("allocated", "g-0", "a"), ("released", "g-0", "a")]


async def test_a_running_scheduler_binds_the_gang_when_the_extender_has_responded(
    service: ExtenderServer,
) -> None:
    service.verbs |= {"filter": only("b"), "admit": lambda body: {"status": 1}}
    verbs = "extender.predicateVerb: filter, extender.jobEnqueueableVerb: admit"
    async with GangServer() as server:
        server.prepare()
        server.node("a", 2)
        server.node("b", 2)
        async with server.scheduler(conf=configuration(service, verbs, "enqueue, allocate")):
            server.gang("g", 2)
            assert await server.wait_bound("g", 2) == ["b", "b"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("", "extender.urlPrefix: must be a URL"),
        ("extender.urlPrefix: 'ftp://a'", "extender.urlPrefix: must be a URL"),
        ("extender.urlPrefix: 'http://a/?b'", "must have no query, fragment or user"),
        ("extender.urlPrefix: 'http://a:x'", "extender.urlPrefix: Port could not"),
        ("extender.urlPrefix: 5", "extender.urlPrefix: must be text"),
        ("extender.urlPrefix: 'http://a', extender.httpTimeout: 1", "must be a positive duration"),
        ("extender.urlPrefix: 'http://a', extender.managedResources: a", "a list of resources"),
        ("extender.urlPrefix: 'http://a', extender.verb: a", "extender.verb: unknown argument"),
    ],
)
def test_malformed_arguments_are_errors(arguments: str, problem: str) -> None:
    plugin = f"{{name: extender, arguments: {{{arguments}}}}}"
    with pytest.raises(conf.ConfError) as caught:
        conf.load(f'actions: "allocate"\ntiers:\n- plugins: [{plugin}]')
    assert problem in str(caught.value)
