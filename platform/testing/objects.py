"""Objects as the server stores them, as dicts."""

from typing import Any

from ..local.apiserver.current_time import now
from ..local.apiserver.storage.stored_objects import StoredObject, new_uid
from ..model.names import Resource

Json = dict[str, Any]

_FINAL_POD_PHASES = frozenset(("Succeeded", "Failed"))


def phase_of(obj: Json) -> str:
    """Return the phase of an object: ``status.phase``, or ``status.state.phase`` of a Job.

    A Queue's is ``status.state``.
    """
    status = obj.get("status") or {}
    state = status.get("state") or ""
    phase = state.get("phase", "") if isinstance(state, dict) else state
    return str(status.get("phase") or phase)


def container_status(container: Json, phase: str, code: int) -> Json:
    """Return the status of a container of a pod in *phase*; *code* is its exit code."""
    state: Json = {"waiting": {"reason": "ContainerCreating"}}
    if phase == "Running":
        state = {"running": {}}
    elif phase in _FINAL_POD_PHASES:
        reason = "Completed" if code == 0 else "Error"
        state = {"terminated": {"exitCode": code, "reason": reason}}
    running = phase == "Running"
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": running,
        "started": running,
        "restartCount": 0,
        "state": state,
    }


def new_object(resource: Resource, metadata: Json) -> Json:
    """Return a new object of a resource."""
    created = {"uid": new_uid(), "creationTimestamp": now(), "generation": 1}
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": metadata | created,
    }


def key_of(entry: StoredObject) -> str:
    """Return ``namespace/name``, or the name without namespace."""
    return f"{entry.namespace}/{entry.name}" if entry.namespace else entry.name
