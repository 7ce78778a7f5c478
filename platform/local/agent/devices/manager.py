"""Device manager of a node: which devices work, and which container has which."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from ....model.quantity import QuantityError, parse
from ..runtime import shim
from ..state.core_types import Container, Pod
from .claims import ClaimedDevices, ClaimError, device_name
from .discovery import AMD, NVIDIA, Device, Discovery

log = logging.getLogger(__name__)

RESOURCES = (f"{NVIDIA}/gpu", f"{AMD}/gpu")
DeviceNames = Mapping[str, tuple[str, ...]]
"""Names of devices by container."""

_VARIABLES = {
    NVIDIA: ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    AMD: ("ROCR_VISIBLE_DEVICES",),
}


class DeviceUnavailableError(Exception):
    """The node has fewer free devices than a pod requests."""


class DeviceManager:
    """Knows the devices of a node, and assigns them to pods.

    *state_file* has the resources that the node ever reported: one without a device any more is
    reported as 0, since the API server keeps what is omitted.
    """

    def __init__(self, discovery: Discovery, state_file: Path) -> None:
        self._discovery = discovery
        self._state_file = state_file
        self._devices: dict[str, Device] = {}
        """All devices that were found since the start, by name."""

        self._working: frozenset[str] = frozenset()
        self._assigned: dict[str, DeviceNames] = {}
        """By the uid of the pod."""

        self._claimed: dict[str, frozenset[str]] = {}
        """Those of them that a pod has by claims, but for administrators' access."""

        self._only_claimed: set[str] = set()
        """Pods that have their claims, but not yet what they request as resources."""

        self._reported: set[str] = set()
        self.on_assigned: Callable[[], None] = lambda: None
        """Called when other devices are free."""

    def discover(self) -> bool:
        """Look for devices; return whether others work than before. Blocks for seconds."""
        found = {each.name: each for each in self._discovery.devices()}
        before, self._working = self._working, frozenset(found)
        for name in before - self._working:
            log.warning("device does not work any more", extra={"device": name})
        # Replaced, not changed: the event loop reads it in another thread.
        self._devices = self._devices | found
        self._record_resources()
        return before != self._working

    def _record_resources(self) -> None:
        known = set(self._reported)
        if not known:
            with suppress(OSError, ValueError):
                known = {str(each) for each in json.loads(self._state_file.read_bytes())}
        reported = known | {each.resource for each in self._devices.values()}
        if reported != known:
            shim.replace_file(str(self._state_file), json.dumps(sorted(reported)))
        self._reported = reported & {*RESOURCES}

    def capacity(self) -> dict[str, str]:
        """Return how many devices there are, by resource."""
        return self._counts(self._devices.values())

    def allocatable(self) -> dict[str, str]:
        """Return how many devices work and are not claimed, by resource."""
        claimed = frozenset().union(*self._claimed.values())
        usable = self._working - claimed
        return self._counts(each for each in self._devices.values() if each.name in usable)

    def offered(self) -> list[Device]:
        """Return the devices that pods may claim: those that work, but for those that pods have by
        requests for resources."""
        requested = {
            name
            for uid, names in self._assigned.items()
            for each in names.values()
            for name in each
            if name not in self._claimed.get(uid, ())
        }
        usable = self._working - requested
        found = [each for each in self._devices.values() if each.name in usable]
        return sorted(found, key=lambda each: (each.driver, each.index))

    def _counts(self, devices: Iterable[Device]) -> dict[str, str]:
        counts = dict.fromkeys(sorted(self._reported), 0)
        for each in devices:
            counts[each.resource] += 1
        return {name: str(count) for name, count in counts.items()}

    def restore(self, uid: str, names: DeviceNames, claimed: Iterable[str] = ()) -> None:
        """Record what an earlier agent has assigned to a pod, and which of it is *claimed*."""
        if names:
            self._assigned[uid] = names
        if found := frozenset(claimed):
            self._claimed[uid] = found

    def claim(self, uid: str, claimed: ClaimedDevices) -> None:
        """Assign the devices that a pod has by claims, before :meth:`assign`.

        Raises:
            ClaimError: one does not work, or a pod has it by a request for resources.
        """
        by_name = {device_name(each): each for each in self._devices.values()}
        offered = {device_name(each) for each in self.offered()}
        for name in sorted(claimed.exclusive):
            if name not in offered:
                known = name in by_name and by_name[name].name in self._working
                problem = "is in use by another pod" if known else "does not work"
                raise ClaimError(f"device {name} {problem}")
        names = {
            container: tuple(by_name[each].name for each in found if each in by_name)
            for container, found in claimed.by_container.items()
        }
        self.restore(uid, names, (by_name[each].name for each in claimed.exclusive))
        self._only_claimed.add(uid)
        self.on_assigned()

    def claimed(self, uid: str) -> tuple[str, ...]:
        """Return the devices that no other pod may have by requests while the pod claims them."""
        return tuple(sorted(self._claimed.get(uid, ())))

    def assign(self, pod: Pod) -> DeviceNames:
        """Assign devices to the containers of a pod, the first free ones; return their names.

        Raises:
            DeviceUnavailableError: too few of them work and are free.
        """
        uid = pod.metadata.uid
        if uid in self._assigned and uid not in self._only_claimed:
            return self._assigned[uid]
        names = dict(self._assigned.get(uid, {}))
        for resource in RESOURCES:
            for container, found in self._assign(pod, resource).items():
                names[container] = (*names.get(container, ()), *found)
        self.restore(uid, names)
        self._only_claimed.discard(uid)
        if names:
            self.on_assigned()
        return names

    def _assign(self, pod: Pod, resource: str) -> dict[str, tuple[str, ...]]:
        """Assign devices of one resource; init containers use those of later containers."""
        first = {each.name: _count(each, resource) for each in pod.spec.init_containers}
        kept = [
            *(each for each in pod.spec.init_containers if each.is_sidecar),
            *pod.spec.containers,
        ]
        counts = {each.name: _count(each, resource) for each in kept}
        needed, sidecars = sum(counts.values()), 0
        for each in pod.spec.init_containers:
            needed = max(needed, sidecars + first[each.name])
            sidecars += first[each.name] if each.is_sidecar else 0
        if not needed:
            return {}
        pool = self._take_free(resource, needed)
        result, start = {}, 0
        for each in pod.spec.init_containers:
            end = start + first[each.name]
            result[each.name] = tuple(pool[start:end])
            start = end if each.is_sidecar else start
        for each in pod.spec.containers:
            end = start + counts[each.name]
            result[each.name] = tuple(pool[start:end])
            start = end
        return {name: devices for name, devices in result.items() if devices}

    def _take_free(self, resource: str, count: int) -> list[str]:
        taken = {
            name for names in self._assigned.values() for each in names.values() for name in each
        }.union(*self._claimed.values())
        free = [
            each
            for each in self._devices.values()
            if each.resource == resource and each.name in self._working - taken
        ]
        if len(free) < count:
            raise DeviceUnavailableError(
                "Allocate failed due to requested number of devices unavailable for "
                f"{resource}. Requested: {count}, Available: {len(free)}, which is unexpected"
            )
        return [each.name for each in sorted(free, key=lambda each: each.index)[:count]]

    def release(self, uid: str) -> None:
        """Free the devices of a pod."""
        assigned = self._assigned.pop(uid, None)
        claimed = self._claimed.pop(uid, None)
        self._only_claimed.discard(uid)
        if assigned or claimed:
            self.on_assigned()

    def files(self, uid: str, container: str) -> list[tuple[str, str]]:
        """Return source and path of the device files that a container may see."""
        files = [file for each in self._of(uid, container) for file in each.files]
        paths = ((self._discovery.path(file), f"/dev/{file}") for file in dict.fromkeys(files))
        return [(source, target) for source, target in paths if Path(source).exists()]

    def environment(self, uid: str, container: str) -> dict[str, str]:
        """Return the variables by which libraries find the devices of a container.

        On a node with devices, a container without any has empty ones.
        """
        devices = self._of(uid, container)
        drivers = {each.driver for each in self._devices.values()}
        return {
            name: ",".join(
                str(each.index) if each.name.startswith("kfd-") else each.name
                for each in devices
                if each.driver == driver
            )
            for driver in sorted(drivers)
            for name in _VARIABLES[driver]
        }

    def _of(self, uid: str, container: str) -> list[Device]:
        names = self._assigned.get(uid, {}).get(container, ())
        return [self._devices[each] for each in names if each in self._devices]


def _count(container: Container, resource: str) -> int:
    try:
        return parse(container.resources.limits.get(resource, 0)).value()
    except QuantityError:
        return 0
