"""A slow scheduler from the specification: one pod at a time, in plain Python, without state.

:func:`decide` takes all objects of a cluster and returns what one cycle does with them. It has no
equivalence classes, no batches, no memory of earlier cycles and no undo: each attempt works on
a copy. The product must return the same.

Two rules are documented decisions and not Volcano's: pods of a gang that needs all its pending pods
are allocated class by class, and ties between nodes go to the first name.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from support.scheduler_oracle.nodes import NodeState, Scorer, best_node, feasible_nodes
from support.scheduler_oracle.objects import (
    Amounts,
    Config,
    GangFacts,
    Objects,
    PodFacts,
    add,
    gangs_of,
    lacks,
    total,
)
from support.scheduler_oracle.queues import (
    QueueFacts,
    QueueLimits,
    capacity_limits,
    no_limits,
    proportion_limits,
)
from support.scheduler_oracle.topology import allowed, domains_of, in_order


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a cycle does."""

    enqueued: tuple[str, ...]
    """Keys of the gangs that are admitted, in order."""

    placements: dict[str, str]
    """Node by uid of the pod, in order."""


@dataclass(slots=True)
class _Attempt:
    """What is left to try of a gang in this cycle."""

    gang: GangFacts
    pods: list[PodFacts]


class _Cycle:
    """One cycle."""

    def __init__(self, objects: Objects, config: Config, guide: Mapping[str, str]) -> None:
        self.config = config
        self.guide = guide
        self.held = objects.held
        self.gangs = gangs_of(objects, config)
        self.nodes = {
            node.metadata.name: NodeState(node)
            for node in sorted(objects.nodes, key=lambda node: node.metadata.name)
        }
        for pod in objects.pods:
            node = self.nodes.get(objects.node_of(pod))
            if node is not None and objects.uses_node(pod):
                node.add(PodFacts(pod))
        self.total: Amounts = {}
        for node in self.nodes.values():
            add(self.total, node.allocatable)
        self.queues = {
            each.metadata.name: QueueFacts(each)
            for each in sorted(objects.queues, key=lambda each: each.metadata.name)
        }
        for gang in self.gangs.values():
            if gang.queue in self.queues:
                self.queues[gang.queue].gangs.append(gang)
        self.limits = self._limits()
        self.scorers = [Scorer(name, config.arguments[name]) for name in config.scorers]
        overcommit = config.arguments.get("overcommit")
        self.idle = self._overcommitted_idle(overcommit) if overcommit is not None else None
        self.domains = domains_of(objects.hypernodes, self.nodes)
        self.is_network_known = bool(objects.hypernodes)
        self.where = {
            pod.metadata.uid: objects.node_of(pod)
            for pod in objects.pods
            if objects.uses_node(pod) and not pod.metadata.deletion_timestamp
        }
        self.enqueued: list[str] = []
        self.placements: dict[str, str] = {}

    def _limits(self) -> QueueLimits:
        names = [name for name in ("proportion", "capacity") if name in self.config.plugins]
        if not names:
            return no_limits()
        compute = proportion_limits if names == ["proportion"] else capacity_limits
        return compute(list(self.queues.values()), self.total)

    # -- order ---------------------------------------------------------------------------------

    def job_order(self, gang: GangFacts) -> tuple[object, ...]:
        """Sort key of *gang*: the plugins in order, then age and key."""
        keys: list[float] = []
        for name in self.config.plugins:
            if name == "priority":
                keys.append(-gang.priority)
            elif name == "gang":
                keys.append(gang.is_ready())
            elif name == "drf":
                shares = (gang.allocated.get(r, 0) / units for r, units in self.total.items())
                keys.append(max(shares, default=0.0))
        return (*keys, gang.created, gang.key)

    def queue_order(self, name: str) -> tuple[object, ...]:
        """Sort key of queue *name*: priority, share, age, name."""
        queue = self.queues.get(name)
        if queue is None:
            return (*((0, 0.0) if self.limits.ordered else ()), "", name)
        order = self.limits.order(queue) if self.limits.ordered else ()
        return (*order, queue.created, name)

    def _by_queue(self, gangs: Iterator[GangFacts]) -> dict[str, list[GangFacts]]:
        found: dict[str, list[GangFacts]] = {}
        for gang in gangs:
            found.setdefault(gang.queue, []).append(gang)
        return found

    # -- incomplete gangs ----------------------------------------------------------------------

    def complete(self) -> None:
        """Allocate what gangs lack of which pods have a node: first those that never were complete,
        the oldest first. What does not fit is held for them, on the nodes of the guide."""
        gangs = [gang for gang in self.gangs.values() if gang.is_incomplete()]
        gangs.sort(key=lambda gang: (gang.was_complete(), gang.created, gang.key))
        for gang in gangs:
            self._hold(gang, self.held)
        for gang in gangs:
            if not gang.is_valid():
                continue
            if gang.awaits_admission():
                self._admit(gang)
            pods = gang.grouped(gang.ordered_pending(self.config))
            is_complete = self._allocate_minimum(gang, pods)
            self._hold(gang, self.held if is_complete else self.guide)

    def _hold(self, gang: GangFacts, nodes: Mapping[str, str]) -> None:
        """Hold resources for pending pods of *gang* on *nodes*, by uid, and nowhere else."""
        for node in self.nodes.values():
            pods = (pod for uid, pod in gang.pending.items() if nodes.get(uid) == node.name)
            node.held[gang.key] = total(pod.request for pod in pods)

    # -- enqueue -------------------------------------------------------------------------------

    def enqueue(self) -> None:
        """Admit gangs in rounds, one gang of each queue per round."""
        waiting = self._by_queue(gang for gang in self.gangs.values() if gang.awaits_admission())
        for gangs in waiting.values():
            gangs.sort(key=self.job_order)
        order = sorted(waiting, key=self.queue_order)
        while any(waiting.values()):
            for name in order:
                if waiting[name]:
                    self._enqueue_one(waiting[name].pop(0))

    def _overcommitted_idle(self, arguments: Mapping[str, object]) -> dict[str, int]:
        given = arguments.get("overcommit-factor", 1.2)
        factor = float(given) if isinstance(given, int | float) and given >= 1 else 1.2
        idle = {name: int(units * factor) for name, units in self.total.items()}
        for node in self.nodes.values():
            add(idle, node.used, -1)
        for gang in self.gangs.values():
            add(idle, gang.reserved(), -1)
        return idle

    def _enqueue_one(self, gang: GangFacts) -> None:
        queue = self.queues.get(gang.queue)
        if queue is None or not queue.is_open:
            return
        if gang.min_resources and self.config.has_enqueue:
            minimum = gang.min_request()
            if self.idle is not None and lacks(minimum, self.idle):
                return
            if not self.limits.admits(queue, minimum):
                return
        self._admit(gang)

    def _admit(self, gang: GangFacts) -> None:
        if self.idle is not None:
            add(self.idle, gang.min_request(), -1)
        gang.phase = "Inqueue"
        self.enqueued.append(gang.key)

    # -- allocate ------------------------------------------------------------------------------

    def allocate(self) -> None:
        """Pop the first queue, then its first gang, until nothing is left to try."""
        if not self.config.has_enqueue:
            self.enqueue()
        attempts = {
            gang.key: _Attempt(gang, self._to_allocate(gang))
            for gang in self.gangs.values()
            if gang.phase_admitted() and gang.requesting_pending() and gang.is_valid()
        }
        waiting = self._by_queue(attempts[key].gang for key in attempts)
        while waiting:
            name = min(waiting, key=self.queue_order)
            queue = self.queues.get(name)
            if not waiting[name] or (queue is not None and self.limits.overused(queue)):
                del waiting[name]
                continue
            gang = min(waiting[name], key=self.job_order)
            waiting[name].remove(gang)
            if self._try(attempts[gang.key]):
                waiting[name].append(gang)

    def _to_allocate(self, gang: GangFacts) -> list[PodFacts]:
        """Return the pods to try: best-effort pods only if the gang needs them to be ready."""
        pods = gang.ordered_pending(self.config)
        return [pod for pod in pods if not (gang.is_ready() and pod.is_best_effort)]

    def _try(self, attempt: _Attempt) -> bool:
        """Allocate the minimum, or one more pod; return whether to try again."""
        gang = attempt.gang
        if gang.is_ready():
            self._allocate_next(attempt)
            return bool(attempt.pods)
        pods = gang.grouped(attempt.pods)
        if not self._allocate_minimum(gang, pods):
            return False
        attempt.pods = [
            pod for pod in attempt.pods if pod.uid not in self.placements and not pod.is_best_effort
        ]
        return bool(attempt.pods)

    def _allocate_next(self, attempt: _Attempt) -> None:
        """Allocate the first pod that is left; drop its role if it does not fit."""
        pod = attempt.pods.pop(0)
        if not self._allocate(attempt.gang, pod):
            attempt.pods = [each for each in attempt.pods if each.mark != pod.mark]

    def _allocate_minimum(self, gang: GangFacts, pods: Sequence[PodFacts]) -> bool:
        """Allocate pods until *gang* is ready, in one domain of the network if it requires that;
        undo all if it does not become so."""
        if gang.is_ready():
            return True
        return any(self._try_minimum(gang, pods, among) for among in self._options(gang, pods))

    def _options(
        self, gang: GangFacts, pods: Sequence[PodFacts]
    ) -> Iterator[Collection[str] | None]:
        """Yield the nodes that may be tried, in order; ``None`` for all."""
        known = {**self.where, **self.placements}
        used = {known[uid] for uid in gang.ready if uid in known}
        found = allowed(gang.podgroup, self.domains, used, is_known=self.is_network_known)
        if found is not None:
            domains, is_hard = found
            yield from in_order(domains, pods, self.nodes, self.config)
            if is_hard:
                return
        yield None

    def _try_minimum(
        self, gang: GangFacts, pods: Sequence[PodFacts], among: Collection[str] | None
    ) -> bool:
        failed: set[object] = set()
        chosen: list[PodFacts] = []
        for pod in pods:
            if gang.is_ready():
                break
            if pod.mark in failed:
                continue
            if self._allocate_among(gang, pod, among):
                chosen.append(pod)
            else:
                failed.add(pod.mark)
        if gang.is_ready():
            return True
        for pod in reversed(chosen):
            self._deallocate(gang, pod)
        return False

    def _allocate(self, gang: GangFacts, pod: PodFacts) -> bool:
        """Allocate one pod, close to the others of its gang if that requires it."""
        return any(
            self._allocate_among(gang, pod, among) for among in list(self._options(gang, [pod]))
        )

    def _allocate_among(
        self, gang: GangFacts, pod: PodFacts, among: Collection[str] | None
    ) -> bool:
        if not gang.single and not pod.is_best_effort and not self._allows(gang, pod):
            return False
        candidates = feasible_nodes(self.nodes.values(), pod, gang.key, self.config)
        candidates = [node for node in candidates if among is None or node.name in among]
        if not candidates:
            return False
        node = best_node(candidates, pod, self.scorers, self.guide.get(pod.uid, ""))
        node.add(pod)
        gang.allocate(pod)
        self.placements[pod.uid] = node.name
        return True

    def _allows(self, gang: GangFacts, pod: PodFacts) -> bool:
        queue = self.queues.get(gang.queue)
        return not self.limits.limited or (queue is not None and self.limits.allows(queue, pod))

    def _deallocate(self, gang: GangFacts, pod: PodFacts) -> None:
        self.nodes[self.placements.pop(pod.uid)].remove(pod)
        gang.deallocate(pod)

    # -- backfill ------------------------------------------------------------------------------

    def backfill(self) -> None:
        """Allocate best-effort pods of gangs that need no other pod to be ready."""
        gangs = [
            gang
            for gang in self.gangs.values()
            if gang.phase_admitted()
            and gang.best_effort_pending()
            and (gang.is_ready() or not gang.requesting_pending())
        ]
        for gang in sorted(gangs, key=self.job_order):
            if gang.is_valid():
                self._backfill(gang)

    def _backfill(self, gang: GangFacts) -> None:
        pods = [pod for pod in gang.ordered_pending(self.config) if pod.is_best_effort]
        if not gang.is_ready() and not self._allocate_minimum(gang, gang.grouped(pods)):
            return
        failed: set[object] = set()
        for pod in pods:
            if pod.uid in self.placements or pod.mark in failed:
                continue
            if not self._allocate(gang, pod):
                failed.add(pod.mark)


def decide(objects: Objects, config: Config, guide: Mapping[str, str] | None = None) -> Outcome:
    """Return what a cycle does with *objects*.

    *guide* has the node that another scheduler chose for a pod, or holds for it, by uid; it decides
    between nodes whose scores differ by rounding alone, and where resources are held.
    """
    cycle = _Cycle(objects, config, guide or {})
    cycle.complete()
    for action in config.actions:
        getattr(cycle, action)()
    return Outcome(tuple(cycle.enqueued), cycle.placements)
