"""Equivalence classes: pods with equal requests and node constraints.

The pods of a gang mostly have one template, so filters and scores are computed for an equivalence
class and not for a pod. Requests, host ports, node selector, affinity and tolerations count, and
fields that are not supported; name, environment and owner do not.
"""

import msgspec

from .core_types import NodeSelector, PodSpec, PreferredSchedulingTerm, Toleration
from .host_ports import HostPort, host_ports
from .pod_traits import NO_TRAITS, PodTraits
from .resources import Amounts, IntVector, ResourceIndex, pod_request
from .unsupported_fields import UnsupportedField, exclusive_disks, unsupported_fields

_MAX_ENTRIES = 20_000
"""Classes kept; beyond that all are dropped and created again, which only costs time."""


_Key = tuple[bytes, tuple[tuple[str, int], ...], tuple[HostPort, ...], tuple[UnsupportedField, ...]]
"""What determines a class: constraints, request, host ports, unsupported fields."""


class EquivalenceClass:
    """Requests and node constraints of equivalent pods.

    Created by an :class:`EquivalenceCache`, and compared by identity.
    """

    __slots__ = (
        "_request_vector",
        "_with_traits",
        "_without_traits",
        "best_effort",
        "constraints_key",
        "host_ports",
        "node_selector",
        "preferred",
        "request",
        "required",
        "tolerations",
        "traits",
        "unsupported_fields",
    )

    def __init__(
        self,
        spec: PodSpec,
        request: Amounts,
        constraints_key: bytes,
        *,
        ports: tuple[HostPort, ...] = (),
        unsupported: tuple[UnsupportedField, ...] = (),
    ) -> None:
        """Keep the constraints of *spec*; *constraints_key* identifies them without the request."""
        self.request = request
        self.constraints_key = constraints_key
        self.host_ports = ports
        self.unsupported_fields = unsupported
        """Fields for which the pods are unschedulable."""
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
        self.traits = NO_TRAITS
        """What plugins see of the pods beside their spec."""
        self._without_traits: EquivalenceClass = self
        self._with_traits: dict[PodTraits, EquivalenceClass] | None = None
        self._request_vector: IntVector | None = None

    def with_traits(self, traits: PodTraits) -> "EquivalenceClass":
        """Return the class of pods that differ only in their *traits*."""
        base = self._without_traits
        if traits == NO_TRAITS:
            return base
        if base._with_traits is None:
            base._with_traits = {}
        found = base._with_traits.get(traits)
        if found is None:
            found = base._with_traits[traits] = base._copy(traits)
        return found

    def _copy(self, traits: PodTraits) -> "EquivalenceClass":
        copy = object.__new__(EquivalenceClass)
        for name in EquivalenceClass.__slots__:
            setattr(copy, name, getattr(self, name))
        copy.traits = traits
        copy.constraints_key = self.constraints_key + msgspec.json.encode(traits)
        copy._with_traits = None
        return copy

    def request_vector(self, resource_index: ResourceIndex) -> IntVector:
        """Return the request as a vector of *resource_index*."""
        if self._request_vector is None:
            self._request_vector = resource_index.vector(self.request)
        if len(self._request_vector) != len(resource_index):
            self._request_vector = resource_index.padded(self._request_vector)
        return self._request_vector


class EquivalenceCache:
    """One :class:`EquivalenceClass` for all equivalent pods."""

    def __init__(self) -> None:
        """Start empty."""
        self._by_spec: dict[bytes, EquivalenceClass] = {}
        self._by_constraints: dict[_Key, EquivalenceClass] = {}
        self._encode = msgspec.json.Encoder().encode

    def get(self, spec: PodSpec) -> EquivalenceClass:
        """Return the equivalence class of a pod with *spec*."""
        key = self._encode(
            (
                spec.containers,
                spec.init_containers,
                spec.overhead,
                spec.node_selector,
                spec.affinity,
                spec.tolerations,
                spec.resources,
                spec.topology_spread_constraints,
                spec.resource_claims,
                spec.scheduling_group,
                tuple(exclusive_disks(spec)) if spec.volumes else (),
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
        affinity = spec.affinity.node_affinity if spec.affinity else None
        constraints_key = self._encode((spec.node_selector, affinity, spec.tolerations))
        ports, unsupported = host_ports(spec), unsupported_fields(spec)
        key = (constraints_key, tuple(sorted(request.items())), ports, unsupported)
        eq_class = self._by_constraints.get(key)
        if eq_class is None:
            eq_class = self._by_constraints[key] = EquivalenceClass(
                spec, request, constraints_key, ports=ports, unsupported=unsupported
            )
        return eq_class
