"""Stored objects and the events that change them.

An :class:`StoredObject` keeps an object as JSON bytes, ready for any client, and the few parsed
values that selectors and garbage collection need. Both are immutable: a write creates a new
instance, so readers need no copies and no locks.
"""

import random
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from ..errors.fields import MalformedError
from ..kinds.info import KindInfo
from ..managedfields.entries import Entries, encode_entries, load_entries

_SEPARATOR = b"\n"
_KIND, _METADATA = b',"kind":"', b',"metadata":{'
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_NONE: Mapping[str, str] = {}
_NODE_LABEL = "spec.nodeName"

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"


class OwnerRef(NamedTuple):
    """Fields of an owner reference that the garbage collector uses."""

    uid: str
    api_version: str
    kind: str
    name: str
    blocks_deletion: bool


class StoredObject:
    """One object at one resource version."""

    __slots__ = (
        "_fields",
        "_kind",
        "_shared",
        "_stored",
        "_views",
        "data",
        "deleting",
        "has_finalizers",
        "labels",
        "managed",
        "name",
        "namespace",
        "node",
        "owners",
        "rv",
        "uid",
    )

    def __init__(
        self, kind: KindInfo, obj: dict[str, Any], data: bytes, managed: Entries = ()
    ) -> None:
        metadata = obj["metadata"]
        self.data = data
        """The object as JSON, without ``managedFields``."""
        self.managed = managed
        """Its ``managedFields``: apart, since our components never need them."""
        self.rv = int(metadata["resourceVersion"])
        self.namespace: str = metadata.get("namespace", "")
        self.name: str = metadata["name"]
        self.uid: str = metadata.get("uid", "")
        self.labels: Mapping[str, str] = metadata.get("labels") or _NONE
        self.deleting = "deletionTimestamp" in metadata
        self.has_finalizers = bool(metadata.get("finalizers"))
        self.owners = tuple(map(_owner_ref, metadata.get("ownerReferences") or ()))
        self.node: str = ""
        if _NODE_LABEL in kind.field_labels:
            self.node = (obj.get("spec") or {}).get("nodeName", "")
        self._kind = kind
        self._fields = _NONE
        self._shared: dict[str, Any] | None = None
        self._stored: bytes | None = None
        """The object as it is on disk, if the definition of its kind has changed since."""
        self._views: dict[str, tuple[KindInfo, StoredObject]] | None = None
        """The object as webhooks have converted it, by API version."""

    def is_in(self, api_version: str) -> bool:
        """Whether the object is in this API version."""
        return self.data.startswith(api_version_head(api_version))

    def view(self, kind: KindInfo) -> "StoredObject | None":
        """Return the object in the version of *kind*, if it is or has been converted to it."""
        api_version = kind.resource.api_version
        if self.is_in(api_version):
            return self
        of, view = (self._views or {}).get(api_version, (None, None))
        return view if of is kind else None

    def keep_view(self, kind: KindInfo, data: bytes) -> None:
        """Keep *data*, which is the object in the version of *kind*."""
        view = StoredObject(kind, _decoder.decode(data), data, self.managed)
        self._views = {**(self._views or {}), kind.resource.api_version: (kind, view)}

    def shown_as(self, kind: KindInfo) -> "StoredObject":
        """Return the same version of the object as *kind* prunes and defaults it; often itself."""
        if kind.conversion_webhook is not None and not self.is_in(kind.resource.api_version):
            return self  # pruned when it is converted
        stored = self.data if self._stored is None else self._stored
        obj = _decoder.decode(stored)
        try:
            kind.strategy.prune(obj)
        except MalformedError:
            return self  # it is shown as it is, and updates report the error
        kind.strategy.default(obj)
        if obj == _decoder.decode(self.data):
            return self
        shown = StoredObject(kind, obj, encode(obj), self.managed)
        shown._stored = stored
        return shown

    @classmethod
    def load(cls, kind: KindInfo, row: bytes) -> "StoredObject":
        """Load an object from its bytes on disk."""
        # JSON as encoded here contains no line break.
        data, _, managed = row.partition(_SEPARATOR)
        obj = _decoder.decode(data)
        if not data.startswith(_METADATA, data.index(_KIND) + len(_KIND) + len(obj["kind"]) + 1):
            data = encode(obj)  # of an older version, which did not order the fields
        return cls(kind, obj, data, load_entries(managed) if managed else ())

    @property
    def size(self) -> int:
        """Bytes that count towards the limit."""
        size = len(self.data)
        for entry in self.managed:
            size += len(entry.fields)
        return size

    def row(self) -> bytes:
        """Return the bytes on disk."""
        if not self.managed:
            return self.data
        return self.data + _SEPARATOR + encode_entries(self.managed)

    def full(self) -> bytes:
        """Return the object as JSON with ``managedFields``."""
        return with_managed_fields(self.data, self.managed)

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    def parse(self) -> dict[str, Any]:
        """Return the object as a new dict."""
        parsed: dict[str, Any] = _decoder.decode(self.data)
        return parsed

    def shared(self) -> dict[str, Any]:
        """Return the object as a dict that must not be modified, parsed once."""
        if self._shared is None:
            self._shared = self.parse()
        return self._shared

    def field(self, label: str, kind: KindInfo | None = None) -> str:
        """Return the value of a field label of the kind.

        *kind*: that of the request if it may have other labels than the kind had when this object
        was stored: another version, or a changed definition.
        """
        if label == "metadata.name":
            return self.name
        if label == "metadata.namespace":
            return self.namespace
        if label == _NODE_LABEL:
            return self.node
        if label not in self._fields:
            # Few selectors use these, so they are not parsed on every write.
            obj, kind = self.parse(), kind or self._kind
            found = {each: kind.field_value(obj, each) or "" for each in kind.field_labels}
            self._fields = {label: "", **self._fields, **found}
        return self._fields[label]


