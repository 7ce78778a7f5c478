"""A job whose pods could never be created is denied with the path of the invalid field."""

from typing import Any

import pytest
from support.admission import admit, check, container, denial, job, task

from batholith.admission.job_validation import MAX_CACHED_TEMPLATE

Json = dict[str, Any]

C0 = "spec.task[0].template.spec.containers[0]"
SPEC = "spec.task[0].template.spec"


def with_container(**fields: Any) -> Json:
    return {"containers": [container(**fields)]}


@pytest.mark.parametrize(
    ("pod", "text"),
    [
        ({"containers": []}, f"{SPEC}.containers: Required value"),
        ({"containers": [{"image": "x"}]}, f"{C0}.name: Required value"),
        ({"containers": [{"name": "a"}]}, f"{C0}.image: Required value"),
        (with_container(name="A"), f'{C0}.name: Invalid value: "A"'),
        (with_container(name="a" * 64), "must be no more than 63 bytes"),
        (with_container(image=" x"), f'{C0}.image: Invalid value: " x"'),
        (
            with_container(imagePullPolicy="Often"),
            f'{C0}.imagePullPolicy: Unsupported value: "Often"',
        ),
        (
            {"containers": [container(), container()]},
            f'{SPEC}.containers[1].name: Duplicate value: "main"',
        ),
        (
            {"containers": [container()], "initContainers": [container()]},
            f'{C0}.name: Duplicate value: "main"',
        ),
        ({"restartPolicy": "Sometimes"}, f'{SPEC}.restartPolicy: Unsupported value: "Sometimes"'),
        ({"dnsPolicy": "x"}, f"{SPEC}.dnsPolicy: Unsupported value"),
        (
            {"terminationGracePeriodSeconds": -1},
            f"{SPEC}.terminationGracePeriodSeconds: Invalid value: -1: must be greater than or",
        ),
        ({"activeDeadlineSeconds": 0}, f"{SPEC}.activeDeadlineSeconds: Invalid value: 0"),
        ({"hostname": "a.b"}, f'{SPEC}.hostname: Invalid value: "a.b"'),
        ({"serviceAccountName": "A"}, f"{SPEC}.serviceAccountName: Invalid value"),
        ({"nodeSelector": {"a b": "x"}}, f'{SPEC}.nodeSelector: Invalid value: "a b"'),
        ({"nodeSelector": {"a": "x y"}}, f'{SPEC}.nodeSelector: Invalid value: "x y"'),
        ({"tolerations": [{"operator": "Equal"}]}, f"{SPEC}.tolerations[0].operator: Invalid"),
        ({"tolerations": [{"key": "a", "operator": "Lt", "value": "05"}]}, "canonical form"),
        ({"tolerations": [{"operator": "Gt", "value": "5"}]}, f"{SPEC}.tolerations[0].operator: I"),
        ({"tolerations": [{"key": "a", "effect": "Go"}]}, f"{SPEC}.tolerations[0].effect: Unsup"),
        (
            {"tolerations": [{"key": "a", "operator": "Exists", "value": "x"}]},
            "value must be empty",
        ),
        ({"tolerations": [{"key": "a", "tolerationSeconds": 3}]}, "effect must be 'NoExecute'"),
        (with_container(env=[{"value": "x"}]), f"{C0}.env[0].name: Required value"),
        (with_container(env=[{"name": "a=b"}]), f'{C0}.env[0].name: Invalid value: "a=b"'),
        (
            with_container(
                env=[{"name": "a", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "y"}}}]
            ),
            f"{C0}.env[0].valueFrom: Invalid value",
        ),
        (
            with_container(env=[{"name": "a", "valueFrom": {}}]),
            f"{C0}.env[0].valueFrom: Required value",
        ),
        (
            with_container(env=[{"name": "a", "valueFrom": {"secretKeyRef": {"name": "s"}}}]),
            f"{C0}.env[0].valueFrom.secretKeyRef.key: Required value",
        ),
        (with_container(envFrom=[{}]), f"{C0}.envFrom[0]: Required value"),
        (
            with_container(volumeMounts=[{"name": "v", "mountPath": "/v"}]),
            f'{C0}.volumeMounts[0].name: Not found: "v"',
        ),
        (
            with_container(volumeMounts=[{"name": "v"}]) | {"volumes": [{"name": "v"}]},
            f"{C0}.volumeMounts[0].mountPath: Required value",
        ),
        (
            with_container(volumeMounts=[{"name": "v", "mountPath": "/v"}] * 2)
            | {"volumes": [{"name": "v"}]},
            f'{C0}.volumeMounts[1].mountPath: Invalid value: "/v": must be unique',
        ),
        (
            with_container(volumeMounts=[{"name": "v", "mountPath": "/v", "subPath": "../x"}])
            | {"volumes": [{"name": "v"}]},
            f"{C0}.volumeMounts[0].subPath: Invalid value",
        ),
        ({"volumes": [{}]}, f"{SPEC}.volumes[0].name: Required value"),
        ({"volumes": [{"name": "v"}] * 2}, f'{SPEC}.volumes[1].name: Duplicate value: "v"'),
        (
            {"volumes": [{"name": "v", "emptyDir": {}, "secret": {"secretName": "s"}}]},
            f"{SPEC}.volumes[0]: Forbidden: may not specify more than one volume type",
        ),
        (
            {"volumes": [{"name": "v", "configMap": {}}]},
            f"{SPEC}.volumes[0].configMap.name: Required value",
        ),
        (
            {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "big"}}]},
            f'{SPEC}.volumes[0].emptyDir.sizeLimit: Invalid value: "big"',
        ),
        (with_container(ports=[{}]), f"{C0}.ports[0].containerPort: Required value"),
        (
            with_container(ports=[{"containerPort": 70000}]),
            f"{C0}.ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535",
        ),
        (
            with_container(ports=[{"containerPort": 1, "name": "UPPER"}]),
            f"{C0}.ports[0].name: Invalid value",
        ),
        (
            with_container(ports=[{"containerPort": 1, "protocol": "ICMP"}]),
            f"{C0}.ports[0].protocol: Unsupported value",
        ),
        (
            with_container(ports=[{"containerPort": 1, "hostPort": 2}]) | {"hostNetwork": True},
            f"{C0}.ports[0].containerPort: Invalid value: 1: must match `hostPort`",
        ),
        (with_container(livenessProbe={}), f"{C0}.livenessProbe: Required value"),
        (
            with_container(livenessProbe={"exec": {}, "successThreshold": 2}),
            f"{C0}.livenessProbe.successThreshold: Invalid value: 2: must be 1",
        ),
        (
            with_container(readinessProbe={"exec": {}, "periodSeconds": -1}),
            f"{C0}.readinessProbe.periodSeconds: Invalid value: -1",
        ),
        ({"containers": {"name": "a"}}, f"{SPEC}.containers: Expected array, got object"),
        (with_container(command="sleep 1"), "command: Expected array, got str"),
        (with_container(env=[{"name": "N", "value": 1}]), "value: Expected str, got int"),
    ],
)
def test_invalid_pod_templates_are_denied(pod: Json, text: str) -> None:
    assert text in denial(job(task(pod=pod)))


