"""Measure how well gangs are scheduled: ``python -m bench.scheduling_quality [--check]``.

A seeded trace of 10,000 jobs runs on 200 nodes in virtual time, under the decision core of the
scheduler and under a simple policy: gangs in order of arrival, with backfill, on the first node
that fits. A shorter trace also runs under the oracle of the tests, which allocates one pod at a
time.

Results are printed as rows of Markdown tables for bench/README.md, and stored with ``--store`` in
bench/scheduling_quality.json. ``--check`` compares a run with the stored one and fails if a metric
is more than 5 % worse.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

import msgspec

from batholith.model.meta import ObjectMeta
from batholith.model.names import GROUP_NAME, SUBMITTED_BY, TASK_SPEC, TIME_LIMIT
from batholith.model.pod_resources import Resources
from batholith.model.podgroup import PodGroup, PodGroupSpec, PodGroupStatus
from batholith.model.queue import Guarantee, Queue, QueueSpec, QueueStatus
from batholith.scheduler import conf
from batholith.scheduler.actions.registry import ACTIONS
from batholith.scheduler.cycle_runner import CycleRunner
from batholith.scheduler.framework.framework import Framework
from batholith.scheduler.state.cache.cache import SchedulerCache
from batholith.scheduler.state.cache.events import Recheck
from batholith.scheduler.state.core_types import (
    Container,
    Node,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
    PriorityClass,
)
from bench.quality_trace import (
    CPUS,
    MEMORY_PER_CPU,
    PRIORITIES,
    QUEUES,
    Actions,
    Policy,
    Totals,
    TraceJob,
    VirtualCluster,
    generate,
)

# isort: split
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.scheduler_oracle.cycle import decide
from support.scheduler_oracle.objects import Objects, parse_config

STORED = Path(__file__).with_suffix(".json")
SEED = 20261122
SIZES = ((1, 1), (2, 8), (9, 64), (65, 512))
REGRESSION = 0.05
NAMESPACE = "bench"
EPOCH = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
"""Unix time at which virtual time begins."""
HELM = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
- plugins:
  - name: overcommit
  - name: drf
  - name: predicates
  - name: proportion
  - name: nodeorder
  - name: binpack
"""
CONFIGS = {"default": conf.DEFAULT, "binpack": HELM}
EVICTING = {
    "preempt": ("enqueue, allocate, preempt, backfill", HELM),
    "preempt, reclaim": ("enqueue, allocate, preempt, reclaim, backfill", HELM),
}
"""Configurations with actions that evict."""


def configurations() -> dict[str, str]:
    """Return the texts of all configurations by name: those whose actions are implemented."""
    evicting = {
        name: text.replace("enqueue, allocate, backfill", actions)
        for name, (actions, text) in EVICTING.items()
        if all(ACTIONS[action.strip()] for action in actions.split(","))
    }
    return CONFIGS | evicting


# -- objects ---------------------------------------------------------------------------------------


def cluster_objects(nodes: int) -> tuple[list[Node], list[Queue], list[PriorityClass]]:
    """Return the nodes, queues and priority classes of the trace."""
    offered: dict[str, str | int | float] = {
        "cpu": CPUS,
        "memory": f"{CPUS * MEMORY_PER_CPU}Gi",
        "pods": 250,
    }
    return (
        [
            Node(
                metadata=ObjectMeta(name=f"n{i:03d}"), status=NodeStatus(allocatable=dict(offered))
            )
            for i in range(nodes)
        ],
        [
            Queue(
                metadata=ObjectMeta(name=spec.name, uid=f"queue-{spec.name}"),
                spec=QueueSpec(
                    weight=spec.weight,
                    guarantee=Guarantee(resource={"cpu": int(spec.guarantee * nodes * CPUS)}),
                ),
                status=QueueStatus(state="Open"),
            )
            for spec in QUEUES
        ],
        [
            PriorityClass(metadata=ObjectMeta(name=name), value=value)
            for name, value in PRIORITIES.items()
        ],
    )


