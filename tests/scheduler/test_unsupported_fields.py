"""A pod with a constraint that is not implemented is not scheduled as if it had none."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from support.enforcement_rows import leaf_fields
from support.scheduler import SchedulerWorld, node, podgroup, queue

from batholith.model.names import GROUP_NAME, QUEUE_GATE
from batholith.scheduler.state.core_types import Pod, PodSpec
from batholith.scheduler.state.podinfo.unsupported_fields import (
    UNSUPPORTED_FIELDS,
    unsupported_fields,
)

Json = dict[str, Any]

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_TERM = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}
_SPREADS = [
    {"topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway"},
    {"topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"},
]

REJECTED: tuple[tuple[str, Json, str], ...] = (
    *(
        ("volumes[*]", {"volumes": [{"name": "v", name: {}}]}, f"spec.volumes[0].{name}")
        for name in ("awsElasticBlockStore", "gcePersistentDisk", "iscsi", "rbd")
    ),
)
"""The row of the table, a spec that uses the field, and the path in the message."""


def decoded(name: str, spec: Json, *, group: str = "g", gated: bool = False) -> Pod:
    """A pod of *group* with *spec*, as decoded from a watch."""
    requests = {"resources": {"requests": {"cpu": "1"}}}
    containers = [{"name": "c", **requests, **each} for each in spec.get("containers", [{}])]
    gates = {"schedulingGates": [{"name": QUEUE_GATE}]} if gated else {}
    annotations = {GROUP_NAME: group} | ({QUEUE_GATE: "true"} if gated else {})
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "annotations": annotations}
    body = {"schedulerName": "volcano", **spec, **gates, "containers": containers}
    return msgspec.convert({"metadata": meta, "spec": body}, Pod)


def test_every_row_has_an_example() -> None:
    assert {row for row, _, _ in REJECTED} == UNSUPPORTED_FIELDS.keys()


@pytest.mark.parametrize(("row", "spec", "path"), REJECTED, ids=[each[2] for each in REJECTED])
def test_unsupported_field_is_in_the_conditions_of_pod_and_podgroup(
    row: str, spec: Json, path: str
) -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 2), decoded("g-0", spec), decoded("g-1", spec))
    assert world.schedule() == {}
    report = world.report("g", now=9.0)
    expected = f"{path}: {UNSUPPORTED_FIELDS[row][0]}"
    assert [(each.reason, each.message) for each in report.pod_conditions] == [
        ("Unschedulable", expected),
        ("Unschedulable", expected),
    ]
    (condition,) = report.status.conditions
    assert (condition.type, condition.reason) == ("Unschedulable", "UnsupportedField")
    assert condition.message.endswith(f"g-0: {expected}")
    assert not world.cluster.queues.named("default").allocated


def test_all_unsupported_fields_are_named() -> None:
    disk = {"volumes": [{"name": "v", "rbd": {}}, {"name": "w", "iscsi": {}}]}
    found = unsupported_fields(msgspec.convert(disk, PodSpec))
    assert {each.path for each in found} == {"spec.volumes[0].rbd"}


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": {"podAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": _TERM}]}}},
        {"affinity": {"podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": _TERM}]}}},
        {"topologySpreadConstraints": _SPREADS[:1]},
        {"containers": [{"ports": [{"containerPort": 80}]}]},
        {"resources": {}},
        {"affinity": {"podAffinity": {REQUIRED: []}}},
        {"volumes": [{"name": "v", "csi": {"driver": "d"}}, {"name": "w", "emptyDir": {}}]},
    ],
    ids=str,
)
def test_preferences_and_empty_fields_do_not_matter(spec: Json) -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), decoded("g-0", spec))
    assert world.schedule() == {"g-0": "a"}


def test_other_members_are_scheduled_if_they_suffice() -> None:
    world = SchedulerWorld()
    unsupported = {"volumes": [{"name": "v", "rbd": {}}]}
    world.upsert(node("a"), podgroup("g", 1), decoded("g-0", unsupported), decoded("g-1", {}))
    assert world.schedule() == {"g-1": "a"}
    diagnosis = world.cluster.gangs["ns/g"].diagnosis
    assert diagnosis is not None
    assert diagnosis.reason == "UnsupportedField"


def test_single_pod_is_rejected_as_well() -> None:
    world = SchedulerWorld()
    spec = {"schedulerName": "default-scheduler", "volumes": [{"name": "v", "rbd": {}}]}
    world.upsert(node("a"), decoded("p", spec, group=""))
    assert world.schedule() == {}


def test_bound_pod_with_an_unsupported_field_counts() -> None:
    world = SchedulerWorld()
    spec = {"schedulerName": "other", "nodeName": "a", "volumes": [{"name": "v", "rbd": {}}]}
    world.upsert(node("a", cpu=1), decoded("p", spec), podgroup("g", 1), decoded("g-0", {}))
    assert world.schedule() == {}


def test_queue_gate_of_an_unschedulable_pod_is_kept() -> None:
    """Without the gate it would count in its queue for ever."""
    world = SchedulerWorld(queue_gates=True)
    world.upsert(node("a"), queue(capability={"cpu": 1}), podgroup("g", 1), podgroup("h", 1))
    unsupported = {"volumes": [{"name": "v", "rbd": {}}]}
    world.upsert(decoded("g-0", unsupported, gated=True))
    world.upsert(decoded("h-0", {}, group="h", gated=True))
    assert [each.name for each in world.decision().ungated] == ["h-0"]
    assert world.fit_message("g").startswith("g-0: spec.volumes[0].rbd: ")


# Every field of a pod's spec has a row, so that one that a new version of Kubernetes adds is
# decided on.

IMPLEMENTED, REJECTED_FIELD, PREFERENCE, UNRELATED = (
    "implemented",
    "rejected",
    "preference",
    "unrelated",
)
_UNRELATED_FIELDS = (
    "activeDeadlineSeconds", "automountServiceAccountToken", "dnsConfig", "dnsPolicy",
    "enableServiceLinks", "ephemeralContainers", "hostAliases", "hostIPC", "hostNetwork", "hostPID",
    "hostUsers", "hostname", "hostnameOverride", "imagePullSecrets", "os", "readinessGates",
    "restartPolicy", "securityContext", "serviceAccount", "serviceAccountName",
    "setHostnameAsFQDN", "shareProcessNamespace", "subdomain", "terminationGracePeriodSeconds",
)  # fmt: skip
_UNRELATED_CONTAINER_FIELDS = (
    "args", "command", "env", "envFrom", "imagePullPolicy", "lifecycle", "livenessProbe",
    "name", "ports[*].containerPort", "ports[*].name", "readinessProbe", "resizePolicy",
    "restartPolicyRules", "securityContext", "startupProbe", "stdin", "stdinOnce",
    "terminationMessagePath", "terminationMessagePolicy", "tty", "volumeDevices", "volumeMounts",
    "workingDir",
)  # fmt: skip
_UNRELATED_VOLUMES = (
    "azureDisk", "azureFile", "cephfs", "cinder", "configMap", "csi", "downwardAPI", "emptyDir",
    "fc", "flexVolume", "flocker", "gitRepo", "glusterfs", "hostPath", "name", "nfs",
    "photonPersistentDisk", "portworxVolume", "projected", "quobyte", "scaleIO", "secret",
    "storageos", "vsphereVolume",
)  # fmt: skip
POD_FIELDS: Mapping[str, str] = {
    **dict.fromkeys(_UNRELATED_FIELDS, UNRELATED),
    **{f"containers[*].{name}": UNRELATED for name in _UNRELATED_CONTAINER_FIELDS},
    **{f"volumes[*].{name}": UNRELATED for name in _UNRELATED_VOLUMES},
    f"affinity.nodeAffinity.{REQUIRED}": IMPLEMENTED,
    f"affinity.nodeAffinity.{PREFERRED}": IMPLEMENTED,
    f"affinity.podAffinity.{REQUIRED}": IMPLEMENTED,
    f"affinity.podAffinity.{PREFERRED}": IMPLEMENTED,
    f"affinity.podAntiAffinity.{REQUIRED}": IMPLEMENTED,
    f"affinity.podAntiAffinity.{PREFERRED}": IMPLEMENTED,
    "containers[*].image": IMPLEMENTED,
    "containers[*].ports[*].hostIP": IMPLEMENTED,
    "containers[*].ports[*].hostPort": IMPLEMENTED,
    "containers[*].ports[*].protocol": IMPLEMENTED,
    "containers[*].resources.claims": UNRELATED,  # the pod has its claims as a whole
    "containers[*].resources.limits": IMPLEMENTED,  # the default of requests
    "containers[*].resources.requests": IMPLEMENTED,
    "containers[*].restartPolicy": IMPLEMENTED,  # of sidecars
    "nodeName": IMPLEMENTED,
    "nodeSelector": IMPLEMENTED,
    "overhead": IMPLEMENTED,
    "preemptionPolicy": IMPLEMENTED,  # nothing is preempted
    "priority": IMPLEMENTED,
    "priorityClassName": IMPLEMENTED,  # the API server sets priority from it
    "resourceClaims": IMPLEMENTED,
    "resources": IMPLEMENTED,
    "runtimeClassName": IMPLEMENTED,  # the API server sets overhead, tolerations and selector
    "schedulerName": IMPLEMENTED,
    "schedulingGates": IMPLEMENTED,
    "schedulingGroup": IMPLEMENTED,
    "tolerations[*].effect": IMPLEMENTED,
    "tolerations[*].key": IMPLEMENTED,
    "tolerations[*].operator": IMPLEMENTED,
    "tolerations[*].tolerationSeconds": UNRELATED,
    "tolerations[*].value": IMPLEMENTED,
    "topologySpreadConstraints": IMPLEMENTED,
    "volumes[*].awsElasticBlockStore": REJECTED_FIELD,
    "volumes[*].ephemeral": REJECTED_FIELD,  # while its claim is unbound
    "volumes[*].gcePersistentDisk": REJECTED_FIELD,
    "volumes[*].image": IMPLEMENTED,
    "volumes[*].iscsi": REJECTED_FIELD,
    "volumes[*].persistentVolumeClaim": REJECTED_FIELD,  # while it is unbound
    "volumes[*].rbd": REJECTED_FIELD,
}
"""What the scheduler does with every field of a pod's spec, or of the object that contains it."""


def test_every_field_of_a_pod_is_decided_on() -> None:
    assert sorted(leaf_fields("core.v1.PodSpec", POD_FIELDS)) == sorted(POD_FIELDS)
    rejected = {path for path, handling in POD_FIELDS.items() if handling == REJECTED_FIELD}
    for row in UNSUPPORTED_FIELDS:
        assert any(row.startswith(path) or path.startswith(row) for path in rejected), row
