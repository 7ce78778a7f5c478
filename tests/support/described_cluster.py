"""A scheduler and jobs of one pod, whose PodGroups are stored, or described by their pods.

What is decided is carried out; evicted pods terminate until a step removes them.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue

from batholith.model.described_podgroup import encode
from batholith.model.meta import ObjectMeta
from batholith.model.names import PODGROUP
from batholith.model.podgroup import PodGroup
from batholith.model.queue import Queue
from batholith.scheduler.framework.decision import Decision
from batholith.scheduler.state.core_types import Node, Pod, PriorityClass
from batholith.scheduler.state.gangs.gang import TaskStatus

CLASSES = {"low": 1, "high": 100}
START = 1_800_000_000.0
DELETED_AT = "2026-01-01T00:00:00Z"


def described(it: Pod, group: PodGroup) -> Pod:
    """Let a pod describe *group*."""
    meta = it.metadata
    return with_metadata(it, annotations={**meta.annotations, PODGROUP: encode(group)})


def with_metadata(it: Pod, **fields: Any) -> Pod:
    """Change the metadata of a pod."""
    return msgspec.structs.replace(it, metadata=msgspec.structs.replace(it.metadata, **fields))


def with_status(it: Pod, **fields: Any) -> Pod:
    """Change the status of a pod."""
    return msgspec.structs.replace(it, status=msgspec.structs.replace(it.status, **fields))


def on_node(it: Pod, name: str, phase: str = "Running") -> Pod:
    """Let a pod have a node."""
    spec = msgspec.structs.replace(it.spec, node_name=name)
    return with_status(msgspec.structs.replace(it, spec=spec), phase=phase)


class Job(msgspec.Struct, frozen=True):
    """A job of one pod."""

    cpu: int = 1
    queue: str = "default"
    priority_class: str = ""
    preemptable: str = ""
    has_minimum: bool = True


class DescribedCluster:
    """A scheduler, and the objects that it has seen; PodGroups are *stored* or described."""

    def __init__(self, text: str, *, stored: bool, queues: Sequence[Queue] = ()) -> None:
        self.text = text
        self.stored = stored
        self.time = START
        self.jobs: dict[str, Pod] = {}
        """The pod of each job; a deleted one has the phase Deleted."""
        self.specs: dict[str, Job] = {}
        self.groups: dict[str, PodGroup] = {}
        self.nodes: dict[str, Node] = {}
        self.queues = {each.metadata.name: each for each in queues}
        self.evicted: list[str] = []
        self.nominated: dict[str, str] = {}
        """Nominated nodes by job."""
        self.reported: set[str] = set()
        """Uids of pods of which it was reported why they wait."""
        self._pods = 0
        self.world = self._new_world()

    def _new_world(self) -> SchedulerWorld:
        world = SchedulerWorld(self.text)
        world.time = self.time
        for name, value in CLASSES.items():
            world.cluster.update_priority_class(
                None, PriorityClass(metadata=ObjectMeta(name=name), value=value)
            )
        world.upsert(*self.queues.values(), *self.nodes.values())
        return world

    def restart(self) -> None:
        """A new scheduler finds what is stored."""
        phases = {name: gang.phase for name, gang in self._gangs()}
        self.world = self._new_world()
        for name, group in self.groups.items():
            status = msgspec.structs.replace(group.status, phase=phases.get(name, ""))
            self.groups[name] = msgspec.structs.replace(group, status=status)
            self.world.upsert(self.groups[name])
        self.world.upsert(*(it for it in self.jobs.values() if it.status.phase != "Deleted"))

    def _gangs(self) -> list[tuple[str, Any]]:
        return [(gang.name, gang) for gang in self.world.cluster.gangs.values()]

    def put_nodes(self, **cpus: int) -> None:
        """Create or update nodes."""
        for name, cpu in cpus.items():
            self.put_node(name, cpu=cpu)

    def put_node(self, name: str, *, cpu: int, cordoned: bool = False) -> None:
        """Create or update a node."""
        self.nodes[name] = node(name, cpu=cpu, cordoned=cordoned)
        self.world.upsert(self.nodes[name])

    def put_queue(self, name: str, **spec: Any) -> None:
        """Create or update a queue."""
        self.queues[name] = queue(name, **spec)
        self.world.upsert(self.queues[name])

    def submit(self, name: str, job: Job) -> None:
        """Create the pod of *job*, and its PodGroup if that is stored."""
        self.specs[name] = job
        self._pods += 1
        created = f"2026-01-01T{self._pods // 60:02}:{self._pods % 60:02}:00Z"
        marks = {"volcano.sh/preemptable": job.preemptable} if job.preemptable else {}
        group = podgroup(
            name,
            1,
            phase="",
            queue=job.queue,
            priority_class=job.priority_class,
            resources={"cpu": job.cpu, "pods": 1} if job.has_minimum else None,
            created=created,
        )
        meta = msgspec.structs.replace(group.metadata, uid=f"group-{self._pods}", annotations=marks)
        group = msgspec.structs.replace(group, metadata=meta)
        it = pod(f"{name}-t-0", name, cpu=job.cpu, priority=CLASSES.get(job.priority_class, 0))
        marks = {**it.metadata.annotations, **marks}
        it = with_metadata(
            it, uid=f"pod-{self._pods}", creation_timestamp=created, annotations=marks
        )
        if self.stored:
            self.groups[name] = group
            self.world.upsert(group)
        else:
            it = described(it, group)
        self.put(name, it)

    def put(self, name: str, it: Pod) -> None:
        """Update the pod of a job."""
        self.jobs[name] = it
        self.world.upsert(it)

    def names(self, *phases: str) -> list[str]:
        """Jobs whose pod has one of *phases*."""
        return [name for name, it in self.jobs.items() if it.status.phase in phases]

    def delete(self, name: str) -> None:
        """Remove the pod of a job, and the PodGroup that is stored."""
        self.world.remove(self.jobs[name])
        if self.stored:
            self.world.remove(self.groups.pop(name))
        self.nominated.pop(name, None)
        self.jobs[name] = with_status(self.jobs[name], phase="Deleted")

    def finish_termination(self) -> list[str]:
        """Remove the pods that terminate; return their jobs."""
        found = [
            name
            for name in self.names("Pending", "Running")
            if self.jobs[name].metadata.deletion_timestamp
        ]
        for name in found:
            self.delete(name)
        return found

    def keep(self, name: str) -> None:
        """Undo the eviction of a pod, as if it had not been sent."""
        self.put(name, with_metadata(self.jobs[name], deletion_timestamp=None))

    def cycle(self) -> Decision:
        """Run a cycle, and carry out what it decides."""
        self.time += 1
        self.world.time = self.time
        decision = self.world.decision(now=self.time)
        for each in decision.placements:
            name = _job_of(each.name)
            self.nominated.pop(name, None)
            self.put(name, with_status(on_node(self.jobs[name], each.node), nominated_node_name=""))
        for nomination in decision.nominations:
            name = _job_of(nomination.name)
            self.nominated[name] = nomination.node
            self.put(name, with_status(self.jobs[name], nominated_node_name=nomination.node))
        for eviction in decision.evictions:
            name = _job_of(eviction.name)
            self.evicted.append(name)
            self.put(name, with_metadata(self.jobs[name], deletion_timestamp=DELETED_AT))
        self.reported |= {each.uid for report in decision.reports for each in report.pod_conditions}
        return decision

    def unreported(self) -> list[str]:
        """Jobs that wait for a node, of which was not reported why."""
        return [
            name
            for name in self.names("Pending")
            if not self.jobs[name].spec.node_name
            and self.jobs[name].metadata.uid not in self.reported
        ]

    def phases(self) -> dict[str, str]:
        """Phases of the gangs that have an unfinished pod."""
        return {
            name: gang.phase
            for name, gang in self._gangs()
            if gang.podgroup is not None
            and any(task.status < TaskStatus.SUCCEEDED for task in gang.tasks.values())
        }

    def sums(self) -> dict[str, Any]:
        """What the queues have allocated and what is requested of them."""
        return {
            name: (each.allocated, each.requested, each.reserved, each.elastic)
            for name, each in self.world.cluster.queues.by_name.items()
        }


def _job_of(pod_name: str) -> str:
    return pod_name.removesuffix("-t-0")


def shown(decision: Decision) -> dict[str, Any]:
    """What a cycle has decided and reported, without what only a stored PodGroup has."""
    return {
        "placements": [(each.name, each.node) for each in decision.placements],
        "evictions": [(each.name, each.message) for each in decision.evictions],
        "nominations": [(each.name, each.node) for each in decision.nominations],
        "enqueued": [each.key for each in decision.enqueued],
        "conditions": {
            (each.name, each.reason, each.message)
            for report in decision.reports
            for each in report.pod_conditions
        },
        "why": {
            (report.key, report.why.encode())
            for report in decision.reports
            if report.why is not None and report.pod_conditions
        },
        "stats": decision.stats.queues,
    }