@pytest.mark.parametrize(
    ("resources", "text"),
    [
        ({"requests": {"cpu": "-1"}}, 'requests[cpu]: Invalid value: "-1": must be greater than'),
        ({"requests": {"cpu": "x"}}, 'requests[cpu]: Invalid value: "x": quantities must match'),
        ({"requests": {"cpu": True}}, "Expected"),
        ({"requests": {"gpu": 1}}, "requests[gpu]: Invalid value"),
        (
            {"requests": {"cpu": "2"}, "limits": {"cpu": "1500m"}},
            'requests: Invalid value: "2": must be less than or equal to cpu limit of 1500m',
        ),
        ({"requests": {"a.b/gpu": 1}}, "limits: Required value: Limit must be set"),
        (
            {"requests": {"a.b/gpu": 1}, "limits": {"a.b/gpu": 2}},
            'requests: Invalid value: "1": must be equal to a.b/gpu limit of 2',
        ),
        ({"limits": {"a.b/gpu": "500m"}}, "limits[a.b/gpu]: Invalid value"),
        ({"requests": {"cpu": "0.1", "memory": "1Gi"}, "limits": {"memory": "1024Mi"}}, ""),
        ({"limits": {"a.b/gpu": 1, "cpu": 2}}, ""),
        ({"requests": {"hugepages-2Mi": "4Mi"}, "limits": {"hugepages-2Mi": "4Mi"}}, ""),
    ],
)
def test_resources(resources: Json, text: str) -> None:
    sent = job(task(pod=with_container(resources=resources)))
    check(text, sent)


