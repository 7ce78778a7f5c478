"""Create, update, patch: from a decoded body to a decided write.

Everything from looking at the current state to deciding the write happens without a pause, so a
write is always decided on the newest state and needs no retries; callers then wait for the disk.
"""

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from ...local.tokens import COMPONENTS
from ...model import names, times
from ...model.names import Resource
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
    stale,
    too_busy,
)
from ..http import offload
from ..http.auth import SYSTEM, User
from ..http.offload import LARGE
from ..http.requests import Json, Target
from ..kinds.info import KindInfo
from ..storage.object_store import Pending, Registry, Shelf
from ..storage.stored_objects import Entry, encode, new_uid
from .admission import Admission, Attempt
from .options import INTERNAL, WriteOptions

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_PREFIX_LENGTH = 58
_KIND = ("apiVersion", "kind")
_TRIES = 5
TERMINATING = "NamespaceTerminating"
ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"
"""The finalizers by which a deletion asks the garbage collector to go first."""

Change = Callable[[Json], Json]
"""Turns the current object, as the caller's version shows it, into the wanted one."""


class Written(NamedTuple):
    """What a write led to; tell nobody before :meth:`wait_written`."""

    data: bytes
    done: "asyncio.Future[None] | None" = None
    removed: bool = False
    uid: str = ""

    async def settled(self) -> bytes:
        """The object, once it is on disk.

        Raises:
            StatusError: 500, the disk refused.
        """
        if self.done is not None:
            await self.done
        return self.data


class Plan(NamedTuple):
    """A write that is decided against what its shelf held then, and has changed nothing yet."""

    shelf: Shelf
    old: Entry | None
    """What it replaces."""

    obj: Json
    """What it stores, in the stored version."""

    name: str
    removed: bool = False
    """The object goes with this write."""

    made: bytes | None = None
    """What a write that stores nothing answers: a dry run, or no change."""


class Call(msgspec.Struct, kw_only=True):
    """Who writes what, and how."""

    kind: KindInfo
    target: Target
    user: User = SYSTEM
    options: WriteOptions = INTERNAL
    warnings: list[str] | None = None
    """Where to say what is odd but accepted."""

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.target.namespace, self.target.name


