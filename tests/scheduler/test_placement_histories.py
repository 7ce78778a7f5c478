"""Random histories of placement at creation: job controller and scheduler killed at any write, cut
off, late, and refused, with nodes and other pods that are added and deleted."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from support.placement_stateful import CONTROLLER, SCHEDULER, PlacementWorld
from support.stateful import PACE, ControllerMachine, fault_rule, late_watch_rule, stateful_settings

from batholith.model.described_podgroup import PodGroupsOf
from batholith.model.names import JOBS, NODES, PODGROUPS, PODS
from batholith.model.placement import CLOCK_SKEW_SECONDS

WHICH = st.integers(0, 30)
COMPONENT = st.sampled_from([CONTROLLER, SCHEDULER])


async def _bring_requests_in_flight(
    world: PlacementWorld, name: str, *, size: int, seen_after: float, event: str
) -> None:
    """Let the creation of planned pods be in flight, without a controller, when *event* happens."""
    await world.recover()
    world.submit(name, size, size, cpu=1, queue="default")
    for _ in range(300):
        if world.plan_of(name) is not None:
            break
        await world.run_iterations(1)
    node = world.first_node_of(name)
    world.api.hold_watches(PODGROUPS)
    world.api.is_slow = True
    await world.pass_time(seen_after)
    world.api.release_watches()
    for _ in range(6):
        if not world.api.late:
            await world.pass_time(0.5)
    await world.stop_component(CONTROLLER)
    if event == SCHEDULER:
        await world.stop_component(SCHEDULER)
    elif event.startswith("node"):
        await world.lose_node(node, event)
    elif event.startswith(("job", "pods")):
        await world.lose_pods(name, with_job=event == "job deleted")
    world.api.is_slow = False
    await world.start_component(SCHEDULER)


class PlacementMachine(ControllerMachine[PlacementWorld]):
    """Both components under everything that may happen to them."""

    def __init__(self) -> None:
        super().__init__(PlacementWorld())
        self.jobs = 0

    @initialize(
        cpus=st.lists(st.sampled_from([2, 4, 8]), min_size=1, max_size=3),
        skew=st.sampled_from([0.0, CLOCK_SKEW_SECONDS, -CLOCK_SKEW_SECONDS]),
        podgroups=st.sampled_from(PodGroupsOf),
    )
    def begin(self, cpus: list[int], skew: float, podgroups: PodGroupsOf) -> None:
        """Create nodes and queues."""
        self.world.podgroups = podgroups
        self.world.controller_skew = skew
        self.world.put_queue("limited", capability={"cpu": "6"})
        for i, cpu in enumerate(cpus):
            self.world.put_node(f"n{i}", cpu=cpu)
        self.world.run(self.world.start())
        self._settle_or_advance(12)

    def _pick(self, names: list[str], which: int) -> str:
        return names[which % len(names)]

    # Users.

    @precondition(lambda self: self.jobs < 8)
    @rule(
        size=st.sampled_from([1, 1, 1, 2, 3, 4, 5, 6]),
        spare=st.integers(0, 2),
        cpu=st.sampled_from([1, 1, 2]),
        queue=st.sampled_from(["default", "limited"]),
        pace=PACE,
    )
    def submit_a_job(self, size: int, spare: int, cpu: int, queue: str, pace: int | None) -> None:
        name = f"j{self.jobs}"
        self.jobs += 1
        self.world.submit(name, size, max(size - spare, 1), cpu=cpu, queue=queue)
        self._settle_or_advance(pace)

    @precondition(lambda self: self.world.objects(JOBS))
    @rule(which=WHICH, pace=PACE)
    def delete_a_job(self, which: int, pace: int | None) -> None:
        self.world.delete_job(self._pick(list(self.world.objects(JOBS)), which))
        self._settle_or_advance(pace)

    @precondition(lambda self: self.world.objects(JOBS))
    @rule(
        which=WHICH,
        action=st.sampled_from(["RestartJob", "AbortJob", "ResumeJob", "TerminateJob"]),
        pace=PACE,
    )
    def command_a_job(self, which: int, action: str, pace: int | None) -> None:
        self.world.command(self._pick(list(self.world.objects(JOBS)), which), action)
        self._settle_or_advance(pace)

    @precondition(lambda self: self.world.objects(JOBS))
    @rule(which=WHICH, replicas=st.integers(1, 7), pace=PACE)
    def scale_a_job(self, which: int, replicas: int, pace: int | None) -> None:
        self.world.scale(self._pick(list(self.world.objects(JOBS)), which), replicas)
        self._settle_or_advance(pace)

    @precondition(lambda self: self.world.pods)
    @rule(which=WHICH, pace=PACE)
    def delete_a_pod(self, which: int, pace: int | None) -> None:
        self.world.api.request_delete(PODS, self._pick(list(self.world.pods), which))
        self._settle_or_advance(pace)

    # Nodes, kubelets, another scheduler.

    @rule(pace=PACE)
    def kubelets_run(self, pace: int | None) -> None:
        self.world.run_kubelets()
        self._settle_or_advance(pace)

    @precondition(lambda self: self.world.pods)
    @rule(which=WHICH, phase=st.sampled_from(["Succeeded", "Failed"]), pace=PACE)
    def a_pod_ends(self, which: int, phase: str, pace: int | None) -> None:
        name = self._pick(list(self.world.pods), which)
        if self.world.pods[name].get("status", {}).get("phase") == "Running":
            self.world.api.put(PODS, name, status={"phase": phase})
        self._settle_or_advance(pace)

    @rule(
        name=st.sampled_from(["n0", "n1", "n2", "n3"]),
        cpu=st.sampled_from([2, 4, 8]),
        cordoned=st.sampled_from([False, False, True]),
        pace=PACE,
    )
    def add_or_change_a_node(self, name: str, cpu: int, cordoned: bool, pace: int | None) -> None:
        self.world.put_node(name, cpu=cpu, cordoned=cordoned)
        self._settle_or_advance(pace)

    @precondition(lambda self: self.world.objects(NODES))
    @rule(which=WHICH, pace=PACE)
    def remove_a_node(self, which: int, pace: int | None) -> None:
        self.world.remove_node(self._pick(list(self.world.objects(NODES)), which))
        self._settle_or_advance(pace)

    @precondition(lambda self: self.world.objects(NODES))
    @rule(which=WHICH, number=st.integers(0, 2), cpu=st.integers(1, 3), pace=PACE)
    def another_scheduler_binds_its_pod(
        self, which: int, number: int, cpu: int, pace: int | None
    ) -> None:
        node = self._pick(list(self.world.objects(NODES)), which)
        if f"other-{number}" not in self.world.pods:
            self.world.put_other(f"other-{number}", node, cpu=cpu)
        self._settle_or_advance(pace)

    # Faults and time.

    requests_fail = fault_rule("", "/binding", "/pods", "/podgroups", "/jobs")

    @rule(times=st.integers(1, 3), status=st.sampled_from([403, 422]), pace=PACE)
    def pods_are_rejected(self, times: int, status: int, pace: int | None) -> None:
        self.world.api.inject_fault(status, times=times, method="POST", path="/pods")
        self._settle_or_advance(pace)

    @rule(left=st.integers(0, 12), carried_out=st.booleans(), pace=st.sampled_from([None, 25, 60]))
    def a_component_is_killed_at_a_write(
        self, left: int, carried_out: bool, pace: int | None
    ) -> None:
        """kill -9 at any write of either component; a restart repairs what it leaves."""
        self.world.api.dies_after = (left, carried_out)
        self._settle_or_advance(pace)

    @rule(component=COMPONENT, kill=st.booleans(), iterations=st.integers(0, 30))
    def a_component_ends(self, component: str, kill: bool, iterations: int) -> None:
        """kill -9 at any await."""
        self.world.run(self.world.run_iterations(iterations))
        self.world.run(self.world.stop_component(component, kill=kill))

    @rule(component=COMPONENT, pace=PACE)
    def a_component_starts(self, component: str, pace: int | None) -> None:
        self.world.run(self.world.start_component(component))
        self._settle_or_advance(pace)

    @rule(podgroups=st.sampled_from(PodGroupsOf), kill=st.booleans(), pace=PACE)
    def the_option_of_the_controller_changes(
        self, podgroups: PodGroupsOf, kill: bool, pace: int | None
    ) -> None:
        self.world.run(self.world.stop_component(CONTROLLER, kill=kill))
        self.world.podgroups = podgroups
        self.world.run(self.world.start_component(CONTROLLER))
        self._settle_or_advance(pace)

    @rule(is_slow=st.booleans(), pace=PACE)
    def planned_pods_are_created_late(self, is_slow: bool, pace: int | None) -> None:
        self.world.api.is_slow = is_slow
        self._settle_or_advance(pace)

    @rule(seconds=st.sampled_from([0, 3, 9]), pace=PACE)
    def late_pods_are_created(self, seconds: float, pace: int | None) -> None:
        self.world.run(self.world.pass_time(seconds))
        self.world.run(self.world.api.carry_out_late())
        self._settle_or_advance(pace)

    @precondition(lambda self: self.jobs < 7)
    @rule(
        size=st.integers(1, 6),
        seen_after=st.sampled_from([0, 0, 16, 28]),
        event=st.sampled_from(
            [
                "job deleted",
                "pods deleted",
                "node cordoned",
                "node filled",
                "node removed",
                SCHEDULER,
            ]
        ),
        has_controller=st.booleans(),
        carried_out_after=st.sampled_from([0, 3, 9]),
        pace=PACE,
    )
    def something_happens_while_planned_pods_are_in_flight(
        self,
        size: int,
        seen_after: float,
        event: str,
        has_controller: bool,
        carried_out_after: float,
        pace: int | None,
    ) -> None:
        """The single rules are seldom executed in this order.

        Another gang waits for the capacity. Without a controller, which would create the pods
        again, the late requests are not in vain.
        """
        names = f"j{self.jobs}", f"j{self.jobs + 1}"
        self.jobs += 2
        self.world.run(
            _bring_requests_in_flight(
                self.world, names[0], size=size, seen_after=seen_after, event=event
            )
        )
        if has_controller:
            self.world.run(self.world.start_component(CONTROLLER))
            self.world.submit(names[1], size, size, cpu=1, queue="default")
        else:
            self.world.run(self.world.stop_component(CONTROLLER))
            self.world.submit_gang(names[1], size)
        self.world.run(self.world.pass_time(carried_out_after))
        self.world.run(self.world.api.carry_out_late())
        self._settle_or_advance(pace)

    @rule(seconds=st.sampled_from([0.5, 3, 12, 29, 31, 44, 90]), pace=PACE)
    def time_passes(self, seconds: float, pace: int | None) -> None:
        self.world.run(self.world.pass_time(seconds))
        self._settle_or_advance(pace)

    a_watch_is_late = late_watch_rule(PODS, PODGROUPS, NODES, JOBS)

    @rule()
    def nothing_is_charged_a_minute_after_the_controller_has_ended(self) -> None:
        """What a plan holds for pods that never arrive is free within 60 seconds."""
        self.world.run(self._lose_controller())

    async def _lose_controller(self) -> None:
        world = self.world
        await world.stop_component(CONTROLLER)
        world.api.dies_after = None
        world.api.clear_faults()
        world.api.late.clear()
        world.api.release_watches()
        await world.start_component(SCHEDULER)
        await world.pass_time(60)
        world.check_charges()

    @rule()
    def a_new_controller_finds_nothing_to_do(self) -> None:
        """INV-LC-4, INV-PIPE-1: new components change no pod."""
        self._settle_or_advance(None)
        before = {name: pod["metadata"]["uid"] for name, pod in self.world.pods.items()}
        self.world.run(self.world.kill())
        self._settle_or_advance(None)
        after = {name: pod["metadata"]["uid"] for name, pod in self.world.pods.items()}
        assert after == before


TestPlacementMachine = PlacementMachine.TestCase
TestPlacementMachine.settings = stateful_settings(steps=20, histories=30)


def test_a_job_is_placed_at_creation() -> None:
    """The machine would prove little if no pod ever had a node at creation."""
    world = PlacementWorld()
    try:
        world.put_node("n0", cpu=8)
        world.submit("j", 5, 5, cpu=1, queue="default")
        world.run(world.run_until_quiet())
        world.check_invariants()
        assert world.created_with_node == 5
        assert not world.violations
    finally:
        world.close()


@pytest.mark.parametrize("seen_after", [0.0, 28.0])
def test_capacity_is_free_only_when_no_request_can_use_it_any_more(seen_after: float) -> None:
    """The requests that a plan has caused may take effect ten seconds later, without their job."""
    world = PlacementWorld()
    world.put_node("n0", cpu=4)

    async def run() -> None:
        await world.start()
        await world.pass_time(1)
        world.submit("a", 4, 4, cpu=1, queue="default")
        world.api.is_slow = True
        while not world.plans:
            world.api.hold_watches(PODS)
            await world.run_iterations(1)
        world.api.hold_watches(PODGROUPS)
        await world.pass_time(seen_after)
        world.api.release_watches()
        while not world.api.late:
            await world.pass_time(0.5)
        world.api.is_slow = False
        world.delete_job("a")
        world.submit("b", 4, 4, cpu=1, queue="default")
        await world.pass_time(9)
        await world.api.carry_out_late()
        await world.pass_time(1)
        assert [pod["spec"]["nodeName"] for pod in world.pods_of("a")]
        assert not any(pod["spec"].get("nodeName") for pod in world.pods_of("b"))
        for pod in world.pods_of("a"):
            world.api.force_delete(PODS, pod["metadata"]["name"])
        await world.run_until_quiet()
        assert all(pod["spec"]["nodeName"] == "n0" for pod in world.pods_of("b"))
        assert len(world.pods_of("b")) == 4

    try:
        world.run(run())
        assert world.violations == []
    finally:
        world.close()


@pytest.mark.parametrize("event", ["node cordoned", "node filled"])
def test_a_former_node_is_charged_while_requests_for_it_are_in_flight(event: str) -> None:
    """The members get another node, the controller ends, and the former node is idle again."""
    world = PlacementWorld()
    try:
        world.put_node("n0", cpu=4)
        world.put_node("n1", cpu=4)
        world.run(world.start())
        world.run(_bring_requests_in_flight(world, "a", size=4, seen_after=0.0, event=event))
        assert world.api.late
        plan = world.plan_of("a")
        assert plan is not None
        (former,) = {node for _, node in plan.former}
        assert set(plan.nodes.values()) == {"n0", "n1"} - {former}
        world.submit_gang("g", 4)
        world.run(world.pass_time(5))
        assert not any(
            name.startswith("g") and pod["spec"].get("nodeName") for name, pod in world.pods.items()
        )
        world.run(world.api.carry_out_late())
        late = world.pods_of("a")
        assert late
        assert {pod["spec"]["nodeName"] for pod in late} == {former}
        world.run(world.run_until_quiet())
        world.check_invariants()
        assert world.violations == []
    finally:
        world.close()
