"""Events that the server's own controllers record."""

from ....model import names, times
from ..current_time import current_time, now
from ..errors.status import StatusError
from ..http.requests import Json
from ..storage.stored_objects import new_uid
from ..verbs.planned_writes import WriteResult
from .base import ControllerContext


def record_event(
    context: ControllerContext,
    regarding: Json,
    *,
    kind: str,
    reason: str,
    message: str,
    component: str,
) -> WriteResult | None:
    """Record an event of type *kind* about the object that *regarding* refers to.

    Returns ``None`` if its namespace is terminating.
    """
    moment, namespace = now(), regarding.get("namespace") or "default"
    event: Json = {
        "metadata": {"name": f"{regarding['name'][:200]}.{new_uid()[:16].replace('-', '')}"},
        "involvedObject": regarding,
        "type": kind,
        "reason": reason,
        "message": message,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
        "eventTime": times.format_micros(current_time()),
        "action": reason,
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": component,
    }
    try:
        return context.create(names.EVENTS, namespace, event)
    except StatusError as error:
        if error.code != 403:
            raise
        return None


def reference(resource: names.Resource, obj: Json) -> Json:
    """Return the reference of events to *obj*."""
    meta = obj["metadata"]
    found = {"apiVersion": resource.api_version, "kind": resource.kind, "name": meta["name"]}
    if meta.get("namespace"):
        found["namespace"] = meta["namespace"]
    return {**found, "uid": meta.get("uid", "")}
