"""Built-in kinds: decoding, defaults and validation."""

import copy
from typing import Any

import pytest

from batholith.local.apiserver.builtin.kinds import BUILT_IN
from batholith.local.apiserver.errors.fields import MalformedError
from batholith.local.apiserver.kinds.info import KindInfo


def kind(name: str, group: str = "") -> KindInfo:
    return next(k for k in BUILT_IN if (k.resource.kind, k.resource.group) == (name, group))


def pod(*, labels: Any = None, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "busybox:1", **spec.pop("container", {})}
    metadata: dict[str, Any] = {"name": "p", "namespace": "n", "uid": "u"}
    if labels:
        metadata["labels"] = labels
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def validation_errors(
    info: KindInfo, obj: dict[str, Any], old: dict[str, Any] | None = None
) -> list[str]:
    info.prepare(obj)
    if old is None:
        info.before_create(obj)
    else:
        info.prepare(old)
        info.before_update(obj, old)
    return [error.message for error in info.validate(obj, old)]


# Decoding.


def test_unknown_fields_are_removed_and_reported() -> None:
    obj = pod(bogus=1, container={"nope": {}, "env": [{"name": "A", "x": 1}]})
    obj["metadata"]["odd"] = 1
    assert sorted(kind("Pod").prepare(obj)) == [
        "metadata.odd",
        "spec.bogus",
        "spec.containers[0].env[0].x",
        "spec.containers[0].nope",
    ]
    assert "bogus" not in obj["spec"]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"terminationGracePeriodSeconds": "x"},
         "cannot unmarshal string into Go struct field "
         "PodSpec.spec.terminationGracePeriodSeconds of type int64"),
        ({"container": {"image": 5}},
         "cannot unmarshal number into Go struct field Container.spec.containers.image "
         "of type string"),
        ({"hostNetwork": "yes"}, "cannot unmarshal string into Go struct field"),
        ({"volumes": {}}, "cannot unmarshal object into Go struct field "
         "PodSpec.spec.volumes of type []v1.Volume"),
        ({"nodeSelector": {"a": True}}, "PodSpec.spec.nodeSelector of type string"),
        ({"priority": 2**31}, "cannot unmarshal number 2147483648"),
        ({"container": {"resources": {"limits": {"cpu": "lots"}}}}, "quantit"),
        ({"container": {"resources": {"limits": {"cpu": []}}}}, "resource.Quantity"),
    ],
)  # fmt: skip
def test_values_of_wrong_types_are_rejected_with_their_path(
    spec: dict[str, Any], text: str
) -> None:
    with pytest.raises(MalformedError) as caught:
        kind("Pod").prepare(pod(**spec))
    assert str(caught.value).startswith('Pod in version "v1" cannot be handled as a Pod: ')
    assert text in str(caught.value)


