"""Create, update and patch: from a decoded body to a planned write.

Reading the current state and planning the write happen without an await in between, so a plan is
always based on the latest state and needs no retries; callers then wait for the disk.
"""

import random
from collections.abc import Callable

import msgspec

from ....model import names
from ..admission.attributes import AdmissionAttributes
from ..admission.responses import WebhookNeededError
from ..builtin.unenforced import warnings_on_write
from ..current_time import fixed_time, now
from ..discovery.catalog import Catalog
from ..errors.fields import invalid as invalid_field
from ..errors.status import (
    StatusError,
    already_exists,
    conflict,
    forbidden,
    invalid,
    not_found,
    qualified,
    too_busy,
)
from ..http import offload
from ..http.auth import COMPONENTS_GROUP
from ..http.requests import Json
from ..kinds.conversion import ConversionNeededError
from ..kinds.info import OFFLOAD_THRESHOLD, KindInfo
from ..kinds.metadata import TYPE_META
from ..managedfields.entries import Entries, without_times
from ..storage.object_store import ObjectStore
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import StoredObject, encode
from .admission import Admission
from .conversions import Converter
from .field_managers import FieldManagers, SentEntries, take_sent_entries
from .planned_writes import PlannedWrite, WriteResult
from .write_requests import (
    WriteRequest,
    check_body,
    check_name_kept,
    check_version,
    init_metadata,
    names_object,
    prepare_body,
    unnamed,
    warn_unqualified_finalizers,
)

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_PREFIX_LENGTH = 58
_MAX_ATTEMPTS = 5
TERMINATING = "NamespaceTerminating"

_RESIZE = "resize"
_BINDING = "binding"
"""Subresource whose writes have no field manager, as on kube-apiserver."""

_NOTHING_SENT = SentEntries(False, None)

UpdateFunc = Callable[[Json], Json]
"""Returns the updated object for the current one, both in the caller's API version."""


