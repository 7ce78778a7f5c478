"""Shapes: all that decides where a pod may go, once for all pods that agree in it.

The pods of a gang mostly come from one template, so filters and scores are worked out for a shape
and not for a pod. A name, an environment or an owner makes no difference; a request, a selector,
an affinity or a toleration does.
"""

import msgspec

from .core_types import NodeTerms, PodSpec, PreferredTerm, Toleration
from .resources import Amounts, Dimensions, IntVector, pod_request

_MOST = 20_000
"""Shapes remembered; beyond that all are forgotten, which costs time but nothing else."""


class Shape:
    """What pods of one kind ask of a node; made by a :class:`ShapeBook`, compared by identity."""

    __slots__ = (
        "_vector",
        "best_effort",
        "node_selector",
        "preferred",
        "request",
        "required",
        "static",
        "tolerations",
    )

    def __init__(self, spec: PodSpec, request: Amounts, static: bytes) -> None:
        """Keep what *spec* says of nodes; *static* names all of it but the request."""
        self.request = request
        self.static = static
        self.best_effort = all(name == "pods" or not units for name, units in request.items())
        self.tolerations: tuple[Toleration, ...] = spec.tolerations
        self.node_selector = spec.node_selector
        affinity = spec.affinity.node_affinity if spec.affinity else None
        self.required: NodeTerms | None = (
            affinity.required_during_scheduling_ignored_during_execution if affinity else None
        )
        self.preferred: tuple[PreferredTerm, ...] = (
            affinity.preferred_during_scheduling_ignored_during_execution if affinity else ()
        )
        self._vector: IntVector | None = None

    def vector(self, dimensions: Dimensions) -> IntVector:
        """The request over all of *dimensions*."""
        if self._vector is None:
            self._vector = dimensions.vector(self.request)
        if len(self._vector) != len(dimensions):
            self._vector = dimensions.full(self._vector)
        return self._vector


class ShapeBook:
    """Hands out one :class:`Shape` for all pods that are alike."""

    def __init__(self) -> None:
        """Start empty."""
        self._by_spec: dict[bytes, Shape] = {}
        self._by_meaning: dict[tuple[bytes, tuple[tuple[str, int], ...]], Shape] = {}
        self._encode = msgspec.json.Encoder().encode

    def of(self, spec: PodSpec) -> Shape:
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
        shape = self._by_spec.get(key)
        if shape is None:
            if len(self._by_spec) >= _MOST:
                self._by_spec.clear()
                self._by_meaning.clear()
            shape = self._by_spec[key] = self._meant(spec)
        return shape

    def __len__(self) -> int:
        return len(self._by_meaning)

    def _meant(self, spec: PodSpec) -> Shape:
        request = pod_request(spec)
        static = self._encode((spec.node_selector, spec.affinity, spec.tolerations))
        meaning = (static, tuple(sorted(request.items())))
        shape = self._by_meaning.get(meaning)
        if shape is None:
            shape = self._by_meaning[meaning] = Shape(spec, request, static)
        return shape
