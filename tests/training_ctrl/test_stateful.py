"""Random histories of a training job, with its controller killed, disconnected and lagging."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from support.stateful import PACE, ControllerMachine, fault_rule, stateful_settings
from support.training_harness import KINDS
from support.training_stateful import LEADERS, TrainingWorld

from batholith.model.names import PODGROUPS, PODS, SERVICES

WHICH = st.integers(0, 7)
WORKERS = st.integers(1, 3)
POLICIES = st.sampled_from(["OnFailure", "ExitCode", "Never", "Always"])


def _has_pods(machine: Any) -> bool:
    return bool(machine.world.named(PODS))


class TrainingMachine(ControllerMachine[TrainingWorld]):
    """The training controller under random operations and faults."""

    world: TrainingWorld

    def __init__(self) -> None:
        super().__init__(TrainingWorld())

    @initialize(
        kind=st.sampled_from([*LEADERS]),
        gang=st.booleans(),
        workers=WORKERS,
        policy=POLICIES,
        limit=st.sampled_from([None, None, 2]),
        clean=st.sampled_from(["None", "Running", "All"]),
    )
    def begin(
        self, kind: str, gang: bool, workers: int, policy: str, limit: int | None, clean: str
    ) -> None:
        """Create a job."""
        self.world.kind, self.world.gang = kind, gang
        more = {} if limit is None else {"backoffLimit": limit}
        self.submission: Any = {"policy": policy, "cleanPodPolicy": clean, **more}
        self.world.submit(workers, **self.submission)
        self._settle_or_advance(None)

    def _pod(self, which: int) -> str:
        pods = list(self.world.named(PODS))
        return pods[which % len(pods)]

    # Users.

    @rule(workers=WORKERS, pace=PACE)
    def delete_and_create_the_job(self, workers: int, pace: int | None) -> None:
        self.world.delete_job()
        self.world.submit(workers, **self.submission)
        self._settle_or_advance(pace)

    @rule(workers=WORKERS, pace=PACE)
    def scale(self, workers: int, pace: int | None) -> None:
        self.world.edit(**{KINDS[self.world.kind].replica_field: {"Worker": {"replicas": workers}}})
        self._settle_or_advance(pace)

    @rule(suspend=st.booleans(), pace=PACE)
    def suspend_or_resume(self, suspend: bool, pace: int | None) -> None:
        self.world.edit(runPolicy={"suspend": suspend})
        self._settle_or_advance(pace)

    @precondition(_has_pods)
    @rule(which=WHICH, pace=PACE)
    def delete_a_pod(self, which: int, pace: int | None) -> None:
        self.world.api.request_delete(PODS, self._pod(which))
        self._settle_or_advance(pace)

    @precondition(lambda self: self.world.named(SERVICES))
    @rule(which=WHICH, pace=PACE)
    def delete_a_service(self, which: int, pace: int | None) -> None:
        services = list(self.world.named(SERVICES))
        self.world.api.force_delete(SERVICES, services[which % len(services)])
        self._settle_or_advance(pace)

    @precondition(lambda self: self.world.named(PODGROUPS))
    @rule(pace=PACE)
    def delete_the_podgroup(self, pace: int | None) -> None:
        self.world.api.force_delete(PODGROUPS, "j")
        self._settle_or_advance(pace)

    # Kubelet and scheduler.

    @rule(phase=st.sampled_from(["Inqueue", "Inqueue", "Running", "Pending"]), pace=PACE)
    def the_scheduler_admits(self, phase: str, pace: int | None) -> None:
        self.world.admit(phase)
        self._settle_or_advance(pace)

    @precondition(_has_pods)
    @rule(pace=PACE)
    def all_pods_run(self, pace: int | None) -> None:
        for name in self.world.named(PODS):
            self.world.report(name, "Running", None)
        self._settle_or_advance(pace)

    @precondition(_has_pods)
    @rule(
        which=WHICH,
        outcome=st.sampled_from(
            [("Succeeded", 0), ("Failed", 137), ("Failed", 1), ("Failed", None)]
        ),
        pace=PACE,
    )
    def a_pod_ends(self, which: int, outcome: tuple[str, int | None], pace: int | None) -> None:
        self.world.report(self._pod(which), *outcome)
        self._settle_or_advance(pace)

    @precondition(_has_pods)
    @rule(pace=PACE)
    def deletions_finish(self, pace: int | None) -> None:
        for name in self.world.named(PODS):
            self.world.finish_deletion(name)
        self._settle_or_advance(pace)

    # Faults.

    requests_fail = fault_rule("", "/pods", "/services", "/status", "/podgroups", "jobs/j")

    @rule(which=WHICH)
    def a_watch_is_late(self, which: int) -> None:
        resources = (PODS, SERVICES, PODGROUPS, self.world.resource)
        self.world.api.hold_watches(resources[which % len(resources)])


TestTrainingMachine = TrainingMachine.TestCase
TestTrainingMachine.settings = stateful_settings(steps=25, histories=30)
