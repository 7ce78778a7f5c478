"""What must hold of Jobs and pods when the controller has nothing left to do."""

from collections import Counter
from typing import Any

from support.batch_audit import (
    condition,
    has_finalizer,
    in_range,
    index_of,
    indexes,
    is_finished,
    is_foreign,
    uncounted,
)
from support.batch_world import ENDED, BatchWorld, is_active, is_live

from batholith.model.names import BATCH_JOBS

Object = dict[str, Any]


def validate(world: BatchWorld) -> None:
    """Check all Jobs of *world*.

    Raises:
        AssertionError: a Job or pod is not as it must be.
    """
    for name, job in world.objects(BATCH_JOBS).items():
        if not is_foreign(job) and "deletionTimestamp" not in job["metadata"]:
            validate_job(job, world.pods(name))


def validate_job(job: Object, pods: dict[str, Object]) -> None:
    """Check one Job."""
    active = [pod for pod in pods.values() if is_active(pod)]
    check_active(job, active)
    check_status(job, pods, active)
    finished = is_finished(job)
    for name, pod in pods.items():
        if finished:
            assert not has_finalizer(pod), f"INV-BJ-2: {name} of a finished Job has the finalizer"
        elif has_finalizer(pod) and pod.get("status", {}).get("phase") == "Succeeded":
            raise AssertionError(f"INV-BJ-2: {name} is not counted")
        elif has_finalizer(pod) and pod.get("status", {}).get("phase") == "Failed":
            assert is_retained(job, pod, active), f"INV-BJ-2: failed {name} is not counted"


def check_active(job: Object, active: list[Object]) -> None:
    """Check the number of active pods, at most."""
    spec = job["spec"]
    if is_finished(job) or spec["suspend"]:
        assert not active, "INV-BJ-8: a suspended or finished Job has active pods"
        return
    by_index = Counter(index_of(pod) for pod in active)
    if spec.get("completionMode") == "Indexed":
        assert all(count == 1 for count in by_index.values()), f"INV-BJ-4: {by_index}"
        assert all(in_range(job, pod) for pod in active), "INV-BJ-4: a pod has no valid index"
    if spec.get("completions") is not None:
        assert len(active) <= spec["parallelism"], f"INV-BJ-3: {len(active)} pods are active"


def check_status(job: Object, pods: dict[str, Object], active: list[Object]) -> None:
    """Check that the status contains the numbers of pods, and all that have ended."""
    status = job.get("status", {})
    terminating = [
        pod
        for pod in pods.values()
        if not is_live(pod) and pod.get("status", {}).get("phase") not in ENDED
    ]
    assert status.get("active", 0) == len(active), f"{status} with {len(active)} active pods"
    assert status.get("terminating", 0) == len(terminating), f"{status}, {len(terminating)} stop"
    ready = sum(is_ready(pod) for pod in active)
    assert status.get("ready", 0) == ready, f"{status} with {ready} ready pods"
    assert uncounted(job) == {"succeeded": [], "failed": []}, f"{status} at rest"


def is_retained(job: Object, pod: Object, active: list[Object]) -> bool:
    """Whether the replacement of a failed pod needs its annotations."""
    if job["spec"].get("backoffLimitPerIndex") is None or not in_range(job, pod):
        return False
    index = index_of(pod)
    ended = (indexes(job, name) for name in ("completedIndexes", "failedIndexes"))
    return index not in map(index_of, active) and not any(int(index or 0) in one for one in ended)


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def wanted(job: Object, active: int) -> int:
    """Return how many active pods a Job needs once no delay is left."""
    spec, status = job["spec"], job.get("status", {})
    if is_finished(job) or spec["suspend"]:
        return 0
    if condition(job, "FailureTarget") or condition(job, "SuccessCriteriaMet"):
        return 0
    succeeded: int = status.get("succeeded", 0)
    if spec.get("completions") is None:
        return active if succeeded else int(spec["parallelism"])
    ended = succeeded + (indexes(job, "failedIndexes").total if "failedIndexes" in status else 0)
    least = int(min(spec["completions"] - succeeded, spec["parallelism"]))
    return max(0, min(least, int(spec["completions"]) - ended))
