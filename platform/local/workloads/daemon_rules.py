"""What a DaemonSet does next: a pure function of it, its pods and the nodes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from ...machinery.reconcile.controller import RequeueAfter
from ...model.base import ApiStruct
from ...model.meta import LabelSelector, ObjectMeta
from ...model.names import TEMPLATE_GENERATION
from ...model.selectors import Selector, from_label_selector
from .deployment_types import scaled
from .node_rules import Fit, Node, fit, pinned_node
from .revisions import REVISION_LABEL, DeleteRevision, Revision
from .types import Json, Pod, WriteStatus, next_available_in

TEMPLATE_GENERATION_LABEL = "pod-template-generation"

BURST_REPLICAS = 250
"""Pods that one pass creates or deletes at most."""

_ZEROS = (
    "currentNumberScheduled",
    "desiredNumberScheduled",
    "numberMisscheduled",
    "numberReady",
)
"""Counts that are written even if they are zero."""


class RollingUpdate(ApiStruct, frozen=True):
    """Limits of a rolling update; percentages are of the pods."""

    max_unavailable: int | str = 1
    max_surge: int | str = 0


class UpdateStrategy(ApiStruct, frozen=True):
    """``spec.updateStrategy``."""

    type: str = "RollingUpdate"
    rolling_update: RollingUpdate | None = None


class DaemonSetSpec(ApiStruct, frozen=True):
    """``spec`` of a DaemonSet."""

    selector: LabelSelector | None = None
    template: msgspec.Raw = msgspec.Raw(b"{}")
    update_strategy: UpdateStrategy = UpdateStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None


class DaemonSet(ApiStruct, frozen=True):
    """A DaemonSet."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DaemonSetSpec = DaemonSetSpec()
    status: Json = {}

    @property
    def selector(self) -> Selector:
        """The selector of its pods."""
        return from_label_selector(self.spec.selector)

    @property
    def template_generation(self) -> str:
        """The generation of the template; empty if the API server does not set it."""
        return self.metadata.annotations.get(TEMPLATE_GENERATION, "")

    @property
    def rolling(self) -> RollingUpdate:
        """The limits of its rolling updates."""
        return self.spec.update_strategy.rolling_update or RollingUpdate()


@dataclass(slots=True)
class DaemonView:
    """A DaemonSet, its pods and the nodes."""

    found: DaemonSet
    pods: Sequence[Pod]
    """All that it controls."""
    nodes: Sequence[Node]
    template: Json
    hash: str
    """Hash of the current template."""
    expired: Sequence[Revision]
    """Revisions beyond the limit of the history."""
    now: float
    """Seconds since the epoch."""
    collisions: int | None = None
    fits: Mapping[str, Fit] = field(default_factory=dict)
    """By node."""

    def __post_init__(self) -> None:
        """Compute where pods run."""
        spec = self.template.get("spec") or {}
        self.fits = {node.metadata.name: fit(spec, node) for node in self.nodes}

    def by_node(self) -> dict[str, list[Pod]]:
        """Return the pods by their node, the oldest first."""
        found: dict[str, list[Pod]] = {}
        for pod in sorted(self.pods, key=_age):
            found.setdefault(node_of(pod), []).append(pod)
        return found

    def is_current(self, pod: Pod) -> bool:
        """Whether *pod* is of the current template, by its hash or the generation."""
        labels, generation = pod.metadata.labels, self.found.template_generation
        same_generation = labels.get(TEMPLATE_GENERATION_LABEL) == generation != ""
        return same_generation or labels.get(REVISION_LABEL) == self.hash

    def is_available(self, pod: Pod) -> bool:
        """Whether *pod* has been ready for long enough."""
        seconds = self.found.spec.min_ready_seconds
        return not pod.is_terminating and pod.is_available(seconds, self.now)

    def limits(self) -> tuple[int, int]:
        """Return how many pods more there may be in an update, and how many unavailable ones."""
        desired = sum(each.runs for each in self.fits.values())
        rolling = self.found.rolling
        surge = scaled(rolling.max_surge, desired, up=True)
        unavailable = scaled(rolling.max_unavailable, desired, up=True)
        return surge, unavailable if surge or unavailable else 1


def _age(pod: Pod) -> tuple[str, str]:
    return pod.metadata.creation_timestamp or "", pod.metadata.name


def node_of(pod: Pod) -> str:
    """Return the node of a pod, or the one to which it will be bound."""
    return pod.spec.node_name or pinned_node(pod.spec.affinity)


