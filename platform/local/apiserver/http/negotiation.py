"""Content negotiation: media types of requests and responses."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import TypeVar

from ..errors.status import not_acceptable
from ..media_types import JSON, OPENAPI_V2_PROTOBUF, PROTOBUF, YAML
from .requests import parse_query

Result = TypeVar("Result")

ACCEPTED = (JSON, YAML, PROTOBUF)
STREAM_TYPES = (f"{JSON};stream=watch", f"{PROTOBUF};stream=watch")


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """Format of a response."""

    as_kind: str = ""
    """``""`` for the objects themselves, else Table, PartialObjectMetadata or its List."""

    yaml: bool = False

    @property
    def content_type(self) -> str:
        """Content type of the response."""
        return YAML if self.yaml else JSON


PLAIN_JSON = OutputFormat()
_JSON_MEDIA = (JSON, "*/*", "application/*")
DISCOVERY_GROUP = "apidiscovery.k8s.io"
DISCOVERY_VERSIONS = ("v2", "v2beta1")
"""Versions of aggregated discovery; their documents have the same fields. Clients of client-go 0.26
to 0.29 know the older one alone."""
_AS_KINDS = frozenset(("Table", "PartialObjectMetadata", "PartialObjectMetadataList"))


_MAX_CACHED_LENGTH = 1024


def _cached(function: Callable[..., Result]) -> Callable[..., Result]:
    """Keep the results of usual headers; long ones would let a client fill the memory."""
    cached = lru_cache(maxsize=512)(function)

    @wraps(function)
    def call(accept: str, **options: bool) -> Result:
        return (cached if len(accept) <= _MAX_CACHED_LENGTH else function)(accept, **options)

    return call


@_cached
def negotiate(accept: str, *, streaming: bool = False) -> OutputFormat:
    """Return the first supported format of an ``Accept`` header.

    Raises:
        StatusError: 406, no format is supported.
    """
    if not accept:
        return PLAIN_JSON
    for _, _, media, parameters in sorted(_clauses(accept)):
        form = _output_format(media, parameters)
        if form is not None and not (form.yaml and streaming):
            return form
    raise not_acceptable(STREAM_TYPES if streaming else ACCEPTED)


def wants_pretty(query: bytes, user_agent: str) -> bool:
    """Return whether to indent JSON: by the query, or for command-line clients."""
    value = parse_query(query).get("pretty") if b"pretty" in query else None
    if value:
        return value in ("1", "t", "T", "true", "TRUE", "True")
    return user_agent.startswith(("curl", "Wget", "Mozilla/5.0"))


def _clauses(accept: str) -> list[tuple[float, int, str, dict[str, str]]]:
    found = []
    for index, clause in enumerate(accept.split(",")):
        media, *rest = (parameter.strip() for parameter in clause.split(";"))
        parameters = dict(parameter.split("=", 1) for parameter in rest if "=" in parameter)
        try:
            quality = float(parameters.pop("q", "1"))
        except ValueError:
            quality = 0.0
        found.append((-quality, index, media, parameters))
    return found


def _output_format(media: str, parameters: dict[str, str]) -> OutputFormat | None:
    shape = parameters.get("as", "")
    if shape and (
        shape not in _AS_KINDS
        or parameters.get("g") != "meta.k8s.io"
        or parameters.get("v") not in ("v1", "v1beta1")
    ):
        return None
    if media in _JSON_MEDIA:
        return OutputFormat(shape)
    return OutputFormat(shape, yaml=True) if media == YAML else None


@_cached
def openapi_v2_type(accept: str) -> str:
    """Return the media type of OpenAPI v2: JSON or protobuf.

    Raises:
        StatusError: 406, no format is supported.
    """
    for _, _, media, _ in sorted(_clauses(accept)):
        # Clients have the older name, with a sign that no media type may have.
        if media.replace("v2@v1", "v2.v1") == OPENAPI_V2_PROTOBUF:
            return OPENAPI_V2_PROTOBUF
        if _output_format(media, {}) is not None:
            break
    else:
        negotiate(accept)
    return JSON


@_cached
def aggregated_version(accept: str) -> str:
    """Return the version of aggregated discovery to serve; ``""`` for the older documents.

    As in kube-apiserver, aggregated discovery is served wherever it is accepted, in any position.

    Raises:
        StatusError: 406, no format is supported.
    """
    for _, _, media, parameters in sorted(_clauses(accept)):
        version = parameters.get("v", "")
        if (
            parameters.get("as") == "APIGroupDiscoveryList"
            and parameters.get("g") == DISCOVERY_GROUP
            and version in DISCOVERY_VERSIONS
            and media in (JSON, "*/*")
        ):
            return version
    negotiate(accept)
    return ""
