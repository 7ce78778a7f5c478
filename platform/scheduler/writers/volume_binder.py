"""Binds volumes to PVCs that wait for their first consumer, before its pod is bound.

The volume that a cycle has chosen gets a ``claimRef``; a PVC for which one is to be provisioned
gets the annotation ``volume.kubernetes.io/selected-node``. The volume controller and provisioners
do the rest, which is awaited here, for a bounded time, and delays no other gang. If it fails, the
annotation is removed from PVCs that are not bound, and the gang is tried again: a PVC that was
bound until then stays bound.

A crash between these writes and the bindings loses nothing: the next cycle continues with what the
objects state.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...kube.client.client import Client
from ...kube.errors import UNAVAILABLE_ERRORS, ApiError, ConflictError, NotFoundError
from ...machinery.clock import Clock
from ...model import names
from ..plugins.placement import Placement
from ..state.cache.events import CacheEvent, NodeEvent, PodEvent, PVCEvent, PVEvent
from ..state.core_types import Node, PersistentVolume, PersistentVolumeClaim, Pod
from ..state.gangs.pvcs import ClaimBinding, is_bound
from ..state.podinfo.delayed_claims import SELECTED_NODE, is_reserved_for

log = logging.getLogger(__name__)

_BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
"""Annotation of a volume: its ``claimRef`` may be removed when its claim is deleted."""

_MAX_WRITES = 16
"""Concurrent writes."""


class VolumeBindingError(Exception):
    """The volumes of a gang cannot be bound; the message has the reason."""


class VolumeBinder:
    """Binds the volumes of placements, and waits until they are bound."""

    def __init__(
        self,
        client: Client,
        *,
        clock: Clock,
        pvcs: Callable[[str], PersistentVolumeClaim | None],
        volumes: Callable[[str], PersistentVolume | None],
        nodes: Callable[[str], Node | None],
        pods: Callable[[str], Pod | None],
        timeout: Callable[[], float],
    ) -> None:
        """Use these listers, which return the newest object of a key.

        Volumes have to be bound within *timeout* seconds.
        """
        self._client = client
        self._clock = clock
        self._pvcs = pvcs
        self._volumes = volumes
        self._nodes = nodes
        self._pods = pods
        self._timeout = timeout
        self._writes = asyncio.Semaphore(_MAX_WRITES)
        self._waiting: dict[str, set[asyncio.Event]] = {}
        """Calls that wait: by ``namespace/name`` of PVCs, uids of pods and names of nodes."""
        self._given_up: set[str] = set()
        """PVCs of which a provisioner has removed the annotation."""

    def observe(self, event: CacheEvent) -> None:
        """Let gangs check their volumes that wait for the object of *event*."""
        if not self._waiting:
            return
        match event:
            case PVCEvent(old, new):
                keys = [each.metadata.key for each in (old, new) if each is not None]
                if old and new and _selected(old) and not _selected(new):
                    self._given_up.update(self._waiting.keys() & set(keys))
                else:
                    self._given_up.difference_update(keys)
            case PVEvent(_, new):
                claim = new.spec.claim_ref if new is not None else None
                keys = [f"{claim.namespace}/{claim.name}"] if claim is not None else []
            case PodEvent(Pod() as pod, None):
                keys = [pod.metadata.uid]
            case NodeEvent(Node() as node, None):
                keys = [node.metadata.name]
            case _:
                return
        for key in keys:
            for changed in self._waiting.get(key, ()):
                changed.set()

    async def bind(self, placements: Sequence[Placement]) -> str:
        """Bind the volumes of *placements*, which are of one gang, and wait until they are bound.

        Returns why that failed, or an empty text.
        """
        bindings = {each.claim.metadata.key: each for p in placements for each in p.volumes}
        changed, written = asyncio.Event(), list[ClaimBinding]()
        keys = {*bindings, *(each.uid for each in placements), *(each.node for each in placements)}
        for key in keys:
            self._waiting.setdefault(key, set()).add(changed)
        try:
            await self._write_all(bindings.values(), written)
            await self._wait(placements, changed)
        except (VolumeBindingError, ApiError, *UNAVAILABLE_ERRORS) as error:
            await self._undo(written)
            return f"cannot bind volumes: {error}"
        finally:
            for key in keys:
                self._waiting[key].discard(changed)
                if not self._waiting[key]:
                    del self._waiting[key]
                    self._given_up.discard(key)
        return ""

    # -- writes --------------------------------------------------------------------------------

    async def _write_all(
        self, bindings: Iterable[ClaimBinding], written: list[ClaimBinding]
    ) -> None:
        """Write *bindings*; *written* gets those that may have taken effect."""

        async def write(binding: ClaimBinding) -> None:
            async with self._writes:
                patch = self._patch(binding)
                if patch is not None:
                    written.append(binding)
                    await self._send(binding, patch)

        results = await asyncio.gather(*map(write, bindings), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _patch(self, binding: ClaimBinding) -> object | None:
        """Return the patch of the volume or the PVC; ``None`` if it is not needed any more.

        Raises:
            VolumeBindingError: the objects have changed since the cycle.
        """
        claim = self._current(binding)
        if is_bound(claim):
            return None
        if not binding.volume:
            selected = _selected(claim)
            if selected and selected != binding.node:
                raise VolumeBindingError(f"{_name(claim)} is bound for node {selected}")
            annotations = {SELECTED_NODE: binding.node}
            return None if selected else {"metadata": _version(claim, annotations)}
        volume = self._volumes(binding.volume)
        if volume is None:
            raise VolumeBindingError(f'volume "{binding.volume}" was deleted')
        if volume.spec.claim_ref is not None:
            if is_reserved_for(volume, claim):
                return None
            raise VolumeBindingError(f'volume "{binding.volume}" was taken by another claim')
        meta = claim.metadata
        reference = {
            "kind": "PersistentVolumeClaim",
            "apiVersion": "v1",
            "namespace": meta.namespace,
            "name": meta.name,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
        }
        annotations = {_BOUND_BY_CONTROLLER: "yes"}
        return {"metadata": _version(volume, annotations), "spec": {"claimRef": reference}}

    async def _send(self, binding: ClaimBinding, patch: object) -> None:
        meta = binding.claim.metadata
        if binding.volume:
            await self._client.patch(names.PERSISTENTVOLUMES, binding.volume, patch)
        else:
            resource = names.PERSISTENTVOLUMECLAIMS
            await self._client.patch(resource, meta.name, patch, namespace=meta.namespace)

    async def _undo(self, written: Sequence[ClaimBinding]) -> None:
        """Let other nodes be selected for the PVCs of *written* that are not bound.

        The ``claimRef`` of a volume stays: the volume controller binds it at once. After a failure
        here the next cycle continues with what was written.
        """
        for binding in written:
            if binding.volume:
                continue
            meta = binding.claim.metadata
            try:
                claim = await self._client.get(
                    names.PERSISTENTVOLUMECLAIMS,
                    meta.name,
                    namespace=meta.namespace,
                    view=PersistentVolumeClaim,
                )
                selected = _selected(claim)
                is_same = claim.metadata.uid == meta.uid and selected == binding.node
                if is_same and not claim.spec.volume_name:
                    await self._send(binding, {"metadata": _version(claim, {SELECTED_NODE: None})})
            except (NotFoundError, ConflictError):
                continue
            except (ApiError, *UNAVAILABLE_ERRORS) as error:
                fields = {"claim": meta.key, "why": str(error)}
                log.warning("cannot undo the selection of a node", extra=fields)

    # -- waiting -------------------------------------------------------------------------------

    async def _wait(self, placements: Sequence[Placement], changed: asyncio.Event) -> None:
        """Wait until all volumes of *placements* are bound; *changed* is set when to check.

        Raises:
            VolumeBindingError: they will not be, or not in time.
        """
        timeout = self._timeout()
        deadline = asyncio.ensure_future(self._clock.sleep(timeout))
        try:
            while unbound := self._unbound(placements):
                if deadline.done():
                    raise VolumeBindingError(
                        f"{unbound[0]} is not bound after {timeout:g} s"
                        + (f", and {len(unbound) - 1} others" if unbound[1:] else "")
                    )
                changed.clear()
                change = asyncio.ensure_future(changed.wait())
                await asyncio.wait((change, deadline), return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
        finally:
            deadline.cancel()

    def _unbound(self, placements: Sequence[Placement]) -> list[str]:
        """Return the PVCs that are not bound yet.

        Raises:
            VolumeBindingError: a pod or node was deleted, or a volume cannot be used on its node.
        """
        unbound: dict[str, None] = {}
        for placement in placements:
            pod = self._pods(f"{placement.namespace}/{placement.name}")
            if pod is None or pod.metadata.uid != placement.uid:
                raise VolumeBindingError(f"pod {placement.name} was deleted")
            node = self._nodes(placement.node)
            if node is None:
                raise VolumeBindingError(f"node {placement.node} was deleted")
            for binding in placement.volumes:
                claim = self._current(binding)
                volume = self._volumes(claim.spec.volume_name) if is_bound(claim) else None
                if volume is None:
                    unbound[_name(claim)] = None
                    if claim.metadata.key in self._given_up and not binding.volume:
                        raise VolumeBindingError(f"no volume was provisioned for {_name(claim)}")
                elif not _is_usable(volume, node):
                    raise VolumeBindingError(
                        f'volume "{claim.spec.volume_name}" cannot be used on node {placement.node}'
                    )
        return list(unbound)

    def _current(self, binding: ClaimBinding) -> PersistentVolumeClaim:
        meta = binding.claim.metadata
        claim = self._pvcs(meta.key)
        if claim is None or claim.metadata.uid != meta.uid:
            raise VolumeBindingError(f"{_name(binding.claim)} was deleted")
        return claim


def _version(
    object_: PersistentVolume | PersistentVolumeClaim, annotations: Mapping[str, str | None]
) -> dict[str, object]:
    meta = object_.metadata
    return {
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
        "annotations": annotations,
    }


def _selected(claim: PersistentVolumeClaim) -> str:
    return claim.metadata.annotations.get(SELECTED_NODE, "")


def _name(claim: PersistentVolumeClaim) -> str:
    return f'persistentvolumeclaim "{claim.metadata.name}"'


def _is_usable(volume: PersistentVolume, node: Node) -> bool:
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return True
    return affinity.required.matches(node.metadata.name, node.metadata.labels)