@dataclass(frozen=True, slots=True)
class CreatePods:
    """Nodes that need a pod."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeletePods:
    """Pods to delete."""

    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class ReplaceEnded:
    """Pods that have ended, and are created again after a delay."""

    pods: tuple[Pod, ...]


DaemonEffect = CreatePods | DeletePods | ReplaceEnded | WriteStatus | DeleteRevision | RequeueAfter


def decide(view: DaemonView) -> Iterator[DaemonEffect]:
    """Yield the writes that are due; after one of pods, another pass decides what follows."""
    found = view.found
    if found.metadata.deletion_timestamp is None:
        steps = list(_manage(view))
        if not steps and found.spec.update_strategy.type == "RollingUpdate":
            steps = list(_update(view))
        yield from steps
        if any(not isinstance(each, ReplaceEnded) for each in steps):
            return
    status = status_of(view)
    current = {key: value for key, value in found.status.items() if value or key in _ZEROS}
    if status != current:
        yield WriteStatus(status)
    yield from (DeleteRevision(each) for each in view.expired)
    wait = next_available_in(view.pods, found.spec.min_ready_seconds, view.now)
    if wait is not None:
        yield RequeueAfter(wait)


def _manage(view: DaemonView) -> Iterator[DaemonEffect]:
    """Yield the pods that nodes lack, have too many of, or may not have."""
    by_node, surge = view.by_node(), view.limits()[0]
    needed = [name for name, each in view.fits.items() if each.runs and name not in by_node]
    surplus: list[Pod] = []
    ended: list[Pod] = []
    for name, pods in by_node.items():
        alive = [pod for pod in pods if not pod.is_terminating]
        if not view.fits.get(name, Fit(False, False)).stays:
            surplus += alive
            continue
        ended += (pod for pod in alive if pod.is_finished)
        surplus += _surplus(view, [pod for pod in alive if not pod.is_finished], surge=surge)
    if ended:
        yield ReplaceEnded(tuple(ended))
    if surplus:
        yield DeletePods(tuple(surplus[:BURST_REPLICAS]))
    if needed:
        yield CreatePods(tuple(needed[:BURST_REPLICAS]))


def _surplus(view: DaemonView, running: Sequence[Pod], *, surge: int) -> list[Pod]:
    """Return the pods of a node beyond the oldest, or with a surge beyond one per template."""
    if not surge:
        return list(running[1:])
    current = [pod for pod in running if view.is_current(pod)]
    former = [pod for pod in running if not view.is_current(pod)]
    return [*current[1:], *former[1:]]


def _update(view: DaemonView) -> Iterator[DaemonEffect]:
    surge, unavailable = view.limits()
    pairs = {
        name: (
            next((pod for pod in pods if view.is_current(pod)), None),
            next((pod for pod in pods if not view.is_current(pod)), None),
        )
        for name, pods in view.by_node().items()
        if view.fits.get(name, Fit(False, False)).runs
    }
    yield from _surging(view, pairs, surge) if surge else _replacing(view, pairs, unavailable)


Pairs = Mapping[str, tuple[Pod | None, Pod | None]]
"""The pod of the current template, and one of another, by node."""


def _replacing(view: DaemonView, pairs: Pairs, limit: int) -> Iterator[DaemonEffect]:
    """Yield the old pods that may be deleted: those that are unavailable, others to the limit."""
    nodes_without = sum(each.runs for each in view.fits.values()) - len(pairs)
    unavailable, useless, candidates = nodes_without, list[Pod](), list[Pod]()
    for new, old in pairs.values():
        pod = new or old
        if pod is None or not view.is_available(pod):
            unavailable += 1
        if new is None and old is not None and not old.is_terminating:
            (candidates if view.is_available(old) else useless).append(old)
    chosen = [*useless, *candidates[: max(limit - unavailable, 0)]]
    if chosen:
        yield DeletePods(tuple(chosen[:BURST_REPLICAS]))


def _surging(view: DaemonView, pairs: Pairs, limit: int) -> Iterator[DaemonEffect]:
    """Yield the old pods whose successors are available, and nodes that get one in addition."""
    replaced, needed, candidates, surging = list[Pod](), list[str](), list[str](), 0
    for name, (new, old) in pairs.items():
        if old is None:
            continue
        if new is not None:
            surging += 1
            if view.is_available(new) and not old.is_terminating:
                replaced.append(old)
        elif not old.is_terminating:
            (candidates if view.is_available(old) else needed).append(name)
    chosen = [*needed, *candidates[: max(limit - surging, 0)]]
    if replaced:
        yield DeletePods(tuple(replaced[:BURST_REPLICAS]))
    if chosen:
        yield CreatePods(tuple(chosen[:BURST_REPLICAS]))


def status_of(view: DaemonView) -> Json:
    """Return the status that the pods require."""
    by_node = view.by_node()
    running = [name for name, each in view.fits.items() if each.runs]
    oldest = [by_node[name][0] for name in running if name in by_node]
    scheduled_elsewhere = [
        name for name in by_node if name in view.fits and not view.fits[name].runs
    ]
    seconds = view.found.spec.min_ready_seconds
    available = sum(pod.is_available(seconds, view.now) for pod in oldest)
    status: Json = {
        "observedGeneration": view.found.metadata.generation,
        "currentNumberScheduled": len(oldest),
        "desiredNumberScheduled": len(running),
        "numberMisscheduled": len(scheduled_elsewhere),
        "numberReady": sum(pod.is_ready for pod in oldest),
        "updatedNumberScheduled": sum(view.is_current(pod) for pod in oldest),
        "numberAvailable": available,
        "numberUnavailable": len(running) - available,
        "collisionCount": view.collisions or 0,
    }
    return {key: value for key, value in status.items() if value or key in _ZEROS}
