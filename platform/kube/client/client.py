"""Client of the Kubernetes API: typed reads, writes, lists and watches.

Bodies are structs, dicts or encoded bytes; responses are decoded as the *view* that the caller
names: a struct of the fields it needs, ``dict``, or :class:`msgspec.Raw` for the bytes. Errors are
those of :mod:`batholith.kube.errors`.
"""

import copy
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar, overload

import msgspec

from ...model.names import Resource
from ..errors import ConfigError
from ..http.http1 import READ_BUFFER_LIMIT
from ..metrics import ClientMetrics
from ..timing import Timing
from . import codec
from .codec import ListScope, ObjectList
from .config import Credentials
from .flowcontrol import TokenBucketRateLimiter
from .identity import Identity
from .transport import ApiRequest, ApiResponse, ClientOptions, Transport
from .watch_decoder import Bookmark, LineSplitter, WatchDecoder, WatchEvent

T = TypeVar("T")

Lines = Sequence[bytes]
"""Complete lines of a watch received in one read."""

STREAM_BUFFER = 64 * 1024
"""Bytes of a stream that are buffered while its reader does not read, plus one read."""

WATCH_IDLE_TIMEOUT = 90.0
"""Seconds without data after which a watch is resumed; servers send a bookmark a minute."""


@dataclass(frozen=True, slots=True)
class PatchType:
    """Format of a patch body, with the options of server-side apply."""

    content_type: str
    field_manager: str = ""
    force: bool = False

    MERGE: ClassVar["PatchType"]
    STRATEGIC: ClassVar["PatchType"]
    JSON: ClassVar["PatchType"]

    @classmethod
    def apply(cls, field_manager: str, *, force: bool = False) -> "PatchType":
        """Server-side apply as *field_manager*; *force* takes fields from other managers."""
        return cls("application/apply-patch+yaml", field_manager, force)


PatchType.MERGE = PatchType("application/merge-patch+json")
PatchType.STRATEGIC = PatchType("application/strategic-merge-patch+json")
PatchType.JSON = PatchType("application/json-patch+json")


@dataclass(frozen=True, slots=True)
class WriteLimit:
    """Until when a write may take effect."""

    seconds: int = 0
    """Seconds after which the server cancels a request that it has not carried out; 0 for the
    server's own limit."""

    guard: Callable[[], None] | None = None
    """Called when nothing but the write itself remains; raises NotSentError if it is too late."""


