"""Answers with objects: plain, as tables, as metadata alone, in JSON or YAML.

Whatever needs no reshaping goes out as the stored bytes.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime

import msgspec

from ..errors.status import bad_request
from ..http import offload, yaml_process
from ..http.negotiation import PLAIN, Form
from ..http.requests import YAML, Json, Response
from ..kinds.info import KindInfo
from ..printing import tables
from ..storage.slices import PARSED, SLICE, slices
from ..storage.stored_objects import Event, in_version, watch_line

_META = "meta.k8s.io/v1"
_PARTIAL = {"kind": "PartialObjectMetadata", "apiVersion": _META}


class Renderer(msgspec.Struct, frozen=True, kw_only=True):
    """Shows stored objects of one kind in one form."""

    kind: KindInfo
    form: Form = PLAIN
    include: str = ""
    """What table rows carry of their objects: Metadata (also ``""``), Object or None."""

    def check(self) -> None:
        """Refuse what cannot be shown.

        Raises:
            StatusError: 400.
        """
        if self.form.shape == "Table" and self.include not in ("", "None", "Metadata", "Object"):
            text = (
                "Unable to convert to Table as requested: includeObject: Invalid value: "
                f"\"{self.include}\": must be 'Metadata', 'Object', 'None', or empty"
            )
            raise bad_request(text)

    def one(self, data: bytes, *, status: int = 200) -> Response:
        """An answer with one object."""
        self.check()
        body = self._shaped(data)
        if self.form.yaml:
            return _in_yaml(body, status=status)
        return Response(status=status, body=body + b"\n")

    def many(self, objects: Sequence[bytes], metadata: Json) -> Response:
        """An answer with a list of objects, in pieces if there are many of them."""
        self.check()
        plain = self.form.shape == "" and not self.form.yaml
        if len(objects) > (SLICE if plain else PARSED):
            made = self._yaml_pieces if self.form.yaml else self._pieces
            return Response(stream=made(objects, metadata), content_type=self.form.content_type)
        body = self._list_head(metadata) + b",".join(map(self._item, objects)) + b"]}"
        return _in_yaml(body) if self.form.yaml else Response(body=body + b"\n")

    async def _pieces(self, objects: Sequence[bytes], metadata: Json) -> AsyncGenerator[bytes]:
        yield self._list_head(metadata)
        between = b""
        async for part in slices(objects, PARSED if self.form.shape else SLICE):
            yield between + b",".join(map(self._item, part))
            between = b","
        yield b"]}\n"

    async def _yaml_pieces(self, objects: Sequence[bytes], metadata: Json) -> AsyncGenerator[bytes]:
        """The same in YAML: its keys in order, the list among them as it comes."""
        whole = msgspec.json.decode(self._list_head(metadata) + b"]}")
        (key,) = (key for key, value in whole.items() if value == [])
        before = {each: value for each, value in whole.items() if each < key}
        after = {each: value for each, value in whole.items() if each > key}
        yield yaml_process.from_json(msgspec.json.encode(before)) + f"{key}:\n".encode()
        async with aclosing(offload.yaml_items(map(self._line, objects))) as pieces:
            async for piece in pieces:
                yield piece
        if after:
            yield yaml_process.from_json(msgspec.json.encode(after))

    def _line(self, data: bytes) -> bytes:
        return self._item(data) + b"\n"

    def _item(self, data: bytes) -> bytes:
        """One object in a list."""
        if self.form.shape == "Table":
            return msgspec.json.encode(self._row(data))
        if self.form.shape:
            metadata = msgspec.json.decode(data)["metadata"]
            return msgspec.json.encode({**_PARTIAL, "metadata": metadata})
        return self._in_version(data)

    def line(self, seen_as: str, event: Event, *, first: bool) -> bytes:
        """The line of a watch stream for *event*; *first* tables name their columns."""
        kind = self.kind
        as_stored = kind.storage_version in ("", kind.resource.version) and not kind.stored_as
        if self.form == PLAIN and as_stored:
            return event.line(seen_as)
        return watch_line(seen_as, self.object(event.object_for(seen_as), first=first))

    def object(self, data: bytes, *, first: bool = False) -> bytes:
        """One object of a watch stream."""
        return self._shaped(data, columns=first)

    def bookmark(self, version: int, *, initial_end: bool = False, first: bool = False) -> bytes:
        """The line that says how far a watch stream has come."""
        metadata: Json = {"resourceVersion": str(version)}
        if initial_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        resource = self.kind.resource
        obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        if self.form.shape == "Table":
            row: Json = {"cells": [], "object": {**_PARTIAL, "metadata": metadata}}
            obj = self._table([row], {"resourceVersion": str(version)}, columns=first)
        elif self.form.shape:
            obj = {**_PARTIAL, "metadata": metadata}
        return watch_line("BOOKMARK", msgspec.json.encode(obj))

    def _in_version(self, data: bytes) -> bytes:
        if self.kind.view is not None:
            return msgspec.json.encode(self.kind.from_stored(msgspec.json.decode(data)))
        return in_version(data, self.kind.resource.api_version)

    def _shaped(self, data: bytes, *, columns: bool = True) -> bytes:
        if not self.form.shape:
            return self._in_version(data)
        if self.form.shape == "Table":
            version = msgspec.json.decode(data)["metadata"].get("resourceVersion", "")
            metadata = {"resourceVersion": version} if version else {}
            return msgspec.json.encode(self._table([self._row(data)], metadata, columns=columns))
        return msgspec.json.encode({**_PARTIAL, "metadata": msgspec.json.decode(data)["metadata"]})

    def _row(self, data: bytes) -> Json:
        obj = msgspec.json.decode(self._in_version(data))
        row: Json = {"cells": tables.cells(self.kind, obj, datetime.now(UTC))}
        if self.include == "Object":
            row["object"] = obj
        elif self.include == "None":
            row["object"] = None
        else:
            row["object"] = {**_PARTIAL, "metadata": obj["metadata"]}
        return row

    def _table(self, rows: list[Json], metadata: Json, *, columns: bool = True) -> Json:
        return {
            "kind": "Table",
            "apiVersion": _META,
            "metadata": metadata,
            "columnDefinitions": tables.definitions(self.kind) if columns else None,
            "rows": rows,
        }

    def _list_head(self, metadata: Json) -> bytes:
        """A list up to its first item."""
        if self.form.shape == "Table":
            empty = self._table([], metadata)
        elif self.form.shape:
            head = {"kind": "PartialObjectMetadataList", "apiVersion": _META}
            empty = {**head, "metadata": metadata, "items": []}
        else:
            resource = self.kind.resource
            if self.kind.custom:
                metadata = {"continue": "", **metadata}
            head = {"kind": self.kind.list_kind, "apiVersion": resource.api_version}
            empty = {**head, "metadata": metadata, "items": []}
        return msgspec.json.encode(empty).removesuffix(b"]}")


def _in_yaml(data: bytes, *, status: int = 200) -> Response:
    """An answer in YAML, made by a process of its own if it is large."""
    if len(data) > offload.LARGE_YAML:
        return Response(status=status, stream=_yaml_stream(data), content_type=YAML)
    return Response(status=status, body=yaml_process.from_json(data), content_type=YAML)


async def _yaml_stream(data: bytes) -> AsyncGenerator[bytes]:
    yield await offload.json_to_yaml(data)
