"""Writes allocations into claims of devices before their pods are bound, and removes them again.

A claim gets the finalizer, then its allocation together with the pods that may use it; one for the
extended resources of a pod is created before. If one of a gang cannot be written, what was written
for the gang is undone, and the gang is tried again. Pods whose devices have binding conditions are
bound when the driver has reported that these are true.

A crash between these writes and the bindings leaves claims that are allocated for pods without a
node. The next cycle finds them, and their allocation is removed, so that the pods are not tied to
the nodes that an earlier cycle has chosen.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from ...kube.client.client import Client
from ...kube.errors import UNAVAILABLE_ERRORS, ApiError, ConflictError, NotFoundError
from ...kube.timing import Backoff, Timing
from ...machinery.clock import Clock
from ...model.names import PODS, RESOURCECLAIMS
from ..plugins.placement import Placement
from ..state.cache.events import CacheEvent, PodEvent, ResourceClaimEvent
from ..state.core_types import Pod
from ..state.devices.binding_conditions import binding_problem, has_binding_conditions
from ..state.devices.types import FINALIZER, Json, ResourceClaim
from ..state.gangs.device_claims import DeviceBinding
from ..state.gangs.extended_claims import NewClaim, owner_of

log = logging.getLogger(__name__)

_MAX_WRITES = 16
"""Concurrent writes."""

_MAX_CONFLICTS = 5
"""How often the removal of an allocation is tried that conflicts with writes of others."""

BINDING_TIMEOUT = 600.0
"""Seconds within which binding conditions have to be true, as in kube-scheduler."""


class _ClaimBindingError(Exception):
    """A claim cannot be written; the message has the reason."""


@dataclass(slots=True)
class _Write:
    """What is to be written into one claim, for one or several pods of a gang."""

    binding: DeviceBinding
    pods: list[Placement] = field(default_factory=list)
    created: ResourceClaim | None = None
    """The claim, if it was created."""


class ClaimBinder:
    """Writes the claims of placements."""

    def __init__(
        self, client: Client, *, clock: Clock, claims: Callable[[str], ResourceClaim | None]
    ) -> None:
        """*claims* returns the newest claim of a key."""
        self._client = client
        self._clock = clock
        self._claims = claims
        self._writes = asyncio.Semaphore(_MAX_WRITES)
        self._releases: set[asyncio.Task[None]] = set()
        self._waiting: dict[str, set[asyncio.Event]] = {}
        """Gangs that wait for binding conditions, by the key of the claim, and uids of pods."""
        self._deleted: set[str] = set()
        """Uids of pods that were deleted while their gang waits."""

    def observe(self, event: CacheEvent) -> None:
        """Let gangs check their claims that wait for the object of *event*."""
        match event:
            case ResourceClaimEvent(old, new):
                keys = {each.metadata.key for each in (old, new) if each is not None}
            case PodEvent(Pod() as pod, None):
                keys = {pod.metadata.uid}
                self._deleted |= keys & self._waiting.keys()
            case _:
                return
        for key in keys & self._waiting.keys():
            for changed in self._waiting[key]:
                changed.set()

    async def bind(
        self,
        placements: Sequence[Placement],
        *,
        on_wait: Callable[[Placement], object] = lambda placement: None,
    ) -> str:
        """Write the claims of *placements*, which are of one gang, and wait until their devices are
        ready; *on_wait* is called for each of them before that wait.

        Returns why that failed, or an empty text.
        """
        writes: dict[str, _Write] = {}
        for placement in placements:
            for binding in placement.devices:
                key = binding.claim.metadata.key
                writes.setdefault(key, _Write(binding)).pods.append(placement)
        written: list[_Write] = []

        async def write(each: _Write) -> None:
            async with self._writes:
                await self._write(each, written)

        results = await asyncio.gather(*map(write, writes.values()), return_exceptions=True)
        problem = next((each for each in results if each is not None), None)
        if problem is None:
            problem = await self._wait(writes, placements, on_wait)
        if problem is None:
            return ""
        await asyncio.gather(*map(self._undo, written))
        if isinstance(problem, (_ClaimBindingError, ApiError, *UNAVAILABLE_ERRORS)):
            return f"cannot allocate devices: {problem}"
        raise problem

    def release(self, claims: Iterable[ResourceClaim]) -> None:
        """Remove the allocations of *claims*, whose pods have no node, without waiting for it."""
        for claim in claims:
            task = asyncio.create_task(self._release(claim))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    def close(self) -> None:
        """Cancel what runs; another process continues with what the claims state."""
        for task in self._releases:
            task.cancel()

    # -- private -------------------------------------------------------------------------------

    async def _write(self, each: _Write, written: list[_Write]) -> None:
        if each.binding.new is not None:
            await self._create(each, each.binding.new, written)
            return
        meta = each.binding.claim.metadata
        claim = self._claims(meta.key)
        if claim is None or claim.metadata.uid != meta.uid:
            raise _ClaimBindingError(f"claim {meta.key} got deleted in the meantime")
        status, content = claim.status, each.binding.allocation
        if content is not None and status.allocation is not None:
            raise _ClaimBindingError(f"claim {meta.key} got allocated elsewhere in the meantime")
        if content is None and status.allocation is None:
            raise _ClaimBindingError(f"claim {meta.key} got deallocated elsewhere in the meantime")
        written.append(each)
        await self._allocate(claim, content, each.pods)

    async def _create(self, each: _Write, new: NewClaim, written: list[_Write]) -> None:
        """Create the claim for the extended resources of a pod, and name it in its status."""
        (pod,) = each.pods
        body = {"apiVersion": RESOURCECLAIMS.api_version, "kind": RESOURCECLAIMS.kind, **new.body}
        claim = each.created = await self._client.create(
            RESOURCECLAIMS, body, namespace=pod.namespace, view=ResourceClaim
        )
        written.append(each)
        await self._allocate(claim, each.binding.allocation, each.pods)
        name = claim.metadata.name
        status = {"resourceClaimName": name, "requestMappings": [*new.mappings]}
        await self._client.patch(
            PODS,
            pod.name,
            {"metadata": {"uid": pod.uid}, "status": {"extendedResourceClaimStatus": status}},
            namespace=pod.namespace,
            subresource="status",
            view=msgspec.Raw,
        )

    async def _allocate(
        self, claim: ResourceClaim, content: Json | None, pods: Sequence[Placement]
    ) -> None:
        """Write the allocation *content* into a claim, and *pods* as those that use it."""
        status, version = claim.status, claim.metadata.resource_version
        if content is not None and FINALIZER not in claim.metadata.finalizers:
            finalizers = [*claim.metadata.finalizers, FINALIZER]
            changed = await self._patch(claim, {"finalizers": finalizers}, version=version)
            version = changed.metadata.resource_version
        known = {each.uid for each in status.reserved_for}
        consumers = [
            {"resource": "pods", "name": pod.name, "uid": pod.uid}
            for pod in pods
            if pod.uid not in known
        ]
        reserved = [*msgspec.to_builtins(status.reserved_for), *consumers]
        body: Json = {"reservedFor": reserved}
        if content is not None:
            at = self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
            body["allocation"] = {**content, "allocationTimestamp": at}
        await self._patch(claim, {}, version=version, status=body)

    async def _wait(
        self,
        writes: Mapping[str, _Write],
        placements: Sequence[Placement],
        on_wait: Callable[[Placement], object],
    ) -> _ClaimBindingError | None:
        """Wait until the binding conditions of all claims are true; return why they are not."""
        if not self._has_conditions(writes):
            return None
        for each in placements:
            on_wait(each)
        changed = asyncio.Event()
        claims = (each.created or each.binding.claim for each in writes.values())
        keys = {*(each.metadata.key for each in claims), *(each.uid for each in placements)}
        for key in keys:
            self._waiting.setdefault(key, set()).add(changed)
        deadline = asyncio.ensure_future(self._clock.sleep(BINDING_TIMEOUT))
        try:
            while pending := self._pending(writes):
                if deadline.done():
                    return _ClaimBindingError(f"{pending} is not true after {BINDING_TIMEOUT:g} s")
                changed.clear()
                change = asyncio.ensure_future(changed.wait())
                await asyncio.wait((change, deadline), return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
                if self._deleted.intersection(keys):
                    return _ClaimBindingError("a pod was deleted")
        except _ClaimBindingError as error:
            return error
        finally:
            deadline.cancel()
            for key in keys:
                self._waiting[key].discard(changed)
                if not self._waiting[key]:
                    del self._waiting[key]
                    self._deleted.discard(key)
        return None

    def _has_conditions(self, writes: Mapping[str, _Write]) -> bool:
        for key, write in writes.items():
            content, claim = write.binding.allocation, self._claims(key)
            if content is not None and has_binding_conditions(content):
                return True
            if content is None and claim is not None and binding_problem(claim) is not None:
                return True
        return False

    def _pending(self, writes: Mapping[str, _Write]) -> str:
        """Return a binding condition that is not true yet; empty if all are.

        Raises:
            _ClaimBindingError: it will not become true.
        """
        pending = ""
        for write in writes.values():
            content, expected = write.binding.allocation, write.created or write.binding.claim
            key = expected.metadata.key
            claim = self._claims(key)
            if claim is None and write.created is not None:
                pending = f"the creation of claim {key}"  # the cache does not have it yet
                continue
            if claim is None or claim.metadata.uid != expected.metadata.uid:
                raise _ClaimBindingError(f"claim {key} got deleted in the meantime")
            if claim.status.allocation is None:
                if content is None:
                    raise _ClaimBindingError(f"claim {key} got deallocated in the meantime")
                pending = f"the allocation of claim {key}"  # the cache does not have it yet
            elif found := binding_problem(claim):
                if found.is_final:
                    raise _ClaimBindingError(found.message)
                pending = found.message
        return pending

    async def _undo(self, each: _Write) -> None:
        """Remove the pods from the claim, and its allocation if that was for them alone."""
        meta = (each.created or each.binding.claim).metadata
        problem, backoff = "", self._backoff()
        for _ in range(_MAX_CONFLICTS):  # others write it, too, as when its pod was deleted
            try:
                await self._undo_once(each)
                return
            except NotFoundError:
                return
            except ConflictError as error:
                problem = str(error)
                await self._clock.sleep(backoff.next_delay())
            except (ApiError, *UNAVAILABLE_ERRORS) as error:
                problem = str(error)
                break
        log.warning("cannot undo an allocation", extra={"claim": meta.key, "why": problem})

    async def _undo_once(self, each: _Write) -> None:
        meta = (each.created or each.binding.claim).metadata
        claim = await self._client.get(
            RESOURCECLAIMS, meta.name, namespace=meta.namespace, view=ResourceClaim
        )
        if claim.metadata.uid != meta.uid:
            return
        uids, keeps = {pod.uid for pod in each.pods}, each.binding.allocation is None
        await self._deallocate(claim, uids, keep_allocation=keeps)
        if each.created is not None:
            await self._delete(claim)

    async def _release(self, claim: ResourceClaim) -> None:
        """Remove an allocation; if the claim has changed, the next cycle decides again."""
        uids = {each.uid for each in claim.status.reserved_for}
        clock, backoff = self._clock, self._backoff()
        while True:
            try:
                await self._deallocate(claim, uids, keep_allocation=False)
                if owner_of(claim):
                    await self._delete(claim)
                return
            except (NotFoundError, ConflictError):
                return
            except (ApiError, *UNAVAILABLE_ERRORS) as error:
                fields = {"claim": claim.metadata.key, "why": str(error)}
                log.warning("cannot remove an allocation", extra=fields)
                await clock.sleep(backoff.next_delay())

    def _backoff(self) -> Backoff:
        clock = self._clock
        timing = Timing(monotonic=clock.monotonic, sleep=clock.sleep, now=clock.now)
        return Backoff(timing=timing)

    async def _deallocate(
        self, claim: ResourceClaim, uids: set[str], *, keep_allocation: bool
    ) -> None:
        """Remove consumers of *claim*, and the allocation once there are none."""
        remaining = [each for each in claim.status.reserved_for if each.uid not in uids]
        body: Json = {"reservedFor": msgspec.to_builtins(remaining) or None}
        frees = not keep_allocation and not remaining
        if frees:
            body["allocation"] = None
        version = claim.metadata.resource_version
        changed = await self._patch(claim, {}, version=version, status=body)
        if frees and FINALIZER in changed.metadata.finalizers:
            finalizers = [each for each in changed.metadata.finalizers if each != FINALIZER]
            await self._patch(
                changed, {"finalizers": finalizers}, version=changed.metadata.resource_version
            )

    async def _delete(self, claim: ResourceClaim) -> None:
        meta = claim.metadata
        await self._client.delete(RESOURCECLAIMS, meta.name, namespace=meta.namespace, uid=meta.uid)

    async def _patch(
        self,
        claim: ResourceClaim,
        metadata: Mapping[str, object],
        *,
        version: str,
        status: Json | None = None,
    ) -> ResourceClaim:
        meta = claim.metadata
        body: Json = {"metadata": {"uid": meta.uid, "resourceVersion": version, **metadata}}
        if status is not None:
            body["status"] = status
        return await self._client.patch(
            RESOURCECLAIMS,
            meta.name,
            body,
            namespace=meta.namespace,
            subresource="status" if status is not None else "",
            view=ResourceClaim,
        )
