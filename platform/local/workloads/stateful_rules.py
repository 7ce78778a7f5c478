"""What a StatefulSet does next: a pure function of it and its pods."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...machinery.reconcile.controller import RequeueAfter
from .revisions import REVISION_LABEL, DeleteRevision, Revision
from .stateful_types import (
    Claim,
    PodRevisions,
    StatefulSet,
    identity_labels,
    wanted_owners,
)
from .types import Json, Pod, WriteStatus, next_available_in

_ZEROS = ("replicas", "availableReplicas", "collisionCount")
"""Counts that are written even if they are zero."""


@dataclass(slots=True)
class StatefulView:
    """A StatefulSet, its pods and their claims."""

    found: StatefulSet
    pods: Sequence[Pod]
    """All that it controls."""
    claims: Mapping[str, Claim]
    """Those of its templates, by name."""
    revisions: PodRevisions
    collisions: int | None
    expired: Sequence[Revision]
    """Revisions beyond the limit of the history."""
    now: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class CreatePod:
    """A pod to create, after its claims."""

    ordinal: int
    revision: str
    template: Json
    claims: tuple[str, ...]
    """Names of the claims that do not exist."""


@dataclass(frozen=True, slots=True)
class DeletePod:
    """A pod to delete."""

    pod: Pod
    failed: bool = False
    """Whether it has ended, and is created again."""


@dataclass(frozen=True, slots=True)
class CreateClaims:
    """Claims that a pod which waits for them lost."""

    ordinal: int
    claims: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OwnClaim:
    """A claim whose owners differ from the retention policy."""

    claim: Claim
    owners: list[Json]


@dataclass(frozen=True, slots=True)
class IdentifyPod:
    """An adopted pod that lacks labels of its identity."""

    pod: Pod
    labels: Mapping[str, str]


StatefulEffect = (
    CreatePod
    | DeletePod
    | CreateClaims
    | OwnClaim
    | IdentifyPod
    | WriteStatus
    | DeleteRevision
    | RequeueAfter
)


def decide(view: StatefulView) -> Iterator[StatefulEffect]:
    """Yield the writes that are due; after one of a pod, another pass decides what follows."""
    found = view.found
    if found.metadata.deletion_timestamp is None:
        yield from _own_claims(view)
        steps = list(_steps(view))
        yield from steps
        if steps:
            return
    status = status_of(view)
    current = {key: value for key, value in found.status.items() if value or key in _ZEROS}
    if status != current:
        yield WriteStatus(status)
    yield from (DeleteRevision(each) for each in view.expired)
    wait = next_available_in(view.pods, found.spec.min_ready_seconds, view.now)
    if wait is not None:
        yield RequeueAfter(wait)


def _by_ordinal(view: StatefulView) -> dict[int, Pod]:
    found = {view.found.ordinal(pod): pod for pod in view.pods}
    found.pop(-1, None)
    return found


def _own_claims(view: StatefulView) -> Iterator[OwnClaim]:
    """Yield the claims that the retention policy gives other owners."""
    found, pods = view.found, _by_ordinal(view)
    for ordinal in {*found.ordinals, *pods}:
        for name in found.claim_names(ordinal):
            claim = view.claims.get(name)
            if claim is None:
                continue
            surplus = ordinal not in found.ordinals
            owners = wanted_owners(found, claim, pods.get(ordinal), surplus=surplus)
            if owners is not None:
                yield OwnClaim(claim, owners)


def _steps(view: StatefulView) -> Iterator[StatefulEffect]:
    """Yield what is due: the replicas in order, then what is too many, then the update."""
    found, pods = view.found, _by_ordinal(view)
    for ordinal in found.ordinals:
        pod = pods.get(ordinal)
        steps = list(_keep(view, ordinal, pod))
        yield from steps
        waits = bool(steps) or pod is None or not _is_healthy(view, pod)
        if found.is_ordered and waits:
            return
        if pod is not None and not steps and not pod.is_terminating:
            yield from _identify(view, ordinal, pod)
    surplus = [pods[each] for each in sorted(pods, reverse=True) if each not in found.ordinals]
    yield from _remove(view, surplus)
    if surplus and found.is_ordered:
        return
    if found.spec.update_strategy.type == "RollingUpdate":
        yield from _update(view, pods)


def _keep(view: StatefulView, ordinal: int, pod: Pod | None) -> Iterator[StatefulEffect]:
    """Yield what a replica needs: to exist, with its claims, and to run."""
    missing = tuple(each for each in view.found.claim_names(ordinal) if each not in view.claims)
    if pod is None:
        revision, template = _revision_for(view, ordinal)
        yield CreatePod(ordinal, revision, template, missing)
    elif pod.is_finished and not pod.is_terminating:
        yield DeletePod(pod, failed=True)
    elif pod.status.phase in ("", "Pending") and missing and not pod.is_terminating:
        yield CreateClaims(ordinal, missing)


def _identify(view: StatefulView, ordinal: int, pod: Pod) -> Iterator[IdentifyPod]:
    """Yield the labels that a pod lacks, which was not created by this controller."""
    labels = identity_labels(view.found, ordinal)
    if not labels.items() <= pod.metadata.labels.items():
        yield IdentifyPod(pod, labels)


def _revision_for(view: StatefulView, ordinal: int) -> tuple[str, Json]:
    """Return the revision of a new pod: below the partition the former one."""
    revisions, found = view.revisions, view.found
    strategy = found.spec.update_strategy
    if strategy.type == "RollingUpdate":
        count = found.start + int(found.status.get("currentReplicas") or 0)
        limit = count if strategy.rolling_update is None else found.partition
        if ordinal < limit:
            return revisions.current, revisions.current_template
    return revisions.update, revisions.update_template


def _is_healthy(view: StatefulView, pod: Pod) -> bool:
    seconds = view.found.spec.min_ready_seconds
    running = pod.status.phase == "Running" and not pod.is_terminating
    return running and pod.is_available(seconds, view.now)


def _remove(view: StatefulView, surplus: Sequence[Pod]) -> Iterator[DeletePod]:
    """Yield the pods beyond the replicas: in order, the last one first, or all at a time."""
    if not view.found.is_ordered:
        yield from (DeletePod(pod) for pod in surplus if not pod.is_terminating)
        return
    unhealthy = [pod for pod in view.pods if not _is_healthy(view, pod)]
    first = min(unhealthy, key=view.found.ordinal, default=None)
    for pod in surplus[:1]:
        if not pod.is_terminating and (_is_healthy(view, pod) or pod is first):
            yield DeletePod(pod)


def _update(view: StatefulView, pods: Mapping[int, Pod]) -> Iterator[DeletePod]:
    """Yield the pods of another revision, the last first, while enough others are available."""
    found = view.found
    unavailable = sum(
        each not in pods or not _is_healthy(view, pods[each]) for each in found.ordinals
    )
    for ordinal in reversed(found.ordinals):
        pod = pods.get(ordinal)
        if ordinal < found.partition or pod is None:
            return
        healthy = _is_healthy(view, pod)
        if _revision(pod) != view.revisions.update and not pod.is_terminating:
            if unavailable >= found.max_unavailable and healthy:
                return
            yield DeletePod(pod)
            unavailable += healthy
        if not healthy and found.max_unavailable == 1:
            return


def _revision(pod: Pod) -> str:
    return pod.metadata.labels.get(REVISION_LABEL, "")


def status_of(view: StatefulView) -> Json:
    """Return the status that the pods require."""
    found, revisions = view.found, view.revisions
    pods = [pod for pod in view.pods if found.ordinal(pod) >= 0]
    kept = [pod for pod in pods if not pod.is_terminating]
    ready = [pod for pod in pods if pod.status.phase == "Running" and pod.is_ready]
    seconds = found.spec.min_ready_seconds
    updated = sum(_revision(pod) == revisions.update for pod in kept)
    current = sum(_revision(pod) == revisions.current for pod in kept)
    name = revisions.current
    rolling = found.spec.update_strategy.type == "RollingUpdate"
    if rolling and updated == len(pods) == len(ready):
        name, current = revisions.update, updated
    status: Json = {
        "observedGeneration": found.metadata.generation,
        "replicas": len(pods),
        "availableReplicas": sum(pod.is_available(seconds, view.now) for pod in ready),
        "currentRevision": name,
        "updateRevision": revisions.update,
        "collisionCount": view.collisions or 0,
    }
    counts = {
        "readyReplicas": len(ready),
        "currentReplicas": current,
        "updatedReplicas": updated,
    }
    status |= {key: count for key, count in counts.items() if count}
    return {key: value for key, value in status.items() if value or key in _ZEROS}
