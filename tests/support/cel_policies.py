"""The policies of the manifests on a real API server: installed and in effect."""

from collections.abc import Iterator
from typing import Any

import yaml
from support.manifests import MANIFESTS
from support.realkube import RealKube

from batholith.model.names import (
    BATCH_JOBS,
    CRONJOBS,
    HYPERNODES,
    JOBFLOWS,
    JOBS,
    PODGROUPS,
    PODS,
    QUEUES,
    Resource,
)

Json = dict[str, Any]

POLICY_DIR = MANIFESTS / "components" / "policies"
_API = "/apis/admissionregistration.k8s.io/v1"
PLURALS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
RESOURCES: dict[str, Resource] = {
    "CronJob": CRONJOBS, "HyperNode": HYPERNODES, "Job": JOBS, "JobFlow": JOBFLOWS,
    "Queue": QUEUES, "PodGroup": PODGROUPS, "Pod": PODS,
}  # fmt: skip


def policies() -> list[Json]:
    """All policies and their bindings, in the order in which they are applied."""
    files = sorted(POLICY_DIR.glob("*-policies.yaml"))
    texts = [path.read_text() for path in files]
    return [each for text in texts for each in yaml.load_all(text, Loader=yaml.CSafeLoader)]


def path_of(kind: str, name: str = "") -> str:
    """Where policies and bindings are."""
    return f"{_API}/{PLURALS[kind]}{'/' if name else ''}{name}"


def install(kube: RealKube) -> None:
    """Create the policies, and wait until each kind of object is checked."""
    for each in policies():
        assert kube.request_json("POST", path_of(each["kind"]), each) == 201, each["metadata"][
            "name"
        ]
    for resource, probe in _probes():
        path = f"{resource.path('default' if resource.namespaced else '')}?dryRun=All"
        kube.wait_status(422, path, method="POST", body=probe)
    # The last policy takes effect last: no child may have more than its parent.
    path = QUEUES.path()
    assert kube.request_json("POST", path, _queue("parent", cpu="1")) == 201
    child = _queue("child", cpu="2", parent="parent")
    kube.wait_status(422, f"{path}?dryRun=All", method="POST", body=child)
    assert kube.request_json("DELETE", QUEUES.path(name="parent")) == 200


def _queue(name: str, *, cpu: str, **spec: str) -> Json:
    body = _object(QUEUES, {"weight": 1, "capability": {"cpu": cpu}, **spec})
    return body | {"metadata": {"name": name}}


def _probes() -> Iterator[tuple[Resource, Json]]:
    """Objects that the schemas take and one policy each refuses."""
    both = {"highestTierAllowed": 1, "highestTierName": "rack"}
    annotations = {"volcano.sh/jdb-min-available": "0"}
    container = {"name": "main", "image": "busybox"}
    yield CRONJOBS, _object(CRONJOBS, {"schedule": "x", "jobTemplate": {}})
    undefined = {"name": "a", "dependsOn": {"targets": ["b"]}}
    yield JOBFLOWS, _object(JOBFLOWS, {"flows": [undefined]})
    yield HYPERNODES, _object(HYPERNODES, {"tier": 1})
    yield JOBS, _object(JOBS, {})
    yield BATCH_JOBS, batch_job({"batholith.io/notify": "x"})
    yield QUEUES, _object(QUEUES, {"parent": "probe"})
    yield PODGROUPS, _object(PODGROUPS, {"networkTopology": both})
    pod = _object(PODS, {"schedulerName": "volcano", "containers": [container]})
    yield PODS, pod | {"metadata": {"name": "probe", "annotations": annotations}}


def batch_job(annotations: Json, **spec: Any) -> Json:
    """A Job of batch/v1 that is valid but for its annotations."""
    container = {"name": "main", "image": "busybox"}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    body = _object(BATCH_JOBS, {"template": template, **spec})
    return body | {"metadata": {"name": "probe", "annotations": annotations}}


def _object(resource: Resource, spec: Json) -> Json:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": "probe"},
        "spec": spec,
    }
