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

    def __init__(self, client: Client, enqueue: Callable[[CacheEvent], None]) -> None:
        """Call *enqueue* with the events."""
        self._client = client
        self._enqueue = enqueue
        self._changed: set[str] = set()
        """Namespaces in which an object has changed since the last :meth:`pop_events`."""

    def __iter__(self) -> Iterator[OptionalSource[Any]]:
        for resource, view in _KINDS:
            informer: Informer[Any] = Informer(self._client, resource, view)
            yield OptionalSource(informer, self._handler(resource.kind))

    def pop_events(self, pods: Iterable[Pod]) -> list[CacheEvent]:
        """Return the events of those of *pods* that may have other constraints now."""
        namespaces, self._changed = self._changed, set()
        if not namespaces:
            return []
        return [
            DeclarationsChanged(pod)
            for pod in pods
            if pod.metadata.namespace in namespaces
            and not pod.spec.node_name
            and not pod.spec.topology_spread_constraints
        ]

    def _handler(self, kind: str) -> Callable[[PodOwner | None, PodOwner | None], None]:
        def handle(old: PodOwner | None, new: PodOwner | None) -> None:
            changed = new or old
            is_same = old is not None and new is not None and old.spec == new.spec
            if changed is not None and not is_same:
                self._changed.add(changed.metadata.namespace)
                self._enqueue(PodOwnerEvent(kind, old, new))

        return handle
