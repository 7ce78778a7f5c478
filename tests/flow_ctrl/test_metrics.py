"""Counters of finished flows, and the number of status writes of a large one."""

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry
from support.flow_stateful import FlowWorld
from support.inmemory_api import InMemoryClient

from batholith.flow_ctrl.controller import JobFlowController
from batholith.flow_ctrl.metrics import FlowMetrics
from batholith.flow_ctrl.settings import FlowSettings
from batholith.model.names import JOBFLOWS, JOBS


class MeasuredWorld(FlowWorld):
    """A world whose controllers share a registry."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = CollectorRegistry()
        self.metrics = FlowMetrics(self.registry)

    def make_controller(self, client: InMemoryClient) -> JobFlowController:
        settings = FlowSettings(metrics=self.metrics)
        return JobFlowController(client, settings=settings, clock=self.clock)

    def count(self, phase: str) -> float | None:
        """The flows of the namespace that entered a phase."""
        name = f"volcano_jobflow_{phase}_phase_count"
        return self.registry.get_sample_value(name, {"jobflow_namespace": "d"})


@pytest.fixture
def world() -> Iterator[MeasuredWorld]:
    world = MeasuredWorld()
    world.put_template("a")
    yield world
    world.close()
    assert world.violations == []


def run_to(world: MeasuredWorld, flow: str, phase: str) -> None:
    world.put_flow(flow, [{"name": "a"}])
    world.run(world.run_until_quiet())
    world.set_phase(world.api.objects(JOBS)[f"d/{flow}-a"], phase)
    world.run(world.run_until_quiet())


def status_writes(world: MeasuredWorld) -> int:
    path = f"/{JOBFLOWS.plural}/f/status"
    return sum(each.method == "PATCH" and each.path.endswith(path) for each in world.api.received)


def test_finished_flows_are_counted_once_by_namespace(world: MeasuredWorld) -> None:
    run_to(world, "f", "Completed")
    run_to(world, "g", "Completed")
    world.api.inject_fault(500, times=2, method="PATCH", path="/status")
    run_to(world, "h", "Failed")
    assert (world.count("succeed"), world.count("failed")) == (2, 1)


def test_a_later_controller_continues_the_counters(world: MeasuredWorld) -> None:
    """The kind may be served again after a while, and its controller starts again."""
    run_to(world, "f", "Completed")
    world.run(world.kill())
    world.run(world.start())
    run_to(world, "g", "Completed")
    assert world.count("succeed") == 2
    names = [family.name for family in world.registry.collect()]
    assert len(names) == len(set(names))


def test_the_series_are_deleted_with_the_last_flow(world: MeasuredWorld) -> None:
    run_to(world, "f", "Completed")
    run_to(world, "g", "Failed")
    world.remove_flow("f")
    world.run(world.run_until_quiet())
    assert world.count("succeed") == 1
    world.remove_flow("g")
    world.run(world.run_until_quiet())
    assert (world.count("succeed"), world.count("failed")) == (None, None)


def test_the_status_of_a_large_flow_is_written_less_often_than_its_jobs_change(
    world: MeasuredWorld,
) -> None:
    names = [f"t{number}" for number in range(300)]
    for name in names:
        world.put_template(name)
    world.put_flow("f", [{"name": name} for name in names])
    world.run(world.run_until_quiet())
    before = status_writes(world)
    for name in names:
        world.set_phase(world.api.objects(JOBS)[f"d/f-{name}"], "Running")
        world.run(world.run_until_idle())
    world.run(world.run_until_quiet())
    assert status_writes(world) - before < 5
    assert len(world.flows["f"]["status"]["runningJobs"]) == 300
    for name in names:
        world.set_phase(world.api.objects(JOBS)[f"d/f-{name}"], "Completed")
    world.run(world.run_until_quiet())
    world.check_invariants()
