"""Equivalence classes: pods with equal requests and node constraints.

The pods of a gang mostly have one template, so filters and scores are computed for an equivalence
class and not for a pod. Requests, host ports, node selector, affinity, tolerations and terms on
other pods count, and fields that are not supported; name, environment and owner do not. Labels
count as far as they are seen: by which selectors in use match the pod.
"""

from collections.abc import Iterator
from weakref import WeakValueDictionary

import msgspec

from ....model.node_selectors import NodeSelector
from ....model.selectors import SelectorError
from ..core_types import Pod, PodSpec, PreferredSchedulingTerm, Toleration
from ..resources import Amounts, IntVector, ResourceIndex, pod_request
from .declared_fields import FieldValues
from .default_spread import DefaultConstraints, DefaultTerms
from .device_claims import used_claims
from .device_requirements import NO_DEVICES, DeviceRequirements
from .extended_resources import extended_uses
from .host_ports import HostPort, host_ports
from .images import pod_images
from .pod_terms import NO_TERMS, PodTerms, TermCompiler, has_terms, label_keys
from .pod_topology import NOT_MATCHED, KnownPod, MatchedBy, PodTopology, TermFootprint
from .pod_traits import NO_TRAITS, PodTraits
from .resizes import charged_spec
from .unsupported_fields import UnsupportedField, exclusive_disks, unsupported_fields
from .volumes import NO_VOLUMES, VolumeRequirements, mounted_pvcs

MAX_ENTRIES = 20_000
"""Classes kept; beyond that all are dropped and created again, which only costs time."""


_Key = tuple[
    bytes,
    tuple[tuple[str, int], ...],
    tuple[HostPort, ...],
    tuple[UnsupportedField, ...],
    PodTerms,
    tuple[str, ...],
    int,
]
"""What determines a class: constraints, request, host ports, unsupported fields, terms, images,
number of containers."""


_encode = msgspec.json.Encoder(order="deterministic").encode


