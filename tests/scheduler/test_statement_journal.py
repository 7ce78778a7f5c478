"""Operations of a statement have effect at once, and their inverse restores everything."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue

from batholith.scheduler import conf
from batholith.scheduler.framework.plugin_calls import PluginError
from batholith.scheduler.framework.session import Session
from batholith.scheduler.framework.statement import Statement
from batholith.scheduler.plugins.extension_points import Allocation
from batholith.scheduler.plugins.registry import PLUGINS
from batholith.scheduler.state.cache.cache import SchedulerCache
from batholith.scheduler.state.cache.events import PodEvent
from batholith.scheduler.state.core_types import ContainerPort
from batholith.scheduler.state.gangs.gang import Task, TaskStatus
from batholith.scheduler.state.resources import CPU

_CONF = conf.DEFAULT.replace("  - name: nodeorder", "  - name: sums\n  - name: nodeorder")
_NODES = 3


class Sums:
    """A plugin with a sum per queue over what is allocated in the session."""

    raising = False

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Ignore the arguments."""
        self.cpu: dict[str, int] = {}

    def on_session_open(self, cache: SchedulerCache) -> None:
        self.cpu = {
            name: each.allocated.get("cpu", 0) for name, each in cache.queues.by_name.items()
        }

    def allocated(self, change: Allocation) -> None:
        if self.raising:
            raise RuntimeError("a bug")
        self._add(change, 1)

    def deallocated(self, change: Allocation) -> None:
        self._add(change, -1)

    def _add(self, change: Allocation, sign: int) -> None:
        units = change.eq_class.request.get("cpu", 0) * len(change.tasks)
        self.cpu[change.queue.name] += sign * units


@pytest.fixture(autouse=True)
def _sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLUGINS, "sums", Sums)


def _world() -> SchedulerWorld:
    """Three nodes with running pods of two queues, and pending gangs."""
    world = SchedulerWorld(_CONF)
    world.upsert(queue("other"), *(node(f"n{i}", cpu=16) for i in range(_NODES)))
    world.upsert(podgroup("high", 2), podgroup("wide", 3, queue="other"), podgroup("port", 1))
    for name, group, count in (("run", "low", 2), ("old", "lent", 3)):
        in_queue = "default" if group == "low" else "other"
        world.upsert(podgroup(group, 1, phase="Running", queue=in_queue))
        world.upsert(
            *(
                pod(f"{name}-t-{i}", group, node_name=f"n{i}", phase="Running", cpu=2)
                for i in range(count)
            )
        )
    world.upsert(*(pod(f"high-t-{i}", "high", cpu=3, role=f"r{i % 2}") for i in range(4)))
    world.upsert(*(pod(f"wide-t-{i}", "wide", extra={"example.com/gpu": 1}) for i in range(3)))
    ports = (ContainerPort(host_port=80), ContainerPort(host_port=443))
    world.upsert(*(pod(f"port-t-{i}", "port", ports=ports) for i in range(2)))
    world.cluster.refresh()
    return world


def _state(world: SchedulerWorld, session: Session) -> object:
    """All counters that operations change."""
    cache, table, matrix = world.cluster, world.cluster.task_table, world.cluster.node_matrix
    tasks = [task for task in table.tasks if task is not None]
    ports = [port for task in tasks for port in task.eq_class.host_ports]
    return (
        [each.tolist() for each in (matrix.idle, matrix.releasing, matrix.pipelined)],
        [matrix.host_ports.conflicts((port,)).tolist() for port in ports],
        [(task.uid, task.status, task.node, task.node_index, task.evicting) for task in tasks],
        [table.status.tolist(), table.node.tolist(), table.queue.tolist(), table.gang.tolist()],
        [sorted(task.uid for task in table.tasks_on(i)) for i in range(_NODES)],
        {
            gang.key: (
                gang.allocated,
                gang.requested,
                gang.releasing,
                gang.best_effort_count,
                gang.counts.by_status[:],
                {role: counts.by_status[:] for role, counts in gang.counts_by_role.items()},
                sorted(gang.pending_tasks),
            )
            for gang in cache.gangs.values()
        },
        {each.name: (each.allocated, each.requested) for each in cache.queues.by_name.values()},
        [dict(plugin.cpu) for plugin in _listeners(session)],
    )


