"""ResourceClaims, and the pods that use them: what these require, and what blocks them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from uuid import uuid4

import msgspec

from ....model.meta import ObjectMeta
from ....model.node_selectors import NodeSelector
from ..devices.allocator import MAX_RESULTS, ClaimAllocation
from ..devices.available_devices import AvailableDevices
from ..devices.requests import decode, encode
from ..devices.types import (
    FINALIZER,
    MAX_CONSUMERS,
    Allocation,
    DeviceClass,
    DeviceTaintRule,
    Json,
    ResourceClaim,
    ResourceSlice,
)
from ..podinfo.device_claims import UsedClaim
from ..podinfo.device_requirements import NO_DEVICES, DeviceRequirements, PendingClaim
from ..podinfo.extended_resources import ContainerUse
from ..resources import Amounts
from .extended_claims import ExtendedClaims, NewClaim, owner_of
from .gang import Task, TaskStatus, add_amounts


@dataclass(frozen=True, slots=True)
class DeviceBinding:
    """A claim of a pod that has got a node."""

    claim: ResourceClaim
    allocation: Json | None
    """What it is to get; ``None`` if it is allocated already, and only reserved for the pod."""
    new: NewClaim | None = None
    """The claim, if it does not exist: *claim* has only the namespace then."""


@dataclass(slots=True)
class _Assumed:
    content: Json
    allocation: Allocation
    uids: set[str] = field(default_factory=set)
    """Pods that have got a node with it."""


class DeviceClaimTracker:
    """ResourceClaims after the last event, and the pods that use them."""

    def __init__(self, available: AvailableDevices) -> None:
        """Start without claims; the devices that they may get are in *available*."""
        self.available = available
        self.claims: dict[str, ResourceClaim] = {}
        """All claims, by key."""
        self._uids_by_claim: dict[str, set[str]] = {}
        self._claims_by_uid: dict[str, tuple[str, ...]] = {}
        self._assumed: dict[str, _Assumed] = {}
        self._suspects: set[str] = set()
        """Claims that may be allocated for pods that have no node."""
        self._releasing: set[str] = set()
        """Claims whose allocation is being removed."""
        self._extended = ExtendedClaims()

    def update(self, old: ResourceClaim | None, new: ResourceClaim | None) -> frozenset[str]:
        """Add, update or delete a claim; returns uids of pods that it may concern."""
        known = new or old
        if known is None:
            return frozenset()
        key = known.metadata.key
        was_allocated = self._allocation(key) is not None
        self._releasing.discard(key)
        if new is None:
            self.claims.pop(key, None)
            self._suspects.discard(key)
        else:
            self.claims[key] = new
        is_other = old is not None and new is not None and old.metadata.uid != new.metadata.uid
        if new is None or is_other or new.status.allocation is not None:
            self._assumed.pop(key, None)
        if new is not None and new.status.allocation is not None and new.status.reserved_for:
            self._suspects.add(key)
        allocation = self._allocation(key)
        self._note_extended(known, allocation, is_deleted=new is None)
        self.available.hold(key, allocation)
        if was_allocated and allocation is None:
            return self.waiting() | self._uids_of(key)
        return self._uids_of(key)

    def _note_extended(
        self, claim: ResourceClaim, allocation: Allocation | None, *, is_deleted: bool
    ) -> None:
        """Note which claim a pod has for its extended resources."""
        uid, key = owner_of(claim), claim.metadata.key
        if not uid:
            return
        known = self._extended.keys.get(uid)
        if is_deleted or allocation is None:
            if known == key:
                del self._extended.keys[uid]
            return
        if known and known != key and self._assumed.pop(known, None) is not None:
            self.available.hold(known, None)
        self._extended.keys[uid] = key
        self._uids_by_claim.setdefault(key, set()).add(uid)
        if key not in self._claims_by_uid.get(uid, ()):
            self._claims_by_uid[uid] = (*self._claims_by_uid.get(uid, ()), key)

    def update_slice(self, old: ResourceSlice | None, new: ResourceSlice | None) -> frozenset[str]:
        """Add, update or delete a slice; returns uids of pods that it may concern."""
        if old is not None and new is not None and old.spec == new.spec:
            return frozenset()
        self.available.update_slice(old, new)
        return self.waiting()

    def update_class(self, old: DeviceClass | None, new: DeviceClass | None) -> frozenset[str]:
        """Add, update or delete a device class; returns uids of pods that it may concern."""
        if old is not None and new is not None and old.spec == new.spec:
            return frozenset()
        self.available.update_class(old, new)
        return self.waiting()

    def update_taint_rule(
        self, old: DeviceTaintRule | None, new: DeviceTaintRule | None
    ) -> frozenset[str]:
        """Add, update or delete a rule; returns uids of pods that it may concern."""
        if old is not None and new is not None and old.spec == new.spec:
            return frozenset()
        self.available.update_taint_rule(old, new)
        return self.waiting()

    def add_pod(
        self,
        uid: str,
        namespace: str,
        claims: Iterable[UsedClaim],
        extended: tuple[ContainerUse, ...] = (),
    ) -> frozenset[str]:
        """Add a pod that uses *claims*, and requests *extended* resources; returns uids of other
        pods that it may concern."""
        if extended:
            self._extended.uses[uid] = extended
        keys = tuple(dict.fromkeys(f"{namespace}/{each.name}" for each in claims if each.name))
        if keys or uid not in self._claims_by_uid:
            self._claims_by_uid[uid] = keys
        concerned: set[str] = set()
        for key in keys:
            uids = self._uids_by_claim.setdefault(key, set())
            concerned |= uids if len(uids) == 1 else set()  # it is shared from now on
            uids.add(uid)
            claim = self.claims.get(key)
            if claim is not None and any(each.uid == uid for each in claim.status.reserved_for):
                self._suspects.add(key)
        return frozenset(concerned - {uid})

    def forget_uses(self, uid: str) -> None:
        """Note that a pod has a node, so that nothing is allocated for it any more."""
        self._extended.uses.pop(uid, None)

    def remove_pod(self, uid: str) -> None:
        """Remove a pod."""
        self._extended.uses.pop(uid, None)
        for key in self._claims_by_uid.pop(uid, ()):
            uids = self._uids_by_claim.get(key, set())
            uids.discard(uid)
            if not uids:
                self._uids_by_claim.pop(key, None)

    def is_concerned(self, uid: str) -> bool:
        """Return whether devices may be assumed for a pod."""
        return uid in self._claims_by_uid or uid in self._extended.keys

    def requirements(
        self, uid: str, namespace: str, claims: Iterable[UsedClaim]
    ) -> DeviceRequirements:
        """Return what *claims* of a pod require, and its extended resources."""
        selectors: dict[NodeSelector, None] = {}
        held: list[str] = []
        pending: list[PendingClaim] = []
        for key, claim in self._existing(namespace, claims):
            allocation = self._allocation(key)
            if allocation is None:
                devices = encode(claim.spec.devices)
                pending.append(PendingClaim(devices, key if self.is_shared(key) else ""))
                continue
            held.append(key)
            if allocation.node_selector is not None:
                selectors[allocation.node_selector] = None
        key = self._extended.keys.get(uid, "")
        allocation = self._allocation(key) if key and key not in held else None
        if allocation is not None:
            held.append(key)
            if allocation.node_selector is not None:
                selectors[allocation.node_selector] = None
        elif (wanted := self._extended.pending(uid, self.available.resources)) is not None:
            pending.append(wanted)
        if not held and not pending:
            return NO_DEVICES
        return DeviceRequirements(tuple(selectors), tuple(held), tuple(pending))

    def blocking_reason(self, task: Task) -> str:
        """Return which claim blocks *task* and why, with the message of kube-scheduler; empty if
        none does."""
        if (key := self._extended.keys.get(task.uid, "")) in self._releasing:
            return f"resource claim {key} is in the process of being deallocated"
        for used in task.device_claims:
            if not used.name:
                return f'pod "{task.namespace}/{task.name}": ResourceClaim not created yet'
            key = f"{task.namespace}/{used.name}"
            claim = self.claims.get(key)
            if claim is None:
                return f'resourceclaim.resource.k8s.io "{used.name}" not found'
            if reason := self._reason(task, used, key, claim):
                return reason
        return ""

    def _reason(self, task: Task, used: UsedClaim, key: str, claim: ResourceClaim) -> str:
        meta, consumers = claim.metadata, claim.status.reserved_for
        owner = meta.controller
        if used.is_owned and (owner is None or owner.uid != task.uid):
            return (
                f"ResourceClaim {key} was not created for Pod {task.namespace}/{task.name} "
                "(Pod is not owner)"
            )
        if meta.deletion_timestamp:
            return f'resourceclaim "{meta.name}" is being deleted'
        if key in self._releasing:
            return f"resource claim {key} is in the process of being deallocated"
        if self._allocation(key) is not None:
            is_reserved = any(each.uid == task.uid for each in consumers)
            is_full = len(consumers) >= MAX_CONSUMERS and not is_reserved
            return "resourceclaim in use" if is_full else ""
        wanted = decode(encode(claim.spec.devices))
        if wanted.unsupported:
            return f"claim {key}: not supported: {', '.join(wanted.unsupported)}"
        for choice in wanted.choices():
            if self.available.device_class(choice.device_class) is None:
                text = f"device class {choice.device_class} does not exist"
                return f"request {choice.name}: {text}"
        least = sum(min((each.count for each in r.choices), default=0) for r in wanted.requests)
        if least > MAX_RESULTS:
            return (
                f"claim {key}: number of requested devices {least} exceeds the claim limit of "
                f"{MAX_RESULTS}"
            )
        return ""

    # -- assumed allocations -------------------------------------------------------------------

    def assume(self, task: Task) -> frozenset[str]:
        """Assume what the claims of *task*, which has got a node, get; returns uids of pods that it
        may concern."""
        claims = task.eq_class.devices.pending
        decision = self.available.decided(claims, task.node_index)
        left = list(zip(claims, decision or (), strict=bool(decision)))
        uids: set[str] = set()
        for key, claim in self._existing(task.namespace, task.device_claims):
            if self._allocation(key) is not None:
                continue
            devices = encode(claim.spec.devices)
            found = next(
                (each for each in left if each[0].devices == devices and each[0].key in ("", key)),
                None,
            )
            if found is None:
                continue
            left.remove(found)
            content = _with_share_ids(found[1].content)
            allocation = msgspec.convert(content, Allocation)
            self._assumed[key] = _Assumed(content, allocation)
            self.available.hold(key, allocation)
            uids |= self._uids_of(key)
        for pending, chosen in left:
            if pending.extended:
                self._assume_extended(task, chosen)
                uids.add(task.uid)
        return frozenset(uids)

    def _assume_extended(self, task: Task, chosen: ClaimAllocation) -> None:
        if not chosen.content:
            self._extended.keys[task.uid] = ""
            return
        key = f"{task.namespace}/<{task.uid}>"  # no claim has such a name
        content = _with_share_ids(chosen.content)
        allocation = msgspec.convert(content, Allocation)
        self._extended.keys[task.uid] = key
        self._assumed[key] = _Assumed(content, allocation, {task.uid})
        self.available.hold(key, allocation)

    def join(self, task: Task) -> tuple[DeviceBinding, ...]:
        """Return what is to be written into the claims of *task*, which keeps it until that is
        released."""
        found = []
        for key, claim in self._existing(task.namespace, task.device_claims):
            assumed = self._assumed.get(key)
            if assumed is not None:
                assumed.uids.add(task.uid)
            if assumed is not None or all(
                each.uid != task.uid for each in claim.status.reserved_for
            ):
                content = assumed.content if assumed is not None else None
                found.append(DeviceBinding(claim, content))
        key = self._extended.keys.get(task.uid, "")
        if key not in self.claims and (assumed := self._assumed.get(key)) is not None:
            new = self._extended.new_claim(task, assumed.content, self.available.resources)
            name = key.partition("/")[2]
            claim = ResourceClaim(metadata=ObjectMeta(name=name, namespace=task.namespace))
            found.append(DeviceBinding(claim, assumed.content, new))
        return tuple(found)

    def release(self, uid: str) -> frozenset[str]:
        """Forget what was assumed for a pod that does not get its node; returns uids of pods that
        it may concern."""
        uids: set[str] = set()
        extended = self._extended.keys.pop(uid, None)
        if extended is not None:
            uids.add(uid)
        keys = self._claims_by_uid.get(uid, ())
        for key in (*keys, *([extended] if extended and extended not in keys else [])):
            assumed = self._assumed.get(key)
            if assumed is not None:
                assumed.uids.discard(uid)
                if not assumed.uids:
                    del self._assumed[key]
                    self.available.hold(key, self._allocation(key))
                    uids |= self.waiting() | self._uids_of(key)
            elif key in self.claims:
                self._suspects.add(key)
        return frozenset(uids)

    def stale(self, task_of: Callable[[str], Task | None]) -> Iterator[ResourceClaim]:
        """Yield the claims that are allocated only for pods that have no node and get none now: the
        binding has failed, or this scheduler was killed before it. They block their pods until the
        allocation is removed."""
        for key in sorted(self._suspects):
            claim = self.claims[key]
            tasks = [
                task_of(each.uid) if not each.api_group and each.resource == "pods" else None
                for each in claim.status.reserved_for
            ]
            self._suspects.discard(key)
            if not tasks and (owner := owner_of(claim)):
                tasks = [task_of(owner)]
            is_stale = all(task and task.status is TaskStatus.PENDING for task in tasks)
            if tasks and is_stale and FINALIZER in claim.metadata.finalizers:
                self._releasing.add(key)
                yield claim

    def allocated(self) -> Iterator[tuple[str, Amounts]]:
        """Yield a pod of each claim that is allocated, by uid, and what it has; see
        :meth:`devices_of`."""
        for key, uids in self._uids_by_claim.items():
            if devices := self.devices_of(key):
                yield min(uids), devices

    def users(self) -> Iterator[tuple[str, frozenset[str]]]:
        """Yield the claims that pods use, and the uids of these."""
        for key, uids in self._uids_by_claim.items():
            yield key, frozenset(uids)

    def devices_of(self, key: str) -> Amounts:
        """Return which devices a claim has, as amounts of ``deviceclass/NAME``, and what it has of
        their capacities, apart from those for admin access."""
        claim, allocation = self.claims.get(key), self._allocation(key)
        found: Amounts = {}
        if claim is None or allocation is None:
            return found
        choices = {each.name: each for each in decode(encode(claim.spec.devices)).choices()}
        for each in allocation.devices.results:
            if not each.admin_access and each.request in choices:
                choice = choices[each.request]
                add_amounts(found, choice.amounts_of_device(each.consumed_capacity))
        return found

    def is_shared(self, key: str) -> bool:
        """Return whether several pods use a claim."""
        return len(self._uids_by_claim.get(key, ())) > 1

    def waiting(self) -> frozenset[str]:
        """Return the uids of pods with claims that are not allocated."""
        claims = (
            uid
            for key, uids in self._uids_by_claim.items()
            if self._allocation(key) is None
            for uid in uids
        )
        if not self.available.resources:
            return frozenset(claims)
        return frozenset((*claims, *(self._extended.uses.keys() - self._extended.keys.keys())))

    # -- private -------------------------------------------------------------------------------

    def _uids_of(self, key: str) -> frozenset[str]:
        return frozenset(self._uids_by_claim.get(key, ()))

    def _allocation(self, key: str) -> Allocation | None:
        assumed, claim = self._assumed.get(key), self.claims.get(key)
        if assumed is not None:
            return assumed.allocation
        return claim.status.allocation if claim is not None else None

    def _existing(
        self, namespace: str, claims: Iterable[UsedClaim]
    ) -> Iterator[tuple[str, ResourceClaim]]:
        """Yield the claims of a pod that exist, each once."""
        for name in dict.fromkeys(each.name for each in claims if each.name):
            key = f"{namespace}/{name}"
            claim = self.claims.get(key)
            if claim is not None:
                yield key, claim


def _with_share_ids(content: Json) -> Json:
    """Return an allocation in which each share of a device has an identifier."""
    results = [
        {**each, "shareID": str(uuid4())} if "shareID" in each else each
        for each in content["devices"]["results"]
    ]
    return {**content, "devices": {**content["devices"], "results": results}}
