"""Index of pods without controller, by the Jobs that may adopt them."""

from collections.abc import Iterator

from ..kube.informer.informer import Informer
from ..model.selectors import Selector
from .core_types import CONTROLLER_UID_LABELS, TRACKING_FINALIZER, Job, Pod


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
