"""Random histories of a cluster, with its scheduler killed, disconnected, lagging and refused."""

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from support.scheduler_stateful import QUEUE_LIMIT, PreemptingHistory, SchedulerHistory, _ends
from support.stateful import PACE, ControllerMachine, fault_rule, late_watch_rule, stateful_settings

from batholith.model.names import NODES, PODGROUPS, PODS, QUEUES

WHICH = st.integers(0, 30)
QUEUE_NAMES = st.sampled_from(["default", "limited"])
MAX_PODS = 30


class SchedulerMachine(ControllerMachine[SchedulerHistory]):
    """The scheduler under random operations and faults."""

    def __init__(self, world: SchedulerHistory | None = None) -> None:
        super().__init__(world or SchedulerHistory())
        self.gangs = self.described = 0

    @initialize(cpus=st.lists(st.sampled_from([2, 4, 8]), min_size=1, max_size=3))
    def begin(self, cpus: list[int]) -> None:
        """Create nodes and queues."""
        self.world.put_queue("default")
        self.world.put_queue("limited", capability={"cpu": str(QUEUE_LIMIT)}, weight=2)
        for i, cpu in enumerate(cpus):
            self.world.put_node(f"n{i}", cpu=cpu)
        self._settle_or_advance(None)

    def _pick(self, names: list[str], which: int) -> str:
        return names[which % len(names)]

    def _unbound(self) -> list[str]:
        return [n for n, pod in self.world.pods.items() if not pod["spec"].get("nodeName")]

    def _bound(self) -> list[str]:
        return [n for n, pod in self.world.pods.items() if pod["spec"].get("nodeName")]

    # Users.

    @precondition(lambda self: len(self.world.pods) < MAX_PODS)
    @rule(
        size=st.integers(1, 6),
        spare=st.integers(0, 2),
        late=st.integers(0, 2),
        queue=QUEUE_NAMES,
        cpu=st.sampled_from([0, 1, 1, 2, 3]),
        pace=PACE,
    )
    def create_a_gang(
        self, size: int, spare: int, late: int, queue: str, cpu: int, pace: int | None
    ) -> None:
        """Create a PodGroup and its pods, maybe not all of them."""
        name = f"g{self.gangs}"
        self.gangs += 1
        self.world.put_group(name, max(size - spare, 1), queue, cpu=cpu)
        for i in range(size - min(late, size)):
            self.world.put_pod(f"{name}-t-{i}", name, cpu=cpu)
        self._settle_or_advance(pace)

    @precondition(lambda self: len(self.world.pods) < MAX_PODS)
    @rule(number=st.integers(1, 4), queue=QUEUE_NAMES, cpu=st.sampled_from([0, 1, 2, 3]), pace=PACE)
    def create_described_pods(self, number: int, queue: str, cpu: int, pace: int | None) -> None:
        """Create pods that describe their PodGroups, or such pods again."""
        for _ in range(number):
            self.world.put_described_pod(f"d{self.described}", queue, cpu=cpu)
            self.described += 1
        self._settle_or_advance(pace)

    @precondition(lambda self: self._described_groups())
    @rule(which=WHICH, minimum=st.integers(1, 2), pace=PACE)
    def store_a_described_podgroup(self, which: int, minimum: int, pace: int | None) -> None:
        """As for a job that is scaled, or if the controllers are switched to all PodGroups."""
        name = self._pick(self._described_groups(), which)
        spec = self.world.described()[name].spec
        cpu = int((spec.min_resources or {}).get("cpu", 0))
        self.world.put_group(name, minimum, spec.queue, cpu=cpu)
        for index in range(1, minimum):
            self.world.put_pod(f"{name}-t-{index}", name, cpu=cpu)
        self._settle_or_advance(pace)

    @precondition(lambda self: self._stored_instead())
    @rule(which=WHICH, pace=PACE)
    def delete_a_podgroup_that_is_described(self, which: int, pace: int | None) -> None:
        name = self._pick(self._stored_instead(), which)
        self.world.api.force_delete(PODGROUPS, name)
        self._settle_or_advance(pace)

    def _described_groups(self) -> list[str]:
        return list(self.world.described())

    def _stored_instead(self) -> list[str]:
        return [name for name in self.world.objects(PODGROUPS) if name.startswith("d")]

    @precondition(lambda self: self.gangs and len(self.world.pods) < MAX_PODS)
    @rule(which=WHICH, index=st.integers(0, 7), cpu=st.sampled_from([1, 2]), pace=PACE)
    def create_a_pod(self, which: int, index: int, cpu: int, pace: int | None) -> None:
        name = f"g{which % self.gangs}"
        if f"{name}-t-{index}" not in self.world.pods:
            self.world.put_pod(f"{name}-t-{index}", name, cpu=cpu)
        self._settle_or_advance(pace)

    @precondition(lambda self: self.world.pods)
    @rule(which=WHICH, pace=PACE)
    def delete_a_pod(self, which: int, pace: int | None) -> None:
        self.world.api.request_delete(PODS, self._pick(list(self.world.pods), which))
        self._settle_or_advance(pace)

    @precondition(lambda self: self.world.objects(PODGROUPS))
    @rule(which=WHICH, pace=PACE)
    def delete_a_podgroup(self, which: int, pace: int | None) -> None:
        group = self._pick(list(self.world.objects(PODGROUPS)), which)
        self.world.api.force_delete(PODGROUPS, group)
        for pod in self.world.members(group):
            self.world.api.request_delete(PODS, pod["metadata"]["name"])
        self._settle_or_advance(pace)

    @rule(name=QUEUE_NAMES, state=st.sampled_from(["Open", "Open", "Closed", "Closing"]), pace=PACE)
    def open_or_close_a_queue(self, name: str, state: str, pace: int | None) -> None:
        self.world.api.put(QUEUES, name, status={"state": state})
        self._settle_or_advance(pace)

    # The kubelet, and controllers of nodes.

    @precondition(lambda self: self._bound())
    @rule(which=WHICH, phase=st.sampled_from(["Running", "Running", "Succeeded", "Failed"]))
    def report_a_pod(self, which: int, phase: str) -> None:
        name = self._pick(self._bound(), which)
        if self.world.pods[name]["status"]["phase"] not in ("Succeeded", "Failed"):
            self.world.api.put(PODS, name, status={"phase": phase})
        self._settle_or_advance(None)

    @rule(pace=PACE)
    def run_all_pods(self, pace: int | None) -> None:
        for name in self._bound():
            if self.world.pods[name]["status"]["phase"] == "Pending":
                self.world.api.put(PODS, name, status={"phase": "Running"})
        self._settle_or_advance(pace)

    @rule(pace=PACE)
    def end_terminating_pods(self, pace: int | None) -> None:
        for name, pod in self.world.pods.items():
            if _ends(pod):
                self.world.api.force_delete(PODS, name)
        self._settle_or_advance(pace)

    @rule(
        name=st.sampled_from(["n0", "n1", "n2", "n3"]),
        cpu=st.sampled_from([2, 4, 8]),
        cordoned=st.booleans(),
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

    @rule(pace=PACE)
    def collect_pods(self, pace: int | None) -> None:
        self.world.collect_pods()
        self._settle_or_advance(pace)

    # Another scheduler.

    @precondition(lambda self: self.world.objects(NODES) and len(self.world.pods) < MAX_PODS)
    @rule(which=WHICH, number=st.integers(0, 4), cpu=st.integers(1, 3), pace=PACE)
    def another_scheduler_binds_its_pod(
        self, which: int, number: int, cpu: int, pace: int | None
    ) -> None:
        node = self._pick(list(self.world.objects(NODES)), which)
        if f"other-{number}" not in self.world.pods:
            self.world.put_pod(f"other-{number}", "", cpu=cpu, node=node)
        self._settle_or_advance(pace)

    @precondition(lambda self: self.world.objects(NODES) and self._unbound())
    @rule(which=WHICH, where=WHICH, pace=PACE)
    def another_scheduler_binds_our_pod(self, which: int, where: int, pace: int | None) -> None:
        node = self._pick(list(self.world.objects(NODES)), where)
        self.world.bind_as_another(self._pick(self._unbound(), which), node)
        self._settle_or_advance(pace)

    # Faults and time.

    requests_fail = fault_rule("", "/binding", "/pods", "/podgroups", "/queues")

    @rule(left=st.integers(0, 8), carried_out=st.booleans(), pace=st.sampled_from([None, 12, 60]))
    def the_scheduler_is_killed_at_a_write(
        self, left: int, carried_out: bool, pace: int | None
    ) -> None:
        """kill -9 between any two writes; a restart repairs what it leaves."""
        self.world.api.dies_after = (left, carried_out)
        self._settle_or_advance(pace)

    @rule()
    def a_new_controller_finds_nothing_to_do(self) -> None:
        """INV-LC-4, INV-PIPE-1: a new scheduler leads to the same state.

        It may only write other amounts into the messages of gangs that wait.
        """
        self._settle_or_advance(None)
        before = self.world.state()
        self.world.run(self.world.kill())
        self._settle_or_advance(None)
        assert self.world.state() == before

    a_watch_is_late = late_watch_rule(PODS, PODGROUPS, NODES, QUEUES)


class PreemptingMachine(SchedulerMachine):
    """A scheduler that evicts pods for others, most of which describe their PodGroups."""

    def __init__(self) -> None:
        super().__init__(PreemptingHistory())

    @precondition(lambda self: len(self.world.pods) < MAX_PODS)
    @rule(
        number=st.integers(1, 4),
        queue=QUEUE_NAMES,
        cpu=st.sampled_from([1, 2, 2, 3]),
        priority_class=st.sampled_from(["low", "low", "high"]),
        pace=PACE,
    )
    def create_pods_with_a_priority(
        self, number: int, queue: str, cpu: int, priority_class: str, pace: int | None
    ) -> None:
        for _ in range(number):
            name = f"d{self.described}"
            self.described += 1
            self.world.put_described_pod(name, queue, cpu=cpu, priority_class=priority_class)
        self._settle_or_advance(pace)

    @rule()
    def a_new_controller_finds_nothing_to_do(self) -> None:
        """Admissions are not stored, but no pod that has a node is evicted after a restart."""
        self._settle_or_advance(None)
        before = {name: self.world.pods[name]["spec"]["nodeName"] for name in self._bound()}
        self.world.run(self.world.kill())
        self._settle_or_advance(None)
        after = {name: self.world.pods[name]["spec"]["nodeName"] for name in self._bound()}
        assert before.items() <= after.items()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = stateful_settings(steps=20, histories=30)
TestPreemptingMachine = PreemptingMachine.TestCase
TestPreemptingMachine.settings = stateful_settings(steps=20, histories=15)


def test_histories_have_evictions() -> None:
    """The machine would prove little if no pod was ever evicted."""
    world = PreemptingHistory()
    try:
        world.put_queue("default")
        world.put_node("n0", cpu=2)
        world.put_described_pod("low", "default", cpu=2, priority_class="low")
        world.run(world.run_until_quiet())
        world.put_described_pod("high", "default", cpu=2, priority_class="high")
        world.run(world.run_until_quiet())
        world.check_invariants()
        assert world.evictions == 1
        assert world.pods["high-t-0"]["spec"]["nodeName"] == "n0"
        assert not world.violations
    finally:
        world.close()
