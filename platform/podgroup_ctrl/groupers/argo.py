"""Pods of Argo Workflows: they run one after another, so each has another PodGroup."""

from collections.abc import Sequence

from ...model.meta import OwnerReference
from ...model.names import PODS
from ..core_types import Pod
from .base import Described, Gang, Grouper, Membership, podgroup_name

_WORKFLOW = "workflows.argoproj.io/workflow"


def _membership(pod: Pod) -> Membership | None:
    if _WORKFLOW not in pod.metadata.labels:
        return None
    group = podgroup_name(pod.metadata.uid)
    return Membership(podgroup=group) if group else None


def _gang(_: Described | None, pods: Sequence[Pod]) -> Gang:
    meta = pods[0].metadata
    owner = OwnerReference(
        api_version=PODS.api_version, kind=PODS.kind, name=meta.name, uid=meta.uid, controller=True
    )
    return Gang(owner=owner, min_member=1, annotations={})


GROUPER = Grouper(name="argo", membership=_membership, gang=_gang)
