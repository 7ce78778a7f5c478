"""Pods that were lost with their node, and are to be created again on another one.

The API server keeps a pod that is deleted until its kubelet confirms that it has ended. A kubelet
that is not reachable never does, so the name of the pod stays in use. kube-controller-manager
deletes pods of such nodes, and marks them. What is left of one of them some seconds after its grace
period may be removed without its kubelet, if the job permits that: if the node runs after all, cut
off from the cluster, the old pod and the new one run at the same time.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Protocol

from . import times
from .names import REPLACE_NODES
from .pod import DISRUPTION_TARGET

LOST_SECONDS = 10.0
"""After the end of its grace period, a pod that is still there counts as lost."""

_BY_TAINT = "DeletionByTaintManager"


class _Condition(Protocol):
    @property
    def type(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def reason(self) -> str: ...


def replaces_nodes(annotations: Mapping[str, str], *, default: bool) -> bool:
    """Return whether lost pods of a job with *annotations* are to be removed; *default* without a
    valid annotation."""
    return {"true": True, "false": False}.get(annotations.get(REPLACE_NODES, ""), default)


def replace_nodes_error(annotations: Mapping[str, str]) -> str:
    """Return why the annotation of a job is invalid, or an empty text."""
    value = annotations.get(REPLACE_NODES, "true")
    if value in ("true", "false"):
        return ""
    return f"metadata.annotations[{REPLACE_NODES}]: must be true or false"


def lost_at(deletion_timestamp: str | None, conditions: Iterable[_Condition]) -> datetime | None:
    """Return when a pod counts as lost; ``None`` if it was not deleted because of its node.

    *deletion_timestamp* is the end of its grace period.
    """
    if deletion_timestamp is None or not any(
        (each.type, each.status, each.reason) == (DISRUPTION_TARGET, "True", _BY_TAINT)
        for each in conditions
    ):
        return None
    return times.parse(deletion_timestamp) + timedelta(seconds=LOST_SECONDS)