class EquivalenceClass:
    """Requests, node constraints and terms of equivalent pods.

    Created by an :class:`EquivalenceCache`, and compared by identity. Classes of pods with
    equal specs are *variants* of one: they differ in traits, in the selectors that match the pods,
    in volumes, or in devices.
    """

    __slots__ = (
        "__weakref__",
        "_base",
        "_request_vector",
        "_variants",
        "best_effort",
        "constraints_key",
        "container_count",
        "devices",
        "footprint",
        "host_ports",
        "images",
        "matched_by",
        "node_selector",
        "preferred",
        "request",
        "required",
        "terms",
        "tolerations",
        "traits",
        "unsupported_fields",
        "volumes",
    )

    def __init__(
        self,
        spec: PodSpec,
        request: Amounts,
        constraints_key: bytes,
        *,
        ports: tuple[HostPort, ...] = (),
        unsupported: tuple[UnsupportedField, ...] = (),
        terms: PodTerms = NO_TERMS,
        images: tuple[str, ...] = (),
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
        self.images = images
        self.container_count = len(spec.containers) + len(spec.init_containers)
        self.terms = terms
        """Terms of the pods on other pods."""
        self.traits = NO_TRAITS
        """What plugins see of the pods in addition to their spec."""
        self.matched_by = NOT_MATCHED
        """Selectors in use that match the pods."""
        self.footprint = TermFootprint(NOT_MATCHED, terms)
        self._request_vector: IntVector | None = None
        self.volumes = NO_VOLUMES
        """What the volumes of the pods require."""
        self.devices = NO_DEVICES
        """What the claims of devices of the pods require."""
        self._base: EquivalenceClass = self
        self._variants: _Variants | None = None

    def variant(
        self,
        *,
        traits: PodTraits | None = None,
        matched_by: MatchedBy | None = None,
        volumes: VolumeRequirements | None = None,
        devices: DeviceRequirements | None = None,
    ) -> "EquivalenceClass":
        """Return the class of pods that differ from these only in the given properties."""
        base = self._base
        key = (
            self.traits if traits is None else traits,
            self.matched_by if matched_by is None else matched_by,
            self.volumes if volumes is None else volumes,
            self.devices if devices is None else devices,
        )
        if key == (self.traits, self.matched_by, self.volumes, self.devices):
            return self
        if key == (base.traits, base.matched_by, base.volumes, base.devices):
            return base
        if base._variants is None:
            base._variants = WeakValueDictionary()
        found = base._variants.get(key)
        if found is None:
            found = base._variants[key] = base._copy(*key)
        return found

    def has_base(self, other: "EquivalenceClass") -> bool:
        """Return whether the pods differ from those of *other* at most by their variant."""
        return self._base is other._base

    @property
    def fields(self) -> FieldValues:
        """What plugins have declared of the pods, see :meth:`.PodFields.of`."""
        return self.traits.fields

    @property
    def sees_pods(self) -> bool:
        """Whether filters or scores may depend on pods on other nodes."""
        return bool(
            self.matched_by
            or self.terms != NO_TERMS
            or self.volumes.depend_on_pods
            or self.traits.group_limits[0]
            or self.devices.pending
        )

    @property
    def is_awaited(self) -> bool:
        """Whether another pod may be schedulable once such a pod has a node."""
        return any(each.awaited_by for each in self.matched_by)

    @property
    def affects_itself(self) -> bool:
        """Whether a pod on a node changes which nodes filters permit for the next such pod."""
        return bool(
            self.volumes.exclusive_claims
            or self.volumes.delayed
            or self.traits.group_limits[0]
            or self.devices.pending
        ) or not self.matched_by.isdisjoint(self.terms.selectors)

    def _copy(
        self,
        traits: PodTraits,
        matched_by: MatchedBy,
        volumes: VolumeRequirements,
        devices: DeviceRequirements,
    ) -> "EquivalenceClass":
        copy = object.__new__(EquivalenceClass)
        for name in _COPIED_SLOTS:
            setattr(copy, name, getattr(self, name))
        copy.traits, copy.matched_by, copy.volumes = traits, matched_by, volumes
        copy.devices = devices
        if traits != NO_TRAITS:
            copy.constraints_key += _encode(traits)
        if volumes.node_selectors or volumes.zones:
            copy.constraints_key += _encode((volumes.node_selectors, volumes.zones))
        if devices.node_selectors:
            copy.constraints_key += _encode(("devices", devices.node_selectors))
        copy.footprint = TermFootprint(
            matched_by, self.terms, limited_queue=traits.group_limits[0], request=self.request
        )
        copy._variants = None
        return copy

    def request_vector(self, resource_index: ResourceIndex) -> IntVector:
        """Return the request as a vector of *resource_index*."""
        if self._request_vector is None:
            self._request_vector = resource_index.vector(self.request)
        if len(self._request_vector) != len(resource_index):
            self._request_vector = resource_index.padded(self._request_vector)
        return self._request_vector


_Variants = WeakValueDictionary[
    tuple[PodTraits, MatchedBy, VolumeRequirements, DeviceRequirements], EquivalenceClass
]
_COPIED_SLOTS = tuple(
    name
    for name in EquivalenceClass.__slots__
    if name
    not in ("__weakref__", "devices", "footprint", "matched_by", "traits", "volumes", "_variants")
)


class EquivalenceCache:
    """One :class:`EquivalenceClass` for all equivalent pods."""

    def __init__(self, topology: PodTopology | None = None) -> None:
        """Start empty; *topology* knows the selectors in use."""
        self._topology = topology or PodTopology()
        self._compiler = TermCompiler()
        self.defaults = DefaultConstraints()
        """Topology spread constraints of pods that have none."""
        self._by_spec: dict[bytes, EquivalenceClass] = {}
        self._by_constraints: dict[_Key, EquivalenceClass] = {}
        self._encode = msgspec.json.Encoder().encode

    def get(self, pod: Pod) -> EquivalenceClass:
        """Return the equivalence class of *pod*."""
        eq_class = self.unmatched(pod)
        return eq_class.variant(matched_by=self._topology.matched_by(known_pod(pod)))

    def unmatched(self, pod: Pod) -> EquivalenceClass:
        """Return the class that *pod* has while no selector matches it."""
        spec, default = charged_spec(pod), self.defaults.of(pod)
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
                spec.scheduling_group,
                (tuple(exclusive_disks(spec)), *_image_volumes(spec)) if spec.volumes else (),
                _term_context(pod) if default or has_terms(spec) else (),
                default.key if default else "",
            )
        )
        eq_class = self._by_spec.get(key)
        if eq_class is None:
            if len(self._by_spec) >= MAX_ENTRIES:
                self._by_spec.clear()
                self._by_constraints.clear()
            eq_class = self._by_spec[key] = self._get_or_create(pod, spec, default)
        return eq_class

    def __len__(self) -> int:
        return len(self._by_constraints)

    def _get_or_create(
        self, pod: Pod, spec: PodSpec, default: DefaultTerms | None
    ) -> EquivalenceClass:
        request = pod_request(spec)
        affinity = spec.affinity.node_affinity if spec.affinity else None
        constraints_key = self._encode((spec.node_selector, affinity, spec.tolerations))
        ports, unsupported, terms = host_ports(spec), unsupported_fields(spec), NO_TERMS
        if default or has_terms(spec):
            try:
                terms = self._compiler.compile(pod, default)
            except SelectorError as error:  # a validating API server rejects such a pod
                unsupported += (UnsupportedField("spec", f"invalid label selector: {error}"),)
        images = pod_images(spec)
        amounts = tuple(sorted(request.items()))
        containers = len(spec.containers) + len(spec.init_containers)
        key = (constraints_key, amounts, ports, unsupported, terms, images, containers)
        eq_class = self._by_constraints.get(key)
        if eq_class is None:
            eq_class = self._by_constraints[key] = EquivalenceClass(
                spec,
                request,
                constraints_key,
                ports=ports,
                unsupported=unsupported,
                terms=terms,
                images=images,
            )
        return eq_class


def known_pod(pod: Pod, terms: PodTerms = NO_TERMS) -> KnownPod:
    """Return what selectors see of *pod*, with its *terms*."""
    meta = pod.metadata
    pvcs = mounted_pvcs(pod) if pod.spec.volumes else ()
    terminating = bool(meta.deletion_timestamp)
    extended = () if pod.spec.node_name else extended_uses(pod.spec)
    return KnownPod(
        meta.namespace, meta.labels, terminating, terms, pvcs, used_claims(pod), extended
    )


def _image_volumes(spec: PodSpec) -> Iterator[str]:
    for volume in spec.volumes:
        if volume.image is not None:
            yield volume.image.reference


def _term_context(pod: Pod) -> tuple[object, ...]:
    """Return what, apart from the spec, determines the terms of *pod*."""
    labels = pod.metadata.labels
    return pod.metadata.namespace, [labels.get(key) for key in label_keys(pod.spec)]
