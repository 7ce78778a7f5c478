"""Runs scheduling cycles: a session per cycle, the configured actions, an immutable decision."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

from .actions.registry import ENQUEUE, NamedAction
from .framework.decision import (
    Decision,
    GangRef,
    GangStats,
    QueueAllocation,
    QueueStats,
    SchedulerStats,
)
from .framework.feasibility import FeasibilityCache
from .framework.framework import Framework
from .framework.podgroup_status import build_report
from .framework.session import Session
from .state.cache import SchedulerCache
from .state.gangs import Gang

ActionTimer = Callable[[str], AbstractContextManager[object]]
"""Returns the context manager in which the action of that name runs, to measure it."""


def _no_timer(action: str) -> AbstractContextManager[object]:
    return nullcontext(action)


class CycleRunner:
    """Runs cycles on one scheduler cache, keeping the feasibility masks between them."""

    def __init__(
        self, cache: SchedulerCache, framework: Framework, actions: Iterable[NamedAction]
    ) -> None:
        """Run *actions* in order in each cycle, with the plugins of *framework*."""
        self.action_timer: ActionTimer = _no_timer
        self._cache = cache
        self._framework = framework
        self._feasibility = FeasibilityCache(cache.node_matrix, framework.filters)
        self._actions = list(actions)
        self._unschedulable: dict[str, GangStats] = {}

    def configure(self, framework: Framework, actions: Iterable[NamedAction]) -> None:
        """Use other plugins and actions from the next cycle on."""
        self._framework = framework
        self._feasibility = FeasibilityCache(self._cache.node_matrix, framework.filters)
        self._actions = list(actions)

    def run_once(self, *, now: float, busy: bool = False) -> Decision:
        """Run one cycle: the actions, then the reports of gangs that changed.

        *now* is a reading of a monotonic clock. *busy* is true if the cluster changes at
        a high rate, so that members of a new gang may arrive slowly.
        """
        with self._cache.cycle():
            session = self._run_actions()
            changed_gangs = self._cache.pop_changed_gangs()
            for gang in changed_gangs:
                _refresh_diagnosis(session, gang)
            return Decision(
                placements=tuple(session.placements),
                enqueued=tuple(GangRef(gang.key, gang.podgroup) for gang in session.enqueued),
                ungated=tuple(session.ungated),
                reports=tuple(build_report(gang, now=now, busy=busy) for gang in changed_gangs),
                queue_allocations=tuple(self._queue_allocations()),
                scheduled=session.scheduled,
                rejected=session.rejected,
                plugin_failures=session.calls.failures(),
                stats=self._stats((*changed_gangs, *session.ungated_gangs)),
            )

    def open_session(self) -> Session:
        """Return a new session; to be closed."""
        self._cache.refresh()
        has_enqueue_action = any(name == ENQUEUE for name, _ in self._actions)
        return Session(
            self._cache,
            self._framework,
            self._feasibility,
            has_enqueue_action=has_enqueue_action,
        )

    def _run_actions(self) -> Session:
        session = self.open_session()
        for name, action in self._actions:
            with self.action_timer(name):
                action(session)
        session.close()
        self._cache.refresh()
        return session

    def _queue_allocations(self) -> Iterable[QueueAllocation]:
        for name in self._cache.pop_changed_queues():
            queue = self._cache.queues.get(name)
            if queue is not None and queue.object is not None:
                yield QueueAllocation(queue.object, self._cache.subtree_allocated(name))

    def _stats(self, changed_gangs: Iterable[Gang]) -> SchedulerStats:
        for gang in changed_gangs:
            if gang.diagnosis is not None and gang.pending_tasks:
                self._unschedulable[gang.key] = GangStats(gang.name, len(gang.pending_tasks))
            else:
                self._unschedulable.pop(gang.key, None)
        return SchedulerStats(
            queues=tuple(
                QueueStats(
                    queue.name,
                    queue.object.spec.weight,
                    allocated=dict(queue.allocated),
                    requested=dict(queue.requested),
                    inqueue=dict(queue.reserved),
                )
                for queue in self._cache.queues.values()
                if queue.object is not None
            ),
            unschedulable=tuple(self._unschedulable.values()),
        )


def _refresh_diagnosis(session: Session, gang: Gang) -> None:
    """Update the diagnosis of a gang that has no pending task.

    If it lost members for good, that is why it is not ready; a terminating gang has no diagnosis.
    """
    if gang.pending_tasks or gang.gated_by_queue or gang.is_pending:
        return
    gang.diagnosis = None
    if gang.tasks and not gang.is_ready() and not gang.is_terminating():
        rejection = session.job_valid(gang)
        gang.diagnosis = rejection.diagnosis() if rejection else None
