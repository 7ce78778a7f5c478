"""The decision core and the oracle on the same objects."""

import msgspec
from support.scheduler import SchedulerWorld
from support.scheduler_oracle.cycle import Outcome, decide
from support.scheduler_oracle.objects import Objects, exceeding_gangs, parse_config

from batholith.model.hypernode import HyperNode
from batholith.model.podgroup import PodGroup, PodGroupStatus
from batholith.model.queue import Queue
from batholith.scheduler.framework.decision import Decision
from batholith.scheduler.state.cache.events import Recheck
from batholith.scheduler.state.core_types import Node, Pod, PodStatus

Object = Node | Pod | PodGroup | Queue | HyperNode


class OracleWorld:
    """Objects, a scheduler that gets them as events, and the oracle that reads them all."""

    def __init__(self, text: str) -> None:
        self.world = SchedulerWorld(text)
        self.config = parse_config(text)
        self.objects: dict[tuple[str, str], Object] = {}
        self.now = 0.0

    def upsert(self, *objects: Object) -> None:
        """Create or update *objects*."""
        for each in objects:
            self.objects[type(each).__name__, each.metadata.name] = each
            self.world.upsert(each)

    def remove(self, deleted: Object) -> None:
        """Delete an object."""
        del self.objects[type(deleted).__name__, deleted.metadata.name]
        self.world.remove(deleted)

    @property
    def nodes(self) -> list[Node]:
        return [each for each in self.objects.values() if isinstance(each, Node)]

    @property
    def pods(self) -> list[Pod]:
        return [each for each in self.objects.values() if isinstance(each, Pod)]

    @property
    def podgroups(self) -> list[PodGroup]:
        return [each for each in self.objects.values() if isinstance(each, PodGroup)]

    @property
    def queues(self) -> list[Queue]:
        return [each for each in self.objects.values() if isinstance(each, Queue)]

    def snapshot(self) -> Objects:
        """Return all objects for the oracle."""
        return Objects(
            nodes=self.nodes,
            pods=self.pods,
            podgroups=self.podgroups,
            queues=self.queues,
            hypernodes=[each for each in self.objects.values() if isinstance(each, HyperNode)],
            held=self.held(),
            exceeding=exceeding_gangs(self.world.cluster),
        )

    def held(self) -> dict[str, str]:
        """Return the nodes where the scheduler holds resources for a pod, by uid."""
        cluster = self.world.cluster
        return {
            uid: cluster.node_matrix.names[hold.node_index]
            for reservation in cluster.reservations
            for uid, hold in reservation.holds.items()
        }

    def compare_cycle(self) -> tuple[Decision, Outcome]:
        """Run a cycle of both.

        Raises:
            AssertionError: they differ.
        """
        self.now += 1.0
        before = self.snapshot()
        decision = self.world.decision(now=self.now)
        chosen = {each.uid: each.node for each in decision.placements}
        outcome = decide(before, self.config, self.held() | chosen)
        enqueued = {ref.key for ref in decision.enqueued}
        assert enqueued == set(outcome.enqueued), (enqueued, outcome.enqueued)
        assert chosen == outcome.placements, (chosen, outcome.placements)
        assert decision.plugin_failures == ()
        self._apply(decision)
        return decision, outcome

    def _apply(self, decision: Decision) -> None:
        """Bind the pods and write the phases, without an event for the latter."""
        for placement in decision.placements:
            pod = self.objects["Pod", placement.name]
            assert isinstance(pod, Pod)
            spec = msgspec.structs.replace(pod.spec, node_name=placement.node)
            self.upsert(msgspec.structs.replace(pod, spec=spec))
        for report in decision.reports:
            name = report.key.partition("/")[2]
            group = self.objects.get(("PodGroup", name))
            if report.requeue_after == 0:
                self.world.cluster.apply(Recheck(report.key))
            if isinstance(group, PodGroup):
                status = PodGroupStatus(
                    phase=report.status.phase, conditions=report.status.conditions
                )
                self.objects["PodGroup", name] = msgspec.structs.replace(group, status=status)

    def set_phase(self, pod: Pod, phase: str) -> None:
        """Report a phase as a kubelet does."""
        self.upsert(msgspec.structs.replace(pod, status=PodStatus(phase=phase)))
