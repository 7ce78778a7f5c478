"""What mutations of any origin have in common: which object they see, and what they may change."""

from ..errors.fields import MalformedError
from ..errors.status import bad_request, internal
from ..http.requests import Json
from ..kinds.info import KindInfo
from .attributes import AdmissionAttributes

_DECIDED_AFTERWARDS = ("uid", "creationTimestamp", "generation")
"""Metadata that a new object gets after mutations have seen it."""


def as_mutations_see(attributes: AdmissionAttributes, obj: Json) -> Json:
    """Return a new object without what it gets after mutations have seen it."""
    if attributes.operation != "CREATE":
        return obj
    metadata = {
        key: value for key, value in obj["metadata"].items() if key not in _DECIDED_AFTERWARDS
    }
    if attributes.is_name_generated:
        metadata.pop("name", None)
    return {**obj, "metadata": metadata}


def finish(
    attributes: AdmissionAttributes, kind: KindInfo, changed: Json, obj: Json, *, by: str
) -> Json:
    """Return *obj* with a change of it in *kind*, in the version of the request.

    Raises:
        StatusError: 400 or 500, the change is not possible; *by* whom it is.
    """
    if type(changed) is not dict or not isinstance(changed.get("metadata"), dict):
        raise internal(f"{by} has replaced the object by something else")
    if changed.get("kind") != kind.resource.kind:
        raise internal(f"{by} has changed the kind to {changed.get('kind')}")
    if kind is not attributes.kind:
        changed = attributes.kind.from_stored(kind.to_stored(changed))
    changed["apiVersion"] = attributes.kind.resource.api_version
    _keep_metadata(attributes, changed["metadata"], obj["metadata"])
    try:
        attributes.kind.prepare(changed)
    except MalformedError as error:
        raise internal(str(error)) from error
    return changed


def _keep_metadata(attributes: AdmissionAttributes, metadata: Json, before: Json) -> None:
    """Keep what the server decides.

    Raises:
        StatusError: 400, the namespace was changed.
    """
    metadata.pop("managedFields", None)
    if metadata.get("namespace") != before.get("namespace"):
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    for key in (*_DECIDED_AFTERWARDS, "resourceVersion", "deletionTimestamp"):
        if key in before:
            metadata[key] = before[key]
        else:
            metadata.pop(key, None)
    if not metadata.get("name"):
        metadata["name"] = before["name"]
