"""Members of gangs that are allocated before their pods exist (docs/decisions/0012).

The job controller describes the pods of a gang in its PodGroup. When the gang is admitted, each of
them becomes a pending task without a pod; the next cycle tries to allocate them. What is allocated
becomes a *plan*, by which the job controller creates the pods with their nodes. Until a pod is
seen, its member counts as a pod that is being bound.

A member leaves a node that cannot take it any more. In the next cycle it is tried before all other
gangs; what fits gets another node by a plan with a new id, the rest leaves the plan.

A plan has an end. A pod may still be created by it for :data:`GRACE_SECONDS` after that, and so
long its request is charged: to the gang, or as a *assumed pod* (:mod:`.assumed_pods`) on the
node alone if the gang has that member no more, or elsewhere.
"""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from ....model import names
from ....model.placement import (
    GRACE_SECONDS,
    MAX_TEXT,
    PLAN_SECONDS,
    Members,
    Plan,
    decode_plan,
    hash_of,
)
from ....model.podgroup import PodGroup
from ..core_types import Pod
from ..gangs.gang import Gang, Task, TaskStatus
from ..resources import IntVector
from .assumed_pods import AssumedPods
from .cache_protocol import PlanningCache
from .described_members import Key, members_of, members_text, pods_of
from .planned_gang import FormerNode, PlannedGang, PlanNote
from .reservations import Purpose

_EXTENSION_SECONDS = PLAN_SECONDS / 2
"""A plan with less time left is extended when pods have arrived."""

_TAKEOVER_SECONDS = PLAN_SECONDS + 2 * GRACE_SECONDS
"""Seconds after the first cycle in which the plan of a former leader may still be written."""

_MAX_PLANNING_SECONDS = 5.0
"""Seconds after which a gang that no cycle has tried is left to the normal path."""


