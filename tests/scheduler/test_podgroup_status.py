"""What a PodGroup and its pods are told, as a gang goes through its life."""

from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st
from support.scheduler import SchedulerWorld, node, pod, podgroup

from batholith.model.podgroup import PodGroupCondition, PodGroupStatus
from batholith.scheduler.state.gangs import Gang
from batholith.scheduler.writers.podgroup_status import (
    CONDITION_INTERVAL,
    GRACE_PERIOD_FRACTION,
    MAX_MEMBER_GRACE_PERIOD,
    MEMBER_GRACE_PERIOD,
    PodGroupReport,
    build_report,
    is_equal_status,
    with_transition_times,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class GangStatusWorld(SchedulerWorld):
    """A gang *g* of *minimum* on a large node, and what is told of it after each cycle."""

    def __init__(self, minimum: int) -> None:
        super().__init__()
        self.now = 0.0
        self.upsert(node("a", cpu=64), podgroup("g", minimum, phase=""))

    @property
    def gang(self) -> Gang:
        return self.cluster.gangs["ns/g"]

    def report_after(self, seconds: float = 0.0, *, busy: bool = False) -> PodGroupReport:
        """What stands after the next cycle, *seconds* later."""
        self.now += seconds
        self.decision()
        return build_report(self.gang, now=self.now, busy=busy)

    def phase(self) -> str:
        return self.report_after().status.phase

    def condition(self, kind: str) -> PodGroupCondition | None:
        conditions = self.report_after().status.conditions
        return next((each for each in conditions if each.type == kind), None)

    def start(self, *names: str) -> None:
        for name in names:
            self.upsert(pod(name, "g", node_name="a", phase="Running"))


def test_the_usual_course_of_a_group() -> None:
    story = GangStatusWorld(2)
    assert story.phase() == "Inqueue"
    story.upsert(pod("x", "g"), pod("y", "g"))
    assert story.phase() == "Inqueue"  # placed, and not confirmed yet
    story.upsert(pod("x", "g", node_name="a"), pod("y", "g", node_name="a"))
    assert story.phase() == "Running"
    story.start("x", "y")
    assert story.report_after().status.running == 2
    story.upsert(
        pod("x", "g", node_name="a", phase="Succeeded"),
        pod("y", "g", node_name="a", phase="Failed"),
    )
    status = story.report_after().status
    assert (status.phase, status.succeeded, status.failed, status.running) == ("Completed", 1, 1, 0)


def test_nothing_is_said_against_a_group_that_was_just_admitted_and_has_no_pods() -> None:
    """Volcano warns of every group before its pods exist."""
    told = GangStatusWorld(3).report_after()
    assert (told.status.phase, told.status.conditions, told.pod_conditions) == ("Inqueue", (), ())


def test_a_group_whose_pods_are_being_made_is_not_called_short_at_once() -> None:
    story = GangStatusWorld(2)
    story.report_after()
    story.upsert(pod("x", "g"))
    told = story.report_after()
    assert told.status.conditions == () and told.pod_conditions == ()
    assert told.requeue_after == MEMBER_GRACE_PERIOD
    later = story.report_after(MEMBER_GRACE_PERIOD)
    assert later.status.conditions[0].reason == "NotEnoughTasks"
    assert later.pod_conditions[0].message == "1 of the 2 pods that the group needs exist"


def test_a_running_group_short_of_a_member_is_unknown_until_the_next_one_is_placed() -> None:
    """Scenario pod-deleted-no-policy; quirk 51: a gang that is placed whole is not Pending."""
    story = GangStatusWorld(2)
    story.start("x", "y")
    assert story.phase() == "Running"
    story.upsert(pod("x", "g", node_name="a", phase="Running", terminating=True))
    assert story.phase() == "Running"
    story.remove(pod("x", "g", node_name="a", phase="Running"))
    told = story.report_after()
    assert told.status.phase == "Unknown"
    assert [each.type for each in told.status.conditions] == ["Scheduled"]  # it may come yet
    story.upsert(pod("z", "g"))
    assert story.phase() == "Running"  # it is being bound
    story.upsert(pod("z", "g", node_name="a", phase="Running"))
    assert story.report_after().status.running == 2


def test_a_running_group_whose_pods_are_all_replaced_is_pending_until_they_are_placed() -> None:
    story = GangStatusWorld(2)
    story.start("x", "y")
    assert story.phase() == "Running"
    leaving = [pod(name, "g", node_name="a", phase="Running", terminating=True) for name in "xy"]
    story.upsert(*leaving)
    assert story.phase() == "Running"  # quirk 52: terminating members keep a phase
    story.remove(leaving[0])
    assert story.phase() == "Pending"
    story.remove(leaving[1])
    story.upsert(node("a", cpu=64, cordoned=True), pod("x", "g"), pod("y", "g"))
    assert story.phase() == "Inqueue"
    story.upsert(node("a", cpu=64))
    assert story.phase() == "Inqueue"  # placed, and not confirmed yet
    story.upsert(pod("x", "g", node_name="a"), pod("y", "g", node_name="a"))
    assert story.phase() == "Running"


def test_a_terminating_member_does_not_make_up_for_one_that_fits_nowhere() -> None:
    story = GangStatusWorld(2)
    story.start("x", "y")
    story.report_after()
    story.upsert(node("a", cpu=64, cordoned=True), pod("z", "g"))
    story.upsert(pod("x", "g", node_name="a", phase="Running", terminating=True))
    assert story.phase() == "Unknown"


def test_a_running_group_whose_missing_member_fits_nowhere_is_unknown() -> None:
    """Scenario unknown-no-policy."""
    story = GangStatusWorld(2)
    story.start("x", "y")
    assert story.phase() == "Running"
    story.remove(pod("x", "g", node_name="a", phase="Running"))
    story.upsert(node("a", cpu=64, cordoned=True), pod("j-a-0", "g"))
    assert story.phase() == "Unknown"
    condition = story.condition("Unschedulable")
    assert condition is not None
    assert condition.message == (
        "1/2 tasks in gang unschedulable: pod group is not ready, 1 Pending, 1 Running, "
        "2 minAvailable; Pending: 1 Unschedulable. Origin reason is j-a-0: "
        "0/1 nodes are unavailable: 1 node(s) were unschedulable."
    )
    story.upsert(node("a", cpu=64))
    assert story.phase() == "Running"


def test_a_failed_member_makes_a_full_gang_unknown_and_says_so() -> None:
    """Scenario policy-taskfailed."""
    story = GangStatusWorld(2)
    story.start("x", "y")
    story.upsert(pod("y", "g", node_name="a", phase="Failed"))
    story.report_after()
    told = story.report_after(MEMBER_GRACE_PERIOD)
    assert told.status.phase == "Unknown"
    message = "1/2 tasks in gang unschedulable: 1 of the 2 pods that the group needs exist"
    assert told.status.conditions[-1].message == message


def test_pods_on_their_way_out_do_not_bring_running_about() -> None:
    """Scenario command-restartjob: pods of the last run, and a new group of the same name."""
    story = GangStatusWorld(2)
    story.report_after()
    story.upsert(pod("x", "g", node_name="a", phase="Running", terminating=True))
    story.upsert(pod("y", "g", node_name="a", phase="Running", terminating=True))
    assert story.phase() == "Inqueue"


def test_a_group_that_ends_is_not_called_unschedulable() -> None:
    story = GangStatusWorld(2)
    story.start("x", "y")
    story.report_after()
    for name in ("x", "y"):
        story.upsert(pod(name, "g", node_name="a", phase="Running", terminating=True))
    told = story.report_after(MEMBER_GRACE_PERIOD)
    assert told.status.phase == "Running"
    assert [each.type for each in told.status.conditions] == ["Scheduled"]


def test_a_group_that_lost_all_its_pods_is_pending_again() -> None:
    story = GangStatusWorld(1)
    story.start("x")
    assert story.phase() == "Running"
    story.remove(pod("x", "g", node_name="a", phase="Running"))
    assert story.phase() == "Pending"
    story.cluster.mark_changed(story.gang)
    assert story.phase() == "Inqueue"


def test_an_elastic_group_stays_running_with_a_failed_member() -> None:
    """Scenario elastic."""
    story = GangStatusWorld(2)
    story.start("x", "y")
    story.upsert(pod("z", "g", node_name="a", phase="Failed"))
    status = story.report_after(MEMBER_GRACE_PERIOD).status
    assert (status.phase, status.running, status.failed) == ("Running", 2, 1)


def test_pods_are_told_what_keeps_them() -> None:
    story = GangStatusWorld(4)
    story.report_after()
    story.upsert(*(pod(f"j-t-{i}", "g", role="t", cpu=20) for i in range(5)))
    notes = {note.name: note for note in story.report_after().pod_conditions}
    assert [notes[f"j-t-{i}"].reason for i in range(5)] == [
        "Schedulable",
        "Schedulable",
        "Schedulable",
        "Unschedulable",
        "Unschedulable",
    ]
    assert "Insufficient cpu (requested 20, free 4)" in notes["j-t-3"].message
    assert "j-t-3" in notes["j-t-4"].message


def test_quirk_p18_a_refusal_at_the_door_is_told_to_pods_too() -> None:
    world = SchedulerWorld()
    world.upsert(podgroup("g", 1, phase="", resources={"cpu": 1}), pod("g-0", "g"))
    world.decision()
    told = build_report(world.cluster.gangs["ns/g"], now=0.0)
    assert told.status.phase == "Pending"
    assert "overused cpu (requested 1, free 0)" in told.pod_conditions[0].message
    assert "overused cpu" in told.status.conditions[0].message


def test_conditions_keep_their_time_as_long_as_they_say_the_same() -> None:
    first = PodGroupStatus(conditions=(PodGroupCondition(type="A", status="True", reason="r"),))
    standing = PodGroupStatus(
        conditions=with_transition_times(first, PodGroupStatus(), now=NOW, transition="1")
    )
    assert standing.conditions[0].last_transition_time == "2026-01-02T03:04:05Z"
    later = NOW.replace(year=2027)
    assert with_transition_times(first, standing, now=later, transition="2") == standing.conditions
    other = PodGroupStatus(conditions=(PodGroupCondition(type="A", status="True", reason="s"),))
    again = with_transition_times(other, standing, now=later, transition="2")[0]
    assert (again.transition_id, again.last_transition_time) == ("2", "2027-01-02T03:04:05Z")
    assert is_equal_status(first, standing) and not is_equal_status(other, standing)


_STEPS = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "gone"])
    ),
    max_size=25,
)


