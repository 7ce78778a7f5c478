"""Create, update and patch: from a decoded body to a planned write.

Reading the current state and planning the write happen without an await in between, so a plan is
always based on the latest state and needs no retries; callers then wait for the disk.
"""

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from ....model import names, times
from ....model.names import Resource
from ..discovery.catalog import Catalog
from ..errors.fields import MalformedError
from ..errors.fields import invalid as invalid_field
from ..errors.status import (
    StatusError,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
    not_found,
    qualified,
    stale_write,
    too_busy,
)
from ..http import offload
from ..http.auth import APISERVER_USER, COMPONENTS_GROUP, User
from ..http.requests import Json, ObjectPath
from ..kinds.info import OFFLOAD_THRESHOLD, KindInfo
from ..kinds.metadata import TYPE_META
from ..storage.object_store import ObjectStore, PendingWrite
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import StoredObject, encode, new_uid
from .admission import Admission, AdmissionAttributes
from .options import INTERNAL, WriteOptions

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_PREFIX_LENGTH = 58
_MAX_ATTEMPTS = 5
TERMINATING = "NamespaceTerminating"
ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"
"""Finalizers by which a deletion asks the garbage collector to run first."""

UpdateFunc = Callable[[Json], Json]
"""Returns the updated object for the current one, both in the caller's API version."""


class WriteResult(NamedTuple):
    """Result of a write; wait for :meth:`committed` before sending the response."""

    data: bytes
    done: "asyncio.Future[None] | None" = None
    removed: bool = False
    uid: str = ""

    @classmethod
    def from_pending(cls, pending: PendingWrite, *, removed: bool = False) -> "WriteResult":
        """Return the result of a queued write."""
        entry = pending.entry
        return cls(entry.data, pending.done, removed, entry.uid)

    async def committed(self) -> bytes:
        """Return the object once it is on disk.

        Raises:
            StatusError: 500, the disk write failed.
        """
        if self.done is not None:
            await self.done
        return self.data


class PlannedWrite(NamedTuple):
    """A write planned against the state of its resource store; nothing is changed yet."""

    resource_store: ResourceStore
    old: StoredObject | None
    """Object that is replaced."""

    obj: Json
    """Object to store, in the storage version."""

    name: str
    removed: bool = False
    """Whether the write deletes the object."""

    response: bytes | None = None
    """Response if nothing is stored: a dry run, or no change."""


class WriteRequest(msgspec.Struct, kw_only=True):
    """User, target and options of a write."""

    kind: KindInfo
    object_path: ObjectPath
    user: User = APISERVER_USER
    options: WriteOptions = INTERNAL
    warnings: list[str] | None = None
    """Receives the texts of warnings."""

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.object_path.namespace, self.object_path.name


