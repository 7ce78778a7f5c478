"""The informers of Kubernetes' own PodGroups, of which an API server serves one version or none."""

from collections.abc import Callable
from functools import partial

from ..kube.client.client import Client
from ..kube.informer.informer import Informer, OptionalSource
from ..model.names import Resource
from ..model.native_podgroup import SCHEDULED_CONDITIONS, NativePodGroup
from .state.cache.events import NativePodGroupEvent


class NativeInformers:
    """An informer for each version; one that is not served is asked for again and again."""

    def __init__(self, client: Client, enqueue: Callable[[NativePodGroupEvent], None]) -> None:
        """Deliver events to *enqueue*, once :attr:`sources` run."""
        self._informers = {
            each: Informer(client, each, NativePodGroup) for each in SCHEDULED_CONDITIONS
        }
        self._enqueue = enqueue
        self.sources = [
            OptionalSource(informer, partial(self._deliver, resource))
            for resource, informer in self._informers.items()
        ]

    def get(self, resource: Resource, key: str) -> NativePodGroup | None:
        """Return the PodGroup of that key in the version of *resource*, if it exists."""
        return self._informers[resource].get(key)

    def _deliver(
        self, resource: Resource, old: NativePodGroup | None, new: NativePodGroup | None
    ) -> None:
        self._enqueue(NativePodGroupEvent(resource, old, new))