def test_values_are_canonicalized() -> None:
    resources = {"limits": {"cpu": 0.5, "memory": "1024Mi", "x.io/gpu": 1}}
    obj = pod(container={"resources": resources}, hostPID=False, nodeSelector=None, hostname="")
    obj["metadata"]["creationTimestamp"] = None
    obj["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05.6+01:00"
    kind("Pod").prepare(obj)
    limits = obj["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "500m", "memory": "1Gi", "x.io/gpu": "1"}
    assert obj["metadata"]["deletionTimestamp"] == "2026-01-02T02:04:05Z"
    assert "creationTimestamp" not in obj["metadata"]
    assert not {"hostPID", "nodeSelector", "hostname"} & obj["spec"].keys()


def test_zeros_of_pointer_fields_are_kept() -> None:
    obj = pod(terminationGracePeriodSeconds=0, volumes=[{"name": "v", "emptyDir": {}}])
    kind("Pod").prepare(obj)
    assert obj["spec"]["terminationGracePeriodSeconds"] == 0
    assert obj["spec"]["volumes"] == [{"name": "v", "emptyDir": {}}]
    policy: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {"ingress": [{}]}}
    kind("NetworkPolicy", "networking.k8s.io").prepare(policy)
    assert policy["spec"]["ingress"] == [{}]


def test_the_counters_of_a_budget_are_always_encoded() -> None:
    budget: dict[str, Any] = {"metadata": {"name": "b"}, "status": {"currentHealthy": 2}}
    kind("PodDisruptionBudget", "policy").prepare(budget)
    assert budget["status"]["disruptionsAllowed"] == 0
    assert budget["status"]["currentHealthy"] == 2


def test_secrets_must_be_base64() -> None:
    with pytest.raises(MalformedError, match="illegal base64"):
        kind("Secret").prepare({"metadata": {"name": "s"}, "data": {"a": "%%"}})


@pytest.mark.parametrize("info", BUILT_IN, ids=lambda info: info.resource.kind)
def test_preparing_a_minimal_object_of_any_kind_is_idempotent(
    info: KindInfo,
) -> None:
    obj: dict[str, Any] = {"kind": info.resource.kind, "metadata": {"name": "a"}}
    assert info.prepare(obj) == []
    info.before_create(obj)
    assert info.prepare(obj) == []
    once = copy.deepcopy(obj)
    assert info.prepare(obj) == []
    assert obj == once
    info.validate(obj)
    info.validate(obj, once)


# Pods.


def test_pod_defaults_equal_the_reference() -> None:
    obj = pod(
        container={
            "ports": [{"containerPort": 80}],
            "livenessProbe": {"httpGet": {"port": 80}},
            "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "resources": {"limits": {"cpu": "1"}, "requests": {"memory": "1Gi"}},
        },
        volumes=[{"name": "a"}, {"name": "s", "secret": {"secretName": "x"}}],
        serviceAccountName="sa",
    )
    info = kind("Pod")
    info.prepare(obj)
    info.before_create(obj)
    spec = obj["spec"]
    expected = {
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "terminationGracePeriodSeconds": 30,
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "enableServiceLinks": True,
        "serviceAccount": "sa",
    }
    assert {key: spec[key] for key in expected} == expected
    container = spec["containers"][0]
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert container["terminationMessagePolicy"] == "File"
    assert container["ports"][0]["protocol"] == "TCP"
    assert container["livenessProbe"]["httpGet"] == {"path": "/", "port": 80, "scheme": "HTTP"}
    assert container["livenessProbe"]["failureThreshold"] == 3
    assert container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] == "v1"
    assert container["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}
    assert spec["volumes"][0] == {"name": "a", "emptyDir": {}}
    assert spec["volumes"][1]["secret"]["defaultMode"] == 420
    assert obj["status"] == {"phase": "Pending", "qosClass": "Burstable"}
    assert obj["metadata"]["generation"] == 1
    assert info.validate(obj) == []


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("busybox", "Always"),
        ("busybox:latest", "Always"),
        ("busybox:1", "IfNotPresent"),
        ("reg:5000/busybox", "Always"),
        ("reg:5000/busybox:2", "IfNotPresent"),
        ("busybox@sha256:00", "IfNotPresent"),
    ],
)
def test_the_tag_determines_the_pull_policy(image: str, policy: str) -> None:
    obj = pod(container={"image": image})
    kind("Pod").prepare(obj)
    assert obj["spec"]["containers"][0]["imagePullPolicy"] == policy


@pytest.mark.parametrize(
    ("resources", "qos"),
    [
        ({}, "BestEffort"),
        ({"requests": {"x.io/gpu": "1"}, "limits": {"x.io/gpu": "1"}}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}, "Burstable"),
    ],
)
def test_the_qos_class_follows_from_the_resources(resources: dict[str, Any], qos: str) -> None:
    obj = pod(container={"resources": resources})
    kind("Pod").prepare(obj)
    kind("Pod").before_create(obj)
    assert obj["status"]["qosClass"] == qos


