"""Members of gangs that are allocated before their pods exist (docs/decisions/0012).

The job controller describes the pods of a gang in its PodGroup. When the gang is admitted, each of
them becomes a pending task without a pod; the next cycle tries to allocate them. What is allocated
becomes a *plan*, by which the job controller creates the pods with their nodes. Until a pod is
seen, its member counts as a pod that is being bound.

A plan has an end. A pod may still be created by it for :data:`GRACE_SECONDS` after that, and so
long its request is charged: to the gang, or as a *possible pod* on the node alone if the gang has
that member no more.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...model import names
from ...model.placement import (
    GRACE_SECONDS,
    MAX_TEXT,
    PLAN_SECONDS,
    Members,
    Plan,
    decode_plan,
    hash_of,
)
from ...model.podgroup import PodGroup
from .core_types import Pod
from .described_members import Key, members_of, members_text, pods_of
from .equivalence import EquivalenceClass
from .gangs import Gang, Task, TaskStatus
from .reservations import Purpose

if TYPE_CHECKING:
    from .cache import SchedulerCache

_EXTENSION_SECONDS = PLAN_SECONDS / 2
"""A plan with less time left is extended when pods have arrived."""

_TAKEOVER_SECONDS = PLAN_SECONDS + 2 * GRACE_SECONDS
"""Seconds after the first cycle in which the plan of a former leader may still be written."""

_MAX_PLANNING_SECONDS = 5.0
"""Seconds after which a gang that no cycle has tried is left to the normal path."""


@dataclass(frozen=True, slots=True)
class PlanNote:
    """What the annotation of a PodGroup is to contain."""

    text: str | None
    """The plan; ``None`` for no annotation."""

    is_due: bool
    """Whether it is written at once, and not with the next write."""

    id: str = ""
    pods: int = 0
    nodes: int = 0


@dataclass(slots=True)
class PlannedGang:
    """A gang with members that are, or were, allocated before their pods existed."""

    gang: Gang
    uid: str
    """Uid of the PodGroup."""

    members: Members
    hash: str
    since: float
    """When the members were added, as Unix time."""

    unseen: dict[str, Task] = field(default_factory=dict)
    """Members whose pods were not seen, by the name of the pod."""

    lost: set[str] = field(default_factory=set)
    """Those that have left the plan, as their node cannot take them any more."""

    is_decided: bool = False
    plan: Plan | None = None
    until: float = 0.0
    texts: set[str] = field(default_factory=set)
    """The texts of all its plans."""

    text: str = ""
    promised: dict[str, tuple[str, float]] = field(default_factory=dict)
    """By name of the pod: the node in a plan, and when that ends."""

    indexes: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Task and index by the name of the pod."""

    has_progress: bool = False
    is_outdated: bool = False
    """Whether members have left the plan since it was encoded."""

    @property
    def is_live(self) -> bool:
        """Whether there is a plan with members that were not seen."""
        return self.plan is not None and bool(self.unseen.keys() - self.lost)


@dataclass(frozen=True, slots=True)
class _PossiblePod:
    """A pod that may still be created on a node by a plan."""

    until: float
    owner: tuple[str, str]
    """Key of the gang, and name of the pod."""

    was_seen: bool
    """Whether a pod of this name was there."""


