"""Random histories of JobFlows, with their controller killed, disconnected and lagging.

INV-JF-1 to INV-JF-4 are checked at each write and whenever the controller is idle.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from support.flow_stateful import FINAL, FINAL_FLOWS, FlowWorld, phase_of
from support.stateful import PACE, ControllerMachine, fault_rule, late_watch_rule, stateful_settings

from batholith.model.names import JOBFLOWS, JOBS, JOBTEMPLATES, PODS

FLOWS = st.sampled_from(["f", "g"])
NAMES = "abcdef"
WHICH = st.integers(0, 11)
PHASES = st.sampled_from([
    "Pending", "Running", "Running", "Completed", "Completed", "Completed", "Restarting",
    "Failed", "Terminated", "Aborted",
])  # fmt: skip
TCP = {"tcpSocketList": [{"taskName": "t", "port": 80}]}


@st.composite
def graphs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """The flows of a random DAG, in random order."""
    names = NAMES[: draw(st.sampled_from([1, 2, 4, 4, 5, 6]))]
    flows = []
    for number, name in enumerate(names):
        flow: dict[str, Any] = {"name": name}
        if number and (targets := draw(st.sets(st.sampled_from(names[:number]), max_size=2))):
            flow["dependsOn"] = {"targets": sorted(targets)}
            if draw(st.integers(0, 4)) == 0:
                flow["dependsOn"]["probe"] = TCP
        flows.append(flow)
    return draw(st.permutations(flows))


class FlowMachine(ControllerMachine[FlowWorld]):
    """The JobFlow controller under random operations and faults."""

    world: FlowWorld

    def __init__(self) -> None:
        super().__init__(FlowWorld())

    @initialize(flows=graphs(), missing=st.sets(st.sampled_from(NAMES), max_size=1))
    def begin(self, flows: list[dict[str, Any]], missing: set[str]) -> None:
        for name in sorted(set(NAMES) - missing):
            self.world.put_template(name)
        self.world.put_flow("f", flows)
        self._settle_or_advance(None)

    # Users.

    @rule(name=FLOWS, flows=graphs(), policy=st.sampled_from([None, "retain", "delete"]), pace=PACE)
    def create_a_flow(
        self, name: str, flows: list[dict[str, Any]], policy: str | None, pace: int | None
    ) -> None:
        if name not in self.world.flows:
            given = {} if policy is None else {"jobRetainPolicy": policy}
            self.world.put_flow(name, flows, **given)
        self._settle_or_advance(pace)

    @rule(name=FLOWS, pace=PACE)
    def delete_a_flow(self, name: str, pace: int | None) -> None:
        if name in self.world.flows:
            self.world.remove_flow(name)
        self._settle_or_advance(pace)

    @rule(name=st.sampled_from(NAMES), exists=st.booleans(), pace=PACE)
    def create_or_delete_a_template(self, name: str, exists: bool, pace: int | None) -> None:
        if exists:
            self.world.put_template(name)
        elif f"d/{name}" in self.world.api.objects(JOBTEMPLATES):
            self.world.api.force_delete(JOBTEMPLATES, name)
        self._settle_or_advance(pace)

    @precondition(lambda self: self.world.api.objects(JOBS))
    @rule(which=WHICH)
    def delete_a_job(self, which: int) -> None:
        """Once the status shows it: before that it may be created again after a crash."""
        self._settle_or_advance(None)
        jobs = [*self.world.api.objects(JOBS).values()]
        if jobs:
            self.world.remove_job(jobs[which % len(jobs)])
        self._settle_or_advance(None)

    # The Job controller.

    @rule(changes=st.lists(st.tuples(WHICH, PHASES, PACE), min_size=1, max_size=6))
    def jobs_change(self, changes: list[tuple[int, str, int | None]]) -> None:
        for which, phase, pace in changes:
            jobs = self._unfinished_jobs()
            if jobs:
                self.world.set_phase(jobs[which % len(jobs)], phase)
            self._settle_or_advance(pace)

    @rule(pace=PACE)
    def all_jobs_run(self, pace: int | None) -> None:
        self._set_all("Running")
        self._settle_or_advance(pace)

    @rule(pace=PACE)
    def all_jobs_complete(self, pace: int | None) -> None:
        self._set_all("Completed")
        self._settle_or_advance(pace)

    def _unfinished_jobs(self) -> list[dict[str, Any]]:
        return [job for job in self.world.api.objects(JOBS).values() if phase_of(job) not in FINAL]

    def _set_all(self, phase: str) -> None:
        for job in self._unfinished_jobs():
            self.world.set_phase(job, phase)

    @precondition(lambda self: self.world.api.objects(JOBS))
    @rule(which=WHICH, listens=st.booleans(), pace=PACE)
    def a_server_starts(self, which: int, listens: bool, pace: int | None) -> None:
        jobs = [*self.world.api.objects(JOBS).values()]
        job = jobs[which % len(jobs)]
        address = job["metadata"]["name"]
        self.world.put_pod(job, address)
        (self.world.network.listening.add if listens else self.world.network.listening.discard)(
            address
        )
        self.world.run(self.world.pass_time(21))  # the interval of probes
        self._settle_or_advance(pace)

    # Faults.

    @rule(
        dies_after=st.integers(1, 40),
        dies_again_after=st.none() | st.integers(5, 60),
        completes=st.booleans(),
    )
    def it_dies_while_it_creates_jobs(
        self, dies_after: int, dies_again_after: int | None, completes: bool
    ) -> None:
        self._settle_or_advance(None)
        self._set_all("Completed")
        self.world.run(self.world.run_iterations(dies_after))
        self.world.run(self.world.kill())
        if completes:
            self._set_all("Completed")
        if dies_again_after is not None:
            self.world.run(self.world.start())
            self.world.run(self.world.run_iterations(dies_again_after))
            self.world.run(self.world.kill())
        self._settle_or_advance(None)

    requests_fail = fault_rule("", "/jobs", "/jobflows", "/status", "/pods")
    a_watch_is_late = late_watch_rule(JOBFLOWS, JOBS, JOBTEMPLATES, PODS)

    @rule()
    def finished_flows_are_replaced(self) -> None:
        self._settle_or_advance(None)
        for name, flow in self.world.flows.items():
            if phase_of(flow) in FINAL_FLOWS:
                self.world.remove_flow(name)


TestFlowMachine = FlowMachine.TestCase
TestFlowMachine.settings = stateful_settings(steps=25)
