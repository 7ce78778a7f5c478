"""Simulated pods, and their resizes: a node has what it reports, and applies it at once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ....model.meta import ResourceList
from ..state import resizes
from ..state.core_types import Pod
from ..state.status import PodState, Resized, ResizeReviewed
from .plan import SimulationPlan


@dataclass(slots=True)
class SimulatedPod:
    """One simulated pod."""

    pod: Pod
    """With its allocated resources."""

    state: PodState
    plan: SimulationPlan
    starting: set[str] = field(default_factory=set)
    stopping: dict[str, datetime] = field(default_factory=dict)
    queued: bool = False
    writing: bool = False
    finished: bool = False
    failures: int = 0
    desired: Pod | None = None
    """The pod as the API server has it; ``None`` for a new one."""

    last_status: PodState | None = None
    """The last written state."""


class SimulatedResizer:
    """Allocates resources that the specs of simulated pods ask for.

    *records* are the pods by uid, *allocatable* is that of each node. *handle* handles an event of
    a pod; *restart* stops a container so that it starts again.
    """

    def __init__(
        self,
        records: Mapping[str, SimulatedPod],
        allocatable: Mapping[str, ResourceList],
        *,
        handle: Callable[[SimulatedPod, Resized | ResizeReviewed], None],
        restart: Callable[[SimulatedPod, str], None],
    ) -> None:
        self._records = records
        self._allocatable = allocatable
        self._handle = handle
        self._restart = restart
        self._deferred: set[str] = set()

    def update(self, record: SimulatedPod, desired: Pod) -> None:
        """Handle a new version of a pod."""
        known = record.desired is not None
        allocation = (
            resizes.allocation_of(record.pod) if known else resizes.allocation_from_status(desired)
        )
        record.desired = desired
        record.pod = resizes.with_allocation(desired, allocation)
        if record.pod is not desired or record.state.resize_rejection is not None:
            self._review(record, desired)
        if not known:
            self._apply(record)  # what an earlier agent has not applied

    def review_deferred(self, node: str) -> None:
        """Allocate what has become free on a node."""
        if not self._deferred:
            return
        found = [each for uid in self._deferred if (each := self._records.get(uid)) is not None]
        waiting = [each for each in found if each.pod.spec.node_name == node]
        for record in sorted(waiting, key=lambda each: resizes.resize_order(each.pod)):
            if record.desired is not None:
                self._review(record, record.desired)

    def _review(self, record: SimulatedPod, desired: Pod) -> None:
        uid, node = desired.metadata.uid, desired.spec.node_name
        if record.state.termination is not None or desired.is_terminal:
            self._deferred.discard(uid)
            return
        rejection = None
        if record.pod is not desired:
            others = [
                each.pod
                for each in self._records.values()
                if each.pod.spec.node_name == node and each is not record and not each.finished
            ]
            rejection = resizes.find_rejection(desired, others, self._allocatable[node])
        is_deferred = rejection is not None and rejection.reason == resizes.DEFERRED
        (self._deferred.add if is_deferred else self._deferred.discard)(uid)
        if rejection != record.state.resize_rejection:
            self._handle(record, ResizeReviewed(rejection))
        if rejection is None and record.pod is not desired:
            record.pod = desired
            self._apply(record)
            self.review_deferred(node)

    def _apply(self, record: SimulatedPod) -> None:
        spec = record.pod.spec
        for each in (*spec.init_containers, *spec.containers):
            known = record.state.of(each.name)
            if not known.running or known.resources is None:
                continue
            if resizes.needs_restart(each, known.resources):
                self._restart(record, each.name)
            elif not resizes.is_equal(known.resources, each.resources):
                self._handle(record, Resized(each.name, each.resources))
