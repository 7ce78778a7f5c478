"""How a Deployment scales its ReplicaSets: pure functions of their counts."""

from collections.abc import Iterable, Iterator, Sequence

from .deployment_types import (
    DESIRED_REPLICAS,
    MAX_REPLICAS,
    Deployment,
    UpdateReplicaSet,
)
from .replica_rules import ReplicaSet


def total(replica_sets: Iterable[ReplicaSet]) -> int:
    """Return the pods that *replica_sets* are to have."""
    return sum(each.spec.replicas for each in replica_sets)


def available(replica_sets: Iterable[ReplicaSet]) -> int:
    """Return the available pods of *replica_sets*."""
    return sum(each.count("availableReplicas") for each in replica_sets)


def new_replicas(deployment: Deployment, replica_sets: Sequence[ReplicaSet], current: int) -> int:
    """Return to how many pods the new ReplicaSet, which has *current*, may be scaled up."""
    wanted = deployment.spec.replicas
    if not deployment.is_rolling:
        return wanted
    left = wanted + deployment.max_surge - total(replica_sets)
    if left <= 0:
        return current
    return current + min(left, wanted - current)


def scale_to(
    deployment: Deployment, found: ReplicaSet, replicas: int
) -> Iterator[UpdateReplicaSet]:
    """Yield the update of a ReplicaSet to *replicas* and to the annotations of the Deployment."""
    annotations = replicas_annotations(deployment)
    held = found.metadata.annotations
    changed = {key: value for key, value in annotations.items() if held.get(key) != value}
    if replicas != found.spec.replicas or changed:
        wanted = replicas if replicas != found.spec.replicas else None
        yield UpdateReplicaSet(found, replicas=wanted, annotations=changed)


def replicas_annotations(deployment: Deployment) -> dict[str, str]:
    """Return the annotations by which a later scaling is recognized, and is proportional."""
    wanted = deployment.spec.replicas
    return {
        DESIRED_REPLICAS: str(wanted),
        MAX_REPLICAS: str(wanted + deployment.max_surge),
    }


def is_scaled(deployment: Deployment, replica_sets: Iterable[ReplicaSet]) -> bool:
    """Whether the replicas of the Deployment were changed since its ReplicaSets were scaled."""
    return any(
        each.spec.replicas > 0
        and each.metadata.annotations.get(DESIRED_REPLICAS, str(deployment.spec.replicas))
        != str(deployment.spec.replicas)
        for each in replica_sets
    )


def scale(
    deployment: Deployment, new: ReplicaSet | None, old: Sequence[ReplicaSet]
) -> Iterator[UpdateReplicaSet]:
    """Yield what a change of the replicas requires, in the middle of a rollout, too."""
    active = [each for each in (*old, *([new] if new else [])) if each.spec.replicas > 0]
    if len(active) <= 1:
        latest = active[0] if active else new or (old[-1] if old else None)
        if latest is not None:
            yield from scale_to(deployment, latest, deployment.spec.replicas)
        return
    if new is not None and _is_saturated(deployment, new):
        for each in old:
            if each.spec.replicas > 0:
                yield from scale_to(deployment, each, 0)
    elif deployment.is_rolling:
        yield from _scale_in_proportion(deployment, active)


def _is_saturated(deployment: Deployment, new: ReplicaSet) -> bool:
    wanted = deployment.spec.replicas
    return (
        new.spec.replicas == wanted
        and new.metadata.annotations.get(DESIRED_REPLICAS) == str(wanted)
        and new.count("availableReplicas") == wanted
    )


def _scale_in_proportion(
    deployment: Deployment, active: Sequence[ReplicaSet]
) -> Iterator[UpdateReplicaSet]:
    """Yield the scaling of several ReplicaSets: each by its share, the rest to the largest."""
    wanted = deployment.spec.replicas
    allowed = wanted + deployment.max_surge if wanted > 0 else 0
    to_add = allowed - total(active)
    ages = {each.metadata.uid: age for age, each in enumerate(active)}
    # Scaled up, the newer of equal size is first; scaled down, the older one.
    sign = -1 if to_add > 0 else 1
    ordered = sorted(active, key=lambda each: (-each.spec.replicas, sign * ages[each.metadata.uid]))
    sizes, added = {}, 0
    for each in ordered:
        share = _proportion(deployment, each, to_add=to_add, added=added) if to_add else 0
        sizes[each.metadata.uid] = each.spec.replicas + share
        added += share
    first = ordered[0]
    sizes[first.metadata.uid] = max(sizes[first.metadata.uid] + to_add - added, 0)
    for each in ordered:
        yield from scale_to(deployment, each, sizes[each.metadata.uid])


def _proportion(deployment: Deployment, found: ReplicaSet, *, to_add: int, added: int) -> int:
    if not found.spec.replicas or to_add == added:
        return 0
    left = to_add - added
    fraction = _fraction(deployment, found)
    return min(fraction, left) if to_add > 0 else max(fraction, left)


def _fraction(deployment: Deployment, found: ReplicaSet) -> int:
    wanted = deployment.spec.replicas
    if wanted == 0:
        return -found.spec.replicas
    before = int(found.metadata.annotations.get(MAX_REPLICAS, "0") or 0)
    before = before or deployment.count("replicas")
    if not before:
        return 0
    size = found.spec.replicas * (wanted + deployment.max_surge) / before
    return int(size + 0.5) - found.spec.replicas


def scale_down_old(
    deployment: Deployment, new: ReplicaSet, old: Sequence[ReplicaSet]
) -> Iterator[UpdateReplicaSet]:
    """Yield how the old ReplicaSets shrink in a rolling update, as far as pods are available.

    Pods that are not available go first, those of the oldest ReplicaSets first.
    """
    everything = [*old, new]
    least = deployment.spec.replicas - deployment.max_unavailable
    unavailable_new = new.spec.replicas - new.count("availableReplicas")
    most = total(everything) - least - unavailable_new
    if most <= 0 or total(old) == 0:
        return
    sizes = {each.metadata.uid: each.spec.replicas for each in old}
    down = 0
    for each in old:
        size, healthy = sizes[each.metadata.uid], each.count("availableReplicas")
        count = min(most - down, size - healthy) if size > healthy else 0
        sizes[each.metadata.uid] -= count
        down += count
    spare = available(everything) - least
    for each in old:
        count = min(sizes[each.metadata.uid], max(spare, 0))
        sizes[each.metadata.uid] -= count
        spare -= count
    for each in old:
        if sizes[each.metadata.uid] != each.spec.replicas:
            yield from scale_to(deployment, each, sizes[each.metadata.uid])
