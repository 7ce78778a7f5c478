"""Build the PodGroup of a pod without one: a pure function of the pod and its owners."""

from collections.abc import Iterable, Mapping

import msgspec

from ..model.job import NetworkTopology
from ..model.meta import LabelSelector, ObjectMeta, OwnerReference
from ..model.names import (
    DEFAULT_QUEUE,
    GANG,
    KEEP_NODES,
    PODGROUP_MIN_MEMBER,
    PODGROUP_QUEUE,
    PODS,
)
from ..model.pod_resources import Amounts, add, quota_usage
from ..model.podgroup import (
    PodGroup,
    PodGroupPhase,
    PodGroupSpec,
    PodGroupStatus,
    SubGroupPolicy,
    min_member,
)
from ..model.run_times import OF_RUN_TIME
from .core_types import Pod
from .groupers.base import Gang

_INHERITED = "volcano.sh/"
_TOPOLOGY_MODE = "volcano.sh/network-topology-mode"
_TOPOLOGY_TIER = "volcano.sh/network-topology-highest-tier"
_FROM_POD = ("volcano.sh/preemptable", "volcano.sh/cooldown-time", "volcano.sh/revocable-zone")
_FROM_OWNER_OR_POD = (*OF_RUN_TIME, KEEP_NODES)
_BUDGETS = ("volcano.sh/jdb-min-available", "volcano.sh/jdb-max-unavailable")
_LABELS = ("volcano.sh/preemptable", "volcano.sh/cooldown-time")


