"""Status of PodGroups and conditions of pending pods, as cycles report them."""

from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.scheduler import SchedulerWorld, node, pod, podgroup

from batholith.model.podgroup import PodGroupCondition, PodGroupStatus
from batholith.scheduler.framework.podgroup_status import (
    CONDITION_INTERVAL,
    GRACE_PERIOD_FRACTION,
    MAX_MEMBER_GRACE_PERIOD,
    MEMBER_GRACE_PERIOD,
    PodGroupReport,
    is_equal_status,
    with_transition_times,
)
from batholith.scheduler.state.gangs.gang import Gang

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class GangStatusWorld(SchedulerWorld):
    """A gang *g* of *minimum* members, a large node, and the report of each cycle."""

    def __init__(self, minimum: int) -> None:
        super().__init__()
        self.now = 0.0
        self.upsert(node("a", cpu=64), podgroup("g", minimum, phase=""))

    @property
    def gang(self) -> Gang:
        return self.cluster.gangs["ns/g"]

    def report_after(self, seconds: float = 0.0, *, busy: bool = False) -> PodGroupReport:
        """Run a cycle *seconds* later and return its report."""
        self.now += seconds
        return self.report("g", now=self.now, busy=busy)

    def phase(self) -> str:
        return self.report_after().status.phase

    def condition(self, kind: str) -> PodGroupCondition | None:
        conditions = self.report_after().status.conditions
        return next((each for each in conditions if each.type == kind), None)

    def start(self, *names: str) -> None:
        for name in names:
            self.upsert(pod(name, "g", node_name="a", phase="Running"))


def test_podgroup_goes_from_inqueue_to_running_to_completed() -> None:
    world = GangStatusWorld(2)
    assert world.phase() == "Inqueue"
    world.upsert(pod("x", "g"), pod("y", "g"))
    assert world.phase() == "Inqueue"  # the bindings are not confirmed yet
    world.upsert(pod("x", "g", node_name="a"), pod("y", "g", node_name="a"))
    assert world.phase() == "Running"
    world.start("x", "y")
    assert world.report_after().status.running == 2
    world.upsert(
        pod("x", "g", node_name="a", phase="Succeeded"),
        pod("y", "g", node_name="a", phase="Failed"),
    )
    status = world.report_after().status
    assert (status.phase, status.succeeded, status.failed, status.running) == ("Completed", 1, 1, 0)


def test_admitted_podgroup_without_pods_has_no_conditions() -> None:
    """Volcano sets Unschedulable on every PodGroup before its pods exist."""
    report = GangStatusWorld(3).report_after()
    assert (report.status.phase, report.status.conditions) == ("Inqueue", ())
    assert report.pod_conditions == ()


def test_missing_members_are_reported_after_the_grace_period() -> None:
    world = GangStatusWorld(2)
    world.report_after()
    world.upsert(pod("x", "g"))
    report = world.report_after()
    assert report.status.conditions == () and report.pod_conditions == ()
    assert report.requeue_after == MEMBER_GRACE_PERIOD
    later = world.report_after(MEMBER_GRACE_PERIOD)
    assert later.status.conditions[0].reason == "NotEnoughTasks"
    assert later.pod_conditions[0].message == "1 of the 2 pods that the group needs exist"


def test_running_podgroup_with_a_missing_member_is_unknown_until_it_is_replaced() -> None:
    """Scenario pod-deleted-no-policy; quirk 51: with all members scheduled it is not Pending."""
    world = GangStatusWorld(2)
    world.start("x", "y")
    assert world.phase() == "Running"
    world.upsert(pod("x", "g", node_name="a", phase="Running", terminating=True))
    assert world.phase() == "Running"
    world.remove(pod("x", "g", node_name="a", phase="Running"))
    report = world.report_after()
    assert report.status.phase == "Unknown"
    assert [each.type for each in report.status.conditions] == [
        "Scheduled"
    ]  # within the grace period
    world.upsert(pod("z", "g"))
    assert world.phase() == "Running"  # it is being bound
    world.upsert(pod("z", "g", node_name="a", phase="Running"))
    assert world.report_after().status.running == 2


def test_podgroup_whose_pods_are_all_replaced_is_pending_until_the_new_ones_are_bound() -> None:
    world = GangStatusWorld(2)
    world.start("x", "y")
    assert world.phase() == "Running"
    old = [pod(name, "g", node_name="a", phase="Running", terminating=True) for name in "xy"]
    world.upsert(*old)
    assert world.phase() == "Running"  # quirk 52: terminating members keep a phase
    world.remove(old[0])
    assert world.phase() == "Pending"
    world.remove(old[1])
    world.upsert(node("a", cpu=64, cordoned=True), pod("x", "g"), pod("y", "g"))
    assert world.phase() == "Inqueue"
    world.upsert(node("a", cpu=64))
    assert world.phase() == "Inqueue"  # the bindings are not confirmed yet
    world.upsert(pod("x", "g", node_name="a"), pod("y", "g", node_name="a"))
    assert world.phase() == "Running"


