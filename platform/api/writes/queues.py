"""Create, change and delete queues, as the caller."""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from pydantic import ValidationError

from ...kube.client.client import Client
from ...kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from ...model.base import ApiStruct
from ...model.meta import MetadataOnly, ObjectMeta
from ...model.names import OPERATION, QUEUES
from ...model.quantity_advice import quantity_advice
from ...model.queue import Queue
from ..http.preconditions import Preconditions
from ..problems import ProblemError, invalid_fields
from ..schemas.queues import QueueManifest, QueuePatch, ShortQueue

Json = dict[str, Any]

MAX_ATTEMPTS = 10
"""Attempts of a write without ``If-Match``: it is repeated if the object was changed since it was
read."""

CONFLICT_DELAY = 0.02
"""Seconds before the second attempt; each further one waits longer, since the write in conflict may
not be readable yet."""

_MANIFEST_FIELDS = frozenset({"apiVersion", "kind", "metadata", "spec"})
_SET_BY_SERVER = frozenset(
    {"creationTimestamp", "deletionTimestamp", "generation", "managedFields"}
    | {"generateName", "namespace", "resourceVersion", "selfLink", "uid"}
)
"""Fields of ``metadata`` that have no effect, or none on a queue."""

_FIELDS = {
    "parent": "parent",
    "weight": "weight",
    "priority": "priority",
    "reclaimable": "reclaimable",
    "capability": "capability",
    "deserved": "deserved",
    "dequeue_strategy": "dequeueStrategy",
}
"""Fields of the short form that are those of the spec."""


class _Spec(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}


def not_found(name: str) -> ProblemError:
    """Return the error of a queue that does not exist."""
    return ProblemError(404, f"queue {name!r} not found")


def build_queue(body: object, *, operation: uuid.UUID) -> Json:
    """Return the queue to create for the body of a request: a manifest, or the short form.

    Raises:
        ProblemError: 422 if a field is invalid or has no effect.
    """
    if not isinstance(body, dict):
        raise ProblemError(422, "the body must be a JSON object")
    try:
        if _MANIFEST_FIELDS & body.keys():
            QueueManifest.model_validate(body)
            queue = _from_manifest(body)
        else:
            queue = _from_short(ShortQueue.model_validate(body))
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise invalid_fields(
            *((".".join(map(str, each["loc"])) or "body", each["msg"]) for each in found)
        ) from None
    metadata = queue["metadata"]
    annotations = {**(metadata.get("annotations") or {}), OPERATION: str(operation)}
    return {**queue, "metadata": {**metadata, "annotations": annotations}}


def _from_manifest(body: Json) -> Json:
    metadata = body["metadata"]
    errors = [
        (f"metadata.{field}", "has no effect on a new queue")
        for field in sorted(_SET_BY_SERVER & metadata.keys())
        if metadata[field] is not None
    ]
    annotations = metadata.get("annotations")
    if not isinstance(metadata.get("name"), str) or not metadata["name"]:
        errors.append(("metadata.name", "is required"))
    if not isinstance(annotations, dict | None):
        errors.append(("metadata.annotations", "must be an object"))
    elif annotations and OPERATION in annotations:
        errors.append((f"metadata.annotations[{OPERATION}]", "is set by this API"))
    if body.get("status"):
        errors.append(("status", "is written by controllers, and has no effect here"))
    if errors:
        raise invalid_fields(*errors)
    return {key: body[key] for key in body if key not in ("apiVersion", "kind", "status")}


def _from_short(queue: ShortQueue) -> Json:
    given = queue.model_dump(exclude_none=True)
    labels = {"labels": queue.labels} if queue.labels else {}
    return {"metadata": {"name": queue.name, **labels}, "spec": _spec(given)}


