"""Builders for tests of preemption and reclaim, and a world that carries evictions out."""

from typing import Any

import msgspec
from support.scheduler import Amount, SchedulerWorld, node, pod, podgroup, queue

from batholith.model.meta import ObjectMeta
from batholith.model.queue import Guarantee, Queue
from batholith.scheduler.framework.decision import Decision
from batholith.scheduler.state.core_types import Affinity, Pod, PriorityClass

CONF = """
actions: "enqueue, allocate, backfill, reclaim, preempt"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: {gang}
  - name: conformance
- plugins:
  - name: overcommit
  - name: drf
    enablePreemptable: {drf}
  - name: predicates
  - name: proportion
  - name: nodeorder
"""


def conf(*, gang: bool = True, drf: bool = False, more: str = "") -> str:
    """The configuration of Volcano's own tests; *more* are further plugins of the first tier."""
    text = CONF.format(gang=str(gang).lower(), drf=str(drf).lower())
    return text.replace("  - name: conformance\n", "  - name: conformance\n" + more)


class EvictingWorld(SchedulerWorld):
    """A cluster whose nodes carry out what a cycle decides."""

    def __init__(self, text: str = "", **options: Any) -> None:
        super().__init__(text or conf(), **options)
        self.time: float = 0.0
        """Unix time of the next cycle."""
        self.evicted: list[str] = []
        """Names of the pods that were evicted, in order."""
        self.nominated: dict[str, str] = {}
        for name, value in (("low", 1), ("mid", 10), ("high", 100)):
            priority_class = PriorityClass(metadata=ObjectMeta(name=name), value=value)
            self.cluster.update_priority_class(None, priority_class)

    def run(self, *, time: float | None = None) -> Decision:
        """Run a cycle, bind what it allocated, and let evicted pods terminate."""
        if time is not None:
            self.time = time
        decision = self.decision()
        for placement in decision.placements:
            self.started(placement.name, placement.node)
        for eviction in decision.evictions:
            self.evicted.append(eviction.name)
            self.terminating(eviction.name)
        for nomination in decision.nominations:
            self.nominated_on(nomination.name, nomination.node)
        return decision

    def nominated_on(self, name: str, node_name: str) -> None:
        """The status of the pod names a node."""
        self.nominated[name] = node_name
        self._update(name, nominated_node_name=node_name)

    def decision(self, *, now: float | None = None, busy: bool = False) -> Decision:
        """Run a cycle at :attr:`time`."""
        return super().decision(now=self.time if now is None else now, busy=busy)

    def started(self, name: str, node_name: str) -> None:
        """The pod runs on a node."""
        found = self.pod_objects[f"uid-{name}"]
        spec = msgspec.structs.replace(found.spec, node_name=node_name)
        status = msgspec.structs.replace(found.status, phase="Running", nominated_node_name="")
        self.upsert(msgspec.structs.replace(found, spec=spec, status=status))

    def terminating(self, name: str) -> None:
        """The pod has a deletion timestamp."""
        found = self.pod_objects[f"uid-{name}"]
        meta = msgspec.structs.replace(found.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
        self.upsert(msgspec.structs.replace(found, metadata=meta))

    def finish_termination(self, *names: str) -> None:
        """Pods are deleted: by default all that terminate."""
        found = [
            each
            for each in self.pod_objects.values()
            if (each.metadata.name in names if names else each.metadata.deletion_timestamp)
        ]
        for each in found:
            self.remove(each)

    def node_of(self, name: str) -> str:
        """The node of a pod, as far as it has one."""
        return self.pod_objects[f"uid-{name}"].spec.node_name

    def gang(
        self,
        name: str,
        count: int,
        *,
        minimum: int | None = None,
        nodes: tuple[str, ...] = (),
        queue_name: str = "default",
        priority: str = "low",
        phase: str = "",
        **fields: Any,
    ) -> None:
        """A gang of pods, running on *nodes* or pending."""
        group = podgroup(
            name,
            count if minimum is None else minimum,
            phase=phase or ("Running" if nodes else "Inqueue"),
            queue=queue_name,
            priority_class=priority,
        )
        self.upsert(group)
        for index in range(count):
            self.upsert(
                member(
                    f"{name}-t-{index}", name, nodes[index % len(nodes)] if nodes else "", **fields
                )
            )

    def _update(self, name: str, **status: Any) -> None:
        found = self.pod_objects[f"uid-{name}"]
        changed = msgspec.structs.replace(found.status, **status)
        self.upsert(msgspec.structs.replace(found, status=changed))


def member(
    name: str,
    group: str,
    node_name: str = "",
    *,
    preemptable: str = "",
    started: str = "",
    policy: str = "",
    grace: int | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    priority_class: str = "",
    namespace: str = "",
    role: str = "",
    priority: int | None = None,
    selector: dict[str, str] | None = None,
    ports: tuple[Any, ...] = (),
    affinity: Affinity | None = None,
    **requests: Any,
) -> Pod:
    """A pod of a gang, running if it has a node."""
    built = pod(
        name,
        group,
        node_name=node_name,
        phase="Running" if node_name else "Pending",
        role=role,
        priority=priority,
        selector=selector,
        affinity=affinity,
        ports=ports,
        **requests,
    )
    extra = dict(annotations or {})
    if preemptable:
        extra["volcano.sh/preemptable"] = preemptable
    meta = msgspec.structs.replace(
        built.metadata,
        annotations=built.metadata.annotations | extra,
        labels=labels or {},
        creation_timestamp=started or "2026-01-01T00:00:00Z",
        namespace=namespace or built.metadata.namespace,
    )
    spec = msgspec.structs.replace(
        built.spec,
        preemption_policy=policy,
        termination_grace_period_seconds=grace,
        priority_class_name=priority_class,
    )
    status = msgspec.structs.replace(built.status, start_time=started or None)
    return msgspec.structs.replace(built, metadata=meta, spec=spec, status=status)


def share(
    name: str, *, weight: int = 1, reclaimable: bool | None = None, guarantee: Amount = 0
) -> Queue:
    """A queue that has a weight, and maybe guaranteed CPU."""
    built = queue(name, weight=weight)
    changed = msgspec.structs.replace(built.spec, reclaimable=reclaimable)
    if guarantee:
        changed = msgspec.structs.replace(changed, guarantee=Guarantee(resource={"cpu": guarantee}))
    return msgspec.structs.replace(built, spec=changed)


__all__ = ["EvictingWorld", "conf", "member", "node", "podgroup", "queue", "share"]
