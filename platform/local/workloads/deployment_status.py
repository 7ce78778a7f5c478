"""Status of a Deployment: counts and conditions as kube-controller-manager computes them."""

from collections.abc import Sequence
from datetime import UTC, datetime

from ...model import times
from .deployment_types import Deployment
from .replica_rules import FAILURE, ReplicaSet
from .rollout import available, total
from .types import Json

AVAILABLE = "Available"
PROGRESSING = "Progressing"
COMPLETE = "NewReplicaSetAvailable"
TIMED_OUT = "ProgressDeadlineExceeded"
PAUSED = "DeploymentPaused"
RESUMED = "DeploymentResumed"


def condition(status: Json, kind: str) -> Json | None:
    """Return the condition of a type, if there is one."""
    return next((each for each in status.get("conditions") or () if each["type"] == kind), None)


class StatusChange:
    """A status to be changed, at one time."""

    def __init__(self, deployment: Deployment, now: float) -> None:
        self.status = dict(deployment.status)
        self._old = deployment.status
        self._now = now
        self._moment = times.format(datetime.fromtimestamp(now, UTC))

    @property
    def differs(self) -> bool:
        """Whether anything has changed."""
        return self.status != self._old

    def set(
        self, kind: str, state: str, reason: str, message: str, *, update: bool = False
    ) -> None:
        """Set a condition; one with the same status and reason stays, unless *update*."""
        old = condition(self.status, kind)
        if old and (old["status"], old["reason"]) == (state, reason) and not update:
            return
        same = old is not None and old["status"] == state
        since = old["lastTransitionTime"] if old is not None and same else self._moment
        self.remove(kind)
        new = {
            "type": kind,
            "status": state,
            "reason": reason,
            "message": message,
            "lastUpdateTime": self._moment,
            "lastTransitionTime": since,
        }
        self.status["conditions"] = [*(self.status.get("conditions") or ()), new]

    def copy(self, found: Json) -> None:
        """Set a condition as a ReplicaSet has it."""
        old = condition(self.status, found["type"])
        keys = ("status", "reason", "message")
        if old is None or any(old.get(key) != found.get(key) for key in keys):
            self.set(found["type"], *(str(found.get(key, "")) for key in keys), update=True)

    def remove(self, kind: str) -> None:
        """Remove a condition."""
        left = [each for each in self.status.get("conditions") or () if each["type"] != kind]
        if left:
            self.status["conditions"] = left
        else:
            self.status.pop("conditions", None)

    def counts(
        self, deployment: Deployment, everything: Sequence[ReplicaSet], new: ReplicaSet | None
    ) -> None:
        """Set the counts, and whether enough pods are available."""
        ready = sum(each.count("readyReplicas") for each in everything)
        usable = available(everything)
        found = {
            "replicas": sum(each.count("replicas") for each in everything),
            "updatedReplicas": new.count("replicas") if new is not None else 0,
            "readyReplicas": ready,
            "availableReplicas": usable,
            "unavailableReplicas": max(total(everything) - usable, 0),
        }
        for name, count in found.items():
            if count:
                self.status[name] = count
            else:
                self.status.pop(name, None)
        self.status["observedGeneration"] = deployment.metadata.generation
        if all("terminatingReplicas" in each.status for each in everything):
            terminating = sum(each.count("terminatingReplicas") for each in everything)
            self.status["terminatingReplicas"] = terminating
        else:
            self.status.pop("terminatingReplicas", None)
        if usable >= deployment.spec.replicas - deployment.max_unavailable:
            text = "Deployment has minimum availability."
            self.set(AVAILABLE, "True", "MinimumReplicasAvailable", text)
        else:
            text = "Deployment does not have minimum availability."
            self.set(AVAILABLE, "False", "MinimumReplicasUnavailable", text)

    def progress(self, deployment: Deployment, new: ReplicaSet | None) -> None:
        """Set the condition of the rollout's progress."""
        if deployment.deadline is None:
            self.remove(PROGRESSING)
            return
        old = condition(self._old, PROGRESSING)
        same = self.status.get("replicas", 0) == self.status.get("updatedReplicas", 0)
        if same and old is not None and old["reason"] == COMPLETE:
            return  # the rollout was complete: a lost pod is no rollout
        name = (
            f'ReplicaSet "{new.metadata.name}"'
            if new is not None
            else f'Deployment "{deployment.metadata.name}"'
        )
        if is_complete(deployment, self.status):
            self.set(PROGRESSING, "True", COMPLETE, f"{name} has successfully progressed.")
        elif self._has_progressed():
            text = f"{name} is progressing."
            self.set(PROGRESSING, "True", "ReplicaSetUpdated", text, update=True)
        elif self._is_late(deployment):
            self.set(PROGRESSING, "False", TIMED_OUT, f"{name} has timed out progressing.")

    def _has_progressed(self) -> bool:
        def counts(status: Json) -> tuple[int, int, int, int]:
            updated = status.get("updatedReplicas", 0)
            return (
                updated,
                status.get("replicas", 0) - updated,
                status.get("readyReplicas", 0),
                status.get("availableReplicas", 0),
            )

        updated, old, ready, usable = counts(self.status)
        before = counts(self._old)
        return updated > before[0] or old < before[1] or ready > before[2] or usable > before[3]

    def _is_late(self, deployment: Deployment) -> bool:
        current = condition(self.status, PROGRESSING)
        if current is None or current["reason"] == COMPLETE:
            return False
        left = seconds_left(deployment, self.status, self._now)
        return current["reason"] == TIMED_OUT or (left is not None and left < 0)

    def failures(self, everything: Sequence[ReplicaSet], new: ReplicaSet | None) -> None:
        """Copy the condition of a ReplicaSet that cannot create pods, the new one's first."""
        ordered = [*([new] if new is not None else []), *everything]
        found = next((each for one in ordered if (each := condition(one.status, FAILURE))), None)
        if found is None:
            self.remove(FAILURE)
        else:
            self.copy(found)


def is_complete(deployment: Deployment, status: Json) -> bool:
    """Whether all pods are of the current template, and are available."""
    wanted = deployment.spec.replicas
    counts = ("updatedReplicas", "replicas", "availableReplicas")
    return (
        all(status.get(each, 0) == wanted for each in counts)
        and status.get("observedGeneration", 0) >= deployment.metadata.generation
    )


def seconds_left(deployment: Deployment, status: Json, now: float) -> float | None:
    """Return the seconds until the rollout misses its deadline; None if it cannot."""
    current = condition(status, PROGRESSING)
    if deployment.deadline is None or current is None:
        return None
    if current["reason"] in (COMPLETE, TIMED_OUT, PAUSED):
        return None
    updated = current.get("lastUpdateTime")
    if not updated:
        return None
    return times.parse(updated).timestamp() + deployment.deadline - now
