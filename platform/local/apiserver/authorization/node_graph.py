"""Which objects each node needs, kept up to date with the committed changes.

A node needs its pods and what they refer to, the volumes of their claims and the secrets of these
volumes, its VolumeAttachments and its ResourceSlices. A write costs the references of one object;
status updates of pods cost nothing.
"""

from collections.abc import Iterable, Mapping

from ..builtin.pod_references import Key, references, volume_references
from ..http.requests import Json
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import DELETED, StoredObject, WatchEvent

PODS, VOLUMES = "pods", "persistentvolumes"
WATCHED = {
    ("", PODS),
    ("", VOLUMES),
    ("storage.k8s.io", "volumeattachments"),
    ("resource.k8s.io", "resourceslices"),
}
"""Groups and plurals of the resources that relate objects to nodes."""

_CHANGEABLE_REFERENCES = (
    b'"ephemeralContainers"',
    b'"resourceClaimStatuses"',
    b'"extendedResourceClaimStatus"',
)
"""Only pods that contain one of these may get references after they are bound."""


class NodeGraph:
    """The objects that the pods of each node refer to; a listener of the store."""

    def __init__(self, stores: Mapping[str, ResourceStore]) -> None:
        """*stores* are those of `WATCHED`, by their plurals."""
        self._stores = {id(store): plural for plural, store in stores.items()}
        self._watched = tuple(stores.values())
        self._sources: dict[Key, tuple[str, tuple[Key, ...]]] = {}
        """By pod, attachment or slice: its node and what that may read for it."""
        self._nodes: dict[Key, dict[str, int]] = {}
        """By object: the number of sources of each node that refer to it."""
        self._volumes: dict[str, tuple[Key, frozenset[Key]]] = {}
        """By volume: its claim and secrets."""
        self._volumes_by_secret: dict[Key, set[str]] = {}

    def rebuild(self) -> None:
        """Read all objects."""
        for each in (self._sources, self._nodes, self._volumes, self._volumes_by_secret):
            each.clear()
        for store in self._watched:
            for entry in store.entries():
                self._add(self._stores[id(store)], entry)

    def observe(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Apply a committed change."""
        plural = self._stores.get(id(resource_store))
        if plural is None:
            return
        entry, previous = event.entry, event.previous
        if event.type == DELETED:
            self._remove(plural, entry)
        elif not (plural == PODS and previous is not None and _is_same_binding(previous, entry)):
            self._remove(plural, entry)
            self._add(plural, entry)

    def is_needed(self, node: str, plural: str, namespace: str, name: str) -> bool:
        """Return whether *node* needs an object."""
        key = plural, namespace, name
        if node in self._nodes.get(key, ()):
            return True
        if plural == VOLUMES and not namespace:
            return self._has_claim(node, (name,))
        return self._has_claim(node, self._volumes_by_secret.get(key, ()))

    def _has_claim(self, node: str, volumes: Iterable[str]) -> bool:
        """Return whether a pod of *node* uses the claim of one of *volumes*."""
        found = (self._volumes[name] for name in volumes if name in self._volumes)
        return any(node in self._nodes.get(claim, ()) for claim, _ in found)

    def _add(self, plural: str, entry: StoredObject) -> None:
        if plural == VOLUMES:
            self._add_volume(entry)
            return
        if plural == PODS and not entry.node:
            return
        obj = entry.parse()
        node = entry.node if plural == PODS else _node_of(obj)
        if not node:
            return
        source = plural, entry.namespace, entry.name
        keys = (source, *(references(obj) if plural == PODS else ()))
        self._sources[source] = node, keys
        for key in keys:
            nodes = self._nodes.setdefault(key, {})
            nodes[node] = nodes.get(node, 0) + 1

    def _add_volume(self, entry: StoredObject) -> None:
        claim, secrets = volume_references(entry.parse())
        if claim is None:
            return
        self._volumes[entry.name] = claim, frozenset(secrets)
        for secret in secrets:
            self._volumes_by_secret.setdefault(secret, set()).add(entry.name)

    def _remove(self, plural: str, entry: StoredObject) -> None:
        if plural == VOLUMES:
            _, secrets = self._volumes.pop(entry.name, (None, frozenset()))
            for secret in secrets:
                volumes = self._volumes_by_secret[secret]
                volumes.discard(entry.name)
                if not volumes:
                    del self._volumes_by_secret[secret]
            return
        node, keys = self._sources.pop((plural, entry.namespace, entry.name), ("", ()))
        for key in keys:
            nodes = self._nodes[key]
            nodes[node] -= 1
            if not nodes[node]:
                del nodes[node]
            if not nodes:
                del self._nodes[key]


def _is_same_binding(previous: StoredObject, entry: StoredObject) -> bool:
    """Return whether an update of a pod cannot have changed what its node may read."""
    return (
        (previous.node, previous.uid) == (entry.node, entry.uid)
        and bool(entry.node)
        and not any(field in entry.data for field in _CHANGEABLE_REFERENCES)
    )


def _node_of(obj: Json) -> str:
    """Return the node of a VolumeAttachment or a ResourceSlice."""
    node: str = (obj.get("spec") or {}).get("nodeName") or ""
    return node
