"""Create, delete and scale jobs of any kind, as the caller."""

import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from ...kube.client.client import Client, PatchType
from ...kube.errors import AlreadyExistsError, ConflictError, InvalidError, NotFoundError
from ...model.base import ApiStruct
from ...model.meta import MetadataOnly, ObjectMeta
from ...model.names import OPERATION
from ...wire.jobs import JobSummary
from ..http.preconditions import Preconditions
from ..jobs.kinds import JobKind
from ..problems import ProblemError, invalid_fields
from ..schemas.jobs import ScaleIn
from .manifests import Json

MAX_ATTEMPTS = 10
"""Attempts of a write without ``If-Match``: it is repeated if the object was changed since it was
read."""


class _Task(ApiStruct, frozen=True):
    name: str = ""
    replicas: int = 0
    min_available: int | None = None


class _Spec(ApiStruct, frozen=True):
    tasks: tuple[_Task, ...] = ()


class _Scaled(ApiStruct, frozen=True):
    """What a scaling reads of any kind."""

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}


def not_found(kind: JobKind, namespace: str, name: str) -> ProblemError:
    """Return the error of a job that does not exist."""
    return ProblemError(404, f"{kind.label} {name!r} not found in namespace {namespace!r}")


async def create(
    client: Client,
    kind: JobKind,
    body: Json,
    *,
    namespace: str,
    operation: uuid.UUID,
    dry_run: bool,
) -> tuple[JobSummary, Sequence[str]]:
    """Create a job; return its summary and the warnings of the API server.

    A repetition of the same *operation* returns the job that the first one has created.

    Raises:
        ProblemError: 409 if another job of this name exists.
    """
    resource, name = kind.resource, body["metadata"]["name"]
    try:
        created, warnings = await client.create_strictly(
            resource, body, namespace=namespace, dry_run=dry_run, view=kind.view
        )
        return kind.summarize(created), warnings
    except AlreadyExistsError as error:
        try:
            found = await client.get(resource, name, namespace=namespace, view=kind.view)
        except NotFoundError:
            raise ProblemError(409, error.message) from None
        if dry_run or found.metadata.annotations.get(OPERATION) != str(operation):
            text = f"{kind.label} {name!r} exists in namespace {namespace!r}"
            raise ProblemError(409, text) from None
        return kind.summarize(found), ()


async def delete(
    client: Client,
    kind: JobKind,
    name: str,
    *,
    namespace: str,
    propagation: str,
    uid: str,
    preconditions: Preconditions,
) -> JobSummary:
    """Delete a job; return its last summary, as being deleted if finalizers still hold it.

    Raises:
        ProblemError: 404, 409 if it has another uid, 412 if it has another version.
    """
    for _ in range(MAX_ATTEMPTS):
        try:
            found = await client.get(kind.resource, name, namespace=namespace, view=kind.view)
            meta = found.metadata
            preconditions.check(meta.resource_version)
            if uid not in ("", meta.uid):
                text = f"{kind.label} {name!r} has the uid {meta.uid!r}, not {uid!r}"
                raise ProblemError(409, text)
            response = await client.delete(
                kind.resource,
                name,
                namespace=namespace,
                uid=meta.uid,
                resource_version=meta.resource_version if preconditions.is_versioned else "",
                propagation=propagation,
            )
        except NotFoundError:
            raise not_found(kind, namespace, name) from None
        except ConflictError:
            if preconditions.is_versioned:
                raise preconditions.failed() from None
            continue  # deleted and created again in between
        remaining = msgspec.json.decode(response, type=MetadataOnly).metadata
        return msgspec.structs.replace(
            kind.summarize(found), deleting=remaining.deletion_timestamp is not None
        )
    raise ProblemError(409, f"{kind.label} {name!r} is created again all the time")


