"""One round of decisions over a cluster that stands still.

The actions run in order and see each other's work; what they decide is collected in a
:class:`PodActions` and carried out by others. Nothing in here waits, reads a clock or draws lots,
so the same cluster always leads to the same decision.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from ..actions.allocate import allocate
from ..actions.backfill import backfill
from ..actions.enqueue import enqueue
from ..plugins.extension_points import Rejection
from ..state.cache import SchedulerCache
from ..state.equivalence import EquivalenceClass
from ..state.gangs import Diagnosis, Gang, QueueInfo, Task, sorted_tasks
from ..state.resources import MAX_AMOUNT
from .explain import explain
from .feasibility import FeasibilityCache
from .framework import Framework
from .placer import Placer
from .statement import Statement

SortKey = tuple[float | str, ...]
ACTIONS = {"enqueue": enqueue, "allocate": allocate, "backfill": backfill}


@dataclass(frozen=True, slots=True)
class Placement:
    """A pod and the node that it shall run on."""

    namespace: str
    name: str
    uid: str
    node: str
    gang: str = ""
    """Key of its gang, if that has a PodGroup."""


@dataclass(slots=True)
class Decision:
    """What a cycle has decided."""

    placements: list[Placement] = field(default_factory=list)
    enqueued: list[Gang] = field(default_factory=list)
    """Gangs that have entered their queue."""

    changed_gangs: list[Gang] = field(default_factory=list)
    """Gangs whose status may have to be written."""

    ungated: list[Task] = field(default_factory=list)
    """Pods that lose the gate of their queue."""

    allocated_by_queue: Mapping[str, dict[str, int]] = field(default_factory=dict)
    """What is allocated in queues where that may have changed."""

    scheduled: int = 0
    """Tries that placed a gang, or more of it."""

    rejected: int = 0
    """Tries that left a gang, or some of it, waiting."""


ActionTimer = Callable[[str], AbstractContextManager[object]]
"""What an action is carried out in, by its name: somebody else's clock."""


def _no_timer(action: str) -> AbstractContextManager[object]:
    return nullcontext(action)


