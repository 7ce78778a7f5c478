"""Preemption and reclaim for and of pods that describe their PodGroups."""

import pytest
from support.described_cluster import DescribedCluster, Job
from support.preemption import conf, share
from support.scheduler import queue

from batholith.scheduler.framework.decision import Decision

WITH_ENQUEUE = conf(gang=False).replace(
    "name: gang\n", "name: gang\n    enableReclaimable: false\n"
)
WITHOUT_ENQUEUE = WITH_ENQUEUE.replace("enqueue, ", "")
TEXTS = pytest.mark.parametrize("text", [WITH_ENQUEUE, WITHOUT_ENQUEUE], ids=["votes", "no votes"])
LOW = Job(cpu=2, priority_class="low", has_minimum=False)
HIGH = Job(cpu=2, priority_class="high", has_minimum=False)


def full(text: str) -> DescribedCluster:
    """Two nodes full of low jobs, on which a high one waits."""
    it = DescribedCluster(text, stored=False)
    it.put_nodes(n0=2, n1=2)
    it.submit("low0", LOW)
    it.submit("low1", LOW)
    it.cycle()
    it.cycle()
    assert it.phases() == {"low0": "Running", "low1": "Running"}
    it.submit("high", HIGH)
    return it


def evicting(it: DescribedCluster) -> Decision:
    """Run cycles until one evicts."""
    for _ in range(3):
        decision = it.cycle()
        if decision.evictions:
            return decision
    raise AssertionError("no eviction")


@TEXTS
def test_a_described_pod_gets_the_node_of_a_described_victim(text: str) -> None:
    it = full(text)
    decision = evicting(it)
    (eviction,) = decision.evictions
    assert eviction.gang is not None
    assert eviction.gang.podgroup is not None
    assert not eviction.gang.podgroup.is_stored
    victim = it.evicted[0]
    freed = it.jobs[victim].spec.node_name
    assert it.nominated == {"high": freed}
    assert not it.cycle().evictions
    assert it.finish_termination() == [victim]
    it.cycle()
    assert it.jobs["high"].spec.node_name == freed
    assert it.evicted == [victim]
    assert it.phases() == {"high": "Inqueue", ({"low0", "low1"} - {victim}).pop(): "Running"}
    it.cycle()
    assert it.phases()["high"] == "Running"


@TEXTS
def test_a_victim_keeps_its_phase_until_it_is_gone_and_its_successor_waits(text: str) -> None:
    it = full(text)
    evicting(it)
    (victim,) = it.evicted
    it.cycle()
    assert it.phases()[victim] == "Running"
    it.finish_termination()
    it.submit(victim, LOW)
    for _ in range(4):
        it.cycle()
    assert it.evicted == [victim]
    assert it.jobs["high"].spec.node_name
    assert not it.jobs[victim].spec.node_name
    assert it.phases()[victim] in ("Pending", "Inqueue")
    assert it.world.fit_message(victim)


def test_a_queue_reclaims_from_described_pods_of_another() -> None:
    queues = share("one", reclaimable=True), share("two", reclaimable=True)
    it = DescribedCluster(WITHOUT_ENQUEUE, stored=False, queues=queues)
    it.put_nodes(n0=2, n1=2)
    for number in range(4):
        it.submit(f"one{number}", Job(queue="one", preemptable="true"))
    it.cycle()
    for number in range(3):
        it.submit(f"two{number}", Job(queue="two"))
    for _ in range(6):
        it.cycle()
        it.finish_termination()
    assert len(it.evicted) == 2
    on_nodes = [name for name, each in it.jobs.items() if each.spec.node_name]
    running = [name for name in on_nodes if it.jobs[name].status.phase == "Running"]
    assert sorted(name[:3] for name in running) == ["one", "one", "two", "two"]
    allocated = {
        name: each.allocated.get("cpu") for name, each in it.world.cluster.queues.by_name.items()
    }
    assert (allocated["one"], allocated["two"]) == (2000, 2000)


@TEXTS
@pytest.mark.parametrize("when", ["nominated", "evicted", "terminated"])
def test_a_restart_keeps_for_a_described_pod_what_was_evicted_for_it(text: str, when: str) -> None:
    """An older low job waits, too, and would take the node."""
    it = full(text)
    it.submit("greedy", LOW)
    evicting(it)
    (victim,) = it.evicted
    if when == "nominated":  # killed before the eviction was sent
        it.keep(victim)
        it.evicted.clear()
    if when == "terminated":
        it.finish_termination()
    it.restart()
    for _ in range(6):
        it.cycle()
        it.finish_termination()
    assert len(it.evicted) == 1
    assert it.jobs["high"].spec.node_name
    assert not it.jobs["greedy"].spec.node_name


def test_a_pod_with_a_nominated_node_is_still_admitted_after_a_restart() -> None:
    """Else another job, which was to wait, would be admitted first, and the eviction in vain."""
    text = WITH_ENQUEUE.replace(
        "name: overcommit", "name: overcommit\n    arguments:\n      overcommit-factor: 5"
    )
    queues = share("rich", reclaimable=True), queue("limited", capability={"cpu": 2})
    it = DescribedCluster(text, stored=False, queues=queues)
    it.put_nodes(n0=4)
    it.submit("low0", Job(cpu=2, queue="rich"))
    it.submit("low1", Job(cpu=2, queue="rich"))
    it.cycle()
    it.submit("large", Job(cpu=3, queue="limited"))
    it.submit("small", Job(cpu=2, queue="limited"))
    evicting(it)
    assert it.nominated == {"small": "n0"}
    it.finish_termination()
    it.put_queue("limited", capability={"cpu": 4})
    it.restart()
    it.cycle()
    assert it.jobs["small"].spec.node_name == "n0"
    assert it.phases()["large"] == "Pending"