def podgroup_of(job: TraceJob, limit: float | None = None) -> PodGroup:
    """Return the PodGroup of *job*, with a time limit in seconds if it has one."""
    created = timestamp(job.arrival)
    return PodGroup(
        metadata=ObjectMeta(
            name=job.name,
            namespace=NAMESPACE,
            uid=job.name,
            creation_timestamp=created,
            annotations={SUBMITTED_BY: job.user}
            | ({} if limit is None else {TIME_LIMIT: f"{limit:.3f}s"}),
        ),
        spec=PodGroupSpec(
            min_member=job.minimum,
            queue=job.queue,
            priority_class_name=job.priority,
            min_resources={
                "cpu": job.minimum * job.cpu,
                "memory": f"{job.minimum * job.memory}Gi",
            },
        ),
        status=PodGroupStatus(phase="Pending"),
    )


def timestamp(seconds: float) -> str:
    """Return virtual time as it is written in objects."""
    return datetime.fromtimestamp(EPOCH + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Pods:
    """The pods of the jobs: a name and a uid for each time that one is created."""

    def __init__(self) -> None:
        self.current: dict[tuple[str, int], Pod] = {}
        self.by_uid: dict[str, tuple[str, int]] = {}
        self._created = 0

    def create(self, job: TraceJob, index: int, now: float = 0.0) -> Pod:
        """Return a new pending pod."""
        self._created += 1
        name = f"{job.name}-worker-{index}"
        uid = f"{name}-{self._created}"
        requests: dict[str, str | int | float] = {"cpu": job.cpu, "memory": f"{job.memory}Gi"}
        pod = Pod(
            metadata=ObjectMeta(
                name=name,
                namespace=NAMESPACE,
                uid=uid,
                creation_timestamp=timestamp(now),
                annotations={GROUP_NAME: job.name, TASK_SPEC: "worker"},
            ),
            spec=PodSpec(
                scheduler_name="volcano",
                priority=PRIORITIES[job.priority],
                containers=(Container(resources=Resources(requests=requests)),),
                termination_grace_period_seconds=0,
            ),
            status=PodStatus(phase="Pending"),
        )
        self.current[job.name, index] = pod
        self.by_uid[uid] = (job.name, index)
        return pod

    def bind(self, uid: str, node: str, now: float = 0.0) -> tuple[Pod, Pod]:
        """Return a pod before and after it runs on *node*, since *now*."""
        key = self.by_uid[uid]
        old = self.current[key]
        spec = msgspec.structs.replace(old.spec, node_name=node)
        status = PodStatus(phase="Running", start_time=timestamp(math.ceil(now)))
        new = msgspec.structs.replace(old, spec=spec, status=status)
        self.current[key] = new
        return old, new

    def remove(self, key: tuple[str, int]) -> Pod:
        """Remove and return a pod."""
        pod = self.current.pop(key)
        del self.by_uid[pod.metadata.uid]
        return pod


# -- policies --------------------------------------------------------------------------------------


class Product:
    """The decision core of the scheduler."""

    def __init__(self, nodes: int, text: str, limits: Mapping[str, float] | None = None) -> None:
        self.limits = limits or {}
        """Time limits of jobs in seconds, by name."""
        loaded = conf.load(text)
        self.cache = SchedulerCache()
        self.core = CycleRunner(self.cache, Framework(loaded.tiers), loaded.actions)
        self.pods = Pods()
        self.groups: dict[str, PodGroup] = {}
        self.cpu_seconds = 0.0
        self._now = 0.0
        """Time of the last cycle, which is when pods are created."""
        cluster, queues, classes = cluster_objects(nodes)
        for node in cluster:
            self.cache.update_node(None, node)
        for queue in queues:
            self.cache.update_queue(None, queue)
        for each in classes:
            self.cache.update_priority_class(None, each)

    def submit(self, job: TraceJob) -> None:
        """Add a gang without pods."""
        self.groups[job.name] = podgroup_of(job, self.limits.get(job.name))
        self.cache.update_podgroup(None, self.groups[job.name])

    def create_pods(self, job: TraceJob, indexes: Iterable[int]) -> None:
        """Add pending pods."""
        for index in indexes:
            self.cache.update_pod(None, self.pods.create(job, index, self._now))

    def end_pods(self, job: TraceJob, indexes: Iterable[int], *, finished: bool) -> None:
        """End pods: a pod that succeeded is kept until its job is complete."""
        for index in indexes:
            if finished:
                old = self.pods.current[job.name, index]
                new = msgspec.structs.replace(old, status=PodStatus(phase="Succeeded"))
                self.pods.current[job.name, index] = new
                self.cache.update_pod(old, new)
            else:
                self.cache.update_pod(self.pods.remove((job.name, index)), None)

    def release_pods(self, job: TraceJob, indexes: Iterable[int]) -> None:
        """Mark pods as terminating."""
        for index in indexes:
            old = self.pods.current[job.name, index]
            meta = msgspec.structs.replace(old.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
            new = msgspec.structs.replace(old, metadata=meta)
            self.pods.current[job.name, index] = new
            self.cache.update_pod(old, new)

    def complete(self, job: TraceJob) -> None:
        """Remove the gang and its pods."""
        for index in range(job.size):
            self.cache.update_pod(self.pods.remove((job.name, index)), None)
        self.cache.update_podgroup(self.groups.pop(job.name), None)

    def cycle(self, now: float) -> Actions:
        """Run one cycle, and let the pods run at once."""
        self._now = now
        began = time.process_time()
        decision = self.core.run_once(now=now, time=EPOCH + now)
        self.cpu_seconds += time.process_time() - began
        if decision.plugin_failures:
            raise RuntimeError(f"plugins failed: {decision.plugin_failures}")
        actions = Actions([ref.key.partition("/")[2] for ref in decision.enqueued])
        for placement in decision.placements:
            actions.placements.append((*self.pods.by_uid[placement.uid], placement.node))
            self.cache.update_pod(*self.pods.bind(placement.uid, placement.node, now))
        for eviction in decision.evictions:
            actions.evicted.append(self.pods.by_uid[eviction.uid])
        for report in decision.reports:
            if report.requeue_after == 0:
                self.cache.apply(Recheck(report.key))
        self.cache.refresh()  # a gang may end before the next cycle: it is seen running until then
        return actions


class OracleCore:
    """The oracle of the tests."""

    def __init__(self, nodes: int, text: str) -> None:
        self.nodes, self.queues, self.classes = cluster_objects(nodes)
        self.config = parse_config(text)
        self.pods = Pods()
        self.groups: dict[str, PodGroup] = {}
        self.phases: dict[str, str] = {}
        self.cpu_seconds = 0.0

    def submit(self, job: TraceJob) -> None:
        """Add a gang without pods."""
        self.groups[job.name] = podgroup_of(job)

    def create_pods(self, job: TraceJob, indexes: Iterable[int]) -> None:
        """Add pending pods."""
        for index in indexes:
            self.pods.create(job, index)

    def end_pods(self, job: TraceJob, indexes: Iterable[int], *, finished: bool) -> None:
        """Let pods succeed: nothing evicts here."""
        for index in indexes:
            old = self.pods.current[job.name, index]
            new = msgspec.structs.replace(old, status=PodStatus(phase="Succeeded"))
            self.pods.current[job.name, index] = new

    def release_pods(self, job: TraceJob, indexes: Iterable[int]) -> None:
        """Do nothing: nothing evicts here."""

    def complete(self, job: TraceJob) -> None:
        """Remove the gang and its pods."""
        for index in range(job.size):
            self.pods.remove((job.name, index))
        del self.groups[job.name]
        self.phases.pop(f"{NAMESPACE}/{job.name}", None)

    def cycle(self, now: float) -> Actions:
        """Run one cycle, and let the pods run at once."""
        began = time.process_time()
        objects = Objects(
            nodes=self.nodes,
            pods=list(self.pods.current.values()),
            podgroups=list(self.groups.values()),
            queues=self.queues,
            priority_classes=self.classes,
            phases=self.phases,
        )
        outcome = decide(objects, self.config)
        self.cpu_seconds += time.process_time() - began
        self.phases |= dict.fromkeys(outcome.enqueued, "Inqueue")
        actions = Actions([key.partition("/")[2] for key in outcome.enqueued])
        for uid, node in outcome.placements.items():
            actions.placements.append((*self.pods.by_uid[uid], node))
            self.pods.bind(uid, node)
        for name in {name for name, _, _ in actions.placements}:
            self.phases[f"{NAMESPACE}/{name}"] = "Running"
        return actions


class FirstFit:
    """Order of arrival, with backfill: a gang starts when its minimum fits, in order."""

    def __init__(self, nodes: int) -> None:
        self.idle = [[CPUS, CPUS * MEMORY_PER_CPU] for _ in range(nodes)]
        self.waiting: dict[str, tuple[TraceJob, list[int]]] = {}
        self.node_of: dict[tuple[str, int], int] = {}
        self.cpu_seconds = 0.0
        self._admitted: list[str] = []
        self._started: set[str] = set()

    def submit(self, job: TraceJob) -> None:
        """Admit every gang at once."""
        self._admitted.append(job.name)

    def create_pods(self, job: TraceJob, indexes: Iterable[int]) -> None:
        """Let the pods wait."""
        self.waiting[job.name] = (job, list(indexes))

    def end_pods(self, job: TraceJob, indexes: Iterable[int], *, finished: bool) -> None:
        """Free what the pods used."""
        for index in indexes:
            idle = self.idle[self.node_of.pop((job.name, index))]
            idle[0] += job.cpu
            idle[1] += job.memory

    def release_pods(self, job: TraceJob, indexes: Iterable[int]) -> None:
        """Do nothing: nothing evicts here."""

    def complete(self, job: TraceJob) -> None:
        """Forget the gang."""
        self._started.discard(job.name)

    def cycle(self, now: float) -> Actions:
        """Allocate what fits, in the order of arrival."""
        began = time.process_time()
        actions = Actions(admitted=self._admitted)
        self._admitted = []
        full: set[tuple[int, int]] = set()
        for name, (job, indexes) in list(self.waiting.items()):
            if (job.cpu, job.memory) in full:
                continue
            chosen = self._fitting(job, len(indexes))
            if len(chosen) < len(indexes) and len(chosen) < 1:
                full.add((job.cpu, job.memory))
            if name not in self._started and len(chosen) < job.minimum:
                continue
            self._start(job, indexes, chosen, actions)
        self.cpu_seconds += time.process_time() - began
        return actions

    def _fitting(self, job: TraceJob, count: int) -> list[int]:
        chosen: list[int] = []
        for node, (cpu, memory) in enumerate(self.idle):
            chosen += [node] * min(cpu // job.cpu, memory // job.memory, count - len(chosen))
            if len(chosen) == count:
                break
        return chosen

    def _start(
        self, job: TraceJob, indexes: list[int], chosen: list[int], actions: Actions
    ) -> None:
        for index, node in zip(indexes, chosen, strict=False):
            self.idle[node][0] -= job.cpu
            self.idle[node][1] -= job.memory
            self.node_of[job.name, index] = node
            actions.placements.append((job.name, index, f"n{node:03d}"))
        self._started.add(job.name)
        if len(chosen) == len(indexes):
            del self.waiting[job.name]
        else:
            self.waiting[job.name] = (job, indexes[len(chosen) :])


# -- results ---------------------------------------------------------------------------------------

Metrics = dict[str, float]


def metrics_of(trace: list[TraceJob], nodes: int, totals: Totals) -> Metrics:
    """Return the metrics of a run: those that are to be small, but for utilisation."""
    span = trace[-1].arrival
    capacity = nodes * CPUS * span
    found = {
        "utilisation": totals.used / capacity,
        "share error": totals.unfair / capacity,
        "share error, idle": totals.idle / capacity,
        "makespan / trace": totals.end / span,
        "victims": float(totals.victims),
        "pod-seconds lost": totals.lost,
    }
    for spec in QUEUES:
        found[f"below its share, {spec.name}"] = totals.lacking[spec.name] / capacity
        found[f"above its share, {spec.name}"] = totals.exceeding[spec.name] / capacity
    groups = {f"gangs of {low}-{high}": _of_size(low, high) for low, high in SIZES}
    groups |= {f"queue {spec.name}": _with("queue", spec.name) for spec in QUEUES}
    groups |= {f"priority {name}": _with("priority", name) for name in PRIORITIES}
    for label, belongs in groups.items():
        waits = sorted(wait for job, wait in totals.waits if belongs(job))
        found[f"wait p50, {label}"] = percentile(waits, 0.5)
        found[f"wait p95, {label}"] = percentile(waits, 0.95)
    found["wait, mean"] = fmean(wait for _, wait in totals.waits)
    return found


def _of_size(low: int, high: int) -> Callable[[TraceJob], bool]:
    return lambda job: low <= job.size <= high


def _with(field: str, value: str) -> Callable[[TraceJob], bool]:
    return lambda job: getattr(job, field) == value


def percentile(ordered: list[float], fraction: float) -> float:
    """Return the value below which *fraction* of *ordered* is; 0 of nothing."""
    return ordered[int((len(ordered) - 1) * fraction)] if ordered else 0.0


_COUNTS = ("promised starts", "median, ms", "maximum, ms")
"""What is no quality: how many starts were compared, and what depends on the machine."""

_LARGE = ("utilisation", "in the interval")
"""What is to be large."""


def regressions(now: Metrics, stored: Metrics) -> list[str]:
    """Return the metrics that are more than 5 % worse than the stored ones.

    Waits below one cycle are equal, and counts below a hundred are compared as a hundred.
    """
    found = []
    for name, before in stored.items():
        value = now[name]
        if name in _COUNTS:
            continue
        if name in _LARGE:
            is_worse = value < before * (1 - REGRESSION)
        else:
            floor = {"victims": 100.0, "pod-seconds lost": 1e4, "share error": 0.01}.get(name, 0.0)
            floor = 10.0 if name.startswith("wait") else floor
            is_worse = value > max(before, floor) * (1 + REGRESSION)
        if is_worse:
            found.append(f"{name}: {value:.4g}, stored {before:.4g}")
    return found


def table(results: dict[str, Metrics]) -> str:
    """Return the metrics of several runs as a Markdown table, a column for each."""
    lines = [f"| | {' | '.join(results)} |", "| --- |" + " ---: |" * len(results)]
    for name in next(iter(results.values())):
        cells = [formatted(name, result[name]) for result in results.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def formatted(name: str, value: float) -> str:
    """Return *value* in the unit of metric *name*."""
    if name.startswith(("utilisation", "in the interval", "median error")) or "share" in name:
        return f"{100 * value:.1f} %"
    if name.startswith("wait"):
        return f"{value:.0f} s"
    return f"{value:.2f}" if name.startswith("makespan") else f"{value:.0f}"


def measure(trace: list[TraceJob], nodes: int, policies: dict[str, Policy]) -> dict[str, Metrics]:
    """Run *trace* under each of *policies*."""
    results = {}
    for name, policy in policies.items():
        began = time.perf_counter()
        totals = VirtualCluster(trace, nodes, policy).run()
        results[name] = metrics_of(trace, nodes, totals)
        spent = getattr(policy, "cpu_seconds", 0.0)
        print(
            f"{name}: {totals.cycles} cycles, {spent:.1f} CPU s in decisions, "
            f"{time.perf_counter() - began:.1f} s",
            file=sys.stderr,
            flush=True,
        )
    return results


def main() -> None:
    """Run both traces; print, store or check the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--oracle-jobs", type=int, default=250)
    parser.add_argument("--oracle-nodes", type=int, default=12)
    parser.add_argument("--store", action="store_true", help="replace stored results")
    parser.add_argument("--check", action="store_true", help="fail on a regression of 5 %%")
    options = parser.parse_args()
    results: dict[str, dict[str, Metrics]] = {}
    for title, jobs, nodes in (
        (f"{options.jobs} jobs, {options.nodes} nodes", options.jobs, options.nodes),
        ("oracle", options.oracle_jobs, options.oracle_nodes),
    ):
        trace = generate(jobs, nodes, seed=SEED)
        policies: dict[str, Policy] = {
            name: Product(nodes, text) for name, text in configurations().items()
        }
        if title == "oracle":
            policies = {name: policies[name] for name in CONFIGS}
            policies |= {
                f"oracle, {name}": OracleCore(nodes, text) for name, text in CONFIGS.items()
            }
            title = f"{jobs} jobs, {nodes} nodes"
        else:
            policies["first fit"] = FirstFit(nodes)
        results[title] = measure(trace, nodes, policies)
        print(f"\n{title}:\n\n{table(results[title])}\n", flush=True)
    if options.store:
        store(results)
    if options.check:
        sys.exit(check(results, json.loads(STORED.read_text())))


def store(results: dict[str, dict[str, Metrics]]) -> None:
    """Replace the stored results of the policies in *results*, and keep all others."""
    stored = json.loads(STORED.read_text())
    stored |= {title: stored.get(title, {}) | found for title, found in results.items()}
    STORED.write_text(json.dumps(stored, indent=1) + "\n")


def check(
    results: dict[str, dict[str, Metrics]], stored: dict[str, dict[str, Metrics]]
) -> str | None:
    """Return the regressions as text, or ``None``."""
    found = [
        f"{title}, {policy}: {each}"
        for title, policies in stored.items()
        for policy, before in policies.items()
        if policy in results.get(title, {})
        for each in regressions(results[title][policy], before)
    ]
    return "worse than stored by more than 5 %:\n" + "\n".join(found) if found else None


if __name__ == "__main__":
    main()
