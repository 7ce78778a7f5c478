"""Invariants of each job once its controller is idle."""

from collections.abc import Iterable, Iterator
from typing import Any

from support.job_stateful import CREATED_RESOURCES, JobWorld
from support.job_transitions import (
    FINAL,
    RUNNING_PHASES,
    TERMINATING_PHASES,
    delay_of,
    matching_policy,
    owner_uid,
    phase_of,
)

from batholith.model.names import (
    COMMANDS,
    CONFIGMAPS,
    JOBS,
    NETWORKPOLICIES,
    PERSISTENTVOLUMECLAIMS,
    PODGROUPS,
    PODS,
    SECRETS,
    SERVICES,
    Resource,
)

Object = dict[str, Any]
FINISHED_PHASES = ("Succeeded", "Failed")
ANY_EVENT = ("Pending", "Running", "Unknown", *FINISHED_PHASES)
_SLACK = 7.0
"""Seconds after which an action that is due has been taken."""


def validate(world: JobWorld) -> None:
    """Check the world of *life*.

    Raises:
        AssertionError: something is not as the jobs and the pods ask for.
    """
    assert world.objects_by_key(COMMANDS) == {}
    for key in world.objects_by_key(JOBS):
        _JobInvariants(world, key).validate()
    bound = 60 + 30 * world.transitions.external_changes + 10 * world.controllers_started
    assert world.transitions.controller_writes <= bound, (
        f"{world.transitions.controller_writes} writes "
        f"for {world.transitions.external_changes} changes"
    )


def is_incomplete(world: JobWorld) -> bool:
    """Whether some job is without something that it should have."""
    return any(_JobInvariants(world, key).is_incomplete() for key in world.objects_by_key(JOBS))


def phase_of_pod(pod: Object) -> str:
    phase: str = pod.get("status", {}).get("phase", "Pending")
    return phase


