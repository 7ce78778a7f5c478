"""The PodGroup that a pod describes instead of having one: annotation ``batholith.io/podgroup``.

The job controller writes it, and what schedules, counts or explains the pod reads it. Users may
write it, too: what is malformed counts as missing.
"""

from enum import StrEnum

import msgspec

from .base import ApiStruct
from .meta import ObjectMeta
from .names import GROUP_NAME, PODGROUP
from .podgroup import PodGroup, PodGroupSpec, PodGroupStatus
from .quantity import QuantityError, parse


class PodGroupsOf(StrEnum):
    """Which jobs get PodGroups."""

    ALL = "all"
    GANGS = "gangs"
    """Jobs of more than one pod, and those that need one for another reason."""


MAX_TEXT = 8 * 1024
"""Maximum length of a description."""


class Description(ApiStruct, frozen=True):
    """What the PodGroup would contain."""

    spec: PodGroupSpec = PodGroupSpec()
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


_DECODER = msgspec.json.Decoder(Description)


def encode(podgroup: PodGroup) -> str:
    """Return the description of *podgroup*; its metadata is reduced to labels and annotations."""
    meta = podgroup.metadata
    description = Description(spec=podgroup.spec, labels=meta.labels, annotations=meta.annotations)
    return msgspec.json.encode(description).decode()


def decode(text: str) -> Description | None:
    """Return the description in *text*; None if it is malformed or not that of a single pod."""
    if not text or len(text) > MAX_TEXT:
        return None
    try:
        found = _DECODER.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
    return found if _is_of_one_pod(found.spec) else None


def _is_of_one_pod(spec: PodGroupSpec) -> bool:
    try:
        amounts = [parse(quantity).nanos for quantity in (spec.min_resources or {}).values()]
    except QuantityError:
        return False
    has_structure = spec.network_topology is not None or spec.sub_group_policy
    return spec.min_member == 1 and not has_structure and all(each >= 0 for each in amounts)


def podgroup_of(pod: ObjectMeta, status: PodGroupStatus) -> PodGroup | None:
    """Return the PodGroup that a pod with the metadata *pod* describes, with this *status*.

    It has no uid, since it is not stored. None if the pod describes none.
    """
    name, text = pod.annotations.get(GROUP_NAME, ""), pod.annotations.get(PODGROUP, "")
    found = decode(text) if name else None
    if found is None:
        return None
    meta = ObjectMeta(
        name=name,
        namespace=pod.namespace,
        labels=found.labels,
        annotations=found.annotations,
        creation_timestamp=pod.creation_timestamp,
        owner_references=pod.owner_references,
    )
    return PodGroup(metadata=meta, spec=found.spec, status=status)
