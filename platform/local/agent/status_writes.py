"""Pod status writes: the patch, and which errors to retry."""

from typing import Any

from ...kube.client.client import Client
from ...kube.errors import (
    ApiError,
    ConflictError,
    ConnectionLostError,
    DecodeError,
    ForbiddenError,
)
from ...model.names import PODS
from .retry import is_retriable
from .state.core_types import Pod


def status_patch(uid: str, status: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a status patch; the server rejects it if the pod has another uid."""
    # A merge keeps omitted fields: only null removes the reason of an earlier condition.
    conditions = [
        each if "$patch" in each else {"reason": None, "message": None, **each}
        for each in status.get("conditions", ())
    ]
    return {"metadata": {"uid": uid}, "status": {**status, "conditions": conditions}}


async def handle_write_error(error: Exception, client: Client, pod: Pod) -> tuple[bool, Pod | None]:
    """Return whether to retry a failed write to *pod*, and the pod if it was read again.

    After a conflict the write is retried as long as the pod still has the same uid.
    """
    if not isinstance(error, ConflictError):
        # A 403 may be temporary: RBAC and admission policies change while pods run.
        return is_retriable(error) or isinstance(error, ForbiddenError), None
    meta = pod.metadata
    try:
        now = await client.get(PODS, meta.name, namespace=meta.namespace, view=Pod)
    except (ApiError, ConnectionLostError, DecodeError) as second:
        return is_retriable(second), None
    return (True, now) if now.metadata.uid == meta.uid else (False, None)
