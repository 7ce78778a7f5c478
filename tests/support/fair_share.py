"""A cluster with the plugin ``fairshare``, whose time a test advances."""

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from batholith.model import names, times
from batholith.model.podgroup import PodGroup
from batholith.model.queue import Queue
from batholith.scheduler.framework.decision import Decision
from batholith.scheduler.state.core_types import Pod
from batholith.scheduler.state.past_usage.decayed_sums import Key

from .scheduler import SchedulerWorld, node, pod, podgroup, queue

CONFIGURATION = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: fairshare
    arguments:
      half-life: 1h
      interval: 1s
- plugins:
  - name: drf
  - name: predicates
  - name: nodeorder
"""

HALF_LIFE = 3600.0
START = datetime(2026, 1, 5, tzinfo=UTC).timestamp()


def annotated_queue(name: str, *, parent: str = "", weight: int = 1, **annotations: str) -> Queue:
    """A queue with Batholith's annotations, ``_`` for ``-``."""
    found = queue(name, weight=weight)
    prefixed = {f"batholith.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    metadata = msgspec.structs.replace(found.metadata, annotations=prefixed)
    spec = msgspec.structs.replace(found.spec, parent=parent)
    return msgspec.structs.replace(found, metadata=metadata, spec=spec)


class FairWorld(SchedulerWorld):
    """Gangs of one pod on one node; the clocks are those that the test sets."""

    def __init__(self, text: str = CONFIGURATION, *, cpus: int = 4) -> None:
        super().__init__(text)
        self.now = 0.0
        """Monotonic time."""
        self.time: float = START
        self.running: dict[str, Pod] = {}
        if cpus:
            self.upsert(node("n", cpu=cpus, memory="64Gi"))

    def submit(
        self,
        name: str,
        user: str = "",
        *,
        queue: str = "default",
        cpu: int = 1,
        minimum: int = 1,
        limit: str = "",
        priority_class: str = "",
        created: str = "2026-01-01T00:00:00Z",
    ) -> None:
        """Submit a gang of one pod."""
        found: PodGroup = podgroup(
            name, minimum, queue=queue, priority_class=priority_class, created=created
        )
        texts = {names.SUBMITTED_BY: user, names.TIME_LIMIT: limit}
        annotations = {name: text for name, text in texts.items() if text}
        if annotations:
            metadata = msgspec.structs.replace(found.metadata, annotations=annotations)
            found = msgspec.structs.replace(found, metadata=metadata)
        self.upsert(found, pod(f"{name}-0", name, cpu=cpu))

    def submit_pod(self, name: str, group: str) -> None:
        """Add a pod of one CPU to a gang."""
        self.upsert(pod(name, group))

    def cycle(self) -> list[str]:
        """Run a cycle, start what it has allocated, and return the names of those gangs."""
        return self.start(self.run())

    def run(self) -> Decision:
        """Run a cycle."""
        decision = self.core.run_once(now=self.now, time=self.time)
        self.validate()
        return decision

    def start(self, decision: Decision) -> list[str]:
        """Start the pods that *decision* has allocated."""
        allocated = [each.name.removesuffix("-0") for each in decision.placements]
        for name in allocated:
            self.run_pod(name)
        return allocated

    def run_pod(self, name: str) -> None:
        """Let the pod of a gang run from now on."""
        before = self.pod_objects[f"uid-{name}-0"]
        spec = msgspec.structs.replace(before.spec, node_name="n")
        started = times.format(datetime.fromtimestamp(self.time, UTC))
        status = msgspec.structs.replace(before.status, phase="Running", start_time=started)
        self.running[name] = msgspec.structs.replace(before, spec=spec, status=status)
        self.upsert(self.running[name])

    def end(self, gangs: Iterable[str]) -> None:
        """Let gangs finish, and delete them."""
        for name in list(gangs):
            self.remove(self.running.pop(name))
            podgroup = self.cluster.gangs[f"ns/{name}"].podgroup
            if podgroup is not None:
                self.remove(podgroup)

    def advance(self, seconds: float) -> None:
        """Let both clocks advance."""
        self.now += seconds
        self.time += seconds

    def used(self, resource: str = "cpu") -> dict[Key, float]:
        """What has been used until now, in thousandths times seconds for CPU."""
        snapshot = self.cluster.past_usage.snapshot
        if snapshot is None or resource not in snapshot.resources:
            return {}
        used = snapshot.used_at(self.now)[:, snapshot.resources.index(resource)]
        return dict(zip(snapshot.keys, used.tolist(), strict=True))
