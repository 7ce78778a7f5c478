"""The operations of the API by path, from its description.

Starlette knows the methods of one route, while a path may have several; and it ignores query
parameters that no route declares. Both are decided here for all routes, by the description that
clients read.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...model.spelling import hint
from ..problems import MEDIA_TYPE, ProblemError, encode_problem

_PARAMETER = re.compile(r"{([^}:]+)(?::[^}]+)?}")
_STATE_KEY = "operation"
"""Key of the request's state, which copies of the scope share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    route: str
    """The path with names of its parameters in braces."""

    method: str

    query: Mapping[str, bool]
    """Whether each query parameter may be repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Path:
    pattern: re.Pattern[str]
    operations: Mapping[str, Operation]


class OperationTable:
    """Finds the operation of a request."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        """Read the operations from *document*, an OpenAPI description."""
        self._paths: dict[int, list[_Path]] = {}
        """By number of segments."""
        for route, item in document["paths"].items():
            path = _Path(
                pattern=_pattern(route, item, document),
                operations={
                    method.upper(): _operation(route, method.upper(), described, document)
                    for method, described in item.items()
                },
            )
            self._paths.setdefault(route.count("/"), []).append(path)

    def operations(self, path: str) -> dict[str, Operation]:
        """Return the operations of *path* by method, of all routes that match it."""
        found: dict[str, Operation] = {}
        for each in self._paths.get(path.count("/"), ()):
            if each.pattern.fullmatch(path):
                found = dict(each.operations) | found
        return found


def _pattern(route: str, item: Mapping[str, Any], document: Mapping[str, Any]) -> re.Pattern[str]:
    """Return the pattern of the paths of *route*; a parameter with an enum matches its values."""
    values = {
        parameter["name"]: _resolve(parameter["schema"], document).get("enum")
        for described in item.values()
        for parameter in described.get("parameters", ())
        if parameter["in"] == "path"
    }
    pieces, end = [], 0
    for match in _PARAMETER.finditer(route):
        pieces.append(re.escape(route[end : match.start()]))
        names = values.get(match[1])
        pieces.append(f"(?:{'|'.join(map(re.escape, names))})" if names else "[^/]+")
        end = match.end()
    return re.compile("".join((*pieces, re.escape(route[end:]))))


def _operation(
    route: str, method: str, described: Mapping[str, Any], document: Mapping[str, Any]
) -> Operation:
    query = {
        parameter["name"]: _is_array(parameter["schema"], document)
        for parameter in described.get("parameters", ())
        if parameter["in"] == "query"
    }
    return Operation(route=route, method=method, query=query)


def _resolve(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in schema:
        return schema
    name = schema["$ref"].rpartition("/")[2]
    found: Mapping[str, Any] = document["components"]["schemas"][name]
    return found


def _is_array(schema: Mapping[str, Any], document: Mapping[str, Any]) -> bool:
    alternatives: Iterable[Mapping[str, Any]] = schema.get("anyOf", (schema,))
    return any(_resolve(each, document).get("type") == "array" for each in alternatives)


def operation_of(scope: Scope) -> Operation | None:
    """Return the operation that *scope* requests, if it is one of the description."""
    found: Operation | None = scope.get("state", {}).get(_STATE_KEY)
    return found


class OperationMiddleware:
    """ASGI middleware: 405 with all methods of the path, and HEAD wherever GET is served."""

    def __init__(self, app: ASGIApp, *, table: OperationTable) -> None:
        self._app = app
        self._table = table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find the operation and pass the request on."""
        operations = self._table.operations(scope["path"]) if scope["type"] == "http" else {}
        if not operations:
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        operation = operations.get("GET" if method == "HEAD" else method)
        if operation is None:
            await _reject_method(method, operations, send)
            return
        scope.setdefault("state", {})[_STATE_KEY] = operation
        if method == "HEAD":
            await self._head({**scope, "method": "GET"}, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _head(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond with the head of the GET response; a stream ends with it."""
        started = asyncio.Event()

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                started.set()

        request = asyncio.ensure_future(self._app(scope, receive, send_head))
        waiting = asyncio.create_task(started.wait())
        try:
            await asyncio.wait((request, waiting), return_when=asyncio.FIRST_COMPLETED)
            if not started.is_set():
                await request  # raises its error
        finally:
            waiting.cancel()
            request.cancel()
            await asyncio.gather(request, waiting, return_exceptions=True)


async def _reject_method(method: str, operations: Iterable[str], send: Send) -> None:
    allowed = set(operations)
    if "GET" in allowed:
        allowed.add("HEAD")
    allow = ", ".join(sorted(allowed))
    body = encode_problem(405, f"{method} is not allowed here; allowed: {allow}")
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"allow", allow.encode()),
    ]
    await send({"type": "http.response.start", "status": 405, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def check_query(request: Request) -> None:
    """Check that the query has declared parameters only, and none twice that may be given once.

    Raises:
        ProblemError: 422 naming the parameters.
    """
    operation = operation_of(request.scope)
    if operation is None:
        return
    errors = []
    for name in dict.fromkeys(request.query_params.keys()):
        repeatable = operation.query.get(name)
        if repeatable is None:
            message = f"unknown query parameter; {hint(name, operation.query)}"
            errors.append({"field": name, "message": message})
        elif not repeatable and len(request.query_params.getlist(name)) > 1:
            errors.append({"field": name, "message": "may be given once"})
    if errors:
        detail = "; ".join(f"{each['field']}: {each['message']}" for each in errors)
        raise ProblemError(422, detail, errors=tuple(errors))
