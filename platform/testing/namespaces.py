"""A new namespace for each test, on any cluster."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..kube.client.client import Client
from ..kube.client.config import Credentials
from ..kube.errors import ConnectionLostError, GoneError, NotFoundError
from ..model.base import ApiStruct
from ..model.meta import ObjectMeta
from ..model.names import NAMESPACES, Resource
from .blocking import Blocking, waiting
from .changes import WAIT_SECONDS, Json, WaitTimeoutError
from .discovery import find_resource, served_resources
from .objects import phase_of
from .webhooks import Reviewer, ServedWebhook, rule_for, webhook_options

_MAX_PREFIX = 40
"""Characters of the test's name in that of the namespace, which the server completes."""

_RETRY_INTERVAL = 0.1
"""Seconds between two attempts to list and watch."""


class _Created(ApiStruct, frozen=True):
    metadata: ObjectMeta


class ClusterNamespace:
    """A new namespace of a cluster; an async context manager, which deletes it at the end.

    Its methods send requests as any client does: they work with every cluster, and objects are in
    this namespace unless another one is named.
    """

    def __init__(self, credentials: Credentials, *, prefix: str, kubeconfig: Path | None) -> None:
        """Prepare a namespace; entering the context creates it.

        Args:
            credentials: of a user who may create namespaces.
            prefix: how its name begins, such as the name of the test.
            kubeconfig: of the cluster, for other clients.
        """
        self.name = ""
        self.kubeconfig = kubeconfig
        """Path of the cluster's kubeconfig; ``None`` in a pod of the cluster."""

        self._prefix = re.sub(r"[^a-z0-9]+", "-", prefix.lower()).strip("-")[:_MAX_PREFIX] or "test"
        self._client = Client(credentials, user_agent="batholith-testing")
        self._served: list[Resource] = []

    async def __aenter__(self) -> Self:
        """Create the namespace."""
        await self._client.__aenter__()
        try:
            body = {"metadata": {"generateName": f"{self._prefix}-"}}
            created = await self._client.create(NAMESPACES, body, view=_Created)
        except BaseException:
            await self._client.__aexit__(None, None, None)
            raise
        self.name = created.metadata.name
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Delete the namespace, without waiting for the end of what is in it."""
        try:
            await self._client.delete(NAMESPACES, self.name)
        except NotFoundError:  # the test has deleted it
            pass
        finally:
            await self._client.__aexit__(None, None, None)

    async def resource(self, kind: Resource | str) -> Resource:
        """Return a resource by its kind or plural, as ``kubectl`` names it.

        Raises:
            ValueError: there is no such resource, or several.
        """
        if isinstance(kind, Resource):
            return kind
        try:
            return find_resource(kind, self._served)
        except ValueError:  # its definition may be newer
            self._served = await served_resources(self._client)
            return find_resource(kind, self._served)

    async def create(
        self, resource: Resource | str, obj: Json, *, namespace: str | None = None
    ) -> Json:
        """Create an object.

        Raises:
            ApiError: the server refused it.
        """
        found = await self.resource(resource)
        return await self._client.create(
            found, obj, namespace=self._namespace(found, namespace), view=dict
        )

    async def get(
        self, resource: Resource | str, name: str, *, namespace: str | None = None
    ) -> Json:
        """Read an object.

        Raises:
            NotFoundError: it does not exist.
        """
        found = await self.resource(resource)
        return await self._client.get(
            found, name, namespace=self._namespace(found, namespace), view=dict
        )

    async def list(
        self,
        resource: Resource | str,
        *,
        namespace: str | None = None,
        label_selector: str = "",
    ) -> list[Json]:
        """List objects; of a resource without namespaces, all of the cluster."""
        found = await self.resource(resource)
        listed = await self._client.list(
            found,
            namespace=self._namespace(found, namespace),
            label_selector=label_selector,
            view=dict[str, Any],
        )
        return list(listed.items)

    async def patch(
        self,
        resource: Resource | str,
        name: str,
        patch: Json,
        *,
        namespace: str | None = None,
        subresource: str = "",
    ) -> Json:
        """Change an object by a merge patch.

        Raises:
            ApiError: the server refused it.
        """
        found = await self.resource(resource)
        return await self._client.patch(
            found,
            name,
            patch,
            namespace=self._namespace(found, namespace),
            subresource=subresource,
            view=dict,
        )

    async def delete(
        self, resource: Resource | str, name: str, *, namespace: str | None = None
    ) -> None:
        """Delete an object.

        Raises:
            ApiError: the server refused it.
        """
        found = await self.resource(resource)
        await self._client.delete(found, name, namespace=self._namespace(found, namespace))

    async def wait_for(
        self,
        resource: Resource | str,
        name: str,
        condition: Callable[[Json], object],
        *,
        namespace: str | None = None,
        timeout: float = WAIT_SECONDS,
    ) -> Json:
        """Wait until *condition* holds for an object, and return it.

        A condition that raises LookupError does not hold: the field may be set later.

        Raises:
            WaitTimeoutError: it did not hold within *timeout* seconds.
        """

        found: Json = {}

        def holds(obj: Json | None) -> bool:
            nonlocal found
            found = obj or {}
            try:
                return obj is not None and bool(condition(obj))
            except LookupError:
                return False

        await self._wait(resource, name, holds, namespace, timeout)
        return found

    async def wait_for_phase(
        self,
        resource: Resource | str,
        name: str,
        *phases: str,
        namespace: str | None = None,
        timeout: float = WAIT_SECONDS,
    ) -> Json:
        """Wait until an object is in one of *phases*, and return it.

        Raises:
            WaitTimeoutError: it was in none of them within *timeout* seconds.
        """
        return await self.wait_for(
            resource,
            name,
            lambda obj: phase_of(obj) in phases,
            namespace=namespace,
            timeout=timeout,
        )

    async def wait_deleted(
        self,
        resource: Resource | str,
        name: str,
        *,
        namespace: str | None = None,
        timeout: float = WAIT_SECONDS,
    ) -> None:
        """Wait until an object does not exist.

        Raises:
            WaitTimeoutError: it existed after *timeout* seconds.
        """
        await self._wait(resource, name, lambda obj: obj is None, namespace, timeout)

    @asynccontextmanager
    async def webhook(
        self,
        reviewer: Reviewer,
        resource: Resource | str,
        *,
        operations: Sequence[str] = ("CREATE", "UPDATE"),
        subresource: str = "",
        mutating: bool = False,
        **options: Any,
    ) -> AsyncIterator[ServedWebhook]:
        """Let *reviewer* decide about requests in this namespace until the end of the block.

        It is served at loopback, which the API server must reach.

        Args:
            reviewer: called with the ``request`` of each AdmissionReview; returns ``None`` to
                allow it, a text to deny it, or the object as it should be, if *mutating*.
            resource: what it reviews.
            operations: which requests: ``CREATE``, ``UPDATE``, ``DELETE``, ``CONNECT``.
            subresource: reviews requests for it instead, such as ``status`` or ``scale``.
            mutating: whether it may change objects.
            options: further fields of the webhook, such as ``failurePolicy="Ignore"``.

        Raises:
            ApiError: the server refused the configuration.
            Exception: what *reviewer* raised, at the end of the block.
        """
        found = await self.resource(resource)
        rule = rule_for(found, operations=operations, subresource=subresource)
        limited_to = self.name if found.namespaced else ""
        served = ServedWebhook(reviewer, mutating=mutating)
        fields = webhook_options(options, namespace=limited_to)
        async with served.registered(self._client, [rule], fields, self.name):
            yield served

    def _namespace(self, resource: Resource, namespace: str | None) -> str:
        if not resource.namespaced:
            return ""
        return self.name if namespace is None else namespace

    async def _wait(
        self,
        resource: Resource | str,
        name: str,
        holds: Callable[[Json | None], bool],
        namespace: str | None,
        timeout: float,
    ) -> None:
        found = await self.resource(resource)
        scope = self._namespace(found, namespace)
        latest: Json | None = None
        try:
            async with (
                asyncio.timeout(timeout),
                aclosing(self._states(found, scope, name)) as states,
            ):
                async for latest in states:
                    if holds(latest):
                        return
        except TimeoutError:
            state = "not found" if latest is None else str(latest)
            text = f"the condition did not hold within {timeout:g} s; {found.kind} {name}: {state}"
            raise WaitTimeoutError(text) from None

    async def _states(
        self, resource: Resource, namespace: str, name: str
    ) -> AsyncGenerator[Json | None]:
        """Yield an object as it is and after each change; ``None`` while it does not exist."""
        while True:
            with suppress(ConnectionLostError, GoneError):
                async with aclosing(self._one_watch(resource, namespace, name)) as states:
                    async for state in states:
                        yield state
            await asyncio.sleep(_RETRY_INTERVAL)  # the server restarts, or ended the watch

    async def _one_watch(
        self, resource: Resource, namespace: str, name: str
    ) -> AsyncGenerator[Json | None]:
        selector = f"metadata.name={name}"
        listed = await self._client.list(
            resource, namespace=namespace, field_selector=selector, view=dict[str, Any]
        )
        yield next(iter(listed.items), None)
        changes = self._client.watch(
            resource,
            namespace=namespace,
            field_selector=selector,
            resource_version=listed.resource_version,
            view=dict[str, Any],
        )
        async for change in changes:
            yield None if change.type == "DELETED" else change.object


class BlockingNamespace(Blocking[ClusterNamespace]):
    """A namespace of a cluster, for a test that blocks; see :class:`ClusterNamespace`."""

    @property
    def name(self) -> str:
        """Name of the namespace."""
        return self._target.name

    @property
    def kubeconfig(self) -> Path | None:
        """Path of the cluster's kubeconfig; ``None`` in a pod of the cluster."""
        return self._target.kubeconfig

    resource = waiting(ClusterNamespace.resource)
    create = waiting(ClusterNamespace.create)
    get = waiting(ClusterNamespace.get)
    list = waiting(ClusterNamespace.list)
    patch = waiting(ClusterNamespace.patch)
    delete = waiting(ClusterNamespace.delete)
    wait_for = waiting(ClusterNamespace.wait_for)
    wait_for_phase = waiting(ClusterNamespace.wait_for_phase)
    wait_deleted = waiting(ClusterNamespace.wait_deleted)

    @contextmanager
    def webhook(
        self, reviewer: Reviewer, resource: Resource | str, **options: Any
    ) -> Generator[ServedWebhook]:
        """Let *reviewer* decide, as :meth:`ClusterNamespace.webhook` does; in another thread."""
        with self.entered(self._target.webhook(reviewer, resource, **options)) as served:
            yield served
