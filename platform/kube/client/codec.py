"""Bytes to objects and back: encoding of bodies, decoding of answers, lists and queries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote, urlencode

import msgspec

from ...model.names import Resource
from ..errors import DecodeError

T = TypeVar("T")

_ENCODE = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class ListScope:
    """Which objects a list or a watch is about."""

    resource: Resource
    namespace: str = ""
    """Empty for all namespaces."""
    label_selector: str = ""
    field_selector: str = ""

    def path(self, **query: str | int | bool) -> str:
        """The path of the collection with this selection and *query*; empty values are left out.

        Raises:
            ValueError: the namespace could not be part of a path.
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
    """The answer to a list, in the server's order."""

    items: Sequence[T]
    resource_version: str
    """Where a watch can go on from."""
    continue_token: str = ""
    """Token of the next page; empty when there is none."""


class PageMeta(msgspec.Struct, frozen=True, rename="camel"):
    """``metadata`` of a list."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct, frozen=True):
    """A list whose items are still bytes, so that they can be decoded in slices."""

    metadata: PageMeta = PageMeta()
    items: tuple[msgspec.Raw, ...] | None = ()
    """Go servers write null for an empty list now and then."""


def object_path(
    resource: Resource, name: str, *, namespace: str = "", subresource: str = ""
) -> str:
    """The path of one object.

    Raises:
        ValueError: *name* or *namespace* is missing or could not be part of a path; an empty name
            would otherwise address the whole collection.
    """
    if resource.namespaced and not namespace:
        raise ValueError(f"{resource.plural} {name!r}: the namespace is missing")
    return resource.path(_path_segment(namespace), _path_segment(name, required=True), subresource)


def collection_path(resource: Resource, namespace: str) -> str:
    """The path to create an object under.

    Raises:
        ValueError: the namespace is missing or could not be part of a path.
    """
    if resource.namespaced and not namespace:
        raise ValueError(f"{resource.plural}: the namespace is missing")
    return resource.path(_path_segment(namespace))


def _path_segment(text: str, *, required: bool = False) -> str:
    """Check one part of a path and encode it, as Kubernetes does with names."""
    if text in {".", ".."} or "/" in text or "%" in text or (required and not text):
        raise ValueError(f"no valid name: {text!r}")
    return text if text.isalnum() and text.isascii() else quote(text, safe="-._~:")


def _query_value(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else ""
    return str(value) if value else ""


def with_query(path: str, **query: str | int | bool) -> str:
    """Append *query* to a path that has none; empty values are left out."""
    text = urlencode({name: _query_value(value) for name, value in query.items() if value})
    return f"{path}?{text}" if text else path


def encode(body: object) -> bytes:
    """JSON of *body*; bytes and :class:`msgspec.Raw` are taken to be JSON already."""
    if isinstance(body, bytes):
        return body
    return _ENCODE(body)


def encode_object(body: object, resource: Resource) -> bytes:
    """JSON of a whole object; a body that does not tell its kind is given that of *resource*."""
    if isinstance(body, dict):
        return _ENCODE({"apiVersion": resource.api_version, "kind": resource.kind, **body})
    if isinstance(body, msgspec.Struct) and "kind" not in type(body).__struct_encode_fields__:
        head = f'{{"apiVersion":"{resource.api_version}","kind":"{resource.kind}"'.encode()
        rest = _ENCODE(body)[1:]
        return head + (rest if rest == b"}" else b"," + rest)
    return encode(body)


_DECODERS: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def decoder_for(view: type[T]) -> msgspec.json.Decoder[T]:
    """The decoder of a view; made once."""
    found = _DECODERS.get(view)
    if found is None:
        found = _DECODERS[view] = msgspec.json.Decoder(view)
    return found


_PAGE_DECODER = msgspec.json.Decoder(Page)


def decode(body: bytes, view: type[T]) -> T:
    """Read an answer as *view*; :class:`msgspec.Raw` gives the bytes as they are.

    Raises:
        UnreadableAnswerError: it has another shape.
    """
    if view is msgspec.Raw:
        return cast(T, msgspec.Raw(body))
    try:
        return decoder_for(view).decode(body)
    except msgspec.MsgspecError as error:
        raise DecodeError(f"answer is no {view.__name__}: {error}") from error


def decode_page(body: bytes) -> Page:
    """Read the envelope of a list, leaving the items as bytes.

    Raises:
        UnreadableAnswerError: it is no list.
    """
    try:
        return _PAGE_DECODER.decode(body)
    except msgspec.MsgspecError as error:
        raise DecodeError(f"answer is no list: {error}") from error
