"""The training controller in a simulated cluster, for random histories, and its invariants."""

import json
from collections import Counter
from typing import Any

from aiohttp import web
from support.inmemory_api import InMemoryApi, InMemoryClient
from support.training_harness import KINDS, RESOURCES, job, replica
from support.virtual_controller import CheckedWorld

from batholith.model.names import PODGROUPS, PODS, SERVICES, Resource
from batholith.training_ctrl.controller import TrainingController
from batholith.training_ctrl.restarts import ANNOTATION
from batholith.training_ctrl.settings import TrainingSettings

Object = dict[str, Any]

FINISHED = ("Succeeded", "Failed")
_INDEX = "training.kubeflow.org/replica-index"
LEADERS = {"PyTorchJob": "Master", "TFJob": "PS", "MPIJob": "Launcher"}


class TrainingMemoryApi(InMemoryApi):
    """The server with discovery."""

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        served = {PODGROUPS, *RESOURCES.values()}
        for resource in served:
            if request.path == f"/apis/{resource.group}/{resource.version}":
                plurals = [{"name": each.plural} for each in served if each.group == resource.group]
                return web.json_response({"resources": plurals})
        if request.path == "/apis/autoscaling/v2":
            return web.json_response({"resources": []})
        if request.path.startswith("/apis/rbac") and request.path.count("/") == 3:
            plurals = [{"name": "roles"}, {"name": "rolebindings"}]
            return web.json_response({"resources": plurals})
        if request.path == "/api/v1":
            plurals = [{"name": "configmaps"}, {"name": "serviceaccounts"}]
            return web.json_response({"resources": plurals})
        return await super()._handle(request)