def is_terminating(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


class _JobInvariants:
    """One job."""

    def __init__(self, world: JobWorld, key: str) -> None:
        self.world, self.key = world, key
        self.job = world.objects_by_key(JOBS)[key]
        self.namespace, _, self.name = key.partition("/")
        self.uid = self.job["metadata"]["uid"]
        self.spec, self.status = self.job["spec"], self.job.get("status", {})
        self.phase = phase_of(self.job)
        self.pods = [
            pod for pod in world.objects_by_key(PODS).values() if owner_uid(pod) == self.uid
        ]

    def validate(self) -> None:
        if is_terminating(self.job):
            self.world.transitions.on_job_deleting(self.job)
            return
        if self.phase in RUNNING_PHASES and self._blocking_reason():
            return
        self._counts_equal_the_pods()
        if self.phase in RUNNING_PHASES:
            self._check_children()
            for pod in self.pods:
                self._check_policy_applied(pod)
        elif self.phase == "Restarting":
            assert self._terminating(), f"{self.key}: nothing is left to wait for: {self.status}"
        else:
            self._check_finished()

    def _counts_equal_the_pods(self) -> None:
        status = self.status
        for name in ANY_EVENT:
            number = sum(phase_of_pod(pod) == name and not is_terminating(pod) for pod in self.pods)
            counted = status.get(name.lower(), 0)
            kept = self.phase in FINAL and name in FINISHED_PHASES and counted >= number
            assert counted == number or kept, f"{self.key}: {name}: {number} pods, {status}"
            tasks = status.get("taskStatusCount", {}).values()
            assert counted == sum(task["phase"].get(name, 0) for task in tasks), status
        assert status.get("terminating", 0) == len(self._terminating()), f"{self.key}: {status}"

    def _terminating(self) -> list[Object]:
        return [pod for pod in self.pods if is_terminating(pod)]

    # What a job waits for that only others can bring.

    def _blocking_reason(self) -> bool:
        """Something that the job must have cannot be there."""
        claims = (volume.get("volumeClaimName", "") for volume in self.spec.get("volumes", ()))
        there = self.world.objects_by_key(PERSISTENTVOLUMECLAIMS)
        return any(claim and f"{self.namespace}/{claim}" not in there for claim in claims) or any(
            self._has_name_conflict(kind, name) for kind, name in self._check_plugin_objects()
        )

    def _has_name_conflict(self, kind: Resource, name: str) -> bool:
        there = self.world.objects_by_key(kind).get(f"{self.namespace}/{name}")
        return there is not None and owner_uid(there) != self.uid

    def _check_plugin_objects(self) -> Iterator[tuple[Resource, str]]:
        plugins = self.spec.get("plugins", {})
        if "svc" in plugins:
            yield SERVICES, self.name
            yield CONFIGMAPS, f"{self.name}-svc"
            if not plugins["svc"]:
                yield NETWORKPOLICIES, self.name
        if "ssh" in plugins:
            yield SECRETS, f"{self.name}-ssh"

    # A job that is about.

    def is_incomplete(self) -> bool:
        """An object is missing, and no foreign object blocks its creation."""
        if (
            is_terminating(self.job)
            or self._blocking_reason()
            or self.phase not in ("", *RUNNING_PHASES)
        ):
            return False
        if self.phase == "":
            return True
        if self.world.group(self.key) is None and not self.world.needs_no_podgroup(self.key):
            return True
        lacks = any(
            f"{self.namespace}/{name}" not in self.world.objects_by_key(PODS)
            for name in self._desired_pods()
        )
        # A quota is mentioned at the next attempt, which may be due only after a backoff.
        refused = self.namespace in self.world.api.full_namespaces and self._names_failed_create()
        return lacks and self._admitted() and not refused

    def _names_failed_create(self) -> bool:
        return bool(self.status["state"].get("reason") == "FailedCreate")

    def _check_podgroup(self) -> Object:
        name = self.world.group(self.key)
        if name is None and self.world.needs_no_podgroup(self.key):
            return {"spec": {"minMember": 1}, "status": {"phase": "Inqueue"}}
        assert name is not None, f"{self.key}: the PodGroup is missing"
        group: Object = self.world.objects_by_key(PODGROUPS)[f"{self.namespace}/{name}"]
        return group

    def _admitted(self) -> bool:
        return self._check_podgroup().get("status", {}).get("phase") in (
            "Inqueue",
            "Running",
            "Unknown",
        )

    def _check_children(self) -> None:
        """A PodGroup, what plugins need, and once it is admitted a pod for each index."""
        spec, status = self.spec, self.status
        members, least = self._check_podgroup()["spec"].get("minMember", 0), spec["minAvailable"]
        waits = any("dependsOn" in task for task in spec["tasks"])
        assert members == least or (waits and 0 < members < least)
        assert not spec["suspend"], f"a suspended job is {self.phase}"
        assert status.get("minAvailable", 0) == spec["minAvailable"]
        ended = status.get("succeeded", 0) + status.get("failed", 0)
        total = sum(task["replicas"] for task in spec["tasks"])
        if self.phase == "Pending":
            assert status.get("running", 0) + ended < spec["minAvailable"], status
        else:
            assert ended < total or not total, status
        for kind, name in self._check_plugin_objects():
            there = f"{self.namespace}/{name}" in self.world.objects_by_key(kind)
            assert there or kind is SECRETS, f"{self.key}: {kind.kind} {name} is missing"
        if self._admitted():
            self._has_its_pods()

    def _has_its_pods(self) -> None:
        there = self.world.objects_by_key(PODS)
        missing = [name for name in self._desired_pods() if f"{self.namespace}/{name}" not in there]
        if missing and self.namespace in self.world.api.full_namespaces:
            assert self._names_failed_create(), self.status
        else:
            assert not missing, f"{self.key}: {missing}"

    def _desired_pods(self) -> Iterable[str]:
        """Names of the pods of tasks that may start."""
        for task in self.spec["tasks"]:
            if self._may_start(task):
                for index in range(task["replicas"]):
                    yield f"{self.name}-{task['name']}-{index}"

    def _may_start(self, task: Object) -> bool:
        waits = task.get("dependsOn", {"name": []})
        started = [self._has_started(name) for name in waits["name"]]
        if waits.get("iteration") == "any" and len(started) > 1:
            return any(started)
        return all(started)

    def _has_started(self, named: str) -> bool:
        (task,) = [one for one in self.spec["tasks"] if one["name"] == named]
        started = 0
        for pod in self.pods:
            notes = pod["metadata"]["annotations"]
            now = int(notes["volcano.sh/job-version"]) == self.status.get("version", 0)
            counts = phase_of_pod(pod) == "Succeeded" or (phase_of_pod(pod) == "Running" and now)
            beyond = int(notes["volcano.sh/task-index"]) >= task["replicas"]
            mine = notes["volcano.sh/task-spec"] == named
            started += counts and mine and not is_terminating(pod) and not beyond
        return bool(started >= task["minAvailable"])

    def _check_policy_applied(self, pod: Object) -> None:
        """No failed pod is left for which a policy was or should have been applied."""
        notes = pod["metadata"]["annotations"]
        old = int(notes["volcano.sh/job-version"]) < self.status.get("version", 0)
        if old or phase_of_pod(pod) != "Failed" or is_terminating(pod):
            return
        code = pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        named = notes["volcano.sh/task-spec"]
        (task,) = [one for one in self.spec["tasks"] if one["name"] == named]
        policy = matching_policy(self.job, named, "PodFailed", code)
        if policy is None or (
            policy["action"] == "RestartPartition" and "partitionPolicy" not in task
        ):
            return
        since = self.world.clock.now() - self.world.transitions.failed_at(pod)
        delayed = since.total_seconds() - delay_of(policy)
        assert delayed < _SLACK, f"{self.key}: {policy} was forgotten"

    def _check_finished(self) -> None:
        """No active pod is left, and the status follows once the last pod is deleted."""
        assert all(phase_of_pod(pod) in FINISHED_PHASES or is_terminating(pod) for pod in self.pods)
        assert self.world.group(self.key) is None, f"{self.key}: the PodGroup is left over"
        assert self.phase not in TERMINATING_PHASES or self._terminating(), self.status
        for kind in CREATED_RESOURCES:
            left = [
                key
                for key, one in self.world.objects_by_key(kind).items()
                if owner_uid(one) == self.uid
            ]
            assert not left, f"{self.key}: {left} is left over"
