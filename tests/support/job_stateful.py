"""The job controller in a simulated cluster, for random histories: user, scheduler, kubelet,
faults.

Objects are called ``namespace/name``, or by their name alone where they are in namespace d.

Time is virtual and everything runs in one loop, so that each history is deterministic.
"""

import dataclasses
from typing import Any

from support.inmemory_api import InMemoryClient, key_of
from support.job_transitions import JobAudit, may_be_without_podgroup, owner_uid, phase_of
from support.virtual_controller import CheckedWorld

from batholith.job_ctrl.controller import JobController
from batholith.job_ctrl.creation.plugin_objects import PLUGIN_KINDS
from batholith.job_ctrl.plugins.registry import Registry
from batholith.job_ctrl.settings import JobSettings
from batholith.machinery.change_rate import ChangeRate
from batholith.model.described_podgroup import PodGroupsOf
from batholith.model.names import (
    COMMANDS,
    JOBS,
    PERSISTENTVOLUMECLAIMS,
    PODGROUP,
    PODGROUPS,
    PODS,
    Resource,
)

Object = dict[str, Any]

PLUGINS = Registry.load()
SETTINGS = JobSettings(workers=2, pvc_recheck_interval=20.0)
DEFERRED_SECONDS = 2.0
"""Maximum delay of status writes under load: less than the idle time that counts as quiet."""
DEFAULT_NAMESPACE = "d/j"
"""The job where there is only one."""
FORGOTTEN = {"jobs": 0, "queued": 0, "waiting_writes": 0}
"""Statistics of a controller that has nothing to do."""
SETTLE_TIMEOUT = 130.0
"""Seconds within which a repeatedly denied request is retried."""


CREATED_RESOURCES = PLUGIN_KINDS
"""Kinds of the objects of plugins."""


