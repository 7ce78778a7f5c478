"""Requests as the API server received them, and matchers that select some of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qsl

import msgspec

from ..local.apiserver.http.connections import HttpRequest
from ..local.apiserver.http.requests import ObjectPath
from ..local.apiserver.http.routes import RequestInfo, parse_path
from ..model.names import Resource

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """One request, with its RequestInfo as in Kubernetes."""

    method: str
    path: str
    """Decoded, without the query."""

    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Names are in lower case."""

    body: bytes
    verb: str
    """``get``, ``list``, ``watch``, ``create``, ``update``, ``patch``, ``delete`` or
    ``deletecollection``; of a path that names no resource, the method in lower case."""

    group: str = ""
    resource: str = ""
    """Plural name; empty for a path that names no resource."""

    namespace: str = ""
    name: str = ""
    """Of a create, the name in the body; empty for a collection."""

    subresource: str = ""

    @classmethod
    def parse(cls, received: HttpRequest) -> Self:
        """Return *received* as a record."""
        query = dict(parse_qsl(received.query.decode("latin-1"), keep_blank_values=True))
        info = parse_path(received.path) or RequestInfo("", "", "", ObjectPath())
        target = info.object_path
        verb = _verb(received.method, info, query)
        created = verb == "create" and not target.name
        return cls(
            method=received.method,
            path=received.path,
            query=query,
            headers=received.headers,
            body=received.body,
            verb=verb,
            group=info.group,
            resource=info.plural,
            namespace=target.namespace,
            name=_name_in(received.body) if created else target.name,
            subresource=target.subresource,
        )

    @property
    def user_agent(self) -> str:
        """The ``User-Agent`` header."""
        return self.headers.get("user-agent", "")

    def json(self) -> Any:
        """Decode the body.

        Raises:
            msgspec.DecodeError: it is not JSON.
        """
        return msgspec.json.decode(self.body)


@dataclass(frozen=True, slots=True)
class RequestMatcher:
    """Selects requests; what is left empty matches everything."""

    verb: str = ""
    """A verb of Kubernetes (``create``, ``watch``), or an HTTP method (``POST``)."""

    resource: Resource | str = ""
    """``pods``, ``pods/status``, ``pods/*`` (with all subresources), ``jobs.batch.volcano.sh``."""

    name: str = field(default="", kw_only=True)
    namespace: str = field(default="", kw_only=True)
    path: str = field(default="", kw_only=True)
    """Part of the path."""

    user_agent: str = field(default="", kw_only=True)
    """Beginning of the user agent."""

    where: Callable[[RecordedRequest], bool] | None = field(default=None, kw_only=True)
    """A condition on top of the others."""

    nth: int = field(default=1, kw_only=True)
    """A fault begins with this match."""

    count: int | None = field(default=1, kw_only=True)
    """Matches that a fault applies to; ``None`` is all until it is removed."""

    def matches(self, request: RecordedRequest) -> bool:
        """Whether *request* is selected; *nth* and *count* are not considered."""
        return (
            self.verb in ("", request.verb, request.method)
            and _is_of(self.resource, request)
            and self.name in ("", request.name)
            and self.namespace in ("", request.namespace)
            and self.path in request.path
            and request.user_agent.startswith(self.user_agent)
            and (self.where is None or self.where(request))
        )


def _is_of(resource: Resource | str, request: RecordedRequest) -> bool:
    if not resource:
        return True
    if isinstance(resource, Resource):
        wanted = (resource.group, resource.plural, "")
        return (request.group, request.resource, request.subresource) == wanted
    qualified, _, subresource = resource.partition("/")
    plural, _, group = qualified.partition(".")
    return (
        plural == request.resource
        and group in ("", request.group)
        and subresource in ("*", request.subresource)
    )


def _verb(method: str, info: RequestInfo, query: Mapping[str, str]) -> str:
    if not info.plural:
        return method.lower()
    if method in ("GET", "HEAD"):
        if info.watch or query.get("watch", "false") in ("", "1", "true", "True"):
            return "watch"
        return "get" if info.object_path.name else "list"
    verb = _VERBS.get(method, method.lower())
    return "deletecollection" if verb == "delete" and not info.object_path.name else verb


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""


class _Named(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()


_names = msgspec.json.Decoder(_Named)


def _name_in(body: bytes) -> str:
    try:
        return _names.decode(body).metadata.name
    except msgspec.MsgspecError:
        return ""  # the server refuses it, or it is YAML or protobuf