class PlannedMembers:
    """All gangs with planned members, and the possible pods."""

    def __init__(self, cache: "SchedulerCache", *, enabled: bool) -> None:
        """Start without any; nothing is planned unless *enabled*."""
        self._cache = cache
        self._enabled = enabled
        self._gangs: dict[str, PlannedGang] = {}
        self._planning: dict[str, PlannedGang] = {}
        self._progressed: dict[str, PlannedGang] = {}
        self._foreign: set[str] = set()
        """Gangs with a plan that this scheduler has not written."""

        self._unplaced: dict[str, tuple[Gang, dict[str, int]]] = {}
        """Pods that arrived without a node, and the nodes of their members."""

        self._changed_nodes: set[int] = set()
        self._filled_nodes: set[int] = set()
        self._due: list[tuple[float, str]] = []
        self._possible: dict[str, _PossiblePod] = {}
        self._possible_by_owner: dict[tuple[str, str], set[str]] = {}
        self._first_cycle: float | None = None
        self._last_id = 0

    def is_planning(self, key: str) -> bool:
        """Return whether the members of a gang are to be tried, or have not been decided on."""
        return key in self._planning

    def planning_gangs(self) -> list[Gang]:
        """Return these gangs."""
        return [each.gang for each in self._planning.values()]

    def next_due(self) -> float | None:
        """Return when :meth:`update` is to be called next, in Unix time."""
        return self._due[0][0] if self._due else None

    def members_to_add(self, gang: Gang) -> int:
        """Return how many members will be added once *gang* is admitted, at least about."""
        return gang.min_member if self._enabled and gang.is_pending else 0

    def note(self, gang: Gang) -> PlanNote | None:
        """Return what the annotation of the PodGroup of *gang* is to contain; ``None`` for what it
        contains."""
        if not self._enabled:
            return None
        known = self._gangs.get(gang.key)
        if known is None:
            return PlanNote(None, is_due=True) if gang.key in self._foreign else None
        if not known.is_decided:
            return None
        if known.plan is None or not known.unseen or self._now >= known.until:
            return PlanNote(None, is_due=gang.key in self._foreign)
        plan = known.plan
        return PlanNote(
            known.text,
            is_due=True,
            id=plan.id,
            pods=len(plan.nodes),
            nodes=len(set(plan.nodes.values())),
        )

    # -- events --------------------------------------------------------------------------------

    def observe_podgroup(self, gang: Gang, old: PodGroup | None, new: PodGroup | None) -> None:
        """Note that the PodGroup of *gang* was added, updated or deleted."""
        if not self._enabled:
            return
        known = self._gangs.get(gang.key)
        if known is not None and (new is None or new.metadata.uid != known.uid):
            self._abandon(known)
            known = None
        if new is None:
            self._foreign.discard(gang.key)
            return
        text = new.metadata.annotations.get(names.PLAN, "")
        before = old.metadata.annotations.get(names.PLAN, "") if old is not None else None
        if text == before:
            return
        self._foreign.discard(gang.key)
        if text and not (known is not None and text in known.texts):
            self._observe_plan(gang, new, text)

    def _observe_plan(self, gang: Gang, podgroup: PodGroup, text: str) -> None:
        """Charge what may be created by a plan of a former leader."""
        if self._first_cycle is not None and self._now > self._first_cycle + _TAKEOVER_SECONDS:
            return  # no leader wrote it
        plan, members = decode_plan(text), members_of(gang)
        if plan is None or members is None or plan.members != hash_of(members_text(podgroup)):
            return
        if plan.until + GRACE_SECONDS <= self._now:
            return
        pods = self._pods_of(gang, members)
        if pods is None:
            return
        present = {task.name for task in gang.tasks.values()}
        missing = [
            (pod, plan.nodes[key])
            for key, pod in pods
            if key in plan.nodes and pod.metadata.name not in present
        ]
        if self._first_cycle is None and not gang.is_pending and gang.key not in self._gangs:
            self._adopt(gang, podgroup, members, plan, text, missing)
            return
        self._foreign.add(gang.key)
        until = min(plan.until, self._now + PLAN_SECONDS) + GRACE_SECONDS
        for pod, node in missing:
            eq_class = self._cache.classify_member(gang, pod)
            self._add_possible(gang.key, pod.metadata.name, node, eq_class, until)

    def _adopt(
        self,
        gang: Gang,
        podgroup: PodGroup,
        members: Members,
        plan: Plan,
        text: str,
        missing: list[tuple[Pod, str]],
    ) -> None:
        """Continue by the plan of a former leader."""
        gang.planned_uid = podgroup.metadata.uid
        known = PlannedGang(
            gang,
            podgroup.metadata.uid,
            members,
            plan.members,
            since=self._now,
            is_decided=True,
            plan=plan,
            until=float(plan.until),
            texts={text},
            text=text,
        )
        self._gangs[gang.key] = known
        for (role, index), node in plan.nodes.items():
            name = members.pod_name(role, index)
            known.promised[name] = (node, known.until)
            known.indexes[name] = (role, index)
        for pod, node in missing:
            task = self._cache.add_member(gang, pod)
            self._cache.allocate_member(gang, task, node)
            known.unseen[task.name] = task
        heapq.heappush(self._due, (known.until + GRACE_SECONDS, gang.key))

    def observe_pod(self, gang: Gang | None, pod: Pod) -> bool:
        """Note that *pod*, maybe of *gang*, has arrived; to be called before it is added.

        Returns whether it has replaced its member on a node, so that it is not to be added.
        """
        if gang is None:
            return False
        name = pod.metadata.name
        if self._possible_by_owner:
            for uid in list(self._possible_by_owner.get((gang.key, name), ())):
                self._drop_possible(uid)
        known = self._gangs.get(gang.key)
        task = known.unseen.pop(name, None) if known is not None else None
        if known is None or task is None:
            return False
        is_placed = task.status is TaskStatus.BINDING
        node_index, was_lost = task.node_index, name in known.lost
        known.lost.discard(name)
        is_adopted = is_placed and self._cache.adopt_member(gang, task, pod)
        if not is_adopted:
            self._cache.remove_member(task)
        known.has_progress = True
        self._progressed[gang.key] = known
        if is_placed and not was_lost and not pod.spec.node_name:
            self._unplaced.setdefault(gang.key, (gang, {}))[1][pod.metadata.uid] = node_index
        return is_adopted

    def observe_deleted(self, gang: Gang, task: Task) -> None:
        """Note that the pod of *task* is deleted; to be called before the task is removed."""
        known = self._gangs.get(gang.key)
        node, until = known.promised.get(task.name, ("", 0.0)) if known is not None else ("", 0.0)
        if node and self._now < until:
            self._add_possible(
                gang.key, task.name, node, task.eq_class, until + GRACE_SECONDS, was_seen=True
            )

    def node_changed(self, node_index: int) -> None:
        """Note that a node is deleted, or differs in what filters read."""
        self._changed_nodes.add(node_index)

    def node_filled(self, node_index: int) -> None:
        """Note that a node may have less than its pods request."""
        self._filled_nodes.add(node_index)

    # -- between events and a cycle ------------------------------------------------------------

    def update(self) -> None:
        """Bring everything up to date for the next cycle, whose time is set."""
        if self._first_cycle is None:
            self._begin()
        self._reserve_for_unplaced()
        self._leave_nodes()
        for known in list(self._progressed.values()):
            if known.is_outdated or (
                known.has_progress and known.until - self._now < _EXTENSION_SECONDS
            ):
                self._renew(known)
            known.has_progress = False
        self._progressed.clear()
        while self._due and self._due[0][0] <= self._now:
            self._expire(heapq.heappop(self._due)[1])

    def _begin(self) -> None:
        """Limit what was found before the first cycle, when the time was not known."""
        self._first_cycle = self._now
        for known in self._gangs.values():
            known.until = min(known.until, self._now + PLAN_SECONDS)
            for name, (node, until) in known.promised.items():
                known.promised[name] = (node, min(until, known.until))
            heapq.heappush(self._due, (known.until + GRACE_SECONDS, known.gang.key))
        for uid, each in list(self._possible.items()):
            until = min(each.until, self._now + PLAN_SECONDS + GRACE_SECONDS)
            self._possible[uid] = _PossiblePod(until, each.owner, each.was_seen)
            heapq.heappush(self._due, (until, uid))

    def _reserve_for_unplaced(self) -> None:
        """Reserve the nodes of members whose pods have arrived without a node."""
        reservations = self._cache.reservations
        for gang, nodes in self._unplaced.values():
            before = reservations.get(gang.key)
            if before is not None and before.purpose is not Purpose.PLANNED:
                continue
            held = {uid: hold.node_index for uid, hold in before.holds.items()} if before else {}
            alive = {
                uid: index
                for uid, index in (held | nodes).items()
                if self._cache.node_matrix.alive[index]
            }
            until = self._now + PLAN_SECONDS
            reservations.hold(gang, alive, until=until, purpose=Purpose.PLANNED)
        self._unplaced.clear()

    def _leave_nodes(self) -> None:
        """Take unseen members out of their plans whose node cannot take them any more."""
        matrix = self._cache.node_matrix
        for node_index in self._changed_nodes:
            for task in self._planned_on(node_index):
                self._lose(task)
        for node_index in self._filled_nodes - self._changed_nodes:
            lacking = matrix.idle[:, node_index].copy()
            for task in self._planned_on(node_index):
                if not (lacking < 0).any():
                    break
                request = task.eq_class.request_vector(matrix.resource_index)
                if request[lacking < 0].any():
                    lacking += request
                    self._lose(task)
        self._changed_nodes.clear()
        self._filled_nodes.clear()

    def _planned_on(self, node_index: int) -> list[Task]:
        return [task for task in self._cache.task_table.tasks_on(node_index) if task.planned]

    def _lose(self, task: Task) -> None:
        known = self._gangs.get(task.gang.key) if task.gang is not None else None
        if known is None or task.name in known.lost:
            return
        known.lost.add(task.name)
        known.is_outdated = True
        self._progressed[known.gang.key] = known

    def _renew(self, known: PlannedGang) -> None:
        """Encode the plan again, for the members that were not seen."""
        if known.plan is None or self._now >= known.until:
            return
        extended = known.has_progress and known.is_live
        if extended:
            known.until = float(int(self._now + PLAN_SECONDS))
            heapq.heappush(self._due, (known.until + GRACE_SECONDS, known.gang.key))
        self._encode(known, plan_id=self._new_id() if known.is_outdated else known.plan.id)
        self._cache.mark_changed(known.gang)

    def _expire(self, key: str) -> None:
        """End the plan of a gang, or a possible pod, unless it was extended."""
        possible = self._possible.get(key)
        if possible is not None:
            if possible.until <= self._now:
                self._drop_possible(key)
            return
        known = self._gangs.get(key)
        if known is None or known.until + GRACE_SECONDS > self._now:
            return
        del self._gangs[key]
        self._progressed.pop(key, None)
        for task in known.unseen.values():
            self._cache.remove_member(task)
        self._cache.mark_changed(known.gang)

    # -- planning ------------------------------------------------------------------------------

    def begin(self, gang: Gang) -> None:
        """Add the members of *gang*, which was admitted, if it describes them."""
        podgroup = gang.podgroup
        if not self._enabled or podgroup is None or gang.planned_uid == podgroup.metadata.uid:
            return
        gang.planned_uid = podgroup.metadata.uid
        if any(task.status not in _ENDED for task in gang.tasks.values()):
            return
        members = members_of(gang)
        pods = self._pods_of(gang, members) if members is not None else None
        if members is None or not pods:
            return
        known = PlannedGang(
            gang, podgroup.metadata.uid, members, hash_of(members_text(podgroup)), self._now
        )
        present = {task.name for task in gang.tasks.values()}
        first: dict[str, Task] = {}
        for key, pod in pods:
            name = pod.metadata.name
            if name not in present:
                task = self._cache.add_member(gang, pod, like=first.get(key[0]))
                known.unseen[name] = first[key[0]] = task
                known.indexes[name] = key
        self._gangs[gang.key] = self._planning[gang.key] = known

    def decide(self, is_left: Callable[[Gang], bool]) -> None:
        """Encode plans of what the cycle has allocated, and drop the rest.

        *is_left* returns whether a gang was left to the next cycle.
        """
        for key, known in list(self._planning.items()):
            allocated = [
                each for each in known.unseen.values() if each.status is TaskStatus.BINDING
            ]
            if (
                not allocated
                and is_left(known.gang)
                and self._now - known.since < _MAX_PLANNING_SECONDS
            ):
                continue
            del self._planning[key]
            known.is_decided = True
            for task in list(known.unseen.values()):
                if task.status is not TaskStatus.BINDING:
                    self._drop(known, task)
            known.gang.diagnosis = None
            if allocated:
                known.until = float(int(self._now + PLAN_SECONDS))
                self._encode(known, plan_id=self._new_id())
                if len(known.text) > MAX_TEXT:
                    for task in allocated:
                        self._drop(known, task)
            if not known.unseen:
                del self._gangs[key]
            else:
                heapq.heappush(self._due, (known.until + GRACE_SECONDS, key))
            self._cache.mark_changed(known.gang)

    def _drop(self, known: PlannedGang, task: Task) -> None:
        """Remove a member that no plan has named."""
        del known.unseen[task.name]
        self._cache.remove_member(task)

    def _encode(self, known: PlannedGang, *, plan_id: str) -> None:
        nodes = {
            known.indexes[name]: task.node
            for name, task in known.unseen.items()
            if name not in known.lost
        }
        known.plan = Plan(
            id=plan_id,
            members=known.hash,
            version=known.members.version,
            until=int(known.until),
            nodes=nodes,
        )
        known.text = known.plan.encode()
        known.texts.add(known.text)
        known.is_outdated = False
        for name, task in known.unseen.items():
            if name not in known.lost:
                known.promised[name] = (task.node, known.until)

    def _new_id(self) -> str:
        self._last_id += 1
        return f"{int(self._now * 1000):x}-{self._last_id}"

    # -- private -------------------------------------------------------------------------------

    @property
    def _now(self) -> float:
        return self._cache.cycle_time

    def _abandon(self, known: PlannedGang) -> None:
        """End the plan of a deleted PodGroup."""
        key = known.gang.key
        self._gangs.pop(key, None)
        self._planning.pop(key, None)
        self._progressed.pop(key, None)
        for name in known.promised:
            for uid in list(self._possible_by_owner.get((key, name), ())):
                if self._possible[uid].was_seen:
                    self._drop_possible(uid)
        for name, task in known.unseen.items():
            node, eq_class = task.node, task.eq_class
            is_placed = task.status is TaskStatus.BINDING
            self._cache.remove_member(task)
            if is_placed and known.plan is not None:
                self._add_possible(key, name, node, eq_class, known.until + GRACE_SECONDS)

    def _pods_of(self, gang: Gang, members: Members) -> list[tuple[Key, Pod]] | None:
        return pods_of(gang, members, is_wanted=self._cache.is_of_gang_scheduler)

    def _add_possible(
        self,
        key: str,
        name: str,
        node: str,
        eq_class: EquivalenceClass,
        until: float,
        *,
        was_seen: bool = False,
    ) -> None:
        self._last_id += 1
        uid = f"plan:{self._last_id}"
        self._possible[uid] = _PossiblePod(until, (key, name), was_seen)
        self._possible_by_owner.setdefault((key, name), set()).add(uid)
        self._cache.add_possible_pod(uid, node, eq_class)
        heapq.heappush(self._due, (until, uid))

    def _drop_possible(self, uid: str) -> None:
        possible = self._possible.pop(uid)
        uids = self._possible_by_owner[possible.owner]
        uids.discard(uid)
        if not uids:
            del self._possible_by_owner[possible.owner]
        self._cache.remove_possible_pod(uid)


_ENDED = (TaskStatus.SUCCEEDED, TaskStatus.FAILED)