class JobWorld(CheckedWorld[JobController]):
    """The server with at most one controller, and what others do to jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = SETTINGS
        self.transitions = JobAudit(self.api)
        self.violations = self.transitions.violations

    def _on_change(self, prefix: str, change: str, new: Object, old: Object | None) -> None:
        self.transitions.on_event(prefix, change, new, old)
        self.controller_writes = self.transitions.controller_writes

    def make_controller(self, client: InMemoryClient) -> JobController:
        """A new job controller."""
        self.transitions.on_controller_start()
        settings = self.settings
        if self.transitions.defers_first_status:
            settings = dataclasses.replace(
                settings,
                change_rate=ChangeRate(self.clock, busy_threshold=1e-9),
                max_status_delay=DEFERRED_SECONDS,
                burst_size=0,
            )
        return JobController(
            client,
            settings=settings,
            clock=self.clock,
            recorder=self.recorder,
            plugins=PLUGINS,
        )

    # What there is.

    def objects_by_key(self, resource: Resource) -> dict[str, Object]:
        """Objects by namespace and name, in their order."""
        return dict(sorted(self.api.objects(resource).items()))

    def objects_by_name(self, resource: Resource) -> dict[str, Object]:
        """Objects of namespace d by name, in their order."""
        every = self.objects_by_key(resource)
        return {key[2:]: obj for key, obj in every.items() if key.startswith("d/")}

    @property
    def job(self) -> Object | None:
        return self.objects_by_key(JOBS).get(DEFAULT_NAMESPACE)

    @property
    def status(self) -> Object:
        status: Object = (self.job or {}).get("status", {})
        return status

    @property
    def phase(self) -> str:
        return phase_of(self.job or {})

    def group(self, job: str = DEFAULT_NAMESPACE) -> str | None:
        """The name of the job's PodGroup, if that is there."""
        there = self.objects_by_key(JOBS).get(job)
        name = f"{job.partition('/')[2]}-{there['metadata']['uid']}" if there else ""
        space = job.partition("/")[0]
        return name if f"{space}/{name}" in self.objects_by_key(PODGROUPS) else None

    def needs_no_podgroup(self, job: str = DEFAULT_NAMESPACE) -> bool:
        """Whether the job may be without a PodGroup, and each of its active pods describes one."""
        spec = self.objects_by_key(JOBS)[job]["spec"]
        uid = self.objects_by_key(JOBS)[job]["metadata"]["uid"]
        one_pod = may_be_without_podgroup(spec)
        return (
            self.settings.podgroups is PodGroupsOf.GANGS
            and one_pod
            and all(
                PODGROUP in pod["metadata"]["annotations"]
                for pod in self.objects_by_key(PODS).values()
                if owner_uid(pod) == uid and "deletionTimestamp" not in pod["metadata"]
            )
        )

    def put(self, resource: Resource, name: str, **fields: Any) -> None:
        """Create or update an object."""
        namespace, _, name = key_of(name).partition("/")
        self.api.put(resource, name, namespace=namespace, **fields)

    # The user.

    def submit(self, spec: Object, job: str = DEFAULT_NAMESPACE) -> None:
        self.put(JOBS, job, spec=spec)

    def edit(self, job: str = DEFAULT_NAMESPACE, **changes: Any) -> None:
        """Change the job's spec."""
        self.put(JOBS, job, spec=changes)

    def command(self, action: str, job: str = DEFAULT_NAMESPACE) -> None:
        namespace, _, name = job.partition("/")
        target = {"apiVersion": JOBS.api_version, "kind": "Job", "name": name}
        # Servers list by name: the newest is first.
        name = f"{namespace}/c{10**6 - self.api.version}"
        self.put(COMMANDS, name, action=action, target=target)

    def delete_job(self, job: str = DEFAULT_NAMESPACE, *, how: str = "Background") -> None:
        """Delete it with propagation *how*: the rest is up to the garbage collector."""
        if how == "Background":
            self.api.force_delete(JOBS, job)
        else:
            meta = {"deletionTimestamp": self.api.now(), "finalizers": [how]}
            self.put(JOBS, job, metadata=meta)

    def evict(self, name: str, *, force: bool = False) -> None:
        """A user deletes a pod."""
        self.transitions.on_eviction(name)
        (self.api.force_delete if force else self.api.request_delete)(PODS, name)

    def create_missing_pvcs(self) -> None:
        """Create the missing PVCs that jobs name."""
        for key, job in self.objects_by_key(JOBS).items():
            for volume in job["spec"].get("volumes", ()):
                claim = f"{key.partition('/')[0]}/{volume.get('volumeClaimName', '')}"
                if not claim.endswith("/") and claim not in self.objects_by_key(
                    PERSISTENTVOLUMECLAIMS
                ):
                    self.put(PERSISTENTVOLUMECLAIMS, claim)

    # The scheduler and the kubelet.

    def admit(self, phase: str = "Inqueue", job: str = DEFAULT_NAMESPACE) -> None:
        if name := self.group(job):
            self.put(PODGROUPS, f"{job.partition('/')[0]}/{name}", status={"phase": phase})

    def bind(self, name: str) -> None:
        self.put(PODS, name, spec={"nodeName": "n"})

    def report_pod(
        self, name: str, phase: str, *, code: int = 0, restarts: int | None = None
    ) -> None:
        """The kubelet reports about a pod."""
        one: Object = {"ready": phase == "Running", "state": {}}
        status = self.objects_by_key(PODS)[key_of(name)].get("status", {})
        one["restartCount"] = status.get("containerStatuses", [{}])[0].get("restartCount", 0)
        if restarts is not None:
            one["restartCount"] = restarts
            one["lastState"] = {"terminated": {"exitCode": 1, "finishedAt": self.api.now()}}
        if phase in ("Succeeded", "Failed"):
            ended = {"exitCode": code, "finishedAt": self.api.now()}
            one["state"] = {"terminated": ended}
        if phase == "Failed":
            self.transitions.on_failure(name)
        self.put(
            PODS, name, spec={"nodeName": "n"}, status={"phase": phase, "containerStatuses": [one]}
        )

    def finish_deletion(self, name: str) -> None:
        """The kubelet has ended a pod that was asked to go."""
        self.api.force_delete(PODS, name)

    # The garbage collector.

    def delete_orphans(self) -> bool:
        """Remove all dependents but pods whose owner is deleted; return whether there were any."""
        uids = {job["metadata"]["uid"] for job in self.objects_by_key(JOBS).values()}
        left = [
            (prefix, key)
            for prefix, objects in self.api.stores.items()
            for key, obj in sorted(objects.items())
            if prefix != PODS.path() and (owner := owner_uid(obj)) and owner not in uids
        ]
        for prefix, key in left:
            self.api._delete(prefix, key)
        return bool(left)

    def collect_garbage(self) -> None:
        """Delete the dependents of deleted or terminating owners; then finalize a waiting owner.

        Dependents of an owner deleted with propagation Orphan lose their owner reference.
        """
        jobs = {
            job["metadata"]["uid"]: job["metadata"] for job in self.objects_by_key(JOBS).values()
        }
        waited_for = set()
        for prefix, objects in self.api.stores.items():
            for key, obj in sorted(objects.items()):
                owner = jobs.get(owner_uid(obj), {"deletionTimestamp": "", "finalizers": []})
                if not owner_uid(obj) or "deletionTimestamp" not in owner:
                    continue
                if "Orphan" in owner.get("finalizers", ()):
                    meta = {**obj["metadata"], "ownerReferences": []}
                    self.api._store(prefix, key, {**obj, "metadata": meta})
                    continue
                self.api._delete(prefix, key)
                if key in objects:
                    waited_for.add(owner_uid(obj))
        for key, job in self.objects_by_key(JOBS).items():
            going = "deletionTimestamp" in job["metadata"]
            if going and job["metadata"]["uid"] not in waited_for:
                self.api.force_delete(JOBS, key)

    def foreign_objects(self) -> list[tuple[Resource, str]]:
        """Objects without an owner that may have names that jobs need."""
        return [
            (kind, key)
            for kind in (PODS, PODGROUPS, *CREATED_RESOURCES)
            for key, obj in self.objects_by_key(kind).items()
            if not owner_uid(obj)
        ]
