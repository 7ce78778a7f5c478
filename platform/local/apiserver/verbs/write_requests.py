"""Requests that write, and the checks of their bodies before the object itself is validated."""

from typing import Any

import msgspec

from ....model.names import Resource
from ..admission.responses import WebhookResponses
from ..current_time import now
from ..errors.fields import MalformedError
from ..errors.fields import invalid as invalid_field
from ..errors.status import StatusError, bad_request, invalid, stale_write
from ..http.auth import APISERVER_USER, User
from ..http.bodies import field_paths
from ..http.requests import Json, ObjectPath
from ..kinds.info import KindInfo
from ..storage.stored_objects import StoredObject, new_uid
from .options import INTERNAL, WriteOptions, invalid_version

ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"
"""Finalizers by which a deletion asks the garbage collector to run first."""


class WriteRequest(msgspec.Struct, kw_only=True):
    """User, target and options of a write."""

    kind: KindInfo
    object_path: ObjectPath
    user: User = APISERVER_USER
    options: WriteOptions = INTERNAL
    warnings: list[str] | None = None
    """Receives the texts of warnings."""

    checked_body: bytes = b""
    """JSON of the client whose duplicate fields are reported with the unknown ones."""

    body_problems: tuple[str, ...] = ()
    """Texts about the body that are reported before those about unknown fields."""

    responses: WebhookResponses | None = None
    """The responses of webhooks, if any are configured; none for the server's own writes."""

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.object_path.namespace, self.object_path.name


def check_body(write_request: WriteRequest, obj: Any, *, patched: bool = False) -> Json:
    """Check the type, kind, namespace and name of a body; return its metadata.

    *patched*: it results from a patch.

    Raises:
        StatusError: 400, or for patches 422.
    """
    resource, target = write_request.kind.resource, write_request.object_path
    if not isinstance(obj, dict):
        raise bad_request("the body is no object")
    if write_request.kind.custom and not obj.get("kind"):
        text = (
            f"the object provided is unrecognized (must be of type {resource.kind}): Object 'Kind' "
            "is missing"
        )
        raise bad_request(text)
    api_version = obj.setdefault("apiVersion", resource.api_version) or resource.api_version
    if api_version != resource.api_version:
        text = (
            f"the API version in the data ({api_version}) does not match the expected API version "
            f"({resource.api_version})"
        )
        raise bad_request(text)
    # For a custom object, a wrong kind is one of the errors of its validation.
    body_kind = obj.setdefault("kind", resource.kind) or resource.kind
    if body_kind != resource.kind and not write_request.kind.custom:
        text = (
            f'{obj["kind"]} in version "{resource.version}" cannot be handled as a {resource.kind}'
        )
        raise bad_request(text)
    metadata = obj.setdefault("metadata", {})
    if metadata is None:
        metadata = obj["metadata"] = {}
    if not isinstance(metadata, dict):
        prepare_body(write_request, obj, patched=patched)
        raise bad_request("metadata is no object")  # of a kind that decodes it later
    _check_namespace_and_name(write_request, metadata, target)
    return metadata


def _check_namespace_and_name(
    write_request: WriteRequest, metadata: Json, object_path: ObjectPath
) -> None:
    if write_request.kind.resource.namespaced:
        if metadata.setdefault("namespace", object_path.namespace) != object_path.namespace:
            if metadata["namespace"]:
                text = (
                    "the namespace of the provided object does not match the namespace sent on "
                    "the request"
                )
                raise bad_request(text)
            metadata["namespace"] = object_path.namespace
    else:
        metadata.pop("namespace", None)
    if object_path.name and metadata.setdefault("name", object_path.name) != object_path.name:
        text = (
            f"the name of the object ({metadata['name']}) does not match the name on the URL "
            f"({object_path.name})"
        )
        raise bad_request(text)


