"""Measure decisions of the scheduler without API server: ``python -m bench.scheduling [NAME ...]``.

Each measurement runs in its own process; times are CPU times of one core. They are compared with
the time that one naive comparison of a pod with all nodes takes there, since machines differ.
Counts (placements, attempts, retries) do not depend on the machine.
"""

import gc
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from batholith.kube.gc_tuning import freeze_heap
from batholith.model import names
from batholith.model.hypernode import (
    HYPERNODE,
    ExactMatch,
    HyperNode,
    HyperNodeSpec,
    Member,
    MemberSelector,
)
from batholith.model.job import Job, JobSpec, NetworkTopology, TaskSpec
from batholith.model.meta import LabelSelector, ObjectMeta
from batholith.model.pod_resources import Resources
from batholith.model.podgroup import PodGroup, PodGroupSpec, PodGroupStatus, SubGroupPolicy
from batholith.model.queue import Queue, QueueSpec, QueueStatus
from batholith.scheduler import conf
from batholith.scheduler.cycle_runner import CycleRunner
from batholith.scheduler.framework.decision import Decision
from batholith.scheduler.framework.framework import Framework
from batholith.scheduler.simulation.forked import start_copy
from batholith.scheduler.simulation.simulation import JobSimulation, decode_result
from batholith.scheduler.simulation.trial import SchedulerCopy
from batholith.scheduler.state.cache.cache import SchedulerCache
from batholith.scheduler.state.cache.events import HyperNodeEvent, PodDisruptionBudgetEvent
from batholith.scheduler.state.core_types import (
    Container,
    Node,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
    PriorityClass,
)
from batholith.scheduler.state.gangs.disruption_budgets import (
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
)

NODES = 5_000
PODS_PER_GANG = 100
_REPEATS = 20
_EVICTING = """
actions: "enqueue, allocate, backfill, preempt"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
  - name: conformance
  - name: pdb
- plugins:
  - name: predicates
  - name: proportion
  - name: nodeorder
"""
_TOPOLOGY = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: overcommit}, {name: drf}, {name: predicates}, {name: proportion},
    {name: nodeorder}, {name: binpack}, {name: network-topology-aware}]
