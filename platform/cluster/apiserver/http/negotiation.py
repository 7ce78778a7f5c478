"""Forms of bodies: what clients may send, and the form in which they want the answer."""

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import yaml

from ..errors.status import bad_request, not_acceptable, unsupported_media
from ..kinds.info import KindInfo
from . import protobuf
from .requests import JSON, PROTOBUF, YAML, Json, Request, parse_query

ACCEPTED = (JSON, YAML, PROTOBUF)
STREAMS = (f"{JSON};stream=watch", f"{PROTOBUF};stream=watch")
_loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

MAX_YAML_DEPTH = 200
"""Levels of lists and mappings in one another that a YAML body may have."""


@dataclass(frozen=True, slots=True)
class Form:
    """How an answer is to look."""

    shape: str = ""
    """``""`` for the objects themselves, else Table, PartialObjectMetadata or its List."""

    yaml: bool = False

    @property
    def content_type(self) -> str:
        """The answer's content type."""
        return YAML if self.yaml else JSON


PLAIN = Form()
_SHAPES = frozenset(("Table", "PartialObjectMetadata", "PartialObjectMetadataList"))


@lru_cache(maxsize=512)
def accepted(accept: str, *, streaming: bool = False) -> Form:
    """The first form of an ``Accept`` header that we can produce.

    Raises:
        StatusError: 406, there is none.
    """
    if not accept:
        return PLAIN
    for _, _, media, parameters in sorted(_clauses(accept)):
        form = _form(media, parameters)
        if form is not None and not (form.yaml and streaming):
            return form
    raise not_acceptable(STREAMS if streaming else ACCEPTED)


def wants_indented(query: bytes, user_agent: str) -> bool:
    """Whether a person will read the answer: the client says so, or is a tool for people."""
    said = parse_query(query).get("pretty") if b"pretty" in query else None
    if said:
        return said in ("1", "t", "T", "true", "TRUE", "True")
    return user_agent.startswith(("curl", "Wget", "Mozilla/5.0"))


def _clauses(accept: str) -> list[tuple[float, int, str, dict[str, str]]]:
    found = []
    for index, clause in enumerate(accept.split(",")):
        media, *rest = (part.strip() for part in clause.split(";"))
        parameters = dict(part.split("=", 1) for part in rest if "=" in part)
        try:
            quality = float(parameters.pop("q", "1"))
        except ValueError:
            quality = 0.0
        found.append((-quality, index, media, parameters))
    return found


def _form(media: str, parameters: dict[str, str]) -> Form | None:
    shape = parameters.get("as", "")
    if shape and (
        shape not in _SHAPES
        or parameters.get("g") != "meta.k8s.io"
        or parameters.get("v") not in ("v1", "v1beta1")
    ):
        return None
    if media in (JSON, "*/*", "application/*"):
        return Form(shape)
    return Form(shape, yaml=True) if media == YAML else None


def wants_aggregated(accept: str) -> bool:
    """Whether the client asks for discovery in one document."""
    return "as=APIGroupDiscoveryList" in accept and "g=apidiscovery.k8s.io" in accept


def dump_yaml(data: bytes) -> bytes:
    """JSON as YAML."""
    text: str = yaml.dump(msgspec.json.decode(data), Dumper=_dumper, sort_keys=True)
    return text.encode()


def decode_body(request: Request, *, kind: KindInfo | None = None) -> Json:
    """The object in a request's body, whichever form it has.

    Raises:
        StatusError: 400 or 415.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip() or JSON
    obj: Any
    if media == JSON:
        obj = parse_json(request.body)
    elif media == YAML:
        obj = parse_yaml(request.body)
    elif media == PROTOBUF and (kind is None or not kind.custom):
        try:
            obj = protobuf.decode(request.body)
        except protobuf.ProtobufError as error:
            raise bad_request(f"the body is no protobuf object: {error}") from error
    else:
        custom = kind is not None and kind.custom
        raise unsupported_media(ACCEPTED[:2] if custom else ACCEPTED)
    if obj is None and media == JSON:
        return {}
    if not isinstance(obj, dict):
        raise bad_request("couldn't get version/kind; json parse error: the body is no object")
    return obj


def section(obj: Json, key: str) -> Json:
    """The object under *key*, empty if there is none.

    Raises:
        StatusError: 400, something else is there.
    """
    found = obj.get(key) or {}
    if not isinstance(found, dict):
        raise bad_request(f"{key} is no object")
    return found


def _number(text: str) -> float:
    """Read a number as Go does: ``1.0`` and ``1e3`` are integers, and are stored as such."""
    number = float(text)
    if math.isinf(number):
        raise ValueError("Number out of range")
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=_number)


def parse_json(body: bytes) -> Any:
    """Read JSON.

    Raises:
        StatusError: 400.
    """
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise bad_request(f"the object provided is unrecognized: {error}") from error


def parse_yaml(body: bytes) -> Any:
    """Read YAML into what JSON could say.

    Raises:
        StatusError: 400.
    """
    try:
        _check_yaml(body)
        return _decoder.decode(msgspec.json.encode(yaml.load(body, Loader=_loader)))  # noqa: S506
    except (yaml.YAMLError, TypeError, RecursionError, UnicodeDecodeError) as error:
        raise bad_request(f"the object provided is unrecognized: {error}") from error


def _check_yaml(body: bytes) -> None:
    """Refuse what a few bytes of YAML could bring the whole server down with.

    Deep nesting overflows the stack of the loader, which is C; aliases of aliases become
    gigabytes of JSON. Reading events alone does neither.

    Raises:
        yaml.YAMLError: it is such a document, or none that can be read.
    """
    depth = 0
    for event in yaml.parse(body, Loader=_loader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not supported")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_YAML_DEPTH:
                raise yaml.YAMLError(f"nested deeper than {MAX_YAML_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def duplicate_fields(body: bytes) -> list[str]:
    """Paths of the keys that an object of a JSON document has twice: plain decoding hides them."""
    found: list[str] = []
    _find_doubled(json.loads(body, object_pairs_hook=_Pairs), "", found)
    return found


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object, as they were sent."""


def _find_doubled(value: Any, path: str, found: list[str]) -> None:
    if isinstance(value, _Pairs):
        seen = set()
        for key, member in value:
            inner = f"{path}.{key}" if path else key
            if key in seen:
                found.append(inner)
            seen.add(key)
            _find_doubled(member, inner, found)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _find_doubled(item, f"{path}[{index}]", found)
