"""The training-operator in a cluster is found."""

from typing import Any

import msgspec
import pytest
from support.training_jobs import NOW

from batholith.training_ctrl.operator_check import (
    LEASE_NAME,
    Deployment,
    Lease,
    running_operators,
)


def deployment(replicas: int = 1, labels: Any = None, **container: Any) -> Deployment:
    template = {"spec": {"containers": [{"image": "registry/other:1", **container}]}}
    body = {
        "metadata": {"name": "o", "namespace": "kubeflow", "labels": labels or {}},
        "spec": {"replicas": replicas, "template": template},
    }
    return msgspec.convert(body, Deployment)


@pytest.mark.parametrize(
    ("found", "evidence"),
    [
        (deployment(image="kubeflow/training-operator:v1-855e096"), "image kubeflow/training-o"),
        (deployment(command=["/manager/training-operator"]), "runs training-operator"),
        (deployment(labels={"control-plane": "kubeflow-training-operator"}), "label control-plane"),
        (deployment(labels={"app.kubernetes.io/name": "training-operator"}), "label app.kub"),
    ],
)
def test_deployments_of_the_operator(found: Deployment, evidence: str) -> None:
    (described,) = running_operators([found], now=NOW)
    assert described.startswith(f"Deployment o in kubeflow ({evidence}")


@pytest.mark.parametrize(
    "other",
    [
        deployment(),
        deployment(0, image="kubeflow/training-operator:v1"),
        deployment(image="r/batholith:1", labels={"app": "training-operator"}),
    ],
)
def test_other_deployments(other: Deployment) -> None:
    assert running_operators([other], now=NOW) == []


@pytest.mark.parametrize(
    ("renewed", "holder", "running"),
    [
        ("2025-12-31T23:59:50.000000Z", "pod-1", True),
        ("2025-12-31T23:59:40.000000Z", "pod-1", False),
        ("2026-01-01T00:00:00Z", "", False),
        ("malformed", "pod-1", True),
        (None, "pod-1", False),
    ],
)
def test_lease_of_the_operator(renewed: str | None, holder: str, running: bool) -> None:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}
    body = {"metadata": {"name": LEASE_NAME, "namespace": "kubeflow"}, "spec": spec}
    found = running_operators([], [msgspec.convert(body, Lease)], now=NOW)
    assert bool(found) is running
