"""The JobFlow controller in a simulated cluster, for random histories, and its invariants."""

from collections import Counter
from typing import Any

from support.inmemory_api import InMemoryClient
from support.virtual_controller import CheckedWorld

from batholith.flow_ctrl.controller import JobFlowController
from batholith.flow_ctrl.requests import RequestError
from batholith.flow_ctrl.settings import FlowSettings
from batholith.model.flow import HttpGetProbe
from batholith.model.names import JOB_NAME, JOBFLOWS, JOBS, JOBTEMPLATES, PODS, TASK_SPEC

Object = dict[str, Any]

SETTINGS = FlowSettings(workers=2, probe_interval=20.0)
"""So that probes of two flows leave a quiet period between them."""
TASKS = [{"name": "t", "replicas": 1, "template": {"spec": {"containers": [{"name": "main"}]}}}]
FINAL = ("Completed", "Failed", "Terminated")
FAILED = ("Failed", "Terminated", "Aborted", "deleted")
FINAL_FLOWS = ("Succeed", "Failed")


class FakeNetwork:
    """Addresses at which something listens; counts the requests to each."""

    def __init__(self) -> None:
        self.listening: set[str] = set()
        self.answered: set[str] = set()
        self.requests: Counter[str] = Counter()

    async def connect(self, address: str, port: int, *, timeout: float) -> None:
        self.requests[address] += 1
        if address not in self.listening:
            raise RequestError("refused")
        self.answered.add(address)

    async def http_get(self, address: str, probe: HttpGetProbe, *, timeout: float) -> None:
        await self.connect(address, probe.port, timeout=timeout)


def owner_of(obj: Object) -> str:
    """Uid of the object that controls it."""
    return next((each["uid"] for each in obj["metadata"].get("ownerReferences", [])), "")


def phase_of(obj: Object) -> str:
    phase: str = ((obj.get("status") or {}).get("state") or {}).get("phase", "")
    return phase


