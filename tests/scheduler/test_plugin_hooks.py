"""Plugins that reserve something for placements, and prepare them before pods are bound."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.polling import wait_for
from support.running_controller import running
from support.scheduled_gangs import GangServer
from support.scheduler import SchedulerWorld, node, pod, podgroup

from batholith.model.names import JOBS, NODES, PODGROUPS, PODS
from batholith.scheduler import conf
from batholith.scheduler.conf import ConfError
from batholith.scheduler.plugins.placement import Placement
from batholith.scheduler.plugins.registry import PLUGINS
from batholith.scheduler.scheduler import Scheduler, SchedulerSettings
from batholith.scheduler.writers import binder
from batholith.testing import Cluster, RequestMatcher

CONF = conf.DEFAULT + "  - name: acme\n"
BINDINGS = RequestMatcher("create", "pods/binding", count=None)
ERRORS = "batholith_scheduler_plugin_errors_total"


class Acme:
    """Records its calls; what it does before bindings is set by the test."""

    calls: list[tuple[str, tuple[str, ...]]]
    is_refusing: bool

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Take no arguments."""

    def reserve(self, placements: Sequence[Placement]) -> None:
        self._record("reserve", placements)
        if self.is_refusing:
            raise RuntimeError("nothing left")

    def unreserve(self, placements: Sequence[Placement]) -> None:
        self._record("unreserve", placements)

    @classmethod
    def _record(cls, name: str, placements: Sequence[Placement]) -> None:
        cls.calls.append((name, tuple(sorted(each.name for each in placements))))


Behaviour = Callable[[Sequence[Placement]], Any]


class Preparing(Acme):
    """Prepares placements, too."""

    pre_bind_timeout = 30.0
    prepare: Behaviour

    async def pre_bind(self, placements: Sequence[Placement]) -> None:
        self._record("pre_bind", placements)
        await type(self).prepare(placements)


async def _succeed(placements: Sequence[Placement]) -> None:
    return None


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch) -> type[Acme]:
    class Installed(Acme):
        calls = []
        is_refusing = False

    monkeypatch.setitem(PLUGINS, "acme", Installed)
    return Installed


@pytest.fixture
def preparing(monkeypatch: pytest.MonkeyPatch) -> type[Preparing]:
    class Installed(Preparing):
        calls = []
        is_refusing = False
        prepare = staticmethod(_succeed)

    monkeypatch.setitem(PLUGINS, "acme", Installed)
    return Installed


@pytest.fixture
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(binder, "INITIAL_BACKOFF", 0.001)
    yield


# -- reserve ---------------------------------------------------------------------------------------


def test_a_gang_is_reserved_for_as_a_whole_once_it_is_placed(acme: type[Acme]) -> None:
    world = SchedulerWorld(CONF)
    world.upsert(node("a", cpu=2), podgroup("g", 2), *(pod(f"g-{i}", "g") for i in range(2)))
    world.upsert(podgroup("big", 3), *(pod(f"big-{i}", "big") for i in range(3)))
    assert set(world.schedule()) == {"g-0", "g-1"}
    assert acme.calls == [("reserve", ("g-0", "g-1"))]