class Writer:
    """Decides creates, updates and patches."""

    def __init__(self, registry: Registry, catalog: Catalog, admission: Admission) -> None:
        self.registry = registry
        self.admission = admission
        self._catalog = catalog
        self._namespaces = registry.shelf(catalog.known(names.NAMESPACES))

    async def decide(self, call: Call, make: Callable[[], Plan], *, size: int) -> Written:
        """Carry out the plan that *make* makes, in a thread if *size* or the object is large.

        Such a plan counts only if nothing that it read has changed meanwhile.

        Raises:
            StatusError: whatever *make* raises; 413 the object is too large; 429 there was no end
                of changes.
        """
        self._check_served(call.kind)
        old = self.registry.shelf(call.kind).latest(*call.key)
        if size <= call.kind.large and (old is None or len(old.data) <= LARGE):
            return self.carry_out(make())
        warnings = call.warnings if call.warnings is not None else []
        said = len(warnings)
        for _ in range(_TRIES):
            del warnings[said:]
            plan, reads = await offload.run(lambda: self.admission.noting_reads(make))
            self._check_served(call.kind)
            if self._still_holds(call, plan) and all(unchanged() for unchanged in reads):
                return self.carry_out(plan)
        raise too_busy()

    def _check_served(self, kind: KindInfo) -> None:
        """Refuse a write that was begun when the kind was defined otherwise."""
        resource = kind.resource
        if self._catalog.get(resource.group, resource.version, resource.plural) is not kind:
            raise too_busy()

    def _still_holds(self, call: Call, plan: Plan) -> bool:
        if plan.old is None:
            self._check_namespace(call, plan.obj["metadata"])
        return plan.shelf.latest(call.target.namespace, plan.name) is plan.old

    def carry_out(self, plan: Plan) -> Written:
        """Queue a write that is decided.

        Raises:
            StatusError: 413, the object is too large.
        """
        shelf, old = plan.shelf, plan.old
        if plan.made is not None:
            return Written(plan.made, self.registry.settled(shelf, old) if old else None)
        if plan.removed and old is not None:
            return _written(self.registry.remove(shelf, plan.obj, old), removed=True)
        return _written(self.registry.put(shelf, plan.obj, old))

    def create(self, call: Call, obj: Json) -> Written:
        """Make a new object of *obj*, which becomes the server's.

        Raises:
            StatusError: 400, 403, 404, 409, 413, 422, 500.
        """
        return self.carry_out(self.plan_create(call, obj))

    def plan_create(self, call: Call, obj: Json) -> Plan:
        """Decide what :meth:`create` does.

        Raises:
            StatusError: 400, 403, 404, 409, 422, 500.
        """
        kind = call.kind
        metadata = check_body(call, obj)
        if metadata.get("resourceVersion"):
            text = "resourceVersion should not be set on objects to be created"
            raise StatusError(500, "", text)
        shelf = self.registry.shelf(kind)
        self._check_namespace(call, metadata)
        _start_metadata(metadata)
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = _generate(shelf, metadata)
        prepare_body(call, obj)
        _mind_finalizers(call, metadata)
        kind.before_create(obj)
        attempt = self._attempt(call, "CREATE", obj, None)
        obj = self._admit(call, attempt, obj)
        name = obj["metadata"]["name"]
        if shelf.latest(call.target.namespace, name) is not None:
            raise already_exists(kind.resource, name)
        made = encode(obj) if call.options.dry_run else None
        return Plan(shelf, None, kind.to_stored(obj), name, made=made)

    def _check_namespace(self, call: Call, metadata: Json) -> None:
        namespace = call.target.namespace
        resource = call.kind.resource
        if call.kind.custom and qualified(resource) in self._catalog.terminating:
            why = "create not allowed while custom resource definition is terminating"
            raise forbidden(resource, metadata.get("name", ""), why)
        if not call.kind.resource.namespaced:
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
            raise forbidden(call.kind.resource, name, why, causes=[cause])

    def plan_update(self, call: Call, obj: Json) -> Plan:
        """Decide to put *obj* in the place of the object that the call names.

        Raises:
            StatusError: 400, 403, 404, 409, 422.
        """
        resource = call.kind.resource
        metadata = check_body(call, obj)
        if not metadata.get("name"):
            raise bad_request("the name of the object must be provided")
        shelf, entry = self.current(call)
        version = metadata.get("resourceVersion", "")
        if not version and call.kind.update_needs_rv:
            error = invalid_field("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid(resource, entry.name, [error], said=resource.plural)
        if version and version != str(entry.rv):
            raise stale(resource, entry.name)
        uid = metadata.get("uid")
        if uid and uid != entry.uid:
            why = (
                f"Precondition failed: UID in precondition: {uid}, UID in object meta: {entry.uid}"
            )
            raise conflict(resource, entry.name, why)
        return self._replace(call, shelf, entry, obj)

    def patch(self, call: Call, change: Change) -> Written:
        """Change the object that the call names.

        Raises:
            StatusError: 400, 403, 404, 409, 413, 422, and whatever *change* raises.
        """
        return self.carry_out(self.plan_patch(call, change))

    def plan_patch(self, call: Call, change: Change) -> Plan:
        """Decide what :meth:`patch` does.

        Raises:
            StatusError: 400, 403, 404, 409, 422, and whatever *change* raises.
        """
        shelf, entry = self.current(call)
        obj = change(call.kind.from_stored(entry.parse()))
        _check_still_named(obj)
        metadata = check_body(call, obj)
        if metadata.get("resourceVersion", str(entry.rv)) != str(entry.rv):
            raise stale(call.kind.resource, entry.name)
        return self._replace(call, shelf, entry, obj, patched=True)

    def put(self, call: Call, change: Change) -> Written:
        """Change the object that the call names as it is, without rules for users' writes.

        Raises:
            StatusError: 404, and whatever *change* raises.
        """
        shelf, entry = self.current(call)
        changed = change(entry.parse())
        metadata = {**changed["metadata"], "resourceVersion": str(entry.rv)}
        changed = {**changed, "metadata": metadata}
        return self.carry_out(_plan_store(call, shelf, entry, old=entry.parse(), obj=changed))

    def current(self, call: Call) -> tuple[Shelf, Entry]:
        """The object that the call names, as the next write finds it.

        Raises:
            StatusError: 404.
        """
        shelf = self.registry.shelf(call.kind)
        entry = shelf.latest(*call.key)
        if entry is None:
            raise not_found(call.kind.resource, call.target.name)
        return shelf, entry

    def _replace(
        self, call: Call, shelf: Shelf, entry: Entry, obj: Json, *, patched: bool = False
    ) -> Plan:
        kind = call.kind
        old = kind.from_stored(entry.parse())
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(entry.rv)}}
        if call.target.subresource == "status":
            # What is as it was is clean and complete already, and it is most of the object.
            known, obj = _apart(obj, old)
            prepare_body(call, obj, patched=patched)
            obj = {**obj, **known}  # what is known was not empty
            obj["metadata"] = dict(obj["metadata"])
            kind.before_status_update(obj, old)
        else:
            prepare_body(call, obj, patched=patched)
            kind.renew(old)
            kind.before_update(obj, old)
        if call.target.subresource:
            errors = kind.validate(obj, old)
            if errors:
                raise invalid(kind.resource, entry.name, errors)
        else:
            obj = self._admit(call, self._attempt(call, "UPDATE", obj, old), obj)
        return _plan_store(call, shelf, entry, old=old, obj=obj)

    def _attempt(self, call: Call, operation: str, obj: Json, old: Json | None) -> Attempt:
        return Attempt(
            operation=operation,
            kind=call.kind,
            namespace=call.target.namespace,
            name=obj["metadata"].get("name", ""),
            old=old,
            user=call.user.name,
            # Our own parts have told the user already, of the object that they act on.
            warnings=None if COMPONENTS in call.user.groups else call.warnings,
        )

    def _admit(self, call: Call, attempt: Attempt, obj: Json) -> Json:
        """Mutate, check, let validate: the order in which a real server refuses."""
        mutated = self.admission.mutate(attempt, obj)
        if mutated is not obj:
            call.kind.prepare(mutated)
            if attempt.old is None:
                call.kind.before_create(mutated)  # what it begins with may follow from it
            else:
                # Defaults that were put back are no change.
                call.kind.count_generation(mutated, attempt.old)
        errors = call.kind.validate(mutated, attempt.old)
        if errors:
            raise invalid(call.kind.stored_as or call.kind.resource, attempt.name, errors)
        self.admission.validate(attempt, mutated)
        return mutated