def with_resource_version(
    kind: KindInfo, obj: dict[str, Any], rv: int, managed: Entries = ()
) -> StoredObject:
    """Set the resource version of *obj* and encode it."""
    obj["metadata"]["resourceVersion"] = str(rv)
    # A copy, since the encoder's result keeps the memory of its buffer, up to half as much again.
    data = bytes(memoryview(encode(obj)))
    return StoredObject(kind, obj, data, managed)


def encode(obj: dict[str, Any]) -> bytes:
    """Encode as JSON with apiVersion, kind and metadata first.

    :func:`in_version` and :func:`with_managed_fields` require it.
    """
    order = iter(obj)
    if (
        next(order, "") != "apiVersion"
        or next(order, "") != "kind"
        or next(order, "") != "metadata"
    ):
        head = {key: obj[key] for key in ("apiVersion", "kind", "metadata")}
        obj = {**head, **obj}
    return _encoder.encode(obj)


def with_managed_fields(data: bytes, managed: Entries) -> bytes:
    """Return an encoded object with these ``managedFields``."""
    if not managed:
        return data
    start = data.index(_METADATA) + len(_METADATA)
    fields = b'"managedFields":%b,' % encode_entries(managed)
    return data[:start] + fields + data[start:]


def api_version_head(api_version: str) -> bytes:
    """Return the start of encoded objects in an API version."""
    return b'{"apiVersion":"%b"' % api_version.encode()


def in_version(data: bytes, api_version: str) -> bytes:
    """Return the stored *data* in another version of its API."""
    head = api_version_head(api_version)
    return data if data.startswith(head) else head + data[data.index(b',"kind":') :]


def new_uid() -> str:
    """Return a random UUID, of a generator that the system seeds: faster than asking the system."""
    digits = f"{random.getrandbits(128):032x}"
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def _owner_ref(reference: dict[str, Any]) -> OwnerRef:
    return OwnerRef(
        reference.get("uid", ""),
        reference.get("apiVersion", ""),
        reference.get("kind", ""),
        reference.get("name", ""),
        reference.get("blockOwnerDeletion") is True,
    )


class WatchEvent:
    """One committed change: *entry* is the object after it (its last state, if deleted)."""

    __slots__ = ("_lines", "entry", "previous", "type")

    def __init__(self, type: str, entry: StoredObject, previous: StoredObject | None) -> None:  # noqa: A002
        self.type = type
        self.entry = entry
        self.previous = previous
        self._lines: dict[tuple[str, bool], bytes] | None = None

    @property
    def rv(self) -> int:
        """Resource version of the change."""
        return self.entry.rv

    def object_for(self, event_type: str, *, full: bool) -> bytes:
        """Return the object for a watcher that sees the change as *event_type*.

        *full*: with ``managedFields``.

        A watcher whose selector no longer matches sees a deletion: the previous content, at the
        version of the change.
        """
        if event_type != DELETED or self.type == DELETED or self.previous is None:
            return self.entry.full() if full else self.entry.data
        obj = self.previous.parse()
        obj["metadata"]["resourceVersion"] = str(self.entry.rv)
        return with_managed_fields(encode(obj), self.previous.managed if full else ())

    def is_in(self, api_version: str) -> bool:
        """Whether the objects before and after the change are in this API version."""
        before = self.previous
        return self.entry.is_in(api_version) and (before is None or before.is_in(api_version))

    def line(self, event_type: str, *, full: bool) -> bytes:
        """Return the line of a watch stream, encoded once for all watchers."""
        if self._lines is None:
            self._lines = {}
        line = self._lines.get((event_type, full))
        if line is None:
            line = watch_line(event_type, self.object_for(event_type, full=full))
            self._lines[event_type, full] = line
        return line


def watch_line(type: str, data: bytes) -> bytes:  # noqa: A002 - the field's name in the JSON
    """Encode one line of a watch stream."""
    return b'{"type":"%b","object":%b}\n' % (type.encode(), data)