def test_a_gated_pod_gets_its_condition_at_creation() -> None:
    obj = pod(schedulingGates=[{"name": "x.io/wait"}])
    assert validation_errors(kind("Pod"), obj) == []
    assert obj["status"]["conditions"][0]["reason"] == "SchedulingGated"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"containers": []}, "spec.containers: Required value"),
        ({"container": {"name": "A_b"}}, "spec.containers[0].name: Invalid value"),
        ({"container": {"image": ""}}, "spec.containers[0].image: Required value"),
        ({"initContainers": [{"name": "c", "image": "i"}]}, "Duplicate value: \"c\""),
        ({"container": {"env": [{"name": "a=b"}]}}, "spec.containers[0].env[0].name: Invalid"),
        ({"container": {"volumeMounts": [{"name": "x", "mountPath": "/x"}]}},
         'spec.containers[0].volumeMounts[0].name: Not found: "x"'),
        ({"container": {"ports": [{"containerPort": 70000}]}},
         "ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535"),
        ({"container": {"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}}},
         'spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal '
         "to cpu limit of 1"),
        ({"container": {"resources": {"limits": {"gpu": "1"}}}}, "fully qualified"),
        ({"container": {"resources": {"requests": {"x.io/gpu": "1"}}}},
         "spec.containers[0].resources.limits: Required value: Limit must be set"),
        ({"container": {"resources": {"limits": {"x.io/gpu": "2"}, "requests": {"x.io/gpu": "1"}}}},
         'resources.requests: Invalid value: "1": must be equal to x.io/gpu limit of 2'),
        ({"restartPolicy": "Sometimes"}, 'spec.restartPolicy: Unsupported value: "Sometimes"'),
        ({"tolerations": [{"operator": "Equal"}]}, "spec.tolerations[0].operator: Invalid value"),
        ({"tolerations": [{"key": "a", "operator": "Exists", "value": "x"}]}, "must be empty"),
        ({"activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds: Invalid value: 0"),
        ({"hostname": "A.b"}, "spec.hostname: Invalid value"),
        ({"nodeSelector": {"a": "b c"}}, "spec.nodeSelector: Invalid value"),
        ({"topologySpreadConstraints": [{"maxSkew": 0, "whenUnsatisfiable": "X"}]},
         "spec.topologySpreadConstraints[0].topologyKey: Required value"),
        ({"container": {"livenessProbe": {}}}, "must specify a handler type"),
        ({"volumes": [{"name": "a", "secret": {}}]}, "secret.secretName: Required value"),
        ({"volumes": [{"name": "a", "emptyDir": {}, "hostPath": {"path": "/"}}]},
         "may not specify more than 1 volume type"),
        ({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Is"}]}]}}}},
         "not a valid selector operator"),
        ({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {}]}}}, "topologyKey: Required value"),
        ({"labels": {"a b": "c"}}, "metadata.labels: Invalid value"),
    ],
)  # fmt: skip
def test_invalid_pods_are_rejected(spec: dict[str, Any], message: str) -> None:
    found = validation_errors(kind("Pod"), pod(**spec))
    assert any(message in each for each in found), found


def test_what_a_pod_update_may_change() -> None:
    tolerations = [{"key": "a", "operator": "Exists"}]
    more = [*tolerations, {"key": "b", "operator": "Exists"}]
    old = pod(tolerations=tolerations, activeDeadlineSeconds=10)
    fine = pod(tolerations=more, activeDeadlineSeconds=5, container={"image": "other:2"})
    fine["metadata"]["labels"] = {"x": "y"}
    assert validation_errors(kind("Pod"), fine, old) == []
    assert fine["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"a": "b"}},
        {"container": {"command": ["x"]}},
        {"tolerations": []},
        {"priorityClassName": "x"},
        {"volumes": [{"name": "v"}]},
    ],
)
def test_what_a_pod_update_may_not_change(spec: dict[str, Any]) -> None:
    tolerations = [{"key": "a", "operator": "Exists"}]
    old = pod(tolerations=tolerations)
    found = validation_errors(kind("Pod"), pod(**{"tolerations": tolerations, **spec}), old)
    assert any("pod updates may not change fields other than" in each for each in found), found


