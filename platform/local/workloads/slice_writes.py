"""The EndpointSlices that one controller manages, each owned by the object that it publishes."""

from collections.abc import Callable, Iterator, Mapping

import msgspec

from ...kube.client.client import Client
from ...kube.errors import AlreadyExistsError
from ...kube.informer.informer import Informer, KindSource
from ...machinery.clock import Clock
from ...machinery.controller import RequeueError
from ...machinery.pod_control import Owner
from ...machinery.reconcile.cache import WriteThroughCache
from ...model.names import ENDPOINTSLICES
from .endpoint_rules import MANAGED_BY, SERVICE_NAME
from .slices import CreateSlice
from .types import EndpointSlice, Json


class SliceWrites:
    """Writes the slices with the label of *manager*, and shows them as written."""

    def __init__(
        self,
        reader: Client,
        writer: Client,
        manager: str,
        *,
        clock: Clock,
        enqueue: Callable[[str], None],
    ) -> None:
        """Call *enqueue* with the keys of the Services whose slices others have changed."""
        informer = Informer(
            reader,
            ENDPOINTSLICES,
            EndpointSlice,
            label_selector=f"{MANAGED_BY}={manager}",
            indexes={"service": _service_keys},
        )
        self.cache = WriteThroughCache(writer, ENDPOINTSLICES, EndpointSlice, informer, clock=clock)
        self.source = KindSource(informer, self._on_change)
        self._enqueue = enqueue

    def _on_change(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        if new is not None and self.cache.is_own_write(new):
            return
        for each in (old, new):
            if each is not None:
                for key in _service_keys(each):
                    self._enqueue(key)

    def of(self, key: str) -> tuple[EndpointSlice, ...]:
        """Return the slices of the Service *key* that are not being deleted."""
        return tuple(
            each
            for each in self.cache.by_index("service", key)
            if each.metadata.deletion_timestamp is None
        )

    async def create(
        self,
        owner: Owner,
        effect: CreateSlice,
        *,
        labels: Mapping[str, str],
        annotations: Mapping[str, str],
    ) -> None:
        """Create a slice.

        Raises:
            RequeueError: its name is taken, maybe by a request whose response was lost.
            ApiError, ConnectionLostError: it was rejected, or may have been created.
        """
        meta = owner.metadata
        metadata = {
            "name": effect.name,
            "namespace": meta.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [msgspec.to_builtins(owner.controller_reference())],
        }
        body: Json = {"metadata": metadata, "addressType": effect.address_type}
        body |= {"endpoints": effect.endpoints, "ports": effect.ports}
        try:
            await self.cache.create(body, namespace=meta.namespace)
        except AlreadyExistsError:
            # By a request whose response was lost; the next pass compares its content.
            found = await self.cache.read(f"{meta.namespace}/{effect.name}")
            if found is None or not meta.controls(found.metadata):
                raise RequeueError(f"the name {effect.name} is taken") from None
            raise RequeueError("EndpointSlice existed already") from None


def _service_keys(found: EndpointSlice) -> Iterator[str]:
    """Yield the key of the Service of a slice, if it has one."""
    meta = found.metadata
    if name := meta.labels.get(SERVICE_NAME):
        yield f"{meta.namespace}/{name}"