class Client:
    """Client of one API server with one user's credentials; safe for concurrent tasks."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        user_agent: str,
        limiter: TokenBucketRateLimiter | None = None,
        timeout: float = 30,
        options: ClientOptions | None = None,
    ) -> None:
        self._transport = Transport(
            credentials,
            user_agent=user_agent,
            limiter=limiter,
            timeout=timeout,
            options=options or ClientOptions(),
        )
        self._background = False
        self._identity: Identity | None = None
        self._fence: Callable[[], None] | None = None

    async def __aenter__(self) -> Self:
        """Open the connection pool.

        Raises:
            ConfigError: the credentials are unusable.
        """
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close every connection."""
        await self._transport.__aexit__(kind, error, trace)

    @property
    def metrics(self) -> ClientMetrics:
        """The metrics of this client."""
        return self._transport.options.metrics

    @property
    def credentials(self) -> Credentials:
        """Address and credentials, as they were given."""
        return self._transport.credentials

    @property
    def timing(self) -> Timing:
        """The clock of this client."""
        return self._transport.options.timing

    def background(self) -> "Client":
        """Return a client of the same pool whose requests have low priority."""
        client = self._copy()
        client._background = True
        return client

    def fenced(self, fence: Callable[[], None]) -> "Client":
        """Return a client of the same pool that calls *fence*, too, before each write is sent."""
        client = self._copy()
        client._fence = fence
        return client

    def acting_as(self, identity: Identity) -> "Client":
        """Return a client of the same pool that sends requests as *identity*.

        The server's rejection of its token raises CallerUnauthorizedError.

        Raises:
            ConfigError: this client impersonates a user already, and *identity* is another one.
        """
        if not identity.replaces_credentials and self._transport.impersonates:
            raise ConfigError("cannot impersonate: the kubeconfig's own user is impersonated")
        client = self._copy()
        client._identity = identity
        return client

    def _copy(self) -> Self:
        return copy.copy(self)

    async def get(self, resource: Resource, name: str, *, namespace: str = "", view: type[T]) -> T:
        """Get one object."""
        path = codec.object_path(resource, name, namespace=namespace)
        return codec.decode(await self._send("GET", path), view)

    async def get_path(self, path: str, *, view: type[T]) -> T:
        """Get any path, such as ``/version`` or a pod's log; the query must be encoded."""
        return codec.decode(await self._send("GET", path), view)

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        view: type[T],
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
    ) -> ObjectList[T]:
        """List objects: all of them by default, else the first *limit* from *continue_token* on.

        Raises:
            GoneError: the continue token expired.
            BadRequestError: it is none.
        """
        scope = ListScope(
            resource=resource,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
        )
        items: list[T] = []
        version, more = "", ""
        async for page in self.list_pages(scope, size=limit or 500, token=continue_token):
            items += [codec.decode(bytes(raw), view) for raw in page.items]
            version, more = page.resource_version, page.continue_token
            if limit:
                break
        return ObjectList(items, version, more)

    async def list_pages(
        self, scope: ListScope, *, size: int = 500, token: str = ""
    ) -> AsyncIterator[ObjectList[msgspec.Raw]]:
        """List in pages of undecoded items, from the continue *token* on.

        All pages are of one resourceVersion.

        Raises:
            GoneError: the continue token expired; start again.
        """
        while True:
            path = scope.path(limit=size, **{"continue": token})
            page = codec.decode_page(await self._send("GET", path))
            token = page.metadata.continue_
            yield ObjectList(page.items or (), page.metadata.resource_version, token)
            if not token:
                return

    @overload
    async def create(
        self,
        resource: Resource,
        body: object,
        *,
        namespace: str = "",
        limit: WriteLimit = ...,
        dry_run: bool = ...,
    ) -> msgspec.Raw: ...
    @overload
    async def create(
        self,
        resource: Resource,
        body: object,
        *,
        namespace: str = "",
        view: type[T],
        limit: WriteLimit = ...,
        dry_run: bool = ...,
    ) -> T: ...
    async def create(
        self,
        resource: Resource,
        body: object,
        *,
        namespace: str = "",
        view: type[Any] = msgspec.Raw,
        limit: WriteLimit = WriteLimit(),
        dry_run: bool = False,
    ) -> Any:
        """Create an object; a body without ``kind`` gets that of *resource*.

        With *dry_run* it is not stored; what would be stored is returned.

        Raises:
            NotSentError: *limit* does not permit it.
        """
        path = codec.with_query(
            codec.collection_path(resource, namespace),
            timeout=f"{limit.seconds}s" if limit.seconds else "",
            dryRun="All" if dry_run else "",
        )
        data = codec.encode_object(body, resource)
        content = await self._send("POST", path, data, "application/json", limit.guard)
        return codec.decode(content, view)

    async def create_strictly(
        self,
        resource: Resource,
        body: object,
        *,
        namespace: str = "",
        dry_run: bool = False,
        view: type[T],
    ) -> tuple[T, Sequence[str]]:
        """Create an object without unknown or duplicate fields; return it with the warnings.

        These are the values of the ``Warning`` headers of the response. *dry_run*: only validate.

        Raises:
            BadRequestError: a field is unknown.
        """
        path = codec.with_query(
            codec.collection_path(resource, namespace),
            fieldValidation="Strict",
            dryRun="All" if dry_run else "",
        )
        data = codec.encode_object(body, resource)
        response = await self._exchange("POST", path, data)
        return codec.decode(response.body, view), response.warnings

    @overload
    async def patch(
        self,
        resource: Resource,
        name: str,
        body: object,
        *,
        namespace: str = "",
        subresource: str = "",
        kind: PatchType = PatchType.MERGE,
    ) -> msgspec.Raw: ...
    @overload
    async def patch(
        self,
        resource: Resource,
        name: str,
        body: object,
        *,
        namespace: str = "",
        subresource: str = "",
        kind: PatchType = PatchType.MERGE,
        view: type[T],
    ) -> T: ...
    async def patch(
        self,
        resource: Resource,
        name: str,
        body: object,
        *,
        namespace: str = "",
        subresource: str = "",
        kind: PatchType = PatchType.MERGE,
        view: type[Any] = msgspec.Raw,
    ) -> Any:
        """Patch an object, by a merge patch unless *kind* is another type.

        A ``metadata.resourceVersion`` in the body is a precondition.
        """
        path = codec.object_path(resource, name, namespace=namespace, subresource=subresource)
        applied = bool(kind.field_manager)
        data = codec.encode_object(body, resource) if applied else codec.encode(body)
        query = codec.with_query(path, fieldManager=kind.field_manager, force=kind.force)
        return codec.decode(await self._send("PATCH", query, data, kind.content_type), view)

    @overload
    async def replace(
        self,
        resource: Resource,
        name: str,
        body: object,
        *,
        namespace: str = "",
        subresource: str = "",
    ) -> msgspec.Raw: ...
    @overload
    async def replace(
        self,
        resource: Resource,
        name: str,
        body: object,
        *,
        namespace: str = "",
        subresource: str = "",
        view: type[T],
    ) -> T: ...
    async def replace(
        self,
        resource: Resource,
        name: str,
        body: object,
        *,
        namespace: str = "",
        subresource: str = "",
        view: type[Any] = msgspec.Raw,
    ) -> Any:
        """Replace a whole object; *view* is the type of the result.

        *body* must not be a typed object, which lacks the fields that its type does not declare:
        the API server would remove them.
        """
        path = codec.object_path(resource, name, namespace=namespace, subresource=subresource)
        return codec.decode(
            await self._send("PUT", path, codec.encode_object(body, resource)), view
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        grace_period: int | None = None,
        propagation: str = "",
    ) -> msgspec.Raw:
        """Delete an object if it still has *uid* and *resource_version* (if given).

        Returns what the server responds: the object, if finalizers hold it; else a Status, or the
        object as it was.

        Args:
            resource: the resource.
            name: the object's name.
            namespace: its namespace, unless the kind is cluster-scoped.
            uid: precondition; ConflictError if the object has another uid.
            resource_version: precondition, likewise.
            grace_period: seconds until a pod is killed; None for the pod's own grace period.
            propagation: ``Background``, ``Foreground`` or ``Orphan``.
        """
        given = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {field: value for field, value in given.items() if value}
        options: dict[str, object] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if preconditions:
            options["preconditions"] = preconditions
        if grace_period is not None:
            options["gracePeriodSeconds"] = grace_period
        if propagation:
            options["propagationPolicy"] = propagation
        path = codec.object_path(resource, name, namespace=namespace)
        return msgspec.Raw(await self._send("DELETE", path, codec.encode(options)))

    @overload
    async def post(self, path: str, body: object) -> msgspec.Raw: ...
    @overload
    async def post(self, path: str, body: object, *, view: type[T]) -> T: ...
    async def post(self, path: str, body: object, *, view: type[Any] = msgspec.Raw) -> Any:
        """POST to any path (``pods/x/binding``, token reviews); the body must name its kind."""
        return codec.decode(await self._send("POST", path, codec.encode(body)), view)

    async def watch(
        self,
        resource: Resource,
        *,
        view: type[T],
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str = "",
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Yield changes after *resource_version* (by default an ADDED for each object first).

        Ends when the server closes the watch; an :class:`Informer` resumes it.
        """
        scope = ListScope(
            resource=resource,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
        )
        decoder = WatchDecoder(view)
        path = scope.path(watch=True, resourceVersion=resource_version)
        async with self.watch_lines(path) as batches:
            async for lines in batches:
                for line in lines:
                    event = decoder.decode(line)
                    if not isinstance(event, Bookmark):
                        yield event

    @asynccontextmanager
    async def watch_lines(
        self,
        path: str,
        *,
        idle_timeout: float = WATCH_IDLE_TIMEOUT,
        buffer_limit: int = READ_BUFFER_LIMIT,
    ) -> AsyncIterator[AsyncIterator[Lines]]:
        """Open the watch at *path*; the block gets its lines in batches, one batch a read.

        At most about *buffer_limit* bytes are buffered between reads.

        Raises:
            ApiError, ConnectionLostError: also from the iteration.
        """
        async with self._transport.stream(
            self._request("GET", path, buffer_limit=buffer_limit), idle_timeout=idle_timeout
        ) as chunks:
            yield _lines(chunks())

    @asynccontextmanager
    async def stream_path(
        self, path: str, *, idle_timeout: float | None, buffer_limit: int = STREAM_BUFFER
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open any path, such as a pod's log; the block gets its bytes as they arrive.

        The end of the block ends the request. At most about *buffer_limit* bytes are buffered for
        a slow reader; then the server has to wait.

        Args:
            path: with an encoded query.
            idle_timeout: seconds without data after which the request fails; None for never, as
                a log that is followed may have no lines for days.
            buffer_limit: bytes.

        Raises:
            ApiError, ConnectionLostError: also from the iteration.
        """
        request = self._request("GET", path, buffer_limit=buffer_limit)
        async with self._transport.stream(request, idle_timeout=idle_timeout) as chunks:
            yield chunks()

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = "application/json",
        guard: Callable[[], None] | None = None,
    ) -> bytes:
        request = self._request(method, path, body, content_type, guard=guard)
        return (await self._transport.exchange(request)).body

    async def _exchange(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> ApiResponse:
        return await self._transport.exchange(self._request(method, path, body, content_type))

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = "application/json",
        *,
        buffer_limit: int = READ_BUFFER_LIMIT,
        guard: Callable[[], None] | None = None,
    ) -> ApiRequest:
        return ApiRequest(
            method,
            path,
            body,
            content_type,
            self._background,
            self._identity,
            buffer_limit,
            self._fence,
            guard,
        )


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[Lines]:
    splitter = LineSplitter()
    async for chunk in chunks:
        if lines := splitter.feed(chunk):
            yield lines


__all__ = [
    "Client",
    "ClientOptions",
    "ListScope",
    "ObjectList",
    "PatchType",
    "WatchEvent",
    "WriteLimit",
]
