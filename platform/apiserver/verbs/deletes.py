"""Deletion: at once, after a grace period, or when the last finalizer is gone."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec

from ...model import names, times
from ..custom.crds import CLEANUP_FINALIZER, terminating_status
from ..errors.status import conflict, details_of, forbidden
from ..http.requests import Json, Target
from ..storage.object_store import Pending, Shelf
from ..storage.slices import PARSED, select, slices
from ..storage.stored_objects import Entry, encode
from ..storage.watch import Selection
from .admission import Attempt
from .options import DeleteOptions
from .writes import FOREGROUND, ORPHAN, Call, Writer, Written, is_finished, now

_PROTECTED = frozenset(("default", "kube-system", "kube-public"))
_FINALIZER_OF = {"Orphan": ORPHAN, "Foreground": FOREGROUND}
_DEFAULT_GRACE = 30


class Deleter:
    """Decides deletions."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def delete(self, call: Call, options: DeleteOptions) -> Written:
        """Delete the object that the call names, or begin to.

        Raises:
            StatusError: 403, 404, 409.
        """
        shelf, entry = self._writer.current(call)
        kind = call.kind
        _check_conditions(call, entry, options)
        if kind.resource == names.NAMESPACES and entry.name in _PROTECTED:
            raise forbidden(kind.resource, entry.name, "this namespace may not be deleted")
        old = entry.parse()
        self._writer.admission.validate(
            Attempt(
                operation="DELETE",
                kind=kind,
                namespace=entry.namespace,
                name=entry.name,
                old=old,
                user=call.user.name,
            ),
            None,
        )
        obj = {**old, "metadata": dict(old["metadata"])}
        _mark_policy(obj, options.policy)
        _mark_deleted(call, obj, options.grace)
        if options.dry_run:
            return Written(encode(obj), removed=is_finished(obj), uid=entry.uid)
        return self._decide(call, shelf, entry, old=old, obj=obj)

    def _decide(self, call: Call, shelf: Shelf, entry: Entry, *, old: Json, obj: Json) -> Written:
        registry = self._writer.registry
        if is_finished(obj):
            if "deletionTimestamp" not in old["metadata"] and call.kind.resource != names.PODS:
                # Gone at once: its last state is the one that everybody knew.
                obj = old
            removed = registry.remove(shelf, obj, entry)
            return _written(removed, removed=True)
        if obj == old:
            settled = registry.settled(shelf, entry)
            return Written(entry.data, settled, uid=entry.uid)
        return _written(registry.put(shelf, obj, entry))

    async def delete_collection(
        self, call: Call, selection: Selection, options: DeleteOptions, *, limit: int = 0
    ) -> Sequence[Entry]:
        """Delete a selection; returns the objects as they were.

        Raises:
            StatusError: 403.
        """
        shelf = self._writer.registry.shelf(call.kind)
        wanted = await select(shelf.ordered(selection.namespace), selection, limit=limit)
        if limit:
            wanted = wanted[:limit]
        await self.delete_each(call, wanted, options)
        return wanted

    async def delete_each(
        self, call: Call, entries: Sequence[Entry], options: DeleteOptions
    ) -> None:
        """Delete those of *entries* that are still there, slice by slice.

        Raises:
            StatusError: 403, 409; some of them are deleted then.
        """
        shelf = self._writer.registry.shelf(call.kind)
        async for part in slices(entries, PARSED):
            deletions = []
            for entry in part:
                latest = shelf.latest(*entry.key)
                if latest is not None and latest.uid == entry.uid:
                    target = Target(namespace=entry.namespace, name=entry.name)
                    deletions.append(self.delete(_aimed(call, target), options))
            for written in deletions:
                await written.settled()


def deletion_status(call: Call, written: Written) -> Json:
    """What a deletion that took effect answers, for kinds that do not return the object."""
    details = details_of(call.kind.resource, call.target.name)
    details["uid"] = written.uid
    head = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    return {**head, "details": details}


def _aimed(call: Call, target: Target) -> Call:
    return msgspec.structs.replace(call, target=target)


def _check_conditions(call: Call, entry: Entry, options: DeleteOptions) -> None:
    resource = call.kind.resource
    said = replace(resource, plural=resource.kind)
    if options.uid is not None and options.uid != entry.uid:
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record "
            f"({entry.uid}). The object might have been deleted and then recreated"
        )
        raise conflict(said, entry.name, why, kind=resource.kind)
    if options.version is not None and options.version != str(entry.rv):
        why = (
            f"the ResourceVersion in the precondition ({options.version}) does not match the "
            f"ResourceVersion in record ({entry.rv}). The object might have been modified"
        )
        raise conflict(said, entry.name, why, kind=resource.kind)


def _mark_policy(obj: Json, policy: str) -> None:
    """Give the object the finalizer that asks the garbage collector for what *policy* says."""
    if not policy:
        return
    metadata = obj["metadata"]
    before = metadata.get("finalizers") or []
    kept = [name for name in before if name not in (ORPHAN, FOREGROUND)]
    if policy in _FINALIZER_OF:
        kept.append(_FINALIZER_OF[policy])
    if kept:
        metadata["finalizers"] = kept
    else:
        metadata.pop("finalizers", None)


def _mark_deleted(call: Call, obj: Json, grace: int | None) -> None:
    metadata = obj["metadata"]
    kind = call.kind
    seconds = _pod_grace(obj, grace) if kind.resource == names.PODS else 0
    if "deletionTimestamp" not in metadata:
        moment = datetime.now(UTC) + timedelta(seconds=seconds)
        metadata["deletionTimestamp"] = times.format(moment)
        if kind.resource == names.CRDS:
            _mark_definition(obj)
            return
        if kind.resource == names.NAMESPACES:
            obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
            return
        metadata["deletionGracePeriodSeconds"] = seconds
        if "generation" in metadata:
            metadata["generation"] += 1
        return
    before = metadata.get("deletionGracePeriodSeconds", 0)
    if kind.resource == names.PODS and seconds < before and (grace is not None or not seconds):
        metadata["deletionGracePeriodSeconds"] = seconds
        earlier = times.parse(metadata["deletionTimestamp"]) - timedelta(seconds=before - seconds)
        metadata["deletionTimestamp"] = times.format(earlier)


def _mark_definition(obj: Json) -> None:
    finalizers = obj["metadata"].get("finalizers") or []
    if CLEANUP_FINALIZER not in finalizers:
        obj["metadata"]["finalizers"] = [*finalizers, CLEANUP_FINALIZER]
    obj["status"] = terminating_status(obj, now())


def _pod_grace(pod: Json, asked: int | None) -> int:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0
    seconds = asked
    if seconds is None:
        seconds = spec.get("terminationGracePeriodSeconds", _DEFAULT_GRACE)
    return 1 if seconds < 0 else int(seconds)


def _written(pending: Pending, *, removed: bool = False) -> Written:
    entry = pending.entry
    return Written(entry.data, pending.done, removed, entry.uid)
