"""Content negotiation: media types of requests and responses."""

from dataclasses import dataclass
from functools import lru_cache

from ..errors.status import not_acceptable
from ..media_types import JSON, PROTOBUF, YAML
from .requests import parse_query

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
_AS_KINDS = frozenset(("Table", "PartialObjectMetadata", "PartialObjectMetadataList"))


@lru_cache(maxsize=512)
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
    if media in (JSON, "*/*", "application/*"):
        return OutputFormat(shape)
    return OutputFormat(shape, yaml=True) if media == YAML else None


def wants_aggregated(accept: str) -> bool:
    """Return whether the client accepts aggregated discovery."""
    return "as=APIGroupDiscoveryList" in accept and "g=apidiscovery.k8s.io" in accept