def merge_owners(owners: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Merge the annotations of all owners; the first owner takes precedence."""
    merged: dict[str, str] = {}
    for annotations in owners:
        merged = {**annotations, **merged}
    return merged


def build(
    pod: Pod, inherited: Mapping[str, str], *, name: str = "", gang: Gang | None = None
) -> PodGroup:
    """Return the PodGroup for *pod*, whose owners have the annotations *inherited*.

    *name* is that of the PodGroup, by default after the pod's controller. With *gang*, the owner
    of the pod's controller has the number of pods in it.

    Raises:
        QuantityError: a resource request of the pod is malformed.
    """
    meta = pod.metadata
    if gang is not None:
        return _of_gang(pod, inherited, name, gang)
    size = min_member(inherited)
    return PodGroup(
        metadata=ObjectMeta(
            name=name or pod.generated_podgroup_name,
            namespace=meta.namespace,
            owner_references=_owners(pod),
            annotations=_annotations(meta.annotations, inherited),
            labels={key: meta.labels[key] for key in _LABELS if key in meta.labels},
        ),
        spec=PodGroupSpec(
            min_member=size,
            min_resources=_min_resources(pod, size),
            priority_class_name=pod.spec.priority_class_name,
            queue=meta.annotations.get(PODGROUP_QUEUE, ""),
            network_topology=_topology(meta.annotations),
        ),
        status=PodGroupStatus(phase=PodGroupPhase.PENDING),
    )


def _of_gang(pod: Pod, inherited: Mapping[str, str], name: str, gang: Gang) -> PodGroup:
    own = pod.metadata.annotations
    annotations = _annotations(own, inherited)
    if GANG in own and gang.owner is None:
        annotations[GANG] = own[GANG]
    queue = gang.annotations.get(PODGROUP_QUEUE) or gang.queue or own.get(PODGROUP_QUEUE, "")
    return PodGroup(
        metadata=ObjectMeta(
            name=name,
            namespace=pod.metadata.namespace,
            owner_references=() if gang.owner is None else (gang.owner,),
            annotations=annotations,
            labels={key: pod.metadata.labels[key] for key in _LABELS if key in pod.metadata.labels},
        ),
        spec=PodGroupSpec(
            min_member=gang.size,
            min_resources=_resources_of_gang(pod, gang),
            priority_class_name=gang.priority_class_name or pod.spec.priority_class_name,
            queue=queue,
            network_topology=_topology({**inherited, **own}),
            sub_group_policy=_sub_groups(gang),
        ),
        status=PodGroupStatus(phase=PodGroupPhase.PENDING),
    )


def _resources_of_gang(pod: Pod, gang: Gang) -> dict[str, str | int | float]:
    """Return what the pods that must run together request: those of the first roles first."""
    if not gang.roles:
        return _min_resources(pod, gang.size)
    left = gang.total if gang.reserves_all else gang.size
    amounts: Amounts = {}
    for role in gang.roles:
        count = min(role.count, left)
        left -= count
        if count:
            usage = quota_usage(role.spec)
            add(amounts, {name: amount * count for name, amount in usage.items()})
    return {name: str(amount) for name, amount in amounts.items()}


def _sub_groups(gang: Gang) -> tuple[SubGroupPolicy, ...]:
    """Return the roles as gangs within the gang, if all of their pods must run."""
    roles = [role for role in gang.roles if role.count and role.labels]
    has_units = any(0 < role.unit < role.count for role in roles)
    if gang.size != gang.total or (len(roles) < 2 and not has_units):
        return ()
    return tuple(
        SubGroupPolicy(
            name=role.name,
            sub_group_size=role.unit or role.count,
            min_sub_groups=role.count // (role.unit or role.count),
            label_selector=LabelSelector(match_labels=dict(role.labels)),
            # Without keys, a policy selects no pods.
            match_label_keys=role.unit_labels or tuple(sorted(role.labels)),
        )
        for role in roles
    )


def is_of_predecessor(podgroup: PodGroup, owner: OwnerReference | None) -> bool:
    """Return whether *podgroup* belongs to a deleted object that had the name of its *owner* now.

    The garbage collector deletes it in a while.
    """
    old = podgroup.metadata.controller
    if old is None or owner is None or old.uid == owner.uid:
        return False
    return (old.api_version, old.kind, old.name) == (owner.api_version, owner.kind, owner.name)


def gang_patch(current: PodGroup, desired: PodGroup) -> dict[str, dict[str, object]]:
    """Return the merge patch of what the owner of a gang has changed; empty if nothing.

    What depends on the pod from which *desired* was built stays: pods of other roles have others.
    The owner is replaced if it is of another kind: a group of a LeaderWorkerSet belongs to its
    leader, once that exists.
    """
    fields = ("minMember", "minResources", "subGroupPolicy")
    patch = _patch_of(current, desired, fields)
    if _owner_kind(current) != _owner_kind(desired):
        owners = msgspec.to_builtins(desired.metadata.owner_references)
        patch["metadata"] = {"ownerReferences": owners}
    return patch


def _owner_kind(podgroup: PodGroup) -> str:
    owner = podgroup.metadata.controller
    return "" if owner is None else owner.kind


def merge_patch(current: PodGroup, desired: PodGroup) -> dict[str, dict[str, object]]:
    """Return the merge patch that updates a PodGroup of the same owner; empty if none is needed.

    Other labels and annotations stay, and so does a queue that the pod does not name.
    """
    metadata: dict[str, object] = {}
    for field in ("labels", "annotations"):
        old, new = getattr(current.metadata, field), getattr(desired.metadata, field)
        differing = {key: value for key, value in new.items() if old.get(key) != value}
        if differing:
            metadata[field] = differing
    fields = ("minMember", "minResources", "priorityClassName", "networkTopology")
    spec = _patch_of(current, desired, fields).get("spec", {})
    if desired.spec.queue and desired.spec.queue != current.spec.queue:
        spec["queue"] = desired.spec.queue
    return {"metadata": metadata, "spec": spec} if metadata or spec else {}


def _patch_of(
    current: PodGroup, desired: PodGroup, fields: Iterable[str]
) -> dict[str, dict[str, object]]:
    current_spec, desired_spec = (
        msgspec.to_builtins(current.spec),
        msgspec.to_builtins(desired.spec),
    )
    spec = {
        field: _merge_patch_value(current_spec.get(field), desired_spec.get(field))
        for field in fields
        if current_spec.get(field) != desired_spec.get(field)
    }
    return {"spec": spec} if spec else {}


def _merge_patch_value(old: object, new: object) -> object:
    """Return the merge patch value from *old* to *new*: null for each removed key."""
    if isinstance(old, dict) and isinstance(new, dict):
        return dict.fromkeys(old.keys() - new.keys()) | new
    return new


def ineffective_size(pod: Pod, size: int) -> str:
    """Return the gang size in the pod's own annotation, where it has no effect; empty if none."""
    value = pod.metadata.annotations.get(PODGROUP_MIN_MEMBER, "")
    return "" if value == str(size) else value


def ineffective_queue(pod: Pod, inherited: Mapping[str, str]) -> str:
    """Return the queue in the owners' annotations, where it has no effect; empty if none."""
    value = inherited.get(PODGROUP_QUEUE, "")
    return "" if value == (pod.metadata.annotations.get(PODGROUP_QUEUE) or DEFAULT_QUEUE) else value


def _owners(pod: Pod) -> tuple[OwnerReference, ...]:
    """Return all owners of a pod that has a controller; else the pod itself."""
    meta = pod.metadata
    if meta.controller is not None:
        return meta.owner_references
    pod_reference = OwnerReference(
        api_version=PODS.api_version,
        kind=PODS.kind,
        name=meta.name,
        uid=meta.uid,
        controller=True,
        block_owner_deletion=True,
    )
    return (pod_reference,)


def _annotations(own: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    annotations = {
        key: value
        for key, value in inherited.items()
        if key.startswith(_INHERITED) or key in _FROM_OWNER_OR_POD
    }
    annotations |= {key: own[key] for key in (*_FROM_POD, *_FROM_OWNER_OR_POD) if key in own}
    budget = next((key for key in _BUDGETS if key in own), None)
    if budget is not None:
        annotations[budget] = own[budget]
    return annotations


def _min_resources(pod: Pod, size: int) -> dict[str, str | int | float]:
    if size == 0:
        return {}
    usage = quota_usage(pod.spec, finished=pod.is_finished)
    return {name: str(amount * size) for name, amount in usage.items()}


def _topology(own: Mapping[str, str]) -> NetworkTopology | None:
    if _TOPOLOGY_MODE not in own and _TOPOLOGY_TIER not in own:
        return None
    mode = own.get(_TOPOLOGY_MODE, "").lower()
    try:
        tier: int | None = int(own.get(_TOPOLOGY_TIER, ""))
    except ValueError:
        tier = None
    return NetworkTopology(
        mode=mode if mode in ("hard", "soft") else "hard", highest_tier_allowed=tier
    )
