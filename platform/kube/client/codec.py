"""Encode request bodies and queries; decode responses and lists."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote, urlencode

import msgspec

from ...model.names import Resource
from ..errors import DecodeError

T = TypeVar("T")

_ENCODE = msgspec.json.Encoder().encode
_UNRESERVED = "-._~:"
_is_unreserved = re.compile(rf"[{_UNRESERVED}0-9A-Za-z]*").fullmatch


@dataclass(frozen=True, slots=True, kw_only=True)
class ListScope:
    """Collection and selectors of a list or watch."""

    resource: Resource
    namespace: str = ""
    """Empty for all namespaces."""
    label_selector: str = ""
    field_selector: str = ""

    def path(self, **query: str | int | bool) -> str:
        """Return the collection's path with selectors and *query*; empty values are omitted.

        Raises:
            ValueError: the namespace is not a valid path segment.
        """
        parameters = {
            "labelSelector": self.label_selector,
            "fieldSelector": self.field_selector,
            **{name: _query_value(value) for name, value in query.items()},
        }
        text = urlencode({name: value for name, value in parameters.items() if value})
        path = self.resource.path(_path_segment(self.namespace))
        return f"{path}?{text}" if text else path


@dataclass(frozen=True, slots=True)
class ObjectList(Generic[T]):
    """Response to a list request, in the server's order."""

    items: Sequence[T]
    resource_version: str
    """Version from which to watch."""
    continue_token: str = ""
    """Token for the next page; empty on the last one."""


class PageMeta(msgspec.Struct, frozen=True, rename="camel"):
    """``metadata`` of a list."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct, frozen=True):
    """A list with undecoded items, so that they can be decoded in slices."""

    metadata: PageMeta = PageMeta()
    items: tuple[msgspec.Raw, ...] | None = ()
    """Null in some responses of Go servers for an empty list."""


def object_path(
    resource: Resource, name: str, *, namespace: str = "", subresource: str = ""
) -> str:
    """Return the path of one object.

    Raises:
        ValueError: *name* or *namespace* is missing or no valid path segment; an empty name
            would otherwise address the whole collection.
    """
    if resource.namespaced and not namespace:
        raise ValueError(f"{resource.plural} {name!r}: the namespace is missing")
    return resource.path(_path_segment(namespace), _path_segment(name, required=True), subresource)


def collection_path(resource: Resource, namespace: str) -> str:
    """Return the path to create an object under.

    Raises:
        ValueError: the namespace is missing or not a valid path segment.
    """
    if resource.namespaced and not namespace:
        raise ValueError(f"{resource.plural}: the namespace is missing")
    return resource.path(_path_segment(namespace))


def _path_segment(text: str, *, required: bool = False) -> str:
    """Validate one path segment and encode it as Kubernetes does with names."""
    if text in {".", ".."} or "/" in text or "%" in text or (required and not text):
        raise ValueError(f"invalid name: {text!r}")
    return text if _is_unreserved(text) else quote(text, safe=_UNRESERVED)


def _query_value(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else ""
    return str(value) if value else ""


def with_query(path: str, **query: str | int | bool) -> str:
    """Append *query* to a path that has none; empty values are omitted."""
    given = {name: _query_value(value) for name, value in query.items() if value}
    return f"{path}?{urlencode(given)}" if given else path


def encode(body: object) -> bytes:
    """Encode *body* as JSON; bytes and :class:`msgspec.Raw` are passed through."""
    if isinstance(body, bytes):
        return body
    return _ENCODE(body)


def encode_object(body: object, resource: Resource) -> bytes:
    """Encode a whole object; a body without ``kind`` gets that of *resource*."""
    if isinstance(body, dict):
        return _ENCODE({"apiVersion": resource.api_version, "kind": resource.kind, **body})
    if isinstance(body, msgspec.Struct) and "kind" not in type(body).__struct_encode_fields__:
        head = f'{{"apiVersion":"{resource.api_version}","kind":"{resource.kind}"'.encode()
        rest = _ENCODE(body)[1:]
        return head + (rest if rest == b"}" else b"," + rest)
    return encode(body)


_DECODERS: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def decoder_for(view: type[T]) -> msgspec.json.Decoder[T]:
    """Return the cached decoder of a view."""
    found = _DECODERS.get(view)
    if found is None:
        found = _DECODERS[view] = msgspec.json.Decoder(view)
    return found


_PAGE_DECODER = msgspec.json.Decoder(Page)


def decode(body: bytes, view: type[T]) -> T:
    """Decode a response as *view*; :class:`msgspec.Raw` keeps the bytes.

    Raises:
        DecodeError: the body does not match *view*.
    """
    if view is msgspec.Raw:
        return cast(T, msgspec.Raw(body))
    try:
        return decoder_for(view).decode(body)
    except msgspec.MsgspecError as error:
        raise DecodeError(f"cannot decode response as {view.__name__}: {error}") from error


def decode_page(body: bytes) -> Page:
    """Decode a list, leaving its items encoded.

    Raises:
        DecodeError: the body is not a list.
    """
    try:
        return _PAGE_DECODER.decode(body)
    except msgspec.MsgspecError as error:
        raise DecodeError(f"cannot decode response as list: {error}") from error
