"""Who owns which fields after a write, and the result of a server-side apply.

All objects here are in the API version of the request and without ``managedFields``.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from ..kinds.info import KindInfo
from . import fieldsets, type_checks, typed
from .entries import (
    APPLY,
    MAX_CACHED_LENGTH,
    UPDATE,
    Identity,
    Owner,
    Owners,
    identity_of,
    identity_text,
    parsed_fields,
)
from .fieldsets import FieldSet, Path, difference, recursive_difference, union, union_of
from .reset_fields import reset_fields
from .typed import TypeMismatchError
from .types import FieldType, type_of_kind

Json = dict[str, Any]

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
KUBECTL = "kubectl"
BEFORE_FIRST_APPLY = "before-first-apply"
ANCIENT_CHANGES = "ancient-changes"
MAX_UPDATE_MANAGERS = 10
"""Entries of updates; the oldest ones are merged into one beyond."""

_METADATA = "f:metadata"
_WITHOUT_OWNER = (fieldsets.SELF, "f:apiVersion", "f:kind", _METADATA)
_METADATA_WITHOUT_OWNER = frozenset(
    (
        fieldsets.SELF,
        "f:name",
        "f:namespace",
        "f:creationTimestamp",
        "f:selfLink",
        "f:uid",
        "f:clusterName",
        "f:generation",
        "f:managedFields",
        "f:resourceVersion",
    )
)


class Conflict(NamedTuple):
    """A field that another manager owns."""

    identity: Identity
    path: Path


class ApplyConflictError(Exception):
    """An apply without force would change fields of other managers."""

    def __init__(self, conflicts: list[Conflict]) -> None:
        super().__init__(f"{len(conflicts)} conflicts")
        self.conflicts = conflicts


class Changes(NamedTuple):
    """What a write changes, as far as it has owners."""

    removed: FieldSet
    changed: FieldSet
    """Paths of the values that it sets."""


class Target:
    """What is written: a kind in one API version, or a subresource of it."""

    __slots__ = ("_ignored", "api_version", "kind", "kind_at", "subresource", "type")

    def __init__(
        self, kind: KindInfo, subresource: str, kind_at: Callable[[str], KindInfo | None]
    ) -> None:
        self.kind = kind
        self.subresource = subresource
        self.kind_at = kind_at
        """Returns the same kind in another API version; ``None`` if it is not served."""
        self.api_version = kind.resource.api_version
        self.type: FieldType = type_of_kind(kind)
        self._ignored = reset_fields(kind, subresource)

    def filtered(self, fields: FieldSet, api_version: str) -> FieldSet:
        """Return *fields* without those that writes of this target do not set."""
        if not fields or not self._ignored or api_version != self.api_version:
            return fields
        return recursive_difference(fields, self._ignored)

    def converted(self, obj: Any, api_version: str) -> tuple[FieldType, Any] | None:
        """Return *obj* in another version with its type; ``None`` if that is not served."""
        if api_version == self.api_version:
            return self.type, obj
        kind = self.kind_at(api_version)
        if kind is None:
            return None
        if not obj:
            return type_of_kind(kind), obj
        return type_of_kind(kind), kind.from_stored(self.kind.to_stored(dict(obj)))

    def compare(self, old: Any, new: Any, api_version: str) -> Changes | None:
        """Return what differs in a version, but for reset fields; ``None`` if it is not served."""
        before, after = self.converted(old, api_version), self.converted(new, api_version)
        if before is None or after is None:
            return None
        found = typed.compare(before[0], before[1], after[1])
        return Changes(
            self.filtered(found.removed, api_version),
            self.filtered(union(found.modified, found.added), api_version),
        )


def create(target: Target, *, empty: Json, new: Json, manager: str, now: str) -> Owners:
    """Return the owner of the new object *new*; see :func:`update`.

    Raises:
        TypeMismatchError: the object does not have the type of its kind.
    """
    version = target.api_version
    fields = target.filtered(typed.set_in_new(target.type, empty, new), version)
    fields = _with_owner(fields)
    if not fields:
        return {}
    identity = identity_of(manager, UPDATE, version, target.subresource)
    return {identity: Owner(version, fields, now)}


def update(
    target: Target, owners: Owners, *, old: Json, new: Json, manager: str, now: str
) -> Owners:
    """Return the owners after *manager* has replaced *old* by *new*.

    *old* is the empty object of the kind for a create. Nothing is tracked in objects that have no
    owners, until they are applied.

    Raises:
        TypeMismatchError: an object does not have the type of its kind.
    """
    if not owners and old.get("metadata", {}).get("uid"):
        return owners
    return _cap(_update(target, owners, old=old, new=new, manager=manager, now=now))


def _update(
    target: Target, owners: Owners, *, old: Json, new: Json, manager: str, now: str
) -> Owners:
    version = target.api_version
    own = target.compare(old, new, version) or _NO_CHANGES
    owners = _adapted(target, owners)
    if own == _NO_CHANGES and all(owner.api_version == version for owner in owners.values()):
        return {each: owner for each, owner in owners.items() if owner.fields}
    identity = identity_of(manager, UPDATE, version, target.subresource)
    comparisons: dict[str, Changes | None] = {version: own}
    owners, conflicts = _resolve(target, owners, comparisons, old=old, new=new, writer=identity)
    for other, fields in conflicts.items():
        owners[other] = _without(owners[other], fields)
    previous = owners.get(identity)
    if previous is not None and own.removed:
        previous = owners[identity] = _without(previous, own.removed)
    owners = {each: owner for each, owner in owners.items() if owner.fields}
    fields = _with_owner(own.changed)
    if fields:
        owners[identity] = _with_fields(previous, version, fields, now)
    return owners


def _with_owner(fields: FieldSet) -> FieldSet:
    """Return *fields* without those that have no owner."""
    found = {key: node for key, node in fields.items() if key not in _WITHOUT_OWNER}
    metadata = {
        key: node
        for key, node in fields.get(_METADATA, {}).items()
        if key not in _METADATA_WITHOUT_OWNER
    }
    if metadata:
        found[_METADATA] = metadata
    return found


_NO_CHANGES = Changes({}, {})


def _with_fields(previous: Owner | None, version: str, fields: FieldSet, now: str) -> Owner:
    """Return the owner of *fields* besides those it has owned before."""
    if previous is None or not previous.fields:
        return Owner(version, fields, now)
    if not difference(fields, previous.fields):
        return previous._replace(time=now)
    return Owner(version, union(fields, previous.fields), now)


def _resolve(
    target: Target,
    owners: Owners,
    comparisons: dict[str, Changes | None],
    *,
    old: Json,
    new: Json,
    writer: Identity,
) -> tuple[Owners, dict[Identity, FieldSet]]:
    """Return the owners without removed fields, and the changed fields that they own.

    The *writer* itself is left as it is. *comparisons* are those of versions that are known.
    """
    kept: Owners = {}
    conflicts = {}
    for identity, owner in owners.items():
        if identity == writer:
            kept[identity] = owner
            continue
        version = owner.api_version
        if version not in comparisons:
            comparisons[version] = target.compare(old, new, version)
        found = comparisons[version]
        if found is None:
            continue
        changed = fieldsets.intersection(owner.fields, found.changed)
        if changed:
            conflicts[identity] = changed
        kept[identity] = _without(owner, found.removed) if found.removed else owner
    return kept, conflicts


def _without(owner: Owner, fields: FieldSet) -> Owner:
    left = difference(owner.fields, fields)
    return owner if left == owner.fields else owner.owning(left)


def _adapted(target: Target, owners: Owners) -> Owners:
    """Return the owners with fields as the present schemas divide them."""
    found = {}
    for identity, owner in owners.items():
        kind = target.kind if owner.api_version == target.api_version else None
        kind = kind or target.kind_at(owner.api_version)
        if kind is None:
            continue
        fields = _adapted_fields(kind, owner)
        found[identity] = owner if fields is owner.fields else owner.owning(fields)
    return found


def _adapted_fields(kind: KindInfo, owner: Owner) -> FieldSet:
    if not kind.custom:
        return owner.fields  # their schemas do not change
    if owner.encoded and len(owner.encoded) <= MAX_CACHED_LENGTH:
        return _adapted_encoded(kind, owner.encoded)
    return typed.adapt(type_of_kind(kind), owner.fields)


@functools.lru_cache(maxsize=1024)
def _adapted_encoded(kind: KindInfo, encoded: bytes) -> FieldSet:
    fields = parsed_fields(encoded)
    adapted = typed.adapt(type_of_kind(kind), fields)
    return fields if adapted == fields else adapted


def _cap(owners: Owners) -> Owners:
    """Merge the entries of the oldest updates if there are too many."""
    updates = [identity for identity in owners if identity.operation == UPDATE]
    surplus = len(updates) - MAX_UPDATE_MANAGERS
    if surplus <= 0:
        return owners
    owners = dict(owners)
    updates.sort(key=lambda identity: (owners[identity].time, identity_text(identity)))
    first: dict[str, Identity] = {}
    merged: dict[Identity, list[FieldSet]] = {}
    for identity in updates:
        if surplus <= 0:
            break
        owner = owners[identity]
        version = owner.api_version
        if version not in first:
            first[version] = identity
            continue
        bucket = identity_of(ANCIENT_CHANGES, UPDATE, version, "")
        if bucket not in owners:
            owners[bucket] = owners.pop(first[version])
        unmerged = merged.setdefault(bucket, [owners[bucket].fields])
        unmerged.append(owner.fields)
        owners[bucket] = Owner(version, owner.fields, owner.time)
        if identity != bucket:
            del owners[identity]
        surplus -= 1
    for bucket, unmerged in merged.items():
        last = owners[bucket]
        owners[bucket] = Owner(last.api_version, union_of(unmerged), last.time)
    return owners


class Applied(NamedTuple):
    """Result of an apply."""

    obj: Json | None
    """The changed object; ``None`` if nothing changes but perhaps owners."""

    owners: Owners


def apply(
    target: Target,
    owners: Owners,
    *,
    old: Json,
    config: Json,
    empty: Json,
    manager: str,
    force: bool,
    now: str,
) -> Applied:
    """Apply *config* to *old*, which is *empty* if there is no object yet.

    Raises:
        ApplyConflictError: other managers own fields that would change, and *force* is not set.
        TypeMismatchError: an object does not have the type of its kind.
    """
    if not owners:
        owners = _update(target, {}, old=empty, new=old, manager=BEFORE_FIRST_APPLY, now=now)

    def attempt(*, force: bool) -> Applied:
        return _apply(target, owners, old=old, config=config, manager=manager, force=force, now=now)

    try:
        applied = attempt(force=force)
    except ApplyConflictError as error:
        if manager != KUBECTL:
            raise
        allowed = _unchanged_since_last_applied(target, old)
        left = [each for each in error.conflicts if not fieldsets.has(allowed, each.path)]
        if left:
            raise ApplyConflictError(left) from error
        applied = attempt(force=True)
    if manager == KUBECTL:
        applied = _with_last_applied(applied, old, config)
    return applied


def _apply(
    target: Target,
    owners: Owners,
    *,
    old: Json,
    config: Json,
    manager: str,
    force: bool,
    now: str,
) -> Applied:
    owners = _adapted(target, owners)
    version = target.api_version
    merged = typed.merge(target.type, old, config)
    identity = identity_of(manager, APPLY, version, target.subresource)
    last = owners.get(identity)
    wanted = target.filtered(typed.field_set(target.type, config), version)
    owners[identity] = Owner(version, wanted, last.time if last else "")
    new = _pruned(target, merged, owners, last) if last and last.fields else merged
    comparisons = {version: target.compare(old, new, version)}
    owners, conflicts = _resolve(target, owners, comparisons, old=old, new=new, writer=identity)
    if conflicts and not force:
        raise ApplyConflictError(
            [
                Conflict(other, path)
                for other in sorted(conflicts, key=identity_text)
                for path in fieldsets.paths(conflicts[other])
            ]
        )
    for other, fields in conflicts.items():
        owners[other] = _without(owners[other], fields)
    changed = new != old
    mine = owners[identity]
    fields = _with_owner(mine.fields)
    owners[identity] = Owner(mine.api_version, fields, now if changed else mine.time)
    owners = {each: owner for each, owner in owners.items() if owner.fields}
    return Applied(new if changed else None, owners)


def _pruned(target: Target, merged: Json, owners: Owners, last: Owner) -> Json:
    """Return *merged* without what this manager applied last, and what has no owner now."""
    converted = target.converted(merged, last.api_version)
    if converted is None:
        return merged
    type_, obj = converted
    pruned = typed.remove(type_, obj, typed.with_named_fields(type_, last.fields))
    by_version: dict[str, FieldSet] = {last.api_version: {}}
    for owner in owners.values():
        known = by_version.get(owner.api_version, {})
        by_version[owner.api_version] = union(known, owner.fields)
    version = last.api_version
    for managed_version, managed in by_version.items():
        before = _at(target, obj, version, managed_version)
        after = _at(target, pruned, version, managed_version)
        if before is None or after is None:
            continue
        version = managed_version
        (type_, obj), (_, pruned) = before, after
        owned = union(_named(type_, pruned), typed.with_named_fields(type_, managed))
        pruned = typed.remove(type_, obj, difference(_named(type_, obj), owned))
    return _back_to_request(target, obj, pruned, version, last)


def _back_to_request(target: Target, merged: Json, pruned: Json, version: str, last: Owner) -> Json:
    """Restore fields that the manager did not own before, in the version of the request."""
    before = _at(target, merged, version, last.api_version)
    after = _at(target, pruned, version, last.api_version)
    if before is None or after is None:
        return merged
    type_, merged = before
    removed = difference(_named(type_, merged), _named(type_, after[1]))
    owned = typed.with_named_fields(type_, last.fields)
    result = typed.remove(type_, merged, fieldsets.intersection(removed, owned))
    found = _at(target, result, last.api_version, target.api_version)
    return result if found is None else found[1]


def _named(type_: FieldType, obj: Json) -> FieldSet:
    return typed.with_named_fields(type_, typed.field_set(type_, obj))


def _at(target: Target, obj: Json, version: str, wanted: str) -> tuple[FieldType, Json] | None:
    """Return *obj*, which is in *version*, in another one with its type."""
    if version == wanted:
        found = target.converted(None, wanted)
        return None if found is None else (found[0], obj)
    if version == target.api_version:
        return target.converted(obj, wanted)
    source = target.kind_at(version)
    if source is None:
        return None
    return Target(source, "", target.kind_at).converted(obj, wanted)


def _unchanged_since_last_applied(target: Target, live: Json) -> FieldSet:
    """Return the fields that still are as a client-side apply of kubectl has set them."""
    text = (live.get("metadata", {}).get("annotations") or {}).get(LAST_APPLIED)
    if not text:
        return {}
    try:
        applied = msgspec.json.decode(text)
        if not isinstance(applied, Mapping) or applied.get("apiVersion") != target.api_version:
            return {}
        if type_checks.validate(target.type, applied):
            return {}
        fields = typed.field_set(target.type, applied)
        found = typed.compare(target.type, applied, live)
    except (msgspec.DecodeError, TypeMismatchError):
        return {}
    for differing in found:
        fields = difference(fields, differing)
    return fields


def _with_last_applied(applied: Applied, old: Json, config: Json) -> Applied:
    """Keep the annotation of client-side applies up to date in objects that have it."""
    obj = old if applied.obj is None else applied.obj
    metadata = obj.get("metadata", {})
    annotations = metadata.get("annotations") or {}
    if not annotations.get(LAST_APPLIED):
        return applied
    own = {**config.get("metadata", {})}
    if "annotations" in own:
        mine = {k: v for k, v in (own["annotations"] or {}).items() if k != LAST_APPLIED}
        own.pop("annotations")
        if mine:
            own["annotations"] = mine
    text = msgspec.json.encode({**config, "metadata": own}, order="sorted").decode() + "\n"
    changed = {**obj, "metadata": {**metadata, "annotations": {**annotations, LAST_APPLIED: text}}}
    return Applied(changed if changed != old else None, applied.owners)
