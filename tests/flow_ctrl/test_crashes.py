"""Random flows run to their end, with the controller killed between any two writes."""

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.flow_stateful import FINAL, FlowWorld, phase_of

from batholith.model.names import JOBS

NAMES = "abcdefgh"
KILLS = st.lists(st.none() | st.integers(0, 60), min_size=1, max_size=40)
"""Loop iterations after which the controller is killed, for each step; none: it is not."""


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    """Targets by name."""
    return {
        name: sorted(draw(st.sets(st.sampled_from(NAMES[:number]), max_size=3))) if number else []
        for number, name in enumerate(NAMES)
    }


def dependents(graph: dict[str, list[str]], of: str) -> set[str]:
    """All flows that depend on one, at any depth."""
    found = {of}
    for name, targets in graph.items():  # targets precede
        if found & {*targets}:
            found.add(name)
    return found - {of}


@settings(max_examples=examples(30), deadline=None)
@given(
    graph=graphs(),
    kills=KILLS,
    seed=st.integers(0, 1000),
    failing=st.none() | st.sampled_from(NAMES),
    lag=st.sampled_from([1, 1, 5]),
)
def test_each_job_is_created_once_and_in_order_whatever_is_killed(
    graph: dict[str, list[str]], kills: list[int | None], seed: int, failing: str | None, lag: int
) -> None:
    """INV-JF-1 to INV-JF-4."""
    world = FlowWorld()
    world.api.response_lag = lag
    try:
        run_to_the_end(world, graph, kills, seed=seed, failing=failing)
        created = {name.removeprefix("f-") for _, name in world.created}
        assert set(world.created.values()) == {1}
        if failing is None:
            assert (world.phase("f"), created) == ("Succeed", {*NAMES})
        else:
            assert world.phase("f") == "Failed"
            assert not created & dependents(graph, failing)
    finally:
        world.close()
    assert world.violations == []


def run_to_the_end(
    world: FlowWorld,
    graph: dict[str, list[str]],
    kills: list[int | None],
    *,
    seed: int,
    failing: str | None,
) -> None:
    """Let the Jobs of a flow end in random order until no more are created."""
    order = Random(seed)
    for name in NAMES:
        world.put_template(name)
    flows: list[dict[str, Any]] = [
        {"name": name, "dependsOn": {"targets": targets}} for name, targets in graph.items()
    ]
    order.shuffle(flows)
    world.put_flow("f", flows)
    steps = [*kills]
    while True:
        step(world, steps.pop() if steps else None)
        unfinished = [job for job in world.api.objects(JOBS).values() if phase_of(job) not in FINAL]
        if not unfinished:
            break
        job = order.choice(unfinished)
        name = job["metadata"]["name"].removeprefix("f-")
        world.set_phase(job, "Failed" if name == failing else "Completed")
    world.run(world.run_until_quiet())
    world.check_invariants()


def step(world: FlowWorld, killed_after: int | None) -> None:
    """Let the controller work until it is idle; kill it once in between."""
    if killed_after is not None:
        world.run(world.start())
        world.run(world.run_iterations(killed_after))
        world.run(world.kill())
    world.run(world.run_until_quiet())