def prepare_body(
    write_request: WriteRequest, obj: Json, *, patched: bool = False, applied: bool = False
) -> None:
    """Prune and default *obj*; reject, warn of or ignore unknown fields.

    *patched*: it results from a patch; *applied*: from an apply.

    Raises:
        StatusError: 400, or for patches 422.
    """
    resource = write_request.kind.resource
    try:
        unknown = write_request.kind.prepare(obj, applied=applied)
    except MalformedError as error:
        raise bad_patch(obj, error.reason) if patched else bad_request(str(error)) from error
    if not (unknown or write_request.checked_body or write_request.body_problems):
        return
    texts = _field_errors(write_request, unknown)
    if not texts:
        return
    if write_request.options.strict and patched:
        raise bad_patch(obj, f"strict decoding error: {', '.join(texts)}")
    if write_request.options.strict:
        text = (
            f'{resource.kind} in version "{resource.version}" cannot be handled as a '
            f"{resource.kind}: strict decoding error: {', '.join(texts)}"
        )
        raise bad_request(text)
    if write_request.options.warn and write_request.warnings is not None:
        write_request.warnings.extend(texts)


def _field_errors(write_request: WriteRequest, unknown: list[str]) -> list[str]:
    """Return the texts about unknown and duplicate fields.

    As kube-apiserver: of built-in kinds in the order of the document, without what is in unknown
    fields; of custom ones the duplicates first. Each once.
    """
    texts = {path: f'unknown field "{path}"' for path in unknown}
    if not write_request.checked_body:
        return list(dict.fromkeys([*write_request.body_problems, *texts.values()]))
    fields = field_paths(write_request.checked_body)
    if write_request.kind.custom:
        doubled = [f'duplicate field "{path}"' for path, repeats in fields if repeats]
        return list(dict.fromkeys([*doubled, *texts.values()]))
    found: list[str] = []
    skipped: tuple[str, ...] = ()
    for path, repeats in fields:
        if path.startswith(skipped):
            continue
        if path in texts:
            found.append(texts[path])
            skipped = (f"{path}.", f"{path}[")
        elif repeats:
            found.append(f'duplicate field "{path}"')
    return list(dict.fromkeys([*found, *texts.values()]))


def check_name_kept(patched: Json, name: str) -> None:
    """Check that a patch removes neither the object's name nor its metadata.

    Raises:
        StatusError: 400.
    """
    if not names_object(patched):
        raise unnamed(name)


def names_object(obj: Any) -> bool:
    """Return whether a body has a name, or is so malformed that its check reports another error."""
    metadata = obj.get("metadata") if isinstance(obj, dict) else ""
    return bool(metadata.get("name")) if isinstance(metadata, dict) else metadata is not None


def unnamed(name: str) -> StatusError:
    """400: the new content of an object has no name."""
    why = f"the name of the object ({name} based on URL) was undeterminable"
    return bad_request(f"{why}: name must be provided")


def bad_patch(patched: Json, reason: str) -> StatusError:
    """422: the result of a patch is not a valid object."""
    problem = invalid_field("patch", msgspec.json.encode(patched).decode(), reason)
    return invalid(Resource("", "", "", ""), "", [problem])


def warn_unqualified_finalizers(write_request: WriteRequest, metadata: Json) -> None:
    """Warn of finalizers of a custom object that have no domain."""
    if not write_request.kind.custom:
        return  # those of built-in kinds are rejected
    for name in metadata.get("finalizers") or ():
        if (
            write_request.warnings is not None
            and name
            and "/" not in name
            and name not in (ORPHAN, FOREGROUND)
        ):
            write_request.warnings.append(
                f'metadata.finalizers: "{name}": prefer a domain-qualified finalizer name to '
                "avoid accidental conflicts with other finalizer writers"
            )


def init_metadata(metadata: Json) -> None:
    """Set the metadata of a new object that the server decides."""
    for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
        metadata.pop(key, None)
    metadata.pop("resourceVersion", None)
    metadata["uid"] = new_uid()
    metadata["creationTimestamp"] = now()


def check_version(resource: Resource, entry: StoredObject, version: str | None) -> None:
    """Check the resource version that a client has sent, if any.

    Raises:
        StatusError: 409, it is not that of *entry*; 500, it is no number.
    """
    if version and not version.isdecimal():
        raise StatusError(500, "", invalid_version(version))
    if version and version != str(entry.rv):
        raise stale_write(resource, entry.name)
