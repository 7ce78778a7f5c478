"""Deletion: immediate, after a grace period, or when the last finalizer is removed."""

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from ....model import names, times
from ..admission.attributes import AdmissionAttributes
from ..admission.responses import WebhookNeededError
from ..current_time import current_time, now
from ..custom.crds import CLEANUP_FINALIZER, terminating_status
from ..errors.status import conflict, details_of, forbidden
from ..http.auth import APISERVER_USER
from ..http.requests import Json, ObjectPath
from ..kinds.conversion import ConversionNeededError
from ..kinds.info import KindInfo
from ..storage.resource_store import ResourceStore
from ..storage.slices import PARSED_SLICE_SIZE, select, slices
from ..storage.stored_objects import StoredObject, encode
from ..storage.watch import SelectionPredicate
from .options import DeleteOptions
from .planned_writes import WriteResult
from .write_requests import FOREGROUND, ORPHAN, WriteRequest
from .writes import Writer, is_deletion_complete

_PROTECTED_NAMESPACES = frozenset(("default", "kube-system", "kube-public"))
_FINALIZER_OF = {"Orphan": ORPHAN, "Foreground": FOREGROUND}
_DEFAULT_GRACE_PERIOD = 30


class Deleter:
    """Plans deletions."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def delete_reviewed(
        self, write_request: WriteRequest, options: DeleteOptions
    ) -> WriteResult:
        """Delete the object of the request once webhooks have reviewed the deletion.

        Raises:
            StatusError: 403, 404, 409, 429, or the error of a webhook.
        """
        warnings = write_request.warnings if write_request.warnings is not None else []
        warning_count = len(warnings)
        while True:
            try:
                return self.delete(write_request, options)
            except (WebhookNeededError, ConversionNeededError) as needed:
                del warnings[warning_count:]
                await self._writer.ask_webhooks(write_request, needed)

    def delete(self, write_request: WriteRequest, options: DeleteOptions) -> WriteResult:
        """Delete the object of the request, or mark it for deletion.

        Raises:
            StatusError: 403, 404, 409.
            WebhookNeededError: webhooks must be called first; the request collects responses.
        """
        resource_store, entry = self._writer.get_latest(write_request)
        kind = write_request.kind
        _check_preconditions(write_request, entry, options)
        if kind.resource == names.NAMESPACES and entry.name in _PROTECTED_NAMESPACES:
            raise forbidden(kind.resource, entry.name, "this namespace may not be deleted")
        old = reviewed = entry.parse()
        if write_request.user is not APISERVER_USER:
            reviewed = kind.from_stored(entry.parse())  # a failing conversion fails the deletion
        self._writer.admission.validate(
            AdmissionAttributes(
                operation="DELETE",
                kind=kind,
                namespace=entry.namespace,
                name=entry.name,
                old_object=reviewed,
                user=write_request.user,
                object_path=write_request.object_path,
                warnings=write_request.warnings,
                dry_run=options.dry_run,
                options=options.for_review() if write_request.responses else None,
                responses=write_request.responses,
            ),
            None,
        )
        obj = {**old, "metadata": dict(old["metadata"])}
        _set_propagation_finalizer(obj, options.propagation_policy, kind)
        _set_deletion_timestamp(write_request, obj, options.grace_period)
        if options.dry_run:
            removed = is_deletion_complete(obj)
            # As below: the last state is the previous one.
            return WriteResult(
                encode(old if removed and kind.resource != names.PODS else obj),
                removed=removed,
                uid=entry.uid,
                managed=entry.managed,
            )
        return self._write_deletion(write_request, resource_store, entry, old=old, obj=obj)

    def _write_deletion(
        self,
        write_request: WriteRequest,
        resource_store: ResourceStore,
        entry: StoredObject,
        *,
        old: Json,
        obj: Json,
    ) -> WriteResult:
        store = self._writer.store
        if is_deletion_complete(obj):
            if (
                "deletionTimestamp" not in old["metadata"]
                and write_request.kind.resource != names.PODS
            ):
                # Immediate deletion: the last state is the previous one.
                obj = old
            removed = store.remove(resource_store, obj, entry)
            return WriteResult.from_pending(removed, removed=True)
        if obj == old:
            committed = store.pending_commit(resource_store, entry)
            return WriteResult(entry.data, committed, uid=entry.uid, managed=entry.managed)
        return WriteResult.from_pending(store.put(resource_store, obj, entry))

    async def delete_collection(
        self,
        write_request: WriteRequest,
        selection: SelectionPredicate,
        options: DeleteOptions,
        *,
        limit: int = 0,
    ) -> Sequence[StoredObject]:
        """Delete the selected objects; return them as they were.

        Raises:
            StatusError: 403; 500, they cannot be converted.
        """
        resource_store = self._writer.store.resource_store(write_request.kind)
        entries = await self._writer.converter.in_version_of(
            write_request.kind, resource_store.ordered(selection.namespace)
        )
        wanted = await select(entries, selection, limit=limit)
        if limit:
            wanted = wanted[:limit]
        await self.delete_each(write_request, wanted, options)
        return wanted

    async def delete_each(
        self, write_request: WriteRequest, entries: Sequence[StoredObject], options: DeleteOptions
    ) -> None:
        """Delete those of *entries* that still exist, slice by slice.

        Raises:
            StatusError: 403, 409; some of them are deleted already.
        """
        resource_store = self._writer.store.resource_store(write_request.kind)
        async for batch in slices(entries, PARSED_SLICE_SIZE):
            deletions = []
            for entry in batch:
                latest = resource_store.latest(*entry.key)
                if latest is not None and latest.uid == entry.uid:
                    target = ObjectPath(namespace=entry.namespace, name=entry.name)
                    aimed = _with_object_path(write_request, target)
                    deletions.append(await self.delete_reviewed(aimed, options))
            for written in deletions:
                await written.committed()


def propagation_warnings(kind: KindInfo, options: DeleteOptions) -> list[str]:
    """Return a warning if a deletion keeps the dependents although its options do not ask for it.

    As kube-apiserver, which does not warn of ReplicationControllers.
    """
    if options.propagation_policy or not kind.orphan_by_default or not kind.resource.group:
        return []
    return [
        f"child pods are preserved by default when {kind.resource.plural} are deleted; set "
        "propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress "
        "this warning"
    ]


def deletion_status(write_request: WriteRequest, written: WriteResult) -> Json:
    """Return the Status of a completed deletion, for kinds that do not return the object."""
    details = details_of(write_request.kind.resource, write_request.object_path.name)
    details["uid"] = written.uid
    head = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    return {**head, "details": details}


def _with_object_path(write_request: WriteRequest, object_path: ObjectPath) -> WriteRequest:
    return msgspec.structs.replace(write_request, object_path=object_path)


def _check_preconditions(
    write_request: WriteRequest, entry: StoredObject, options: DeleteOptions
) -> None:
    resource = write_request.kind.resource
    named_by_kind = resource._replace(plural=resource.kind)
    if options.uid is not None and options.uid != entry.uid:
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record "
            f"({entry.uid}). The object might have been deleted and then recreated"
        )
        raise conflict(named_by_kind, entry.name, why, kind=resource.kind)
    if options.resource_version is not None and options.resource_version != str(entry.rv):
        why = (
            f"the ResourceVersion in the precondition ({options.resource_version}) does not match "
            f"the ResourceVersion in record ({entry.rv}). The object might have been modified"
        )
        raise conflict(named_by_kind, entry.name, why, kind=resource.kind)


def _set_propagation_finalizer(obj: Json, policy: str, kind: KindInfo) -> None:
    """Set the finalizer for the garbage collector that *policy* requires.

    Without a policy, finalizers that are there decide, and then the kind.
    """
    if not policy:
        finalizers = obj["metadata"].get("finalizers") or ()
        if not kind.orphan_by_default or ORPHAN in finalizers or FOREGROUND in finalizers:
            return
        policy = "Orphan"
    metadata = obj["metadata"]
    before = metadata.get("finalizers") or []
    kept = [name for name in before if name not in (ORPHAN, FOREGROUND)]
    if policy in _FINALIZER_OF:
        kept.append(_FINALIZER_OF[policy])
    if kept:
        metadata["finalizers"] = kept
    else:
        metadata.pop("finalizers", None)


def _set_deletion_timestamp(
    write_request: WriteRequest, obj: Json, grace_period: int | None
) -> None:
    metadata = obj["metadata"]
    kind = write_request.kind
    seconds = _pod_grace_period(obj, grace_period) if kind.resource == names.PODS else 0
    if "deletionTimestamp" not in metadata:
        moment = current_time() + timedelta(seconds=seconds)
        metadata["deletionTimestamp"] = times.format(moment)
        if kind.resource == names.CRDS:
            _mark_crd_terminating(obj)
            return
        if kind.resource == names.NAMESPACES:
            obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
            return
        metadata["deletionGracePeriodSeconds"] = seconds
        if "generation" in metadata:
            metadata["generation"] += 1
        return
    before = metadata.get("deletionGracePeriodSeconds", 0)
    if (
        kind.resource == names.PODS
        and seconds < before
        and (grace_period is not None or not seconds)
    ):
        metadata["deletionGracePeriodSeconds"] = seconds
        earlier = times.parse(metadata["deletionTimestamp"]) - timedelta(seconds=before - seconds)
        metadata["deletionTimestamp"] = times.format(earlier)


def _mark_crd_terminating(obj: Json) -> None:
    finalizers = obj["metadata"].get("finalizers") or []
    if CLEANUP_FINALIZER not in finalizers:
        obj["metadata"]["finalizers"] = [*finalizers, CLEANUP_FINALIZER]
    obj["status"] = terminating_status(obj, now())


def _pod_grace_period(pod: Json, requested: int | None) -> int:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0
    seconds = requested
    if seconds is None:
        seconds = spec.get("terminationGracePeriodSeconds", _DEFAULT_GRACE_PERIOD)
    return 1 if seconds < 0 else int(seconds)
