"""The ``/scale`` of a kind: how many replicas are wanted and how many there are."""

from typing import Any

import msgspec

from ..errors.fields import invalid as invalid_field
from ..errors.status import bad_request, invalid
from ..http.bodies import section
from ..http.requests import Json, Request
from ..kinds.info import KindInfo
from . import patch_bodies
from .writes import Change

_BUILT_IN = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
}


def show(kind: KindInfo, obj: Json) -> bytes:
    """The Scale of an object."""
    return msgspec.json.encode(_scale(kind, obj)) + b"\n"


def _scale(kind: KindInfo, obj: Json) -> Json:
    paths = kind.scale_paths or _BUILT_IN
    metadata = obj["metadata"]
    shown = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status: Json = {"replicas": _read(obj, paths["statusReplicasPath"]) or 0}
    selector = _selector(kind, obj)
    if selector:
        status["selector"] = selector
    wanted = _read(obj, paths["specReplicasPath"])
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in shown if key in metadata},
        "spec": {"replicas": wanted} if wanted else {},
        "status": status,
    }


def wanted_replicas(kind: KindInfo, obj: Json) -> int:
    """How many replicas an object asks for."""
    return int(_read(obj, (kind.scale_paths or _BUILT_IN)["specReplicasPath"]) or 0)


def put(kind: KindInfo, body: Json) -> Change:
    """The change that a sent Scale asks for."""

    def change(obj: Json) -> Json:
        return _with_replicas(kind, obj, body)

    return change


def read_patch(request: Request, kind: KindInfo) -> Change:
    """The change that a patch of the Scale asks for.

    Raises:
        StatusError: 400, 413 or 415; the change itself raises 400, 413 or 422.
    """
    patch = patch_bodies.read_patch(request, kind)

    def change(obj: Json) -> Json:
        return _with_replicas(kind, obj, patch(_scale(kind, obj)))

    return change


def _with_replicas(kind: KindInfo, obj: Json, body: Json) -> Json:
    replicas = section(body, "spec").get("replicas", 0)
    if not isinstance(replicas, int):
        raise bad_request("spec.replicas of a Scale is a whole number")
    if replicas < 0:
        text = "must be greater than or equal to 0"
        error = invalid_field("spec.replicas", replicas, text)
        raise invalid(kind.resource, obj["metadata"]["name"], [error])
    version = section(body, "metadata").get("resourceVersion")
    metadata = {**obj["metadata"], "resourceVersion": version} if version else obj["metadata"]
    path = (kind.scale_paths or _BUILT_IN)["specReplicasPath"].strip(".").split(".")
    changed: Json = _put({**obj, "metadata": metadata}, path, replicas)
    return changed


def _put(value: Any, path: list[str], wanted: int) -> Any:
    if not path:
        return wanted
    inside = value if isinstance(value, dict) else {}
    return {**inside, path[0]: _put(inside.get(path[0]), path[1:], wanted)}


def _read(obj: Any, path: str) -> Any:
    for key in path.strip(".").split("."):
        obj = obj.get(key) if isinstance(obj, dict) else None
    return obj


def _selector(kind: KindInfo, obj: Json) -> str:
    if path := kind.scale_paths.get("labelSelectorPath"):
        return str(_read(obj, path) or "")
    labels = _read(obj, ".spec.selector.matchLabels") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
