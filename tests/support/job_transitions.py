"""Invariants that every change of a job's objects must keep."""

import re
from collections import defaultdict
from datetime import datetime
from typing import Any

from support.inmemory_api import InMemoryApi, key_of

from batholith.model import durations
from batholith.model.controlled_resources import COMMAND_UID, RESTART_TARGET
from batholith.model.job_reasons import Reason
from batholith.model.names import COMMANDS, JOBS, PODGROUP, PODGROUPS, PODS

Object = dict[str, Any]

TERMINATING_PHASES = {"Aborting", "Completing", "Terminating"}
EDGES = {
    "": {"Pending"},
    "Pending": {"Running", "Restarting", *TERMINATING_PHASES},
    "Running": {"Pending", "Restarting", "Completed", "Failed", *TERMINATING_PHASES},
    "Restarting": {"Pending", "Failed", *TERMINATING_PHASES},
    "Aborting": {"Aborted", "Restarting"},
    "Aborted": {"Restarting"},
    "Completing": {"Completed"},
    "Terminating": {"Terminated"},
    "Completed": set(),
    "Failed": set(),
    "Terminated": set(),
}
FINAL = {"Completed", "Failed", "Terminated"}
RUNNING_PHASES = {"Pending", "Running"}
ADMITTED = {"Inqueue", "Running", "Unknown", "Completed"}


def phase_of(job: Object) -> str:
    phase: str = job.get("status", {}).get("state", {}).get("phase", "")
    return phase


def object_key(obj: Object) -> str:
    """Namespace and name of *obj*."""
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def owner_uid(obj: Object) -> str:
    """Uid of the job that *obj* belongs to; empty if it has none."""
    owners = [one["uid"] for one in _owner_references(obj)]
    return owners[0] if owners else ""


def matching_policy(job: Object, task: str, event: str, code: int = 0) -> Object | None:
    """Return the first policy that matches *event*; a task's policies precede its job's."""
    (found,) = [one for one in job["spec"]["tasks"] if one["name"] == task]
    for policy in (*found["policies"], *job["spec"]["policies"]):
        named = {policy.get("event"), *policy.get("events", ())}
        if named & {event, "*"} and (event != "PodPending" or "timeout" in policy):
            return dict(policy)
        if code and policy.get("exitCode") == code:
            return dict(policy)
    return None


def delay_of(policy: Object) -> float:
    """Seconds that *policy* waits."""
    return durations.parse(policy.get("timeout", "0s")).total_seconds()


Pod = tuple[str, str, str]
"""Uid of its job, its name, and the job version that it was created for."""