def test_a_plugin_that_cannot_reserve_leaves_the_gang_pending(
    acme: type[Acme], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All plugins release, among them the one that raised: it may have reserved something."""

    class First(Acme):
        calls = acme.calls
        is_refusing = False

    monkeypatch.setitem(PLUGINS, "first", First)
    acme.is_refusing = True
    world = SchedulerWorld(conf.DEFAULT + "  - name: first\n  - name: acme\n")
    world.upsert(node("a", cpu=2), podgroup("g", 2), *(pod(f"g-{i}", "g") for i in range(2)))
    before = world.cluster.node_matrix.idle.copy()
    assert world.schedule() == {}
    assert (world.cluster.node_matrix.idle == before).all()
    assert [name for name, _ in acme.calls] == ["reserve", "reserve", "unreserve", "unreserve"]
    assert world.fit_message("g") == ('plugin "acme" failed in reserve: RuntimeError: nothing left')
    acme.is_refusing = False
    assert set(world.schedule()) == {"g-0", "g-1"}


async def test_what_is_bound_is_never_released(acme: type[Acme]) -> None:
    async with GangServer() as server:
        server.prepare()
        server.node("a", 2)
        async with server.scheduler(conf=CONF):
            server.gang("g", 2)
            await server.wait_bound("g", 2)
            server.remove(PODS, "g-0")
            server.gang("later", 1)
            await server.wait_bound("later", 1)
    assert acme.calls == [("reserve", ("g-0", "g-1")), ("reserve", ("later-0",))]


async def test_what_is_reserved_for_a_pod_that_is_deleted_before_its_binding_is_released(
    acme: type[Acme],
) -> None:
    async with GangServer() as server:
        server.prepare()
        server.node("a")
        held = server.faults.hold(BINDINGS)
        async with server.scheduler(conf=CONF):
            server.gang("g", 1)
            await held.wait_held()
            server.remove(PODS, "g-0")
            server.gang("other", 1)
            await wait_for(lambda: ("reserve", ("other-0",)) in acme.calls)
            assert ("unreserve", ("g-0",)) not in acme.calls, "it may still be bound"
            held.release()
            await wait_for(lambda: ("unreserve", ("g-0",)) in acme.calls)


async def test_what_is_reserved_for_a_node_that_is_lost_is_released_before_the_next_is_reserved(
    acme: type[Acme],
) -> None:
    async with GangServer() as server:
        server.prepare()
        for name in "abc":
            server.node(name)
        first = server.faults.hold_response(RequestMatcher("create", "pods/binding"))
        async with server.scheduler(conf=CONF, max_bindings_in_flight=1) as run:
            server.gang("g", 2)
            await first.wait_held()
            (bound,) = server.nodes_of("g")
            (name,) = [
                name
                for name, each in server.objects(PODS).items()
                if not each["spec"].get("nodeName")
            ]
            lost = name.partition("/")[2]
            for each in {"a", "b", "c"} - {bound}:
                server.remove(NODES, each)
            server.gang("big", 9)
            await wait_for(lambda: any("0/1 nodes" in e for e in run.events("Unschedulable")))
            first.release()
            await wait_for(lambda: ("unreserve", (lost,)) in acme.calls)
            server.remove(PODGROUPS, "big")
            server.node("d")
            await server.wait_bound("g", 2)
    assert acme.calls == [
        ("reserve", ("g-0", "g-1")),
        ("unreserve", (lost,)),
        ("reserve", (lost,)),
    ]


async def test_after_a_reload_the_plugin_that_has_reserved_releases(
    acme: type[Acme], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "conf"
    file.write_text(CONF)
    async with GangServer() as server:
        server.prepare()
        server.node("a")
        held = server.faults.hold(BINDINGS)
        async with server.scheduler(conf=CONF, conf_file=file) as run:
            server.gang("g", 1)
            await held.wait_held()
            reloads = "batholith_scheduler_config_reloads_total"
            file.write_text(conf.DEFAULT)
            await wait_for(lambda: run.metric(reloads, result="success"))
            server.remove(PODS, "g-0")
            held.release()
            await wait_for(lambda: ("unreserve", ("g-0",)) in acme.calls)


# -- pre_bind --------------------------------------------------------------------------------------


async def test_all_pods_of_a_gang_are_prepared_before_one_is_bound(
    preparing: type[Preparing],
) -> None:
    bound: list[int] = []
    async with GangServer() as server:
        server.prepare()
        server.node("a", 3)

        async def prepare(placements: Sequence[Placement]) -> None:
            bound.append(len(server.nodes_of("g")))

        preparing.prepare = staticmethod(prepare)
        async with server.scheduler(conf=CONF):
            server.gang("g", 3)
            await server.wait_bound("g", 3)
    assert bound == [0]
    members = ("g-0", "g-1", "g-2")
    assert preparing.calls == [("reserve", members), ("pre_bind", members)]


@pytest.mark.usefixtures("short_backoff")
async def test_a_gang_whose_preparation_fails_is_released_and_tried_again(
    preparing: type[Preparing],
) -> None:
    async def fail_once(placements: Sequence[Placement]) -> None:
        if [name for name, _ in preparing.calls].count("pre_bind") == 1:
            raise OSError("no route")

    preparing.prepare = staticmethod(fail_once)
    async with GangServer() as server:
        server.prepare()
        server.node("a", 2)
        async with server.scheduler(conf=CONF) as run:
            server.gang("g", 2)
            await server.wait_bound("g", 2)
            what = 'plugin "acme" failed in pre_bind: OSError: no route; pods: 2'
            assert list(run.events("FailedScheduling")) == [what]
            assert run.metric(ERRORS, plugin="acme", extension_point="pre_bind") == 1
    members = ("g-0", "g-1")
    once = [("reserve", members), ("pre_bind", members)]
    assert preparing.calls == [*once, ("unreserve", members), *once]


@pytest.mark.usefixtures("short_backoff")
async def test_further_pods_of_a_gang_wait_for_its_first_ones_and_fail_with_them(
    preparing: type[Preparing],
) -> None:
    """Else they might run without the minimum of the gang."""
    continues = threading.Event()

    async def prepare(placements: Sequence[Placement]) -> None:
        if not continues.is_set():
            await asyncio.to_thread(continues.wait, 60)
            raise OSError("no route")

    preparing.prepare = staticmethod(prepare)
    first, second = ("g-0",), ("g-1",)
    async with GangServer() as server:
        server.prepare()
        server.node("a", 2)
        async with server.scheduler(conf=CONF):
            server.gang("g", 1)
            await wait_for(lambda: ("pre_bind", first) in preparing.calls)
            server.member("g", 1)
            await wait_for(lambda: ("reserve", second) in preparing.calls)
            continues.set()
            await server.wait_bound("g", 2)
    calls = preparing.calls
    assert calls[:3] == [("reserve", first), ("pre_bind", first), ("reserve", second)]
    released = [name for point, names in calls if point == "unreserve" for name in names]
    assert sorted(released) == ["g-0", "g-1"]
    prepared = [name for point, names in calls if point == "pre_bind" for name in names]
    assert sorted(prepared) == ["g-0", "g-0", "g-1"]


async def test_the_event_of_a_single_pod_is_on_the_pod(preparing: type[Preparing]) -> None:
    async def fail(placements: Sequence[Placement]) -> None:
        raise SystemExit(3)

    preparing.prepare = staticmethod(fail)
    async with GangServer() as server:
        server.prepare()
        server.node("a")
        async with server.scheduler(conf=CONF, pod_scheduler_names=("default-scheduler",)) as run:
            spec = {"schedulerName": "default-scheduler", "containers": [{"name": "c"}]}
            server.put(PODS, "p", spec=spec, status={"phase": "Pending"})
            await wait_for(lambda: run.events("FailedScheduling"))
            event = run.recorder.events[0]
    assert event[:2] == ("Pod", "p")
    assert "RuntimeError: SystemExit(3)" in event[4]


class Block:
    """Blocks the event loop of the plugin, against the rules, for the gang *slow*."""

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()

    async def __call__(self, placements: Sequence[Placement]) -> None:
        if placements[0].name.startswith("slow"):
            self.entered.set()
            self.release.wait(60)


async def wait_long(placements: Sequence[Placement]) -> None:
    if placements[0].name.startswith("slow"):
        await asyncio.Event().wait()


async def test_a_slow_plugin_delays_no_other_gang(preparing: type[Preparing]) -> None:
    """Not even with as many pods as there may be bindings in flight."""
    preparing.prepare = staticmethod(wait_long)
    async with GangServer() as server:
        server.prepare()
        server.node("a", 9)
        async with server.scheduler(conf=CONF, max_bindings_in_flight=1):
            server.gang("slow", 3)
            server.gang("slower", 1)
            await wait_for(lambda: ("pre_bind", ("slow-0", "slow-1", "slow-2")) in preparing.calls)
            server.gang("other", 2)
            await server.wait_bound("other", 2)
            assert server.nodes_of("slow") == []


@pytest.mark.usefixtures("short_backoff")
@pytest.mark.parametrize("is_blocking", [False, True], ids=["waiting", "blocking"])
async def test_a_plugin_that_takes_too_long_fails(
    preparing: type[Preparing], is_blocking: bool
) -> None:
    """Even one that blocks its event loop: that of the scheduler does not stop."""
    block = Block()
    preparing.prepare = block if is_blocking else staticmethod(wait_long)
    preparing.pre_bind_timeout = 0.05
    async with GangServer() as server:
        server.prepare()
        server.node("a", 9)
        async with server.scheduler(conf=CONF) as run:
            try:
                server.gang("slow", 1)
                what = 'plugin "acme" failed in pre_bind: TimeoutError: no result after 0.05 s'
                await wait_for(lambda: any(what in e for e in run.events("FailedScheduling")))
                await wait_for(lambda: ("unreserve", ("slow-0",)) in preparing.calls)
                assert server.nodes_of("slow") == []
            finally:
                block.release.set()


async def test_nothing_is_released_while_it_is_prepared(preparing: type[Preparing]) -> None:
    started, continues = threading.Event(), threading.Event()

    async def prepare(placements: Sequence[Placement]) -> None:
        started.set()
        await asyncio.to_thread(continues.wait, 60)
        preparing.calls.append(("end", tuple(each.name for each in placements)))

    preparing.prepare = staticmethod(prepare)
    async with GangServer() as server:
        server.prepare()
        server.node("a")
        async with server.scheduler(conf=CONF):
            server.gang("g", 1)
            await wait_for(started.is_set)
            server.remove(PODS, "g-0")
            server.gang("other", 1)
            await wait_for(lambda: ("reserve", ("other-0",)) in preparing.calls)
            continues.set()
            await wait_for(lambda: ("unreserve", ("g-0",)) in preparing.calls)
    names = [name for name, pods in preparing.calls if pods == ("g-0",)]
    assert names == ["reserve", "pre_bind", "end", "unreserve"]


async def test_a_pod_that_cannot_be_bound_after_its_preparation_is_prepared_again(
    preparing: type[Preparing],
) -> None:
    async with GangServer() as server:
        server.prepare()
        server.node("a")
        server.faults.error(RequestMatcher("create", "pods/binding"), 403)
        async with server.scheduler(conf=CONF):
            server.gang("g", 1)
            await server.wait_bound("g", 1)
    names = [name for name, _ in preparing.calls]
    assert names == ["reserve", "pre_bind", "unreserve", "reserve", "pre_bind"]


@pytest.mark.cluster
async def test_pods_of_a_job_are_prepared_although_jobs_get_their_nodes_at_creation(
    preparing: type[Preparing],
) -> None:
    """Pods that are created with their node are never bound, so there are none of them."""
    container = {"name": "c", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    task = {"name": "t", "replicas": 3, "template": template}
    spec = {"schedulerName": "volcano", "minAvailable": 3, "tasks": [task]}
    settings = SchedulerSettings(conf=CONF, place_at_creation=True)
    async with (
        Cluster(nodes=3, place_at_creation=True, scheduler=False) as cluster,
        cluster.client() as client,
        running(Scheduler(client, settings=settings)),
    ):
        await cluster.create(JOBS, {"metadata": {"name": "j"}, "spec": spec})
        await cluster.wait_for_phase(JOBS, "j", "Completed")
    members = ("j-t-0", "j-t-1", "j-t-2")
    assert preparing.calls == [("reserve", members), ("pre_bind", members)]


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ({"pre_bind": lambda self, placements: None}, "pre_bind must be an async function"),
        ({"pre_bind_timeout": 0}, "pre_bind_timeout must be between 0 and 600 seconds, not 0"),
        ({"pre_bind_timeout": "1s"}, "pre_bind_timeout must be between .* not '1s'"),
    ],
)
def test_hooks_that_cannot_be_called_are_rejected(
    preparing: type[Preparing],
    monkeypatch: pytest.MonkeyPatch,
    attributes: dict[str, object],
    problem: str,
) -> None:
    monkeypatch.setitem(PLUGINS, "acme", type("Bad", (preparing,), attributes))
    with pytest.raises(ConfError, match=r"tiers\[1\].plugins\[5\]: " + problem):
        conf.load(CONF)