def test_terminating_member_does_not_count_for_one_that_fits_no_node() -> None:
    world = GangStatusWorld(2)
    world.start("x", "y")
    world.report_after()
    world.upsert(node("a", cpu=64, cordoned=True), pod("z", "g"))
    world.upsert(pod("x", "g", node_name="a", phase="Running", terminating=True))
    assert world.phase() == "Unknown"


def test_running_podgroup_whose_new_member_fits_no_node_is_unknown() -> None:
    """Scenario unknown-no-policy."""
    world = GangStatusWorld(2)
    world.start("x", "y")
    assert world.phase() == "Running"
    world.remove(pod("x", "g", node_name="a", phase="Running"))
    world.upsert(node("a", cpu=64, cordoned=True), pod("j-a-0", "g"))
    assert world.phase() == "Unknown"
    condition = world.condition("Unschedulable")
    assert condition is not None
    assert condition.message == (
        "1 of 2 pods cannot be scheduled: j-a-0: "
        "0/1 nodes are unavailable: 1 node(s) were unschedulable."
    )
    world.upsert(node("a", cpu=64))
    assert world.phase() == "Running"


def test_failed_member_makes_a_gang_without_extra_members_unknown() -> None:
    """Scenario policy-taskfailed."""
    world = GangStatusWorld(2)
    world.start("x", "y")
    world.upsert(pod("y", "g", node_name="a", phase="Failed"))
    world.report_after()
    report = world.report_after(MEMBER_GRACE_PERIOD)
    assert report.status.phase == "Unknown"
    message = (
        "1 of 2 pods cannot be scheduled: 1 of the 2 pods that the group needs exist, 1 failed"
    )
    assert report.status.conditions[-1].message == message


def test_terminating_pods_do_not_make_a_new_podgroup_running() -> None:
    """Scenario command-restartjob: pods of the last run, and a new group of the same name."""
    world = GangStatusWorld(2)
    world.report_after()
    world.upsert(pod("x", "g", node_name="a", phase="Running", terminating=True))
    world.upsert(pod("y", "g", node_name="a", phase="Running", terminating=True))
    assert world.phase() == "Inqueue"


def test_terminating_gang_is_not_unschedulable() -> None:
    world = GangStatusWorld(2)
    world.start("x", "y")
    world.report_after()
    for name in ("x", "y"):
        world.upsert(pod(name, "g", node_name="a", phase="Running", terminating=True))
    report = world.report_after(MEMBER_GRACE_PERIOD)
    assert report.status.phase == "Running"
    assert [each.type for each in report.status.conditions] == ["Scheduled"]


def test_podgroup_that_lost_all_pods_is_pending_and_rechecked_at_once() -> None:
    world = GangStatusWorld(1)
    world.start("x")
    assert world.phase() == "Running"
    world.remove(pod("x", "g", node_name="a", phase="Running"))
    report = world.report_after()
    assert (report.status.phase, report.requeue_after) == ("Pending", 0)
    assert world.phase() == "Inqueue"


def test_elastic_podgroup_stays_running_with_a_failed_member() -> None:
    """Scenario elastic."""
    world = GangStatusWorld(2)
    world.start("x", "y")
    world.upsert(pod("z", "g", node_name="a", phase="Failed"))
    status = world.report_after(MEMBER_GRACE_PERIOD).status
    assert (status.phase, status.running, status.failed) == ("Running", 2, 1)


def test_pod_conditions_have_the_fit_errors() -> None:
    world = GangStatusWorld(4)
    world.report_after()
    world.upsert(*(pod(f"j-t-{i}", "g", role="t", cpu=20) for i in range(5)))
    conditions = {each.name: each for each in world.report_after().pod_conditions}
    assert [conditions[f"j-t-{i}"].reason for i in range(5)] == [
        "Schedulable",
        "Schedulable",
        "Schedulable",
        "Unschedulable",
        "Unschedulable",
    ]
    assert "Insufficient cpu (requested 20, free 4)" in conditions["j-t-3"].message
    assert "j-t-3" in conditions["j-t-4"].message


def test_quirk_p18_rejection_by_enqueue_is_in_the_pod_conditions_too() -> None:
    world = SchedulerWorld()
    world.upsert(podgroup("g", 1, phase="", resources={"cpu": 1}), pod("g-0", "g"))
    report = world.report("g")
    assert report.status.phase == "Pending"
    assert (
        "insufficient cpu (requested 1, free 0, overcommit factor 1.2)"
        in report.pod_conditions[0].message
    )
    assert "insufficient cpu" in report.status.conditions[0].message


