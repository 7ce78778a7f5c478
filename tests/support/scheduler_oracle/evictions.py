"""An oracle for evictions: what one decision may evict, by rules written out longhand.

It knows CPUs, one label that pods may bear and keep apart from, queues with limits, and one
disruption budget; it does not search for victims, but checks those that were chosen:

* *permitted*: of a lower priority in the same queue, or of a queue that has more than it deserves;
  never beyond the disruption budget, nor a pod that is not preemptable;
* *sufficient*: the gang has all pods that it needs on the nodes that are named for it once the
  victims are deleted, within the limits of its queue;
* *minimal*: none of the victims could have stayed;
* *by priority*: pods of lower priorities alone would not have sufficed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class PodFacts:
    """A pod."""

    name: str
    gang: str
    cpu: int
    node: str = ""
    marked: bool = False
    """Whether it bears the label."""

    apart: bool = False
    """Whether it keeps apart from pods with the label."""

    budgeted: bool = False
    preemptable: bool = True
    terminating: bool = False
    nominated: str = ""


@dataclass(frozen=True, slots=True)
class GangFacts:
    """A gang."""

    name: str
    priority: int
    queue: str
    minimum: int


@dataclass(slots=True)
class QueueFacts:
    """A queue with limits in CPUs."""

    name: str
    deserved: int
    capability: int


@dataclass(slots=True)
class Facts:
    """A cluster."""

    nodes: dict[str, int] = field(default_factory=dict)
    queues: dict[str, QueueFacts] = field(default_factory=dict)
    gangs: dict[str, GangFacts] = field(default_factory=dict)
    pods: dict[str, PodFacts] = field(default_factory=dict)
    budget: int = 1
    """How many pods of the disruption budget may be unavailable."""

    def gang_of(self, pod: PodFacts) -> GangFacts:
        return self.gangs[pod.gang]

    def allocated(self, queue: str, *, without: Iterable[str] = ()) -> int:
        """The CPUs of pods of a queue on nodes, without terminating ones."""
        left_out = set(without)
        return sum(
            pod.cpu
            for pod in self.pods.values()
            if pod.node
            and not pod.terminating
            and pod.name not in left_out
            and self.gang_of(pod).queue == queue
        )


@dataclass(frozen=True, slots=True)
class Eviction:
    """A victim, and the gang for which it is evicted."""

    victim: str
    beneficiary: str


def violations(facts: Facts, evictions: list[Eviction], nominated: dict[str, str]) -> Iterator[str]:
    """Yield what is wrong with *evictions*; *facts* are those before, *nominated* has the nodes of
    waiting pods by name."""
    victims = {each.victim for each in evictions}
    if len(victims) < len(evictions):
        yield f"evicted twice: {evictions}"
    waiting = {
        pod.name: nominated.get(pod.name, pod.nominated)
        for pod in facts.pods.values()
        if not pod.node and nominated.get(pod.name, pod.nominated)
    }
    yield from _not_permitted(facts, evictions)
    for beneficiary in dict.fromkeys(each.beneficiary for each in evictions):
        yield from _not_sufficient(facts, victims, waiting, beneficiary)
    for each in evictions:
        lacking = _problems(facts, victims - {each.victim}, waiting)
        if not any(problem.concerns(facts.pods[each.victim], facts) for problem in lacking):
            yield f"{each.victim} could have stayed"
        if _lower_ones_suffice(facts, evictions, each, waiting):
            yield f"{each.victim} was evicted although lower priorities suffice"


@dataclass(frozen=True, slots=True)
class _Problem:
    """A node, or a queue, that cannot take what waits for it."""

    node: str = ""
    queue: str = ""

    def concerns(self, victim: PodFacts, facts: Facts) -> bool:
        return victim.node == self.node or facts.gang_of(victim).queue == self.queue


def _not_permitted(facts: Facts, evictions: list[Eviction]) -> Iterator[str]:
    reclaimed: dict[str, int] = {}
    for each in evictions:
        victim = facts.pods[each.victim]
        gang, gaining = facts.gang_of(victim), facts.gangs[each.beneficiary]
        if not victim.node or victim.terminating or not victim.preemptable:
            yield f"{victim} may not be evicted"
        if gang.queue == gaining.queue:
            if gang.priority >= gaining.priority:
                yield f"{victim.name} has no lower priority than {gaining.name}"
            continue
        before = facts.allocated(gang.queue) - reclaimed.get(gang.queue, 0)
        if before <= facts.queues[gang.queue].deserved:
            yield f"queue {gang.queue} has no more than it deserves"
        reclaimed[gang.queue] = reclaimed.get(gang.queue, 0) + victim.cpu
    names = {each.victim for each in evictions}
    unavailable = sum(
        pod.budgeted and (pod.terminating or pod.name in names) for pod in facts.pods.values()
    )
    if unavailable > facts.budget and any(facts.pods[name].budgeted for name in names):
        yield f"{unavailable} pods of the budget are evicted"


def _not_sufficient(
    facts: Facts, victims: set[str], waiting: dict[str, str], beneficiary: str
) -> Iterator[str]:
    gang = facts.gangs[beneficiary]
    members = [pod for pod in facts.pods.values() if pod.gang == beneficiary]
    ready = sum(bool(pod.node) and pod.name not in victims for pod in members)
    ready += sum(pod.name in waiting for pod in members)
    if ready < gang.minimum:
        yield f"{beneficiary} has {ready} of {gang.minimum} pods"
    nodes = {waiting[pod.name] for pod in members if pod.name in waiting}
    for problem in _problems(facts, victims, waiting):
        if problem.node in nodes or problem.queue == gang.queue:
            yield f"{beneficiary} does not fit: {problem}"


def _problems(facts: Facts, victims: set[str], waiting: dict[str, str]) -> list[_Problem]:
    """Return which nodes and queues cannot take what waits for them, once *victims* are
    deleted."""
    found = []
    for node, cpus in facts.nodes.items():
        held = [facts.pods[name] for name, where in waiting.items() if where == node]
        staying = [
            pod
            for pod in facts.pods.values()
            if pod.node == node and not pod.terminating and pod.name not in victims
        ]
        too_much = sum(pod.cpu for pod in (*held, *staying)) > cpus
        if held and (too_much or _conflict(held, staying)):
            found.append(_Problem(node=node))
    for queue in facts.queues.values():
        pods = [facts.pods[name] for name in waiting]
        held = [pod for pod in pods if facts.gang_of(pod).queue == queue.name]
        used = facts.allocated(queue.name, without=victims) + sum(pod.cpu for pod in held)
        if held and used > queue.capability:
            found.append(_Problem(queue=queue.name))
    return found


def _conflict(held: list[PodFacts], staying: list[PodFacts]) -> bool:
    """Return whether a pod that waits does not go with another one of its node."""
    pairs = [(one, other) for one in held for other in (*held, *staying) if one is not other]
    return any((one.apart and other.marked) or (other.apart and one.marked) for one, other in pairs)


def _lower_ones_suffice(
    facts: Facts, evictions: list[Eviction], eviction: Eviction, waiting: dict[str, str]
) -> bool:
    """Return whether the gang fits without its victims of the highest priority, if everything that
    is lower, may be evicted, and breaks no gang, is evicted."""
    gaining, victim = facts.gangs[eviction.beneficiary], facts.pods[eviction.victim]
    highest = facts.gang_of(victim).priority
    if facts.gang_of(victim).queue != gaining.queue:
        return False
    for_others = {each.victim for each in evictions if each.beneficiary != gaining.name}
    lower = {
        pod.name
        for pod in facts.pods.values()
        if pod.node
        and pod.preemptable
        and not pod.budgeted
        and facts.gang_of(pod).queue == gaining.queue
        and facts.gang_of(pod).priority < highest
        and facts.gang_of(pod).minimum == 0
    }
    evicted = lower | for_others
    members = [pod for pod in facts.pods.values() if pod.gang == gaining.name and not pod.node]
    needed = [pod for pod in members if pod.name in waiting]
    one, others = (
        needed[0],
        {name: at for name, at in waiting.items() if name not in {pod.name for pod in members}},
    )
    pods = [facts.pods[name] for name in others]
    used = facts.allocated(gaining.queue, without=evicted)
    used += sum(pod.cpu for pod in pods if facts.gang_of(pod).queue == gaining.queue)
    if used + one.cpu * len(needed) > facts.queues[gaining.queue].capability:
        return False
    total = 0
    for node, cpus in facts.nodes.items():
        staying = [
            pod
            for pod in facts.pods.values()
            if (pod.node == node and not pod.terminating and pod.name not in evicted)
            or others.get(pod.name) == node
        ]
        if _conflict([one], staying):
            continue
        fitting = max(cpus - sum(pod.cpu for pod in staying), 0) // one.cpu
        total += min(fitting, 1) if one.apart and one.marked else fitting
    return total >= len(needed)
