"""Creation and deletion of the pods of workloads, with the events of kube-controller-manager."""

from collections.abc import Callable, Iterable, Sequence

from ...kube.client.client import Client
from ...kube.errors import AlreadyExistsError, ApiError, was_rejected
from ...kube.informer.informer import Informer
from ...machinery.batches import run_concurrently, slow_start
from ...machinery.claim import Claimer
from ...machinery.clock import Clock
from ...machinery.event_recorder import Recorder
from ...machinery.pod_control import (
    Json,
    NameGenerator,
    Owner,
    is_namespace_terminating,
    pod_control,
)
from ...machinery.reconcile.cache import WriteThroughCache
from ...machinery.reconcile.events import Events
from ...model.meta import HasMeta
from ...model.names import PODS, Resource
from ...model.selectors import Selector
from .types import Pod

WriteFailure = tuple[str, str]
"""Reason and message of a write that failed, as in the condition ReplicaFailure."""


def _any_pod(pod: Pod) -> bool:
    return True


class PodWrites:
    """Writes the pods of one kind of owner, and shows them as written."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        pods: Informer[Pod],
        *,
        clock: Clock,
        recorder: Recorder | None,
        names: NameGenerator | None = None,
    ) -> None:
        """*pods* has the indexes ``owner`` and ``orphans``."""
        self.cache = WriteThroughCache(client, PODS, Pod, pods, clock=clock)
        self._client = client
        self._resource = resource
        self._control = pod_control(client, Pod)
        self._events = Events(recorder, resource)
        self._names = names or NameGenerator()
        self._unconfirmed: dict[str, set[str]] = {}
        """Names of pods that may have been created, by the key of their owner."""

    def forget(self, key: str) -> None:
        """Drop what is kept of the owner *key*."""
        self._unconfirmed.pop(key, None)

    async def claim(
        self,
        owner: HasMeta,
        selector: Selector,
        view: type[HasMeta],
        *,
        adopts: Callable[[Pod], bool] = _any_pod,
    ) -> list[Pod]:
        """Return the pods of *owner*, after it has adopted and released what it must.

        Of pods without controller that match, it adopts only those that *adopts* accepts.

        Raises:
            ClaimError, RequeueError: not all could be adopted or released.
            ApiError, ConnectionLostError: a request failed.
        """
        meta = owner.metadata
        await self._confirm(meta.key, meta.namespace)
        owned = self.cache.by_index("owner", meta.identity)
        orphans = [
            pod
            for pod in self.cache.by_index("orphans", meta.namespace)
            if selector.matches(pod.metadata.labels) and not pod.is_finished and adopts(pod)
        ]

        async def read() -> HasMeta:
            found: HasMeta = await self._client.get(
                self._resource, meta.name, namespace=meta.namespace, view=view
            )
            return found

        claimer = Claimer(
            control=self._control,
            owner=Owner(resource=self._resource, metadata=meta),
            selector=selector,
            read_owner=read,
        )
        claim = await claimer.claim((*owned, *orphans))
        claim.raise_for_errors()
        return list(claim.children)

    async def _confirm(self, key: str, namespace: str) -> None:
        """Read the pods whose creation got no response."""
        for name in list(self._unconfirmed.get(key, ())):
            await self.cache.read(f"{namespace}/{name}")
            self._unconfirmed[key].discard(name)
        if not self._unconfirmed.get(key):
            self.forget(key)

    def new_name(self, prefix: str) -> str:
        """Return a name for a new pod."""
        return self._names.generate(prefix)

    async def create(self, owner: Owner, bodies: Sequence[Json]) -> WriteFailure | Exception | None:
        """Create pods; return what failed, if anything, or an error that needs a retry only."""
        result = await slow_start(bodies, lambda body: self._create(owner, body))
        return self._failure("FailedCreate", result.first_error)

    async def _create(self, owner: Owner, body: Json) -> None:
        meta, name = owner.metadata, body["metadata"]["name"]
        try:
            await self.cache.create(body, namespace=meta.namespace)
        except AlreadyExistsError:
            raise
        except Exception as error:
            if not was_rejected(error):
                self._unconfirmed.setdefault(meta.key, set()).add(name)
            elif isinstance(error, ApiError) and not is_namespace_terminating(error):
                text = f"Error creating: {error.message}"
                self._events.warning(meta, "FailedCreate", text)
            raise
        self._events.normal(meta, "SuccessfulCreate", f"Created pod: {name}")

    async def delete(self, owner: Owner, pods: Iterable[Pod]) -> WriteFailure | Exception | None:
        """Delete pods, all at a time; return what failed as :meth:`create` does."""
        result = await run_concurrently(list(pods), lambda pod: self._delete(owner, pod))
        return self._failure("FailedDelete", result.first_error)

    async def _delete(self, owner: Owner, pod: Pod) -> None:
        meta = owner.metadata
        try:
            deleted = await self.cache.delete(pod.metadata)
        except ApiError as error:
            self._events.warning(meta, "FailedDelete", f"Error deleting: {error.message}")
            raise
        if deleted:
            self._events.normal(meta, "SuccessfulDelete", f"Deleted pod: {pod.metadata.name}")

    def _failure(self, reason: str, error: Exception | None) -> WriteFailure | Exception | None:
        if isinstance(error, ApiError) and not is_namespace_terminating(error):
            return reason, error.message
        return error


def enqueue_owner(
    resource: Resource, add: Callable[[str], None], old: Pod | None, new: Pod | None
) -> None:
    """Add the keys of the owners of *resource* that a change of a pod concerns."""
    keys: dict[str, None] = {}
    for pod in (old, new):
        owner = pod.metadata.controller if pod is not None else None
        if pod is None or owner is None:
            continue
        if (owner.api_version, owner.kind) == (resource.api_version, resource.kind):
            keys[f"{pod.metadata.namespace}/{owner.name}"] = None
    for key in keys:
        add(key)
