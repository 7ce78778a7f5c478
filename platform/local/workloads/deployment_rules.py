"""What a Deployment does next: a pure function of it and its ReplicaSets."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ...machinery.reconcile.controller import RequeueAfter
from .deployment_status import (
    PAUSED,
    PROGRESSING,
    RESUMED,
    TIMED_OUT,
    StatusChange,
    condition,
    is_complete,
    seconds_left,
)
from .deployment_types import (
    DESIRED_REPLICAS,
    HASH_LABEL,
    MAX_REPLICAS,
    NO_DEADLINE,
    REVISION,
    REVISION_HISTORY,
    CreateReplicaSet,
    DeleteReplicaSet,
    Deployment,
    DeploymentEffect,
    DeploymentView,
    UpdateReplicaSet,
    WriteDeployment,
)
from .replica_rules import ReplicaSet
from .rollout import (
    is_scaled,
    new_replicas,
    replicas_annotations,
    scale,
    scale_down_old,
    scale_to,
)
from .template_hash import template_hash
from .types import Json

_NOT_COPIED = frozenset(
    {
        "kubectl.kubernetes.io/last-applied-configuration",
        "deprecated.deployment.rollback.to",
        REVISION,
        REVISION_HISTORY,
        DESIRED_REPLICAS,
        MAX_REPLICAS,
    }
)
"""Annotations of a Deployment that its ReplicaSets do not get."""

Effects = Iterator[DeploymentEffect]


def decide(view: DeploymentView) -> Effects:
    """Yield the next step. After a write of a ReplicaSet another pass decides what follows."""
    deployment = view.deployment
    new, old = split(view)
    if deployment.metadata.deletion_timestamp is not None:
        yield from _write_status(view, new)
        return
    if (pausing := _pause(view)) is not None:
        yield pausing
        return
    if new is not None and (change := _synchronized(view, new, old)):
        yield change
        return
    if deployment.spec.paused or is_scaled(deployment, view.replica_sets):
        scaling = list(scale(deployment, new, old))
        yield from scaling
        if not scaling:
            if deployment.spec.paused:
                yield from _clean_up(deployment, old)
            yield from _write_status(view, new)
        return
    rollout = _roll(view, new, old) if deployment.is_rolling else _recreate(view, new, old)
    steps = list(rollout)
    yield from steps
    if not steps:
        if is_complete(deployment, deployment.status):
            yield from _clean_up(deployment, old)
        yield from _write_status(view, new)


def split(view: DeploymentView) -> tuple[ReplicaSet | None, list[ReplicaSet]]:
    """Return the oldest ReplicaSet that has the template of the Deployment, and the others."""
    new = next((each for each in view.replica_sets if _has_template(each, view.template)), None)
    return new, [each for each in view.replica_sets if each is not new]


def _has_template(found: ReplicaSet, template: Json) -> bool:
    return without_hash(msgspec.json.decode(found.spec.template)) == without_hash(template)


def without_hash(template: Json) -> Json:
    """Return a template without the label of its hash."""
    metadata = template.get("metadata") or {}
    labels = {
        key: text for key, text in (metadata.get("labels") or {}).items() if key != HASH_LABEL
    }
    rest: dict[str, Any] = {key: value for key, value in metadata.items() if key != "labels"}
    return {**template, "metadata": {**rest, "labels": labels}}


def _pause(view: DeploymentView) -> WriteDeployment | None:
    """Return the condition of a Deployment that was paused or resumed."""
    deployment = view.deployment
    current = condition(deployment.status, PROGRESSING)
    if deployment.deadline is None or (current is not None and current["reason"] == TIMED_OUT):
        return None
    is_paused = current is not None and current["reason"] == PAUSED
    change = StatusChange(deployment, view.now)
    if deployment.spec.paused and not is_paused:
        change.set(PROGRESSING, "Unknown", PAUSED, "Deployment is paused")
    elif is_paused and not deployment.spec.paused:
        change.set(PROGRESSING, "Unknown", RESUMED, "Deployment is resumed")
    else:
        return None
    return WriteDeployment(change.status)


def _roll(view: DeploymentView, new: ReplicaSet | None, old: Sequence[ReplicaSet]) -> Effects:
    """Yield the next step of a rolling update; nothing if it has to wait, or is done."""
    deployment = view.deployment
    if new is None:
        yield from _create(view, old)
        return
    steps = list(_scale_new(view, new))
    yield from steps or scale_down_old(deployment, new, old)


def _scale_new(view: DeploymentView, new: ReplicaSet) -> Iterator[UpdateReplicaSet]:
    deployment, size = view.deployment, new.spec.replicas
    wanted = deployment.spec.replicas
    if size < wanted:
        wanted = new_replicas(deployment, view.replica_sets, size)
    yield from scale_to(deployment, new, wanted)


def _recreate(view: DeploymentView, new: ReplicaSet | None, old: Sequence[ReplicaSet]) -> Effects:
    """Yield the next step of an update in which all old pods end before the first new one."""
    active = [each for each in old if each.spec.replicas > 0]
    if active:
        for each in active:
            yield from scale_to(view.deployment, each, 0)
    elif view.old_pods_run:
        return
    elif new is None:
        yield from _create(view, old)
    else:
        yield from scale_to(view.deployment, new, view.deployment.spec.replicas)


def _create(view: DeploymentView, old: Sequence[ReplicaSet]) -> Effects:
    """Yield the ReplicaSet of the current template, and the condition that it exists."""
    deployment = view.deployment
    digest = template_hash(view.template, deployment.status.get("collisionCount"))
    name = f"{deployment.metadata.name[: 63 - len(digest) - 1]}-{digest}"
    revision = str(_last_revision(old) + 1)
    annotations = {
        **_copied(deployment),
        **replicas_annotations(deployment),
        REVISION: revision,
    }
    size = new_replicas(deployment, view.replica_sets, 0)
    yield CreateReplicaSet(name, digest, size, annotations)
    change = StatusChange(deployment, view.now)
    if deployment.deadline is not None:
        text = f'Created new replica set "{name}"'
        change.set(PROGRESSING, "True", "NewReplicaSetCreated", text)
    yield WriteDeployment(change.status, revision)


def _synchronized(
    view: DeploymentView, new: ReplicaSet, old: Sequence[ReplicaSet]
) -> UpdateReplicaSet | WriteDeployment | None:
    """Return what the new ReplicaSet, or the Deployment, has to copy from the other."""
    deployment, held = view.deployment, new.metadata.annotations
    wanted = {**_copied(deployment), **_revision(new, _last_revision(old) + 1)}
    changed = {key: value for key, value in wanted.items() if held.get(key) != value}
    seconds = deployment.spec.min_ready_seconds
    if changed or new.spec.min_ready_seconds != seconds:
        return UpdateReplicaSet(new, annotations=changed, min_ready_seconds=seconds)
    revision = held.get(REVISION, "")
    change = StatusChange(deployment, view.now)
    if deployment.deadline is not None and condition(deployment.status, PROGRESSING) is None:
        text = f'Found new replica set "{new.metadata.name}"'
        change.set(PROGRESSING, "True", "FoundNewReplicaSet", text)
    if change.differs or deployment.metadata.annotations.get(REVISION) != revision:
        return WriteDeployment(change.status, revision)
    return None


def _copied(deployment: Deployment) -> dict[str, str]:
    annotations = deployment.metadata.annotations
    return {key: value for key, value in annotations.items() if key not in _NOT_COPIED}


def _revision(new: ReplicaSet, wanted: int) -> dict[str, str]:
    """Return the annotations of the revision, with the former ones if it was rolled back to."""
    current = new.metadata.annotations.get(REVISION, "")
    if _number(current) >= wanted:
        return {}
    found = {REVISION: str(wanted)}
    if current:
        history = new.metadata.annotations.get(REVISION_HISTORY, "")
        former = [each for each in history.split(",") if each]
        found[REVISION_HISTORY] = ",".join([*former, current])
    return found


def _last_revision(replica_sets: Sequence[ReplicaSet]) -> int:
    return max((revision_of(each) for each in replica_sets), default=0)


def revision_of(found: ReplicaSet) -> int:
    """Return the revision of a ReplicaSet; 0 without one."""
    return _number(found.metadata.annotations.get(REVISION, ""))


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _clean_up(deployment: Deployment, old: Sequence[ReplicaSet]) -> Iterator[DeleteReplicaSet]:
    """Yield the oldest ReplicaSets beyond the history's limit that have no pods."""
    limit = deployment.spec.revision_history_limit
    if limit is None or limit == NO_DEADLINE:
        return
    alive = [each for each in old if not each.is_being_deleted]
    for each in sorted(alive, key=revision_of)[: max(len(alive) - limit, 0)]:
        observed = each.count("observedGeneration")
        if each.spec.replicas or each.count("replicas") or observed < each.metadata.generation:
            continue
        yield DeleteReplicaSet(each)


def _write_status(view: DeploymentView, new: ReplicaSet | None) -> Effects:
    """Yield the status if it differs, and when the deadline is to be checked."""
    deployment = view.deployment
    change = StatusChange(deployment, view.now)
    change.counts(deployment, view.replica_sets, new)
    if not deployment.spec.paused and deployment.metadata.deletion_timestamp is None:
        change.progress(deployment, new)
    change.failures(view.replica_sets, new)
    if change.differs:
        yield WriteDeployment(change.status)
    left = seconds_left(deployment, change.status, view.now)
    if left is not None and not deployment.spec.paused:
        yield RequeueAfter(max(left + 1, 1))
