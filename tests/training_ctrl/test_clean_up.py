"""Which pods and Services of a finished job are deleted."""

import itertools

import pytest
from support.training_harness import replica
from support.training_jobs import pod, service, typed

from batholith.training_ctrl.clean_up import of_finished_job, of_unfinished_job

JOB = typed("PyTorchJob", Worker=replica("PyTorchJob", 3))
PHASES = ("", "Pending", "Running", "Succeeded", "Failed", "Unknown")


@pytest.mark.parametrize("policy", ["None", "Running", "All", None])
def test_clean_pod_policies_for_all_mixtures_of_phases(policy: str | None) -> None:
    """INV-TJ-6."""
    for phases in itertools.product(PHASES, repeat=3):
        pods = [pod(JOB, "Worker", index, phase) for index, phase in enumerate(phases)]
        services = [service(JOB, "Worker", index) for index in range(3)]
        deleted = of_finished_job(policy, pods, services)
        expected = [
            each.metadata.name
            for each, phase in zip(pods, phases, strict=True)
            if policy == "All" or (policy == "Running" and phase in ("", "Pending", "Running"))
        ]
        assert [each.metadata.name for each in deleted.pods] == expected
        assert [each.metadata.name for each in deleted.services] == expected


def test_services_are_deleted_although_their_pods_are_deleted_already() -> None:
    services = [service(JOB, "Worker", index) for index in range(2)]
    kept = pod(JOB, "Worker", 1, "Succeeded")
    deleted = of_finished_job("Running", [kept], services)
    assert [each.metadata.name for each in deleted.services] == ["j-worker-0"]
    assert len(of_finished_job("All", [], services).services) == 2
    assert not of_finished_job("None", [], services).any


def test_terminating_objects_are_not_deleted_again() -> None:
    terminating = pod(JOB, "Worker", 0, deletionTimestamp="2026-01-01T00:00:00Z")
    assert not of_unfinished_job([terminating], []).any
