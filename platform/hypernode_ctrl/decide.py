"""What the HyperNode controller does, given all HyperNodes and nodes. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..model.hypernode import HyperNode, HyperNodes
from ..model.meta import ObjectMeta
from .configuration import LABEL_SOURCE, UFM_SOURCE, Discovery
from .discovery import Discovered, Labels, discover, is_discovered
from .ufm import Port, discover_by_ufm


@dataclass(frozen=True, slots=True)
class View:
    """The HyperNodes and nodes of the cluster."""

    hypernodes: Sequence[HyperNode]
    nodes: Mapping[str, Labels]
    discovery: Discovery | None
    """``None`` if it is not configured: discovered HyperNodes are left as they are."""

    ports: Sequence[Port] | None = None
    """Those of the source ``ufm``; ``None`` if they are not known, with the same effect."""


@dataclass(frozen=True, slots=True)
class Create:
    """Create a HyperNode."""

    hypernode: Discovered


@dataclass(frozen=True, slots=True)
class Update:
    """Replace the spec of a HyperNode, and add labels."""

    meta: ObjectMeta
    hypernode: Discovered


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a HyperNode that is no longer described."""

    meta: ObjectMeta


@dataclass(frozen=True, slots=True)
class SetNodeCount:
    """Write the number of nodes into the status."""

    meta: ObjectMeta
    count: int


Effect = Create | Update | Delete | SetNodeCount


def decide(view: View) -> Iterator[Effect]:
    """Yield the writes: of specs first, since they change the numbers of nodes."""
    changes = list(_discovery_effects(view))
    if changes:
        yield from changes
        return  # their events lead to another decision
    tree = HyperNodes()
    for name, labels in view.nodes.items():
        tree.update_node(name, labels)
    for each in view.hypernodes:
        tree.update(each.metadata.name, each)
    domains = tree.domains()
    for each in view.hypernodes:
        count = len(domains[each.metadata.name].nodes)
        if each.status is None or each.status.node_count != count:
            yield SetNodeCount(each.metadata, count)


def _discovery_effects(view: View) -> Iterator[Effect]:
    if view.discovery is None:
        return
    own = [each for each in view.hypernodes if is_discovered(each)]
    yield from _changes(view, LABEL_SOURCE, discover(view.discovery.types, view.nodes, own))
    if view.ports is not None or not view.discovery.is_ufm_enabled:
        wanted = discover_by_ufm(view.ports or (), view.nodes.keys(), view.hypernodes)
        yield from _changes(view, UFM_SOURCE, wanted)


def _changes(view: View, source: str, wanted: Iterable[Discovered]) -> Iterator[Effect]:
    """Yield the writes by which the HyperNodes of *source* become those that are *wanted*."""
    own = {each.metadata.name: each for each in view.hypernodes if is_discovered(each, source)}
    taken = {each.metadata.name for each in view.hypernodes} - own.keys()
    for each in wanted:
        current = own.pop(each.name, None)
        if each.name in taken:
            continue  # it was not discovered
        if current is None:
            yield Create(each)
        elif (
            current.spec != each.spec or not each.labels.items() <= current.metadata.labels.items()
        ):
            yield Update(current.metadata, each)
    for left in own.values():
        yield Delete(left.metadata)
