"""Pods that are listed as uncounted before the informer reports them.

A controller that starts may have a Job of a later version than its pods: its predecessor listed a
pod that the informer does not have. Such a pod must not be taken for a deleted one, since it would
be counted again once it is reported.
"""

from collections.abc import Collection

import msgspec

from ..kube.client.client import Client
from ..kube.client.codec import ListScope
from ..kube.informer.informer import Informer
from ..machinery.controller import RequeueError
from ..model.meta import MetadataOnly
from ..model.names import PODS
from .core_types import CONTROLLER_UID_LABELS, TRACKING_FINALIZER, Job, Pod


async def check_uncounted(client: Client, job: Job, pods: Informer[Pod]) -> None:
    """Check that the uncounted pods which the informer lacks are deleted or have no finalizer.

    Raises:
        RequeueError: there is one that the informer has yet to report.
        ApiError, ConnectionLostError: a request failed.
    """
    listed = job.status.uncounted_terminated_pods
    if listed is None or not len(listed):
        return
    reported = {pod.metadata.uid for pod in pods.by_index("job", job.metadata.identity)}
    missing = {*listed.succeeded, *listed.failed} - reported
    if missing and await _any_with_finalizer(client, job, missing, pods):
        raise RequeueError("uncounted pods are not reported yet")


async def _any_with_finalizer(
    client: Client, job: Job, uids: Collection[str], pods: Informer[Pod]
) -> bool:
    """Whether a pod with one of *uids* has the finalizer, and the informer has not reported it."""
    scope = ListScope(
        resource=PODS,
        namespace=job.metadata.namespace,
        label_selector=_label_selector(job),
        field_selector="",
    )
    async for page in client.list_pages(scope):
        for raw in page.items:
            meta = msgspec.json.decode(raw, type=MetadataOnly).metadata
            if meta.uid not in uids or TRACKING_FINALIZER not in meta.finalizers:
                continue
            found = pods.get(meta.key)
            if found is None or found.metadata.uid != meta.uid:
                return True
    return False


def _label_selector(job: Job) -> str:
    """Return a selector of the Job's pods; empty if no label has its uid."""
    labels = job.spec.selector.match_labels if job.spec.selector is not None else {}
    for label in CONTROLLER_UID_LABELS:
        if labels.get(label) == job.metadata.uid:
            return f"{label}={job.metadata.uid}"
    return ""
