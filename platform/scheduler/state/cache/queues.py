"""The queues, and the sums of what the gangs of each have and ask for."""

from collections.abc import Collection, Iterator, Mapping

from ....model import names
from ....model.queue import Queue
from ..devices.requests import DEVICE_CLASS
from ..gangs.gang import Gang, QueueInfo, add_amounts, positive_difference, sum_amounts
from ..gangs.priority_classes import PriorityClasses
from ..gangs.task_table import TaskTable
from ..nodes.node_matrix import ChangeLog
from ..queue.scheduling_queue import QUEUES, RESERVED, VICTIMS, SchedulingQueue, queue_gained
from ..resources import Amounts, amounts
from .queue_share import QueueShare


class Queues:
    """All queues with their sums, updated by the contribution of one gang at a time."""

    def __init__(
        self, task_table: TaskTable, scheduling_queue: SchedulingQueue, *, default_name: str
    ) -> None:
        """Start without queues; gangs that name none are in the queue *default_name*."""
        self.by_name: dict[str, QueueInfo] = {}
        self.log: ChangeLog[str] = ChangeLog()
        """Names of queues whose object or sums changed."""
        self.version = 0
        """Grows when the object of a queue is added, changed or deleted."""
        self.reserved: Amounts = {}
        """What admitted gangs of all queues still need for their minimum."""
        self.priority_classes = PriorityClasses()
        self._task_table = task_table
        self._scheduling_queue = scheduling_queue
        self._default_name = default_name
        self._changed: set[str] = set()
        """Queues whose status may be outdated."""
        self._shares: dict[str, QueueShare] = {}
        self._paths: dict[str, tuple[str, ...]] = {}
        """Queues with their ancestors, as long as no object of a queue changes."""
        self._device_limits: tuple[int, dict[str, Amounts]] = (-1, {})
        """The limits on devices at a version."""

    def named(self, name: str) -> QueueInfo:
        """Return queue *name*; one that is not known yet has no ``object``."""
        queue = self.by_name.get(name)
        if queue is None:
            queue = self.by_name[name] = QueueInfo(name)
        return queue

    def of(self, gang: Gang) -> QueueInfo:
        """Return the queue of *gang*."""
        name = "" if gang.single else gang.queue_name or self._default_name
        queue = self.by_name.get(name)
        return self.named(name) if queue is None else queue

    def path_of(self, gang: Gang) -> tuple[str, ...]:
        """Return the queue of *gang* and its ancestors; an empty name for a single pod."""
        name = self.of(gang).name
        return self.with_ancestors(name) or (name,)

    def device_limits(self) -> Mapping[str, Amounts]:
        """Return what queues may have of devices, by name and class, where that is limited: by
        their own capability, or by that of an ancestor without what other queues are guaranteed."""
        if self._device_limits[0] != self.version:
            specs = {n: q.object.spec for n, q in self.by_name.items() if q.object is not None}
            limits = {name: _of_devices(spec.capability) for name, spec in specs.items()}
            guarantees = {n: _of_devices(spec.guarantee.resource) for n, spec in specs.items()}
            guaranteed: dict[str, Amounts] = {}
            for name, guarantee in guarantees.items():
                add_amounts(guaranteed.setdefault(self._parent(name), {}), guarantee)
            for name in sorted(limits, key=lambda each: len(self.with_ancestors(each))):
                parent, own = self._parent(name), limits[name]
                for key, units in limits.get(parent, {}).items():
                    others = guaranteed[parent].get(key, 0) - guarantees[name].get(key, 0)
                    if others > 0:
                        own[key] = min(own.get(key, units), max(units - others, 0))
            self._device_limits = (self.version, {k: v for k, v in limits.items() if v})
        return self._device_limits[1]

    def objects_of(self, gang: Gang) -> Iterator[Queue]:
        """Yield the queue of *gang* and its ancestors, as far as they are known."""
        for name in self.with_ancestors(self.of(gang).name):
            queue = self.by_name.get(name)
            if queue is not None and queue.object is not None:
                yield queue.object

    def update(self, old: Queue | None, new: Queue | None) -> tuple[str, Queue | None]:
        """Add, update or delete the object of a queue; returns its name and the former object."""
        name = (new or old or Queue()).metadata.name
        queue = self.named(name)
        known, queue.object = queue.object, new
        if new is None and not queue.gangs and not queue.kept:
            del self.by_name[name]
        if (
            known is None
            or new is None
            or (known.spec, known.status.state) != (new.spec, new.status.state)
            or known.metadata.annotations != new.metadata.annotations
        ):
            self.version += 1
            self._paths.clear()
            self.log.add(name)
            self._scheduling_queue.publish(queue_gained(name))
            if known is None or new is None or known.spec != new.spec:
                self._scheduling_queue.publish(QUEUES)
        if new is not None and known is None:
            self._changed.add(name)
        return name, known

    def mark_changed(self, gang: Gang) -> None:
        """Record that what is allocated in the queue of *gang* may have changed."""
        self._changed.update({self.of(gang).name} - {""})

    @property
    def has_changed(self) -> bool:
        """Whether :meth:`pop_changed` would return a queue."""
        return bool(self._changed)

    def pop_changed(self) -> set[str]:
        """Return queues whose allocation may have changed since the last call, with ancestors."""
        known = self._paths
        changed = {
            each for name in self._changed for each in known.get(name) or self.with_ancestors(name)
        }
        self._changed.clear()
        return changed

    def subtrees_allocated(self, names: Collection[str]) -> dict[str, Amounts]:
        """Return what is allocated in each of the queues *names* and in all queues below it, to
        pods that exist."""
        sums: dict[str, Amounts] = {name: {} for name in names}
        known = self._paths
        for queue in self.by_name.values():
            allocated = queue.allocated
            if queue.kept:
                allocated = sum_amounts((allocated,))
                add_amounts(allocated, queue.kept, -1)
            if not allocated:
                continue
            for name in known.get(queue.name) or self.with_ancestors(queue.name):
                total = sums.get(name)
                if total is None:
                    continue
                if not total:  # mostly a queue without others below it
                    total.update(allocated)
                else:
                    for resource, units in allocated.items():
                        total[resource] = total.get(resource, 0) + units
        return sums

    def with_ancestors(self, name: str) -> tuple[str, ...]:
        """Return *name* and its ancestors, each once even if they form a loop."""
        known = self._paths.get(name)
        if known is None:
            known = self._paths[name] = self._find_path(name)
        return known

    def _find_path(self, name: str) -> tuple[str, ...]:
        parent = self._parent(name)
        above = self._paths.get(parent)
        if above is not None and name and name not in above:
            return name, *above
        path: list[str] = []
        while name and name not in path:
            path.append(name)
            name = self._parent(name)
        return tuple(path)

    def _parent(self, name: str) -> str:
        queue = self.by_name.get(name)
        parent = queue.object.spec.parent if queue and queue.object else ""
        return parent or (names.ROOT_QUEUE if name != names.ROOT_QUEUE else "")

    def add_allocated(self, gang: Gang, delta: Amounts) -> None:
        """Add what was allocated to tasks of *gang* to the sums of its queue."""
        share = self._shares.get(gang.key)
        if delta and share is not None:
            if share.allocated is share.settled:
                share.allocated = share.settled.copy()
            add_amounts(share.allocated, delta)
            add_amounts(self.named(share.queue_name).allocated, delta)

    def charge_kept(self, name: str, kept: Amounts, sign: int) -> None:
        """Add what is kept for gangs of queue *name* to what is allocated there, or subtract it."""
        queue = self.named(name)
        for sums in (queue.allocated, queue.requested, queue.kept):
            add_amounts(sums, kept, sign)
        self.log.add(name)

    def charged_name(self, gang: Gang) -> str:
        """Return the queue in which the tasks of *gang* have counted last: after its PodGroup was
        deleted, which names another one, too."""
        share = self._shares.get(gang.key)
        return self.of(gang).name if share is None else share.queue_name

    def update_sums(self, gang: Gang) -> None:
        """Replace the contribution of *gang* to the sums of its queue."""
        before, after = self._shares.get(gang.key), None
        if gang.podgroup is not None or gang.tasks:
            priority, gang.priority = gang.priority, self.priority_classes.priority_of(gang)
            queue = self.of(gang)
            after = QueueShare.of(gang, queue.name)
            if after == before and gang.priority == priority:
                return
            self._task_table.update_gang(gang, queue.name)
            self._scheduling_queue.publish(VICTIMS)
        if before is not None:
            former = self.named(before.queue_name)
            before.add_to(former, -1)
            if after is None or after.queue_name != before.queue_name:
                former.gangs.discard(gang.key)
        if after is None:
            self._shares.pop(gang.key, None)
        else:
            self._shares[gang.key] = after
            after.add_to(queue)
            queue.gangs.add(gang.key)
        if before is None and after is not None:
            self._record_new(after)
        else:
            self._record_changes(before or _NOTHING, after or _NOTHING)

    def _record_new(self, share: QueueShare) -> None:
        """Record what a gang adds that is new; it leaves nothing to others."""
        if share.queue_name:
            self.log.add(share.queue_name)
            self._changed.add(share.queue_name)
        if share.reserved:
            add_amounts(self.reserved, share.reserved)

    def _record_changes(self, before: QueueShare, after: QueueShare) -> None:
        """Record and publish how the sums of queues have changed."""
        names_of_queues = {before.queue_name, after.queue_name} - {""}
        for name in names_of_queues:
            self.log.add(name)
        if (before.queue_name, before.settled) != (after.queue_name, after.settled):
            self._changed.update(names_of_queues)
        if before.reserved != after.reserved:
            add_amounts(self.reserved, before.reserved, -1)
            add_amounts(self.reserved, after.reserved)
        if before.demand() == after.demand() and before.queue_name == after.queue_name:
            return
        if positive_difference(before.admitted(), after.admitted()):
            self._scheduling_queue.publish(RESERVED)
        if before.queue_name and before.is_reduced_to(after):
            for name in self.with_ancestors(before.queue_name):
                self._scheduling_queue.publish(queue_gained(name))


_NOTHING = QueueShare("")


def _of_devices(resources: Mapping[str, str | int | float]) -> Amounts:
    """Return the entries of *resources* that are about devices of claims."""
    return {
        name: units
        for name, units in amounts(resources).items()
        if name.startswith(DEVICE_CLASS) or f".{DEVICE_CLASS}" in name
    }
