"""Trying to place a gang: placements that undo themselves unless they are kept."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import TracebackType
from typing import Protocol, Self

from ..plugins.extension_points import NOT_ENOUGH_RESOURCES, Refusal
from ..state.equivalence import Shape
from ..state.gangs import Finding, Gang, Misfit, Queue, Task, add
from .placer import Placer


class Ground(Protocol):
    """What a trial stands on: the cycle."""

    def placer(self, shape: Shape) -> Placer:
        """The placer of *shape* in this cycle."""
        ...

    def room(self, queue: Queue, shape: Shape) -> int:
        """How many more pods of *shape* the queue may hold."""
        ...

    def limit(self, queue: Queue, shape: Shape) -> Refusal | None:
        """Why the queue holds no more pods of *shape*, if that is so."""
        ...

    def blocked(self, task: Task) -> str:
        """Why no node may take *task* yet; empty if one may."""
        ...

    def explain(self, shape: Shape) -> str:
        """Why no node takes another pod of *shape*."""
        ...


class Need:
    """What a gang lacks to be ready, counted down as tasks are placed."""

    def __init__(self, gang: Gang) -> None:
        """Count what is missing of the minima of *gang*."""
        self.total = max(gang.min_member - gang.tally.ready, 0)
        self.roles: dict[str, int] = {}
        for role, minimum in gang.role_minima.items():
            if minimum > gang.role_tally(role).ready:
                self.roles[role] = minimum - gang.role_tally(role).ready

    @property
    def met(self) -> bool:
        """Whether the gang would be ready."""
        return not self.total and not self.roles

    def of(self, role: str, there: int) -> int:
        """How many of *there* tasks of *role* to place until the gang is ready."""
        own = self.roles.get(role, 0)
        others = len(self.roles) - (role in self.roles)
        return there if others else min(max(self.total, own), there)

    def took(self, role: str, count: int) -> None:
        """*count* tasks of *role* have been placed."""
        self.total = max(self.total - count, 0)
        left = self.roles.pop(role, 0) - count
        if left > 0:
            self.roles[role] = left

    def reachable(self, rest: Sequence[Task]) -> bool:
        """Whether *rest* has enough tasks of each role, and altogether."""
        by_role: dict[str, int] = {}
        for task in rest:
            by_role[task.role] = by_role.get(task.role, 0) + 1
        return len(rest) >= self.total and all(
            by_role.get(role, 0) >= count for role, count in self.roles.items()
        )


@dataclass(slots=True)
class Batch:
    """Tasks of one shape, and the columns that were charged for them."""

    shape: Shape
    tasks: list[Task]
    slots: list[int]


class Trial:
    """One try to place tasks of one gang. A context manager: what is not kept is undone."""

    def __init__(self, ground: Ground, gang: Gang, queue: Queue) -> None:
        """Nothing is placed yet."""
        self.misfits: dict[str, Misfit] = {}
        self._out: set[str | Shape] = set()
        self._blocked: set[str] = set()
        self._ground = ground
        self._gang = gang
        self._queue = queue
        self._batches: list[Batch] = []
        self._fitting: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo()

    @property
    def placed(self) -> Iterator[tuple[Task, int]]:
        """Tasks that found a place, and its column."""
        for batch in self._batches:
            yield from zip(batch.tasks, batch.slots, strict=True)

    def fill(self, tasks: Sequence[Task], need: Need) -> None:
        """Place tasks in order until *need* is met, or cannot be met any more."""
        tasks = self._unblocked(tasks)
        if self._blocked and not need.reachable(tasks):
            return
        order = _gathered(tasks) if need.total >= len(tasks) else tasks
        done = 0
        for shape, run in _runs(order):
            done += len(run)
            if need.met:
                return
            if self.is_out(run[0]):
                continue
            if not self._place(shape, run, need, rest=order[done:]):
                return

    def extend(self, tasks: Sequence[Task], at_most: int) -> int:
        """Place up to *at_most* further tasks of a gang that is ready; returns how many."""
        placed = 0
        for shape, run in _runs(self._unblocked(tasks)):
            if placed == at_most:
                break
            if not self.is_out(run[0]):
                run = run[: at_most - placed]
                possible = self._possible(shape, run)
                self._put(shape, run[:possible])
                placed += possible
        return placed

    def is_out(self, task: Task) -> bool:
        """Whether *task* is blocked, or one like it, by role or else by shape, found no place."""
        return task.uid in self._blocked or (task.role or task.shape) in self._out

    def keep(self) -> list[tuple[Task, int]]:
        """Let the placements stand; whoever keeps them counts them in the gang and the queue."""
        kept = list(self.placed)
        self._uncount()
        self._batches = []
        return kept

    def undo(self) -> None:
        """Take everything back, to the last bit."""
        self._uncount()
        for batch in self._batches:
            self._ground.placer(batch.shape).give_back(batch.slots)
        self._batches = []

    def finding(self) -> Finding:
        """What the trial has shown; to be asked before it is undone."""
        fitting = frozenset(task.uid for task, _ in self.placed).union(self._fitting)
        return Finding(NOT_ENOUGH_RESOURCES, "", dict(self.misfits), fitting)

    # -- inside --------------------------------------------------------------------------------

    def _place(self, shape: Shape, run: list[Task], need: Need, rest: Sequence[Task]) -> bool:
        """Place what is needed of *run*; say no, and place nothing, if the gang is lost."""
        wanted = run[: need.of(run[0].role, len(run))]
        possible = self._possible(shape, wanted)
        need.took(run[0].role, possible)
        if possible < len(wanted) and not need.reachable(self._left(rest)):
            self._fitting = [task.uid for task in wanted[:possible]]
            return False
        self._put(shape, wanted[:possible])
        return True

    def _possible(self, shape: Shape, tasks: Sequence[Task]) -> int:
        """How many of *tasks* queue and nodes have room for; notes the first that is left over."""
        allowed = len(tasks)
        if not self._gang.single and not shape.best_effort:
            allowed = min(allowed, self._ground.room(self._queue, shape))
        room = self._ground.placer(shape).room()
        possible = min(allowed, room)
        if possible < len(tasks):
            # Asked as if those before it had their place: what is left is then too little for it.
            add(self._queue.allocated, shape.request, possible)
            self._misfit(shape, tasks[possible], limited=allowed < room)
            add(self._queue.allocated, shape.request, -possible)
        return possible

    def _put(self, shape: Shape, tasks: list[Task]) -> None:
        if tasks:
            slots = self._ground.placer(shape).place(len(tasks))
            self._batches.append(Batch(shape, tasks, slots))
            add(self._queue.allocated, shape.request, len(slots))

    def _misfit(self, shape: Shape, task: Task, *, limited: bool) -> None:
        refusal = self._ground.limit(self._queue, shape) if limited else None
        message = refusal.message if refusal else self._ground.explain(shape)
        self._out.add(task.role or task.shape)
        self.misfits.setdefault(task.role, Misfit(task.name, task.uid, message))

    def _unblocked(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Those of *tasks* that some node may take; of the others the first says why."""
        if not any(task.claims for task in tasks):
            return tasks
        free = []
        for task in tasks:
            if why := self._ground.blocked(task):
                self._blocked.add(task.uid)
                self.misfits.setdefault(task.role, Misfit(task.name, task.uid, why))
            else:
                free.append(task)
        return free

    def _left(self, rest: Sequence[Task]) -> list[Task]:
        return [task for task in rest if not self.is_out(task)]

    def _uncount(self) -> None:
        for batch in self._batches:
            add(self._queue.allocated, batch.shape.request, -len(batch.slots))


def _gathered(tasks: Sequence[Task]) -> list[Task]:
    """The same tasks, those of one shape and role side by side.

    When all are needed their order decides nothing, and like ones are placed in one go.
    """
    groups: dict[tuple[Shape, str], list[Task]] = {}
    for task in tasks:
        groups.setdefault((task.shape, task.role), []).append(task)
    return [task for group in groups.values() for task in group]


def _runs(tasks: Sequence[Task]) -> Iterator[tuple[Shape, list[Task]]]:
    for (shape, _), run in groupby(tasks, key=lambda task: (task.shape, task.role)):
        yield shape, list(run)
