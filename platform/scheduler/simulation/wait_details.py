"""What a gang that waits competes with: what is free of what it requests, the gangs before it in
its queue, and those that hold what it lacks.

It is computed in a copy of the scheduler when it is asked for. So it costs the scheduler nothing
otherwise, and is written nowhere.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest

import numpy as np

from ...model.names import INSTANCE_TYPE
from ...model.scheduler_questions import (
    MAX_GROUPS,
    MAX_JOBS,
    FreeAmount,
    GangAhead,
    Holder,
    WaitDetails,
    WaitRequest,
)
from ..framework.expected_pods import ClassCount, expected_pods
from ..framework.plugin_calls import PluginError
from ..framework.session import Session
from ..plugins.nodegroup import GROUP_LABEL
from ..state.cache.resource_quotas import is_quota_only, quota_only_amounts
from ..state.gangs.diagnosis import Shortage, Stage
from ..state.gangs.gang import Gang
from ..state.gangs.native_gang import key_of
from ..state.resources import Amounts, BoolVector, IntVector, format_amount, to_resource_list
from .job_refs import job_of
from .trial import SchedulerCopy


def explain_wait(scheduler: SchedulerCopy, request: WaitRequest) -> WaitDetails | None:
    """Return what the gang of *request* competes with; ``None`` if no such gang waits."""
    cache = scheduler.cache
    cache.cycle_time = scheduler.time
    session = scheduler.runner.open_session()
    keys = (f"{request.namespace}/{request.podgroup}", key_of(request.namespace, request.podgroup))
    gang = next((cache.pending_gangs[key] for key in keys if key in cache.pending_gangs), None)
    return None if gang is None else _Competition(session, gang).details()


@dataclass(frozen=True, slots=True)
class _Lack:
    """What a gang lacks, and where."""

    resources: frozenset[str]
    queues: frozenset[str] | None = None
    """Whose gangs hold it; ``None`` for those of all queues."""
    namespace: str = ""
    """Whose gangs hold it; empty for those of all namespaces."""
    nodes: BoolVector | None = None
    """On which nodes; ``None`` for all."""


class _Competition:
    """What *gang* competes with, as one session sees it."""

    def __init__(self, session: Session, gang: Gang) -> None:
        self._session = session
        self._cache = session.cache
        self._gang = gang
        self._queue = self._cache.queues.of(gang)
        self._pods = self._needed_pods()
        self._asked: Amounts = Counter()
        for eq_class, count in self._pods:
            for name, units in eq_class.request.items():
                self._asked[name] += units * count
        self._asked.pop("pods", None)
        matrix = self._cache.node_matrix
        for name in self._asked:
            matrix.resource_index.row(name)
        matrix.add_missing_rows()  # nodes may have none of it
        self._usable = self._find_usable()

    def details(self) -> WaitDetails:
        """Return all of it."""
        order = sorted((self._session.job_order(each), each.key) for each in self._waiting())
        rank = 1 + bisect_left(order, (self._session.job_order(self._gang), self._gang.key))
        first = (self._cache.gangs[key] for _, key in order[: min(rank - 1, MAX_JOBS)])
        holders, more_holders = self._holders()
        return WaitDetails(
            position=rank,
            waiting=len(order),
            ahead=tuple(GangAhead(job_of(each), to_resource_list(_asked(each))) for each in first),
            free=(*self._free_in_queues(), *self._free_on_nodes()),
            holders=tuple(holders),
            more_holders=more_holders,
        )

    def _waiting(self) -> Iterator[Gang]:
        return (
            each
            for each in self._cache.pending_gangs.values()
            if self._cache.queues.of(each) is self._queue
        )

    def _needed_pods(self) -> Sequence[ClassCount]:
        """Return how many pods of which class the gang still needs to start."""
        gang = self._gang
        needed = max(gang.min_member - gang.counts.ready, 1)
        pending = [task.eq_class for task in self._session.tasks(gang)]
        if pending:
            return list(Counter(pending[:needed]).items())
        return expected_pods(self._cache, gang)

    # -- nodes ---------------------------------------------------------------------------------

    def _find_usable(self) -> BoolVector:
        """Return on which nodes a pod that does not fit may run as far as their resources do not
        count."""
        matrix = self._cache.node_matrix
        usable = matrix.alive.copy()
        eq_class = self._unfit_class()
        if eq_class is not None:
            try:
                usable &= self._session.feasible(self._pods[eq_class][0])
            except PluginError as error:
                self._session.calls.record(error)
        return usable

    def _unfit_class(self) -> int | None:
        """Return which class of the needed pods does not fit; the first if that is not known."""
        if not self._pods:
            return None
        diagnosis = self._gang.diagnosis
        unfit = {
            task.eq_class
            for error in (() if diagnosis is None else diagnosis.fit_errors.values())
            if (task := self._gang.tasks.get(error.uid)) is not None
        }
        return next((at for at, (each, _) in enumerate(self._pods) if each in unfit), 0)

    def _free_on_nodes(self) -> Iterator[FreeAmount]:
        matrix = self._cache.node_matrix
        available = np.maximum(matrix.available(), 0)
        groups = sorted(
            self._groups().items(), key=lambda item: (-int(self._usable[item[1]].sum()), item[0])
        )
        for name, members in groups[:MAX_GROUPS]:
            usable = members[self._usable[members]]
            for resource in sorted(self._asked):
                row = matrix.resource_index.row(resource)
                free = available[row, usable]
                yield FreeAmount(
                    resource=resource,
                    asked=format_amount(resource, self._asked[resource]),
                    free=format_amount(resource, int(free.sum())),
                    total=format_amount(resource, int(matrix.allocatable[row, usable].sum())),
                    group=name,
                    nodes=len(members),
                    usable=len(usable),
                    largest=format_amount(resource, int(free.max(initial=0))),
                )

    def _groups(self) -> Mapping[str, IntVector]:
        """Return the nodes by the group that the label of the plugin ``nodegroup`` names, or else
        by their instance type."""
        infos = self._cache.node_matrix.node_infos
        found: dict[str, list[int]] = {}
        for index in np.flatnonzero(self._cache.node_matrix.alive).tolist():
            info = infos[index]
            labels = {} if info is None else info.labels
            group = labels.get(GROUP_LABEL) or labels.get(INSTANCE_TYPE, "")
            found.setdefault(group, []).append(index)
        return {name: np.array(members, np.int64) for name, members in found.items()}

    # -- queues --------------------------------------------------------------------------------

    def _shortages(self) -> Sequence[Shortage]:
        """Return what limits leave too little of."""
        diagnosis = self._gang.diagnosis
        if diagnosis is None:
            return ()
        errors = diagnosis.fit_errors.values()
        own = next((each.shortages for each in errors if each.stage is Stage.QUOTA), ())
        return diagnosis.shortages or own

    def _free_in_queues(self) -> Iterator[FreeAmount]:
        """Yield what is left of the limits of queues that leave too little."""
        for each in self._shortages():
            if each.factor == 1 and not each.resource_quota:
                queue = each.queue or self._queue.name
                asked = self._asked.get(each.resource, each.requested)
                yield _in_queue(queue, each.resource, asked, each.used, each.limit)

    # -- holders -------------------------------------------------------------------------------

    def _lack(self) -> _Lack | None:
        shortages = self._shortages()
        if not shortages:
            return self._lack_of_nodes()
        resources = frozenset(each.resource for each in shortages)
        first = shortages[0]
        if first.factor != 1:
            return _Lack(resources)
        if first.resource_quota:
            return _Lack(resources, namespace=self._gang.namespace)
        limited = first.queue or self._queue.name
        queues = self._cache.queues
        below = {name for name in queues.by_name if limited in queues.with_ancestors(name)}
        return _Lack(resources, queues=frozenset(below))

    def _lack_of_nodes(self) -> _Lack | None:
        """Return what nodes lack on which a pod may run, if that is why it waits."""
        diagnosis = self._gang.diagnosis
        at = self._unfit_class()
        if at is None or (diagnosis is not None and diagnosis.stage is not Stage.NODES):
            return None
        matrix = self._cache.node_matrix
        available = matrix.available()
        request = self._pods[at][0].request
        short = (
            name
            for name, units in request.items()
            if (available[matrix.resource_index.row(name), self._usable] < units).any()
        )
        return _Lack(frozenset(short), nodes=self._usable)

    def _holders(self) -> tuple[list[Holder], int]:
        """Return the gangs whose end is expected first, and how many others there are."""
        lack = self._lack()
        if lack is None or not lack.resources:
            return [], 0
        cache = self._cache
        is_of_quota = bool(lack.namespace) and all(map(is_quota_only, lack.resources))
        found = []
        for gang, held in self._minimums(lack) if is_of_quota else self._held_on_nodes(lack):
            end = cache.run_times.expected_end(gang, cache.cycle_time)
            order = (math.inf if end is None else end, -held.get(min(lack.resources), 0), gang.key)
            found.append((order, gang, held, end))
        first = [
            Holder(
                job=job_of(gang),
                queue=cache.queues.of(gang).name,
                held=to_resource_list(held),
                nodes=_node_count(gang, lack),
                until=end,
                basis="" if end is None else str(cache.run_times.of(gang).basis),
            )
            for _, gang, held, end in nsmallest(MAX_JOBS, found, key=lambda each: each[0])
        ]
        return first, len(found) - len(first)

    def _held_on_nodes(self, lack: _Lack) -> Iterator[tuple[Gang, Amounts]]:
        """Yield the gangs that hold what is lacking, by what their pods on nodes request."""
        table = self._cache.task_table
        names = sorted(lack.resources)
        rows = [self._cache.node_matrix.resource_index.row(name) for name in names]
        slots = np.flatnonzero(table.node >= 0)
        if lack.nodes is not None:
            slots = slots[lack.nodes[table.node[slots]]]
        requests = table.requests(slots)[rows]  # which has rows for new names, too
        gang_ids, positions = np.unique(table.gang[slots], return_inverse=True)
        held = np.zeros((len(names), len(gang_ids)), np.int64)
        np.add.at(held.T, positions, requests.T)
        for at in np.flatnonzero(held.any(axis=0)).tolist():
            gang = table.gang_of(int(gang_ids[at]))
            if self._may_hold(gang, lack):
                amounts = zip(names, held[:, at].tolist(), strict=True)
                yield gang, Counter({name: units for name, units in amounts if units})

    def _minimums(self, lack: _Lack) -> Iterator[tuple[Gang, Amounts]]:
        """Yield the gangs with pods that use up what a quota alone limits, by what their minimum
        counts there: the limits of single pods are not known here."""
        for gang in self._cache.gangs.values():
            if gang.podgroup is None or not gang.counts.valid or not self._may_hold(gang, lack):
                continue
            counted = quota_only_amounts(gang.podgroup.spec.min_resources)
            held = {name: units for name, units in counted.items() if name in lack.resources}
            if any(held.values()):
                yield gang, Counter(held)

    def _may_hold(self, gang: Gang, lack: _Lack) -> bool:
        if gang is self._gang or lack.namespace not in ("", gang.namespace):
            return False
        return lack.queues is None or self._cache.queues.of(gang).name in lack.queues


def _node_count(gang: Gang, lack: _Lack) -> int:
    """Return on how many nodes *gang* has pods that hold what is lacking."""
    nodes = {task.table_node for task in gang.tasks.values() if task.table_node >= 0}
    return len(nodes if lack.nodes is None else [each for each in nodes if lack.nodes[each]])


def _asked(gang: Gang) -> Amounts:
    """Return what *gang* requests for its pods that have no node."""
    if not gang.pending_tasks:
        return {name: units for name, units in gang.min_resources.items() if name != "pods"}
    asked: Amounts = Counter()
    for task in gang.pending_tasks.values():
        asked.update(task.eq_class.request)
    asked.pop("pods", None)
    return asked


def _in_queue(queue: str, resource: str, asked: int, used: int, limit: int) -> FreeAmount:
    return FreeAmount(
        resource=resource,
        asked=format_amount(resource, asked),
        free=format_amount(resource, max(limit - used, 0)),
        total=format_amount(resource, limit),
        queue=queue,
    )