async def scale(
    client: Client,
    kind: JobKind,
    name: str,
    change: ScaleIn,
    *,
    namespace: str,
    preconditions: Preconditions,
) -> JobSummary:
    """Change the numbers of pods.

    The patch holds for the version that was read. Without ``If-Match`` it is computed
    again when the job has changed.

    Raises:
        ProblemError: 404, 409, 412, or 422 for an unknown task.
    """
    for _ in range(MAX_ATTEMPTS):
        try:
            found = await client.get(kind.resource, name, namespace=namespace, view=_Scaled)
            version = found.metadata.resource_version
            preconditions.check(version)
            patch, patch_type = _patch(kind, found, change)
            scaled = await client.patch(
                kind.resource,
                name,
                patch,
                namespace=namespace,
                kind=patch_type,
                view=kind.view,
            )
        except NotFoundError:
            raise not_found(kind, namespace, name) from None
        except ConflictError:
            if preconditions.is_versioned:
                raise preconditions.failed() from None
            continue
        except InvalidError:
            # A patch is applied before its version is compared: perhaps there are other tasks now.
            current = await client.get(kind.resource, name, namespace=namespace, view=_Scaled)
            if current.metadata.resource_version == version:
                raise
            continue
        return kind.summarize(scaled)
    raise ProblemError(409, f"{kind.label} {name!r} changes all the time", retry_after=1)


def _patch(kind: JobKind, found: _Scaled, change: ScaleIn) -> tuple[object, PatchType]:
    if change.tasks is None and change.min_available is None and change.parallelism is None:
        raise invalid_fields(("body", "names nothing to scale"))
    if kind.training is None and not kind.is_volcano:
        return _batch_patch(found, change), PatchType.MERGE
    if change.parallelism is not None:
        raise invalid_fields(("parallelism", f"{kind.label} has tasks"))
    if kind.is_volcano:
        return _volcano_patch(found, change), PatchType.JSON
    return _training_patch(kind, found, change), PatchType.MERGE


def _batch_patch(found: _Scaled, change: ScaleIn) -> Json:
    if change.tasks is not None:
        raise invalid_fields(("tasks", "a Job of batch/v1 has none: set parallelism"))
    if change.min_available is not None:
        raise invalid_fields(("min_available", "a Job of batch/v1 has none"))
    return _merge_patch(found, {"parallelism": change.parallelism})


def _volcano_patch(found: _Scaled, change: ScaleIn) -> list[Json]:
    """Return a JSON patch, since a merge patch would replace the whole list of tasks."""
    version = found.metadata.resource_version
    patch: list[Json] = [{"op": "replace", "path": "/metadata/resourceVersion", "value": version}]
    tasks = msgspec.convert(found.spec, _Spec).tasks
    indexes = {task.name: index for index, task in enumerate(tasks)}
    for name, replicas in (change.tasks or {}).items():
        if name not in indexes:
            raise _unknown_task(name, indexes)
        index = indexes[name]
        path = f"/spec/tasks/{index}"
        patch.append({"op": "add", "path": f"{path}/replicas", "value": replicas})
        minimum = tasks[index].min_available
        if minimum is not None and minimum > replicas:
            patch.append({"op": "add", "path": f"{path}/minAvailable", "value": replicas})
    if change.min_available is not None:
        patch.append({"op": "add", "path": "/spec/minAvailable", "value": change.min_available})
    return patch


def _training_patch(kind: JobKind, found: _Scaled, change: ScaleIn) -> Json:
    if kind.training is None:
        raise TypeError(f"{kind.label} is not a kind of training jobs")
    field = kind.training.replica_field
    types = found.spec.get(field) or {}
    replicas: Json = {}
    for name, number in (change.tasks or {}).items():
        canonical = name if name in types else kind.training.canonical_type(name)
        if canonical is None or canonical not in types:
            raise _unknown_task(name, types)
        replicas[canonical] = {"replicas": number}
    spec: Json = {field: replicas} if replicas else {}
    if change.min_available is not None:
        gang = {"minAvailable": change.min_available}
        spec["runPolicy"] = {"schedulingPolicy": gang}
    return _merge_patch(found, spec)


def _merge_patch(found: _Scaled, spec: Json) -> Json:
    return {"metadata": {"resourceVersion": found.metadata.resource_version}, "spec": spec}


def _unknown_task(name: str, known: Any) -> ProblemError:
    return invalid_fields((f"tasks.{name}", f"no such task; there are: {', '.join(sorted(known))}"))
