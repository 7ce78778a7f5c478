"""The ``scale`` subresource: desired and current replicas."""

from typing import Any

import msgspec

from ..errors.fields import invalid as invalid_field
from ..errors.status import bad_request, invalid
from ..http.bodies import get_object
from ..http.requests import Json, Request
from ..kinds.info import KindInfo
from . import patch_bodies
from .field_managers import SCALE
from .write_requests import bad_patch
from .writes import UpdateFunc

_BY_MAP = "ReplicationController"
"""The kind whose selector is a map of labels."""

_BUILT_IN = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
}


def get_scale(kind: KindInfo, obj: Json) -> bytes:
    """Return the Scale of an object."""
    return msgspec.json.encode(_scale(kind, obj)) + b"\n"


def _scale(kind: KindInfo, obj: Json) -> Json:
    paths = kind.scale_paths or _BUILT_IN
    metadata = obj["metadata"]
    shown = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status: Json = {"replicas": _get_path(obj, paths["statusReplicasPath"]) or 0}
    selector = _selector(kind, obj)
    if selector:
        status["selector"] = selector
    wanted = _get_path(obj, paths["specReplicasPath"])
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in shown if key in metadata},
        "spec": {"replicas": wanted} if wanted else {},
        "status": status,
    }


def desired_replicas(kind: KindInfo, obj: Json) -> int:
    """Return the desired replicas of an object."""
    return int(_get_path(obj, (kind.scale_paths or _BUILT_IN)["specReplicasPath"]) or 0)


def update_scale(kind: KindInfo, body: Json) -> UpdateFunc:
    """Return the change that applies a Scale.

    Raises:
        StatusError: 400, the body is of another kind.
    """

    sent = body.get("kind") or SCALE.kind
    if sent != SCALE.kind:
        version = str(body.get("apiVersion", "")).rpartition("/")[2]
        raise bad_request(f'{sent} in version "{version}" cannot be handled as a Scale')

    def change(obj: Json) -> Json:
        return _with_replicas(kind, obj, body)

    return change


def applied_replicas(kind: KindInfo, config: Json) -> Json:
    """Return the part of an object of *kind* that an applied Scale describes.

    Raises:
        StatusError: 422, the replicas are invalid.
    """
    sent = get_object(config, "metadata")
    metadata = {k: sent[k] for k in ("name", "namespace", "resourceVersion", "uid") if k in sent}
    head = {"apiVersion": kind.resource.api_version, "kind": kind.resource.kind}
    applied = {**head, "metadata": metadata}
    if get_object(config, "spec").get("replicas") is None:
        return applied
    return _with_replicas(kind, {**applied, "metadata": {"name": "", **metadata}}, config)


def patch_scale(request: Request, kind: KindInfo) -> UpdateFunc:
    """Return the change that applies a patch of the Scale.

    Raises:
        StatusError: 400, 413 or 415; the change itself raises 400, 413 or 422.
    """
    patch = patch_bodies.read_patch(request, kind)

    def change(obj: Json) -> Json:
        patched = patch(_scale(kind, obj))
        replicas = get_object(patched, "spec").get("replicas", 0)
        if not isinstance(replicas, int):
            raise bad_patch(patched, "spec.replicas of a Scale is a whole number")
        return _with_replicas(kind, obj, patched)

    return change


def _with_replicas(kind: KindInfo, obj: Json, body: Json) -> Json:
    replicas = get_object(body, "spec").get("replicas", 0)
    if not isinstance(replicas, int):
        raise bad_request("spec.replicas of a Scale is a whole number")
    if replicas < 0:
        text = "must be greater than or equal to 0"
        error = invalid_field("spec.replicas", replicas, text)
        resource = kind.resource if kind.custom else SCALE
        raise invalid(resource, obj["metadata"]["name"], [error])
    version = get_object(body, "metadata").get("resourceVersion")
    metadata = {**obj["metadata"], "resourceVersion": version} if version else obj["metadata"]
    path = (kind.scale_paths or _BUILT_IN)["specReplicasPath"].strip(".").split(".")
    changed: Json = _set_path({**obj, "metadata": metadata}, path, replicas)
    return changed


def _set_path(value: Any, path: list[str], replicas: int) -> Any:
    if not path:
        return replicas
    inside = value if isinstance(value, dict) else {}
    return {**inside, path[0]: _set_path(inside.get(path[0]), path[1:], replicas)}


def _get_path(obj: Any, path: str) -> Any:
    for key in path.strip(".").split("."):
        obj = obj.get(key) if isinstance(obj, dict) else None
    return obj


def _selector(kind: KindInfo, obj: Json) -> str:
    if path := kind.scale_paths.get("labelSelectorPath"):
        return str(_get_path(obj, path) or "")
    selector = _get_path(obj, ".spec.selector") or {}
    labels = selector if kind.resource.kind == _BY_MAP else selector.get("matchLabels") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