class Session:
    """The ground that actions stand on; to be used once."""

    def __init__(
        self,
        cache: SchedulerCache,
        framework: Framework,
        feasibility: FeasibilityCache,
        *,
        has_enqueue_action: bool,
    ) -> None:
        """Let plugins look at *cluster* as it is.

        *enqueues* says whether the ``enqueue`` action is configured; without it, ``allocate``
        admits gangs.
        """
        self.cache = cache
        self.has_enqueue_action = has_enqueue_action
        self.decision = Decision()
        self._framework = framework
        self._feasibility = feasibility
        self._placers: dict[EquivalenceClass, Placer] = {}
        self._explanations: dict[EquivalenceClass, tuple[int, str]] = {}
        cache.node_matrix.add_missing_rows()
        for plugin in framework.session_open:
            plugin.on_session_open(cache)

    # -- order ---------------------------------------------------------------------------------

    def job_order(self, gang: Gang) -> SortKey:
        """Where *gang* stands in its queue; the smallest goes first."""
        keys = [view.job_order(gang) for view in self._framework.job_order]
        return (*keys, gang.created, gang.key)

    def queue_order(self, queue: QueueInfo) -> SortKey:
        """Where *queue* stands among queues; the smallest goes first."""
        keys = [view.queue_order(queue) for view in self._framework.queue_order]
        created = queue.object.metadata.creation_timestamp if queue.object else ""
        return (*keys, created or "", queue.name)

    def tasks(self, gang: Gang, *, gated_by_queue: bool = False) -> list[Task]:
        """The tasks of *gang* that may be placed, in order; askers of nothing last.

        Or those that are to be let in by the queue.
        """
        plugins = self._framework.task_order
        tasks = (gang.gated_by_queue if gated_by_queue else gang.pending_tasks).values()
        return sorted_tasks(tasks, lambda task: tuple(view.task_order(task) for view in plugins))

    # -- limits --------------------------------------------------------------------------------

    def job_enqueueable(self, gang: Gang) -> Rejection | None:
        """Why *gang* may not enter its queue, or ``None`` if it may.

        A tier in which somebody agrees and nobody refuses decides for those after it.
        """
        for tier in self._framework.job_enqueueable:
            votes = [plugin.job_enqueueable(gang) for plugin in tier]
            for vote in votes:
                if isinstance(vote, Rejection):
                    return vote
            if any(votes):
                return None
        return None

    def enqueue(self, gang: Gang) -> None:
        """Let *gang* enter its queue."""
        for tier in self._framework.job_enqueueable:
            for plugin in tier:
                plugin.job_enqueued(gang)
        gang.diagnosis = None
        self.cache.mark_enqueued(gang)
        self.decision.enqueued.append(gang)

    def job_valid(self, gang: Gang) -> Rejection | None:
        """Why it makes no sense to try *gang*."""
        for plugin in self._framework.job_valid:
            rejection = plugin.job_valid(gang)
            if rejection:
                return rejection
        return None

    def overused(self, queue: QueueInfo) -> bool:
        """Whether *queue* gets no more in this cycle."""
        return any(plugin.overused(queue) for plugin in self._framework.overused)

    def allocatable_count(self, queue: QueueInfo, eq_class: EquivalenceClass) -> int:
        """How many more pods of *shape* the queue may hold."""
        return min(
            (each.allocatable_count(queue, eq_class) for each in self._framework.allocatable),
            default=MAX_AMOUNT,
        )

    def queue_rejection(self, queue: QueueInfo, eq_class: EquivalenceClass) -> Rejection | None:
        """Why *queue* holds no more pods of *shape*, if that is so."""
        for plugin in self._framework.allocatable:
            if plugin.allocatable_count(queue, eq_class) < 1:
                return plugin.queue_rejection(queue, eq_class)
        return None

    # -- placing -------------------------------------------------------------------------------

    def placer(self, eq_class: EquivalenceClass) -> Placer:
        """The placer of *shape*, made when first asked for."""
        placer = self._placers.get(eq_class)
        if placer is None:
            placer = self._placers[eq_class] = Placer(
                self.cache.node_matrix,
                eq_class,
                self._feasibility.get(eq_class),
                scorers=self._framework.scorers,
                static_scorers=self._framework.static_scorers,
            )
        return placer

    def pvc_rejection(self, task: Task) -> str:
        """Why no node may take *task* yet; empty if one may."""
        return self.cache.pvcs.blocking_reason(task)

    def explain(self, eq_class: EquivalenceClass) -> str:
        """Why no node takes another pod of *shape*."""
        position = self.cache.node_matrix.usage_changes.position
        known = self._explanations.get(eq_class)
        if known is None or known[0] != position:
            text = explain(self.cache.node_matrix, self._feasibility, eq_class)
            known = self._explanations[eq_class] = (position, text)
        return known[1]

    def statement(self, gang: Gang) -> Statement:
        """A try to place tasks of *gang*."""
        return Statement(self, gang, self.cache.queue_of(gang))

    def can_skip(self, gang: Gang) -> bool:
        """Whether *gang* was refused before and nothing has happened that could change that."""
        return gang.last_attempt == (self.cache.capacity_generation, gang.version)

    def commit(self, gang: Gang, statement: Statement) -> None:
        """Make the placements of *trial* final."""
        allocations = statement.commit()
        gang.diagnosis = None
        self.decision.scheduled += 1
        self.cache.assume(gang, allocations)
        key = "" if gang.single else gang.key
        self.decision.placements += [
            Placement(task.namespace, task.name, task.uid, task.node, key)
            for task, _ in allocations
        ]

    def remove_gates(self, gang: Gang, tasks: list[Task]) -> None:
        """Have *tasks* of *gang* lose the gate of their queue."""
        gang.diagnosis = None
        self.cache.mark_ungated(gang, tasks)
        self.decision.ungated += tasks

    def reject(self, gang: Gang, diagnosis: Diagnosis) -> None:
        """Remember why *gang*, or the rest of it, waits."""
        gang.last_attempt = (self.cache.capacity_generation, gang.version)
        self.decision.rejected += 1
        if gang.diagnosis != diagnosis:
            gang.diagnosis = diagnosis
            self.cache.mark_changed(gang)


class CycleRunner:
    """Decides for one cluster under one configuration, keeping masks between cycles."""

    def __init__(
        self, cache: SchedulerCache, framework: Framework, actions: tuple[str, ...]
    ) -> None:
        """Decide by *rules*, carrying out *actions* in order."""
        self.cache = cache
        self._framework = framework
        self._feasibility = FeasibilityCache(cache.node_matrix, framework.filters)
        self._actions = [(name, ACTIONS[name]) for name in actions]
        self.action_timer: ActionTimer = _no_timer

    def run_once(self) -> Decision:
        """Admit what may enter, place what fits, say why the rest waits."""
        cache = self.cache
        cache.refresh()
        has_enqueue_action = any(name == "enqueue" for name, _ in self._actions)
        session = Session(
            cache, self._framework, self._feasibility, has_enqueue_action=has_enqueue_action
        )
        for name, action in self._actions:
            with self.action_timer(name):
                action(session)
        cache.refresh()
        decision = session.decision
        decision.changed_gangs = cache.pop_changed_gangs()
        for gang in decision.changed_gangs:
            _refresh_diagnosis(session, gang)
        decision.allocated_by_queue = {
            name: cache.subtree_allocated(name) for name in cache.pop_changed_queues()
        }
        return decision


def _refresh_diagnosis(session: Session, gang: Gang) -> None:
    """Bring the finding about a gang up to date that has nothing left to place.

    If it lost members for good, that is the reason why it is not whole; if it is on its way out,
    there is nothing to say.
    """
    if gang.pending_tasks or gang.gated_by_queue or gang.is_pending:
        return
    gang.diagnosis = None
    if gang.tasks and not gang.is_ready() and not gang.is_terminating():
        rejection = session.job_valid(gang)
        gang.diagnosis = Diagnosis(rejection.reason, rejection.message) if rejection else None
