"""Which devices can be used from which node, which are in use, and what the next pod would get.

Devices are in use by the claims that are allocated, by those that a cycle has decided on, and by
the pods of open statements, so that two pods of a gang never get one device. What a node has for a
pod is kept until devices of the node change, so a mask costs one allocation for each node that has
devices and has changed.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from ....machinery.cel.device_selectors import device_value
from ....model import quantity
from ....model.node_selectors import NodeSelector
from ..podinfo.available_volumes import Nodes
from ..podinfo.device_requirements import DeviceRequirements, PendingClaim
from ..podinfo.extended_resources import IMPLICIT_PREFIX
from ..podinfo.node_terms import LabelledNode
from ..resources import BoolVector
from .allocator import (
    DEFAULT_TIMEOUT,
    TIMED_OUT,
    AllocationError,
    ClaimAllocation,
    Device,
    Pool,
    allocate,
    is_of_class,
)
from .capacity import DeviceRef, DeviceUse, UsedDevices
from .requests import ClaimRequests, decode
from .types import Allocation, DeviceClass, DeviceTaintRule, Json, ResourceSlice

CANNOT_ALLOCATE = "cannot allocate all claims"
MAX_TIMEOUTS = 4
"""Nodes on which the search for the devices of a pod may time out; others are not tried then."""

_MAX_DEMANDS = 1_000
"""Different demands for which the results are kept."""


_MAX_SHARES = 1_000
"""How many pods may share a device that provides an extended resource; its capacity limits them
before."""

NOTHING = ClaimAllocation((), {}, None)
"""What a claim for extended resources gets on a node that has these itself."""

Decision = tuple[ClaimAllocation, ...]
"""What each pending claim of a pod gets, in their order."""


@dataclass(slots=True)
class _Held:
    """An allocated claim."""

    devices: tuple[DeviceUse, ...]
    pods: int = 0
    """Pods on nodes that use it."""
    is_lent: bool = False
    """Whether its devices do not count in this cycle, since all of its pods are to be evicted."""


@dataclass(slots=True)
class _PoolSlices:
    """The slices of one pool."""

    by_name: dict[str, ResourceSlice] = field(default_factory=dict)

    def current(self) -> list[ResourceSlice]:
        """Return the slices of the latest generation, by name."""
        latest = max((each.spec.pool.generation for each in self.by_name.values()), default=0)
        found = (each for each in self.by_name.values() if each.spec.pool.generation == latest)
        return sorted(found, key=lambda each: each.metadata.name)


@dataclass(slots=True)
class _Known:
    """The results for one demand."""

    by_node: dict[int, tuple[int, Decision | str]] = field(default_factory=dict)
    """The version of the devices of the node, and what the pod gets there, or why nothing."""


class AvailableDevices:
    """Devices of all nodes, and who uses them."""

    def __init__(self, nodes: Nodes) -> None:
        """Start without devices; *nodes* are read when a mask is asked for."""
        self.timeout = DEFAULT_TIMEOUT
        """Seconds after which the search for the devices of a pod on one node ends; 0: never."""
        self._nodes = nodes
        self._pools: dict[tuple[str, str], _PoolSlices] = {}
        self._classes: dict[str, DeviceClass] = {}
        self._used = UsedDevices()
        self._held: dict[str, _Held] = {}
        self._decisions: dict[tuple[tuple[PendingClaim, ...], int], list[Decision | None]] = {}
        self._chosen: dict[str, list[tuple[int, ClaimAllocation]]] = {}
        """For claims with a key: node and allocation for each pod of an open statement."""
        self._known: dict[tuple[PendingClaim, ...], _Known] = {}
        self._versions: Counter[str] = Counter()
        """How often the devices of a node have changed; of no node: those of several."""
        self._position = (-1, -1)
        self._by_node: dict[int, tuple[int, tuple[Pool, ...]]] = {}
        """For which version, and the pools."""
        self._local: dict[tuple[str, str], str] = {}
        """The node of each pool whose slices are all local to it; else empty."""
        self._keys_by_node: dict[str, set[tuple[str, str]]] = {}
        """Pools by the node to which they are local."""
        self._slice_changes: Counter[str] = Counter()
        """How often the slices of a node have changed; of no node: those of several."""
        self._in_cycle = False
        self.resources: dict[str, str] = {}
        """Extended resources that devices provide, and their classes."""
        self._taint_rules: dict[str, DeviceTaintRule] = {}
        self._own: dict[str, frozenset[str]] = {}
        """The extended resources that nodes have themselves, by node."""
        self._explicit: dict[str, str] = {}
        self._implicit: set[str] = set()
        """Requested resources whose name contains that of a class."""

    # -- objects -------------------------------------------------------------------------------

    def update_slice(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        """Add, update or delete a slice."""
        for each in (old, new):
            if each is None:
                continue
            key = each.spec.driver, each.spec.pool.name
            slices = self._pools.setdefault(key, _PoolSlices()).by_name
            slices.pop(each.metadata.name, None)
            if each is new:
                slices[each.metadata.name] = each
            if not slices:
                del self._pools[key]
            self._update_location(key)

    def update_class(self, old: DeviceClass | None, new: DeviceClass | None) -> None:
        """Add, update or delete a class."""
        for each in (old, new):
            if each is not None:
                self._classes.pop(each.metadata.name, None)
        if new is not None:
            self._classes[new.metadata.name] = new
        self._known.clear()
        by_resource: dict[str, tuple[str, str]] = {}
        for name in sorted(self._classes, reverse=True):
            found = self._classes[name]
            if resource := found.spec.extended_resource_name:
                key = found.metadata.creation_timestamp or "", name
                if resource not in by_resource or key[0] >= by_resource[resource][0]:
                    by_resource[resource] = key
        self._explicit = {resource: name for resource, (_, name) in by_resource.items()}
        self._set_resources()

    def update_taint_rule(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        """Add, update or delete a rule."""
        if old is not None:
            self._taint_rules.pop(old.metadata.name, None)
        if new is not None:
            self._taint_rules[new.metadata.name] = new
        self._note_slice_change("")

    def _tainted(self, pool: Pool) -> Pool:
        """Return *pool* with the taints of the rules."""
        rules = [each.spec for each in self._taint_rules.values()]
        devices = []
        for device in pool.devices:
            taints = [each.taint for each in rules if each.taints(device.ref)]
            if taints:
                taints += device.content.get("taints") or ()
                device = replace(device, content={**device.content, "taints": taints})
            devices.append(device)
        return replace(pool, devices=tuple(devices))

    def _set_resources(self) -> None:
        implicit = {each: each.removeprefix(IMPLICIT_PREFIX) for each in self._implicit}
        found = {each: name for each, name in implicit.items() if name in self._classes}
        self.resources = found | self._explicit

    def add_implicit(self, resources: Iterable[str]) -> bool:
        """Note that pods request *resources*, whose names may contain that of a class; returns
        whether there are new ones."""
        new = {each for each in resources if each.startswith(IMPLICIT_PREFIX)} - self._implicit
        self._implicit |= new
        if new:
            self._set_resources()
        return bool(new)

    def own_resources(self, node: str) -> frozenset[str]:
        """Return the extended resources that a node has itself."""
        return self._own.get(node, frozenset())

    def set_own_resources(self, node: str, resources: frozenset[str]) -> None:
        """Note the extended resources that a node has itself."""
        self._own[node] = resources

    def offered(self, node_index: int) -> dict[str, int]:
        """Return how many devices a node has for each extended resource that it does not have
        itself."""
        node = self._nodes.node_infos[node_index]
        if node is None or not self.resources:
            return {}
        own = self._own.get(node.name, frozenset())
        devices = [each for pool in self._pools_of(node_index) for each in pool.devices]
        return {
            resource: sum(
                _MAX_SHARES if each.is_shared else 1
                for each in devices
                if is_of_class(self._classes[name], each)
            )
            for resource, name in self.resources.items()
            if resource not in own and name in self._classes
        }

    def is_provided(self, node_index: int, resource: str) -> bool:
        """Return whether devices provide an extended resource on a node, which lacks it itself."""
        node = self._nodes.node_infos[node_index]
        return node is not None and resource not in self._own.get(node.name, frozenset())

    def device_class(self, name: str) -> DeviceClass | None:
        """Return the class *name*, if it is known."""
        return self._classes.get(name)

    def hold(self, key: str, allocation: Allocation | None) -> None:
        """Count the devices of the claim *key* as in use; ``None`` if it is not allocated."""
        known = self._held.get(key)
        devices = tuple(allocation.in_use()) if allocation is not None else ()
        if known is not None:
            self.take(known.devices, -1)
            known.devices = devices
        elif devices:
            self._held[key] = _Held(devices)
        self.take(devices, 1)
        if known is not None and not devices:
            if not known.pods:
                del self._held[key]
            self._decide_again()

    # -- pods ----------------------------------------------------------------------------------

    def set_in_cycle(self, in_cycle: bool) -> None:
        """Note that a cycle begins or ends: in a cycle, pods leave nodes by statements alone."""
        self._in_cycle = in_cycle

    def add(self, requirements: DeviceRequirements, node_indexes: Sequence[int], sign: int) -> None:
        """Count a pod with *requirements* on each of *node_indexes*; with *sign* -1, undo that."""
        for key in requirements.held:
            self._count_holders(key, sign * len(node_indexes))
        claims = requirements.pending
        for node_index in node_indexes if claims else ():
            decisions = self._decisions.setdefault((claims, node_index), [])
            decision = self.decide(claims, node_index) if sign > 0 else decisions.pop()
            if sign > 0:
                decisions.append(decision)
            if not decisions:
                del self._decisions[claims, node_index]
            for claim, chosen in zip(claims, decision or (), strict=bool(decision)):
                self._choose(claim, node_index, chosen, sign)

    def take(self, devices: Iterable[DeviceUse], sign: int) -> None:
        """Count another use of *devices*; with *sign* -1, undo that."""
        for use in devices:
            self._used.add(use, sign)
            ref = use.ref
            self._versions[self._local.get((ref.driver, ref.pool), "")] += 1

    def decided(self, claims: tuple[PendingClaim, ...], node_index: int) -> Decision | None:
        """Return what the claims of the pod with *claims* that was counted last on a node get;
        ``None`` if they cannot be allocated there."""
        decisions = self._decisions.get((claims, node_index))
        return decisions[-1] if decisions else None

    def decide(self, claims: tuple[PendingClaim, ...], node_index: int) -> Decision | None:
        """Return what *claims* of one pod would get on a node, if they can be allocated."""
        found = self._result(claims, node_index)
        return None if isinstance(found, str) else found

    def unsuitable(self, claims: tuple[PendingClaim, ...]) -> Iterator[tuple[BoolVector, str]]:
        """Yield the nodes on which *claims* of one more pod cannot be allocated, by the reason."""
        masks: dict[str, BoolVector] = {}
        timeouts = 0
        for node_index, node in enumerate(self._nodes.node_infos):
            if node is None:
                continue
            # Else claims that nothing fits could occupy the scheduler for minutes.
            is_tried = timeouts < MAX_TIMEOUTS
            found = self._result(claims, node_index) if is_tried else TIMED_OUT
            timeouts += found == TIMED_OUT
            if isinstance(found, str):
                mask = masks.get(found)
                if mask is None:
                    mask = masks[found] = np.zeros(self._nodes.columns, np.bool_)
                mask[node_index] = True
        for reason, mask in masks.items():
            yield mask, reason

    # -- private -------------------------------------------------------------------------------

    def _decide_again(self) -> None:
        """Take devices for pods that count on a node where there were none for them: pods were
        evicted for them, and what these had is free now."""
        for (claims, node_index), decisions in self._decisions.items():
            for position, known in enumerate(decisions):
                decision = self.decide(claims, node_index) if known is None else None
                if decision is not None:
                    decisions[position] = decision
                    for claim, chosen in zip(claims, decision, strict=True):
                        self._choose(claim, node_index, chosen, 1)

    def _count_holders(self, key: str, count: int) -> None:
        held = self._held.setdefault(key, _Held(()))
        before, held.pods = held.pods, held.pods + count
        if self._in_cycle and before > 0 and not held.pods and not held.is_lent:
            held.is_lent = True  # a statement evicts its last pod
            self.take(held.devices, -1)
        elif held.is_lent and held.pods:
            held.is_lent = False
            self.take(held.devices, 1)
        if not held.pods and not held.devices:
            del self._held[key]

    def _choose(
        self, claim: PendingClaim, node_index: int, chosen: ClaimAllocation, sign: int
    ) -> None:
        if not claim.key:
            self.take(chosen.devices, sign)
            return
        choices = self._chosen.setdefault(claim.key, [])
        if sign > 0:
            choices.append((node_index, chosen))
        else:
            choices.remove((node_index, chosen))
        if len(choices) == max(sign, 0):  # the first pod, or the last one
            self.take(chosen.devices, sign)
        self._versions[""] += 1  # other pods with this claim go where its devices can be used
        if not choices:
            del self._chosen[claim.key]

    def _result(self, claims: tuple[PendingClaim, ...], node_index: int) -> Decision | str:
        """Return what *claims* get on a node, or why they get nothing."""
        pools = self._pools_of(node_index)
        version = self._versions[""] + self._versions[self._nodes.names[node_index]]
        known = self._known.get(claims)
        if known is None:
            if len(self._known) >= _MAX_DEMANDS:
                self._known.clear()
            known = self._known[claims] = _Known()
        # All nodes without devices are equal, but for claims that are decided already.
        is_of_node = pools or any(each.key or each.extended for each in claims)
        index = node_index if is_of_node else -1
        found = known.by_node.get(index)
        if found is None or found[0] != version:
            found = known.by_node[index] = (version, self._allocate(claims, node_index, pools))
        return found[1]

    def _allocate(
        self, claims: tuple[PendingClaim, ...], node_index: int, pools: tuple[Pool, ...]
    ) -> Decision | str:
        chosen: dict[int, ClaimAllocation] = {}
        for position, claim in enumerate(claims):
            choices = self._chosen.get(claim.key) if claim.key else None
            if choices:
                allocation, node = choices[0][1], self._nodes.node_infos[node_index]
                selector = allocation.node_selector
                if selector is not None and (
                    node is None or not selector.matches(node.name, node.labels)
                ):
                    return CANNOT_ALLOCATE
                chosen[position] = allocation
        wanted: dict[int, ClaimRequests] = {}
        for position, claim in enumerate(claims):
            if position in chosen:
                continue
            requests = self._requests_on(node_index, claim)
            if requests.requests or not claim.extended:
                wanted[position] = requests
            else:
                chosen[position] = NOTHING
        try:
            found = allocate(
                [*wanted.values()],
                pools,
                classes=self._classes.get,
                used=self._used,
                timeout=self.timeout,
            )
        except AllocationError as error:
            return str(error)
        if found is None:
            return _why_not_allocated(pools)
        chosen |= dict(zip(wanted, found, strict=True))
        return tuple(chosen[position] for position in range(len(claims)))

    def _requests_on(self, node_index: int, claim: PendingClaim) -> ClaimRequests:
        found = decode(claim.devices)
        if not claim.extended:
            return found
        resources = dict(claim.extended)
        return replace(
            found,
            requests=tuple(
                each
                for each in found.requests
                if self.is_provided(node_index, resources[each.name])
            ),
        )

    def _update_location(self, key: tuple[str, str]) -> None:
        """Note to which node a pool is local, whose slices have changed."""
        before = self._local.pop(key, None)
        if before is not None:
            self._keys_by_node[before].discard(key)
            self._note_slice_change(before)
        slices = self._pools.get(key)
        if slices is not None:
            names = {each.spec.node_name for each in slices.by_name.values()}
            after = self._local[key] = names.pop() if len(names) == 1 else ""
            self._keys_by_node.setdefault(after, set()).add(key)
            self._note_slice_change(after)

    def _note_slice_change(self, node: str) -> None:
        self._slice_changes[node] += 1
        self._versions[node] += 1

    def _pools_of(self, node_index: int) -> tuple[Pool, ...]:
        """Return the pools with devices that can be used from a node, by name."""
        position = self._nodes.node_position, self._nodes.columns
        if position != self._position:
            self._position = position
            self._by_node.clear()
            self._known.clear()
        node = self._nodes.node_infos[node_index]
        if node is None:
            return ()
        version = self._slice_changes[node.name] + self._slice_changes[""]
        known = self._by_node.get(node_index)
        if known is None or known[0] != version:
            none: set[tuple[str, str]] = set()
            keys = self._keys_by_node.get(node.name, none) | self._keys_by_node.get("", none)
            found = (_pool_for(node, key, self._pools[key].current()) for key in sorted(keys))
            pools = [pool for pool in found if pool is not None]
            if self._taint_rules:
                pools = [self._tainted(pool) for pool in pools]
            pools.sort(key=_has_binding_conditions)  # these are last
            known = version, tuple(pools)
            self._by_node[node_index] = known
        return known[1]


def _why_not_allocated(pools: Sequence[Pool]) -> str:
    if any(pool.problem == _INVALID for pool in pools):
        return "invalid resource pools were encountered"
    if fields := {each: None for pool in pools for each in pool.unsupported}:
        named = ", ".join(fields)
        return f"{CANNOT_ALLOCATE}; devices have fields that are not supported: {named}"
    return CANNOT_ALLOCATE


_INVALID = "invalid"
_INCOMPLETE = "being updated"


def _pool_for(
    node: LabelledNode, key: tuple[str, str], slices: Sequence[ResourceSlice]
) -> Pool | None:
    """Return the pool *key* as *node* sees it; ``None`` if it has no devices for it."""
    driver, name = key
    if not any(_is_for(node, each) for each in slices):
        return None
    if len(slices) != slices[0].spec.pool.resource_slice_count:
        return Pool(driver, name, problem=_INCOMPLETE)
    counters: dict[str, Mapping[str, int]] = {}
    for each in slices:
        for counter_set in each.spec.shared_counters:
            counters[counter_set.get("name", "")] = {
                counter: quantity.parse(amount.get("value", "0")).nanos
                for counter, amount in (counter_set.get("counters") or {}).items()
            }
    consumers = {
        content.get("name", ""): content
        for each in slices
        for content in each.spec.devices
        if content.get("consumesCounters")
    }
    unsupported = {
        name: None for each in slices for device in each.spec.devices for name in _unknown(device)
    }
    try:
        devices = [
            Device(
                DeviceRef(driver, name, content.get("name", "")),
                content,
                device_value(driver, content),
                *_binding_location(node, each, content),
            )
            for each in slices
            for content in each.spec.devices
            if not any(_unknown(content)) and _is_usable_on(node, each, content)
        ]
    except ValueError:
        return Pool(driver, name, problem=_INVALID)
    if len({each.ref for each in devices}) < len(devices):
        return Pool(driver, name, problem=_INVALID)
    return Pool(
        driver,
        name,
        tuple(devices),
        counters=counters,
        consumers=consumers,
        unsupported=tuple(unsupported),
    )


_DEVICE = frozenset(
    (
        "name", "attributes", "capacity", "consumesCounters", "nodeName", "nodeSelector",
        "allNodes", "taints", "bindsToNode", "bindingConditions", "bindingFailureConditions",
        "allowMultipleAllocations",
    )
)  # fmt: skip
_ATTRIBUTE = frozenset(("bool", "int", "string", "version"))


def _unknown(device: Json) -> Iterator[str]:
    """Yield the fields of a device that the scheduler does not know, and that have an effect."""
    yield from device.keys() - _DEVICE
    for attribute in (device.get("attributes") or {}).values():
        yield from (f"attributes.{name}" for name in attribute.keys() - _ATTRIBUTE)


def _has_binding_conditions(pool: Pool) -> bool:
    return any(each.content.get("bindingConditions") is not None for each in pool.devices)


def _is_for(node: LabelledNode, each: ResourceSlice) -> bool:
    spec = each.spec
    if spec.per_device_node_selection:
        return any(_is_usable_on(node, each, content) for content in spec.devices)
    return _matches(node, spec.node_name, spec.node_selector, bool(spec.all_nodes))


def _is_usable_on(node: LabelledNode, each: ResourceSlice, content: Json) -> bool:
    if not each.spec.per_device_node_selection:
        return _is_for(node, each)
    name, selector = _location(each, content)
    return _matches(node, name, selector, bool(content.get("allNodes")))


def _location(each: ResourceSlice, content: Json) -> tuple[str, NodeSelector | None]:
    """Return the node to which a device is local, or the selector of those that can use it."""
    if not each.spec.per_device_node_selection:
        return each.spec.node_name, each.spec.node_selector
    selector = content.get("nodeSelector")
    converted = msgspec.convert(selector, NodeSelector) if selector is not None else None
    return content.get("nodeName") or "", converted


def _binding_location(
    node: LabelledNode, each: ResourceSlice, content: Json
) -> tuple[str, NodeSelector | None]:
    """Return where a device can be used once it is allocated for *node*."""
    if content.get("bindsToNode"):
        return node.name, None
    return _location(each, content)


def _matches(node: LabelledNode, name: str, selector: NodeSelector | None, all_nodes: bool) -> bool:
    if name:
        return node.name == name
    return all_nodes or (selector is not None and selector.matches(node.name, node.labels))