def _listeners(session: Session) -> list[Sums]:
    return [each for each in session._framework.session_open if isinstance(each, Sums)]


def _copy(state: object) -> object:
    return repr(state)


def _step(data: st.DataObject, world: SchedulerWorld, statement: Statement) -> None:
    table = world.cluster.task_table
    tasks = [task for task in table.tasks if task is not None]
    kind = data.draw(st.sampled_from(["allocate", "pipeline", "evict"]))
    if kind == "evict":
        victims = [task for task in tasks if task.status is TaskStatus.RUNNING]
        if victims:
            statement.evict(data.draw(st.sampled_from(victims)))
        return
    pending = [task for task in tasks if task.status is TaskStatus.PENDING]
    if not pending:
        return
    first = data.draw(st.sampled_from(pending))
    alike = [t for t in pending if t.eq_class is first.eq_class and t.gang is first.gang]
    alike = alike[: data.draw(st.integers(1, len(alike)))]
    nodes = [data.draw(st.integers(0, _NODES - 1)) for _ in alike]
    (statement.allocate if kind == "allocate" else statement.pipeline)(alike, nodes)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_any_operations_undone_restore_all_counters(data: st.DataObject) -> None:
    """INV: a discarded statement leaves no trace, bit by bit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PLUGINS, "sums", Sums)
        world = _world()
        session = world.core.open_session()
        gang = world.cluster.gangs["ns/high"]
        before = _copy(_state(world, session))
        states = [before]
        with session.statement(gang) as statement:
            savepoints = [statement.savepoint()]
            for _ in range(data.draw(st.integers(1, 12))):
                if data.draw(st.integers(0, 4)) == 0:
                    index = data.draw(st.integers(0, len(savepoints) - 1))
                    statement.rollback_to(savepoints[index])
                    del savepoints[index + 1 :], states[index + 1 :]
                    assert _copy(_state(world, session)) == states[index]
                    continue
                _step(data, world, statement)
                world.validate()
                savepoints.append(statement.savepoint())
                states.append(_copy(_state(world, session)))
        assert _copy(_state(world, session)) == before


@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_sums_of_open_statement_equal_those_of_its_tasks(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PLUGINS, "sums", Sums)
        world = _world()
        session = world.core.open_session()
        with session.statement(world.cluster.gangs["ns/high"]) as statement:
            for _ in range(data.draw(st.integers(1, 10))):
                _step(data, world, statement)
            counted = (
                TaskStatus.RUNNING,
                TaskStatus.ALLOCATED,
                TaskStatus.PIPELINED,
            )
            for name in ("default", "other"):
                tasks = [
                    task
                    for gang in world.cluster.gangs.values()
                    if world.cluster.queues.of(gang).name == name
                    for task in gang.tasks.values()
                    if task.status in counted
                ]
                cpu = sum(task.eq_class.request["cpu"] for task in tasks)
                assert world.cluster.queues.named(name).allocated.get("cpu", 0) == cpu
                assert [each.cpu[name] for each in _listeners(session)] == [cpu]


def _tasks(world: SchedulerWorld, group: str) -> list[Task]:
    return list(world.cluster.gangs[f"ns/{group}"].tasks.values())


def _status(task: Task) -> TaskStatus:
    return task.status


def test_victims_and_waiting_tasks_count_as_promised() -> None:
    world = _world()
    session = world.core.open_session()
    high, low = world.cluster.gangs["ns/high"], world.cluster.gangs["ns/low"]
    matrix, victim = world.cluster.node_matrix, _tasks(world, "low")[0]
    waiting = [task for task in _tasks(world, "high") if task.role == "r0"]
    idle = int(matrix.idle[CPU, victim.node_index])
    node_index = victim.node_index
    with session.statement(high) as statement:
        statement.evict(victim)
        assert matrix.idle[CPU, node_index] == idle
        assert matrix.future_idle()[CPU, node_index] == idle + 2000
        statement.pipeline(waiting, [node_index] * 2)
        assert matrix.future_idle()[CPU, node_index] == idle + 2000 - 6000
        assert matrix.available()[CPU, node_index] == idle - 4000
        assert (high.counts.waiting, high.is_pipelined(), high.is_starving()) == (2, True, False)
        assert (low.counts.ready, low.releasing) == (1, 1)
        session.commit(high, statement)
    assert session.evicted == [victim]
    assert session.pipelined == [(task, node_index) for task in waiting]
    session.close()
    assert [task.status for task in waiting] == [TaskStatus.PENDING] * 2
    assert high.allocated == {}
    assert not matrix.pipelined.any()
    assert (victim.status, victim.evicting) == (TaskStatus.RELEASING, True)
    assert matrix.releasing[CPU, node_index] == 2000
    world.validate()


def test_evicted_task_stays_releasing_until_its_pod_is_gone_or_the_eviction_fails() -> None:
    world = _world()
    matrix = world.cluster.node_matrix
    running = pod("run-t-0", "low", node_name="n0", phase="Running", cpu=2)
    for deleted in (False, True):
        session = world.core.open_session()
        victim = world.cluster.task("uid-run-t-0")
        assert victim is not None
        with session.statement(world.cluster.gangs["ns/high"]) as statement:
            statement.evict(victim)
            session.commit(world.cluster.gangs["ns/high"], statement)
        session.close()
        world.upsert(running)
        assert victim.status is TaskStatus.RELEASING
        if deleted:
            world.upsert(pod("run-t-0", "low", node_name="n0", phase="Failed", cpu=2))
        else:
            assert world.cluster.forget_eviction("uid-run-t-0") is not None
            assert _status(victim) is TaskStatus.RUNNING
        assert not matrix.releasing.any()
        world.validate()
    assert world.cluster.forget_eviction("uid-run-t-0") is None


def test_listener_that_raises_leaves_the_operation_undone() -> None:
    world = _world()
    session = world.core.open_session()
    before = _copy(_state(world, session))
    with session.statement(world.cluster.gangs["ns/high"]) as statement:
        for each in _listeners(session):
            each.raising = True
        with pytest.raises(PluginError):
            statement.allocate(_tasks(world, "high")[:1], [0])
        assert statement.operations == []
        assert _copy(_state(world, session)) == before


@pytest.mark.parametrize("group", ["low", ""])
def test_terminating_pods_are_releasing(group: str) -> None:
    world = SchedulerWorld()
    world.upsert(node("n"), podgroup("low", 1, phase="Running"))
    matrix = world.cluster.node_matrix
    scheduler = "volcano" if group else "other"
    for terminating in (False, True, True):
        world.upsert(
            pod(
                "p",
                group,
                node_name="n",
                phase="Running",
                scheduler=scheduler,
                terminating=terminating,
            )
        )
        assert matrix.releasing[CPU, 0] == (1000 if terminating else 0)
        assert matrix.idle[CPU, 0] == 7000
        assert matrix.future_idle()[CPU, 0] == (8000 if terminating else 7000)
        world.validate()
    world.cluster.apply(PodEvent(pod("p", group, node_name="n", scheduler=scheduler), None))
    assert (matrix.releasing[CPU, 0], matrix.idle[CPU, 0]) == (0, 8000)
    world.validate()


def test_foreign_pod_that_moves_or_changes_its_request_is_counted_once() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), node("b"))
    matrix = world.cluster.node_matrix
    for name, cpu in (("a", 1), ("a", 2), ("b", 2)):
        world.upsert(pod("p", node_name=name, cpu=cpu, scheduler="other", phase="Running"))
        assert matrix.used()["cpu"] == cpu * 1000
    world.upsert(pod("p", node_name="b", cpu=2, scheduler="other", phase="Succeeded"))
    assert matrix.used() == {}