class JobAudit:
    """Checks every change, and records violations."""

    def __init__(self, api: InMemoryApi) -> None:
        self._api = api
        self._commands: dict[str, tuple[int, str, str]] = {}
        """By uid: which one it is, counted from the first, the job it is for, its action."""
        self._last_command: defaultdict[str, int] = defaultdict(int)
        """By uid of a job: the last executed Command."""
        self._admitted: set[tuple[str, int]] = set()
        """(uid of a job, version) for which a PodGroup of that time was admitted."""
        self._podgroup_jobs: dict[str, tuple[str, int]] = {}
        """By uid of a PodGroup: the job and version it was created for."""
        self._evicted: defaultdict[str, set[str]] = defaultdict(set)
        self._failed: dict[Pod, datetime] = {}
        self._pending: dict[Pod, datetime] = {}
        self._deleting: dict[str, Object] = {}
        """Pods that the controller has asked to go, by uid."""
        self._deleting_jobs: set[str] = set()
        self._created: set[Pod] = set()
        """Objects that must not be created again without a reason."""
        self._min_replicas: dict[tuple[str, str], int] = {}
        """Replicas that a task has had at least, by uid of its job and name."""
        self.external_changes = 0
        """Changes by others than the controllers."""
        self.controller_writes = 0
        """Changes by controllers."""
        self.phases: list[str] = []
        """Phases that jobs had."""
        self.defers_first_status = False
        """The controller is under load, so a job may be without a phase until it runs."""
        self.violations: list[str] = []
        """Violations; raised here they would look like a server error to the controller."""

    # Actions of others, announced before they take effect.

    def on_eviction(self, name: str) -> None:
        """A pod is deleted, not by the controller."""
        pod = self._pod(name)
        if owner_uid(pod):
            self._evicted[owner_uid(pod)].add(pod["metadata"]["name"])
            self._created.discard(pod_identity(pod))

    def on_failure(self, name: str) -> None:
        """A pod fails."""
        pod = self._pod(name)
        if owner_uid(pod):
            self._failed[pod_identity(pod)] = self._api.clock.now()

    def failed_at(self, pod: Object) -> datetime:
        """When *pod* failed."""
        return self._failed[pod_identity(pod)]

    def on_controller_start(self) -> None:
        """A new controller starts; it may report a pod as evicted that the old one deleted.

        Neither a partial restart in progress nor the number of replicas explains such a deletion
        any longer.
        """
        for pod in self._deleting.values():
            job = self._job_of(pod)
            if job is None or not _explains_deletion(job, pod):
                self._evicted[owner_uid(pod)].add(pod["metadata"]["name"])

    def on_job_deleting(self, job: Object) -> None:
        """The controller has seen that the job is being deleted."""
        self._deleting_jobs.add(job["metadata"]["uid"])

    def _pod(self, name: str) -> Object:
        return self._api.objects(PODS)[key_of(name)]

    def _pods_of(self, job: Object) -> list[Object]:
        return [pod for pod in self._api.objects(PODS).values() if self._job_of(pod) is job]

    def _job_of(self, obj: Object) -> Object | None:
        """The job that *obj* belongs to, if that is there."""
        for owner in _owner_references(obj):
            job = self._api.objects(JOBS).get(f"{obj['metadata']['namespace']}/{owner['name']}")
            if job is not None and job["metadata"]["uid"] == owner["uid"]:
                return job
        return None

    # What happens.

    def on_event(self, prefix: str, change: str, new: Object, old: Object | None) -> None:
        """Check one change."""
        self.controller_writes += bool(self._api.requesting_client)
        self.external_changes += not self._api.requesting_client
        try:
            self._check(prefix, change, new, old)
        except AssertionError as error:
            self.violations.append(f"{error}")

    def _check(self, prefix: str, change: str, new: Object, old: Object | None) -> None:
        assert sum(one.get("controller", False) for one in _owner_references(new)) <= 1, "INV-OW-1"
        if self._api.requesting_client and prefix not in (JOBS.path(), COMMANDS.path()):
            self._check_ownership(change, new)
        if prefix == JOBS.path() and change != "DELETED":
            self._check_job(new, old or {})
        elif prefix == PODS.path() and self._api.requesting_client:
            self._check_pod_write(change, new)
        elif prefix == PODGROUPS.path():
            self._check_podgroup(change, new)
        elif prefix == COMMANDS.path() and change == "ADDED":
            about = f"{new['metadata']['namespace']}/{new.get('target', {}).get('name')}"
            number = len(self._commands) + 1
            self._commands[new["metadata"]["uid"]] = (number, about, new["action"])

    def _check_ownership(self, change: str, obj: Object) -> None:
        """The controller writes only objects that a job owns."""
        assert owner_uid(obj), f"{object_key(obj)} has no owner, and is {change}"
        if change == "ADDED":
            assert owner_uid(obj) not in self._deleting_jobs, (
                "INV-OW-4: a child of a job that is being deleted"
            )

    def _check_job(self, new: Object, old: Object) -> None:
        for task in new["spec"]["tasks"]:
            key = new["metadata"]["uid"], task["name"]
            self._min_replicas[key] = min(
                task["replicas"], self._min_replicas.get(key, task["replicas"])
            )
        was, now = phase_of(old), phase_of(new)
        before, after = old.get("status", {}), new.get("status", {})
        if was != now:
            self.phases.append(now)
            next_phases = EDGES[was] | EDGES[self._effective_phase(old)]
            if after["state"].get("reason") == Reason.DEPENDENCY_NEVER_MET:
                assert was in ("", "Pending") and not self._pods_of(new), after
                next_phases = {"Failed"}
            assert now in next_phases, f"from {was} to {now}: {after}"
        assert was not in FINAL or now == was, "terminal phases stay"
        version, retries = after.get("version", 0), after.get("retryCount", 0)
        assert version - before.get("version", 0) in (0, 1), after
        assert retries - before.get("retryCount", 0) in (0, 1), after
        assert retries <= new["spec"]["maxRetry"], after
        if retries > before.get("retryCount", 0):
            running = self._effective_phase(old) in RUNNING_PHASES
            assert (running, now) == (True, "Restarting")
        times_of = [one.get("state", {}).get("lastTransitionTime", "") for one in (before, after)]
        assert times_of == sorted(times_of), "the status moves backwards"
        if self._api.requesting_client:
            assert _spec_without_claim_names(new) == _spec_without_claim_names(old)
            self._check_reason(new, before)

    def _effective_phase(self, job: Object) -> str:
        """The phase of *job*, or Pending if its first status may be deferred."""
        marked = job["spec"].get("volumes") or job["spec"].get("plugins")
        deferred = self.defers_first_status and not marked and not job["spec"].get("suspend")
        return phase_of(job) or ("Pending" if deferred else "")

    def _check_reason(self, job: Object, before: Object) -> None:
        """What the status gives as the cause of a phase has really happened."""
        state = job["status"]["state"]
        result = state.get("message", "")
        if result == before.get("state", {}).get("message", "") or state["phase"] == "Failed":
            return  # no transition; the message of a failed job may be extended by the reason
        uid = job["metadata"]["uid"]
        if result.startswith("Command "):
            command = job["status"]["controlledResources"][COMMAND_UID]
            assert result.endswith(f"({command})"), "the mark and the message name one Command"
            number, about, action = self._commands[command]
            assert (about, action) == (object_key(job), job["status"]["state"]["reason"])
            assert number != self._last_command[uid], (
                "INV-VC-1: a Command took effect a second time"
            )
            assert number > self._last_command[uid], "INV-VC-2: Commands execute in order"
            self._last_command[uid] = number
        for event in ("PodEvicted", "PodFailed", "PodPending"):
            _, found, rest = result.partition(f"{event} of ")
            pod = uid, rest.split(" ")[0].rstrip(":"), str(before.get("version", 0))
            if found and event == "PodEvicted":
                assert pod[1] in self._evicted[uid], f"{result}: that did not happen"
            elif found:
                since = (self._failed if event == "PodFailed" else self._pending).get(pod)
                assert since is not None, f"{result}: that did not happen, or long ago (INV-VC-4)"
                named = re.search(r"exit code (\d+)", rest)
                code = int(named[1]) if named else 0
                self._check_policy_timing(job, pod[1], (event, code), since)

    def _check_policy_timing(
        self, job: Object, pod: str, what: tuple[str, int], since: datetime
    ) -> None:
        """It was answered by the policy that should, and not before its time."""
        task = pod[len(job["metadata"]["name"]) + 1 :].rpartition("-")[0]
        policy = matching_policy(job, task, *what)
        assert policy is not None, f"no policy asks for {what}"
        assert policy["action"] == job["status"]["state"]["reason"], f"{what}: {policy}"
        waited = (self._api.clock.now() - since).total_seconds()
        assert waited > delay_of(policy) - 1.0, f"{policy} after {waited} s"

    def _check_pod_write(self, change: str, pod: Object) -> None:
        body = self._api.received[-1].body
        name = pod["metadata"]["name"]
        job = self._job_of(pod)
        if change != "ADDED":
            assert body["preconditions"]["uid"] == pod["metadata"]["uid"], "INV-OW-2"
        if job is None:
            return  # it was deleted at this moment
        if change != "ADDED":
            self._check_pod_deletion(job, pod)
            return
        assert pod_identity(pod) not in self._created, (
            f"INV-EX-1: {name} is created a second time for a version"
        )
        self._created.add(pod_identity(pod))
        self._pending[pod_identity(pod)] = self._api.clock.now()
        version = int(pod_identity(pod)[2])
        assert self._effective_phase(job) in RUNNING_PHASES, (
            f"{name} is created while the job is {phase_of(job)}"
        )
        current = job.get("status", {}).get("version", 0)
        assert version == current, f"{name} is created for another version"
        if PODGROUP in pod["metadata"]["annotations"]:
            assert may_be_without_podgroup(job["spec"]), f"{name} needs a PodGroup"
            self._admitted.add((job["metadata"]["uid"], version))
        admitted = (job["metadata"]["uid"], version) in self._admitted
        assert admitted, f"INV-VC-6: {name} is created before the gang is admitted"

    def _check_pod_deletion(self, job: Object, pod: Object) -> None:
        """A pod is asked to go for a reason that its own job gives."""
        notes = pod["metadata"]["annotations"]
        fewest = self._min_replicas.get((owner_uid(pod), notes["volcano.sh/task-spec"]), 0)
        surplus = int(notes["volcano.sh/task-index"]) >= fewest
        old = int(pod_identity(pod)[2]) < job.get("status", {}).get("version", 0)
        phase, target = self._effective_phase(job), restart_target_of(job)
        if phase == "Restarting" or surplus:
            self._created.discard(pod_identity(pod))
            self._deleting[pod["metadata"]["uid"]] = pod
        if phase == "Restarting" and target:
            assert old or surplus or target in restart_targets_of(pod), (
                f"{object_key(pod)} is deleted for {target}"
            )
        elif phase in RUNNING_PHASES:
            assert old or surplus, f"{object_key(pod)} is asked to go while its job is {phase}"

    def _check_podgroup(self, change: str, group: Object) -> None:
        job, uid = self._job_of(group), group["metadata"]["uid"]
        if job is None:
            return
        version = job.get("status", {}).get("version", 0)
        if change == "ADDED":
            assert self._effective_phase(job) in RUNNING_PHASES, (
                f"a PodGroup is created while the job is {phase_of(job)}"
            )
            self._podgroup_jobs[uid] = (owner_uid(group), version)
        if group.get("status", {}).get("phase") in ADMITTED and uid in self._podgroup_jobs:
            self._admitted.add(self._podgroup_jobs[uid])


