"""Answers with objects: plain, as tables, as metadata alone, in JSON or YAML.

Whatever needs no reshaping goes out as the stored bytes.
"""

from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime

import msgspec

from ..errors.status import bad_request
from ..http import off_loop, yaml_process
from ..http.negotiation import PLAIN, Form
from ..http.requests import YAML, Json, Response
from ..kinds.info import KindInfo
from ..printing import tables
from ..storage.entries import Event, in_version, watch_line

SLICE = 500
"""Objects that one piece of a long list holds, so that the loop is not held up."""

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
        """An answer with a list of objects."""
        self.check()
        if self.form == PLAIN:
            if len(objects) > SLICE:
                return Response(stream=self._stream(self._list_head(metadata), objects))
            return Response(body=self._plain_list(objects, metadata) + b"\n")
        if self.form.shape == "Table":
            made = self._table([self._row(data) for data in objects], metadata)
        elif self.form.shape:
            items_ = [{"metadata": msgspec.json.decode(data)["metadata"]} for data in objects]
            made = {"kind": "PartialObjectMetadataList", "apiVersion": _META}
            made |= {"metadata": metadata, "items": [{**_PARTIAL, **item} for item in items_]}
        else:
            made = msgspec.json.decode(self._plain_list(objects, metadata))
        body = msgspec.json.encode(made)
        if self.form.yaml:
            return _in_yaml(body)
        return Response(body=body + b"\n")

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

    def _plain_list(self, objects: Sequence[bytes], metadata: Json) -> bytes:
        return self._list_head(metadata) + b",".join(map(self._in_version, objects)) + b"]}"

    def _list_head(self, metadata: Json) -> bytes:
        if self.kind.custom:
            metadata = {"continue": "", **metadata}
        return b'{"kind":"%b","apiVersion":"%b","metadata":%b,"items":[' % (
            self.kind.list_kind.encode(),
            self.kind.resource.api_version.encode(),
            msgspec.json.encode(metadata),
        )

    async def _stream(self, head: bytes, objects: Sequence[bytes]) -> AsyncGenerator[bytes]:
        yield head
        for start in range(0, len(objects), SLICE):
            part = b",".join(map(self._in_version, objects[start : start + SLICE]))
            yield (b"," if start else b"") + part
        yield b"]}\n"


def _in_yaml(data: bytes, *, status: int = 200) -> Response:
    """An answer in YAML, made by a process of its own if it is large."""
    if len(data) > off_loop.LARGE_YAML:
        return Response(status=status, stream=_yaml_stream(data), content_type=YAML)
    return Response(status=status, body=yaml_process.from_json(data), content_type=YAML)


async def _yaml_stream(data: bytes) -> AsyncGenerator[bytes]:
    yield await off_loop.json_to_yaml(data)