class Writer:
    """Plans and executes creates, updates and patches."""

    def __init__(self, store: ObjectStore, catalog: Catalog, admission: Admission) -> None:
        self.store = store
        self.admission = admission
        self._catalog = catalog
        self._namespaces = store.resource_store(catalog.require(names.NAMESPACES))

    async def plan_and_execute(
        self, write_request: WriteRequest, plan_write: Callable[[], PlannedWrite], *, size: int
    ) -> WriteResult:
        """Execute the plan of *plan_write*, computed in a thread if *size* or the object is large.

        A plan from a thread is valid only if nothing that it read has changed since.

        Raises:
            StatusError: the errors of *plan_write*; 413, the object is too large; 429, too many
                concurrent changes.
        """
        self._check_served(write_request.kind)
        old = self.store.resource_store(write_request.kind).latest(*write_request.key)
        if size <= write_request.kind.offload_threshold and (
            old is None or len(old.data) <= OFFLOAD_THRESHOLD
        ):
            return self.execute(plan_write())
        warnings = write_request.warnings if write_request.warnings is not None else []
        warning_count = len(warnings)
        for _ in range(_MAX_ATTEMPTS):
            del warnings[warning_count:]
            plan, reads = await offload.run_in_thread(
                lambda: self.admission.recording_reads(plan_write)
            )
            self._check_served(write_request.kind)
            if self._is_still_valid(write_request, plan) and all(
                unchanged() for unchanged in reads
            ):
                return self.execute(plan)
        raise too_busy()

    def _check_served(self, kind: KindInfo) -> None:
        """Reject a write that started under an earlier definition of the kind."""
        resource = kind.resource
        if self._catalog.get(resource.group, resource.version, resource.plural) is not kind:
            raise too_busy()

    def _is_still_valid(self, write_request: WriteRequest, plan: PlannedWrite) -> bool:
        if plan.old is None:
            self._check_namespace(write_request, plan.obj["metadata"])
        return (
            plan.resource_store.latest(write_request.object_path.namespace, plan.name) is plan.old
        )

    def execute(self, plan: PlannedWrite) -> WriteResult:
        """Queue a planned write.

        Raises:
            StatusError: 413, the object is too large.
        """
        resource_store, old = plan.resource_store, plan.old
        if plan.response is not None:
            return WriteResult(
                plan.response, self.store.pending_commit(resource_store, old) if old else None
            )
        if plan.removed and old is not None:
            return WriteResult.from_pending(
                self.store.remove(resource_store, plan.obj, old), removed=True
            )
        return WriteResult.from_pending(self.store.put(resource_store, plan.obj, old))

    def create(self, write_request: WriteRequest, obj: Json) -> WriteResult:
        """Create an object from *obj*, which the writer may modify.

        Raises:
            StatusError: 400, 403, 404, 409, 413, 422, 500.
        """
        return self.execute(self.plan_create(write_request, obj))

    def plan_create(self, write_request: WriteRequest, obj: Json) -> PlannedWrite:
        """Plan :meth:`create`.

        Raises:
            StatusError: 400, 403, 404, 409, 422, 500.
        """
        kind = write_request.kind
        metadata = check_body(write_request, obj)
        if metadata.get("resourceVersion"):
            text = "resourceVersion should not be set on objects to be created"
            raise StatusError(500, "", text)
        resource_store = self.store.resource_store(kind)
        self._check_namespace(write_request, metadata)
        _init_metadata(metadata)
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = _generate_name(resource_store, metadata)
        prepare_body(write_request, obj)
        _warn_unqualified_finalizers(write_request, metadata)
        kind.before_create(obj)
        attempt = self._admission_attributes(write_request, "CREATE", obj, None)
        obj = self._admit(write_request, attempt, obj)
        name = obj["metadata"]["name"]
        if resource_store.latest(write_request.object_path.namespace, name) is not None:
            raise already_exists(kind.resource, name)
        response = encode(obj) if write_request.options.dry_run else None
        return PlannedWrite(resource_store, None, kind.to_stored(obj), name, response=response)

    def _check_namespace(self, write_request: WriteRequest, metadata: Json) -> None:
        namespace = write_request.object_path.namespace
        resource = write_request.kind.resource
        if write_request.kind.custom and qualified(resource) in self._catalog.terminating_crds:
            why = "create not allowed while custom resource definition is terminating"
            raise forbidden(resource, metadata.get("name", ""), why)
        if not write_request.kind.resource.namespaced:
            return
        found = self._namespaces.latest("", namespace)
        if found is None:
            raise not_found(names.NAMESPACES, namespace)
        if found.deleting:
            why = (
                f"unable to create new content in namespace {namespace} because it is being "
                "terminated"
            )
            cause = {
                "reason": TERMINATING,
                "message": f"namespace {namespace} is being terminated",
                "field": "metadata.namespace",
            }
            name = metadata.get("name", "")
            raise forbidden(write_request.kind.resource, name, why, causes=[cause])

    def plan_update(self, write_request: WriteRequest, obj: Json) -> PlannedWrite:
        """Plan to replace the object of the request by *obj*.

        Raises:
            StatusError: 400, 403, 404, 409, 422.
        """
        resource = write_request.kind.resource
        metadata = check_body(write_request, obj)
        if not metadata.get("name"):
            raise bad_request("the name of the object must be provided")
        resource_store, entry = self.get_latest(write_request)
        version = metadata.get("resourceVersion", "")
        if not version and write_request.kind.update_needs_rv:
            error = invalid_field("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid(resource, entry.name, [error], kind_name=resource.plural)
        if version and version != str(entry.rv):
            raise stale_write(resource, entry.name)
        uid = metadata.get("uid")
        if uid and uid != entry.uid:
            why = (
                f"Precondition failed: UID in precondition: {uid}, UID in object meta: {entry.uid}"
            )
            raise conflict(resource, entry.name, why)
        return self._replace(write_request, resource_store, entry, obj)

    def patch(self, write_request: WriteRequest, change: UpdateFunc) -> WriteResult:
        """Change the object of the request.

        Raises:
            StatusError: 400, 403, 404, 409, 413, 422, and the errors of *change*.
        """
        return self.execute(self.plan_patch(write_request, change))

    def plan_patch(self, write_request: WriteRequest, change: UpdateFunc) -> PlannedWrite:
        """Plan :meth:`patch`.

        Raises:
            StatusError: 400, 403, 404, 409, 422, and the errors of *change*.
        """
        resource_store, entry = self.get_latest(write_request)
        obj = change(write_request.kind.from_stored(entry.parse()))
        _check_name_kept(obj)
        metadata = check_body(write_request, obj)
        if metadata.get("resourceVersion", str(entry.rv)) != str(entry.rv):
            raise stale_write(write_request.kind.resource, entry.name)
        return self._replace(write_request, resource_store, entry, obj, patched=True)

    def update_unchecked(self, write_request: WriteRequest, change: UpdateFunc) -> WriteResult:
        """Change the stored object without the checks of users' writes.

        Raises:
            StatusError: 404, and the errors of *change*.
        """
        resource_store, entry = self.get_latest(write_request)
        changed = change(entry.parse())
        metadata = {**changed["metadata"], "resourceVersion": str(entry.rv)}
        changed = {**changed, "metadata": metadata}
        return self.execute(
            _plan_replace(write_request, resource_store, entry, old=entry.parse(), obj=changed)
        )

    def get_latest(self, write_request: WriteRequest) -> tuple[ResourceStore, StoredObject]:
        """Return the object of the request as the next write finds it.

        Raises:
            StatusError: 404.
        """
        resource_store = self.store.resource_store(write_request.kind)
        entry = resource_store.latest(*write_request.key)
        if entry is None:
            raise not_found(write_request.kind.resource, write_request.object_path.name)
        return resource_store, entry

    def _replace(
        self,
        write_request: WriteRequest,
        resource_store: ResourceStore,
        entry: StoredObject,
        obj: Json,
        *,
        patched: bool = False,
    ) -> PlannedWrite:
        kind = write_request.kind
        old = kind.from_stored(entry.parse())
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(entry.rv)}}
        if write_request.object_path.subresource == "status":
            # Unchanged fields are pruned and defaulted already, and they are most of the object.
            known, obj = _split_unchanged(obj, old)
            prepare_body(write_request, obj, patched=patched)
            obj = {**obj, **known}  # unchanged fields hold no empty values to drop
            obj["metadata"] = dict(obj["metadata"])
            kind.before_status_update(obj, old)
        else:
            prepare_body(write_request, obj, patched=patched)
            kind.normalize_stored(old)
            kind.before_update(obj, old)
        if write_request.object_path.subresource:
            validate = (
                kind.validate_status
                if write_request.object_path.subresource == "status"
                else kind.validate
            )
            errors = validate(obj, old)
            if errors:
                raise invalid(kind.resource, entry.name, errors)
        else:
            obj = self._admit(
                write_request, self._admission_attributes(write_request, "UPDATE", obj, old), obj
            )
        return _plan_replace(write_request, resource_store, entry, old=old, obj=obj)

    def _admission_attributes(
        self, write_request: WriteRequest, operation: str, obj: Json, old: Json | None
    ) -> AdmissionAttributes:
        return AdmissionAttributes(
            operation=operation,
            kind=write_request.kind,
            namespace=write_request.object_path.namespace,
            name=obj["metadata"].get("name", ""),
            old_object=old,
            user=write_request.user,
            object_path=write_request.object_path,
            # Our own components have warned the user already, on the object that they act for.
            warnings=None
            if COMPONENTS_GROUP in write_request.user.groups
            else write_request.warnings,
        )

    def _admit(
        self, write_request: WriteRequest, attributes: AdmissionAttributes, obj: Json
    ) -> Json:
        """Mutate, validate, call validating webhooks: kube-apiserver's order of errors."""
        mutated = self.admission.mutate(attributes, obj)
        if mutated is not obj:
            write_request.kind.prepare(mutated)
            if attributes.old_object is None:
                write_request.kind.before_create(mutated)  # initial values may depend on it
            else:
                # Defaults that were set again are no change.
                write_request.kind.update_generation(mutated, attributes.old_object)
        errors = write_request.kind.validate(mutated, attributes.old_object)
        if errors:
            raise invalid(
                write_request.kind.stored_as or write_request.kind.resource, attributes.name, errors
            )
        if attributes.warnings is not None:
            attributes.warnings.extend(write_request.kind.warnings(mutated, attributes.old_object))
        self.admission.validate(attributes, mutated)
        return mutated