def _plan_store(call: Call, shelf: Shelf, entry: Entry, *, old: Json, obj: Json) -> Plan:
    """Decide to put the checked *obj* in the place of *entry*, whose content is *old*."""
    if obj == old:
        return Plan(shelf, entry, obj, entry.name, made=entry.data)
    made = encode(obj) if call.options.dry_run else None
    obj = call.kind.to_stored(obj)
    return Plan(shelf, entry, obj, entry.name, removed=is_finished(obj), made=made)


def check_body(call: Call, obj: Any) -> Json:
    """Check that a body is an object of the call's kind and place; returns its metadata.

    Raises:
        StatusError: 400.
    """
    resource, target = call.kind.resource, call.target
    if not isinstance(obj, dict):
        raise bad_request("the body is no object")
    if call.kind.custom and not obj.get("kind"):
        text = (
            f"the object provided is unrecognized (must be of type {resource.kind}): Object 'Kind' "
            "is missing"
        )
        raise bad_request(text)
    said = obj.setdefault("apiVersion", resource.api_version) or resource.api_version
    if said != resource.api_version:
        text = (
            f"the API version in the data ({said}) does not match the expected API version "
            f"({resource.api_version})"
        )
        raise bad_request(text)
    # Of a custom object, the wrong kind is one complaint among others.
    said_kind = obj.setdefault("kind", resource.kind) or resource.kind
    if said_kind != resource.kind and not call.kind.custom:
        text = (
            f'{obj["kind"]} in version "{resource.version}" cannot be handled as a {resource.kind}'
        )
        raise bad_request(text)
    metadata = obj.setdefault("metadata", {})
    if metadata is None:
        metadata = obj["metadata"] = {}
    if not isinstance(metadata, dict):
        raise bad_request("metadata is no object")
    _check_place(call, metadata, target)
    return metadata


