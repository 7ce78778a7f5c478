"""Fields that the embedded cluster ignores, so that it must warn of them."""

from collections.abc import Mapping
from typing import Any

import pytest
from support.enforcement_rows import (
    AGENT,
    SCHEDULER,
    SERVER,
    EnforcementRow,
    data,
    enforced,
    leaf_fields,
    warned,
)

from batholith.local.apiserver.builtin.unenforced import field_warnings
from batholith.local.apiserver.builtin.unenforced_pods import UNENFORCED_PATHS
from batholith.model import names
from batholith.model.names import BATCH_CRONJOBS, BATCH_JOBS, Resource

Json = dict[str, Any]

_RULES: Json = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {"n": {"type": "integer"}},
            "x-kubernetes-validations": [{"rule": "self.n > 0"}],
        }
    },
}


def _definition(**version: Any) -> Json:
    names_ = {"plural": "bars", "singular": "bar", "kind": "Bar", "listKind": "BarList"}
    first = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object"}},
    }
    spec = {"group": "ex.io", "scope": "Namespaced", "names": names_}
    return {
        "metadata": {"name": "bars.ex.io"},
        "spec": {**spec, "versions": [{**first, **version}]},
    }


_CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}

FIELDS: tuple[tuple[Resource, Json, tuple[str, ...]], ...] = (
    (names.CRDS, _definition(schema={"openAPIV3Schema": _RULES}), ()),
    (names.CRDS, _definition(), ()),
    (names.NAMESPACES, {"metadata": {"labels": {"pod-security.kubernetes.io/audit": "baseline"}}}, (
        "metadata.labels[pod-security.kubernetes.io/audit]",
    )),
    (names.NODES, {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}, ()),
    (names.NODES, {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}, ()),
    (names.SERVICES, {"spec": {"type": "NodePort"}}, ()),
    (names.SERVICES, {"spec": {"ports": [{"port": 1}, {"port": 2, "protocol": "SCTP"}]}}, (
        "spec.ports[1].protocol",
    )),
    (names.SERVICES, {"spec": {"ports": [{"protocol": "SCTP"}], "clusterIP": "None"}}, ()),
    (names.SERVICES, {"spec": {"externalIPs": ["192.0.2.1"]}}, ("spec.externalIPs",)),
    (names.SERVICES, {"spec": {"type": "LoadBalancer"}}, ("spec.type",)),
    (names.SERVICES, {"spec": {"type": "ExternalName"}}, ("spec.externalName",)),
    (names.SERVICES, {"spec": {"type": "ClusterIP"}}, ()),
    (names.SERVICES, {"spec": {"clusterIP": "None"}}, ()),
    (names.SECRETS, {"type": "kubernetes.io/service-account-token"}, ()),
    (names.PERSISTENTVOLUMECLAIMS, {"spec": {**_CLAIM, "volumeMode": "Filesystem"}}, ()),
    (names.JOBS, {"spec": {"volumes": [{"volumeClaim": _CLAIM}]}}, ()),
    (names.JOBTEMPLATES, {"spec": {"networkTopology": {"mode": "hard"}}}, ()),
    (names.JOBTEMPLATES, {"spec": {"tasks": [{"partitionPolicy": {"totalPartitions": 1}}]}}, ()),
    (names.JOBTEMPLATES, {"spec": {"tasks": [{"topologyPolicy": "restricted"}]}}, (
        "spec.tasks[0].topologyPolicy",
    )),
    (BATCH_JOBS, {"spec": {"template": {"spec": {"hostIPC": True}}}}, (
        "spec.template.spec.hostIPC",
    )),
    (names.DEPLOYMENTS, {"spec": {"template": {"spec": {"hostIPC": True}}}}, (
        "spec.template.spec.hostIPC",
    )),
    (BATCH_JOBS, {"spec": {"managedBy": "ex.io/mine"}}, ("spec.managedBy",)),
    (BATCH_JOBS, {"spec": {"managedBy": "batholith.io/job-controller"}}, ()),
    (BATCH_JOBS, {"spec": {"managedBy": "kubernetes.io/job-controller"}}, ()),
    (BATCH_CRONJOBS, {"spec": {"jobTemplate": {"spec": {
        "managedBy": "ex.io/mine", "template": {"spec": {"hostPID": True}}}}}}, (
        "spec.jobTemplate.spec.managedBy", "spec.jobTemplate.spec.template.spec.hostPID",
    )),
    (names.CRONJOBS, {"spec": {"jobTemplate": {"spec": {
        "tasks": [{"template": {"spec": {"hostPID": True}}}]}}}}, (
        "spec.jobTemplate.spec.tasks[0].template.spec.hostPID",
    )),
    (names.QUEUES, {"spec": {"affinity": {"nodeGroupAffinity": {}}}}, ("spec.affinity",)),
    (names.QUEUES, {"spec": {"extendClusters": [{"name": "a"}]}}, ("spec.extendClusters",)),
    (names.QUEUES, {"spec": {"weight": 1, "reclaimable": True}}, ()),
)  # fmt: skip
"""Fields of kinds that have an effect as a whole."""