class TrainingWorld(CheckedWorld[TrainingController]):
    """The server with at most one training controller, and what others do to one job."""

    def __init__(self) -> None:
        super().__init__()
        self.api: TrainingMemoryApi = TrainingMemoryApi(self.clock, self.loop)
        self.api.on_change = self._on_change
        self.kind = "PyTorchJob"
        self.gang = False
        self.was_suspended = False
        """Whether a job was suspended ever: then failed pods are deleted without being counted."""
        self._admitted: set[str] = set()
        """Uids of jobs whose PodGroup was admitted once."""
        self._failed_pods: set[str] = set()
        """Uids of all pods that have failed."""

    def make_controller(self, client: InMemoryClient) -> TrainingController:
        """A new training controller."""
        settings = TrainingSettings(
            kinds=[self.kind], gang_scheduler_name="volcano" if self.gang else ""
        )
        return TrainingController(
            client, settings=settings, clock=self.clock, recorder=self.recorder
        )

    # What there is.

    @property
    def resource(self) -> Resource:
        return RESOURCES[self.kind]

    @property
    def job(self) -> Object | None:
        return self.api.objects(self.resource).get("d/j")

    def named(self, resource: Resource) -> dict[str, Object]:
        """Objects by name, in their order."""
        found = sorted(self.api.objects(resource).items())
        return {key.partition("/")[2]: each for key, each in found}

    def conditions(self) -> dict[str, str]:
        return _conditions(self.job or {})

    def expected(self) -> list[str]:
        """Names of the pods that the job wants."""
        found = self.job or {}
        types = found["spec"][KINDS[self.kind].replica_field]
        return sorted(
            "j-launcher" if name == "Launcher" else f"j-{name.lower()}-{index}"
            for name, spec in types.items()
            for index in range(spec["replicas"])
        )

    def policy(self) -> str:
        types = (self.job or {})["spec"][KINDS[self.kind].replica_field]
        policy: str = types["Worker"]["restartPolicy"]
        return policy

    # What others do.

    def submit(self, workers: int, policy: str, **run_policy: Any) -> None:
        """A user creates the job, if there is none."""
        if self.job is None:
            types: Any = {
                LEADERS[self.kind]: replica(self.kind, policy=policy),
                "Worker": replica(self.kind, workers, policy=policy),
            }
            body = job(self.kind, run_policy=run_policy, **types)
            self.api.put(self.resource, "j", spec=body["spec"])

    def edit(self, **spec: Any) -> None:
        self.was_suspended |= "runPolicy" in spec
        if self.job is not None:
            self.api.put(self.resource, "j", spec=spec)

    def delete_job(self) -> None:
        if self.job is not None:
            self.api.force_delete(self.resource, "j")

    def report(self, name: str, phase: str, code: int | None) -> None:
        """What the kubelet reports of a pod that has not finished."""
        found = self.named(PODS)[name]
        if found.get("status", {}).get("phase") in FINISHED:
            return
        state = {} if code is None or phase == "Running" else {"terminated": {"exitCode": code}}
        container = found["spec"]["containers"][0]["name"]
        status = {"phase": phase, "containerStatuses": [{"name": container, "state": state}]}
        if phase == "Failed":
            self._failed_pods.add(found["metadata"]["uid"])
        self.api.put(PODS, name, spec={"nodeName": "n"}, status=status)

    def finish_deletion(self, name: str) -> None:
        """The kubelet has ended a pod that is being deleted."""
        if "deletionTimestamp" in self.named(PODS)[name]["metadata"]:
            self.api.force_delete(PODS, name)

    def admit(self, phase: str) -> None:
        """What the scheduler does with the PodGroup."""
        group = self.named(PODGROUPS).get("j")
        if group is not None:
            if phase not in ("", "Pending"):
                self._admitted.add(_owner(group))
            self.api.put(PODGROUPS, "j", status={"phase": phase})

    def collect_garbage(self) -> bool:
        """Delete the dependents of deleted jobs; return whether there were any."""
        uid = (self.job or {"metadata": {"uid": ""}})["metadata"]["uid"]
        left = [
            (prefix, key)
            for prefix, objects in self.api.stores.items()
            for key, each in sorted(objects.items())
            if _owner(each) not in ("", uid)
        ]
        for prefix, key in left:
            self.api.delete_stored(prefix, key)
        return bool(left)

    async def run_until_quiet(self) -> None:
        """Wait until the controller has nothing left to do, with the garbage collected."""
        await super().run_until_quiet()
        while self.collect_garbage():
            await super().run_until_quiet()

    # What happens.

    def _check(self, prefix: str, change: str, new: Object, old: Object) -> None:
        if prefix == self.resource.path():
            assert change == "MODIFIED", f"the job is {change}"
            self._check_job(new, old)
            return
        if prefix == PODS.path() and self.api.received[-1].method == "DELETE":
            self._check_restart(old or new)
        if change == "DELETED":
            sent = self.api.received[-1].body.get("preconditions", {})
            assert sent.get("uid") == new["metadata"]["uid"], "INV-OW-2"
            return
        owners = [each for each in new["metadata"]["ownerReferences"] if each.get("controller")]
        assert len(owners) == 1, "INV-OW-1"
        current = self.job
        if change != "ADDED" or current is None or owners[0]["uid"] != current["metadata"]["uid"]:
            return
        conditions = _conditions(current)
        assert not any(conditions.get(each) == "True" for each in FINISHED), (
            f"INV-TJ-4: {new['metadata']['name']} is created for a finished job"
        )
        if prefix == PODS.path():
            self._check_pod(new, owners[0]["uid"])

    def _check_pod(self, new: Object, owner: str) -> None:
        labels = new["metadata"]["labels"]
        alike = [
            each
            for each in self.named(PODS).values()
            if each["metadata"].get("labels") == labels
            and each.get("status", {}).get("phase") not in FINISHED
            and _owner(each) == owner
        ]
        assert len(alike) == 1, f"INV-TJ-2: {len(alike)} live pods {labels}"
        assert not self.gang or owner in self._admitted, "INV-TJ-5: a pod before its gang"

    def _check_restart(self, pod: Object) -> None:
        """INV-TJ-7: a failed pod is counted before it is deleted."""
        current, index = self.job, pod["metadata"]["labels"].get(_INDEX, "0")
        if current is None or _owner(pod) != current["metadata"]["uid"] or self.was_suspended:
            return
        finished = any(_conditions(current).get(each) == "True" for each in FINISHED)
        if pod.get("status", {}).get("phase") != "Failed" or index != "0" or finished:
            return
        record = _record(current)
        counted = pod["metadata"]["uid"] in record.get("pods", ())
        counted |= record.get("backoffLimitExceeded", False)  # it is not created again
        assert counted, f"INV-TJ-7: {pod['metadata']['name']} is deleted before it is counted"

    def _check_job(self, new: Object, old: Object) -> None:
        assert new["spec"] == old["spec"], "the spec is changed"
        before, after = _conditions(old), _conditions(new)
        for final in FINISHED:
            if before.get(final) == "True":
                assert after.get(final) == "True", f"INV-TJ-3: {final} does not last"
        true = {name for name, status in after.items() if status == "True"}
        assert not set(FINISHED) <= true, "INV-TJ-3: succeeded and failed"
        assert not {"Running", "Restarting"} <= true, "INV-TJ-3: running and restarting"
        if "Failed" in true:
            assert new["status"].get("completionTime"), "Failed without completionTime"
        count = _record(new).get("count", 0)
        assert count <= len(self._failed_pods), "INV-TJ-7: a pod is counted twice"
        assert count >= _record(old).get("count", 0), "INV-TJ-7: a restart is forgotten"

    # At rest.

    def check_invariants(self) -> None:
        """Check that all is as it should be when the controller has nothing left to do.

        Raises:
            AssertionError: it is not.
        """
        if self.job is not None:
            self._check_settled(self.job)
        bound = 80 + 40 * self.external_changes + 15 * self.controllers_started
        assert self.controller_writes <= bound, (
            f"{self.controller_writes} writes for {self.external_changes} changes"
        )

    def _check_settled(self, found: Object) -> None:
        conditions, policy = self.conditions(), found["spec"]["runPolicy"]
        live = {
            name: each
            for name, each in self.named(PODS).items()
            if "deletionTimestamp" not in each["metadata"]
        }
        services = [] if self.kind == "MPIJob" else [*self.named(SERVICES)]
        assert conditions.get("Created") == "True"
        if any(conditions.get(each) == "True" for each in FINISHED):
            assert PODGROUPS.path() not in self.api.stores or not self.named(PODGROUPS)
            clean = policy.get("cleanPodPolicy", "None")
            phases = Counter(each.get("status", {}).get("phase", "") for each in live.values())
            assert clean != "All" or not (live or services)
            assert clean != "Running" or not phases.keys() & {"", "Pending", "Running"}
            return
        if policy.get("suspend"):
            assert conditions.get("Suspended") == "True", conditions
            assert not live and not services and not self.named(PODGROUPS)
            return
        assert conditions.get("Suspended") != "True", conditions
        if self.gang:
            phase = self.named(PODGROUPS)["j"].get("status", {}).get("phase", "")
            if phase in ("", "Pending"):
                return
        self._check_running(live, services)

    def _check_running(self, live: dict[str, Object], services: list[str]) -> None:
        """INV-TJ-1: one pod and one Service for each index, none other."""
        expected = self.expected()
        existing = [name for name in self.named(PODS) if name in live or name in expected]
        assert existing == expected, f"INV-TJ-1: {existing} instead of {expected}"
        if self.kind != "MPIJob":
            assert services == expected, f"INV-TJ-1: Services {services} of {expected}"
        for name, each in live.items():
            if each.get("status", {}).get("phase") == "Failed":
                raise AssertionError(f"{name} has failed, and nothing follows: {self.policy()}")
        counted = sum(
            each.get("active", 0)
            for each in (self.job or {})["status"].get("replicaStatuses", {}).values()
        )
        terminating_counts = self.kind == "MPIJob"
        running = [
            name
            for name, each in self.named(PODS).items()
            if name in expected
            and each.get("status", {}).get("phase") == "Running"
            and (name in live or terminating_counts)
        ]
        assert counted <= len(running), f"{counted} active, but {running} are running"


def _conditions(found: Object) -> dict[str, str]:
    conditions = found.get("status", {}).get("conditions", [])
    return {each["type"]: each["status"] for each in conditions}


def _record(found: Object) -> Object:
    annotations = found["metadata"].get("annotations", {})
    record: Object = json.loads(annotations.get(ANNOTATION, "{}"))
    return record


def _owner(found: Object) -> str:
    for each in found["metadata"].get("ownerReferences", ()):
        if each.get("controller"):
            uid: str = each["uid"]
            return uid
    return ""
