"""``managedFields`` of written objects, and applies: between writes and the rules of ownership."""

import functools
from typing import Any, NamedTuple

import msgspec

from ....model.names import Resource
from ..discovery.catalog import Catalog
from ..errors.status import StatusError, apply_conflict, bad_request
from ..http.requests import Json
from ..kinds.info import KindInfo
from ..kinds.typed_json import zero_object
from ..managedfields import entries, fieldsets, owning, type_checks
from ..managedfields.entries import UPDATE, Entries, Identity, MalformedEntryError, Owners
from ..managedfields.owning import Applied, ApplyConflictError, Target
from ..managedfields.typed import TypeMismatchError
from ..managedfields.types import FieldType, type_of_kind, type_of_message

SCALE = Resource("autoscaling", "v1", "", "Scale")

_MAX_TARGETS = 256


class SentEntries(NamedTuple):
    """The ``managedFields`` of a client's object."""

    reset: bool
    """Whether they ask to forget all owners."""

    value: Any


class FieldManagers:
    """Determines the ``managedFields`` of each write."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._targets: dict[tuple[KindInfo, str], Target] = {}
        """Targets of former writes; a changed definition has new kinds."""

    def created(
        self, kind: KindInfo, new: Json, sent: SentEntries, *, manager: str, now: str
    ) -> Entries:
        """Return the entries of the new object *new*, before admission."""
        target = self._target(kind, "")
        try:
            owners = {} if sent.reset else entries.decode_sent(sent.value)
        except MalformedEntryError:
            owners = {}
        empty = _shared_empty_object(kind)
        if owners:
            return self._update(target, (), owners, old=empty, new=new, manager=manager, now=now)
        try:
            created = owning.create(target, empty=empty, new=new, manager=manager, now=now)
        except TypeMismatchError:
            return ()
        return entries.entries_of(created)

    def updated(
        self,
        kind: KindInfo,
        stored: Entries,
        sent: SentEntries,
        *,
        subresource: str,
        old: Json,
        new: Json,
        manager: str,
        now: str,
    ) -> Entries:
        """Return the entries after an update of *old* to *new*, before admission.

        As kube-apiserver: entries that a client sends replace the *stored* ones unless they are
        malformed or sent to a subresource.
        """
        owners: Owners | None = None
        if not subresource:
            if sent.reset:
                owners = {}
            elif sent.value:
                try:
                    owners = entries.decode_sent(sent.value)
                except MalformedEntryError:
                    owners = None
        if owners is None:
            if not stored:
                return ()
            owners = entries.owners_of(stored)
        target = self._target(kind, subresource)
        return self._update(target, stored, owners, old=old, new=new, manager=manager, now=now)

    def _update(
        self,
        target: Target,
        stored: Entries,
        owners: Owners,
        *,
        old: Json,
        new: Json,
        manager: str,
        now: str,
    ) -> Entries:
        try:
            updated = owning.update(target, owners, old=old, new=new, manager=manager, now=now)
        except TypeMismatchError:
            # As kube-apiserver: better no owners than wrong ones.
            return ()
        return entries.entries_of(updated, stored)

    def apply(
        self,
        kind: KindInfo,
        stored: Entries,
        *,
        subresource: str,
        old: Json | None,
        config: Json,
        manager: str,
        force: bool,
        now: str,
    ) -> tuple[Json, Entries]:
        """Return the object after an apply of *config*, and its entries.

        Args:
            old: the present object; ``None`` creates one.
            config: what :func:`check_config` or :func:`check_scale` has checked.

        Raises:
            StatusError: 409, other managers own fields that would change; 500, the present object
                does not have the type of its kind.
        """
        target = self._target(kind, subresource)
        live = empty_object(kind) if old is None else old
        try:
            applied: Applied = owning.apply(
                target,
                entries.owners_of(stored),
                old=live,
                config=config,
                empty=empty_object(kind),
                manager=manager,
                force=force,
                now=now,
            )
        except ApplyConflictError as error:
            raise _conflict(error, SCALE.api_version if subresource == "scale" else "") from error
        except TypeMismatchError as error:
            raise StatusError(500, "", str(error)) from error
        obj = live if applied.obj is None else applied.obj
        return obj, entries.entries_of(applied.owners, stored)

    def _target(self, kind: KindInfo, subresource: str) -> Target:
        found = self._targets.get((kind, subresource))
        if found is not None:
            return found

        def kind_at(api_version: str) -> KindInfo | None:
            group, _, version = api_version.rpartition("/")
            return self._catalog.get(group, version, kind.resource.plural)

        if len(self._targets) >= _MAX_TARGETS:
            self._targets.clear()
        found = self._targets[kind, subresource] = Target(kind, subresource, kind_at)
        return found


def take_sent_entries(raw: Any, metadata: Json) -> SentEntries:
    """Remove the ``managedFields`` from decoded *metadata*; *raw* are those before decoding."""
    return SentEntries(entries.is_reset(raw), metadata.pop("managedFields", None))


def empty_object(kind: KindInfo) -> Json:
    """Return what kube-apiserver compares a new object with."""
    if kind.custom:
        return {"apiVersion": kind.resource.api_version, "kind": kind.resource.kind}
    return zero_object(kind.resource)


_shared_empty_object = functools.lru_cache(maxsize=_MAX_TARGETS)(empty_object)
"""The same object for all that do not change it."""


def check_config(kind: KindInfo, config: Json) -> None:
    """Check the type of an applied object.

    Raises:
        StatusError: 400 or 500.
    """
    _check_config(kind.resource, type_of_kind(kind), config)


def check_scale(config: Json) -> None:
    """Check the type of an applied Scale.

    Raises:
        StatusError: 400 or 500.
    """
    _check_config(SCALE, type_of_message("autoscaling.v1.Scale"), config)


def _check_config(resource: Resource, type_: FieldType, config: Json) -> None:
    api_version, kind = config.get("apiVersion") or "", config.get("kind") or ""
    group, _, version = str(api_version).rpartition("/")
    type_name = f"{group}/{version}, Kind={kind}"
    if (api_version, kind) != (resource.api_version, resource.kind):
        raise bad_request(f"invalid object type: {type_name}")
    metadata = config.get("metadata") or {}
    if isinstance(metadata, dict) and metadata.get("managedFields") is not None:
        raise bad_request("metadata.managedFields must be nil")
    problems = type_checks.validate(type_, config)
    if problems:
        name = metadata.get("name", "") if isinstance(metadata, dict) else ""
        space = metadata.get("namespace", "") if isinstance(metadata, dict) else ""
        text = (
            problems[0]
            if len(problems) == 1
            else "errors:\n" + "".join(f"  {each}\n" for each in problems)
        )
        raise StatusError(
            500,
            "",
            f"failed to create typed patch object ({space}/{name}; {type_name}): {text}",
        )


def _conflict(error: ApplyConflictError, api_version: str) -> StatusError:
    """Return the error of conflicts; *api_version* is shown instead of that of each."""

    def shown(identity: Identity) -> str:
        return _shown(identity._replace(api_version=api_version or identity.api_version))

    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f"conflict with {shown(each.identity)}",
            "field": fieldsets.path_text(each.path),
        }
        for each in error.conflicts
    ]
    if len(causes) == 1:
        text = f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
        return apply_conflict(text, causes)
    lines = []
    for identity in dict.fromkeys(each.identity for each in error.conflicts):
        lines.append(f"conflicts with {shown(identity)}:")
        lines += [
            f"- {fieldsets.path_text(each.path)}"
            for each in error.conflicts
            if each.identity == identity
        ]
    body = "\n".join(lines)
    return apply_conflict(f"Apply failed with {len(causes)} conflicts: {body}", causes)


def _shown(identity: Identity) -> str:
    text = msgspec.json.encode(identity.manager).decode()
    if identity.subresource:
        text += f' with subresource "{identity.subresource}"'
    return f"{text} using {identity.api_version}" if identity.operation == UPDATE else text