class PlannedMembers:
    """All gangs with planned members, and the assumed pods."""

    def __init__(self, cache: PlanningCache, *, enabled: bool) -> None:
        """Start without any; nothing is planned unless *enabled*."""
        self._cache = cache
        self._enabled = enabled
        self.is_suspended = False
        """Whether no members are planned, because the plugins need their pods."""
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
        self._assumed = AssumedPods(cache)
        self._first_cycle: float | None = None
        self._last_id = 0

    def is_planning(self, key: str) -> bool:
        """Return whether members of a gang are still to be tried or decided on."""
        return key in self._planning

    def planning_gangs(self) -> list[Gang]:
        """Return these gangs."""
        return [each.gang for each in self._planning.values()]

    def leaving_gangs(self) -> list[Gang]:
        """Return those with members that have left their nodes, in the order of their age."""
        leaving = (each.gang for each in self._planning.values() if each.is_decided)
        return sorted(leaving, key=lambda gang: (gang.created, gang.key))

    def next_due(self) -> float | None:
        """Return when :meth:`update` is to be called next, in Unix time."""
        due = (self._due[0][0] if self._due else None, self._assumed.next_due())
        return min((each for each in due if each is not None), default=None)

    @property
    def _is_possible(self) -> bool:
        # Claims for extended resources that devices provide are created with a binding.
        devices = self._cache.node_matrix.available_devices
        return self._enabled and not self.is_suspended and not devices.resources

    def members_to_add(self, gang: Gang) -> int:
        """Return about how many members will be added once *gang* is admitted."""
        return gang.min_member if self._is_possible and gang.is_pending else 0

    def note(self, gang: Gang) -> PlanNote | None:
        """Return what the annotation of the PodGroup of *gang* is to contain; ``None`` if it is to
        stay as it is."""
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
        missing = {key: pod for key, pod in pods if pod.metadata.name not in present}
        if self._first_cycle is None and not gang.is_pending and gang.key not in self._gangs:
            self._adopt(gang, podgroup, members, plan, text, missing)
            return
        self._foreign.add(gang.key)
        until = min(plan.until, self._now + PLAN_SECONDS) + GRACE_SECONDS
        for key, node in (*plan.nodes.items(), *plan.former):
            if key in missing:
                self._add_assumed(gang, missing[key], node, until)

    def _adopt(
        self,
        gang: Gang,
        podgroup: PodGroup,
        members: Members,
        plan: Plan,
        text: str,
        missing: Mapping[Key, Pod],
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
        for key, node in plan.former:
            known.indexes[members.pod_name(*key)] = key
            if key in missing:
                pod = missing[key]
                uid = self._add_assumed(gang, pod, node, known.until + GRACE_SECONDS)
                former = FormerNode(node, known.until, uid)
                known.former.setdefault(pod.metadata.name, []).append(former)
        for key, node in plan.nodes.items():
            name = members.pod_name(*key)
            known.promised[name] = (node, known.until)
            known.indexes[name] = key
            if key in missing:
                task = known.unseen[name] = self._cache.add_member(gang, missing[key])
                self._cache.allocate_member(gang, task, node)
        heapq.heappush(self._due, (known.until + GRACE_SECONDS, gang.key))

    def observe_pod(self, gang: Gang | None, pod: Pod) -> bool:
        """Note that *pod*, maybe of *gang*, has arrived; to be called before it is added.

        Returns whether it has replaced its member on a node, so that it is not to be added.
        """
        if gang is None:
            return False
        name = pod.metadata.name
        if self._assumed:
            self._assumed.drop_of((gang.key, name))
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
        for node, until in known.promises(task.name) if known is not None else ():
            if self._now < until:
                self._assumed.add(
                    (gang.key, task.name),
                    node,
                    task.eq_class,
                    until + GRACE_SECONDS,
                    was_seen=True,
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
        for key, known in self._progressed.items():
            if key in self._planning:
                continue
            if known.until - self._now < _EXTENSION_SECONDS:
                self._renew(known)
            known.has_progress = False
        self._progressed.clear()
        while self._due and self._due[0][0] <= self._now:
            self._expire(heapq.heappop(self._due)[1])
        self._assumed.expire(self._now)

    def _begin(self) -> None:
        """Limit how long plans last that were read before the first cycle, when the time was not
        known."""
        self._first_cycle = self._now
        for known in self._gangs.values():
            known.until = min(known.until, self._now + PLAN_SECONDS)
            for name, (node, until) in known.promised.items():
                known.promised[name] = (node, min(until, known.until))
            heapq.heappush(self._due, (known.until + GRACE_SECONDS, known.gang.key))
            for nodes in known.former.values():
                nodes[:] = (replace(each, until=min(each.until, known.until)) for each in nodes)
        self._assumed.limit(self._now + PLAN_SECONDS + GRACE_SECONDS)

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

    def _renew(self, known: PlannedGang, *, plan_id: str = "") -> None:
        """Encode the plan again, for the members that were not seen."""
        if known.plan is None or self._now >= known.until:
            return
        if known.has_progress and known.is_live:
            known.until = float(int(self._now + PLAN_SECONDS))
            heapq.heappush(self._due, (known.until + GRACE_SECONDS, known.gang.key))
        self._encode(known, plan_id or known.plan.id)
        self._cache.changes.mark(known.gang)

    def _expire(self, key: str) -> None:
        """End the plan of a gang, unless it was extended."""
        known = self._gangs.get(key)
        if known is None or known.until + GRACE_SECONDS > self._now:
            return
        del self._gangs[key]
        self._planning.pop(key, None)
        self._progressed.pop(key, None)
        for task in known.unseen.values():
            self._cache.remove_member(task)
        self._cache.changes.mark(known.gang)

    # -- nodes that cannot take their members any more -----------------------------------------

    def leave_nodes(self, suits: Callable[[Task], bool]) -> None:
        """Take members off nodes that cannot take them any more; they are pending then.

        *suits* returns whether a task may be on its node apart from amounts. To be called after the
        actions of a cycle: the next one tries the members.
        """
        changed, filled = self._changed_nodes, self._filled_nodes
        if not changed and not filled:
            return
        self._changed_nodes, self._filled_nodes = set(), set()
        for node_index in changed:
            for known, task in self._planned_on(node_index):
                if not self._cache.node_matrix.alive[node_index] or not suits(task):
                    self._leave(known, task)
        for node_index in changed | filled:
            self._leave_filled(node_index)

    def _leave_filled(self, node_index: int) -> None:
        """Take members off a node until it has enough for the others."""
        matrix = self._cache.node_matrix
        if not matrix.is_overcommitted(node_index):
            return
        lacking = matrix.idle[:, node_index].copy()
        for eq_class in self._assumed.on_node(matrix.names[node_index], left_only=True):
            lacking += eq_class.request_vector(matrix.resource_index)
        staying = []
        for known, task in self._planned_on(node_index, lost=True):
            if task.name in known.lost:
                lacking += task.eq_class.request_vector(matrix.resource_index)
            else:
                staying.append((known, task))
        for known, task in staying:
            if not (lacking < 0).any():
                break
            request = task.eq_class.request_vector(matrix.resource_index)
            if request[lacking < 0].any():
                lacking += request
                self._leave(known, task)

    def without_pods(self, node_index: int) -> IntVector:
        """Return what a node is charged for pods that do not exist."""
        matrix = self._cache.node_matrix
        charged = np.zeros(len(matrix.resource_index), np.int64)
        for eq_class in self._assumed.on_node(matrix.names[node_index]):
            charged += eq_class.request_vector(matrix.resource_index)
        for _, task in self._planned_on(node_index, lost=True):
            charged += task.eq_class.request_vector(matrix.resource_index)
        return charged

    def _planned_on(self, node_index: int, *, lost: bool = False) -> list[tuple[PlannedGang, Task]]:
        """Return the members that plans have on a node; with *lost* also those that were lost."""
        found = []
        for task in self._cache.task_table.tasks_on(node_index):
            known = self._gangs.get(task.gang.key) if task.planned and task.gang else None
            if known is not None and (lost or task.name not in known.lost):
                found.append((known, task))
        return found

    def _leave(self, known: PlannedGang, task: Task) -> None:
        """Let a member be tried again; a pod may still be created on its node."""
        name = task.name
        node, until = known.promised[name]
        if known.plan is None or self._now >= known.until:
            known.lost.add(name)
            return
        uid = self._assumed.add(
            (known.gang.key, name), node, task.eq_class, until + GRACE_SECONDS, has_left=True
        )
        known.former.setdefault(name, []).append(FormerNode(node, until, uid))
        known.leaving.append(name)
        self._cache.forget(task.uid)
        self._planning[known.gang.key] = known

    def _settle(self, known: PlannedGang) -> None:
        """Build the plan for members that have left their nodes. Those without another node are
        lost: they are not in the plan any more."""
        leaving = [known.unseen[name] for name in known.leaving if name in known.unseen]
        known.leaving.clear()
        for task in leaving:
            if task.status is not TaskStatus.BINDING or self._now >= known.until:
                self._fall_back(known, task)
        self._renew(known, plan_id=self._new_id())
        if len(known.text) > MAX_TEXT:
            for task in leaving:
                if task.name not in known.lost:
                    self._fall_back(known, task)
            self._renew(known, plan_id=self._new_id())
        known.has_progress = False
        self._clear_diagnosis(known.gang)

    def _fall_back(self, known: PlannedGang, task: Task) -> None:
        """Charge a member where it was: it has left the plan, but its pod may be in flight."""
        self._cache.forget(task.uid)
        former = known.former[task.name].pop()
        self._assumed.drop(former.uid)
        self._cache.allocate_member(known.gang, task, former.node)
        known.lost.add(task.name)

    # -- planning ------------------------------------------------------------------------------

    def begin(self, gang: Gang) -> None:
        """Add the members of *gang*, which was admitted, if it describes them."""
        podgroup = gang.podgroup
        if not self._is_possible or podgroup is None:
            return
        if gang.planned_uid == podgroup.metadata.uid:
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
            if known.is_decided:
                del self._planning[key]
                self._settle(known)
                continue
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
            self._clear_diagnosis(known.gang)
            if allocated:
                known.until = float(int(self._now + PLAN_SECONDS))
                self._encode(known, self._new_id())
                if len(known.text) > MAX_TEXT:
                    for task in allocated:
                        self._drop(known, task)
            if not known.unseen:
                del self._gangs[key]
            else:
                heapq.heappush(self._due, (known.until + GRACE_SECONDS, key))
            self._cache.changes.mark(known.gang)

    def _drop(self, known: PlannedGang, task: Task) -> None:
        """Remove a member that no plan has named."""
        del known.unseen[task.name]
        self._cache.remove_member(task)

    def _encode(self, known: PlannedGang, plan_id: str) -> None:
        text = known.make_plan(plan_id, now=self._now)
        if len(text) > MAX_TEXT:  # another leader would not know the former nodes
            text = known.make_plan(plan_id, now=self._now, with_former=False)
        known.texts.add(text)

    @staticmethod
    def _clear_diagnosis(gang: Gang) -> None:
        """Remove the diagnosis of members that are decided on."""
        if not gang.pending_tasks:
            gang.diagnosis = None

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
            self._assumed.drop_of((key, name), seen_only=True)
        for name, task in known.unseen.items():
            node, eq_class = task.node, task.eq_class
            is_placed = task.status is TaskStatus.BINDING
            self._cache.remove_member(task)
            if is_placed and known.plan is not None:
                self._assumed.add((key, name), node, eq_class, known.until + GRACE_SECONDS)

    def _pods_of(self, gang: Gang, members: Members) -> list[tuple[Key, Pod]] | None:
        return pods_of(gang, members, is_wanted=self._cache.is_of_gang_scheduler)

    def _add_assumed(self, gang: Gang, pod: Pod, node: str, until: float) -> str:
        """Charge *node* for a pod of *gang* that is not known."""
        eq_class = self._cache.classify_member(gang, pod)
        return self._assumed.add((gang.key, pod.metadata.name), node, eq_class, until)


_ENDED = (TaskStatus.SUCCEEDED, TaskStatus.FAILED)
