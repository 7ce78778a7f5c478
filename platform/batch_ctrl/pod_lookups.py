"""The informer of pods: its indexes, and what is looked up in it for a Job."""

from collections.abc import Iterable, Iterator

from ..kube.informer.informer import Informer
from ..machinery.pod_ranking import deletion_order
from ..model.selectors import Selector
from .batch_pod import BatchPod
from .core_types import CONTROLLER_UID_LABELS, TRACKING_FINALIZER, Job, Pod, owning_job


def owner_keys(pod: Pod) -> tuple[str, ...]:
    """Return the identity of the Job that controls *pod*, if one does."""
    owner = pod.metadata.controller
    if owner is None or owning_job(pod.metadata) is None:
        return ()
    return (pod.metadata.owner_identity(owner),)


def orphan_scope(job: Job) -> str:
    """Return the value of the index of orphans with all pods that *job* may adopt."""
    namespace = job.metadata.namespace
    return f"{namespace}/{job.metadata.uid}" if job.selects_own_uid else namespace


def orphan_keys(pod: Pod) -> tuple[str, ...]:
    """Return the namespace of a pod without controller, with and without the uid in its labels."""
    meta = pod.metadata
    if meta.controller is not None:
        return ()
    uids = {meta.labels[label] for label in CONTROLLER_UID_LABELS if label in meta.labels}
    return (meta.namespace, *(f"{meta.namespace}/{uid}" for uid in sorted(uids)))


def adoptable_with_finalizer(pods: Informer[Pod], job: Job, selector: Selector) -> Iterator[Pod]:
    """Iterate over the pods with the tracking finalizer that *job* is about to adopt."""
    if job.is_being_deleted:
        return
    for pod in pods.by_index("orphans", orphan_scope(job)):
        meta = pod.metadata
        ends = meta.deletion_timestamp is not None
        if not ends and TRACKING_FINALIZER in meta.finalizers and selector.matches(meta.labels):
            yield pod


def find(pods: Informer[Pod], namespace: str, wanted: Iterable[BatchPod]) -> list[Pod]:
    """Return those of the *wanted* pods that the informer has reported."""
    return [
        found
        for pod in wanted
        if (found := pods.get(f"{namespace}/{pod.name}")) is not None
        and found.metadata.uid == pod.uid
    ]


def order_for_deletion(
    pods: Informer[Pod], namespace: str, given: Iterable[BatchPod]
) -> list[BatchPod]:
    """Sort pods for deletion; first those that the informer has not reported yet."""
    by_uid = {pod.uid: pod for pod in given}
    known = find(pods, namespace, by_uid.values())
    ordered = [by_uid.pop(pod.metadata.uid) for pod in deletion_order(known)]
    return [*by_uid.values(), *ordered]