@pytest.mark.parametrize(("resource", "obj", "paths"), FIELDS, ids=str)
def test_fields_without_effect_are_reported(
    resource: Resource, obj: Json, paths: tuple[str, ...]
) -> None:
    warnings = field_warnings(resource, obj)
    assert [
        text.partition(" has no effect in the embedded cluster: ")[0] for text in warnings
    ] == list(paths)
    assert all(text.partition(": ")[2] for text in warnings)


_PROBE = f"{AGENT}/pods/prober.py"
_ENV = f"{AGENT}/state/environment.py"
_PVCS, _SHIM = f"{AGENT}/volumes/pvc_dirs.py", f"{AGENT}/runtime/shim.py"
_FILES = f"{AGENT}/volumes/projected.py"
_USERS = f"{AGENT}/runtime/users.py"
_RIGHTS, _LAYOUT = f"{AGENT}/runtime/rights.py", f"{AGENT}/runtime/rootfs.py"
_PROFILE = {"type": "RuntimeDefault"}
_WINDOWS = {"hostProcess": True}
_ACCOUNTS = f"{SERVER}/service_accounts/admission.py"
POD_FIELDS: Mapping[str, EnforcementRow] = {
    "activeDeadlineSeconds": enforced(f"{AGENT}/state/pod_actions.py", 1),
    "affinity.nodeAffinity": enforced(f"{SCHEDULER}/plugins/predicates.py"),
    **{f"affinity.{kind}": enforced(f"{SCHEDULER}/plugins/pod_filters.py")
        for kind in ("podAffinity", "podAntiAffinity")},
    "automountServiceAccountToken": enforced(_ACCOUNTS, True),
    "dnsConfig": enforced(f"{AGENT}/state/resolv_conf.py", {"nameservers": ["192.0.2.1"]}),
    "dnsPolicy": enforced(f"{AGENT}/state/resolv_conf.py", "Default"),
    "enableServiceLinks": enforced(f"{AGENT}/pods/launch_spec.py", True),
    "ephemeralContainers": enforced(f"{AGENT}/state/pod_actions.py", [{"name": "c"}]),
    "hostAliases": enforced(f"{AGENT}/state/hosts.py", [{"ip": "192.0.2.1", "hostnames": ["a"]}]),
    "hostIPC": warned(True),
    "hostNetwork": enforced(f"{AGENT}/pods/pod_setup.py", True),
    "hostPID": warned(True),
    "hostUsers": enforced(f"{AGENT}/runtime/rootfs.py", False),
    "hostname": enforced(f"{AGENT}/state/core_types.py", "h"),
    "hostnameOverride": warned("h"),
    "imagePullSecrets": enforced(f"{AGENT}/pods/pull_secrets.py", [{"name": "s"}]),
    "nodeName": enforced(f"{AGENT}/service.py", "n"),
    "nodeSelector": enforced(f"{SCHEDULER}/plugins/predicates.py", {"a": "b"}),
    "os": warned({"name": "windows"}),
    "overhead": enforced(f"{SCHEDULER}/state/resources.py", {"cpu": "1"}),
    "preemptionPolicy": enforced(f"{SERVER}/verbs/admission.py", "Never"),
    "priority": enforced(f"{SERVER}/verbs/admission.py", 1),
    "priorityClassName": enforced(f"{SERVER}/verbs/admission.py", "c"),
    "readinessGates": enforced(f"{AGENT}/state/status.py", [{"conditionType": "a"}]),
    "resourceClaims": enforced(f"{SCHEDULER}/state/gangs/device_claims.py", [{"name": "c"}]),
    "resources.claims": warned([{"name": "c"}]),
    "resources.limits": warned({"cpu": "1"}),
    "resources.requests": enforced(f"{SCHEDULER}/state/resources.py", {"cpu": "1"}),
    "restartPolicy": enforced(f"{AGENT}/state/status.py", "Never"),
    "runtimeClassName": warned("gvisor"),
    "schedulerName": enforced(f"{SCHEDULER}/state/cache/cache.py", "volcano"),
    "schedulingGates": enforced(f"{SCHEDULER}/state/gangs/gang.py", [{"name": "g"}]),
    "schedulingGroup": enforced(f"{SCHEDULER}/state/gangs/native_gang.py", {"podGroupName": "g"}),
    "serviceAccount": data("default", "an old name of serviceAccountName, always set with it"),
    "serviceAccountName": enforced(_ACCOUNTS, "default"),
    "setHostnameAsFQDN": warned(True),
    "shareProcessNamespace": warned(True),
    "subdomain": enforced(f"{AGENT}/state/hosts.py", "s"),
    "terminationGracePeriodSeconds": enforced(f"{AGENT}/state/core_types.py", 1),
    "tolerations": enforced(f"{SCHEDULER}/plugins/predicates.py", [{"operator": "Exists"}]),
    "topologySpreadConstraints": enforced(f"{SCHEDULER}/plugins/pod_filters.py"),
    "securityContext.appArmorProfile": warned(_PROFILE),
    "securityContext.fsGroup": warned(1),
    "securityContext.fsGroupChangePolicy": warned("Always"),
    "securityContext.runAsGroup": enforced(_USERS, 1),
    "securityContext.runAsNonRoot": enforced(_USERS, True),
    "securityContext.runAsUser": enforced(_USERS, 1),
    "securityContext.seLinuxChangePolicy": warned("Recursive"),
    "securityContext.seLinuxOptions": warned({"level": "a"}),
    "securityContext.seccompProfile": warned(_PROFILE),
    "securityContext.supplementalGroups": warned([1]),
    "securityContext.supplementalGroupsPolicy": warned("Strict"),
    "securityContext.sysctls": warned([{"name": "a", "value": "b"}]),
    "securityContext.windowsOptions": warned(_WINDOWS),
    "volumes[*].name": enforced(f"{AGENT}/volumes/volumes.py", "v"),
    "volumes[*].configMap": enforced(_FILES),
    "volumes[*].downwardAPI": enforced(_FILES),
    "volumes[*].emptyDir.medium": warned("HugePages"),
    "volumes[*].emptyDir.sizeLimit": enforced(f"{AGENT}/pods/storage_limits.py", "1Gi"),
    "volumes[*].ephemeral": enforced("local/workloads/ephemeral_volumes.py"),
    "volumes[*].hostPath.path": enforced(f"{AGENT}/volumes/volumes.py", "/a"),
    "volumes[*].hostPath.type": enforced(f"{AGENT}/volumes/volumes.py", "Directory"),
    "volumes[*].image": enforced(f"{AGENT}/volumes/volumes.py", {"reference": "i"}),
    "volumes[*].persistentVolumeClaim": enforced(_PVCS, {"claimName": "c"}),
    "volumes[*].projected.defaultMode": enforced(_FILES, 0o600),
    "volumes[*].projected.sources[*].clusterTrustBundle": warned(),
    "volumes[*].projected.sources[*].configMap": enforced(_FILES),
    "volumes[*].projected.sources[*].downwardAPI": enforced(_FILES),
    "volumes[*].projected.sources[*].podCertificate": warned(),
    "volumes[*].projected.sources[*].secret": enforced(_FILES),
    "volumes[*].projected.sources[*].serviceAccountToken": enforced(_FILES),
    "volumes[*].secret": enforced(_FILES),
    **{f"volumes[*].{name}": warned() for name in (
        "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "csi",
        "fc", "flexVolume", "flocker", "gcePersistentDisk", "gitRepo", "glusterfs",
        "iscsi", "nfs", "photonPersistentDisk", "portworxVolume", "quobyte", "rbd", "scaleIO",
        "storageos", "vsphereVolume",
    )},
    "containers[*].args": enforced(_ENV, ["a"]),
    "containers[*].command": enforced(_ENV, ["a"]),
    "containers[*].env[*].name": enforced(_ENV, "N"),
    "containers[*].env[*].value": enforced(_ENV, "v"),
    "containers[*].env[*].valueFrom.configMapKeyRef": enforced(_ENV),
    "containers[*].env[*].valueFrom.fieldRef": enforced(_ENV),
    "containers[*].env[*].valueFrom.fileKeyRef": enforced(
        f"{AGENT}/volumes/env_files.py", {"volumeName": "v", "path": "f", "key": "K"}
    ),
    "containers[*].env[*].valueFrom.resourceFieldRef": enforced(_ENV),
    "containers[*].env[*].valueFrom.secretKeyRef": enforced(_ENV),
    "containers[*].envFrom": enforced(_ENV, [{"prefix": "a"}]),
    "containers[*].image": enforced(f"{AGENT}/runtime/images.py", "i"),
    "containers[*].imagePullPolicy": enforced(f"{AGENT}/images/manager.py", "Always"),
    "containers[*].lifecycle.postStart": enforced(_PROBE),
    "containers[*].lifecycle.preStop": enforced(f"{AGENT}/pods/handlers.py"),
    "containers[*].lifecycle.stopSignal": enforced(f"{AGENT}/runtime/stop_signals.py", "SIGINT"),
    **{f"containers[*].{probe}.{name}": enforced(_PROBE, value)
        for probe in ("livenessProbe", "readinessProbe", "startupProbe")
        for name, value in (
            ("exec", {}), ("failureThreshold", 1), ("httpGet", {}), ("initialDelaySeconds", 1),
            ("periodSeconds", 1), ("successThreshold", 1), ("tcpSocket", {}),
            ("terminationGracePeriodSeconds", 1), ("timeoutSeconds", 1),
        )},
    **{f"containers[*].{probe}.grpc": enforced(f"{AGENT}/pods/grpc_health.py")
        for probe in ("livenessProbe", "readinessProbe", "startupProbe")},
    "containers[*].name": enforced(f"{AGENT}/state/core_types.py", "c"),
    "containers[*].ports[*].containerPort": enforced(f"{AGENT}/pods/handlers.py", 80),
    "containers[*].ports[*].hostIP": warned("192.0.2.1"),
    "containers[*].ports[*].hostPort": warned(80),
    "containers[*].ports[*].name": enforced(f"{AGENT}/pods/handlers.py", "p"),
    "containers[*].ports[*].protocol": data("UDP", "it only informs, on any cluster"),
    "containers[*].resizePolicy": enforced(
        f"{AGENT}/state/resizes.py", [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
    ),
    "containers[*].resources.claims": enforced(f"{AGENT}/devices/claims.py", [{"name": "c"}]),
    "containers[*].resources.limits": enforced(f"{AGENT}/runtime/oom.py", {"memory": "1Gi"}),
    "containers[*].resources.requests": enforced(f"{SCHEDULER}/state/resources.py", {"cpu": "1"}),
    "containers[*].restartPolicy": enforced(f"{AGENT}/state/status.py", "Always"),
    "containers[*].restartPolicyRules[*].action": enforced(
        f"{AGENT}/state/status.py", "RestartAllContainers"
    ),
    "containers[*].restartPolicyRules[*].exitCodes": enforced(f"{AGENT}/state/status.py"),
    "containers[*].securityContext.allowPrivilegeEscalation": enforced(_SHIM, False),
    "containers[*].securityContext.appArmorProfile": warned(_PROFILE),
    "containers[*].securityContext.capabilities.add": warned(["NET_ADMIN"]),
    "containers[*].securityContext.capabilities.drop": enforced(_RIGHTS, ["ALL"]),
    "containers[*].securityContext.privileged": warned(True),
    "containers[*].securityContext.procMount": warned("Unmasked"),
    "containers[*].securityContext.readOnlyRootFilesystem": enforced(_LAYOUT, True),
    "containers[*].securityContext.runAsGroup": enforced(_USERS, 1),
    "containers[*].securityContext.runAsNonRoot": enforced(_USERS, True),
    "containers[*].securityContext.runAsUser": enforced(_USERS, 1),
    "containers[*].securityContext.seLinuxOptions": warned({"level": "a"}),
    "containers[*].securityContext.seccompProfile": warned(_PROFILE),
    "containers[*].securityContext.windowsOptions": warned(_WINDOWS),
    "containers[*].stdin": enforced(f"{AGENT}/runtime/shim.py", True),
    "containers[*].stdinOnce": enforced(f"{AGENT}/runtime/attach.py", True),
    "containers[*].terminationMessagePath": enforced(f"{AGENT}/pods/launch_spec.py", "/a"),
    "containers[*].terminationMessagePolicy": enforced(f"{AGENT}/pods/launch_spec.py", "File"),
    "containers[*].tty": enforced(f"{AGENT}/runtime/shim.py", True),
    "containers[*].volumeDevices": warned([{"name": "v"}]),
    "containers[*].volumeMounts[*].mountPath": enforced(f"{AGENT}/volumes/volumes.py", "/a"),
    "containers[*].volumeMounts[*].mountPropagation": warned("HostToContainer"),
    "containers[*].volumeMounts[*].name": enforced(f"{AGENT}/volumes/volumes.py", "v"),
    "containers[*].volumeMounts[*].readOnly": enforced(f"{AGENT}/volumes/volumes.py", True),
    "containers[*].volumeMounts[*].recursiveReadOnly": warned("Enabled"),
    "containers[*].volumeMounts[*].subPath": enforced(f"{AGENT}/volumes/volumes.py", "a"),
    "containers[*].volumeMounts[*].subPathExpr": enforced(f"{AGENT}/volumes/volumes.py", "a"),
    "containers[*].workingDir": enforced(f"{AGENT}/pods/launch_spec.py", "/a"),
}  # fmt: skip
"""Every field of a pod's spec, or the object that contains it. Init containers have the fields of
containers."""


def test_every_field_of_a_pod_has_a_row() -> None:
    assert sorted(leaf_fields("core.v1.PodSpec", POD_FIELDS)) == sorted(POD_FIELDS)
    assert [path for path, row in POD_FIELDS.items() if not row.enforcer_exists] == []


def _spec(path: str, value: Any) -> Any:
    """A pod's spec with *value* at *path*."""
    if not path:
        return value
    key, _, rest = path.partition(".")
    inner = _spec(rest, value)
    return {key.removesuffix("[*]"): [inner] if key.endswith("[*]") else inner}


@pytest.mark.parametrize("container_list", ["containers", "initContainers"])
def test_pod_fields_without_effect_are_reported(container_list: str) -> None:
    for path, row in POD_FIELDS.items():
        if row.handling == "refused":
            continue
        field_path = path.replace("containers", container_list)
        warnings = field_warnings(names.PODS, {"spec": _spec(field_path, row.body)})
        assert len(warnings) == (row.handling == "warned"), (path, warnings)
        assert all(
            text.startswith(f"spec.{field_path.replace('[*]', '[0]')}") for text in warnings
        ), path


def test_warnings_are_only_of_fields_that_a_pod_has() -> None:
    known = tuple(path for path, row in POD_FIELDS.items() if row.handling != "refused")
    known += tuple(path.replace("containers", "initContainers") for path in known)
    assert [path for path in UNENFORCED_PATHS if not path.startswith(known)] == []


HARMLESS: Mapping[str, Any] = {
    "affinity": {},
    "containers[*].ports": [],
    "containers[*].resources.limits": {"cpu": "1"},
    "containers[*].securityContext": {"privileged": False, "procMount": "Default"},
    "containers[*].securityContext.seccompProfile": {"type": "Unconfined"},
    "containers[*].volumeMounts[*].mountPropagation": "None",
    "dnsPolicy": "ClusterFirst",
    "hostPID": False,
    "os.name": "linux",
    "resources": {},
    "securityContext": {},
    "volumes[*].emptyDir": {},
}


@pytest.mark.parametrize("path", HARMLESS)
def test_values_without_meaning_bring_no_warning(path: str) -> None:
    assert field_warnings(names.PODS, {"spec": _spec(path, HARMLESS[path])}) == []


def test_ports_of_a_pod_with_host_network_bring_no_warning() -> None:
    ports = {"ports": [{"containerPort": 80, "hostPort": 80}]}
    spec = {"hostNetwork": True, "containers": [{"name": "c", **ports}]}
    assert field_warnings(names.PODS, {"spec": spec}) == []


@pytest.mark.parametrize("obj", [{}, {"spec": None}, {"spec": []}, {"spec": {"containers": 1}}])
def test_malformed_objects_raise_no_error(obj: Json) -> None:
    for resource in {row[0] for row in FIELDS} | {names.PODS}:
        field_warnings(resource, obj)