def _spec(given: Mapping[str, Any]) -> Json:
    """Return the fields of a spec for those of the short form.

    Raises:
        ProblemError: 422, a quantity is malformed.
    """
    errors = []
    for field in ("capability", "guarantee", "deserved"):
        for resource, value in (given.get(field) or {}).items():
            if advice := quantity_advice(str(value)):
                errors.append((f"{field}.{resource}", advice))
    if errors:
        raise invalid_fields(*errors)
    spec = {name: _quantities(given[field]) for field, name in _FIELDS.items() if field in given}
    if "guarantee" in given:
        spec["guarantee"] = {"resource": _quantities(given["guarantee"])}
    return spec


def _quantities(value: Any) -> Any:
    """Return quantities as text: a server rejects those with a fraction as numbers."""
    if isinstance(value, dict):
        return {resource: str(amount) for resource, amount in value.items()}
    return value


async def create(
    client: Client, body: Json, *, operation: uuid.UUID, dry_run: bool
) -> tuple[Queue, Sequence[str]]:
    """Create a queue; return it and the warnings of the API server.

    A repetition of the same *operation* returns the queue that the first one has created.

    Raises:
        ProblemError: 409 if another queue of this name exists.
    """
    name = body["metadata"]["name"]
    try:
        return await client.create_strictly(QUEUES, body, dry_run=dry_run, view=Queue)
    except AlreadyExistsError as error:
        try:
            found = await client.get(QUEUES, name, view=Queue)
        except NotFoundError:
            raise ProblemError(409, error.message) from None
        if dry_run or found.metadata.annotations.get(OPERATION) != str(operation):
            raise ProblemError(409, f"queue {name!r} exists") from None
        return found, ()


async def change(
    client: Client, name: str, patch: QueuePatch, *, preconditions: Preconditions
) -> Queue:
    """Change a queue. Without ``If-Match`` the patch is built again when the queue has changed.

    Raises:
        ProblemError: 404, 409, 412, 422.
    """
    given = patch.model_dump(exclude_unset=True)
    if not given:
        raise invalid_fields(("body", "names nothing to change"))
    wanted = _spec(given)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            found = await client.get(QUEUES, name, view=_Spec)
            preconditions.check(found.metadata.resource_version)
            meta = {"uid": found.metadata.uid, "resourceVersion": found.metadata.resource_version}
            body = {"metadata": meta, "spec": _merge_patch(found.spec, wanted)}
            return await client.patch(QUEUES, name, body, view=Queue)
        except NotFoundError:
            raise not_found(name) from None
        except ConflictError:
            if preconditions.is_versioned:
                raise preconditions.failed() from None
        await asyncio.sleep(CONFLICT_DELAY * attempt)
    raise ProblemError(409, f"queue {name!r} changes all the time", retry_after=1)


def _merge_patch(old: Mapping[str, Any], wanted: Mapping[str, Any]) -> Json:
    """Return the merge patch that sets the fields of *wanted*."""
    patch: Json = {}
    for field, value in wanted.items():
        before = old.get(field)
        if isinstance(value, dict) and isinstance(before, dict):
            removed = dict.fromkeys(before.keys() - value.keys())
            patch[field] = _merge_patch(before, value) | removed
        else:
            patch[field] = value
    return patch


async def delete(client: Client, name: str, *, preconditions: Preconditions) -> tuple[Queue, bool]:
    """Delete a queue; return its last state, and whether it exists until finalizers are removed.

    Raises:
        ProblemError: 404, 412, or 422 with the reason for which admission denies it.
    """
    for _ in range(MAX_ATTEMPTS):
        try:
            found = await client.get(QUEUES, name, view=Queue)
            meta = found.metadata
            preconditions.check(meta.resource_version)
            response = await client.delete(
                QUEUES,
                name,
                uid=meta.uid,
                resource_version=meta.resource_version if preconditions.is_versioned else "",
            )
        except NotFoundError:
            raise not_found(name) from None
        except ConflictError:
            if preconditions.is_versioned:
                raise preconditions.failed() from None
            continue  # deleted and created again in between
        remaining = msgspec.json.decode(response, type=MetadataOnly).metadata
        return found, remaining.deletion_timestamp is not None
    raise ProblemError(409, f"queue {name!r} is created again all the time", retry_after=1)
