"""Topology spread constraints of pods that have none, as kube-scheduler's PodTopologySpreadArgs.

They are about the pods that belong together: those that the Services of a pod and its controller
select. A pod without either has no such constraints.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ....model.base import ApiStruct
from ....model.meta import LabelSelector, ObjectMeta
from ....model.selectors import Operator, Requirement, Selector, SelectorError, from_label_selector
from ..core_types import Pod, TopologySpreadConstraint


class ServiceSpec(ApiStruct, frozen=True):
    """Which pods a Service or a ReplicationController selects: those with all labels."""

    selector: dict[str, str] = {}


class LabelOwner(ApiStruct, frozen=True):
    """A Service or a ReplicationController."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceSpec = ServiceSpec()


class ReplicaSetSpec(ApiStruct, frozen=True):
    """Which pods a ReplicaSet or a StatefulSet selects."""

    selector: LabelSelector | None = None


class SelectorOwner(ApiStruct, frozen=True):
    """A ReplicaSet or a StatefulSet."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicaSetSpec = ReplicaSetSpec()


PodOwner = LabelOwner | SelectorOwner

SYSTEM_DEFAULTS = (
    TopologySpreadConstraint(
        topology_key="kubernetes.io/hostname", max_skew=3, when_unsatisfiable="ScheduleAnyway"
    ),
    TopologySpreadConstraint(
        topology_key="topology.kubernetes.io/zone", max_skew=5, when_unsatisfiable="ScheduleAnyway"
    ),
)
"""The constraints with the type System, which concern nodes that lack one of the labels, too."""


@dataclass(frozen=True, slots=True)
class DefaultSpread:
    """What is configured."""

    constraints: tuple[TopologySpreadConstraint, ...]
    is_system: bool = False


@dataclass(frozen=True, slots=True)
class DefaultTerms:
    """The constraints of one pod."""

    spread: DefaultSpread
    selector: Selector

    @property
    def key(self) -> str:
        """What determines them."""
        return f"{self.spread} {self.selector}"


class DefaultConstraints:
    """The default constraints of pods, and the objects that select pods."""

    def __init__(self) -> None:
        """Start without constraints, and without objects."""
        self.spread: DefaultSpread | None = None
        self._services: dict[str, dict[str, LabelOwner]] = {}
        """By namespace and name."""
        self._controllers: dict[tuple[str, str, str], PodOwner] = {}
        """By kind, namespace and name."""

    def update(self, kind: str, old: PodOwner | None, new: PodOwner | None) -> None:
        """Add, update or delete an object of *kind*."""
        meta = (new or old or LabelOwner()).metadata
        if kind == "Service":
            services = self._services.setdefault(meta.namespace, {})
            services.pop(meta.name, None)
            if isinstance(new, LabelOwner):
                services[meta.name] = new
            return
        key = (kind, meta.namespace, meta.name)
        self._controllers.pop(key, None)
        if new is not None:
            self._controllers[key] = new

    def of(self, pod: Pod) -> DefaultTerms | None:
        """Return the default constraints of *pod*, ``None`` if it has none."""
        if self.spread is None or pod.spec.topology_spread_constraints:
            return None
        selector = self._selector(pod)
        return DefaultTerms(self.spread, selector) if selector.requirements else None

    def _selector(self, pod: Pod) -> Selector:
        meta = pod.metadata
        labels: dict[str, str] = {}
        for service in self._services.get(meta.namespace, {}).values():
            selected = service.spec.selector
            if selected and selected.items() <= meta.labels.items():
                labels |= selected
        requirements: tuple[Requirement, ...] = ()
        if (controller := meta.controller) is not None:
            owner = self._controllers.get((controller.kind, meta.namespace, controller.name))
            if isinstance(owner, LabelOwner):
                labels |= owner.spec.selector
            elif owner is not None:
                requirements = _requirements(owner)
        own = _equal(labels)
        return Selector(tuple(sorted({*own, *requirements}, key=str)))


def _equal(labels: Mapping[str, str]) -> list[Requirement]:
    return [Requirement(key, Operator.IN, frozenset((value,))) for key, value in labels.items()]


def _requirements(owner: SelectorOwner) -> tuple[Requirement, ...]:
    try:
        return from_label_selector(owner.spec.selector).requirements
    except SelectorError:  # a validating API server rejects such an object
        return ()