class Writer:
    """Plans and executes creates, updates and patches."""

    def __init__(self, store: ObjectStore, catalog: Catalog, admission: Admission) -> None:
        self.store = store
        self.admission = admission
        self.converter = Converter(admission.dynamic.client)
        self._catalog = catalog
        self.field_managers = FieldManagers(catalog)
        self._namespaces = store.resource_store(catalog.require(names.NAMESPACES))

    async def plan_and_execute(
        self, write_request: WriteRequest, plan_write: Callable[[], PlannedWrite], *, size: int
    ) -> WriteResult:
        """Execute the plan of *plan_write*, computed in a thread if *size* or the object is large.

        A plan from a thread is valid only if nothing that it read has changed since. While webhooks
        are called, other writes proceed; then the write is planned again, with their responses.

        Raises:
            StatusError: the errors of *plan_write*; 413, the object is too large; 429, too many
                concurrent changes.
        """
        if write_request.responses is None:
            return await self._plan_once(write_request, plan_write, size=size)
        warnings = write_request.warnings if write_request.warnings is not None else []
        warning_count = len(warnings)
        with fixed_time():  # else what a webhook has reviewed would differ from the next plan
            while True:
                try:
                    return await self._plan_once(write_request, plan_write, size=size)
                except (WebhookNeededError, ConversionNeededError) as needed:
                    del warnings[warning_count:]
                    await self.ask_webhooks(write_request, needed)

    async def ask_webhooks(
        self, write_request: WriteRequest, needed: WebhookNeededError | ConversionNeededError
    ) -> None:
        """Ask the webhooks that a plan of this write needs.

        Raises:
            StatusError: 429, the object changes faster than it can be reviewed or converted;
                500, it cannot be converted.
        """
        if write_request.responses is None:
            raise needed
        if isinstance(needed, ConversionNeededError):
            metadata = msgspec.json.decode(needed.data).get("metadata") or {}
            write_request.responses.count_conversion(metadata)
            await self.converter.meet(needed)
            return
        await self.admission.dynamic.ask(write_request.responses, needed)

    async def _plan_once(
        self, write_request: WriteRequest, plan_write: Callable[[], PlannedWrite], *, size: int
    ) -> WriteResult:
        self._check_served(write_request.kind)
        old = self.store.resource_store(write_request.kind).latest(*write_request.key)
        if size <= write_request.kind.offload_threshold and (
            old is None or old.size <= OFFLOAD_THRESHOLD
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
            self.check_namespace(write_request, plan.obj["metadata"])
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
            committed = self.store.pending_commit(resource_store, old) if old else None
            return WriteResult(plan.response, committed, managed=plan.managed, created=old is None)
        if plan.removed and old is not None:
            return WriteResult.from_pending(
                self.store.remove(resource_store, plan.obj, old), removed=True
            )
        pending = self.store.put(resource_store, plan.obj, old, plan.managed)
        return WriteResult.from_pending(pending)._replace(created=old is None)

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
        sent_version = str(metadata.get("resourceVersion") or "")
        resource_store = self.store.resource_store(kind)
        self.check_namespace(write_request, metadata)
        init_metadata(metadata)
        is_generated = not metadata.get("name") and bool(metadata.get("generateName"))
        if is_generated:
            metadata["name"] = _generate_name(resource_store, metadata)
        if write_request.responses is not None:
            metadata.update(write_request.responses.created)
        sent = metadata.get("managedFields")
        prepare_body(write_request, obj)
        managed = self.field_managers.created(
            kind,
            obj,
            take_sent_entries(sent, metadata),
            manager=write_request.options.field_manager,
            now=metadata["creationTimestamp"],
        )
        return self.plan_new(
            write_request,
            resource_store,
            obj,
            managed,
            is_name_generated=is_generated,
            sent_version=sent_version,
        )

    def plan_new(
        self,
        write_request: WriteRequest,
        resource_store: ResourceStore,
        obj: Json,
        managed: Entries,
        *,
        is_name_generated: bool = False,
        sent_version: str = "",
    ) -> PlannedWrite:
        """Plan to store *obj*, which is prepared and has a name, as a new object.

        *sent_version* is the resource version that the client has sent.
        """
        kind = write_request.kind
        warn_unqualified_finalizers(write_request, obj["metadata"])
        attempt = self._admission_attributes(write_request, "CREATE", obj, None)
        if is_name_generated and write_request.responses is not None:
            attempt = msgspec.structs.replace(attempt, is_name_generated=True)
        obj = self._admit(write_request, attempt, obj)
        name = obj["metadata"]["name"]
        if sent_version.isdecimal() and int(sent_version) and not write_request.options.dry_run:
            text = "resourceVersion should not be set on objects to be created"
            raise StatusError(500, "", text)
        if resource_store.latest(write_request.object_path.namespace, name) is not None:
            raise already_exists(kind.resource, name)
        obj = kind.to_stored(obj)
        response = encode(obj) if write_request.options.dry_run else None
        return PlannedWrite(resource_store, None, obj, name, response=response, managed=managed)

    def check_namespace(self, write_request: WriteRequest, metadata: Json) -> None:
        """Check that the namespace of a new object exists and may have new objects.

        Raises:
            StatusError: 403 or 404.
        """
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
        is_named = names_object(obj)
        metadata = check_body(write_request, obj)
        if not is_named:
            raise unnamed(write_request.object_path.name)
        resource_store, entry = self.get_latest(write_request)
        version = metadata.get("resourceVersion", "")
        if not version and write_request.kind.update_needs_rv:
            error = invalid_field("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid(resource, entry.name, [error], kind_name=resource.plural)
        check_version(resource, entry, version)
        uid = metadata.get("uid")
        if uid and uid != entry.uid:
            why = (
                f"Precondition failed: UID in precondition: {uid}, UID in object meta: {entry.uid}"
            )
            raise conflict(resource, entry.name, why)
        return self.plan_replacement(write_request, resource_store, entry, obj)

    def patch(self, write_request: WriteRequest, change: UpdateFunc) -> WriteResult:
        """Change the object of the request.

        Raises:
            StatusError: 400, 403, 404, 409, 413, 422, and the errors of *change*.
        """
        return self.execute(self.plan_patch(write_request, change))

    def plan_patch(
        self, write_request: WriteRequest, change: UpdateFunc, *, full: bool = False
    ) -> PlannedWrite:
        """Plan :meth:`patch`; *full*: *change* gets the object with ``managedFields``.

        Raises:
            StatusError: 400, 403, 404, 409, 422, and the errors of *change*.
        """
        resource_store, entry = self.get_latest(write_request)
        current = msgspec.json.decode(entry.full()) if full else entry.parse()
        obj = change(write_request.kind.from_stored(current))
        check_name_kept(obj, entry.name)
        metadata = check_body(write_request, obj, patched=True)
        check_version(write_request.kind.resource, entry, metadata.get("resourceVersion"))
        return self.plan_replacement(write_request, resource_store, entry, obj, patched=True)

    def update_unchecked(self, write_request: WriteRequest, change: UpdateFunc) -> WriteResult:
        """Change the stored object without the checks of users' writes.

        Raises:
            StatusError: 404, and the errors of *change*.
        """
        resource_store, entry = self.get_latest(write_request)
        changed = change(entry.parse())
        metadata = {**changed["metadata"], "resourceVersion": str(entry.rv)}
        changed = {**changed, "metadata": metadata}
        old = entry.parse()
        managed = entry.managed
        subresource = write_request.object_path.subresource
        if subresource != _BINDING and changed != old:
            # A controller's change of the status is no write of the subresource here.
            of_status = write_request.kind.has_status and old.get("status") != changed.get("status")
            managed = self._managed_after(
                write_request,
                entry,
                old=old,
                new=changed,
                subresource="status" if of_status else subresource,
            )
        return self.execute(
            _plan_replace(
                write_request,
                resource_store,
                entry,
                old=old,
                obj=changed,
                managed=managed,
                as_stored=True,
            )
        )

    def _managed_after(
        self,
        write_request: WriteRequest,
        entry: StoredObject,
        *,
        old: Json,
        new: Json,
        sent: SentEntries = _NOTHING_SENT,
        subresource: str | None = None,
    ) -> Entries:
        """Return the ``managedFields`` after an update; *subresource*: not that of the request."""
        if subresource is None:
            subresource = write_request.object_path.subresource
        return self.field_managers.updated(
            write_request.kind,
            entry.managed,
            sent,
            subresource=subresource,
            old=old,
            new=new,
            manager=write_request.options.field_manager,
            now=now(),
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

    def plan_replacement(
        self,
        write_request: WriteRequest,
        resource_store: ResourceStore,
        entry: StoredObject,
        obj: Json,
        *,
        patched: bool = False,
        managed: Entries | None = None,
    ) -> PlannedWrite:
        """Plan to replace *entry* by *obj*; *managed* are the ``managedFields`` after an apply.

        Raises:
            StatusError: 400, 403, 422.
        """
        kind, subresource = write_request.kind, write_request.object_path.subresource
        old = kind.from_stored(entry.parse())
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(entry.rv)}}
        sent = obj["metadata"].get("managedFields")
        applied = managed is not None
        of_status = kind.writes_status(subresource)
        if of_status:
            # Unchanged fields are pruned and defaulted already, and they are most of the object.
            known, obj = _split_unchanged(obj, old)
            prepare_body(write_request, obj, patched=patched, applied=applied)
            obj = {**obj, **known}  # unchanged fields hold no empty values to drop
            obj["metadata"] = dict(obj["metadata"])
        else:
            prepare_body(write_request, obj, patched=patched, applied=applied)
            kind.normalize_stored(old)
        taken = take_sent_entries(sent, obj["metadata"])
        if managed is None:
            managed = self._managed_after(write_request, entry, old=old, new=obj, sent=taken)
        strategy = kind.subresources[subresource].strategy if subresource else None
        if of_status:
            kind.before_status_update(obj, old, subresource)
        elif strategy is not None:
            kind.before_subresource_update(obj, old, strategy)
        else:
            kind.before_update(obj, old)
        if subresource:
            obj = self._admit_subresource(write_request, obj, old)
        else:
            obj = self._admit(
                write_request, self._admission_attributes(write_request, "UPDATE", obj, old), obj
            )
        return _plan_replace(
            write_request, resource_store, entry, old=old, obj=obj, managed=managed
        )

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
            dry_run=write_request.options.dry_run,
            options=write_request.options.for_review(operation)
            if write_request.responses
            else None,
            responses=write_request.responses,
        )

    def _admit_subresource(self, write_request: WriteRequest, obj: Json, old: Json) -> Json:
        """Validate a write of a subresource; webhooks and policies see all but scales."""
        kind, subresource = write_request.kind, write_request.object_path.subresource
        strategy = kind.subresources[subresource].strategy
        dynamic = self.admission.dynamic
        attributes = self._admission_attributes(write_request, "UPDATE", obj, old)
        self.admission.node_restriction.check(attributes, obj)
        reviewed = dynamic.is_configured and (subresource == "status" or strategy is not None)
        if reviewed:
            mutated = dynamic.mutate(attributes, obj, lambda changed: changed)
            if mutated is not obj and strategy is not None:
                kind.prepare(mutated)
                kind.before_subresource_update(mutated, old, strategy)
            elif mutated is not obj:
                kind.before_status_update(mutated, old)
            obj = mutated
        if strategy is not None:
            errors = strategy.validate(obj, old)
        elif kind.writes_status(subresource):
            errors = kind.validate_status(obj, old, subresource)
        else:
            errors = kind.validate(obj, old)
        if errors:
            raise invalid(kind.resource, old["metadata"]["name"], errors)
        self.admission.check_signer(write_request.user, kind, subresource, obj=obj, old=old)
        self.admission.check_claim_status(write_request.user, kind, obj=obj, old=old)
        if reviewed:
            dynamic.validate(attributes, obj)
        if subresource == _RESIZE:
            self.admission.check_resources(attributes, obj)
        if strategy is not None and attributes.warnings is not None:
            attributes.warnings.extend(
                warnings_on_write(kind.resource, obj, old, self.admission.network)
            )
        return obj

    def _admit(
        self, write_request: WriteRequest, attributes: AdmissionAttributes, obj: Json
    ) -> Json:
        """Mutate, validate, call validating webhooks: kube-apiserver's order of errors."""
        mutated = self.admission.mutate(attributes, obj)
        if mutated is not obj:
            write_request.kind.prepare(mutated)
        if attributes.old_object is None:
            write_request.kind.before_create(mutated)
        elif mutated is not obj:
            write_request.kind.before_update(mutated, attributes.old_object)
        if attributes.old_object is not None:
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
    managed: Entries,
    as_stored: bool = False,
) -> PlannedWrite:
    """Plan to replace *entry*, whose content is *old*, by the validated *obj*.

    *as_stored*: both are in the version in which the object is stored, and stay in it, so that no
    conversion can fail. Otherwise a custom object that is stored in a former storage version is
    written even if nothing changes: clients migrate it so.
    """
    kind = write_request.kind
    if (
        obj == old
        and (managed is entry.managed or without_times(managed) == without_times(entry.managed))
        and (as_stored or not kind.custom or entry.is_in(kind.stored_api_version))
    ):
        return PlannedWrite(
            resource_store, entry, obj, entry.name, response=entry.data, managed=entry.managed
        )
    if not as_stored:
        obj = kind.to_stored(obj)
    response = encode(obj) if write_request.options.dry_run else None
    return PlannedWrite(
        resource_store,
        entry,
        obj,
        entry.name,
        removed=is_deletion_complete(obj),
        response=response,
        managed=managed,
    )


def _split_unchanged(obj: Json, old: Json) -> tuple[Json, Json]:
    """Split *obj* into the fields equal to those of *old*, and the rest with version and kind.

    The former are the same objects as in *old*, so that they are compared once.
    """
    known = {key: old[key] for key, value in obj.items() if key in old and old[key] == value}
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


def _generate_name(resource_store: ResourceStore, metadata: Json) -> str:
    prefix = str(metadata["generateName"])[:_PREFIX_LENGTH]
    while True:
        name = prefix + "".join(random.choices(_SUFFIX, k=5))
        if resource_store.latest(metadata.get("namespace", ""), name) is None:
            return name
