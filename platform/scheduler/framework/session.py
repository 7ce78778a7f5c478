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
from ..plugins.extension_points import Refusal
from ..state.cache import Cluster
from ..state.equivalence import Shape
from ..state.gangs import Finding, Gang, Queue, Task, in_order
from ..state.resources import LARGEST
from .explain import explain
from .feasibility import Masks
from .framework import Rules
from .placer import Placer
from .statement import Trial

Rank = tuple[float | str, ...]
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
    admitted: list[Gang] = field(default_factory=list)
    """Gangs that have entered their queue."""

    gangs: list[Gang] = field(default_factory=list)
    """Gangs whose status may have to be written."""

    lifted: list[Task] = field(default_factory=list)
    """Pods that lose the gate of their queue."""

    queues: Mapping[str, dict[str, int]] = field(default_factory=dict)
    """What is allocated in queues where that may have changed."""

    scheduled: int = 0
    """Tries that placed a gang, or more of it."""

    refused: int = 0
    """Tries that left a gang, or some of it, waiting."""


Timed = Callable[[str], AbstractContextManager[object]]
"""What an action is carried out in, by its name: somebody else's clock."""


def _untimed(action: str) -> AbstractContextManager[object]:
    return nullcontext(action)


class Cycle:
    """The ground that actions stand on; to be used once."""

    def __init__(self, cluster: Cluster, rules: Rules, masks: Masks, *, enqueues: bool) -> None:
        """Let plugins look at *cluster* as it is.

        *enqueues* says whether the ``enqueue`` action is configured; without it, ``allocate``
        admits gangs.
        """
        self.cluster = cluster
        self.enqueues = enqueues
        self.decision = Decision()
        self._rules = rules
        self._masks = masks
        self._placers: dict[Shape, Placer] = {}
        self._explained: dict[Shape, tuple[int, str]] = {}
        cluster.snapshot.fit_rows()
        for plugin in rules.openers:
            plugin.open(cluster)

    # -- order ---------------------------------------------------------------------------------

    def rank(self, gang: Gang) -> Rank:
        """Where *gang* stands in its queue; the smallest goes first."""
        views = [view.rank(gang) for view in self._rules.gang_ranks]
        return (*views, gang.created, gang.key)

    def rank_queue(self, queue: Queue) -> Rank:
        """Where *queue* stands among queues; the smallest goes first."""
        views = [view.rank_queue(queue) for view in self._rules.queue_ranks]
        made = queue.object.metadata.creation_timestamp if queue.object else ""
        return (*views, made or "", queue.name)

    def tasks(self, gang: Gang, *, at_queue: bool = False) -> list[Task]:
        """The tasks of *gang* that may be placed, in order; askers of nothing last.

        Or those that are to be let in by the queue.
        """
        views = self._rules.task_ranks
        among = (gang.at_queue if at_queue else gang.waiting).values()
        return in_order(among, lambda task: tuple(view.rank_task(task) for view in views))

    # -- limits --------------------------------------------------------------------------------

    def admission(self, gang: Gang) -> Refusal | None:
        """Why *gang* may not enter its queue, or ``None`` if it may.

        A tier in which somebody agrees and nobody refuses decides for those after it.
        """
        for tier in self._rules.admission:
            votes = [plugin.admits(gang) for plugin in tier]
            for vote in votes:
                if isinstance(vote, Refusal):
                    return vote
            if any(votes):
                return None
        return None

    def admit(self, gang: Gang) -> None:
        """Let *gang* enter its queue."""
        for tier in self._rules.admission:
            for plugin in tier:
                plugin.admitted(gang)
        gang.finding = None
        self.cluster.enter(gang)
        self.decision.admitted.append(gang)

    def flaw(self, gang: Gang) -> Refusal | None:
        """Why it makes no sense to try *gang*."""
        for judge in self._rules.judges:
            refusal = judge.flaw(gang)
            if refusal:
                return refusal
        return None

    def overused(self, queue: Queue) -> bool:
        """Whether *queue* gets no more in this cycle."""
        return any(plugin.overused(queue) for plugin in self._rules.overuse)

    def room(self, queue: Queue, shape: Shape) -> int:
        """How many more pods of *shape* the queue may hold."""
        return min((each.room(queue, shape) for each in self._rules.limits), default=LARGEST)

    def limit(self, queue: Queue, shape: Shape) -> Refusal | None:
        """Why *queue* holds no more pods of *shape*, if that is so."""
        for plugin in self._rules.limits:
            if plugin.room(queue, shape) < 1:
                return plugin.limit(queue, shape)
        return None

    # -- placing -------------------------------------------------------------------------------

    def placer(self, shape: Shape) -> Placer:
        """The placer of *shape*, made when first asked for."""
        placer = self._placers.get(shape)
        if placer is None:
            placer = self._placers[shape] = Placer(
                self.cluster.snapshot,
                shape,
                self._masks.of(shape),
                scorers=self._rules.scorers,
                preferences=self._rules.preferences,
            )
        return placer

    def blocked(self, task: Task) -> str:
        """Why no node may take *task* yet; empty if one may."""
        return self.cluster.claims.problem(task)

    def explain(self, shape: Shape) -> str:
        """Why no node takes another pod of *shape*."""
        mark = self.cluster.snapshot.changed.mark
        known = self._explained.get(shape)
        if known is None or known[0] != mark:
            text = explain(self.cluster.snapshot, self._masks, shape)
            known = self._explained[shape] = (mark, text)
        return known[1]

    def trial(self, gang: Gang) -> Trial:
        """A try to place tasks of *gang*."""
        return Trial(self, gang, self.cluster.queue_of(gang))

    def is_stale(self, gang: Gang) -> bool:
        """Whether *gang* was refused before and nothing has happened that could change that."""
        return gang.tried == (self.cluster.openings, gang.version)

    def keep(self, gang: Gang, trial: Trial) -> None:
        """Make the placements of *trial* final."""
        kept = trial.keep()
        gang.finding = None
        self.decision.scheduled += 1
        self.cluster.place(gang, kept)
        key = "" if gang.single else gang.key
        self.decision.placements += [
            Placement(task.namespace, task.name, task.uid, task.node, key) for task, _ in kept
        ]

    def let_in(self, gang: Gang, tasks: list[Task]) -> None:
        """Have *tasks* of *gang* lose the gate of their queue."""
        gang.finding = None
        self.cluster.lift(gang, tasks)
        self.decision.lifted += tasks

    def refuse(self, gang: Gang, finding: Finding) -> None:
        """Remember why *gang*, or the rest of it, waits."""
        gang.tried = (self.cluster.openings, gang.version)
        self.decision.refused += 1
        if gang.finding != finding:
            gang.finding = finding
            self.cluster.touch(gang)


