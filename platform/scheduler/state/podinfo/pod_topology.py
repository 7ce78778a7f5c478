"""Which pods affect which through their terms: selectors in use, and pods counted per domain.

A pod that is known holds its terms, so that their selectors are *in use*. The selectors in use that
match a pod, with its own terms, are all that other pods can see of it; they are part of its
equivalence class and of its footprint on a node. When a selector is put into use or falls out of
use, the classes of the pods that it matches change: :meth:`PodTopology.add_pod` and
:meth:`PodTopology.remove_pod` return it, and :meth:`PodTopology.matching_pods` finds them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..resources import Amounts
from .device_claims import UsedClaim
from .extended_resources import ContainerUse
from .node_counts import NodeCounts, Topology
from .pod_terms import NO_TERMS, Labels, PodSelector, PodTerms
from .volumes import MountedPVC

MatchedBy = frozenset[PodSelector]
NOT_MATCHED: MatchedBy = frozenset()


@dataclass(frozen=True, slots=True)
class KnownPod:
    """What selectors see of a pod, and its terms."""

    namespace: str
    labels: Labels
    terminating: bool
    terms: PodTerms = NO_TERMS
    pvcs: tuple[MountedPVC, ...] = ()
    device_claims: tuple[UsedClaim, ...] = ()
    extended: tuple[ContainerUse, ...] = ()
    """What a pod without a node requests of extended resources."""


class PodTopology:
    """Selectors in use, and the pods that they match."""

    def __init__(self) -> None:
        """Start without pods."""
        self._pods: dict[str, KnownPod] = {}
        self._namespaces: dict[str, Labels] = {}
        self._in_use: dict[str, dict[str, dict[PodSelector, None]]] = {}
        """Selectors in use by key and value of their pivot."""
        self._without_pivot: dict[PodSelector, None] = {}
        self._uids_by_label: dict[str, dict[str, dict[str, None]]] = {}
        """Pods by label, for the keys that are a pivot."""

    def matched_by(self, pod: KnownPod) -> MatchedBy:
        """Return the selectors in use that match *pod*."""
        if not self._in_use and not self._without_pivot:
            return NOT_MATCHED
        candidates: list[PodSelector] = [*self._without_pivot]
        for key, by_value in self._in_use.items():
            value = pod.labels.get(key)
            if value is not None:
                candidates += by_value.get(value, ())
        found = [each for each in candidates if self._matches(each, pod)]
        return frozenset(found) if found else NOT_MATCHED

    def pod(self, uid: str) -> KnownPod | None:
        """Return the pod with *uid*."""
        return self._pods.get(uid)

    def add_pod(self, uid: str, pod: KnownPod) -> list[PodSelector]:
        """Add a pod; returns the selectors that are put into use with its terms."""
        self._index_pod(uid, pod)
        new = []
        for selector in pod.terms.selectors:
            selector.uses += 1
            if selector.uses == 1:
                self._add_selector(selector)
                new.append(selector)
        for selector in pod.terms.awaited:
            selector.awaited_by += 1
        return new

    def remove_pod(self, uid: str) -> list[PodSelector]:
        """Remove a pod, if it is known; returns the selectors that fall out of use."""
        pod = self._pods.get(uid)
        if pod is None:
            return []
        self._unindex_pod(uid, pod)
        unused = []
        for selector in pod.terms.selectors:
            selector.uses -= 1
            if not selector.uses:
                self._remove_selector(selector)
                unused.append(selector)
        for selector in pod.terms.awaited:
            selector.awaited_by -= 1
        return unused

    def update_pod(self, uid: str, pod: KnownPod) -> None:
        """Update a pod whose terms, and the selectors that match it, are the same as before."""
        known = self._pods[uid]
        if known.labels != pod.labels or known.terminating is not pod.terminating:
            self._unindex_pod(uid, known)
            self._index_pod(uid, pod)

    def matching_pods(self, selector: PodSelector) -> list[str]:
        """Return the uids of the known pods that *selector* matches."""
        pivot = selector.pivot()
        uids: Iterable[str] = self._pods
        if pivot is not None:
            by_value = self._index(pivot[0])
            uids = [uid for value in pivot[1] for uid in by_value.get(value, ())]
        return [uid for uid in uids if self._matches(selector, self._pods[uid])]

    def update_namespace(self, name: str, labels: Labels | None) -> list[str]:
        """Set the labels of a namespace; returns the uids of pods that may be matched by others.

        ``None`` if the namespace does not exist.
        """
        if self._namespaces.get(name, {}) == (labels or {}):
            return []
        if labels is None:
            self._namespaces.pop(name, None)
        else:
            self._namespaces[name] = labels
        if not any(each.uses_namespace_labels for each in self._selectors()):
            return []
        return [uid for uid, pod in self._pods.items() if pod.namespace == name]

    # -- private -------------------------------------------------------------------------------

    def _index_pod(self, uid: str, pod: KnownPod) -> None:
        self._pods[uid] = pod
        for key, by_value in self._uids_by_label.items():
            value = pod.labels.get(key)
            if value is not None:
                by_value.setdefault(value, {})[uid] = None

    def _unindex_pod(self, uid: str, pod: KnownPod) -> None:
        del self._pods[uid]
        for key, by_value in self._uids_by_label.items():
            value = pod.labels.get(key)
            if value is not None and (uids := by_value.get(value)) is not None:
                uids.pop(uid, None)
                if not uids:
                    del by_value[value]

    def _selectors(self) -> Iterator[PodSelector]:
        yield from self._without_pivot
        for by_value in self._in_use.values():
            for selectors in by_value.values():
                yield from selectors

    def _matches(self, selector: PodSelector, pod: KnownPod) -> bool:
        return selector.matches(
            pod.namespace,
            pod.labels,
            self._namespaces.get(pod.namespace, {}),
            terminating=pod.terminating,
        )

    def _add_selector(self, selector: PodSelector) -> None:
        pivot = selector.pivot()
        if pivot is None:
            self._without_pivot[selector] = None
            return
        by_value = self._in_use.setdefault(pivot[0], {})
        for value in pivot[1]:
            by_value.setdefault(value, {})[selector] = None

    def _remove_selector(self, selector: PodSelector) -> None:
        pivot = selector.pivot()
        if pivot is None:
            del self._without_pivot[selector]
            return
        key, values = pivot
        by_value = self._in_use[key]
        for value in values:
            del by_value[value][selector]
            if not by_value[value]:
                del by_value[value]
        if not by_value:
            del self._in_use[key]
            self._uids_by_label.pop(key, None)

    def _index(self, key: str) -> dict[str, dict[str, None]]:
        """Return the pods by the value of label *key*."""
        index = self._uids_by_label.get(key)
        if index is None:
            index = self._uids_by_label[key] = {}
            for uid, pod in self._pods.items():
                value = pod.labels.get(key)
                if value is not None:
                    index.setdefault(value, {})[uid] = None
        return index


class TermFootprint:
    """What a pod adds to the counts of its node: as a selected pod, as the holder of terms, and as
    one of a queue with limits for node groups."""

    __slots__ = ("limited_queue", "matched_by", "request", "terms")

    def __init__(
        self,
        matched_by: MatchedBy,
        terms: PodTerms,
        *,
        limited_queue: str = "",
        request: Amounts | None = None,
    ) -> None:
        """Keep the selectors in use that match the pod, its own terms, and its *request*, which
        counts if there is a *limited_queue*."""
        self.matched_by = matched_by
        self.terms = terms
        self.limited_queue = limited_queue
        self.request = request or {}

    def __bool__(self) -> bool:
        terms = self.terms
        return bool(self.matched_by or terms.anti_affinity or terms.preferred or self.limited_queue)

    def add(self, topology: Topology, node_indexes: Sequence[int], sign: int) -> None:
        """Count the pod once for each of *node_indexes*; with *sign* -1, undo that."""
        for counts, weight in self._counts(topology):
            for node_index in node_indexes:
                topology.add(counts, node_index, sign * weight)

    def _counts(self, topology: Topology) -> Iterator[tuple[NodeCounts, int]]:
        for selector in self.matched_by:
            yield selector.targets, 1
        for term in self.terms.anti_affinity:
            yield _of_key(term.selector.holders, term.topology_key), 1
        for term in self.terms.preferred:
            yield _of_key(term.selector.preferences, term.topology_key), term.weight
        for resource, units in self.request.items() if self.limited_queue else ():
            yield topology.queue_use(self.limited_queue, resource), units


def _of_key(counts: dict[str, NodeCounts], key: str) -> NodeCounts:
    found = counts.get(key)
    if found is None:
        found = counts[key] = NodeCounts()
    return found


def domain_keys(counts: Mapping[str, NodeCounts]) -> Iterator[tuple[str, NodeCounts]]:
    """Yield the topology keys with any count."""
    for key, each in counts.items():
        if each.by_node:
            yield key, each
