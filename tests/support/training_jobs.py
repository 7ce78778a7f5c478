"""Typed training jobs, pods and decisions for tests of pure functions."""

from dataclasses import dataclass, replace
from typing import Any

import msgspec
from support.training_harness import job

from batholith.machinery.reconcile.controller import RequeueAfter
from batholith.machinery.testing import FakeClock
from batholith.model.training.types import JobStatus
from batholith.training_ctrl import effects as fx
from batholith.training_ctrl.core_types import Pod, Service
from batholith.training_ctrl.decide import decide
from batholith.training_ctrl.frameworks import FRAMEWORKS
from batholith.training_ctrl.frameworks.base import Framework, Member
from batholith.training_ctrl.pods import build_pod, replica_labels
from batholith.training_ctrl.restarts import ANNOTATION, RestartRecord, encode
from batholith.training_ctrl.view import TrainingView

BY_KIND: dict[str, Framework[Any]] = {each.kind.name: each for each in FRAMEWORKS}
UID = "job-uid"
NOW = FakeClock().now()


def typed(kind: str, **spec: Any) -> Any:
    """A job with defaults, as the controller has it."""
    body = job(kind, **spec)
    body["metadata"] |= {"uid": UID, "generation": 1}
    framework = BY_KIND[kind]
    return framework.default(framework.decode(msgspec.json.encode(body)))


def built(given: Any, replica_type: str, index: int, **settings: Any) -> dict[str, Any]:
    """The pod that is created."""
    framework = _framework(given)
    member = Member(given, replica_type, index, **settings)
    return build_pod(framework, member, gang=None)


def environment(pod: dict[str, Any], container: int = 0) -> dict[str, str]:
    env = pod["spec"]["containers"][container].get("env", [])
    return {each["name"]: each.get("value", "") for each in env}


def pod(
    given: Any,
    replica_type: str,
    index: int,
    phase: str = "Running",
    *,
    code: int | None = None,
    restarts: int = 0,
    **metadata: Any,
) -> Pod:
    """A pod of a job, as the informer has it."""
    framework = _framework(given)
    name = framework.pod_name(given.metadata.name, replica_type, index)
    state = {} if code is None else {"terminated": {"exitCode": code}}
    status = {"name": framework.kind.main_container, "restartCount": restarts, "state": state}
    meta = {
        "name": name,
        "namespace": given.metadata.namespace,
        "uid": f"uid-{name}",
        "labels": replica_labels(framework, given, replica_type, index),
        **metadata,
    }
    return msgspec.convert(
        {"metadata": meta, "status": {"phase": phase, "containerStatuses": [status]}}, Pod
    )


def service(given: Any, replica_type: str, index: int) -> Service:
    found = pod(given, replica_type, index)
    return Service(metadata=found.metadata)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """All effects of a decision, and of the one after its restart record is written."""

    record: RestartRecord | None = None
    restarts: tuple[fx.Announcement, ...] = ()
    writes: tuple[fx.Write, ...] = ()
    status: JobStatus
    needs_writes: bool = False
    announcements: tuple[fx.Announcement, ...] = ()
    requeue_after: float | None = None


def decided(given: Any, *pods: Pod, **view: Any) -> Decision:
    """What a job with these pods needs."""
    framework = _framework(given)
    found: dict[str, Any] = {"status": given.status}
    for each in decide(
        TrainingView(framework=framework, job=given, pods=pods, **{"now": NOW, **view})
    ):
        match each:
            case fx.WriteRecord(record, announcements):
                recorded = with_annotations(given, {ANNOTATION: encode(record)})
                after_record = decided(recorded, *pods, **view)
                assert after_record.record is None, "the record is written once"
                return replace(after_record, record=record, restarts=announcements)
            case fx.WriteObjects(writes):
                found["writes"] = writes
            case fx.WriteStatus(status, announcements, needs_writes):
                found |= {
                    "status": status,
                    "announcements": announcements,
                    "needs_writes": needs_writes,
                }
            case RequeueAfter(seconds):
                found["requeue_after"] = seconds
    return Decision(**found)


def after(given: Any, result: Decision) -> Any:
    """The job once its status is written."""
    return msgspec.structs.replace(given, status=result.status)


def with_annotations(given: Any, annotations: dict[str, str]) -> Any:
    metadata = msgspec.structs.replace(given.metadata, annotations=annotations)
    return msgspec.structs.replace(given, metadata=metadata)


def conditions(result: Decision) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, each.reason) for each in result.status.conditions}


def _framework(given: Any) -> Framework[Any]:
    return next(
        each
        for each in FRAMEWORKS
        if isinstance(given.spec, type(each.decode(b'{"spec":{}}').spec))
    )
