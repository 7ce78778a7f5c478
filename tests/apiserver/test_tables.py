"""Lists as tables: ages, columns, cells."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from batholith.local.apiserver.builtin.kinds import BUILT_IN
from batholith.local.apiserver.custom.kinds import custom_kinds
from batholith.local.apiserver.kinds.info import KindInfo
from batholith.local.apiserver.printing import tables
from batholith.local.apiserver.printing.ages import age
from batholith.model import crds as own_crds
from batholith.model import durations

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (1, "1s"),
        (59, "59s"),
        (60, "60s"),
        (119, "119s"),
        (120, "2m"),
        (121, "2m1s"),
        (179, "2m59s"),
        (180, "3m"),
        (599, "9m59s"),
        (600, "10m"),
        (601, "10m"),
        (3599, "59m"),
        (3600, "60m"),
        (3661, "61m"),
        (7199, "119m"),
        (10799, "179m"),
        (10800, "3h"),
        (11000, "3h3m"),
        (28799, "7h59m"),
        (28800, "8h"),
        (86399, "23h"),
        (172799, "47h"),
        (172800, "2d"),
        (172801, "2d"),
        (180000, "2d2h"),
        (691199, "7d23h"),
        (691200, "8d"),
        (63071999, "729d"),
        (63072000, "2y"),
        (70000000, "2y80d"),
        (252460800, "8y"),
        (300000000, "9y"),
    ],
)
def test_durations_are_formatted_as_recorded(seconds: int, text: str) -> None:
    assert durations.human(seconds) == text


def test_missing_or_malformed_times_have_no_age() -> None:
    assert age(None, NOW) == "<unknown>"
    assert age("yesterday", NOW) == "<unknown>"
    assert age("2026-01-01T11:59:00Z", NOW) == "60s"


def kind(name: str, group: str = "") -> KindInfo:
    return next(k for k in BUILT_IN if (k.resource.kind, k.resource.group) == (name, group))


def row(info: KindInfo, obj: dict[str, Any], *, wide: bool = False) -> dict[str, Any]:
    obj = {"metadata": {"name": "a", "creationTimestamp": "2026-01-01T11:00:00Z"}} | obj
    columns = tables.column_definitions(info)
    found = tables.cells(info, obj, NOW)
    assert len(found) == len(columns)
    return {
        column["name"]: cell
        for column, cell in zip(columns, found, strict=True)
        if wide or column["priority"] == 0
    }


@pytest.mark.parametrize("info", BUILT_IN, ids=lambda info: info.resource.kind)
def test_every_kind_can_print_an_object_with_only_a_name(info: KindInfo) -> None:
    shown = row(info, {}, wide=True)
    assert shown["Name"] == "a"


def test_a_kind_without_columns_prints_its_creation_time() -> None:
    assert row(kind("LimitRange"), {}) == {"Name": "a", "Created At": "2026-01-01T11:00:00Z"}


def pod(status: dict[str, Any], *, init: int = 0, **metadata: Any) -> dict[str, Any]:
    inits = [{"name": f"i{number}"} for number in range(init)]
    return {
        "metadata": {"name": "a", "creationTimestamp": "2026-01-01T11:00:00Z", **metadata},
        "spec": {"containers": [{"name": "c"}], "initContainers": inits, "nodeName": "n1"},
        "status": status,
    }


def container(ready: bool = False, count: int = 0, **state: Any) -> dict[str, Any]:
    return {"name": "c", "ready": ready, "restartCount": count, "state": state}


RUNNING = {"startedAt": "2026-01-01T11:00:00Z"}


@pytest.mark.parametrize(
    ("status", "init", "expected"),
    [
        ({"phase": "Pending"}, 0, "Pending"),
        ({"phase": "Failed", "reason": "Evicted"}, 0, "Evicted"),
        ({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}, 0,
         "SchedulingGated"),
        ({"phase": "Running", "containerStatuses": [container(True, running=RUNNING)]}, 0,
         "Running"),
        ({"phase": "Pending", "containerStatuses": [
            container(waiting={"reason": "ContainerCreating"})]}, 0, "ContainerCreating"),
        ({"phase": "Running", "containerStatuses": [
            container(waiting={"reason": "CrashLoopBackOff"})]}, 0, "CrashLoopBackOff"),
        ({"phase": "Succeeded", "containerStatuses": [
            container(terminated={"exitCode": 0, "reason": "Completed"})]}, 0, "Completed"),
        ({"phase": "Failed", "containerStatuses": [container(terminated={"exitCode": 3})]}, 0,
         "ExitCode:3"),
        ({"phase": "Failed", "containerStatuses": [
            container(terminated={"exitCode": 137, "signal": 9})]}, 0, "Signal:9"),
        ({"phase": "Running", "containerStatuses": [
            container(True, running=RUNNING),
            container(terminated={"exitCode": 0, "reason": "Completed"})],
          "conditions": [{"type": "Ready", "status": "False"}]}, 0, "NotReady"),
        ({"phase": "Pending", "initContainerStatuses": [
            {"name": "i0", "state": {"terminated": {"exitCode": 0}}},
            {"name": "i1", "state": {"waiting": {"reason": "PodInitializing"}}}]}, 2, "Init:1/2"),
        ({"phase": "Pending", "initContainerStatuses": [
            {"name": "i0", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]}, 1,
         "Init:Error"),
    ],
)  # fmt: skip
def test_the_status_column_of_a_pod(status: dict[str, Any], init: int, expected: str) -> None:
    assert row(kind("Pod"), pod(status, init=init))["Status"] == expected
    dying = pod(status, init=init, deletionTimestamp="2026-01-01T11:59:00Z")
    assert row(kind("Pod"), dying)["Status"] == "Terminating"


def test_a_pod_row_has_readiness_node_and_last_restart() -> None:
    state = container(True, 3, running=RUNNING)
    state["lastState"] = {"terminated": {"finishedAt": "2026-01-01T11:55:00Z"}}
    status = {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [state]}
    assert row(kind("Pod"), pod(status), wide=True) == {
        "Name": "a",
        "Ready": "1/1",
        "Status": "Running",
        "Restarts": "3 (5m ago)",
        "Age": "60m",
        "IP": "10.0.0.1",
        "Node": "n1",
        "Nominated Node": "<none>",
        "Readiness Gates": "<none>",
    }


@pytest.mark.parametrize(
    ("name", "group", "obj", "expected"),
    [
        ("Node", "", {"status": {"conditions": [{"type": "Ready", "status": "True"}]},
                      "spec": {"unschedulable": True}},
         {"Status": "Ready,SchedulingDisabled", "Roles": "<none>"}),
        ("Service", "", {"spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "ports": [
            {"port": 80, "nodePort": 30000, "protocol": "TCP"}]}},
         {"Cluster-IP": "10.0.0.1", "External-IP": "<none>", "Port(s)": "80:30000/TCP"}),
        ("ConfigMap", "", {"data": {"a": "", "b": ""}}, {"Data": 2, "Age": "60m"}),
        ("Event", "", {"involvedObject": {"kind": "Pod", "name": "p"}, "message": "hi\n",
                       "lastTimestamp": "2026-01-01T11:59:50Z", "count": 4},
         {"Last Seen": "10s", "Object": "pod/p", "Message": "hi"}),
        ("Deployment", "apps", {"spec": {"replicas": 3}, "status": {"readyReplicas": 1}},
         {"Ready": "1/3", "Up-to-date": 0}),
        ("HorizontalPodAutoscaler", "autoscaling", {
            "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "maxReplicas": 3,
                     "metrics": [
                         {"type": "Resource", "resource": {
                             "name": "cpu", "target": {"averageUtilization": 50}}},
                         {"type": "Resource", "resource": {
                             "name": "memory", "target": {"averageValue": "1Gi"}}},
                         {"type": "Pods", "pods": {"target": {"averageValue": "5"}}}]},
            "status": {"currentReplicas": 2, "currentMetrics": [
                {"type": "Resource", "resource": {
                    "name": "cpu", "current": {"averageUtilization": 7}}}]}},
         {"Reference": "Deployment/d", "MinPods": "<unset>", "MaxPods": 3, "Replicas": 2,
          "Targets": "cpu: 7%/50%, memory: <unknown>/1Gi + 1 more..."}),
        ("Job", "batch", {"spec": {"completions": 2}, "status": {
            "succeeded": 2, "startTime": "2026-01-01T11:00:00Z",
            "completionTime": "2026-01-01T11:01:30Z",
            "conditions": [{"type": "Complete", "status": "True"}]}},
         {"Status": "Complete", "Completions": "2/2", "Duration": "90s"}),
        ("CertificateSigningRequest", "certificates.k8s.io", {
            "spec": {"signerName": "a/b", "username": "u", "expirationSeconds": 3600},
            "status": {"conditions": [{"type": "Approved"}], "certificate": "x"}},
         {"SignerName": "a/b", "Requestor": "u", "RequestedDuration": "60m",
          "Condition": "Approved,Issued"}),
        ("Event", "events.k8s.io", {
            "apiVersion": "events.k8s.io/v1", "regarding": {"kind": "Pod", "name": "p"},
            "note": "hi", "eventTime": "2026-01-01T11:59:50Z"},
         {"Last Seen": "10s", "Object": "pod/p", "Message": "hi"}),
        ("Ingress", "networking.k8s.io", {
            "spec": {"rules": [{"host": each} for each in "abcd"], "tls": [{}]},
            "status": {"loadBalancer": {"ingress": [{"hostname": "h" * 20}]}}},
         {"Class": "<none>", "Hosts": "a,b,c + 1 more...", "Ports": "80, 443",
          "Address": f"{'h' * 13}..."}),
        ("IngressClass", "networking.k8s.io", {"spec": {"controller": "c", "parameters": {
            "apiGroup": "g", "kind": "K", "name": "n"}}},
         {"Controller": "c", "Parameters": "K.g/n"}),
        ("IPAddress", "networking.k8s.io", {"spec": {"parentRef": {
            "group": "g", "resource": "r", "namespace": "ns", "name": "n"}}},
         {"ParentRef": "r.g/ns/n"}),
        ("ServiceCIDR", "networking.k8s.io", {"spec": {"cidrs": ["10.0.0.0/8", "fd00::/108"]}},
         {"CIDRs": "10.0.0.0/8,fd00::/108"}),
        ("ResourceClaim", "resource.k8s.io", {"status": {"allocation": {}, "reservedFor": [{}]}},
         {"State": "allocated,reserved"}),
        ("CSIDriver", "storage.k8s.io", {"spec": {"tokenRequests": [{"audience": "a"}]}},
         {"AttachRequired": True, "TokenRequests": "a", "Modes": "<none>"}),
        ("ValidatingAdmissionPolicyBinding", "admissionregistration.k8s.io",
         {"spec": {"policyName": "p", "paramRef": {"name": "n"}}},
         {"PolicyName": "p", "ParamRef": "*/n"}),
        ("NetworkPolicy", "networking.k8s.io", {"spec": {"podSelector": {
            "matchLabels": {"a": "b"},
            "matchExpressions": [{"key": "c", "operator": "In", "values": ["e", "d"]}]}}},
         {"Pod-Selector": "a=b,c in (d,e)"}),
        ("PersistentVolumeClaim", "", {"spec": {"volumeName": "v"}, "status": {
            "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}},
         {"Status": "Bound", "Capacity": "1Gi", "Access Modes": "RWO"}),
        ("PriorityClass", "scheduling.k8s.io", {"value": 7},
         {"Value": 7, "Global-Default": False}),
    ],
)  # fmt: skip
def test_cells_of_built_in_kinds(
    name: str, group: str, obj: dict[str, Any], expected: dict[str, Any]
) -> None:
    shown = row(kind(name, group), obj)
    assert {key: shown[key] for key in expected} == expected


def test_custom_kinds_print_the_columns_of_their_crd() -> None:
    jobs = next(crd for crd in own_crds.load() if crd["spec"]["names"]["plural"] == "jobs")
    info = custom_kinds(jobs)[0]
    shown = row(
        info,
        {"spec": {"queue": "q"}, "status": {"minAvailable": 3, "state": {"phase": "Running"}}},
        wide=True,
    )
    lower = {key.lower(): value for key, value in shown.items()}
    assert (lower["status"], lower["minavailable"], lower["age"]) == ("Running", 3, "60m")
    assert tables.column_definitions(info)[0]["format"] == "name"
    young = {"metadata": {"name": "b", "creationTimestamp": "2026-01-01T12:00:00Z"}}
    later = tables.cells(info, young, NOW + timedelta(seconds=5))
    assert "5s" in later
