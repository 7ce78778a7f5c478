"""The actions gangpreempt and gangreclaim: victims in the domain that loses least."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.preemption import EvictingWorld, conf
from support.scheduler import node, pod, podgroup, queue
from support.topologies import hard, hypernode

from batholith.scheduler import conf as configuration
from batholith.scheduler.plugins.arguments import ArgumentError

MODERATE = settings(max_examples=examples(40), deadline=None)
RACKS = [hypernode(f"rack{i}", [f"n{2 * i}", f"n{2 * i + 1}"]) for i in range(4)]


def text(*, arguments: str = "", gang: bool = False) -> str:
    """The configuration with both actions instead of ``preempt`` and ``reclaim``."""
    found = conf(gang=gang).replace("reclaim, preempt", "gangreclaim, gangpreempt")
    if not arguments:
        return found
    entry = f"{{name: gangpreempt, arguments: {{{arguments}}}}}"
    return found.replace("tiers:", f"configurations: [{entry}]\ntiers:")


def world(config: str, priorities: dict[int, str]) -> EvictingWorld:
    """Four racks of two nodes; on each node with a priority a pod of that runs."""
    found = EvictingWorld(config)
    found.upsert(*(node(f"n{index}", cpu=2) for index in range(8)), *RACKS)
    for index, priority in priorities.items():
        found.gang(f"run{index}", 1, nodes=(f"n{index}",), cpu=2, priority=priority)
    return found


def submit(world: EvictingWorld, size: int, *, queue_name: str = "default") -> None:
    group = podgroup("g", size, topology=hard(1), priority_class="high", queue=queue_name)
    world.upsert(group, *(pod(f"g-x-{index}", "g", cpu=2) for index in range(size)))


MIDDLE_IN_RACK_0 = {1: "mid", 2: "low", 3: "low", **dict.fromkeys(range(4, 8), "mid")}


def test_pods_are_evicted_in_the_domain_where_they_have_the_lowest_priority() -> None:
    """One pod of rack0 would be enough, but has a higher priority than both of rack1."""
    here = world(text(), MIDDLE_IN_RACK_0)
    submit(here, 2)
    here.run()
    assert sorted(here.evicted) == ["run2-t-0", "run3-t-0"]
    here.finish_termination()
    here.run()
    assert {here.node_of("g-x-0"), here.node_of("g-x-1")} == {"n2", "n3"}


def test_preempt_evicts_in_the_domain_with_most_idle_resources() -> None:
    here = world(conf(gang=False), MIDDLE_IN_RACK_0)
    submit(here, 2)
    here.run()
    assert here.evicted == ["run1-t-0"]


def test_the_domain_with_the_fewest_victims_is_used_if_their_priorities_are_equal() -> None:
    here = world(text(), dict.fromkeys((0, 1, 2, 3, 4, 6, 7), "low"))
    submit(here, 2)
    here.run()
    assert here.evicted == ["run4-t-0"]


def test_no_pod_is_evicted_for_a_gang_that_no_domain_could_fit() -> None:
    here = world(text(), dict.fromkeys(range(8), "low"))
    submit(here, 3)
    here.run()
    assert here.evicted == []


def test_gangs_are_looked_for_in_as_many_domains_as_configured() -> None:
    here = world(text(arguments="maxDomains: 1"), MIDDLE_IN_RACK_0)
    submit(here, 2)
    here.run()
    assert here.evicted == ["run1-t-0"]


@pytest.mark.parametrize(("allowed", "victims"), [("true", 1), ("false", 0)])
def test_gangs_are_left_below_their_minimum_only_if_that_is_allowed(
    allowed: str, victims: int
) -> None:
    here = EvictingWorld(text(arguments=f"allowWholeBundle: {allowed}"))
    here.upsert(node("n0", cpu=2), node("n1", cpu=2))
    here.gang("run", 2, nodes=("n0", "n1"), cpu=2, priority="low")
    here.upsert(podgroup("g", 1, priority_class="high"), pod("g-x-0", "g", cpu=2))
    here.run()
    assert len(here.evicted) == victims


def test_gangreclaim_takes_from_the_queue_that_has_more_than_it_deserves() -> None:
    here = EvictingWorld(text())
    here.upsert(queue("a"), queue("b"))
    here.upsert(*(node(f"n{index}", cpu=2) for index in range(4)), *RACKS[:2])
    for index in range(4):
        here.gang(f"run{index}", 1, minimum=0, nodes=(f"n{index}",), cpu=2, queue_name="a")
    submit(here, 2, queue_name="b")
    here.run()
    assert len(here.evicted) == 2
    assert {int(name[3]) // 2 for name in here.evicted} in ({0}, {1})


def test_an_argument_that_is_no_number_is_named() -> None:
    with pytest.raises((configuration.ConfError, ArgumentError), match="maxDomains"):
        configuration.load(text(arguments="maxDomains: many"))
    with pytest.raises(configuration.ConfError, match="domains"):
        configuration.load(text(arguments="domains: 4"))


@MODERATE
@given(
    priorities=st.dictionaries(st.integers(0, 7), st.sampled_from(["low", "mid"]), max_size=8),
    size=st.integers(1, 3),
)
def test_victims_are_in_one_domain_and_none_is_unnecessary(
    priorities: dict[int, str], size: int
) -> None:
    """And no other domain would lose less."""
    here = world(text(), priorities)
    submit(here, size)
    here.run()
    value = {"low": 1, "mid": 10}
    costs = []
    for rack in range(4):
        own = [priorities[n] for n in (2 * rack, 2 * rack + 1) if n in priorities]
        lacking = size - (2 - len(own))
        if size <= 2:
            cheapest = sorted(value[each] for each in own)[: max(lacking, 0)]
            costs.append(sorted(cheapest, reverse=True))
    evicted = [int(name[3]) for name in here.evicted]
    if not costs:
        assert evicted == []
        return
    assert len({index // 2 for index in evicted}) <= 1
    found = sorted((value[priorities[index]] for index in evicted), reverse=True)
    assert found == min(costs)