def _check_place(call: Call, metadata: Json, target: Target) -> None:
    if call.kind.resource.namespaced:
        if metadata.setdefault("namespace", target.namespace) != target.namespace:
            if metadata["namespace"]:
                text = (
                    "the namespace of the provided object does not match the namespace sent on "
                    "the request"
                )
                raise bad_request(text)
            metadata["namespace"] = target.namespace
    elif not metadata.get("namespace", True):
        del metadata["namespace"]
    if target.name and metadata.setdefault("name", target.name) != target.name:
        text = (
            f"the name of the object ({metadata['name']}) does not match the name on the URL "
            f"({target.name})"
        )
        raise bad_request(text)


def _apart(obj: Json, old: Json) -> tuple[Json, Json]:
    """*obj* in two: what *old* has just so, and what is new, with version and kind."""
    known = {key: value for key, value in obj.items() if key in old and old[key] == value}
    new = {key: value for key, value in obj.items() if key in _KIND or key not in known}
    return known, new


def is_finished(obj: Json) -> bool:
    """Whether nothing keeps a deleted object any more."""
    metadata = obj["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return False
    if metadata.get("deletionGracePeriodSeconds"):
        return False
    return not (obj["kind"] == "Namespace" and (obj.get("spec") or {}).get("finalizers"))


def now() -> str:
    """The time, as objects carry it."""
    return times.format(datetime.now(UTC))


def _start_metadata(metadata: Json) -> None:
    for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"):
        metadata.pop(key, None)
    metadata.pop("resourceVersion", None)
    metadata["uid"] = new_uid()
    metadata["creationTimestamp"] = now()


def _generate(shelf: Shelf, metadata: Json) -> str:
    prefix = str(metadata["generateName"])[:_PREFIX_LENGTH]
    while True:
        name = prefix + "".join(random.choices(_SUFFIX, k=5))
        if shelf.latest(metadata.get("namespace", ""), name) is None:
            return name


def prepare_body(call: Call, obj: Json, *, patched: bool = False) -> None:
    """Prune and default; what was unknown is refused, told or forgotten.

    Raises:
        StatusError: 400, or for patches 422.
    """
    resource = call.kind.resource
    try:
        unknown = call.kind.prepare(obj)
    except MalformedError as error:
        raise _bad_patch(obj, str(error)) if patched else bad_request(str(error)) from error
    if not unknown:
        return
    said = [f'unknown field "{path}"' for path in unknown]
    if call.options.strict and patched:
        raise _bad_patch(obj, f"strict decoding error: {', '.join(said)}")
    if call.options.strict:
        text = (
            f'{resource.kind} in version "{resource.version}" cannot be handled as a '
            f"{resource.kind}: strict decoding error: {', '.join(said)}"
        )
        raise bad_request(text)
    if call.options.warn and call.warnings is not None:
        call.warnings.extend(said)


def _check_still_named(patched: Json) -> None:
    """Refuse a patch that would take an object's name, and all else that its metadata says."""
    metadata = patched.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise _bad_patch(patched, "metadata is no object")
    if not (metadata or {}).get("name"):
        raise bad_request("the name of the object must be provided")


def _bad_patch(patched: Json, why: str) -> StatusError:
    """422: what a patch makes is no object of its kind."""
    problem = invalid_field("patch", encode(patched).decode(), why)
    return invalid(Resource("", "", "", ""), "", [problem])


def _mind_finalizers(call: Call, metadata: Json) -> None:
    if not call.kind.custom:
        return  # of built-in kinds they are refused
    for name in metadata.get("finalizers") or ():
        if call.warnings is not None and "/" not in name and name not in (ORPHAN, FOREGROUND):
            call.warnings.append(
                f'metadata.finalizers: "{name}": prefer a domain-qualified finalizer name to '
                "avoid accidental conflicts with other finalizer writers"
            )


def _written(pending: Pending, *, removed: bool = False) -> Written:
    entry = pending.entry
    return Written(entry.data, pending.done, removed, entry.uid)