class Core:
    """Decides for one cluster under one configuration, keeping masks between cycles."""

    def __init__(self, cluster: Cluster, rules: Rules, actions: tuple[str, ...]) -> None:
        """Decide by *rules*, carrying out *actions* in order."""
        self.cluster = cluster
        self._rules = rules
        self._masks = Masks(cluster.snapshot, rules.filters)
        self._actions = [(name, ACTIONS[name]) for name in actions]
        self.timed: Timed = _untimed

    def decide(self) -> Decision:
        """Admit what may enter, place what fits, say why the rest waits."""
        cluster = self.cluster
        cluster.settle()
        enqueues = any(name == "enqueue" for name, _ in self._actions)
        cycle = Cycle(cluster, self._rules, self._masks, enqueues=enqueues)
        for name, act in self._actions:
            with self.timed(name):
                act(cycle)
        cluster.settle()
        decision = cycle.decision
        decision.gangs = cluster.take_touched()
        for gang in decision.gangs:
            _look_back(cycle, gang)
        decision.queues = {name: cluster.allocated_below(name) for name in cluster.take_stirred()}
        return decision


def _look_back(cycle: Cycle, gang: Gang) -> None:
    """Bring the finding about a gang up to date that has nothing left to place.

    If it lost members for good, that is the reason why it is not whole; if it is on its way out,
    there is nothing to say.
    """
    if gang.waiting or gang.at_queue or gang.is_pending:
        return
    gang.finding = None
    if gang.tasks and not gang.is_ready() and not gang.is_terminating():
        refusal = cycle.flaw(gang)
        gang.finding = Finding(refusal.reason, refusal.message) if refusal else None