@settings(max_examples=40, deadline=None)
@given(_STEPS, st.integers(0, 3))
def test_phases_and_counts_are_true_whatever_the_pods_do(
    steps: list[tuple[int, str]], minimum: int
) -> None:
    story = GangStatusWorld(minimum)
    for index, phase in steps:
        name = f"j-t-{index}"
        if phase == "gone":
            if f"uid-{name}" in story.pod_objects:
                story.remove(story.pod_objects[f"uid-{name}"])
        else:
            story.upsert(pod(name, "g", phase=phase, node_name="" if phase == "Pending" else "a"))
        if "ns/g" not in story.cluster.gangs:
            continue
        told = story.report_after(MEMBER_GRACE_PERIOD)
        status = told.status
        phases = [each.status.phase for each in story.pod_objects.values()]
        assert status.running == phases.count("Running")
        assert (status.succeeded, status.failed) == (
            phases.count("Succeeded"),
            phases.count("Failed"),
        )
        if told.requeue_after is not None:
            continue  # members are missing since now, so the phase has not moved yet
        if status.phase == "Completed":
            ended = phases.count("Succeeded") + phases.count("Failed")
            assert "Running" not in phases and ended >= max(minimum, 1)
            assert not story.gang.counts.allocated
        if status.phase == "Unknown":
            assert "Running" in phases