"""


class Cluster:
    """A scheduler cache with nodes of 32 CPU and 256Gi, and its cycles."""

    def __init__(self, *, queues: int = 1, text: str = conf.DEFAULT) -> None:
        loaded = conf.load(text)
        self.cache = SchedulerCache()
        self.framework = Framework(loaded.tiers)
        self.runner = CycleRunner(self.cache, self.framework, loaded.actions)
        self.cycle_seconds = 0.0
        self.now = 0.0
        for number in range(queues):
            self.cache.update_queue(None, queue(queue_name(number)))
        for number in range(NODES):
            self.cache.update_node(None, node(f"node-{number:05d}"))

    def gang(
        self,
        name: str,
        pods: Iterable[Pod],
        minimum: int,
        *,
        queue_number: int = 0,
        phase: str = "Inqueue",
    ) -> None:
        """Add a gang with its pods."""
        self.cache.update_podgroup(None, podgroup(name, minimum, queue_number, phase))
        for each in pods:
            self.cache.update_pod(None, each)

    def cycle(self) -> Decision:
        """Run a cycle, and measure it."""
        self.now += 1
        started = time.process_time()
        decision = self.runner.run_once(now=self.now)
        self.cycle_seconds = time.process_time() - started
        return decision

    def fill(self, pods: int) -> list[Pod]:
        """Fill all nodes with *pods* running pods of gangs of one class."""
        cpu = f"{32_000 * NODES // pods}m"
        found = []
        for number in range(pods // PODS_PER_GANG):
            name = f"running-{number}"
            members = [
                pod(
                    f"{name}-{i}",
                    name,
                    cpu,
                    node_name=f"node-{(number * PODS_PER_GANG + i) % NODES:05d}",
                )
                for i in range(PODS_PER_GANG)
            ]
            self.gang(name, members, PODS_PER_GANG, phase="Running")
            found += members
        return found


def naive_seconds() -> float:
    """Return the time to compare one pod with all nodes in plain Python: the baseline."""
    nodes = [{"cpu": 32_000 - i % 7, "memory": 2**38, "pods": 110} for i in range(NODES)]
    request = {"cpu": 1_000, "memory": 2**30, "pods": 1}
    times = []
    for _ in range(_REPEATS):
        started = time.process_time()
        fitting = [each for each in nodes if all(each[k] >= n for k, n in request.items())]
        max(fitting, key=lambda each: each["cpu"] / 32_000 + each["memory"] / 2**38)
        times.append(time.process_time() - started)
    return statistics.median(times)


def queue_name(number: int) -> str:
    """Return the name of a queue; the first is the default one."""
    return f"queue-{number}" if number else "default"


def node(name: str) -> Node:
    """Return a node."""
    allocatable: dict[str, str | int | float] = {"cpu": 32, "memory": "256Gi", "pods": 110}
    return Node(metadata=ObjectMeta(name=name), status=NodeStatus(allocatable=allocatable))


def queue(name: str) -> Queue:
    """Return an open queue."""
    return Queue(
        metadata=ObjectMeta(name=name, uid=f"queue-{name}"),
        spec=QueueSpec(weight=1),
        status=QueueStatus(state="Open"),
    )


def podgroup(name: str, minimum: int, queue_number: int, phase: str) -> PodGroup:
    """Return a PodGroup."""
    return PodGroup(
        metadata=ObjectMeta(
            name=name,
            namespace="bench",
            uid=f"group-{name}",
            creation_timestamp="2026-01-01T00:00:00Z",
        ),
        spec=PodGroupSpec(min_member=minimum, queue=queue_name(queue_number)),
        status=PodGroupStatus(phase=phase),
    )


def pod(name: str, group: str, cpu: str, *, node_name: str = "", memory: str = "1Gi") -> Pod:
    """Return a pod; with *node_name* it is running."""
    requests: dict[str, str | int | float] = {"cpu": cpu, "memory": memory}
    return Pod(
        metadata=ObjectMeta(
            name=name, namespace="bench", uid=name, annotations={names.GROUP_NAME: group}
        ),
        spec=PodSpec(
            scheduler_name="volcano",
            node_name=node_name,
            containers=(Container(resources=Resources(requests=requests)),),
        ),
        status=PodStatus(phase="Running" if node_name else "Pending"),
    )


def classes(count: int) -> list[str]:
    """10,000 pods of *count* classes, as gangs of 100; of 10,000 classes, each pod differs."""
    cluster = Cluster()
    for number in range(10_000 // PODS_PER_GANG):
        name = f"gang-{number}"
        members = []
        for i in range(PODS_PER_GANG):
            kind = (number if count < 1000 else number * PODS_PER_GANG + i) % count
            cpu, memory = f"{1000 + kind % 100}m", f"{1024 + kind // 100}Mi"
            members.append(pod(f"{name}-{i}", name, cpu, memory=memory))
        cluster.gang(name, members, PODS_PER_GANG)
    gc.collect()
    allocated, seconds, cycles = _until_settled(cluster)
    return _row(f"10,000 pods of {count:,} classes", seconds, f"{allocated} in {cycles}")


def _until_settled(cluster: Cluster) -> tuple[int, float, int]:
    allocated, seconds, cycles = 0, 0.0, 0
    while cluster.cache.has_changes():
        decision = cluster.cycle()
        allocated += len(decision.placements)
        seconds += cluster.cycle_seconds
        cycles += 1
    return allocated, seconds, cycles


def waiting(kind: str) -> list[str]:
    """A full cluster of 50,000 pods, and 10,000 gangs that wait; then one event after the other."""
    cluster = Cluster()
    running = cluster.fill(50_000)
    for number in range(10_000):
        name = f"waiting-{number}"
        cpu = f"{3200 + 10 * (number % 20)}m" if kind == "finished" else "4000m"
        cluster.gang(name, [pod(f"{name}-{i}", name, cpu) for i in range(2)], 2)
    _until_settled(cluster)
    freeze_heap()
    times, counts = [], []
    for number in range(_REPEATS):
        if kind == "new":
            name = f"new-{number}"
            cluster.gang(name, [pod(f"{name}-0", name, "3500m")], 1)
        else:
            cluster.cache.update_pod(running[number], None)
        allocated, seconds, _ = _until_settled(cluster)
        times.append(seconds)
        counts.append(allocated)
    event = "one new pod" if kind == "new" else "one finished pod"
    label = f"{event}, 50,000 bound pods, 10,000 gangs waiting"
    return _row(label, statistics.median(times), f"{sum(counts)} in {_REPEATS} events")


def queues(count: int) -> list[str]:
    """A pod in a cluster of *count* queues that have a running gang each."""
    cluster = Cluster(queues=count)
    for number in range(count):
        name = f"running-{number}"
        members = [pod(f"{name}-0", name, "1", node_name=f"node-{number:05d}")]
        cluster.gang(name, members, 1, queue_number=number, phase="Running")
    _until_settled(cluster)
    freeze_heap()
    times = []
    for number in range(_REPEATS):
        name = f"new-{number}"
        cluster.gang(name, [pod(f"{name}-0", name, "1")], 1, queue_number=number)
        times.append(_until_settled(cluster)[1])
    return _row(f"one new pod, {count:,} queues", statistics.median(times), "")


def changed_queues(count: int) -> list[str]:
    """A cycle in which the allocation of each of *count* queues has changed."""
    cluster = Cluster(queues=count)
    _until_settled(cluster)
    for number in range(count):
        name = f"running-{number}"
        members = [pod(f"{name}-0", name, "1", node_name=f"node-{number:05d}")]
        cluster.gang(name, members, 1, queue_number=number, phase="Running")
    freeze_heap()
    cluster.cycle()
    return _row(f"a change of each of {count:,} queues", cluster.cycle_seconds, "")


def fair_share() -> list[str]:
    """A gang ends in a full cluster, for which 10,000 of 200 queues and ten users wait."""
    text = conf.DEFAULT.replace("  - name: proportion\n", "")
    fair = text.replace("  - name: conformance\n", "  - name: conformance\n  - name: fairshare\n")
    with_plugin, seconds = _ends_of_gangs(fair)
    without, _ = _ends_of_gangs(text)
    counts = f"{with_plugin:,} calls of functions, {without:,} without fairshare"
    return _row("one finished gang, 200 queues, 10,000 gangs waiting", seconds, counts)


def limited_queues() -> list[str]:
    """A gang ends in a full cluster, whose 2,000 queues have nearly all that they deserve."""
    calls, seconds = _ends_of_gangs(conf.DEFAULT, queues=2_000)
    label = "one finished gang, 2,000 queues at their limits, 10,000 gangs waiting"
    return _row(label, seconds, f"{calls:,} calls of functions")


def _ends_of_gangs(text: str, *, queues: int = 200) -> tuple[int, float]:
    """Return how many calls of Python functions, and seconds, the end of one gang costs."""
    cluster = Cluster(queues=queues, text=text)
    running = []
    for number in range(NODES):
        name = f"running-{number}"
        running.append(pod(f"{name}-0", name, "32", node_name=f"node-{number:05d}"))
        cluster.gang(name, running[-1:], 1, queue_number=number % queues, phase="Running")
    for number in range(10_000):
        name = f"waiting-{number}"
        group = podgroup(name, 1, number % queues, "Inqueue")
        annotations = {names.SUBMITTED_BY: f"user-{number // queues % 10}"}
        metadata = msgspec.structs.replace(group.metadata, annotations=annotations)
        cluster.cache.update_podgroup(None, msgspec.structs.replace(group, metadata=metadata))
        cluster.cache.update_pod(None, pod(f"{name}-0", name, "32"))
    _until_settled(cluster)
    gc.collect()
    gc.freeze()
    times, calls = [], 0

    def count_call(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    for number in range(2 * _REPEATS):
        cluster.cache.update_pod(running[number], None)
        if number < _REPEATS:
            times.append(_until_settled(cluster)[1])
        else:
            sys.setprofile(count_call)
            _until_settled(cluster)
            sys.setprofile(None)
    return calls // _REPEATS, statistics.median(times)


def sizes(count: int) -> list[str]:
    """A pod ends for which *count* gangs of as many sizes wait, of which few fit its node."""
    cluster = Cluster()
    running = cluster.fill(NODES)
    for number in range(count):
        name = f"waiting-{number}"
        cluster.gang(name, [pod(f"{name}-0", name, f"{1000 + number}m")], 1)
    _until_settled(cluster)
    freeze_heap()
    times, allocated, rejected = [], 0, 0
    for number in range(_REPEATS):
        cluster.cache.update_pod(running[number], None)
        seconds = 0.0
        while cluster.cache.has_changes():
            decision = cluster.cycle()
            seconds += cluster.cycle_seconds
            allocated += len(decision.placements)
            rejected += decision.rejected
        times.append(seconds)
    counts = f"{allocated} in {_REPEATS} events, {rejected} gangs rejected"
    return _row(f"one finished pod, {count:,} sizes waiting", statistics.median(times), counts)


def evictions() -> list[str]:
    """Gangs of high priority, while a disruption budget permits no eviction of 50,000 pods."""
    cluster = Cluster(text=_EVICTING)
    high = PriorityClass(metadata=ObjectMeta(name="high"), value=100)
    cluster.cache.update_priority_class(None, high)
    cluster.fill(50_000)
    budget = PodDisruptionBudget(
        metadata=ObjectMeta(name="all", namespace="bench"),
        spec=PodDisruptionBudgetSpec(selector=LabelSelector()),
    )
    cluster.cache.apply(PodDisruptionBudgetEvent(None, budget))
    cluster.cycle()
    freeze_heap()
    times = []
    for number in range(5):
        name = f"high-{number}"
        group = podgroup(name, 1, 0, "Inqueue")
        spec = msgspec.structs.replace(group.spec, priority_class_name="high")
        cluster.cache.update_podgroup(None, msgspec.structs.replace(group, spec=spec))
        cluster.cache.update_pod(None, pod(f"{name}-0", name, f"{3200 + number}m"))
        cluster.cycle()
        times.append(cluster.cycle_seconds)
    return _row("preempt, exhausted budget of 50,000 pods", statistics.median(times), "")


def simulation() -> list[str]:
    """The simulation of a gang of eight pods, with all changes that are tried.

    The time is that of a clock: most of it is spent in copies of the process.
    """
    cluster = Cluster(queues=3)
    cluster.fill(50_000)
    for number in range(10_000):
        name = f"waiting-{number}"
        cluster.gang(name, [pod(f"{name}-0", name, f"{3000 + number % 1000}m")], 1)
    _until_settled(cluster)
    template = {"spec": {"containers": [{"resources": {"requests": {"cpu": "4"}}}]}}
    task = TaskSpec(name="t", replicas=8, template=msgspec.Raw(msgspec.json.encode(template)))
    spec = JobSpec(min_available=8, queue=queue_name(0), tasks=(task,))
    job = Job(metadata=ObjectMeta(name="job", namespace="bench"), spec=spec)
    now = cluster.now
    copy = SchedulerCopy(cluster.cache, cluster.runner, now=now, time=now)
    times, forks = [], []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        pid, read = start_copy(JobSimulation(copy, job, "2026-01-01T00:00:00Z").compute)
        forks.append(time.perf_counter() - started)
        with os.fdopen(read, "rb") as file:
            result = decode_result(file.read())
        os.waitpid(pid, 0)
        times.append(time.perf_counter() - started)
    label = "simulation of a gang, 50,000 bound pods, 10,000 gangs waiting"
    fork = f"{statistics.median(forks) * 1000:.1f} ms for the fork"
    return _row(label, statistics.median(times), f"{fork}, {len(result.changes)} changes")


RACKS, RACKS_PER_SPINE = 50, 8


def _topology(cluster: Cluster) -> None:
    """Add racks of equal size (tier 1), and spines of some racks (tier 2)."""
    size = NODES // RACKS
    for rack in range(RACKS):
        nodes = [f"node-{number:05d}" for number in range(rack * size, (rack + 1) * size)]
        _hypernode(cluster, f"rack-{rack}", 1, "Node", nodes)
    for first in range(0, RACKS, RACKS_PER_SPINE):
        racks = [f"rack-{rack}" for rack in range(first, min(first + RACKS_PER_SPINE, RACKS))]
        _hypernode(cluster, f"spine-{first}", 2, HYPERNODE, racks)


def _hypernode(cluster: Cluster, name: str, tier: int, kind: str, members: list[str]) -> None:
    selected = (
        Member(type=kind, selector=MemberSelector(exact_match=ExactMatch(name=each)))
        for each in members
    )
    spec = HyperNodeSpec(tier=tier, members=tuple(selected))
    hypernode = HyperNode(metadata=ObjectMeta(name=name), spec=spec)
    cluster.cache.apply(HyperNodeEvent(None, hypernode))


def topology(
    gangs: int, size: int, cpu: str, tier: int | None, *, sub_group_size: int = 0
) -> list[str]:
    """Gangs that require one HyperNode of a tier, or nothing; all are allocated at once. With a
    *sub_group_size*, each sub-group requires one HyperNode of tier 1, too."""
    cluster = Cluster(text=_TOPOLOGY)
    _topology(cluster)
    cluster.cycle()
    required = None if tier is None else NetworkTopology(highest_tier_allowed=tier)
    for number in range(gangs):
        name = f"gang-{number}"
        members = [pod(f"{name}-{index}", name, cpu) for index in range(size)]
        policies: tuple[SubGroupPolicy, ...] = ()
        if sub_group_size:
            members = [_in_sub_group(each, i // sub_group_size) for i, each in enumerate(members)]
            policies = (_policy(sub_group_size, size // sub_group_size),)
        cluster.gang(name, members, size)
        group = cluster.cache.gangs[f"bench/{name}"].podgroup
        assert group is not None
        spec = msgspec.structs.replace(
            group.spec, network_topology=required, sub_group_policy=policies
        )
        cluster.cache.update_podgroup(group, msgspec.structs.replace(group, spec=spec))
    freeze_heap()
    decision = cluster.cycle()
    label = f"{gangs:,} gangs of {size}, " + ("no topology" if tier is None else f"tier {tier}")
    label += f", sub-groups of {sub_group_size}" if sub_group_size else ""
    return _row(label, cluster.cycle_seconds, f"{len(decision.placements):,}")


def _policy(size: int, minimum: int) -> SubGroupPolicy:
    return SubGroupPolicy(
        name="t",
        sub_group_size=size,
        min_sub_groups=minimum,
        network_topology=NetworkTopology(highest_tier_allowed=1),
        label_selector=LabelSelector(),
        match_label_keys=(names.PARTITION_ID,),
    )


def _in_sub_group(member: Pod, number: int) -> Pod:
    labels = {names.PARTITION_ID: str(number)}
    metadata = msgspec.structs.replace(member.metadata, labels=labels)
    return msgspec.structs.replace(member, metadata=metadata)


def _row(label: str, seconds: float, counts: str) -> list[str]:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    values = (
        f"{seconds * 1000:.1f} ms",
        f"{seconds / naive_seconds():.2f}",
        f"{memory} MiB",
        counts,
    )
    return [label, *values]


CASES: Mapping[str, Callable[[], list[str]]] = {
    "20-classes": lambda: classes(20),
    "10000-classes": lambda: classes(10_000),
    "new-pod": lambda: waiting("new"),
    "finished-pod": lambda: waiting("finished"),
    "1000-queues": lambda: queues(1_000),
    "2000-changed-queues": lambda: changed_queues(2_000),
    "2000-limited-queues": limited_queues,
    "fair-share": fair_share,
    "3000-sizes": lambda: sizes(3_000),
    "exhausted-budget": evictions,
    "simulation": simulation,
    "racks": lambda: topology(2_250, 4, "8", 1),
    "racks-without": lambda: topology(2_250, 4, "8", None),
    "sub-groups": lambda: topology(70, 32, "8", 2, sub_group_size=4),
    "sub-groups-without": lambda: topology(70, 32, "8", 2),
    "wide-gang": lambda: topology(1, 512, "32", 2),
    "wide-gang-without": lambda: topology(1, 512, "32", None),
}


def main() -> None:
    """Run the named measurements, or all, each in its own process."""
    if os.environ.get("BENCH_SCHEDULING_CASE"):
        print("| " + " | ".join(CASES[os.environ["BENCH_SCHEDULING_CASE"]]()) + " |", flush=True)
        return
    print("| measurement | CPU time | in naive comparisons | memory | pods allocated |")
    print("| --- | ---: | ---: | ---: | --- |", flush=True)
    for name in sys.argv[1:] or CASES:
        environment = {**os.environ, "BENCH_SCHEDULING_CASE": name}
        subprocess.run([sys.executable, "-m", "bench.scheduling"], check=True, env=environment)


if __name__ == "__main__":
    main()
