"""What must be so of each job as soon as its controller has come to a rest."""

from collections.abc import Iterable, Iterator
from typing import Any

from support.job_stateful import MADE, Life
from support.job_transitions import FINAL, SERVED, STOPS, answering, delay_of, owner_of, phase_of

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
ENDED = ("Succeeded", "Failed")
ANY = ("Pending", "Running", "Unknown", *ENDED)
_SLACK = 7.0
"""Seconds after which an action that is due has been taken."""


def validate(life: Life) -> None:
    """Check the world of *life*.

    Raises:
        AssertionError: something is not as the jobs and the pods ask for.
    """
    assert life.every(COMMANDS) == {}
    for key in life.every(JOBS):
        _Rest(life, key).validate()
    bound = 60 + 30 * life.audit.causes + 10 * life.lives
    assert life.audit.writes <= bound, f"{life.audit.writes} writes for {life.audit.causes} changes"


def wanting(life: Life) -> bool:
    """Whether some job is without something that it should have."""
    return any(_Rest(life, key).wanting() for key in life.every(JOBS))


def phase_of_pod(pod: Object) -> str:
    phase: str = pod.get("status", {}).get("phase", "Pending")
    return phase


def leaves(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


class _Rest:
    """One job."""

    def __init__(self, life: Life, key: str) -> None:
        self.life, self.key = life, key
        self.job = life.every(JOBS)[key]
        self.space, _, self.name = key.partition("/")
        self.uid = self.job["metadata"]["uid"]
        self.spec, self.status = self.job["spec"], self.job.get("status", {})
        self.phase = phase_of(self.job)
        self.pods = [pod for pod in life.every(PODS).values() if owner_of(pod) == self.uid]

    def validate(self) -> None:
        if leaves(self.job):
            self.life.audit.going(self.job)
            return
        if self.phase in SERVED and self._blocked():
            return
        self._counts_equal_the_pods()
        if self.phase in SERVED:
            self._served()
            for pod in self.pods:
                self._was_answered(pod)
        elif self.phase == "Restarting":
            assert self._leaving(), f"{self.key}: nothing is left to wait for: {self.status}"
        else:
            self._ended()

    def _counts_equal_the_pods(self) -> None:
        status = self.status
        for name in ANY:
            number = sum(phase_of_pod(pod) == name and not leaves(pod) for pod in self.pods)
            counted = status.get(name.lower(), 0)
            kept = self.phase in FINAL and name in ENDED and counted >= number
            assert counted == number or kept, f"{self.key}: {name}: {number} pods, {status}"
            tasks = status.get("taskStatusCount", {}).values()
            assert counted == sum(task["phase"].get(name, 0) for task in tasks), status
        assert status.get("terminating", 0) == len(self._leaving()), f"{self.key}: {status}"

    def _leaving(self) -> list[Object]:
        return [pod for pod in self.pods if leaves(pod)]

    # What a job waits for that only others can bring.

    def _blocked(self) -> bool:
        """Something that the job must have cannot be there."""
        claims = (volume.get("volumeClaimName", "") for volume in self.spec.get("volumes", ()))
        there = self.life.every(PERSISTENTVOLUMECLAIMS)
        return any(claim and f"{self.space}/{claim}" not in there for claim in claims) or any(
            self._taken(kind, name) for kind, name in self._objects()
        )

    def _taken(self, kind: Resource, name: str) -> bool:
        there = self.life.every(kind).get(f"{self.space}/{name}")
        return there is not None and owner_of(there) != self.uid

    def _objects(self) -> Iterator[tuple[Resource, str]]:
        plugins = self.spec.get("plugins", {})
        if "svc" in plugins:
            yield SERVICES, self.name
            yield CONFIGMAPS, f"{self.name}-svc"
            if not plugins["svc"]:
                yield NETWORKPOLICIES, self.name
        if "ssh" in plugins:
            yield SECRETS, f"{self.name}-ssh"

    # A job that is about.

    def wanting(self) -> bool:
        """It lacks something, and it is not because of somebody who is still in its way."""
        if leaves(self.job) or self._blocked() or self.phase not in ("", *SERVED):
            return False
        if self.phase == "" or self.life.group(self.key) is None:
            return True
        lacks = any(f"{self.space}/{name}" not in self.life.every(PODS) for name in self._wanted())
        return lacks and self._admitted() and self.space not in self.life.api.full

    def _group(self) -> Object:
        name = self.life.group(self.key)
        assert name is not None, f"{self.key}: the PodGroup is missing"
        group: Object = self.life.every(PODGROUPS)[f"{self.space}/{name}"]
        return group

    def _admitted(self) -> bool:
        return self._group().get("status", {}).get("phase") in ("Inqueue", "Running", "Unknown")

    def _served(self) -> None:
        """A PodGroup, what plugins need, and once it is admitted a pod for each index."""
        spec, status = self.spec, self.status
        members, least = self._group()["spec"].get("minMember", 0), spec["minAvailable"]
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
        for kind, name in self._objects():
            there = f"{self.space}/{name}" in self.life.every(kind)
            assert there or kind is SECRETS, f"{self.key}: {kind.kind} {name} is missing"
        if self._admitted():
            self._has_its_pods()

    def _has_its_pods(self) -> None:
        there = self.life.every(PODS)
        missing = [name for name in self._wanted() if f"{self.space}/{name}" not in there]
        if missing and self.space in self.life.api.full:
            assert self.status["state"].get("reason") == "FailedCreate", self.status
        else:
            assert not missing, f"{self.key}: {missing}"

    def _wanted(self) -> Iterable[str]:
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
            started += counts and mine and not leaves(pod) and not beyond
        return bool(started >= task["minAvailable"])

    def _was_answered(self, pod: Object) -> None:
        """No pod stands there failed that a policy has answered, or should have by now."""
        notes = pod["metadata"]["annotations"]
        old = int(notes["volcano.sh/job-version"]) < self.status.get("version", 0)
        if old or phase_of_pod(pod) != "Failed" or leaves(pod):
            return
        code = pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        named = notes["volcano.sh/task-spec"]
        (task,) = [one for one in self.spec["tasks"] if one["name"] == named]
        policy = answering(self.job, named, "PodFailed", code)
        if policy is None or (
            policy["action"] == "RestartPartition" and "partitionPolicy" not in task
        ):
            return
        since = self.life.clock.now() - self.life.audit.failed_at(pod)
        late = since.total_seconds() - delay_of(policy)
        assert late < _SLACK, f"{self.key}: {policy} was forgotten"

    def _ended(self) -> None:
        """Nothing is left that lives, and as soon as the last pod has gone it is said."""
        assert all(phase_of_pod(pod) in ENDED or leaves(pod) for pod in self.pods)
        assert self.life.group(self.key) is None, f"{self.key}: the PodGroup is left over"
        assert self.phase not in STOPS or self._leaving(), self.status
        for kind in MADE:
            left = [key for key, one in self.life.every(kind).items() if owner_of(one) == self.uid]
            assert not left, f"{self.key}: {left} is left over"
