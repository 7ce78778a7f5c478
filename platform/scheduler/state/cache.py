"""The scheduler's picture of the cluster, kept up event by event.

It ties the parts together: a pod becomes a task of its gang and a charge on its node, a gang counts
in its queue. Events are applied between cycles only, so whoever decides sees a snapshot that stands
still without any copy. What may let a gang in that was refused before (room freed, a node or queue
changed) raises :attr:`Cluster.openings`; gangs refused since the last one need not be asked again.
"""

from collections.abc import Collection, Iterable

from ...model import names
from ...model.pod import FINISHED
from ...model.podgroup import PodGroup, PodGroupPhase
from ...model.queue import Queue as QueueObject
from .core_types import Claim, Node, Pod, PriorityClass
from .equivalence import Shape, ShapeBook
from .gangs import Gang, Queue, Task, TaskStatus, add, beyond, total
from .node_matrix import Snapshot
from .pvcs import ClaimBook
from .resources import Amounts, IntVector


class Cluster:
    """Nodes, gangs and queues as the last events left them, and our own placements on top."""

    def __init__(
        self,
        *,
        gang_names: Collection[str] = (names.SCHEDULER_NAME,),
        single_names: Collection[str] = (),
        default_queue: str = names.DEFAULT_QUEUE,
        queue_gates: bool = False,
    ) -> None:
        """Serve pods whose ``schedulerName`` is one of *gang_names* as gangs, those of
        *single_names* one by one; *queue_gates* says that the gate of queues is ours to lift.
        """
        self.snapshot = Snapshot()
        self.shapes = ShapeBook()
        self.claims = ClaimBook()
        self.gangs: dict[str, Gang] = {}
        self.queues: dict[str, Queue] = {}
        self.openings = 0
        self.waiting: dict[str, Gang] = {}
        """Gangs with something to do: to be admitted, or with tasks to be let in or placed."""
        self._gang_names = frozenset(gang_names)
        self._single_names = frozenset(single_names)
        self._default_queue = default_queue
        self._queue_gates = queue_gates
        self._classes: dict[str, PriorityClass] = {}
        self._tasks: dict[str, tuple[Gang, Task]] = {}
        self._others: dict[str, tuple[int, Shape]] = {}
        self._touched: dict[str, Gang] = {}
        self._unsettled: dict[str, Gang] = {}
        self._counted: dict[str, tuple[str, tuple[Amounts, ...]]] = {}
        self._stirred: set[str] = set()
        self._decided_at = -1

    # -- events --------------------------------------------------------------------------------

    def pod(self, old: Pod | None, new: Pod | None) -> None:
        """A pod came, changed or went. Our placement stands until the pod names its node."""
        if new is None:
            if old is not None:
                self._forget_pod(old.metadata.uid)
                self.openings += 1
            return
        held = self._tasks.get(new.metadata.uid)
        if held and (_is_older(held[1], new) or self._advance(*held, new)):
            return
        self._forget_pod(new.metadata.uid)
        gang = self._gang_of(new)
        if gang is not None:
            self._add_task(gang, self._task(new, self.shapes.of(new.spec)))
        elif new.spec.node_name and new.status.phase not in FINISHED:
            shape = self.shapes.of(new.spec)
            slot = self.snapshot.charge(new.spec.node_name, self._vector(shape))
            self._others[new.metadata.uid] = (slot, shape)

    def node(self, old: Node | None, new: Node | None) -> None:
        """A node came, changed or went."""
        if new is not None:
            self.openings += self.snapshot.set_node(new)
        elif old is not None:
            self.snapshot.drop_node(old.metadata.name)
            self.openings += 1

    def claim(self, old: Claim | None, new: Claim | None) -> None:
        """A claim came, changed or went: gangs that mount it are tried again."""
        for uid in self.claims.note(old, new):
            gang = self._tasks[uid][0]
            gang.version += 1
            self.touch(gang)

    def group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        """A PodGroup came, changed or went."""
        group = new or old
        if group is None:
            return
        key = group.metadata.key
        if new is None and key not in self.gangs:
            return
        gang = self._gang(key)
        self.openings += gang.set_group(new)
        self.touch(gang)

    def queue(self, old: QueueObject | None, new: QueueObject | None) -> None:
        """A queue came, changed or went."""
        name = (new or old or QueueObject()).metadata.name
        queue = self.queue_named(name)
        known = queue.object
        queue.object = new
        if new is None and not queue.gangs:
            del self.queues[name]
        if (
            known is None
            or new is None
            or (known.spec, known.status.state) != (new.spec, new.status.state)
        ):
            self.openings += 1
        if new is not None and known is None:
            self._stirred.add(name)

    def priority_class(self, old: PriorityClass | None, new: PriorityClass | None) -> None:
        """A priority class came, changed or went; rare, so every gang is looked at."""
        if old is not None:
            self._classes.pop(old.metadata.name, None)
        if new is not None:
            self._classes[new.metadata.name] = new
        for gang in self.gangs.values():
            gang.priority = self._priority(gang)

    # -- our own doing -------------------------------------------------------------------------

    def place(self, gang: Gang, placed: Iterable[tuple[Task, int]]) -> None:
        """Give tasks of *gang* the columns that have been charged for them."""
        for task, slot in placed:
            gang.move(task, TaskStatus.BINDING)
            task.slot = slot
            task.node = self.snapshot.names[slot]
        self.touch(gang)
        self.settle()

    def forget_placement(self, uid: str) -> Gang | None:
        """The cluster refused our placement of the pod: its room is free again.

        Returns its gang, or ``None`` if the pod is not (any more) one that we placed.
        """
        gang, task = self._tasks.get(uid, (None, None))
        if gang is None or task is None or task.status is not TaskStatus.BINDING:
            return None
        self.snapshot.refund(task.slot, self._vector(task.shape))
        gang.move(task, TaskStatus.PENDING)
        gang.version += 1
        task.node, task.slot = "", -1
        self.openings += 1
        self.touch(gang)
        return gang

    def lift(self, gang: Gang, tasks: Iterable[Task]) -> None:
        """*tasks* of *gang* have been let in by their queue."""
        for task in tasks:
            gang.lift(task)

    def enter(self, gang: Gang) -> None:
        """*gang* has been admitted to its queue."""
        gang.phase = PodGroupPhase.INQUEUE
        self.touch(gang)
        self.settle()

    # -- answers -------------------------------------------------------------------------------

    def task(self, uid: str) -> Task | None:
        """The task of the pod with *uid*."""
        held = self._tasks.get(uid)
        return held[1] if held else None

    def queue_named(self, name: str) -> Queue:
        """The queue called *name*, made up if nobody has told of it."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = Queue(name)
        return queue

    def queue_of(self, gang: Gang) -> Queue:
        """The queue that *gang* stands in."""
        return self.queue_named("" if gang.single else gang.queue_name or self._default_queue)

    def settle(self) -> None:
        """Bring sums and lists up to what touched gangs are now."""
        while self._unsettled:
            gang = self._unsettled.popitem()[1]
            self._recount(gang)
            is_new = gang.is_pending and gang.group is not None
            if gang.waiting or gang.at_queue or is_new:
                self.waiting[gang.key] = gang
            else:
                self.waiting.pop(gang.key, None)
            if gang.group is None and not gang.tasks:
                self.gangs.pop(gang.key, None)

    def has_news(self) -> bool:
        """Whether anything happened that a cycle could make something of."""
        news = bool(self._touched or self._stirred or self._unsettled)
        news, self._decided_at = news or self._decided_at != self.openings, self.openings
        return news

    def backlog(self) -> int:
        """How many tasks a cycle would try to place."""
        return sum(
            len(gang.waiting) + len(gang.at_queue)
            for gang in self.waiting.values()
            if gang.tried != (self.openings, gang.version)
        )

    def take_touched(self) -> list[Gang]:
        """Gangs that changed since the last call."""
        touched = list(self._touched.values())
        self._touched.clear()
        return touched

    def take_stirred(self) -> set[str]:
        """Queues whose allocation may have changed since the last call, ancestors included."""
        stirred: set[str] = set()
        for name in self._stirred:
            stirred.update(self._lineage(name))
        self._stirred.clear()
        return stirred

    def allocated_below(self, name: str) -> Amounts:
        """What tasks take in queue *name* and in all queues below it."""
        return total(
            queue.allocated for queue in self.queues.values() if name in self._lineage(queue.name)
        )

    # -- inside --------------------------------------------------------------------------------

    def _gang_of(self, pod: Pod) -> Gang | None:
        meta, name = pod.metadata, pod.spec.scheduler_name
        if name in self._single_names:
            return self._gang(f"{meta.namespace}/pod:{meta.uid}", single=True)
        group = meta.annotations.get(names.GROUP_NAME)
        if name in self._gang_names and group:
            return self._gang(f"{meta.namespace}/{group}")
        return None

    def _gang(self, key: str, *, single: bool = False) -> Gang:
        gang = self.gangs.get(key)
        if gang is None:
            gang = self.gangs[key] = Gang(key, single=single)
        return gang

    def _advance(self, gang: Gang, task: Task, pod: Pod) -> bool:
        """Follow a pod whose change moves no room and asks for nothing else: the usual one."""
        shape = self.shapes.of(pod.spec)
        if self._gang_of(pod) is not gang or shape is not task.shape:
            return False
        now = self._task(pod, shape)
        if task.slot < 0:
            if not now.asks_the_same(task):
                return False
            task.told = now.told
        elif task.node != now.node or not now.status.on_node:
            return False
        elif now.status is not task.status:
            gang.move(task, now.status)
            self.touch(gang)
        return True

    def _task(self, pod: Pod, shape: Shape) -> Task:
        return Task(pod, shape, lift=self._queue_gates)

    def _add_task(self, gang: Gang, task: Task) -> None:
        request = self._vector(task.shape)  # makes its resources known before the next cycle
        if task.node and task.status.on_node:
            task.slot = self.snapshot.charge(task.node, request)
        gang.add(task)
        self.claims.add(task)
        self._tasks[task.uid] = (gang, task)
        self.touch(gang)

    def _forget_pod(self, uid: str) -> None:
        other = self._others.pop(uid, None)
        if other is not None:
            self.snapshot.refund(other[0], self._vector(other[1]))
            self.openings += 1
        held = self._tasks.pop(uid, None)
        if held is None:
            return
        gang, task = held
        self.claims.remove(task)
        if task.slot >= 0:
            self.snapshot.refund(task.slot, self._vector(task.shape))
            self.openings += 1
        gang.remove(task)
        self.touch(gang)

    def _vector(self, shape: Shape) -> IntVector:
        return shape.vector(self.snapshot.dimensions)

    def touch(self, gang: Gang) -> None:
        """Note that something about *gang* has changed."""
        self._touched[gang.key] = gang
        self._unsettled[gang.key] = gang

    def _recount(self, gang: Gang) -> None:
        """Replace what *gang* counted for in its queue by what it counts for now."""
        before = self._counted.pop(gang.key, None)
        if before is not None:
            self._add_up(self.queue_named(before[0]), before[1], -1)
            self.queue_named(before[0]).gangs.discard(gang.key)
        gone = gang.group is None and not gang.tasks
        queue = self.queue_of(gang)
        if not gone:
            gang.priority = self._priority(gang)
            counts = (gang.allocated.copy(), gang.requested.copy(), *_claims(gang))
            self._counted[gang.key] = (queue.name, counts)
            self._add_up(queue, counts, 1)
            queue.gangs.add(gang.key)
        then = (before[0], before[1][0]) if before else ("", {})
        now = ("", {}) if gone else (queue.name, gang.allocated)
        if then != now:
            self._stirred.update({then[0], now[0]} - {""})

    @staticmethod
    def _add_up(queue: Queue, counts: tuple[Amounts, ...], sign: int) -> None:
        sums = (queue.allocated, queue.requested, queue.reserved, queue.elastic)
        for into, what in zip(sums, counts, strict=True):
            add(into, what, sign)

    def _priority(self, gang: Gang) -> int:
        if gang.single:
            return max((task.priority for task in gang.tasks.values()), default=0)
        named = gang.group.spec.priority_class_name if gang.group else ""
        if named in self._classes:
            return self._classes[named].value
        return next((each.value for each in self._classes.values() if each.global_default), 0)

    def _lineage(self, name: str) -> list[str]:
        """*name* and its ancestors; a cycle ends where it closes."""
        found: list[str] = []
        while name and name not in found:
            found.append(name)
            queue = self.queues.get(name)
            parent = queue.object.spec.parent if queue and queue.object else ""
            name = parent or (names.ROOT_QUEUE if name != names.ROOT_QUEUE else "")
        return found


def _is_older(task: Task, pod: Pod) -> bool:
    """Whether *pod* is as it was before our placement of *task*."""
    unplaced = not pod.spec.node_name and not pod.metadata.deletion_timestamp
    return task.status is TaskStatus.BINDING and unplaced


def _claims(gang: Gang) -> tuple[Amounts, Amounts]:
    """What an admitted *gang* still needs to reach its minimum, and has beyond it."""
    started = gang.tally.allocated >= gang.min_member
    holds = gang.phase == PodGroupPhase.INQUEUE or (gang.phase == PodGroupPhase.RUNNING and started)
    gang.min_request = _without_gated(gang)
    reserved = beyond(gang.min_request, gang.allocated) if holds else {}
    elastic = beyond(gang.allocated, gang.min_resources) if gang.min_resources else {}
    return reserved, elastic


def _without_gated(gang: Gang) -> Amounts:
    return beyond(gang.min_resources, gang.gated) if gang.gated else gang.min_resources
