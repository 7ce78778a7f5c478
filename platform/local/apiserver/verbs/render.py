"""Render objects as responses: in full, as tables, as metadata only; in JSON or YAML.

Objects that need no conversion are sent as the stored bytes.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from ....model.names import TEMPLATE_GENERATION
from ..current_time import current_time
from ..errors.status import bad_request
from ..http import offload, yaml_process
from ..http.auth import COMPONENTS_GROUP
from ..http.negotiation import PLAIN_JSON, OutputFormat
from ..http.requests import Json, Request, Response
from ..kinds.info import KindInfo
from ..media_types import YAML
from ..printing import tables
from ..storage.slices import PARSED_SLICE_SIZE, SLICE_SIZE, slices
from ..storage.stored_objects import (
    StoredObject,
    WatchEvent,
    api_version_head,
    in_version,
    watch_line,
)

_META = "meta.k8s.io/v1"
_PARTIAL = {"kind": "PartialObjectMetadata", "apiVersion": _META}


class Renderer(msgspec.Struct, frozen=True, kw_only=True):
    """Renders stored objects of one kind in one output format."""

    kind: KindInfo
    output_format: OutputFormat = PLAIN_JSON
    include: str = ""
    """``includeObject`` of table rows: Metadata (also ``""``), Object or None."""

    managed_fields: bool = True
    """Whether objects have ``managedFields``."""

    def content(self, entry: StoredObject) -> bytes:
        """Return the stored bytes to render."""
        return entry.full() if self.managed_fields else entry.data

    def check(self) -> None:
        """Reject unsupported options.

        Raises:
            StatusError: 400.
        """
        if self.output_format.as_kind == "Table" and self.include not in (
            "",
            "None",
            "Metadata",
            "Object",
        ):
            text = (
                "Unable to convert to Table as requested: includeObject: Invalid value: "
                f"\"{self.include}\": must be 'Metadata', 'Object', 'None', or empty"
            )
            raise bad_request(text)

    def render_object(self, data: bytes, *, status: int = 200) -> Response:
        """Return a response with one object."""
        self.check()
        body = self._transform(data)
        if self.output_format.yaml:
            return _yaml_response(body, status=status)
        return Response(status=status, body=body + b"\n")

    def render_list(self, objects: Sequence[StoredObject], metadata: Json) -> Response:
        """Return a response with a list of objects, chunked if it is long."""
        self.check()
        plain = self.output_format.as_kind == "" and not self.output_format.yaml
        if len(objects) > (SLICE_SIZE if plain else PARSED_SLICE_SIZE):
            chunks = self._yaml_list_chunks if self.output_format.yaml else self._list_chunks
            return Response(
                stream=chunks(objects, metadata), content_type=self.output_format.content_type
            )
        body = self._list_head(metadata) + b",".join(map(self.item, objects)) + b"]}"
        return _yaml_response(body) if self.output_format.yaml else Response(body=body + b"\n")

    async def _list_chunks(
        self, objects: Sequence[StoredObject], metadata: Json
    ) -> AsyncGenerator[bytes]:
        yield self._list_head(metadata)
        between = b""
        async for batch in slices(
            objects, PARSED_SLICE_SIZE if self.output_format.as_kind else SLICE_SIZE
        ):
            yield between + b",".join(map(self.item, batch))
            between = b","
        yield b"]}\n"

    async def _yaml_list_chunks(
        self, objects: Sequence[StoredObject], metadata: Json
    ) -> AsyncGenerator[bytes]:
        """Yield the same in YAML: its keys sorted, the list among them as a stream."""
        whole = msgspec.json.decode(self._list_head(metadata) + b"]}")
        (key,) = (key for key, value in whole.items() if value == [])
        before = {each: value for each, value in whole.items() if each < key}
        after = {each: value for each, value in whole.items() if each > key}
        yield yaml_process.from_json(msgspec.json.encode(before)) + f"{key}:\n".encode()
        async with aclosing(offload.yaml_items(map(self._item_line, objects))) as pieces:
            async for piece in pieces:
                yield piece
        if after:
            yield yaml_process.from_json(msgspec.json.encode(after))

    def _item_line(self, entry: StoredObject) -> bytes:
        return self.item(entry) + b"\n"

    def item(self, entry: StoredObject) -> bytes:
        """Encode one item of a list."""
        data = self.content(entry)
        if self.output_format.as_kind == "Table":
            return msgspec.json.encode(self._row(data))
        if self.output_format.as_kind:
            return self._partial(data)
        return self._in_version(data)

    @property
    def is_as_stored(self) -> bool:
        """Whether objects are sent as the stored bytes."""
        kind = self.kind
        as_stored = kind.storage_version in ("", kind.resource.version) and kind.conversion is None
        return self.output_format == PLAIN_JSON and as_stored

    def line(self, event_type: str, event: WatchEvent, *, first: bool) -> bytes:
        """Encode the line of a watch for *event*; the *first* table has column definitions."""
        data = event.object_for(event_type, full=self.managed_fields)
        return watch_line(event_type, self.object(data, first=first))

    def object(self, data: bytes, *, first: bool = False) -> bytes:
        """Encode one object of a watch."""
        return self._transform(data, columns=first)

    def bookmark(self, version: int, *, initial_end: bool = False, first: bool = False) -> bytes:
        """Encode a bookmark line."""
        metadata: Json = {"resourceVersion": str(version)}
        if initial_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        resource = self.kind.resource
        obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        if self.output_format.as_kind == "Table":
            row: Json = {"cells": [], "object": {**_PARTIAL, "metadata": metadata}}
            obj = self._table([row], {"resourceVersion": str(version)}, columns=first)
        elif self.output_format.as_kind:
            obj = {**_PARTIAL, "metadata": metadata}
        return watch_line("BOOKMARK", msgspec.json.encode(obj))

    def _in_version(self, data: bytes) -> bytes:
        api_version = self.kind.resource.api_version
        if self.kind.conversion is not None and not data.startswith(api_version_head(api_version)):
            return msgspec.json.encode(self.kind.from_stored(msgspec.json.decode(data)))
        return in_version(data, api_version)

    def _transform(self, data: bytes, *, columns: bool = True) -> bytes:
        if not self.output_format.as_kind:
            return self._in_version(data)
        if self.output_format.as_kind == "Table":
            version = msgspec.json.decode(data)["metadata"].get("resourceVersion", "")
            metadata = {"resourceVersion": version} if version else {}
            return msgspec.json.encode(self._table([self._row(data)], metadata, columns=columns))
        return self._partial(data)

    def _partial(self, data: bytes) -> bytes:
        return msgspec.json.encode(self._metadata_of(msgspec.json.decode(data)))

    def _metadata_of(self, obj: Json) -> Json:
        """Return a PartialObjectMetadata of *obj*."""
        metadata = obj["metadata"]
        annotations = metadata.get("annotations") or {}
        if TEMPLATE_GENERATION in annotations and self.kind.resource.kind == "DaemonSet":
            # For kube-apiserver it is a field of the spec, which it writes as an annotation of the
            # whole object only.
            kept = {key: each for key, each in annotations.items() if key != TEMPLATE_GENERATION}
            metadata = {key: each for key, each in metadata.items() if key != "annotations"}
            metadata |= {"annotations": kept} if kept else {}
        return {**_PARTIAL, "metadata": metadata}

    def _row(self, data: bytes) -> Json:
        obj = msgspec.json.decode(self._in_version(data))
        row: Json = {"cells": tables.cells(self.kind, obj, current_time())}
        if self.include == "Object":
            row["object"] = obj
        elif self.include == "None":
            row["object"] = None
        else:
            row["object"] = self._metadata_of(obj)
        return row

    def _table(self, rows: list[Json], metadata: Json, *, columns: bool = True) -> Json:
        return {
            "kind": "Table",
            "apiVersion": _META,
            "metadata": metadata,
            "columnDefinitions": tables.column_definitions(self.kind) if columns else None,
            "rows": rows,
        }

    def _list_head(self, metadata: Json) -> bytes:
        """Encode a list up to its first item."""
        if self.output_format.as_kind == "Table":
            empty = self._table([], metadata)
        elif self.output_format.as_kind:
            head = {"kind": "PartialObjectMetadataList", "apiVersion": _META}
            empty = {**head, "metadata": metadata, "items": []}
        else:
            resource = self.kind.resource
            if self.kind.custom:
                metadata = {"continue": "", **metadata}
            head = {"kind": self.kind.list_kind, "apiVersion": resource.api_version}
            empty = {**head, "metadata": metadata, "items": []}
        return msgspec.json.encode(empty).removesuffix(b"]}")


def renderer_for(request: Request, kind: KindInfo, output_format: OutputFormat) -> Renderer:
    """Return the renderer of the response to *request*.

    Our components get no ``managedFields``: they ignore them, and need not pay for them.
    """
    return Renderer(
        kind=kind,
        output_format=output_format,
        include=request.query.get("includeObject", ""),
        managed_fields=COMPONENTS_GROUP not in request.user.groups,
    )


def _yaml_response(data: bytes, *, status: int = 200) -> Response:
    """Return a response in YAML, converted in a separate process if it is large."""
    if len(data) > offload.YAML_OFFLOAD_THRESHOLD:
        return Response(status=status, stream=_yaml_stream(data), content_type=YAML)
    return Response(status=status, body=yaml_process.from_json(data), content_type=YAML)


async def _yaml_stream(data: bytes) -> AsyncGenerator[bytes]:
    yield await offload.json_to_yaml(data)