def _plan_replace(
    write_request: WriteRequest,
    resource_store: ResourceStore,
    entry: StoredObject,
    *,
    old: Json,
    obj: Json,
) -> PlannedWrite:
    """Plan to replace *entry*, whose content is *old*, by the validated *obj*."""
    if obj == old:
        return PlannedWrite(resource_store, entry, obj, entry.name, response=entry.data)
    response = encode(obj) if write_request.options.dry_run else None
    obj = write_request.kind.to_stored(obj)
    return PlannedWrite(
        resource_store, entry, obj, entry.name, removed=is_deletion_complete(obj), response=response
    )


def check_body(write_request: WriteRequest, obj: Any) -> Json:
    """Check the type, kind, namespace and name of a body; return its metadata.

    Raises:
        StatusError: 400.
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
        raise bad_request("metadata is no object")
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
    elif not metadata.get("namespace", True):
        del metadata["namespace"]
    if object_path.name and metadata.setdefault("name", object_path.name) != object_path.name:
        text = (
            f"the name of the object ({metadata['name']}) does not match the name on the URL "
            f"({object_path.name})"
        )
        raise bad_request(text)


def _split_unchanged(obj: Json, old: Json) -> tuple[Json, Json]:
    """Split *obj* into the fields equal to those of *old*, and the rest with version and kind."""
    known = {key: value for key, value in obj.items() if key in old and old[key] == value}
    new = {key: value for key, value in obj.items() if key in TYPE_META or key not in known}
    return known, new


def is_deletion_complete(obj: Json) -> bool:
    """Return whether no finalizer or grace period holds back a deletion."""
    metadata = obj["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return False
    if metadata.get("deletionGracePeriodSeconds"):
        return False
    return not (obj["kind"] == "Namespace" and (obj.get("spec") or {}).get("finalizers"))


def now() -> str:
    """Return the current time in the format of objects."""
    return times.format(datetime.now(UTC))


def _init_metadata(metadata: Json) -> None:
    for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"):
        metadata.pop(key, None)
    metadata.pop("resourceVersion", None)
    metadata["uid"] = new_uid()
    metadata["creationTimestamp"] = now()


def _generate_name(resource_store: ResourceStore, metadata: Json) -> str:
    prefix = str(metadata["generateName"])[:_PREFIX_LENGTH]
    while True:
        name = prefix + "".join(random.choices(_SUFFIX, k=5))
        if resource_store.latest(metadata.get("namespace", ""), name) is None:
            return name


def prepare_body(write_request: WriteRequest, obj: Json, *, patched: bool = False) -> None:
    """Prune and default *obj*; reject, warn of or ignore unknown fields.

    Raises:
        StatusError: 400, or for patches 422.
    """
    resource = write_request.kind.resource
    try:
        unknown = write_request.kind.prepare(obj)
    except MalformedError as error:
        raise _bad_patch(obj, str(error)) if patched else bad_request(str(error)) from error
    if not unknown:
        return
    texts = [f'unknown field "{path}"' for path in unknown]
    if write_request.options.strict and patched:
        raise _bad_patch(obj, f"strict decoding error: {', '.join(texts)}")
    if write_request.options.strict:
        text = (
            f'{resource.kind} in version "{resource.version}" cannot be handled as a '
            f"{resource.kind}: strict decoding error: {', '.join(texts)}"
        )
        raise bad_request(text)
    if write_request.options.warn and write_request.warnings is not None:
        write_request.warnings.extend(texts)


def _check_name_kept(patched: Json) -> None:
    """Reject a patch that removes the object's name or its metadata."""
    metadata = patched.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise _bad_patch(patched, "metadata is no object")
    if not (metadata or {}).get("name"):
        raise bad_request("the name of the object must be provided")


def _bad_patch(patched: Json, reason: str) -> StatusError:
    """422: the result of a patch is not a valid object."""
    problem = invalid_field("patch", encode(patched).decode(), reason)
    return invalid(Resource("", "", "", ""), "", [problem])


def _warn_unqualified_finalizers(write_request: WriteRequest, metadata: Json) -> None:
    if not write_request.kind.custom:
        return  # those of built-in kinds are rejected
    for name in metadata.get("finalizers") or ():
        if (
            write_request.warnings is not None
            and "/" not in name
            and name not in (ORPHAN, FOREGROUND)
        ):
            write_request.warnings.append(
                f'metadata.finalizers: "{name}": prefer a domain-qualified finalizer name to '
                "avoid accidental conflicts with other finalizer writers"
            )
