"""Decisions about ResourceClaims: which a pod gets from templates, and when devices are free again.

The name of a claim that is created from a template is derived from the uid of its pod, so a
creation whose response was lost is found again.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...model.base import ApiStruct
from ...model.meta import ObjectMeta, OwnerReference
from .types import Pod, PodClaim

Json = dict[str, Any]

FINALIZER = "resource.kubernetes.io/delete-protection"
"""Set with an allocation: the claim exists until its devices are free."""

POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a claim that was created for a pod: its name in the spec of the pod."""

_MAX_CONSUMERS = 256
_MAX_BASE, _SUFFIX = 57, 5


class Consumer(ApiStruct, frozen=True):
    """A pod, or another object, for which a claim is reserved."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""

    @property
    def is_pod(self) -> bool:
        """Whether it is a pod."""
        return not self.api_group and self.resource == "pods"


class ClaimStatus(ApiStruct, frozen=True):
    """``status`` of a ResourceClaim."""

    allocation: Json | None = None
    reserved_for: tuple[Consumer, ...] = ()


class ResourceClaim(ApiStruct, frozen=True):
    """A claim of devices."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Json = {}
    status: ClaimStatus = ClaimStatus()

    def was_created_for(self, pod: Pod) -> bool:
        """Return whether it was created for *pod* from a template."""
        owner = self.metadata.controller
        return owner is not None and owner.uid == pod.metadata.uid


class TemplateSpec(ApiStruct, frozen=True):
    """``spec`` of a ResourceClaimTemplate."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Json = {}


class ResourceClaimTemplate(ApiStruct, frozen=True):
    """A template of claims."""

    metadata: ObjectMeta = ObjectMeta()
    spec: TemplateSpec = TemplateSpec()


# -- pods ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PodClaimsView:
    """A pod, and what exists of the claims and templates that it names."""

    pod: Pod
    claims: Mapping[str, ResourceClaim]
    templates: Mapping[str, ResourceClaimTemplate]


@dataclass(frozen=True, slots=True)
class CreateClaim:
    """Create a claim from a template."""

    claim: ResourceClaim


@dataclass(frozen=True, slots=True)
class ReportFailure:
    """Report why a claim is not created."""

    message: str


@dataclass(frozen=True, slots=True)
class WriteClaimNames:
    """Write the names of the created claims into the status of the pod."""

    statuses: Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Reserve:
    """Reserve an allocated claim for a pod that has a node without the scheduler."""

    claim: ResourceClaim


PodClaimsEffect = CreateClaim | ReportFailure | WriteClaimNames | Reserve


def decide_pod(view: PodClaimsView) -> Iterator[PodClaimsEffect]:
    """Return what a pod that is not being deleted needs."""
    pod = view.pod
    recorded = pod.status.claim_names
    names = dict(recorded)
    for wanted in pod.spec.resource_claims:
        if not wanted.resource_claim_template_name:
            continue
        known = view.claims.get(recorded.get(wanted.name, ""))
        if known is not None and known.was_created_for(pod):
            continue
        name = claim_name(pod, wanted)
        effect = _creation(view, wanted, name)
        if effect is not None:
            yield effect
        if isinstance(effect, ReportFailure):
            return
        names[wanted.name] = name
    if names != recorded:
        yield WriteClaimNames(
            [{"name": name, "resourceClaimName": claim} for name, claim in names.items()]
        )
    if pod.spec.node_name:
        for wanted in pod.spec.resource_claims:
            claim = view.claims.get(wanted.resource_claim_name or names.get(wanted.name, ""))
            if claim is not None and _lacks_reservation(claim, pod):
                yield Reserve(claim)


def _creation(
    view: PodClaimsView, wanted: PodClaim, name: str
) -> CreateClaim | ReportFailure | None:
    """Return how the claim *name* is created; ``None`` if it exists."""
    existing = view.claims.get(name)
    template = view.templates.get(wanted.resource_claim_template_name)
    if existing is not None and existing.was_created_for(view.pod):
        return None
    text = f'resource claim template "{wanted.resource_claim_template_name}" not found'
    if existing is not None:
        text = f"ResourceClaim {name} was not created for the pod"
    elif template is not None:
        return CreateClaim(_from_template(view.pod, wanted, name, template))
    return ReportFailure(f"PodResourceClaim {wanted.name}: {text}")


def claim_name(pod: Pod, wanted: PodClaim) -> str:
    """Return the name of the claim that is created for *wanted* of *pod*."""
    base = f"{pod.metadata.name}-{wanted.name}"
    if len(base) > _MAX_BASE:
        share = _MAX_BASE - 1
        for_pod = len(pod.metadata.name) * share // len(base)
        base = f"{pod.metadata.name[:for_pod]}-{wanted.name[: share - for_pod]}"
    digest = hashlib.sha256(f"{pod.metadata.uid}/{wanted.name}".encode()).hexdigest()
    return f"{base}-{digest[:_SUFFIX]}"


def _from_template(
    pod: Pod, wanted: PodClaim, name: str, template: ResourceClaimTemplate
) -> ResourceClaim:
    meta, given = pod.metadata, template.spec.metadata
    owner = OwnerReference(
        api_version="v1", kind="Pod", name=meta.name, uid=meta.uid, controller=True
    )
    metadata = ObjectMeta(
        name=name,
        namespace=meta.namespace,
        labels=given.labels,
        annotations={**given.annotations, POD_CLAIM: wanted.name},
        owner_references=(owner,),
    )
    return ResourceClaim(metadata=metadata, spec=template.spec.spec)


def _lacks_reservation(claim: ResourceClaim, pod: Pod) -> bool:
    status = claim.status
    return (
        status.allocation is not None
        and all(each.uid != pod.metadata.uid for each in status.reserved_for)
        and len(status.reserved_for) < _MAX_CONSUMERS
        and claim.metadata.deletion_timestamp is None
    )


# -- claims ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimView:
    """A claim, which of its consumers use it no longer, and whether its own pod needs it."""

    claim: ResourceClaim
    ended: frozenset[str]
    """Uids of pods that have ended or do not exist."""
    is_unneeded: bool
    """Whether the pod that it was created for has ended, or was replaced."""


@dataclass(frozen=True, slots=True)
class WriteConsumers:
    """Write who uses the claim; without *keep_allocation*, its devices are free."""

    remaining: tuple[Consumer, ...]
    keep_allocation: bool


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Let the claim be deleted."""


@dataclass(frozen=True, slots=True)
class DeleteClaim:
    """Delete a claim that was created for a pod that has ended."""


ClaimEffect = WriteConsumers | RemoveFinalizer | DeleteClaim


def decide_claim(view: ClaimView) -> Iterator[ClaimEffect]:
    """Return what a claim needs: devices are free once the last consumer has ended."""
    claim = view.claim
    status, is_protected = claim.status, FINALIZER in claim.metadata.finalizers
    remaining = tuple(each for each in status.reserved_for if each.uid not in view.ended)
    is_deleted = claim.metadata.deletion_timestamp is not None
    is_allocated = status.allocation is not None
    lost_last = bool(status.reserved_for) and not remaining
    frees = is_protected and is_allocated and (lost_last or (is_deleted and not remaining))
    if remaining != status.reserved_for or frees:
        yield WriteConsumers(remaining, keep_allocation=is_allocated and not frees)
    if is_protected and not remaining and (frees or not is_allocated) and (lost_last or is_deleted):
        yield RemoveFinalizer()
    if not remaining and view.is_unneeded and not is_deleted:
        yield DeleteClaim()