def may_be_without_podgroup(spec: Object) -> bool:
    """Whether a job with this *spec*, of those that the histories contain, is of that kind."""
    tasks = spec["tasks"]
    single = len(tasks) == 1 and tasks[0]["replicas"] == 1 and spec["minAvailable"] == 1
    special = ("dependsOn", "partitionPolicy")
    plain = not any(tasks[0].get(name) for name in special) if tasks else False
    return single and plain and not spec.get("plugins") and not spec.get("volumes")


def _owner_references(obj: Object) -> list[Object]:
    owners: list[Object] = obj["metadata"].get("ownerReferences", [])
    return owners


def _spec_without_claim_names(job: Object) -> Object:
    """The spec without what the controller may write there."""
    volumes = [
        {key: value for key, value in volume.items() if key != "volumeClaimName"}
        if "volumeClaim" in volume
        else volume
        for volume in job["spec"].get("volumes", ())
    ]
    return {**job["spec"], "volumes": volumes}


def pod_identity(pod: Object) -> Pod:
    meta = pod["metadata"]
    return owner_uid(pod), meta["name"], meta["annotations"]["volcano.sh/job-version"]


def restart_target_of(job: Object) -> str:
    """The part of the job that its restart is about; empty if it is all of it."""
    target: str = job["status"].get("controlledResources", {}).get(RESTART_TARGET, "")
    return target


def restart_targets_of(pod: Object) -> set[str]:
    """Restart targets that include *pod*."""
    meta = pod["metadata"]
    task = meta["annotations"]["volcano.sh/task-spec"]
    partition = meta["labels"].get("volcano.sh/partition-id", "")
    return {f"pod/{meta['name']}", f"task/{task}", f"partition/{task}/{partition}"}


def _explains_deletion(job: Object, pod: Object) -> bool:
    """Whether the status of *job* shows that deletion of *pod* was requested."""
    notes = pod["metadata"]["annotations"]
    replicas = {one["name"]: one["replicas"] for one in job["spec"]["tasks"]}
    if int(notes["volcano.sh/task-index"]) >= replicas.get(notes["volcano.sh/task-spec"], 0):
        return True
    return phase_of(job) in ("Restarting", "Pending") and restart_target_of(
        job
    ) in restart_targets_of(pod)
