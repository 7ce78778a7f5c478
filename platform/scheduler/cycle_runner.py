"""Runs scheduling cycles: a session per cycle, the configured actions, an immutable decision."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from .actions.registry import ENQUEUE, EVICTING, SHUFFLE, NamedAction
from .framework.backfilling.start_plan import StartPlan
from .framework.decision import (
    Decision,
    GangStats,
    QueueAllocation,
    QueueStats,
    SchedulerStats,
    StartDelay,
)
from .framework.framework import Framework
from .framework.gang_domains import lowest_domain
from .framework.overcommitted_nodes import OvercommittedNodes
from .framework.podgroup_status import PodGroupReport, build_report
from .framework.queue_positions import QueuePositions
from .framework.replanning import allocate_leaving, suits_node
from .framework.reservation_upkeep import (
    clear_nominations,
    drop_unbacked_reservations,
    update_reservations,
)
from .framework.reserved_placements import ReservedPlacements
from .framework.session import Session
from .framework.session_caches import SessionCaches
from .framework.stranded_gangs import DEFAULT_TIMEOUT, StrandedGangs
from .plugins.placement import GangRef
from .state.cache.cache import SchedulerCache
from .state.gangs.gang import Gang
from .state.resources import amounts

log = logging.getLogger(__name__)

ActionTimer = Callable[[str], AbstractContextManager[object]]
"""Returns the context manager in which the action of that name runs, to measure it."""


def _never() -> bool:
    return False


def _no_timer(action: str) -> AbstractContextManager[object]:
    return nullcontext(action)


class CycleRunner:
    """Runs cycles on one scheduler cache, keeping what is derived from it between them."""

    def __init__(
        self,
        cache: SchedulerCache,
        framework: Framework,
        actions: Iterable[NamedAction],
        *,
        stranded_timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        """Run *actions* in order in each cycle, with the plugins of *framework*.

        Members of a gang that was never complete are evicted after *stranded_timeout* seconds.
        """
        self._stranded = StrandedGangs(timeout=stranded_timeout)
        self._overcommitted = OvercommittedNodes()
        self.action_timer: ActionTimer = _no_timer
        self._cache = cache
        self.framework = framework
        self.caches = SessionCaches(cache, framework)
        self.reserved = ReservedPlacements()
        """What plugins have reserved for pods that are not bound yet."""
        self._declare(framework)
        self._set_actions(actions)
        self._positions = QueuePositions(cache)
        self._unschedulable: dict[str, GangStats] = {}
        self._queue_stats: dict[str, QueueStats] = {}
        self._queue_position = 0

    def configure(self, framework: Framework, actions: Iterable[NamedAction]) -> None:
        """Use other plugins and actions from the next cycle on; every gang is tried again.

        If they read other fields of pods, all pods are to be classified again before that
        (:class:`.DeclarationsChanged`).
        """
        self.framework = framework
        self._declare(framework)
        self.caches = SessionCaches(self._cache, framework)
        self._set_actions(actions)
        self._cache.changes.try_all()

    def has_plugin(self, name: str) -> bool:
        """Return whether the plugin *name* is configured."""
        return name in self.framework.plugin_names.values()

    @property
    def volume_bind_timeout(self) -> float:
        """Seconds within which volumes have to be bound once their pod has a node."""
        return self.framework.volume_bind_timeout

    @property
    def start_plan(self) -> StartPlan:
        """The start reservations after the last cycle."""
        return self.caches.start_plan

    def next_due(self) -> float | None:
        """Return when pods may have to be evicted for no gang, in Unix time."""
        if not any(name == SHUFFLE for name, _ in self._actions):
            return None
        due: list[float] = []
        for plugin in self.framework.victim_tasks:
            try:
                at = plugin.next_victims()
            except Exception:  # the plugin is asked for its tasks in the next cycle
                log.exception("scheduler plugin failed", extra={"extension_point": "next_victims"})
            else:
                due += [] if at is None else [at]
        return min(due, default=None)

    def _declare(self, framework: Framework) -> None:
        """Let the cache know what the plugins need of pods."""
        self._cache.pod_fields = framework.pod_fields
        self._cache.pod_classes.eq_classes.defaults.spread = framework.default_spread
        self._cache.domains.set_label_tiers(framework.label_tiers)
        self._cache.node_matrix.available_devices.timeout = framework.device_filter_timeout
        self._cache.planned.is_suspended = not framework.suits_members_without_pods()

    def _set_actions(self, actions: Iterable[NamedAction]) -> None:
        self._actions = list(actions)
        reaches = (EVICTING[name].value for name, _ in self._actions if name in EVICTING)
        self._cache.scheduling_queue.starving.set_actions(list(dict.fromkeys(reaches)))

    def tasks_to_try(self, *, time: float, at_most: int, now: float | None = None) -> int:
        """Return how many tasks the next cycle tries, or some number above *at_most*.

        A cycle that may evict pods counts all existing tasks, as it compares them. *time* is that
        of the next cycle, and *now* the monotonic time, by default the same.
        """
        self._prepare(time if now is None else now, time)
        waiting = self._cache.scheduling_queue
        total = waiting.to_try(at_most)
        if waiting.starving.has_untried or (total and waiting.starving.actions):
            total += len(self._cache.task_table)
        for gang in self._cache.scheduling_queue.active.values():
            if total > at_most:
                break
            total += self._cache.planned.members_to_add(gang)
        return total

    def run_once(
        self,
        *,
        now: float,
        time: float | None = None,
        busy: bool = False,
        interrupted: Callable[[], bool] | None = None,
        prepared: bool = False,
        positions: bool = True,
    ) -> Decision:
        """Run one cycle: the actions, then the reports of gangs that changed.

        *now* is a reading of a monotonic clock, *time* the Unix time, by default that of the last
        cycle or *now*. *busy* is true if the cluster changes at a high rate, so that members of
        a new gang may arrive slowly. If *interrupted* returns true, the rest is left to the next
        cycle. *prepared* is whether :meth:`tasks_to_try` was called for this cycle, and *positions*
        whether explanations contain the position in the queue.
        """
        with self._cache.cycle():
            if not prepared:
                self._prepare(now, max(now, self._cache.cycle_time) if time is None else time)
            session = self._run_actions(now, interrupted)
            changed_gangs = self._pop_changed_gangs()
            for gang in changed_gangs:
                _refresh_diagnosis(session, gang)
            position = partial(self._positions.position, session, now=now) if positions else None
            reports = tuple(
                self._report(gang, now, busy=busy, position=position) for gang in changed_gangs
            )
            self._cache.refresh()  # of the phases
            self._cache.past_usage.end_cycle()
            return Decision(
                placements=tuple(session.placements),
                evictions=tuple(session.evictions),
                nominations=tuple(session.nominations.values()),
                enqueued=tuple(GangRef(gang.key, gang.podgroup) for gang in session.enqueued),
                ungated=tuple(session.ungated),
                reports=reports,
                queue_allocations=tuple(self._queue_allocations()),
                scheduled=session.scheduled,
                rejected=session.rejected,
                plugin_failures=session.calls.failures(),
                retries=self._pop_retries(),
                predicted_runs=self._cache.run_times.pop_predicted_runs(),
                incomplete=tuple(self._stranded.evicted),
                delays=tuple(self._delays()),
                rechecks=self._rechecks(now),
                stats=self._stats((*changed_gangs, *session.ungated_gangs)),
            )

    def _report(
        self,
        gang: Gang,
        now: float,
        *,
        busy: bool,
        position: Callable[[Gang], tuple[int, int]] | None,
    ) -> PodGroupReport:
        """Return the report on *gang*, which sets its phase by its tasks."""
        phase = gang.phase
        report = build_report(
            gang,
            now=now,
            busy=busy,
            queue=self._cache.queues.of(gang),
            total=self._cache.node_matrix.total,
            position=position,
            plan=self._cache.planned.note(gang),
        )
        if gang.phase != phase:
            self._cache.changes.mark_stale(gang)
        if gang.topology is None or gang.topology.label:
            return report
        columns = self._cache.node_matrix.columns
        return report._replace(domain=lowest_domain(gang, self._cache.domains.table(), columns))

    def _delays(self) -> Iterator[StartDelay]:
        for key, cause, earlier, later in self.caches.start_plan.pop_delays(self._cache.cycle_time):
            gang = self._cache.gangs.get(key)
            if gang is not None:
                yield StartDelay(GangRef(key, gang.podgroup), cause, earlier, later)

    def _rechecks(self, now: float) -> dict[str, float]:
        starts = self.caches.start_plan.rechecks(self._cache.cycle_time)
        return starts | self._stranded.rechecks(now=now) | self._overcommitted.rechecks()

    def _prepare(self, now: float, time: float) -> None:
        """Find the gangs to be tried."""
        self._cache.cycle_time = time
        self._cache.past_usage.advance(now, time)
        self._cache.planned.update()
        self._cache.refresh()
        update_reservations(self._cache)
        self._cache.scheduling_queue.wake_due(time)
        self.caches.wake()
        self._cache.scheduling_queue.wake_published()
        self._cache.scheduling_queue.starving.start_due_retry(time)

    def _pop_retries(self) -> tuple[tuple[str, int], ...]:
        retries = tuple(self._cache.scheduling_queue.retries.items())
        self._cache.scheduling_queue.retries.clear()
        return retries

    def open_session(self, interrupted: Callable[[], bool] | None = None) -> Session:
        """Return a new session; to be closed."""
        self._cache.refresh()
        has_enqueue_action = any(name == ENQUEUE for name, _ in self._actions)
        return Session(
            self._cache,
            self.framework,
            self.caches,
            self.reserved,
            has_enqueue_action=has_enqueue_action,
            interrupted=interrupted or _never,
        )

    def _run_actions(self, now: float, interrupted: Callable[[], bool] | None) -> Session:
        session = self.open_session(interrupted)
        clear_nominations(session)
        self._overcommitted.run(session, now=now)
        allocate_leaving(session)
        self._stranded.run(session, now=now)
        self.caches.wake(own_usage=False)  # what was held may be free
        self._cache.scheduling_queue.wake_published()
        for name, action in self._actions:
            session.start_action()
            with self.action_timer(name):
                action(session)
        drop_unbacked_reservations(session)
        session.close()
        self._plan(session)
        self._cache.refresh()
        return session

    def _plan(self, session: Session) -> None:
        """Decide on the members that were tried, take members off nodes where they cannot stay, and
        add the members of gangs that were admitted.

        They are tried in the next cycle, by plugins that have counted them.
        """
        planned = self._cache.planned
        planned.decide(lambda gang: session.is_stopped and not session.can_skip(gang))
        planned.leave_nodes(partial(suits_node, session))
        for gang in session.enqueued:
            planned.begin(gang)

    def _pop_changed_gangs(self) -> list[Gang]:
        """Return the gangs to report on. Those whose members are still to be tried are reported
        later."""
        changed, planned = self._cache.changes.pop_gangs(), self._cache.planned
        for gang in planned.planning_gangs():
            self._cache.changes.mark(gang)
        return [gang for gang in changed if not planned.is_planning(gang.key)]

    def _queue_allocations(self) -> Iterable[QueueAllocation]:
        changed = self._cache.queues.pop_changed()
        for name, allocated in self._cache.queues.subtrees_allocated(changed).items():
            queue = self._cache.queues.by_name.get(name)
            if queue is not None and queue.object is not None:
                yield QueueAllocation(queue.object, allocated)

    def _stats(self, changed_gangs: Iterable[Gang]) -> SchedulerStats:
        for gang in changed_gangs:
            if gang.diagnosis is not None and gang.pending_tasks:
                self._unschedulable[gang.key] = GangStats(gang.name, len(gang.pending_tasks))
            else:
                self._unschedulable.pop(gang.key, None)
        self._update_queue_stats()
        past_usage = self._cache.past_usage
        return SchedulerStats(
            queues=tuple(self._queue_stats.values()),
            unschedulable=tuple(self._unschedulable.values()),
            stranded=self._stranded.count,
            past_usage=past_usage.snapshot if past_usage.is_recorded else None,
            budgets=past_usage.budgets.published if past_usage.is_recorded else (),
        )

    def _update_queue_stats(self) -> None:
        """Update the stats of the queues that changed."""
        log, queues = self._cache.queues.log, self._cache.queues.by_name
        changed = log.since(self._queue_position)
        self._queue_position = log.position
        for name in set(queues) | set(self._queue_stats) if changed is None else set(changed):
            queue = queues.get(name)
            if queue is None or queue.object is None:
                self._queue_stats.pop(name, None)
                continue
            self._queue_stats[name] = QueueStats(
                name,
                queue.object.spec.weight,
                allocated=dict(queue.allocated),
                requested=dict(queue.requested),
                inqueue=dict(queue.reserved),
                capability=amounts(limits) if (limits := queue.object.spec.capability) else {},
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
