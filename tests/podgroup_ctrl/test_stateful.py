"""Random histories of pods without a PodGroup, and of their owners."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from support.podgroup_stateful import DAEMONSETS, SIZE, STATEFULSETS, PodGroupWorld
from support.stateful import PACE, ControllerMachine, fault_rule, late_watch_rule, stateful_settings

from batholith.model.names import GROUP_NAME, PODGROUPS, PODS, Resource

KEYS = st.sampled_from(["d/p1", "d/p2", "d/p3", "e/p1", "e/p2"])
NAMESPACES = st.sampled_from(["d", "d", "e"])
WHICH = st.integers(0, 7)


def _has_pods(machine: "PodGroupMachine") -> bool:
    return bool(machine.world.objects_by_key(PODS))


class PodGroupMachine(ControllerMachine[PodGroupWorld]):
    """The PodGroup controller under random operations and faults."""

    def __init__(self) -> None:
        super().__init__(PodGroupWorld())

    def _pod(self, which: int) -> str:
        pods = list(self.world.objects_by_key(PODS))
        return pods[which % len(pods)]

    # Users and workload controllers.

    @rule(space=NAMESPACES, kind=st.sampled_from([STATEFULSETS, DAEMONSETS]),
          size=st.integers(0, 3),
          pace=PACE)  # fmt: skip
    def create_or_change_set(self, space: str, kind: Resource, size: int, pace: int | None) -> None:
        notes = {SIZE: str(size), "volcano.sh/preemptable": "true"}
        self.world.put(kind, f"{space}/w", metadata={"annotations": notes}, spec={"replicas": 2})
        self._settle_or_advance(pace)

    @rule(space=NAMESPACES, pace=PACE)
    def scale_a_set_to_none(self, space: str, pace: int | None) -> None:
        """As its own controller does: first the replicas, then the pods."""
        world = self.world
        if (there := world.objects_by_key(STATEFULSETS).get(f"{space}/w")) is None:
            return
        self._settle_or_advance(None)
        uid = there["metadata"]["uid"]
        world.put(STATEFULSETS, f"{space}/w", spec={"replicas": 0})
        for key, pod in world.objects_by_key(PODS).items():
            if any(one["uid"] == uid for one in pod["metadata"]["ownerReferences"]):
                world.api.force_delete(PODS, key)
        self._settle_or_advance(None)
        world.run(world.kill())
        self._settle_or_advance(pace)

    @rule(space=NAMESPACES, kind=st.sampled_from([STATEFULSETS, DAEMONSETS]), pace=PACE)
    def delete_a_set(self, space: str, kind: Resource, pace: int | None) -> None:
        if f"{space}/w" in self.world.objects_by_key(kind):
            self.world.api.force_delete(kind, f"{space}/w")
        self._settle_or_advance(pace)

    @rule(key=KEYS, kind=st.sampled_from([None, STATEFULSETS, STATEFULSETS, DAEMONSETS]), pace=PACE)
    def create_a_pod(self, key: str, kind: Resource, pace: int | None) -> None:
        if key not in self.world.objects_by_key(PODS):
            self.world.pod(key, kind)
        self._settle_or_advance(pace)

    @precondition(_has_pods)
    @rule(which=WHICH, again=st.booleans(), pace=PACE)
    def remove_a_pod(self, which: int, again: bool, pace: int | None) -> None:
        """Another pod may get its name at once."""
        key = self._pod(which)
        self.world.api.force_delete(PODS, key)
        if again:
            self.world.pod(key, STATEFULSETS)
        self._settle_or_advance(pace)

    @precondition(_has_pods)
    @rule(which=WHICH, phase=st.sampled_from(["Pending", "Running", "Failed"]), pace=PACE)
    def report_pod(self, which: int, phase: str, pace: int | None) -> None:
        """No phase follows a final one."""
        key = self._pod(which)
        if self.world.objects_by_key(PODS)[key].get("status", {}).get("phase") != "Failed":
            self.world.put(PODS, key, status={"phase": phase})
        self._settle_or_advance(pace)

    @precondition(_has_pods)
    @rule(which=WHICH, group=st.sampled_from([None, "", "of-another"]), pace=PACE)
    def annotate_manually(self, which: int, group: str | None, pace: int | None) -> None:
        notes = {"annotations": {GROUP_NAME: group}}
        self.world.put(PODS, self._pod(which), metadata=notes)
        self._settle_or_advance(pace)

    @precondition(lambda self: self.world.objects_by_key(PODGROUPS))
    @rule(which=WHICH, pace=PACE)
    def delete_a_podgroup(self, which: int, pace: int | None) -> None:
        groups = list(self.world.objects_by_key(PODGROUPS))
        self.world.api.force_delete(PODGROUPS, groups[which % len(groups)])
        self._settle_or_advance(pace)

    @rule(pace=PACE)
    def collect(self, pace: int | None) -> None:
        self.world.collect_garbage()
        self._settle_or_advance(pace)

    # Faults and time.

    requests_fail = fault_rule("", "/pods", "/podgroups", "/statefulsets")
    a_watch_is_late = late_watch_rule(PODS, PODGROUPS)


TestPodGroupMachine = PodGroupMachine.TestCase
TestPodGroupMachine.settings = stateful_settings(steps=25)
