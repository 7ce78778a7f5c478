"""Informers of Services and of controllers that select pods, for default spread constraints."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..kube.client.client import Client
from ..kube.informer.informer import Informer, OptionalSource
from ..model import names
from .state.cache.events import CacheEvent, DeclarationsChanged, PodOwnerEvent
from .state.core_types import Pod
from .state.podinfo.default_spread import LabelOwner, PodOwner, SelectorOwner

_KINDS = (
    (names.SERVICES, LabelOwner),
    (names.REPLICATIONCONTROLLERS, LabelOwner),
    (names.REPLICASETS, SelectorOwner),
    (names.STATEFULSETS, SelectorOwner),
)


class PodOwners:
    """What the scheduler watches while pods without constraints get some."""

    def __init__(
        self,
        client: Client,
        enqueue: Callable[[CacheEvent], None],
        pods: Iterable[Pod],
    ) -> None:
        """Call *enqueue* with the events, and with those of the *pods* that one concerns."""
        self._client = client
        self._enqueue = enqueue
        self._pods = pods

    def __iter__(self) -> Iterator[OptionalSource[Any]]:
        for resource, view in _KINDS:
            informer: Informer[Any] = Informer(self._client, resource, view)
            yield OptionalSource(informer, self._handler(resource.kind))

    def _handler(self, kind: str) -> Callable[[PodOwner | None, PodOwner | None], None]:
        def handle(old: PodOwner | None, new: PodOwner | None) -> None:
            if old is not None and new is not None and old.spec == new.spec:
                return
            self._enqueue(PodOwnerEvent(kind, old, new))
            found = new or old
            for pod in self._pods:
                meta, spec = pod.metadata, pod.spec
                in_namespace = found is not None and meta.namespace == found.metadata.namespace
                if in_namespace and not spec.node_name and not spec.topology_spread_constraints:
                    self._enqueue(DeclarationsChanged(pod))

        return handle