def test_gates_can_only_be_removed_and_a_gated_pod_can_narrow_its_node_selection() -> None:
    gate, other = {"name": "x.io/a"}, {"name": "x.io/b"}
    info = kind("Pod")
    old = pod(schedulingGates=[gate], nodeSelector={"a": "b"})
    closer = pod(schedulingGates=[gate], nodeSelector={"a": "b", "c": "d"})
    assert validation_errors(info, closer, copy.deepcopy(old)) == []
    assert validation_errors(info, pod(nodeSelector={"a": "b"}), copy.deepcopy(old)) == []
    wider = validation_errors(info, pod(schedulingGates=[gate]), copy.deepcopy(old))
    assert "may not change" in wider[0]
    added = pod(schedulingGates=[gate, other], nodeSelector={"a": "b"})
    assert "only deletion is allowed" in validation_errors(info, added, copy.deepcopy(old))[0]


# Other kinds.


def service(**spec: Any) -> dict[str, Any]:
    spec = {"ports": [{"port": 80}], **spec}
    return {"kind": "Service", "metadata": {"name": "s", "namespace": "n"}, "spec": spec}


def test_a_service_is_defaulted_and_keeps_its_cluster_ip() -> None:
    info = kind("Service")
    old = service(clusterIP="10.0.0.1")
    assert validation_errors(info, old) == []
    assert old["spec"]["type"] == "ClusterIP"
    assert old["spec"]["clusterIPs"] == ["10.0.0.1"]
    assert old["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    again = service()
    assert validation_errors(info, again, old) == []
    assert again["spec"]["clusterIP"] == "10.0.0.1"
    moved = validation_errors(info, service(clusterIP="10.0.0.2"), old)
    assert any("may not change once set" in each for each in moved)


def test_a_namespace_gets_its_label_and_finalizer() -> None:
    obj: dict[str, Any] = {"metadata": {"name": "team"}}
    assert validation_errors(kind("Namespace"), obj) == []
    assert obj["metadata"]["labels"] == {"kubernetes.io/metadata.name": "team"}
    assert obj["spec"] == {"finalizers": ["kubernetes"]}
    assert obj["status"] == {"phase": "Active"}


def test_a_node_can_be_created_with_its_status() -> None:
    obj: dict[str, Any] = {"metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "4"}}}
    assert validation_errors(kind("Node"), obj) == []
    assert obj["status"]["allocatable"] == {"cpu": "4"}


def test_string_data_of_a_secret_becomes_data() -> None:
    obj: dict[str, Any] = {"metadata": {"name": "s"}, "stringData": {"a": "b"}}
    assert validation_errors(kind("Secret"), obj) == []
    assert obj == {
        "metadata": {"name": "s"},
        "data": {"a": "Yg=="},
        "type": "Opaque",
    }


def deployment(**spec: Any) -> dict[str, Any]:
    labels = {"app": "a"}
    spec = {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod()["spec"]},
        **spec,
    }
    return {"kind": "Deployment", "metadata": {"name": "d", "namespace": "n"}, "spec": spec}


def test_deployment_defaults() -> None:
    obj = deployment()
    assert validation_errors(kind("Deployment", "apps"), obj) == []
    spec = obj["spec"]
    assert (spec["replicas"], spec["revisionHistoryLimit"]) == (1, 10)
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": "25%", "maxSurge": "25%"}
    assert spec["template"]["spec"]["schedulerName"] == "default-scheduler"


def test_a_job_selects_its_pods_by_its_uid() -> None:
    template = {"spec": {**pod()["spec"], "restartPolicy": "Never"}}
    obj = {"metadata": {"name": "j", "uid": "u1"}, "spec": {"template": template}}
    assert validation_errors(kind("Job", "batch"), obj) == []
    spec: Any = obj["spec"]
    assert spec["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": "u1"}}
    assert spec["template"]["metadata"]["labels"]["job-name"] == "j"
    assert (spec["backoffLimit"], spec["completions"]) == (6, 1)


CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


@pytest.mark.parametrize(
    ("name", "group", "fields", "change", "message"),
    [
        ("ConfigMap", "", {"data": {"a": "b"}, "immutable": True}, {"data": {"a": "c"}},
         "data: Forbidden: field is immutable when `immutable` is set"),
        ("ConfigMap", "", {"data": {"a/b": "c"}}, None, "a valid config key must consist of"),
        ("ConfigMap", "", {"data": {"a": "x" * 1_100_000}}, None, "Too long"),
        ("Secret", "", {"type": "Opaque"}, {"type": "x.io/y"}, "field is immutable"),
        ("Secret", "", {"type": "kubernetes.io/tls"}, None, "data[tls.crt]: Required value"),
        ("Node", "", {"spec": {"taints": [{"key": "a", "effect": "Never"}]}}, None,
         "metadata.taints[0].effect: Unsupported value"),
        ("PersistentVolumeClaim", "", {"spec": {}}, None, "spec.accessModes: Required value"),
        ("PersistentVolumeClaim", "", {"spec": CLAIM},
         {"spec": {**CLAIM, "accessModes": ["ReadWriteMany"]}}, "spec is immutable"),
        ("PriorityClass", "scheduling.k8s.io", {"value": 1}, {"value": 2}, "may not be changed"),
        ("PriorityClass", "scheduling.k8s.io", {"value": 2_000_000_000}, None, "maximum allowed"),
        ("Lease", "coordination.k8s.io", {"spec": {"leaseDurationSeconds": 0}}, None,
         "must be greater than 0"),
        ("Event", "", {"involvedObject": {"namespace": "other"}}, None,
         "does not match event.namespace"),
        ("NetworkPolicy", "networking.k8s.io", {"spec": {"policyTypes": ["X"]}}, None,
         'Unsupported value: "X"'),
        ("RoleBinding", "rbac.authorization.k8s.io", {"roleRef": {"kind": "Role", "name": "a"}},
         {"roleRef": {"kind": "Role", "name": "b"}}, "cannot change roleRef"),
        ("Service", "", {"spec": {"type": "Odd"}}, None, "spec.type: Unsupported value"),
        ("Service", "", {"spec": {}}, None, "spec.ports: Required value"),
        ("Deployment", "apps", {"spec": {}}, None, "spec.selector: Required value"),
        ("Deployment", "apps", {"spec": deployment()["spec"] | {"replicas": -1}}, None,
         "spec.replicas: Invalid value: -1"),
        ("CronJob", "batch", {"spec": {}}, None, "spec.schedule: Required value"),
    ],
)  # fmt: skip
def test_invalid_objects_of_other_kinds_are_rejected(
    name: str, group: str, fields: dict[str, Any], change: dict[str, Any] | None, message: str
) -> None:
    info = kind(name, group)
    base = {"kind": name, "metadata": {"name": "a", "namespace": "n", "uid": "u"}}
    obj = copy.deepcopy({**base, **fields})
    if not info.resource.namespaced:
        del obj["metadata"]["namespace"]
    found = validation_errors(info, obj)
    if change is not None:
        assert found == []
        new = copy.deepcopy({**obj, **change})
        found = validation_errors(info, new, obj)
    assert any(message in each for each in found), found


def test_the_exit_code_zero_is_encoded() -> None:
    terminated = {"exitCode": 0, "reason": "Completed"}
    status = {"name": "c", "state": {"terminated": terminated}}
    pod = {
        "metadata": {"name": "p", "namespace": "n"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
        "status": {"containerStatuses": [status]},
    }
    pods = next(k for k in BUILT_IN if k.resource.kind == "Pod")
    pods.prepare(pod)
    assert pod["status"]["containerStatuses"][0]["state"] == {"terminated": terminated}  # type: ignore[index]