class FlowWorld(CheckedWorld[JobFlowController]):
    """The server with at most one JobFlow controller, and what others do."""

    def __init__(self) -> None:
        super().__init__()
        for resource in (JOBS, JOBFLOWS, JOBTEMPLATES, PODS):
            self.api.objects(resource)
        self.network = FakeNetwork()
        self.created: Counter[tuple[str, str]] = Counter()
        """How often each Job was created, by the uid of its flow and its name."""
        self.phases: dict[tuple[str, str], str] = {}
        """Last phases of the Jobs, and ``deleted`` for one that was deleted before its end."""
        self.failed: set[tuple[str, str]] = set()
        """Jobs that failed a flow at any time: an aborted one may be resumed."""

    def make_controller(self, client: InMemoryClient) -> JobFlowController:
        """A new JobFlow controller."""
        return JobFlowController(
            client,
            settings=SETTINGS,
            clock=self.clock,
            recorder=self.recorder,
            network=self.network,
        )

    # What there is.

    @property
    def flows(self) -> dict[str, Object]:
        """By name."""
        return {each["metadata"]["name"]: each for each in self.api.objects(JOBFLOWS).values()}

    def jobs(self, flow: Object) -> dict[str, Object]:
        """The Jobs that it controls, by name."""
        uid = flow["metadata"]["uid"]
        jobs = self.api.objects(JOBS).values()
        return {job["metadata"]["name"]: job for job in jobs if owner_of(job) == uid}

    def phase(self, flow: str) -> str:
        """Phase of a flow."""
        return phase_of(self.flows[flow])

    def passed(self, flow: Object, name: str, target: str) -> bool:
        """Whether the status shows that the probe of *name* on *target* has passed."""
        conditions = flow.get("status", {}).get("conditions", {})
        job = f"{flow['metadata']['name']}-{target}"
        return name in conditions.get(job, {}).get("passedProbes", [])

    def events(self, reason: str) -> list[str]:
        """Messages of the events with this reason."""
        return [event[4] for event in self.recorder.events if event[3] == reason]

    # What users, the Job controller and the garbage collector do.

    def put_template(self, name: str, **spec: Any) -> None:
        """Create or update a template."""
        self.api.put(JOBTEMPLATES, name, spec={"tasks": TASKS, **spec})

    def put_flow(self, name: str, flows: list[Object], **spec: Any) -> Object:
        """Create or update a flow."""
        return self.api.put(JOBFLOWS, name, spec={"flows": flows, **spec})

    def remove_flow(self, name: str) -> None:
        """Delete a flow; its Jobs follow."""
        flow = self.flows[name]
        self.api.force_delete(JOBFLOWS, name)
        for job in self.jobs(flow):
            self.api.force_delete(JOBS, job)

    def set_phase(self, job: Object, phase: str, **status: Any) -> None:
        """The Job controller writes the phase of a Job."""
        name = job["metadata"]["name"]
        self.api.put(JOBS, name, status={"state": {"phase": phase}, **status})
        self._set_phase(job, phase)

    def _set_phase(self, job: Object, phase: str) -> None:
        key = owner_of(job), job["metadata"]["name"]
        self.phases[key] = phase
        if phase in FAILED:
            self.failed.add(key)

    def remove_job(self, job: Object) -> None:
        """A user, or its TTL, deletes a Job."""
        name = job["metadata"]["name"]
        if phase_of(job) not in FINAL:
            self._set_phase(job, "deleted")
        self.api.force_delete(JOBS, name)

    def put_pod(self, job: Object, address: str, **metadata: Any) -> None:
        """A pod of a Job runs at an address."""
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        owner = {"apiVersion": JOBS.api_version, "kind": "Job", "name": name, "uid": uid}
        given = {
            "labels": {JOB_NAME: name, TASK_SPEC: "t"},
            "ownerReferences": [owner | {"controller": True}],
        }
        status = {"phase": "Running", "podIP": address}
        self.api.put(PODS, f"{name}-{address}", metadata=given | metadata, status=status)

    # What happens.

    def _check(self, prefix: str, change: str, new: Object, old: Object) -> None:
        if prefix == JOBS.path():
            self._check_job(change, new)
        else:
            self._check_status(prefix, change, new, old)

    def _check_job(self, change: str, job: Object) -> None:
        name, uid = job["metadata"]["name"], owner_of(job)
        flow = next((each for each in self.flows.values() if each["metadata"]["uid"] == uid), None)
        if flow is None:  # deleted in the meantime: so is the Job
            self.loop.call_soon(self._collect_garbage, job)
            return
        if change == "DELETED":
            sent = self.api.received[-1].body["preconditions"]["uid"]
            assert sent == job["metadata"]["uid"]
            policy = flow["spec"].get("jobRetainPolicy")
            assert (policy, phase_of(flow)) == ("delete", "Succeed"), f"INV-JF-4: {name} is deleted"
            return
        assert change == "ADDED", f"{name} is {change}"
        self.created[uid, name] += 1
        assert self.created[uid, name] == 1, f"INV-JF-1: {name} is created again"
        self.phases[uid, name] = ""
        assert phase_of(flow) not in FINAL_FLOWS, f"INV-JF-4: {name} is created after the end"
        for each in flow["spec"]["flows"]:
            if f"{flow['metadata']['name']}-{each['name']}" == name:
                for target in each.get("dependsOn", {}).get("targets", ()):
                    self._check_target(flow, each, target)

    def _collect_garbage(self, job: Object) -> None:
        stored = self.api.objects(JOBS).get(f"d/{job['metadata']['name']}")
        if stored is not None and stored["metadata"]["uid"] == job["metadata"]["uid"]:
            self.api.force_delete(JOBS, job["metadata"]["name"])

    def _check_target(self, flow: Object, each: Object, target: str) -> None:
        name = f"{flow['metadata']['name']}-{target}"
        if each["dependsOn"].get("probe"):
            answered = self.network.answered
            assert name in answered or self.passed(flow, each["name"], target), f"INV-JF-2: {name}"
        else:
            phase = self.phases.get((flow["metadata"]["uid"], name))
            assert phase == "Completed", f"INV-JF-2: {name} is {phase}"

    def _check_status(self, prefix: str, change: str, new: Object, old: Object) -> None:
        assert (prefix, change) == (JOBFLOWS.path(), "MODIFIED"), f"{prefix} is {change}"
        assert new["spec"] == old["spec"], "the spec is written"
        was, now = phase_of(old), phase_of(new)
        assert was not in FINAL_FLOWS or was == now, f"INV-JF-4: {was} becomes {now}"

    # At rest.

    def check_invariants(self) -> None:
        """Check that all is as it should be when the controller has nothing left to do.

        Raises:
            AssertionError: it is not.
        """
        for flow in self.flows.values():
            self._check_lists(flow)
            self._check_phase(flow)

    def _check_lists(self, flow: Object) -> None:
        status, uid = flow.get("status", {}), flow["metadata"]["uid"]
        for phase, key in (
            ("Pending", "pendingJobs"),
            ("Running", "runningJobs"),
            ("Completed", "completedJobs"),
            ("Failed", "failedJobs"),
            ("Terminated", "terminatedJobs"),
        ):
            expected = {
                name for (its, name), now in self.phases.items() if (its, now) == (uid, phase)
            }
            listed = status.get(key, [])
            assert (set(listed), len(listed)) == (expected, len(expected)), f"INV-JF-3: {key}"

    def _check_phase(self, flow: Object) -> None:
        uid, phase = flow["metadata"]["uid"], phase_of(flow)
        declared = {each["name"]: each for each in flow["spec"]["flows"]}
        found = {
            name: self.phases.get((uid, f"{flow['metadata']['name']}-{name}")) for name in declared
        }
        if phase in FINAL_FLOWS:
            failed = any(
                (uid, f"{flow['metadata']['name']}-{name}") in self.failed for name in found
            )
            assert phase == "Succeed" or failed or self._unpassed(flow, found), "INV-JF-3: Failed"
            completed = all(each == "Completed" for each in found.values())
            assert phase == "Failed" or completed, "INV-JF-3: Succeed"
            if phase == "Succeed" and flow["spec"].get("jobRetainPolicy") == "delete":
                assert not self.jobs(flow), "Jobs are left"
            return
        assert not any(each in FAILED for each in found.values()), f"INV-JF-3: {found} in {phase}"
        assert not all(each == "Completed" for each in found.values()), f"INV-JF-3: {found}"
        active = any(each in ("Running", "Completed") for each in found.values())
        assert phase == "Running" or not active, f"INV-JF-3: {found} in {phase}"
        for name, each in declared.items():
            exists = f"d/{name}" in self.api.objects(JOBTEMPLATES)
            if found[name] is None and exists:
                assert not self._satisfied(flow, each, found), f"INV-JF-3: {name} does not exist"

    def _satisfied(self, flow: Object, each: Object, found: dict[str, str | None]) -> bool:
        depends_on = each.get("dependsOn", {})
        return all(
            self.passed(flow, each["name"], target)
            if depends_on.get("probe")
            else found[target] == "Completed"
            for target in depends_on.get("targets", ())
        )

    def _unpassed(self, flow: Object, found: dict[str, str | None]) -> bool:
        """Whether a target completed before a probe of it passed."""
        return any(
            found[each["name"]] is None and found[target] == "Completed"
            for each in flow["spec"]["flows"]
            if each.get("dependsOn", {}).get("probe")
            for target in each["dependsOn"]["targets"]
        )
