"""Decode request bodies of all media types into JSON objects."""

import json
import math
import re
from collections.abc import Callable
from typing import Any

import msgspec

from ..errors.status import StatusError, bad_request, unsupported_media
from ..kinds.info import OFFLOAD_THRESHOLD, KindInfo
from ..media_types import JSON, PROTOBUF, YAML
from . import offload, protobuf, yaml_process
from .negotiation import ACCEPTED
from .requests import Json, Request
from .yaml_process import MAX_DEPTH, MAX_VALUES

_SPACED_COLON = re.compile(rb'"[ \t\r\n]+:')
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def media_type(request: Request) -> str:
    """Return the media type of a request's body."""
    return request.headers.get("content-type", "").partition(";")[0].strip() or JSON


async def convert_large_yaml(request: Request) -> None:
    """Convert a large YAML body to JSON in a separate process.

    Raises:
        StatusError: 400, it cannot be decoded.
    """
    if media_type(request) == YAML and len(request.body) > offload.YAML_OFFLOAD_THRESHOLD:
        request.body = await offload.yaml_to_json(request.body)
        request.headers = {**request.headers, "content-type": JSON}


async def decode_ahead(request: Request, *, kind: KindInfo | None = None) -> None:
    """Decode a large body in a thread; the next :func:`decode_body` returns the result.

    Raises:
        StatusError: 400, 413 or 415.
    """
    if len(request.body) > OFFLOAD_THRESHOLD:
        request.decoded = await offload.run_in_thread(lambda: decode_body(request, kind=kind))


def decode_body(request: Request, *, kind: KindInfo | None = None) -> Json:
    """Return the object in a request's body, decoded by its media type.

    Raises:
        StatusError: 400, 413 or 415.
    """
    if request.decoded is not None:
        obj, request.decoded = request.decoded, None
        return obj
    media = media_type(request)
    read = _DECODERS.get(media)
    if read is None or (media == PROTOBUF and kind is not None and kind.custom):
        custom = kind is not None and kind.custom
        raise unsupported_media(ACCEPTED[:2] if custom else ACCEPTED)
    obj = read(request.body)
    if obj is None and media == JSON:
        return {}
    if not isinstance(obj, dict):
        raise bad_request("couldn't get version/kind; json parse error: the body is no object")
    return obj


def get_object(obj: Json, key: str) -> Json:
    """Return the object under *key*, empty if it is absent.

    Raises:
        StatusError: 400, the value is not an object.
    """
    found = obj.get(key) or {}
    if not isinstance(found, dict):
        raise bad_request(f"{key} is no object")
    return found


def _number(text: str) -> float:
    """Parse a number as Go does: ``1.0`` and ``1e3`` are integers, and are stored as such."""
    number = float(text)
    if math.isinf(number):
        raise ValueError("Number out of range")
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=_number)


def parse_json(body: bytes) -> Any:
    """Decode JSON.

    Raises:
        StatusError: 400; 413, the body has too many values.
    """
    opened = body.count(b"{") + body.count(b"[")
    if opened + body.count(b",") > MAX_VALUES:
        _count_values(body)
    try:
        value = _decoder.decode(body)
    except RecursionError as error:
        raise _too_deep() from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unrecognized(error) from error
    if opened > MAX_DEPTH:
        check_depth_and_size(value)
    return value


def _count_values(body: bytes) -> None:
    """Count the values of a JSON document without decoding it.

    Raises:
        StatusError: 413, there are too many.
    """
    values = end = 0
    for string in _STRING.finditer(body):
        values += _separators(body, end, string.start())
        end = string.end()
        if values > MAX_VALUES:
            break
    if values + _separators(body, end, len(body)) > MAX_VALUES:
        raise _too_many()


def _separators(body: bytes, start: int, end: int) -> int:
    return sum(body.count(sign, start, end) for sign in (b",", b"{", b"["))


def check_depth_and_size(value: Any) -> None:
    """Reject a value that is nested too deep, or too large, to be handled in time.

    Raises:
        StatusError: 400 or 413.
    """
    level, depth, values = [value], 0, 0
    while level:
        values += len(level)
        if depth > MAX_DEPTH:
            raise _too_deep()
        if values > MAX_VALUES:
            raise _too_many()
        inner = (
            each.values() if type(each) is dict else each
            for each in level
            if type(each) is dict or type(each) is list
        )
        level = [item for items in inner for item in items]
        depth += 1


def _unrecognized(reason: object) -> StatusError:
    return bad_request(f"the object provided is unrecognized: {reason}")


def _too_deep() -> StatusError:
    return _unrecognized(f"nested deeper than {MAX_DEPTH} levels")


def _too_many() -> StatusError:
    text = f"Request entity too large: limit is {MAX_VALUES} values"
    return StatusError(413, "RequestEntityTooLarge", text)


def _parse_yaml(body: bytes) -> Any:
    try:
        return parse_json(yaml_process.to_json(body))
    except yaml_process.DECODE_ERRORS as error:
        raise _unrecognized(error) from error


def _parse_protobuf(body: bytes) -> Any:
    try:
        value = protobuf.decode(body)
    except protobuf.ProtobufError as error:
        raise bad_request(f"the body is no protobuf object: {error}") from error
    if len(body) > MAX_DEPTH:
        check_depth_and_size(value)
    return value


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    JSON: parse_json,
    YAML: _parse_yaml,
    PROTOBUF: _parse_protobuf,
}


DUPLICATE, UNKNOWN = "duplicate", "unknown"


def may_repeat_fields(body: bytes, value: Any) -> bool:
    """Whether a JSON document, which was decoded to *value*, may have duplicate keys.

    Each key of the document is followed by a colon, and so is each in the encoding of *value*,
    which lacks the duplicates. Of a document whose spelling may differ, the result is true.
    """
    if _SPACED_COLON.search(body) is not None or b"\\u0022" in body:
        return True
    return body.count(b'":') != msgspec.json.encode(value).count(b'":')


def duplicate_fields(body: bytes) -> list[str]:
    """Return the paths of duplicate keys in a JSON document; plain decoding hides them."""
    return [path for path, repeats in field_paths(body) if repeats]


def field_paths(body: bytes) -> list[tuple[str, bool]]:
    """Return the paths of all members of a JSON document in its order.

    Each with whether its key repeats one of the same object, which plain decoding hides.
    """
    found: list[tuple[str, bool]] = []
    _walk(json.loads(body, object_pairs_hook=_Pairs), "", found)
    return found


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object in their original order, duplicates included."""


def _walk(value: Any, path: str, found: list[tuple[str, bool]]) -> None:
    if isinstance(value, _Pairs):
        seen = set()
        for key, member in value:
            inner = f"{path}.{key}" if path else key
            found.append((inner, key in seen))
            seen.add(key)
            _walk(member, inner, found)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _walk(item, f"{path}[{index}]", found)
