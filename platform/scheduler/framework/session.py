"""The session of one scheduling cycle: what actions read, and how they decide.

The actions run in order, and each sees the effects of those before it. A session does no I/O, reads
no clock and uses no randomness, so the same cache always leads to the same decision.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import numpy as np

from ..plugins.extension_points import Rejection, VictimTasksPlugin
from ..plugins.placement import Placement
from ..state.cache.cache import SchedulerCache
from ..state.gangs.diagnosis import Diagnosis, NodeFit, Stage
from ..state.gangs.gang import Gang, QueueInfo, SubGroup, Task
from ..state.planning.reservations import Purpose, Reservation
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.podinfo.volumes import NO_VOLUMES
from ..state.queue.admission_rounds import AdmissionRounds
from ..state.queue.scheduling_queue import (
    ANY,
    CYCLE,
    OWN,
    QUEUES,
    TOTAL,
    USAGE,
    ClusterEvent,
    QueueingHints,
    UnschedulableGroup,
    queue_gained,
)
from ..state.resources import MAX_AMOUNT, BoolVector, IntVector
from .backfilling.start_plan import StartPlan
from .candidate import Candidate
from .decision import Eviction, Nomination, UngatedPod
from .explain import explain
from .feasibility import pod_masks
from .framework import Framework
from .gang_domains import EVERYWHERE, GangDomains, Option
from .placer import NodeLimit, Placer
from .placer_cache import PlacerCache
from .plugin_calls import PLUGIN_ERROR, PluginCalls, PluginError
from .plugin_decisions import PluginDecisions, SortKey
from .pod_aware_placer import PodAwarePlacer
from .queueing_hints import ANY_NODE_CHANGE, queueing_hints_of
from .rejected_gang import RejectedGang
from .reservation_order import may_take
from .reserved_placements import ReservedPlacements
from .session_caches import SessionCaches
from .starving_gangs import StarvingGangs
from .statement import Operation, Statement, undo_operation
from .unfit_tasks import ClassCapacity, UnfitTasks
from .victims import VictimVotes

ANY_EVENT = QueueingHints(frozenset({ANY}))
OWN_CHANGES = QueueingHints(OWN)


class Session(PluginDecisions):
    """The scheduler cache and the plugins, for the actions of one cycle."""

    _option = EVERYWHERE
    """The nodes that may be chosen now."""
    is_restricted = False
    """Whether only some nodes may be chosen now."""
    _spare: NodeLimit | None = None

    def __init__(
        self,
        cache: SchedulerCache,
        framework: Framework,
        caches: SessionCaches,
        reserved: ReservedPlacements,
        *,
        has_enqueue_action: bool,
        interrupted: Callable[[], bool],
    ) -> None:
        """Open the session: each plugin computes what it needs from *cache*.

        Placements that plugins are to know of are added to *reserved*.
        *has_enqueue_action* is whether the ``enqueue`` action is configured; without it,
        ``allocate`` admits gangs. If *interrupted* returns true, actions leave the rest to the next
        cycle.
        """
        self.cache = cache
        self.has_enqueue_action = has_enqueue_action
        self.placements: list[Placement] = []
        self.enqueued: list[Gang] = []
        self.evicted: list[Task] = []
        """Tasks that were evicted by a committed statement."""
        self.evictions: list[Eviction] = []
        self.nominations: dict[str, Nomination] = {}
        """Nominations that differ from the status of the pod, by its uid."""
        self.ungated: list[UngatedPod] = []
        self.ungated_gangs: list[Gang] = []
        self.scheduled = 0
        self.rejected = 0
        self._caches = caches
        self._reserved = reserved
        self._feasibility = caches.feasibility
        self._interrupted = interrupted
        self.is_stopped = False
        """Whether gangs that were to be admitted or allocated are left to the next cycle."""
        self._decisions = 0
        self._decisions_before = 0  # the current action
        self.starving = StarvingGangs(self, interrupted)
        self._rejections: dict[str, RejectedGang] = {}
        self._following: dict[Hashable, Iterator[Gang]] = {}
        """The gangs still to be tried of groups of which one was rejected alone, by demand."""
        self._pod_aware_placers: dict[EquivalenceClass, PodAwarePlacer] = {}
        self._to_retry: set[str] = set()  # keys of gangs to be tried again without an event
        self._explanations: dict[EquivalenceClass, tuple[int, NodeFit]] = {}
        self._option_placers: dict[EquivalenceClass, PodAwarePlacer] = {}
        self._spare_placers: dict[EquivalenceClass, Placer | PodAwarePlacer] = {}
        self._placer_errors: dict[EquivalenceClass, PluginError] = {}
        calls = PluginCalls(framework.plugin_names)
        cache.node_matrix.add_missing_rows()
        for plugin in framework.session_open:
            calls.open(plugin, partial(plugin.on_session_open, cache))
        super().__init__(framework, calls)
        self.votes = VictimVotes(framework, calls, self)
        self._pending_holds: list[Callable[[], object]] = []
        caches.check_generations()
        cache.scheduling_queue.wake_published()
        cache.scheduling_queue.starving.drop_needless_retry()
        self._placers = PlacerCache(cache.node_matrix) if calls.has_failed else caches.placers
        self._pipelined: list[Operation] = []

    @property
    def victim_task_plugins(self) -> Sequence[VictimTasksPlugin]:
        """The plugins that name tasks to be evicted for no gang."""
        return self.calls.opened(self._framework.victim_tasks)

    @property
    def start_plan(self) -> StartPlan:
        """The planned starts, which are kept across sessions."""
        return self._caches.start_plan

    # -- placement -----------------------------------------------------------------------------

    def placer(self, eq_class: EquivalenceClass) -> Placer | PodAwarePlacer:
        """Return the placer of *eq_class*, created on first use.

        Raises:
            PluginError: a filter or limit raised.
        """
        if self.is_restricted:
            return self._option_placer(eq_class)
        if self._spare is not None:
            return self._spare_placer(eq_class, self._spare)
        pod_aware = self._pod_aware_placers.get(eq_class)
        if pod_aware is not None:
            return pod_aware
        placer = self._placers.get(eq_class, self.calls.record)
        if placer is not None and not eq_class.sees_pods:
            return placer
        if eq_class in self._placer_errors:
            raise self._placer_errors[eq_class].with_traceback(None)
        try:
            placer = placer or self._new_placer(eq_class)
            if eq_class.sees_pods:
                pod_aware = self._new_pod_aware_placer(eq_class, placer)
        except PluginError as error:
            self._placer_errors[eq_class] = error
            raise
        self._placers.add(eq_class, placer)
        if pod_aware is None:
            return placer
        self._pod_aware_placers[eq_class] = pod_aware
        return pod_aware

    def domains_of(self, gang: Gang, sub_group: SubGroup | None = None) -> GangDomains | None:
        """Return the domains of the network into which the pods of *gang*, or those of *sub_group*,
        may go; ``None`` if it has no constraint, or nothing is known about the network."""
        constraint = gang.topology if sub_group is None else sub_group.policy.topology
        if constraint is None:
            return None
        table = self.cache.domains.table(constraint.label)
        if not table.is_known and not constraint.label:
            return None
        members = gang if sub_group is None else sub_group
        score = self._framework.score_domains
        return GangDomains(table, members, constraint, self.cache.node_matrix, score)

    def capacities(self, eq_class: EquivalenceClass) -> IntVector:
        """Return how many more pods of *eq_class* fit on each node that may be chosen now, apart
        from other pods.

        Raises:
            PluginError: a filter or limit raised.
        """
        capacities, allowed = self.placer(eq_class).capacities(), self._option.allowed
        return capacities if allowed is None else np.where(allowed, capacities, 0)

    def total_request(self, tasks: Sequence[Task]) -> IntVector:
        """Return what *tasks* request together."""
        index = self.cache.node_matrix.resource_index
        total = np.zeros(len(index), np.int64)
        for eq_class, count in Counter(task.eq_class for task in tasks).items():
            request = eq_class.request_vector(index)
            total[: len(request)] += request * count
        return total

    @property
    def max_eviction_domains(self) -> int:
        """In how many domains pods may be evicted for one gang, at most."""
        return self._framework.max_eviction_domains

    @contextmanager
    def within(self, option: Option) -> Iterator[None]:
        """Let the block use the nodes of *option* alone, of those that may be used now."""
        if option.allowed is None:
            yield
            return
        before = self._option, self._option_placers
        if self._option.allowed is not None:
            option = replace(option, allowed=option.allowed & self._option.allowed)
        self._option, self._option_placers, self.is_restricted = option, {}, True
        try:
            yield
        finally:
            self._option, self._option_placers = before
            self.is_restricted = self._option.allowed is not None

    def _option_placer(self, eq_class: EquivalenceClass) -> PodAwarePlacer:
        known, option = self._option_placers.get(eq_class), self._option
        if known is None:
            self.is_restricted = False
            try:
                found = self.placer(eq_class)
            finally:
                self.is_restricted = True
            placer = found.base if isinstance(found, PodAwarePlacer) else found
            is_normalized = eq_class.sees_pods or placer.is_normalized
            if placer.is_normalized:
                # Its scores are normalized over all nodes, and only some may be chosen.
                limits = () if self._spare is None else (self._spare,)
                placer = self._new_placer(eq_class, *limits, normalized=False)
            known = self._new_pod_aware_placer(
                eq_class, placer, allowed=option.allowed, normalized=is_normalized
            )
            self._option_placers[eq_class] = known
        return known

    @contextmanager
    def limited_to(self, limit: NodeLimit) -> Iterator[None]:
        """Let the block allocate no more pods on a node than *limit* permits, too."""
        self._spare = limit
        try:
            yield
        finally:
            self._spare = None
            self._spare_placers.clear()

    def _spare_placer(
        self, eq_class: EquivalenceClass, limit: NodeLimit
    ) -> Placer | PodAwarePlacer:
        known = self._spare_placers.get(eq_class)
        if known is None:
            known = self._new_placer(eq_class, limit)
            if eq_class.sees_pods:
                known = self._new_pod_aware_placer(eq_class, known)
            self._spare_placers[eq_class] = known
        return known

    def _new_placer(
        self, eq_class: EquivalenceClass, *limits: NodeLimit, normalized: bool = True
    ) -> Placer:
        framework, calls = self._framework, self.calls
        calls.require_open((*framework.filters, *framework.node_limits))
        normalized_scorers = calls.opened(framework.normalized_scorers)
        return Placer(
            self.cache.node_matrix,
            eq_class,
            self._feasibility.get(eq_class),
            limits=(*framework.node_limits, *limits),
            scorers=calls.opened(framework.scorers),
            static_scorers=calls.opened(framework.static_scorers),
            # Other pods exclude candidates, so the scores are not normalized without them.
            normalized_scorers=normalized_scorers if normalized and not eq_class.sees_pods else (),
            on_score_error=calls.record,
        )

    def _new_pod_aware_placer(
        self,
        eq_class: EquivalenceClass,
        placer: Placer,
        *,
        allowed: BoolVector | None = None,
        normalized: bool = True,
    ) -> PodAwarePlacer:
        framework, calls = self._framework, self.calls
        sees_pods = eq_class.sees_pods
        if sees_pods:
            calls.require_open(framework.pod_filters)
        return PodAwarePlacer(
            self.cache.node_matrix,
            eq_class,
            placer,
            filters=framework.pod_filters if sees_pods else (),
            scorers=calls.opened(framework.pod_scorers) if sees_pods else (),
            normalized_scorers=calls.opened(framework.normalized_scorers) if normalized else (),
            on_score_error=calls.record,
            allowed=allowed,
        )

    def feasible(self, eq_class: EquivalenceClass) -> BoolVector:
        """Return which nodes the filters permit for *eq_class*, of those that may be chosen; not to
        be changed.

        Raises:
            PluginError: a filter raised.
        """
        self.calls.require_open(self._framework.filters)
        feasible = self._feasibility.get(eq_class).feasible
        return feasible if self._option.allowed is None else feasible & self._option.allowed

    def rejected_by_pods(self, eq_class: EquivalenceClass) -> BoolVector:
        """Return which nodes are infeasible for *eq_class* by the pods that are on nodes now.

        Raises:
            PluginError: a filter raised.
        """
        node_matrix = self.cache.node_matrix
        rejected = np.zeros(node_matrix.columns, np.bool_)
        for plugin in self._framework.pod_filters:
            filters = partial(pod_masks, plugin.pod_filters, eq_class, node_matrix)
            for mask in self.calls.call(plugin, "pod_filters", filters):
                rejected |= mask
        return rejected

    def node_limit(self, eq_class: EquivalenceClass) -> IntVector:
        """Return how many more pods of *eq_class* each node accepts, apart from amounts.

        Raises:
            PluginError: a limit raised.
        """
        node_matrix = self.cache.node_matrix
        limit = np.full(node_matrix.columns, MAX_AMOUNT, np.int64)
        for plugin in self._framework.node_limits:
            function = partial(plugin.node_limit, eq_class, node_matrix, None)
            own = self.calls.call(plugin, "node_limit", function)
            if own is not None:
                np.minimum(limit, own, out=limit)
        return limit

    def lend(self, gang: Gang) -> AbstractContextManager[object]:
        """Return the context in which *gang* may use what is held for it, and what it may take."""
        reservations = self.cache.reservations
        if not reservations:
            return nullcontext()
        taken = [each.gang.key for each in reservations if self.may_take(gang, each)]
        return reservations.lent((gang.key, *taken))

    def kept_nodes(self, gang: Gang) -> Option | None:
        """Return the nodes that are kept for *gang*; ``None`` if there are none."""
        held = self.cache.reservations.get(gang.key)
        if held is None or held.purpose is not Purpose.KEPT:
            return None
        allowed = np.zeros(self.cache.node_matrix.columns, np.bool_)
        allowed[[each.node_index for each in held.holds.values()]] = True
        return Option(allowed)

    def may_take(self, gang: Gang, reservation: Reservation) -> bool:
        """Return whether *gang* may use what is held by *reservation* for an incomplete gang."""
        return may_take(self.cache, self.queue_order, gang, reservation)

    def reserve(self, gang: Gang, nodes: Mapping[str, int], *, until: float) -> None:
        """Hold resources of *nodes* (by uid of the task) for *gang* from the end of the session on.

        The tasks wait for them by a committed statement, which holds them until then.
        """
        reservations = self.cache.reservations
        reservations.drop(gang.key)
        self._pending_holds.append(
            partial(reservations.hold, gang, nodes, until=until, purpose=Purpose.PREEMPTION)
        )

    def nominate(self, task: Task, node: str) -> None:
        """Set the nominated node of pending *task*; empty for none."""
        self.nominations.pop(task.uid, None)
        if task.nominated_node != node:
            self.nominations[task.uid] = Nomination(task.namespace, task.name, task.uid, node)

    def claim_rejection(self, task: Task) -> str:
        """Return which PVC or claim of devices blocks *task* and why; empty if none does."""
        classes = self.cache.pod_classes
        return classes.pvcs.blocking_reason(task) or classes.device_claims.blocking_reason(task)

    def explain(self, eq_class: EquivalenceClass) -> NodeFit:
        """Return why no node fits another pod of *eq_class*."""
        if self._option.allowed is not None:
            return NodeFit(f"the nodes of {self._option.name} have too little capacity")
        position = self.cache.node_matrix.usage_changes.position
        known = self._explanations.get(eq_class)
        if known is None or known[0] != position:
            fit = self._explain(eq_class)
            known = self._explanations[eq_class] = (position, fit)
        return known[1]

    def _explain(self, eq_class: EquivalenceClass) -> NodeFit:
        framework, placer = self._framework, self.placer(eq_class)
        pod_filters = framework.pod_filters if eq_class.sees_pods else ()
        # Which nodes other pods exclude depends on where the fitting pods are.
        fitting = placer.allocate(placer.planned) if isinstance(placer, PodAwarePlacer) else []
        try:
            return explain(
                self.cache.node_matrix,
                self._feasibility,
                eq_class,
                limits=framework.node_limits,
                pod_filters=pod_filters,
            )
        finally:
            placer.rollback(fitting)

    def statement(self, gang: Gang) -> Statement:
        """Return a new statement for *gang*."""
        return Statement(self, gang, self.cache.queues.of(gang))

    # -- gangs to be tried ---------------------------------------------------------------------

    def candidates(
        self, is_wanted: Callable[[Gang], bool], *, rejected: bool = False
    ) -> list[Candidate]:
        """Return the gangs to be tried that are wanted and not rejected in this session.

        With *rejected*, also those that were rejected.

        Of a group of gangs with equal demand only the first; if it is scheduled,
        :meth:`next_candidate` returns the next one.
        """
        waiting = self.cache.scheduling_queue
        found = [
            Candidate(gang)
            for gang in waiting.active.values()
            if (rejected or not self.is_rejected(gang)) and is_wanted(gang)
        ]
        for group in list(waiting.woken.values()):
            self.sort(group)
            gang = group.first()[1]
            if (rejected or not self.is_rejected(gang)) and is_wanted(gang):
                found.append(Candidate(gang, group))
        return found

    def next_candidate(self, candidate: Candidate) -> Candidate | None:
        """Return the next gang with the demand of *candidate*, if that one was scheduled, or was
        rejected alone."""
        group = candidate.group
        if not group:
            return None
        rejected = self._rejections.get(candidate.gang.key)
        if rejected is not None and rejected.is_alone and group.demand not in self._following:
            self._following[group.demand] = iter(group.gangs)
        elif group.demand not in self._following:
            following = group.first()[1]
            is_next = following is not candidate.gang and not self.is_rejected(following)
            return Candidate(following, group) if is_next else None
        elif rejected is not None and not rejected.is_alone:
            return None
        for following in self._following[group.demand]:
            if following.unschedulable_group is group and not self.is_rejected(following):
                return Candidate(following, group)
        return None

    def is_group_rejected(self, candidate: Candidate) -> bool:
        """Return whether *candidate* was rejected in this session, for a reason that holds for all
        gangs with equal demand."""
        known = self._rejections.get(candidate.gang.key)
        return known is not None and not known.is_alone

    def sort(self, group: UnschedulableGroup) -> None:
        """Put the gangs of *group* in order."""
        group.sort(self.order_of, self._caches.order_version)

    def skip_hopeless(self, candidate: Candidate) -> bool:
        """Return whether *candidate* would be rejected again, since others have taken what it was
        woken for; then it stays unschedulable."""
        group = candidate.group
        if group is None or not group.is_woken_by_nodes:
            return False
        if not self._caches.lacks_capacity(group.hints, self.scheduled):
            return False
        self.cache.scheduling_queue.woken.pop(group.demand, None)
        return True

    def is_rejected(self, gang: Gang) -> bool:
        """Return whether *gang* was rejected in this session."""
        known = self._rejections.get(gang.key)
        return known is not None and known.is_rejected

    def order_of(self, gang: Gang) -> SortKey:
        """Return the sort key of *gang* that is kept while it waits."""
        return self.job_order(gang)

    def update_rounds(self) -> AdmissionRounds:
        """Return the rounds in which gangs are admitted; they are not updated before the next
        call."""
        self.cache.admission_rounds.update(self.order_of, self._caches.order_version)
        return self.cache.admission_rounds

    def can_skip(self, gang: Gang) -> bool:
        """Return whether *gang* was rejected and no relevant event has been applied since."""
        return self.is_rejected(gang) or not self.cache.scheduling_queue.is_to_be_tried(gang)

    def starving_gangs(self) -> list[Gang]:
        """Return the gangs that were tried and rejected in this session."""
        return [each.gang for each in self._rejections.values() if each.is_rejected]

    def start_action(self) -> None:
        """Let another action try one gang at least."""
        self._decisions_before = self._decisions

    def count_decision(self) -> None:
        """Count a gang that the current action has tried."""
        self._decisions += 1

    def is_time_over(self) -> bool:
        """Return whether the current action is to leave the rest to the next cycle, which it may
        not do before it has tried one gang."""
        return self._decisions > self._decisions_before and self._interrupted()

    def should_stop(self) -> bool:
        """Return :meth:`is_time_over`; if it is, gangs that were not tried stay in the queue."""
        is_over = self.is_time_over()
        self.is_stopped |= is_over
        return is_over

    def commit(self, gang: Gang, statement: Statement) -> None:
        """Commit *statement*: assume its placements.

        Raises:
            PluginError: a plugin could not reserve what they need; nothing is committed.
        """
        placements = statement.placements()
        self._reserved.reserve(self._framework, self.calls, placements)
        committed = statement.commit()
        gang.diagnosis = None
        self.scheduled += 1
        self.count_decision()
        self.cache.scheduling_queue.activate(gang)
        with_claims: list[Task] = []
        for change in committed.allocated:
            self.cache.assume(change.gang, change.tasks)
            if change.eq_class.volumes is not NO_VOLUMES or change.eq_class.devices:
                with_claims += change.tasks
        if with_claims:
            placements = self._with_claims(placements, with_claims)
        self.placements += placements
        for task in committed.evicted:
            self.cache.assume_evicted(task)
            if task.gang is not None:
                task.gang.evicted_at = self.cache.cycle_time
        self.evicted += committed.evicted
        self._pipelined += committed.pipelined
        if gang.is_ready() and self.kept_nodes(gang) is not None:
            self.cache.reservations.drop(gang.key)
        self.cache.refresh()

    def _with_claims(
        self, placements: Sequence[Placement], tasks: Sequence[Task]
    ) -> list[Placement]:
        """Return *placements* with what claims of *tasks* get, volumes and devices, and assume
        it."""
        volumes = {task.uid: self.cache.assume_volumes(task) for task in tasks}
        devices = {task.uid: self.cache.assume_devices(task) for task in tasks}
        return [
            replace(each, volumes=volumes[each.uid], devices=devices[each.uid])
            if volumes.get(each.uid) or devices.get(each.uid)
            else each
            for each in placements
        ]

    @property
    def pipelined(self) -> list[tuple[Task, int]]:
        """The tasks that wait for resources by a committed statement, with their nodes."""
        return [
            pair
            for each in self._pipelined
            for pair in zip(each.change.tasks, each.change.node_indexes, strict=True)
        ]

    def close(self) -> None:
        """End the session: tasks that wait for resources are pending again."""
        while self._pipelined:
            operation = self._pipelined.pop()
            self.revert_listeners(operation.change, allocated=False)
            undo_operation(self.cache, operation)
            self.cache.changes.mark(operation.change.gang)  # its tasks are pending again
        for hold in self._pending_holds:
            hold()
        self.cache.refresh()
        self._add_rejected_gangs()
        for plugin in self._framework.session_close:
            try:
                self.calls.call(plugin, "on_session_close", plugin.on_session_close)
            except PluginError as error:
                self.calls.record(error)

    # -- results -------------------------------------------------------------------------------

    def enqueue(self, gang: Gang) -> None:
        """Admit *gang* to its queue, or reject it if a plugin that counts admitted gangs raises."""
        try:
            for tier in self._framework.job_enqueueable:
                for plugin in tier:
                    self.calls.call(plugin, "job_enqueued", partial(plugin.job_enqueued, gang))
        except PluginError as error:
            self.reject_failed(gang, error)
            return
        gang.diagnosis = None
        self.count_decision()
        self.cache.mark_enqueued(gang)
        self.enqueued.append(gang)

    def remove_gates(self, gang: Gang, tasks: list[Task]) -> None:
        """Remove the queue gate of *tasks* of *gang*."""
        gang.diagnosis = None
        self.count_decision()
        self.cache.scheduling_queue.activate(gang)
        self.cache.mark_ungated(gang, tasks)
        self.ungated += [UngatedPod(task.namespace, task.name, task.uid) for task in tasks]
        self.ungated_gangs.append(gang)

    def reject_failed(self, gang: Gang, error: PluginError) -> None:
        """Record that *gang* is unschedulable because a plugin raised."""
        self.reject_for(gang, self.calls.record(error))

    def reject_for(self, gang: Gang, rejection: Rejection, demand: Hashable = None) -> None:
        """Record *rejection* of *gang*; with *demand*, of all gangs with equal demand."""
        hints = QueueingHints(
            self._events(gang, rejection),
            demand=demand if rejection.shared else None,
            limit_need=rejection.limit_need,
        )
        self.reject(gang, rejection.diagnosis(), hints, retry_at=rejection.retry_at)

    def withhold(self, gang: Gang, rejection: Rejection) -> None:
        """Record that *gang* fits, but does not get its nodes because of *rejection*."""
        hints = QueueingHints(self._events(gang, rejection))
        diagnosis = replace(rejection.diagnosis(), fits=True)
        self.reject(gang, diagnosis, hints, retry_at=rejection.retry_at)
        self.confine_rejection(gang)

    def _events(self, gang: Gang, rejection: Rejection) -> frozenset[ClusterEvent]:
        """Return what may end *rejection*."""
        if rejection.wake_on is not None:
            return rejection.wake_on
        if rejection.stage in (Stage.GANG, Stage.POD):
            return OWN
        if rejection.stage is Stage.QUEUE:
            return self.limit_events(self.cache.queues.of(gang))
        return frozenset({ANY})

    def limit_events(self, queue: QueueInfo) -> frozenset[ClusterEvent]:
        """Return what may raise the limits of *queue*."""
        path = self.cache.queues.with_ancestors(queue.name)
        return frozenset({QUEUES, TOTAL, *map(queue_gained, path)})

    def reject(
        self,
        gang: Gang,
        diagnosis: Diagnosis,
        hints: QueueingHints | UnfitTasks = ANY_EVENT,
        *,
        retry_at: float | None = None,
    ) -> None:
        """Record why *gang*, or what is left of it, is unschedulable.

        It is skipped until something happens that it waits for, unless a plugin raised: no event
        marks the end of that.
        """
        if diagnosis.reason == PLUGIN_ERROR:
            self._to_retry.add(gang.key)
        self.wait(gang, hints, retry_at=retry_at)
        self._rejections[gang.key].is_rejected = True
        self.rejected += 1
        if gang.diagnosis != diagnosis:
            gang.diagnosis = diagnosis
            self.cache.changes.mark(gang)

    # -- waiting -------------------------------------------------------------------------------

    def retry(self, gang: Gang) -> None:
        """Let *gang*, which has lost what was held for it, be tried again in the next cycle.

        It may not have been tried in this one, and actions that would try it have run.
        """
        if gang.key in self.cache.pending_gangs:
            self._to_retry.add(gang.key)
            self.cache.scheduling_queue.activate(gang)
            self.cache.changes.mark(gang)

    def confine_rejection(self, gang: Gang) -> None:
        """Let the rejection of *gang* not hold for the other gangs with equal demand."""
        self._rejections[gang.key].is_alone = True

    def wait(
        self,
        gang: Gang,
        hints: QueueingHints | UnfitTasks = OWN_CHANGES,
        *,
        retry_at: float | None = None,
    ) -> None:
        """Skip *gang* until something happens that it waits for, or has waited for before in this
        session."""
        self.count_decision()
        known = self._rejections.get(gang.key)
        if known is None:
            known = self._rejections[gang.key] = RejectedGang(gang, gang.version)
        known.scheduled = self.scheduled
        if retry_at is not None:
            known.retry_at = min(retry_at, known.retry_at or retry_at)
        known.add(hints)

    def _add_rejected_gangs(self) -> None:
        """Add the rejected gangs to the unschedulable ones. If the session was stopped, gangs that
        it has not tried are tried in the next one."""
        waiting, capacity = self.cache.scheduling_queue, self._caches.capacity
        if not self.is_stopped:
            waiting.woken.clear()
            if waiting.is_awaited(CYCLE):
                waiting.publish(CYCLE)
        self._caches.wake(own_usage=self.scheduled > 0)
        waiting.note_holds(has_holds=self.cache.node_matrix.has_pipelined, events=ANY_NODE_CHANGE)
        for each in self._rejections.values():
            if each.gang.key not in self.cache.pending_gangs:
                continue
            if each.gang.key in self._to_retry:
                self._retry(each.gang)
            elif each.version == each.gang.version:
                self._add_rejected(each)
        if not self.is_stopped:
            for gang in list(waiting.active.values()):
                # Limits for gates depend on more than is published: those gangs stay active.
                if gang.key not in self._to_retry and not gang.gated_by_queue:
                    self._add_unschedulable(gang, OWN_CHANGES, None)
        capacity.keep(waiting.needed_classes())
        self.starving.keep_untried()
        unfinished = self.is_stopped or waiting.starving.has_untried
        self.cache.changes.mark_cycle_end(unfinished=unfinished)

    def _retry(self, gang: Gang) -> None:
        """Let *gang*, which was rejected, be tried in the next cycle. If this cycle was stopped,
        the gang is tried after all others: it would be the first again each time, and others would
        never be tried."""
        if self.is_stopped:
            self._add_unschedulable(gang, QueueingHints(frozenset({CYCLE})), None)
        else:
            self.cache.scheduling_queue.activate(gang)

    def _add_rejected(self, rejected: RejectedGang) -> None:
        if rejected.gang.gated_by_queue:
            self.cache.scheduling_queue.activate(rejected.gang)
            return
        hints = self._hints_of(rejected)
        self._add_unschedulable(rejected.gang, hints, rejected.retry_at)
        for need in hints.needs:
            self._caches.capacity.set_capacity(need.eq_class, need.capacity)
        if USAGE in hints.events and rejected.scheduled != self.scheduled:
            self.cache.scheduling_queue.publish(USAGE)  # pods were allocated after the attempt

    def _hints_of(self, rejected: RejectedGang) -> QueueingHints:
        gang, found = rejected.gang, rejected.hints
        if rejected.unfit is not None:
            queue = self.cache.queues.of(gang)
            found = [*found, queueing_hints_of(gang, queue.name, rejected.unfit, self._capacity_of)]
        hints = found[0]
        for other in found[1:]:
            hints = hints | other
        if self.cache.node_matrix.has_pipelined and hints.needs:
            # Reserved amounts count for some gangs and not for others.
            hints = hints | QueueingHints(ANY_NODE_CHANGE)
        return hints

    def _capacity_of(self, eq_class: EquivalenceClass, unfit: UnfitTasks) -> ClassCapacity | None:
        known = unfit.capacities.get(eq_class)
        placer = self._placers.peek(eq_class)
        if placer is None or eq_class.sees_pods:
            return known
        try:
            return ClassCapacity(placer.capacity(), not placer.limited)
        except PluginError as error:
            self.calls.record(error)
            return known

    def _add_unschedulable(self, gang: Gang, hints: QueueingHints, retry_at: float | None) -> None:
        cache = self.cache
        for plugin in self._framework.retry_times:
            try:
                at = self.calls.call(plugin, "retry_at", partial(plugin.retry_at, gang))
            except PluginError as error:
                self.calls.record(error)
                continue
            if at is not None:
                retry_at = at if retry_at is None else min(at, retry_at)
        cache.scheduling_queue.add_unschedulable(
            gang,
            hints,
            self.order_of(gang),
            order_version=self._caches.order_version,
            now=cache.cycle_time,
            retry_at=retry_at,
        )