def test_unchanged_conditions_keep_their_transition_time() -> None:
    first = PodGroupStatus(conditions=(PodGroupCondition(type="A", status="True", reason="r"),))
    observed = PodGroupStatus(
        conditions=with_transition_times(first, PodGroupStatus(), now=NOW, transition="1")
    )
    assert observed.conditions[0].last_transition_time == "2026-01-02T03:04:05Z"
    later = NOW.replace(year=2027)
    assert with_transition_times(first, observed, now=later, transition="2") == observed.conditions
    other = PodGroupStatus(conditions=(PodGroupCondition(type="A", status="True", reason="s"),))
    again = with_transition_times(other, observed, now=later, transition="2")[0]
    assert (again.transition_id, again.last_transition_time) == ("2", "2027-01-02T03:04:05Z")
    assert is_equal_status(first, observed) and not is_equal_status(other, observed)


_STEPS = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "deleted"])
    ),
    max_size=25,
)


@settings(max_examples=examples(40), deadline=None)
@given(_STEPS, st.integers(0, 3))
def test_phases_and_counts_match_the_pods(steps: list[tuple[int, str]], minimum: int) -> None:
    world = GangStatusWorld(minimum)
    for index, phase in steps:
        name = f"j-t-{index}"
        if phase == "deleted":
            if f"uid-{name}" in world.pod_objects:
                world.remove(world.pod_objects[f"uid-{name}"])
        else:
            world.upsert(pod(name, "g", phase=phase, node_name="" if phase == "Pending" else "a"))
        if "ns/g" not in world.cluster.gangs:
            continue
        report = world.report_after(MEMBER_GRACE_PERIOD)
        status = report.status
        phases = [each.status.phase for each in world.pod_objects.values()]
        assert status.running == phases.count("Running")
        assert (status.succeeded, status.failed) == (
            phases.count("Succeeded"),
            phases.count("Failed"),
        )
        if report.requeue_after is not None:
            continue  # within the grace period, or just back to Pending
        if status.phase == "Completed":
            ended = phases.count("Succeeded") + phases.count("Failed")
            assert "Running" not in phases and ended >= max(minimum, 1)
            assert not world.gang.counts.allocated
        if status.phase == "Unknown":
            assert "Running" in phases


def test_each_new_member_restarts_the_grace_period() -> None:
    world = GangStatusWorld(5)
    world.report_after()
    for i in range(4):
        world.upsert(pod(f"j-t-{i}", "g"))
        assert world.report_after(MEMBER_GRACE_PERIOD * 0.75).pod_conditions == ()
    assert len(world.report_after(MEMBER_GRACE_PERIOD).pod_conditions) == 4


def test_pod_conditions_are_reported_once_per_interval() -> None:
    world = GangStatusWorld(1)
    world.report_after()
    world.upsert(pod("j-t-0", "g", cpu=100))
    assert world.report_after().pod_conditions
    world.upsert(node("b"))
    again = world.report_after(CONDITION_INTERVAL / 2)
    assert again.pod_conditions == () and again.requeue_after == CONDITION_INTERVAL / 2
    assert world.report_after(CONDITION_INTERVAL / 2).pod_conditions


def test_grace_period_grows_with_the_time_for_which_members_arrive() -> None:
    """With thousands of pods there are gaps, and each would be a status write for every pod."""
    world = GangStatusWorld(100)
    world.report_after()
    for i in range(20):
        world.upsert(pod(f"j-t-{i}", "g"))
        assert world.report_after(MEMBER_GRACE_PERIOD * 0.9).pod_conditions == ()
    filled = 19 * MEMBER_GRACE_PERIOD * 0.9
    assert world.report_after(GRACE_PERIOD_FRACTION * filled * 0.9).pod_conditions == ()
    assert len(world.report_after(GRACE_PERIOD_FRACTION * filled * 0.2).pod_conditions) == 20


def test_grace_period_has_a_maximum() -> None:
    world = GangStatusWorld(100)
    world.report_after()
    for i in range(80):
        world.upsert(pod(f"j-t-{i}", "g"))
        world.report_after(MEMBER_GRACE_PERIOD * 0.9)
    assert GRACE_PERIOD_FRACTION * 79 * 0.9 * MEMBER_GRACE_PERIOD > MAX_MEMBER_GRACE_PERIOD
    assert len(world.report_after(MAX_MEMBER_GRACE_PERIOD).pod_conditions) == 80


def test_grace_period_is_longer_in_a_busy_cluster() -> None:
    world = GangStatusWorld(5)
    world.report_after()
    world.upsert(pod("j-t-0", "g"))
    world.report_after(busy=True)
    assert world.report_after(MAX_MEMBER_GRACE_PERIOD * 0.9, busy=True).pod_conditions == ()
    assert len(world.report_after(MAX_MEMBER_GRACE_PERIOD * 0.2, busy=True).pod_conditions) == 1