def test_a_template_with_many_fields_is_allowed() -> None:
    pod = {
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 0,
        "volumes": [
            {"name": "scratch"},
            {"name": "c", "configMap": {"name": "c", "items": [{"key": "a", "path": "a"}]}},
            {"name": "p", "persistentVolumeClaim": {"claimName": "p"}},
            {"name": "s", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        ],
        "initContainers": [container(name="init", restartPolicy="Always")],
        "containers": [
            container(
                env=[
                    {"name": "A", "value": "1"},
                    {"name": "lower.with-dots", "value": ""},
                    {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                ],
                envFrom=[{"configMapRef": {"name": "c"}}],
                ports=[
                    {"containerPort": 80, "name": "http"},
                    {"containerPort": 80, "hostPort": 80},
                ],
                volumeMounts=[
                    {"name": "scratch", "mountPath": "/a"},
                    {"name": "s", "mountPath": "/b", "subPath": "x/y"},
                ],
                livenessProbe={"httpGet": {"port": "http"}, "periodSeconds": 5},
                securityContext={"privileged": True},
            ),
            container(name="two"),
        ],
        "tolerations": [
            {"operator": "Exists"},
            {"key": "b", "operator": "Gt", "value": "-5"},
            {"key": "a", "value": "b", "effect": "NoSchedule"},
        ],
        "nodeSelector": {"example.com/zone": "a"},
        "imagePullSecrets": [{"name": "s"}],
        "affinity": {"podAntiAffinity": {}},
        "hostname": None,
    }
    admit(job(task(pod=pod)))


def test_labels_of_the_template_are_validated() -> None:
    broken = task()
    broken["template"]["metadata"] = {"labels": {"a": "-"}, "annotations": {"b c": "x"}}
    text = denial(job(broken))
    assert 'spec.task[0].template.labels: Invalid value: "-"' in text
    assert 'spec.task[0].template.annotations: Invalid value: "b c"' in text


@pytest.mark.parametrize("padding", [0, 2 * MAX_CACHED_TEMPLATE])
def test_each_task_with_an_equal_invalid_template_is_named_whether_it_is_cached_or_not(
    padding: int,
) -> None:
    """By each job: the errors of templates that are small enough are cached."""
    pod = with_container(imagePullPolicy="Often", args=["x" * padding])
    for _ in range(2):
        text = denial(job(task("a", pod=pod), task("b", pod=pod)))
        for index in range(2):
            where = f"spec.task[{index}].template.spec.containers[0].imagePullPolicy"
            assert f'{where}: Unsupported value: "Often"' in text


def test_a_topology_policy_denies_a_template_that_another_task_may_have() -> None:
    pod = with_container(resources={"requests": {"cpu": "500m"}})
    admit(job(task(pod=pod)))
    text = denial(job(task(pod=pod, topologyPolicy="best-effort")))
    assert "the cpu request isn't an integer in spec.task[0] container[0]" in text
