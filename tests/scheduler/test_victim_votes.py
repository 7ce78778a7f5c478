"""Votes on victims: each plugin on its own, and how the votes are combined."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from support.preemption import EvictingWorld, conf, member, node, podgroup, share

from batholith.model.meta import LabelSelector, ObjectMeta
from batholith.scheduler.framework.framework import Framework
from batholith.scheduler.framework.plugin_calls import PluginCalls, PluginError
from batholith.scheduler.framework.victims import Reach, VictimVotes
from batholith.scheduler.plugins.extension_points import Preemptor
from batholith.scheduler.state.gangs.disruption_budgets import (
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from batholith.scheduler.state.gangs.gang import Gang, Task
from batholith.scheduler.state.queue.scheduling_queue import ANY


class Voter:
    """A plugin that permits tasks by name, or abstains."""

    def __init__(self, permitted: Iterable[str] | None) -> None:
        self._permitted = None if permitted is None else set(permitted)
        self.asked: list[str] = []

    def preemptable(self, preemptor: Preemptor, candidates: Sequence[Task]) -> list[Task] | None:
        self.asked = [task.name for task in candidates]
        if self._permitted is None:
            return None
        return [task for task in candidates if task.name in self._permitted]


class StateVoter:
    """A plugin with an opinion on the state of gangs."""

    def __init__(self, *, starving: bool = True, pipelined: bool | None = None) -> None:
        self.starving, self.pipelined = starving, pipelined

    def job_starving(self, gang: Gang) -> bool:
        return self.starving

    def job_pipelined(self, gang: Gang) -> bool | None:
        return self.pipelined


class FailingVoter:
    def preemptable(self, preemptor: Preemptor, candidates: Sequence[Task]) -> list[Task]:
        raise ValueError("no idea")


def votes_of(*tiers: Sequence[object]) -> VictimVotes:
    """The votes of plugins in tiers."""
    framework = Framework(())
    voters: Any = [list(tier) for tier in tiers]
    framework.preemptable = framework.job_starving = framework.job_pipelined = voters
    return VictimVotes(framework, PluginCalls({}), None)  # type: ignore[arg-type]


@pytest.fixture
def world() -> EvictingWorld:
    """A running gang of three, and one that waits."""
    world = EvictingWorld()
    world.upsert(node("a", cpu=3))
    world.gang("run", 3, nodes=("a",))
    world.gang("wait", 1, priority="high")
    return world


def permitted(world: EvictingWorld, *tiers: Sequence[object]) -> list[str]:
    """Which tasks of the running gang the plugins permit to be evicted."""
    gang = world.cluster.gangs["ns/wait"]
    task = next(iter(gang.tasks.values()))
    preemptor = Preemptor(gang, world.cluster.queues.of(gang), task.eq_class, 1, task.priority)
    candidates = sorted(world.cluster.gangs["ns/run"].tasks.values(), key=lambda each: each.name)
    victims = votes_of(*tiers).victims(Reach.PREEMPT, preemptor, candidates)
    return [task.name[-1] for task in victims]


def names(*indexes: int) -> list[str]:
    return [f"run-t-{index}" for index in indexes]


def test_answers_of_a_tier_are_intersected(world: EvictingWorld) -> None:
    assert permitted(world, [Voter(names(0, 1)), Voter(names(1, 2))]) == ["1"]


def test_first_tier_with_an_answer_decides(world: EvictingWorld) -> None:
    later = Voter(names(2))
    assert permitted(world, [Voter(None)], [Voter(names(0, 1))], [later]) == ["0", "1"]
    assert later.asked == []


def test_empty_answer_means_no_victims_quirk_11(world: EvictingWorld) -> None:
    """Reference quirk 11: there the next tier is asked, or a later plugin starts again."""
    assert permitted(world, [Voter(())], [Voter(names(0))]) == []
    assert permitted(world, [Voter(names(0)), Voter(names(1)), Voter(names(2))]) == []


def test_each_plugin_is_asked_about_all_candidates(world: EvictingWorld) -> None:
    second = Voter(names(0, 1, 2))
    permitted(world, [Voter(names(0)), second])
    assert second.asked == names(0, 1, 2)


def test_there_are_no_victims_without_voters(world: EvictingWorld) -> None:
    assert permitted(world) == []
    assert permitted(world, [Voter(None)]) == []


def test_vote_that_raises_is_no_permission(world: EvictingWorld) -> None:
    with pytest.raises(PluginError) as caught:
        permitted(world, [FailingVoter()])
    assert caught.value.extension_point == "preemptable"


@pytest.mark.parametrize(
    ("tiers", "expected"),
    [
        ((), False),
        (((True, True),), True),
        (((True, False),), False),
        (((), (True,), (False,)), True),
        (((), (False,), (True,)), False),
    ],
)
def test_starvation_is_decided_by_the_first_tier(
    tiers: tuple[tuple[bool, ...], ...], expected: bool
) -> None:
    voters = [[StateVoter(starving=vote) for vote in tier] for tier in tiers]
    assert votes_of(*voters).job_starving(Gang("ns/g")) is expected


@pytest.mark.parametrize(
    ("tiers", "expected"),
    [
        ((), True),
        (((None,), (None,)), True),
        (((True, None), (False,)), True),
        (((True, False),), False),
        (((None,), (False,)), False),
        (((None,), (True,)), True),
    ],
)
def test_readiness_after_the_wait_is_voted_by_tier(
    tiers: tuple[tuple[bool | None, ...], ...], expected: bool
) -> None:
    voters = [[StateVoter(pipelined=vote) for vote in tier] for tier in tiers]
    assert votes_of(*voters).job_pipelined(Gang("ns/g")) is expected


# -- plugins ----------------------------------------------------------------------------------


def test_gang_permits_only_what_gangs_have_beyond_their_minimum() -> None:
    world = EvictingWorld(conf(gang=True))
    world.upsert(node("a", cpu=4))
    world.gang("run", 4, minimum=3, nodes=("a",))
    world.gang("two", 2, priority="high")
    world.run()
    assert world.evicted == []
    world.gang("one", 1, priority="high")
    world.run()
    assert len(world.evicted) == 1


def test_gang_respects_the_minimum_of_a_role() -> None:
    world = EvictingWorld(conf(gang=True))
    world.upsert(node("a", cpu=4))
    world.upsert(podgroup("run", 2, phase="Running", roles={"ps": 1}, priority_class="low"))
    world.upsert(member("run-ps-0", "run", "a", role="ps", cpu=3))
    world.upsert(member("run-w-0", "run", "a", role="w", cpu="500m"))
    world.upsert(member("run-w-1", "run", "a", role="w", cpu="500m"))
    world.gang("high", 1, priority="high", cpu=3)
    world.run()
    assert world.evicted == []  # the only ps is needed, though the gang has three pods


def test_elastic_surplus_does_not_preempt_quirk_14() -> None:
    """Reference quirk 14: only jobs below their minimum evict others."""
    world = EvictingWorld(conf(gang=False))
    world.upsert(node("a", cpu=2))
    world.gang("low", 1, nodes=("a",))
    world.gang("high", 2, minimum=1, priority="high")
    world.run()
    world.run()
    assert world.node_of("high-t-0") == "a"
    assert world.evicted == []


@pytest.mark.parametrize("priority", ["high", "mid"])
def test_priority_protects_gangs_of_own_or_higher_priority(priority: str) -> None:
    world = EvictingWorld(conf(gang=False))
    world.upsert(node("a", cpu=1))
    world.gang("run", 1, nodes=("a",), priority=priority)
    world.gang("wait", 1, priority="mid")
    world.run()
    assert world.evicted == []


def test_priority_is_respected_without_the_plugin() -> None:
    text = conf(gang=False).replace(
        "name: priority", "name: priority\n    enablePreemptable: false"
    )
    world = EvictingWorld(text)
    world.upsert(node("a", cpu=1))
    world.gang("run", 1, nodes=("a",), priority="high")
    world.gang("wait", 1, priority="high")
    world.run()
    assert world.evicted == []


@pytest.mark.parametrize(
    "fields",
    [
        {"priority_class": "system-cluster-critical"},
        {"priority_class": "system-node-critical"},
    ],
)
def test_conformance_protects_critical_pods(fields: dict[str, Any]) -> None:
    world = EvictingWorld(conf(gang=False))
    world.upsert(node("a", cpu=1))
    world.gang("run", 1, nodes=("a",), **fields)
    world.gang("wait", 1, priority="high")
    world.run()
    assert world.evicted == []


def test_conformance_protects_the_system_namespace() -> None:
    world = EvictingWorld(conf(gang=False))
    world.upsert(node("a", cpu=1))
    world.gang("run", 1, nodes=("a",))
    task = next(iter(world.cluster.gangs["ns/run"].tasks.values()))
    assert not task.traits.critical
    system = member("s", "run", "a", namespace="kube-system")
    world.upsert(system)
    assert world.cluster.gangs["kube-system/run"].tasks["uid-s"].traits.critical


@pytest.mark.parametrize("enabled", [True, False])
def test_drf_protects_gangs_with_a_smaller_share(*, enabled: bool) -> None:
    text = conf(gang=False, drf=enabled).replace(
        "name: priority", "name: priority\n    enablePreemptable: false"
    )
    world = EvictingWorld(text.replace("  - name: conformance\n", ""))
    world.upsert(node("a", cpu=7))
    world.gang("many", 5, minimum=1, nodes=("a",))
    world.gang("few", 2, minimum=1, nodes=("a",), started="2026-01-02T00:00:00Z")
    world.gang("wait", 2, priority="high")
    world.run()
    if enabled:
        assert [name.partition("-")[0] for name in world.evicted] == ["many", "many"]
    else:  # no plugin votes
        assert world.evicted == []


def test_proportion_permits_what_queues_have_beyond_their_share() -> None:
    world = EvictingWorld()
    world.upsert(node("a", cpu=10, memory="100Gi"), share("one"), share("two"))
    world.gang("one", 10, minimum=1, nodes=("a",), queue_name="one")
    world.gang("two", 5, queue_name="two")
    world.run()
    assert len(world.evicted) == 5
    world.finish_termination()
    world.run()
    assert world.node_of("two-t-4") == "a"
    world.gang("more", 1, queue_name="two")
    world.run()
    assert len(world.evicted) == 5  # both queues have what they deserve


def test_reclaim_spares_queues_that_are_not_reclaimable() -> None:
    world = EvictingWorld()
    world.upsert(node("a", cpu=10, memory="100Gi"), share("one", reclaimable=False), share("two"))
    world.gang("one", 10, minimum=1, nodes=("a",), queue_name="one")
    world.gang("two", 5, queue_name="two")
    world.run()
    assert world.evicted == []


def test_reclaim_spares_what_is_guaranteed() -> None:
    world = EvictingWorld()
    world.upsert(node("a", cpu=10, memory="100Gi"), share("one", guarantee=8), share("two"))
    world.gang("one", 10, minimum=1, nodes=("a",), queue_name="one")
    world.gang("three", 3, queue_name="two")
    world.run()
    assert world.evicted == []
    world.gang("two", 2, queue_name="two")
    world.run()
    assert len(world.evicted) == 2


def test_reclaim_ignores_priority_as_recorded() -> None:
    world = EvictingWorld()
    world.upsert(node("a", cpu=2, memory="100Gi"), share("one"), share("two"))
    world.gang("one", 2, minimum=1, nodes=("a",), queue_name="one", priority="high")
    world.gang("two", 1, queue_name="two", priority="low")
    world.run()
    assert len(world.evicted) == 1


PDB = "  - name: pdb\n"


def budget(
    allowed: int, *, disrupted: tuple[str, ...] = (), name: str = "b"
) -> PodDisruptionBudget:
    """A budget over the pods of app db."""
    return PodDisruptionBudget(
        metadata=ObjectMeta(name=name, namespace="ns"),
        spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": "db"})),
        status=PodDisruptionBudgetStatus(
            disruptions_allowed=allowed, disrupted_pods=dict.fromkeys(disrupted, "")
        ),
    )


def pdb_world(*budgets: PodDisruptionBudget) -> EvictingWorld:
    """Four pods of app db on a full node."""
    world = EvictingWorld(conf(gang=False, more=PDB))
    world.upsert(node("a", cpu=4))
    world.gang("run", 4, minimum=1, nodes=("a",), labels={"app": "db"})
    for each in budgets:
        world.cluster.disruption_budgets.update(None, each)
    return world


def test_pdb_permits_as_many_as_the_budget_allows() -> None:
    world = pdb_world(budget(1))
    world.gang("two", 2, priority="high")
    world.run()
    assert world.evicted == []
    world.gang("one", 1, priority="high")
    world.run()
    assert len(world.evicted) == 1


def test_pdb_counts_evictions_that_the_budget_does_not_know_yet() -> None:
    world = pdb_world(budget(1))
    world.gang("one", 1, priority="high")
    assert len(world.decision().evictions) == 1  # requested, not confirmed
    world.gang("other", 1, priority="high")
    assert world.decision().evictions == ()


def test_pdb_protects_pods_of_several_budgets() -> None:
    world = pdb_world(budget(4), budget(4, name="c"))
    world.gang("one", 1, priority="high")
    world.run()
    assert world.evicted == []


def test_pdb_is_a_filter_quirk_37() -> None:
    """Reference quirk 37: there it proposes every pod that its budgets allow to ``shuffle``."""
    world = pdb_world(budget(4))
    world.reload(conf(gang=False, more=PDB).replace('preempt"', 'preempt, shuffle"'))
    assert world.run().evictions == ()
    assert world.core.next_due() is None


def test_cdp_protects_pods_during_their_cooldown_time() -> None:
    world = EvictingWorld(conf(gang=False, more="  - name: cdp\n"))
    world.upsert(node("a", cpu=1))
    world.gang(
        "run",
        1,
        nodes=("a",),
        started="2026-01-01T00:00:00Z",
        annotations={"volcano.sh/cooldown-time": "10m"},
    )
    world.gang("wait", 1, priority="high")
    start = 1767225600.0
    world.run(time=start + 599)
    assert world.evicted == []
    world.cluster.scheduling_queue.publish(ANY)
    world.run(time=start + 600)
    assert world.evicted == ["run-t-0"]
