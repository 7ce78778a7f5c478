"""Inputs of the decisions about a Job."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from batholith.batch_ctrl.backoff import BackoffRecord
from batholith.batch_ctrl.batch_pod import BatchPod
from batholith.batch_ctrl.core_types import Job, PodFailurePolicy
from batholith.batch_ctrl.state import BatchJobState
from batholith.batch_ctrl.view import BatchJobView
from batholith.model.pod import PodPhase

START = datetime(2026, 1, 1, tzinfo=UTC)
START_TEXT = "2026-01-01T00:00:00Z"
NEVER = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main"}]}}
ON_FAILURE = {"spec": {"restartPolicy": "OnFailure"}}
FAILED, SUCCEEDED, RUNNING = PodPhase.FAILED, PodPhase.SUCCEEDED, PodPhase.RUNNING
PENDING = PodPhase.PENDING


def job(status: dict[str, Any] | None = None, *, deleted: bool = False, **spec: Any) -> Job:
    """Return a Job that has started."""
    if spec.get("completionMode") != "Indexed" and "completions" not in spec:
        spec["completions"] = 1
    meta = {"name": "j", "namespace": "d", "uid": "job", "generation": 1, "resourceVersion": "1"}
    if deleted:
        meta["deletionTimestamp"] = START_TEXT
    return msgspec.convert(
        {
            "metadata": meta,
            "spec": {
                "template": msgspec.Raw(msgspec.json.encode(spec.pop("template", NEVER))),
                "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "job"}},
                **spec,
            },
            "status": {"startTime": START_TEXT, **(status or {})},
        },
        Job,
    )


def indexed(completions: int, status: dict[str, Any] | None = None, **spec: Any) -> Job:
    """Return an Indexed Job."""
    spec = {"parallelism": completions, **spec}
    return job(status, completionMode="Indexed", completions=completions, **spec)


def pod(number: int, phase: PodPhase = RUNNING, **fields: Any) -> BatchPod:
    """Return a pod with the finalizer."""
    given = {"uid": f"u{number}", "name": f"p{number}", "phase": phase, "finalizer": True}
    return BatchPod(**{**given, **fields})


def view(
    of: Job, *pods: BatchPod, seconds: float = 0, backoff: BackoffRecord | None = None
) -> BatchJobView:
    """Return the input of a sync, *seconds* after the start of the Job; deletes pods by name."""
    state = BatchJobState(of)
    state.backoff = backoff or BackoffRecord()
    for one in pods:
        state.pods.observe(one)
    return BatchJobView(
        job=of,
        state=state,
        now=START + timedelta(seconds=seconds),
        monotonic=seconds,
        is_orphan=lambda _: False,
        deletion_order=lambda given: sorted(given, key=lambda one: one.name),
    )


def policy(*rules: dict[str, Any]) -> PodFailurePolicy:
    """Return a pod failure policy."""
    return msgspec.convert({"rules": rules}, PodFailurePolicy)
