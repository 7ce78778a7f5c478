"""Shapes: all that decides where a pod may go, once for all pods that agree in it.

The pods of a gang mostly come from one template, so filters and scores are worked out for a shape
and not for a pod. A name, an environment or an owner makes no difference; a request, a selector,
an affinity or a toleration does.
"""

import msgspec

from .core_types import NodeSelector, PodSpec, PreferredSchedulingTerm, Toleration
from .resources import Amounts, IntVector, ResourceIndex, pod_request

_MAX_ENTRIES = 20_000
"""Shapes remembered; beyond that all are forgotten, which costs time but nothing else."""


class EquivalenceClass:
    """What pods of one kind ask of a node; made by a :class:`EquivalenceCache`, compared by
    identity."""

    __slots__ = (
        "_request_vector",
        "best_effort",
        "constraints_key",
        "node_selector",
        "preferred",
        "request",
        "required",
        "tolerations",
    )

    def __init__(self, spec: PodSpec, request: Amounts, constraints_key: bytes) -> None:
        """Keep what *spec* says of nodes; *static* names all of it but the request."""
        self.request = request
        self.constraints_key = constraints_key
        self.best_effort = all(name == "pods" or not units for name, units in request.items())
        self.tolerations: tuple[Toleration, ...] = spec.tolerations
        self.node_selector = spec.node_selector
        affinity = spec.affinity.node_affinity if spec.affinity else None
        self.required: NodeSelector | None = (
            affinity.required_during_scheduling_ignored_during_execution if affinity else None
        )
        self.preferred: tuple[PreferredSchedulingTerm, ...] = (
            affinity.preferred_during_scheduling_ignored_during_execution if affinity else ()
        )
        self._request_vector: IntVector | None = None

    def request_vector(self, resource_index: ResourceIndex) -> IntVector:
        """The request over all of *dimensions*."""
        if self._request_vector is None:
            self._request_vector = resource_index.vector(self.request)
        if len(self._request_vector) != len(resource_index):
            self._request_vector = resource_index.padded(self._request_vector)
        return self._request_vector


class EquivalenceCache:
    """Hands out one :class:`EquivalenceClass` for all pods that are alike."""

    def __init__(self) -> None:
        """Start empty."""
        self._by_spec: dict[bytes, EquivalenceClass] = {}
        self._by_constraints: dict[tuple[bytes, tuple[tuple[str, int], ...]], EquivalenceClass] = {}
        self._encode = msgspec.json.Encoder().encode

    def get(self, spec: PodSpec) -> EquivalenceClass:
        """The shape of a pod with *spec*."""
        key = self._encode(
            (
                spec.containers,
                spec.init_containers,
                spec.overhead,
                spec.node_selector,
                spec.affinity,
                spec.tolerations,
            )
        )
        eq_class = self._by_spec.get(key)
        if eq_class is None:
            if len(self._by_spec) >= _MAX_ENTRIES:
                self._by_spec.clear()
                self._by_constraints.clear()
            eq_class = self._by_spec[key] = self._get_or_create(spec)
        return eq_class

    def __len__(self) -> int:
        return len(self._by_constraints)

    def _get_or_create(self, spec: PodSpec) -> EquivalenceClass:
        request = pod_request(spec)
        constraints_key = self._encode((spec.node_selector, spec.affinity, spec.tolerations))
        key = (constraints_key, tuple(sorted(request.items())))
        eq_class = self._by_constraints.get(key)
        if eq_class is None:
            eq_class = self._by_constraints[key] = EquivalenceClass(spec, request, constraints_key)
        return eq_class
