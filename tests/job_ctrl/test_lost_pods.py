"""Pods that were lost with their node are removed, so that others replace them."""

import dataclasses
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from support.job_simulator import JobSimulator, running_world
from support.jobs import job, task

from batholith.job_ctrl import effects as fx
from batholith.job_ctrl.decide import decide
from batholith.job_ctrl.tracker.core_types import Pod
from batholith.job_ctrl.tracker.pod_info import parse_pod
from batholith.model import times
from batholith.model.lost_pods import LOST_SECONDS
from batholith.model.names import REPLACE_NODES
from batholith.model.pod import PodPhase

RESTART = {"event": "PodEvicted", "action": "RestartJob"}


def world(*policies: dict[str, Any], annotation: str | None = "true") -> JobSimulator:
    of = job(task("t", 3), policies=list(policies))
    annotations = {} if annotation is None else {REPLACE_NODES: annotation}
    metadata = msgspec.structs.replace(of.metadata, annotations=annotations)
    return running_world(msgspec.structs.replace(of, metadata=metadata))


def lose(world: JobSimulator, name: str, *, after: float = 0.0) -> None:
    """The kubelet of a pod is not reachable: the pod is lost in *after* seconds."""
    lost = world.now + timedelta(seconds=after)
    pod = dataclasses.replace(world.pods[f"j-{name}"], terminating=True, lost_at=lost)
    world.update_pod(pod)


def uids(world: JobSimulator) -> dict[str, str]:
    return {name: pod.uid for name, pod in world.pods.items()}


def test_a_lost_pod_is_created_again_and_the_others_run_on() -> None:
    here = world()
    before = uids(here)
    lose(here, "t-1")
    here.run_until_stable()
    after = uids(here)
    assert after.keys() == before.keys()
    assert {name for name in before if before[name] != after[name]} == {"j-t-1"}
    assert here.status.retry_count == 0
    assert "PodLost" in here.events


@pytest.mark.parametrize("annotation", [None, "false", "yes"])
def test_without_the_annotation_a_lost_pod_stays(annotation: str | None) -> None:
    here = world(annotation=annotation)
    before = uids(here)
    lose(here, "t-1")
    here.run_until_stable()
    assert uids(here) == before


def test_a_pod_is_not_lost_before_its_kubelet_had_time_to_end_it() -> None:
    here = world()
    before = uids(here)
    lose(here, "t-1", after=4.0)
    here.run_until_stable()
    assert uids(here) == before
    assert here.requeue_after == [4.0]
    here.now += timedelta(seconds=4)
    here.run_until_stable()
    assert uids(here) != before


def test_all_lost_pods_are_removed_at_once() -> None:
    here = world()
    for name in ("t-0", "t-2"):
        lose(here, name)
    while not (removed := [e for e in decide(here.job_view()) if isinstance(e, fx.RemoveLostPods)]):
        assert here.step()
    assert [pod.name for pod in removed[0].pods] == ["j-t-0", "j-t-2"]


def test_a_job_that_restarts_is_not_kept_waiting_by_lost_pods() -> None:
    """Its policy orders a restart; the pods of other nodes end as usual."""
    here = world(RESTART)
    before = uids(here)
    lose(here, "t-1")
    here.run_until_stable()
    assert here.status.state.phase == "Restarting"
    here.finish_deletions()
    assert here.status.state.phase == "Pending"
    here.admit()
    assert not set(before.values()) & set(uids(here).values())


def test_a_removed_pod_is_not_removed_again_before_the_watch_shows_it() -> None:
    here = world()
    lose(here, "t-1")
    tracker = here.pod_tracker
    (lost,) = tracker.lost()
    tracker.mark_removed(lost.uid)
    assert not any(isinstance(each, fx.RemoveLostPods) for each in decide(here.job_view()))
    tracker.unmark_removed(lost.uid)
    assert list(tracker.lost()) == [lost]


def manifest(reason: str, deleted: str | None) -> Pod:
    meta = {
        "name": "j-t-0",
        "uid": "u",
        "deletionTimestamp": deleted,
        "annotations": {
            "volcano.sh/job-name": "j",
            "volcano.sh/task-spec": "t",
            "volcano.sh/job-version": "0",
        },
        "ownerReferences": [
            {
                "apiVersion": "batch.volcano.sh/v1alpha1",
                "kind": "Job",
                "name": "j",
                "uid": "o",
                "controller": True,
            }
        ],
    }
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    status = {"phase": PodPhase.RUNNING, "conditions": [condition]}
    return msgspec.convert({"metadata": meta, "status": status}, Pod)


@pytest.mark.parametrize(
    ("reason", "deleted", "is_lost"),
    [
        ("DeletionByTaintManager", "2026-01-01T00:00:30Z", True),
        ("DeletionByTaintManager", None, False),
        ("PreemptionByScheduler", "2026-01-01T00:00:30Z", False),
    ],
)
def test_only_pods_that_are_deleted_because_of_their_node_are_lost(
    reason: str, deleted: str | None, is_lost: bool
) -> None:
    found = parse_pod(manifest(reason, deleted))
    assert found is not None
    expected: datetime | None = None
    if is_lost and deleted is not None:
        expected = times.parse(deleted) + timedelta(seconds=LOST_SECONDS)
    assert found.lost_at == expected
