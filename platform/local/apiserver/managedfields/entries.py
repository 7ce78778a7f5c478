"""Entries of ``metadata.managedFields``, as stored and as used for merging."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from ....model import times
from .fieldsets import FieldSet, InvalidElementError
from .fieldsets import decode as decode_fields

APPLY, UPDATE = "Apply", "Update"
_FIELDS_TYPE = "FieldsV1"


class ManagedFieldsEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One entry as it is stored and sent."""

    manager: str = ""
    operation: str = ""
    api_version: str = ""
    time: str | msgspec.UnsetType = msgspec.UNSET
    fields_type: str = _FIELDS_TYPE
    fields: msgspec.Raw = msgspec.field(name="fieldsV1")
    subresource: str | msgspec.UnsetType = msgspec.UNSET


Entries = tuple[ManagedFieldsEntry, ...]
"""The entries of one object."""

_encode = msgspec.json.Encoder(order="sorted").encode
_decoder = msgspec.json.Decoder(Entries)


class Identity(NamedTuple):
    """Two entries with equal ones are merged: appliers have one for all versions."""

    manager: str
    operation: str
    api_version: str
    subresource: str


class Owner(NamedTuple):
    """The fields of one manager."""

    api_version: str
    fields: FieldSet
    time: str = ""
    encoded: bytes = b""
    """The fields as stored, unless they were changed."""

    def owning(self, fields: FieldSet) -> "Owner":
        """Return the same owner with other fields."""
        return Owner(self.api_version, fields, self.time)


Owners = dict[Identity, Owner]


class MalformedEntryError(Exception):
    """A client's ``managedFields`` cannot be used."""


def encode_entries(entries: Entries) -> bytes:
    """Encode *entries* as a JSON list."""
    return msgspec.json.encode(entries)


def load_entries(data: bytes) -> Entries:
    """Decode what :func:`encode_entries` has encoded; objects of one shape share their fields."""
    return tuple(
        msgspec.structs.replace(entry, fields=_shared(bytes(entry.fields)))
        for entry in _decoder.decode(data)
    )


MAX_CACHED_LENGTH = 4096
"""Bytes of encoded fields that are cached: more would be at the mercy of clients."""


def _shared(fields: bytes) -> msgspec.Raw:
    return _cached_raw(fields) if len(fields) <= MAX_CACHED_LENGTH else msgspec.Raw(fields)


@functools.lru_cache(maxsize=4096)
def _cached_raw(fields: bytes) -> msgspec.Raw:
    return msgspec.Raw(fields)


def parsed_fields(fields: bytes) -> FieldSet:
    """Decode stored fields; equal ones are decoded once."""
    return _parse_cached(fields) if len(fields) <= MAX_CACHED_LENGTH else _parse(fields)


def _parse(fields: bytes) -> FieldSet:
    parsed: FieldSet = msgspec.json.decode(fields)
    return parsed


_parse_cached = functools.lru_cache(maxsize=1024)(_parse)


def owners_of(entries: Iterable[ManagedFieldsEntry]) -> Owners:
    """Return the owners in stored *entries*."""
    found: Owners = {}
    for entry in entries:
        time = entry.time if isinstance(entry.time, str) else ""
        subresource = entry.subresource if isinstance(entry.subresource, str) else ""
        identity = identity_of(entry.manager, entry.operation, entry.api_version, subresource)
        encoded = bytes(entry.fields)
        found[identity] = Owner(entry.api_version, parsed_fields(encoded), time, encoded)
    return found


def identity_of(manager: str, operation: str, api_version: str, subresource: str) -> Identity:
    """Return the identity of an entry."""
    return Identity(manager, operation, "" if operation == APPLY else api_version, subresource)


def identity_text(identity: Identity) -> str:
    """Return the text by which kube-apiserver orders managers."""
    fields = zip(("manager", "operation", "apiVersion", "subresource"), identity, strict=True)
    return msgspec.json.encode({key: text for key, text in fields if text}).decode()


def entries_of(owners: Mapping[Identity, Owner], stored: Entries = ()) -> Entries:
    """Return the entries of *owners* in the order of kube-apiserver.

    Those of *stored* that are unchanged are reused.
    """
    if not stored and len(owners) == 1:  # of most new objects
        return tuple(_entry_of(*each) for each in owners.items())
    before = owners_of(stored)
    if owners == before:
        return stored
    kept = dict(zip(before, stored, strict=True))
    ordered = sorted(owners.items(), key=lambda each: _order(*each))
    return tuple(
        kept[identity] if before.get(identity) == owner else _entry_of(identity, owner)
        for identity, owner in ordered
    )


def _entry_of(identity: Identity, owner: Owner) -> ManagedFieldsEntry:
    return ManagedFieldsEntry(
        manager=identity.manager,
        operation=identity.operation,
        api_version=owner.api_version,
        time=owner.time or msgspec.UNSET,
        fields=_shared(owner.encoded or _encode(owner.fields)),
        subresource=identity.subresource or msgspec.UNSET,
    )


def _order(identity: Identity, owner: Owner) -> tuple[str, str, str, str, str]:
    # Times have one format, so they sort as texts.
    return (
        identity.operation,
        owner.time,
        identity.manager,
        owner.api_version,
        identity.subresource,
    )


def without_times(entries: Entries) -> Entries:
    """Return *entries* as they would be if they had been written at no time."""
    return tuple(msgspec.structs.replace(each, time=msgspec.UNSET) for each in entries)


def is_reset(sent: Any) -> bool:
    """Whether a client's ``managedFields`` ask to forget all owners: ``[]`` or ``[{}]``."""
    return isinstance(sent, list) and (not sent or sent == [{}])


def decode_sent(sent: Any) -> Owners:
    """Return the owners in a client's ``managedFields``.

    Raises:
        MalformedEntryError: an entry is incomplete, or its fields are no tree of path elements.
    """
    found: Owners = {}
    for entry in sent or ():
        operation, api_version = entry.get("operation", ""), entry.get("apiVersion", "")
        if operation not in (APPLY, UPDATE):
            raise MalformedEntryError("operation must be `Apply` or `Update`")
        if not api_version:
            raise MalformedEntryError("apiVersion must not be empty")
        if entry.get("fieldsType") != _FIELDS_TYPE:
            raise MalformedEntryError("fieldsType must be FieldsV1")
        try:
            fields = decode_fields(entry.get("fieldsV1"))
        except InvalidElementError as error:
            raise MalformedEntryError(str(error)) from error
        identity = identity_of(
            entry.get("manager", ""), operation, api_version, entry.get("subresource", "")
        )
        found[identity] = Owner(api_version, fields, _time(entry.get("time")))
    return found


def _time(text: Any) -> str:
    try:
        return times.format(times.parse(text)) if text else ""
    except ValueError as error:
        raise MalformedEntryError(str(error)) from error