def test_pods_that_keep_coming_keep_a_group_from_being_called_short() -> None:
    story = GangStatusWorld(5)
    story.report_after()
    for i in range(4):
        story.upsert(pod(f"j-t-{i}", "g"))
        assert story.report_after(MEMBER_GRACE_PERIOD * 0.75).pod_conditions == ()
    assert len(story.report_after(MEMBER_GRACE_PERIOD).pod_conditions) == 4


def test_each_pod_is_looked_at_once_in_a_while_only() -> None:
    story = GangStatusWorld(1)
    story.report_after()
    story.upsert(pod("j-t-0", "g", cpu=100))
    assert story.report_after().pod_conditions
    story.upsert(node("b"))
    again = story.report_after(CONDITION_INTERVAL / 2)
    assert again.pod_conditions == () and again.requeue_after == CONDITION_INTERVAL / 2
    assert story.report_after(CONDITION_INTERVAL / 2).pod_conditions


def test_members_that_have_been_coming_for_long_may_pause_for_longer() -> None:
    """A busy server makes thousands of pods with gaps; each gap would be a word for every pod."""
    story = GangStatusWorld(100)
    story.report_after()
    for i in range(20):
        story.upsert(pod(f"j-t-{i}", "g"))
        assert story.report_after(MEMBER_GRACE_PERIOD * 0.9).pod_conditions == ()
    filled = 19 * MEMBER_GRACE_PERIOD * 0.9
    assert story.report_after(GRACE_PERIOD_FRACTION * filled * 0.9).pod_conditions == ()
    assert len(story.report_after(GRACE_PERIOD_FRACTION * filled * 0.2).pod_conditions) == 20


def test_no_gap_is_explained_for_ever() -> None:
    story = GangStatusWorld(100)
    story.report_after()
    for i in range(80):
        story.upsert(pod(f"j-t-{i}", "g"))
        story.report_after(MEMBER_GRACE_PERIOD * 0.9)
    assert GRACE_PERIOD_FRACTION * 79 * 0.9 * MEMBER_GRACE_PERIOD > MAX_MEMBER_GRACE_PERIOD
    assert len(story.report_after(MAX_MEMBER_GRACE_PERIOD).pod_conditions) == 80


def test_while_much_is_going_on_a_group_may_be_filled_slowly() -> None:
    story = GangStatusWorld(5)
    story.report_after()
    story.upsert(pod("j-t-0", "g"))
    story.report_after(busy=True)
    assert story.report_after(MAX_MEMBER_GRACE_PERIOD * 0.9, busy=True).pod_conditions == ()
    assert len(story.report_after(MAX_MEMBER_GRACE_PERIOD * 0.2, busy=True).pod_conditions) == 1
