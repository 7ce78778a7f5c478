"""Writes of batch Jobs and CronJobs that API servers accept or reject, by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from support.embedded_apiserver import MERGE

from batholith.model.names import BATCH_CRONJOBS, BATCH_JOBS, Resource

Json = dict[str, Any]

JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

POD: Json = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox:1"}]}
UID_LABEL = "batch.kubernetes.io/controller-uid"
NAME_LABEL = "batch.kubernetes.io/job-name"
LEGACY_UID_LABEL = "controller-uid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A write: a creation or, after it, a change."""

    resource: Resource = BATCH_JOBS
    spec: Json
    metadata: Json | None = None
    status: Json | None = None
    """Status with which the object begins; it must be accepted."""

    change: Json | list[Json] | None = None
    """Patch under test; without one, it is the creation."""

    subresource: str = ""
    content_type: str = MERGE

    def body(self, name: str) -> Json:
        """The object to create."""
        metadata = {"name": name} | (self.metadata or {})
        return {
            "apiVersion": self.resource.api_version,
            "kind": self.resource.kind,
            "metadata": metadata,
            "spec": self.spec,
        }


def template(*, labels: Json | None = None, annotations: Json | None = None, **pod: Any) -> Json:
    metadata = {"labels": labels, "annotations": annotations}
    return {
        "metadata": {key: value for key, value in metadata.items() if value is not None},
        "spec": POD | pod,
    }


def job(**fields: Any) -> Json:
    return {"template": template()} | fields


def indexed(**fields: Any) -> Json:
    return job(completionMode="Indexed", completions=4, parallelism=2) | fields


def cron(schedule: str = "*/5 * * * *", job_fields: Json | None = None, **fields: Any) -> Json:
    return {"schedule": schedule, "jobTemplate": {"spec": job(**(job_fields or {}))}} | fields


def failure_rule(**fields: Any) -> Json:
    return {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}} | fields


def failures(*rules: Json, **fields: Any) -> Json:
    return job(podFailurePolicy={"rules": list(rules)}) | fields


def on_exit(**fields: Any) -> Json:
    return failures(failure_rule(onExitCodes={"operator": "In", "values": [1]} | fields))


def on_condition(*patterns: Json) -> Json:
    return failures({"action": "Ignore", "onPodConditions": list(patterns)})


def success(*rules: Json, **fields: Any) -> Json:
    return indexed(successPolicy={"rules": list(rules)}) | fields


def _created(specs: Mapping[str, Json], resource: Resource = BATCH_JOBS) -> dict[str, Write]:
    return {name: Write(resource=resource, spec=spec) for name, spec in specs.items()}


def _containers(*containers: Json) -> Json:
    named = [{"name": f"c{i}", "image": "i:1"} | each for i, each in enumerate(containers)]
    return {"template": template(containers=named)}


_OLD_LABEL = [{"key": "beta.kubernetes.io/os", "operator": "In", "values": ["linux"]}]
_ODD_VALUE = [{"key": "a", "operator": "In", "values": ["a b"]}]
_FAR = {"topologyKey": "zone"}
_SPREAD = {"maxSkew": 1, "topologyKey": "beta.kubernetes.io/arch"}
_CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1500m"}}}


def _files(*paths: str) -> list[Json]:
    return [{"key": "k", "path": path} for path in paths]


def _labels_at(*paths: str) -> list[Json]:
    return [{"path": path, "fieldRef": {"fieldPath": "metadata.labels"}} for path in paths]


TEMPLATES_WITH_WARNINGS: Mapping[str, Json] = {
    "warned-node-labels": {"template": template(
        nodeSelector={"beta.kubernetes.io/arch": "amd64"},
        affinity={"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": _OLD_LABEL}]},
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "preference": {"matchExpressions": [*_OLD_LABEL, *_ODD_VALUE]}}]}},
        topologySpreadConstraints=[{**_SPREAD, "whenUnsatisfiable": "ScheduleAnyway"}],
    )},
    "warned-affinity": {"template": template(affinity={
        "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_FAR]},
        "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "podAffinityTerm": _FAR}]}})},
    "warned-annotations": {"template": template(annotations={
        "scheduler.alpha.kubernetes.io/critical-pod": "",
        "security.alpha.kubernetes.io/sysctls": "a=b",
        "seccomp.security.alpha.kubernetes.io/pod": "runtime/default",
        "container.seccomp.security.alpha.kubernetes.io/main": "runtime/default",
        "container.apparmor.security.beta.kubernetes.io/main": "runtime/default",
    })},
    "warned-annotations-in-fields": {"template": template(
        annotations={
            "seccomp.security.alpha.kubernetes.io/pod": "runtime/default",
            "container.apparmor.security.beta.kubernetes.io/main": "localhost/x",
        },
        securityContext={
            "seccompProfile": {"type": "RuntimeDefault"},
            "appArmorProfile": {"type": "Localhost", "localhostProfile": "x"},
        },
    )},
    "warned-volume-types": {"template": template(volumes=[
        {"name": "g", "gitRepo": {"repository": "r"}},
        {"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": _CLAIM}}},
    ])},
    "warned-volume-files": {"template": template(volumes=[
        {"name": "m", "configMap": {"name": "cm", "items": _files("a", "a/b", "c")}},
        {"name": "s", "secret": {"secretName": "s", "items": _files("a", "a")}},
        {"name": "d", "downwardAPI": {"items": _labels_at("x/y", "x")}},
        {"name": "p", "projected": {"sources": [
            {"configMap": {"name": "cm", "items": _files("a")}},
            {"secret": {"name": "s", "items": _files("a/b", "c")}},
            {"downwardAPI": {"items": _labels_at("c/d")}},
            {"serviceAccountToken": {"path": "a"}},
            {},
        ]}},
    ])},
    "warned-lists": {"template": template(
        hostAliases=[{"ip": "1.2.3.4"}, {"ip": "1.2.3.4"}, {"ip": "0:0::1"}],
        imagePullSecrets=[{"name": "a"}, {"name": "a"}, {}],
        dnsConfig={"nameservers": ["FD00::1", "10.0.0.1"]},
    )},
    "warned-resources": _containers({"resources": {
        "limits": {"memory": "1500m", "ephemeral-storage": "2500m", "cpu": "1"},
        "requests": {"memory": "500m", "ephemeral-storage": "100m", "cpu": "500m"}}}),
    "warned-env": _containers({"env": [
        {"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}, {"name": "A", "value": "3"},
        {"name": "A", "value": "$(A)"},
        {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}),
    "warned-ports": _containers(
        {"ports": [{"containerPort": 80, "name": "web"},
                   {"containerPort": 80, "hostIP": "1.2.3.4"},
                   {"containerPort": 80, "protocol": "UDP"},
                   {"containerPort": 81, "hostPort": 81}]},
        {"ports": [{"containerPort": 80, "name": "web"},
                   {"containerPort": 81, "hostPort": 81, "hostIP": "1.2.3.4"},
                   {"containerPort": 81, "hostPort": 82}]},
    ),
    "warned-grace": {"template": template(terminationGracePeriodSeconds=-1)},
}  # fmt: skip
"""Specs of Jobs that are accepted with warnings."""

JOB_CREATIONS: Mapping[str, Write] = {
    **_created(TEMPLATES_WITH_WARNINGS),
    **_created(
        {
            "plain": job(),
            "empty": {},
            "template-labels": {"template": template(labels={"app": "a"})},
            "parallelism-alone": job(parallelism=3),
            "completions-alone": job(completions=3),
            "zero": job(parallelism=0, completions=0),
            "negative": job(
                parallelism=-1, completions=-2, activeDeadlineSeconds=-3, backoffLimit=-4,
                ttlSecondsAfterFinished=-5, backoffLimitPerIndex=-6, maxFailedIndexes=-7,
            ),
            "all-numbers": job(
                parallelism=2, completions=3, activeDeadlineSeconds=10, backoffLimit=1,
                ttlSecondsAfterFinished=0, suspend=True,
            ),
            "unknown-mode": job(completionMode="Random"),
            "indexed": indexed(),
            "indexed-without-completions": job(completionMode="Indexed", parallelism=2),
            "indexed-zero": indexed(completions=0),
            "indexed-parallel": indexed(parallelism=100_001, completions=100_001),
            "indexed-many": indexed(parallelism=10_001, completions=100_001),
            "indexed-most": indexed(parallelism=10_000, completions=100_000),
            "limit-per-index": indexed(backoffLimitPerIndex=1),
            "limit-per-index-and-most": indexed(backoffLimitPerIndex=1, maxFailedIndexes=2),
            "limit-per-index-not-indexed": job(backoffLimitPerIndex=1),
            "most-failed-alone": indexed(maxFailedIndexes=1),
            "most-failed-not-indexed": job(maxFailedIndexes=1),
            "most-failed-above-completions": indexed(backoffLimitPerIndex=1, maxFailedIndexes=5),
            "most-failed-too-large": indexed(
                completions=200_000, backoffLimitPerIndex=1, maxFailedIndexes=100_001
            ),
            "many-completions-without-most": indexed(
                completions=100_001, parallelism=10_001, backoffLimitPerIndex=1
            ),
            "many-completions-with-most": indexed(
                completions=100_001, parallelism=10, backoffLimitPerIndex=1, maxFailedIndexes=9
            ),
            "failure-policy": failures(failure_rule()),
            "failure-policy-conditions": on_condition(
                {"type": "DisruptionTarget"}, {"type": "a.io/b", "status": "Unknown"}
            ),
            "failure-policy-empty": failures(),
            "failure-policy-21-rules": failures(*[failure_rule()] * 21),
            "failure-policy-no-action": failures(failure_rule(action="")),
            "failure-policy-unknown-action": failures(failure_rule(action="Retry")),
            "failure-policy-fail-index": failures(failure_rule(action="FailIndex")),
            "failure-policy-fail-index-limited": failures(
                failure_rule(action="FailIndex"),
                completionMode="Indexed", completions=2, backoffLimitPerIndex=0,
            ),
            "failure-policy-both": failures(
                failure_rule(onPodConditions=[{"type": "A", "status": "True"}])
            ),
            "failure-policy-neither": failures({"action": "Count"}),
            "failure-policy-on-failure": failures(
                failure_rule(), template=template(restartPolicy="OnFailure")
            ),
            "failure-policy-replacement": failures(
                failure_rule(), podReplacementPolicy="TerminatingOrFailed"
            ),
            "exit-codes-operator": on_exit(operator="Equals"),
            "exit-codes-no-operator": on_exit(operator=""),
            "exit-codes-zero-in": on_exit(values=[0, 1]),
            "exit-codes-zero-not-in": on_exit(operator="NotIn", values=[0]),
            "exit-codes-empty": on_exit(values=[]),
            "exit-codes-null": on_exit(values=None),
            "exit-codes-double": on_exit(values=[1, 1, 2]),
            "exit-codes-unordered": on_exit(values=[3, 2, 2]),
            "exit-codes-256": on_exit(values=list(range(1, 257))),
            "exit-codes-container": on_exit(containerName="main"),
            "exit-codes-other-container": on_exit(containerName="other"),
            "conditions-type": on_condition({"type": "not qualified"}),
            "conditions-status": on_condition({"type": "A", "status": "Maybe"}),
            "conditions-21": on_condition(*[{"type": "A"}] * 21),
            "success-policy": success({"succeededIndexes": "0,2-3", "succeededCount": 2}),
            "success-policy-count": success({"succeededCount": 4}),
            "success-policy-not-indexed": job(successPolicy={"rules": [{"succeededCount": 1}]}),
            "success-policy-empty": success(),
            "success-policy-21-rules": success(*[{"succeededCount": 1}] * 21),
            "success-policy-nothing": success({}),
            "success-policy-indexes": success(
                {"succeededIndexes": "x"}, {"succeededIndexes": "3,2"},
                {"succeededIndexes": "1-2-3"}, {"succeededIndexes": "4"},
                {"succeededIndexes": "2-1"}, {"succeededIndexes": "0-9"},
                {"succeededIndexes": "+1"}, {"succeededIndexes": "1-"},
                {"succeededIndexes": "1,,2"}, {"succeededIndexes": "0-1,1"},
                {"succeededIndexes": "99999999999999999999"}, {"succeededIndexes": ""},
            ),
            "success-policy-counts": success(
                {"succeededCount": -1}, {"succeededCount": 5},
                {"succeededCount": 3, "succeededIndexes": "0-1"},
            ),
            "success-policy-too-long": success({"succeededIndexes": "0," * 40_000}),
            "replacement": job(podReplacementPolicy="Failed"),
            "replacement-unknown": job(podReplacementPolicy="Always"),
            "managed": job(managedBy="batholith.io/job-controller"),
            "managed-by-the-built-in": job(managedBy="kubernetes.io/job-controller"),
            "managed-empty": job(managedBy=""),
            "managed-no-path": job(managedBy="me"),
            "managed-no-domain": job(managedBy="/x"),
            "managed-domain": job(managedBy="A_B/x"),
            "managed-path": job(managedBy="a.io/x y"),
            "managed-long": job(managedBy="a.io/" + "x" * 59),
            "restart-missing": {"template": {"spec": {"containers": POD["containers"]}}},
            "restart-always": {"template": template(restartPolicy="Always")},
            "restart-unknown": {"template": template(restartPolicy="Sometimes")},
            "restart-on-failure": {"template": template(restartPolicy="OnFailure")},
            "containers-missing": {"template": {"spec": {"restartPolicy": "Never"}}},
            "container-invalid": {
                "template": template(containers=[{"name": "A", "resources": {
                    "limits": {"cpu": "1"}, "requests": {"cpu": "2"}}}])
            },
            "template-label-invalid": {"template": template(labels={"a b": "c"})},
            "template-annotation-invalid": {"template": template(annotations={"a b": "c"})},
            "rich-template": {
                "template": template(
                    labels={"app": "a"},
                    annotations={"note": "b"},
                    serviceAccountName="default",
                    volumes=[{"name": "v"}, {"name": "s", "secret": {"secretName": "s"}}],
                    containers=[{
                        "name": "c", "image": "i:1",
                        "ports": [{"containerPort": 80}],
                        "env": [{"name": "N", "valueFrom": {
                            "fieldRef": {"fieldPath": "metadata.name"}}}],
                        "readinessProbe": {"httpGet": {"port": 80}},
                        "resources": {"limits": {"cpu": "1000m"}},
                        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                    }],
                    initContainers=[{"name": "first", "image": "i@sha256:" + "0" * 64}],
                )
            },
            "volume-files-conflict": {
                "template": template(volumes=[{"name": "p", "projected": {"sources": [
                    {"configMap": {"name": "cm", "items": _files("a", "a", "b")}},
                    {"secret": {"name": "s", "items": _files("a")}},
                    {"downwardAPI": {"items": _labels_at("b")}},
                ]}}])
            },
            "volume-missing": {
                "template": template(containers=[
                    {"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
                ])
            },
            "uid-label-of-another": {"template": template(labels={UID_LABEL: "x"})},
            "name-label-of-another": {"template": template(labels={NAME_LABEL: "x"})},
            "legacy-label-of-another": {"template": template(labels={LEGACY_UID_LABEL: "x"})},
            "selector-generated": job(selector={"matchLabels": {"app": "a"}}),
            "selector-generated-and-labels": {
                "selector": {"matchLabels": {"app": "a"}},
                "template": template(labels={"app": "a"}),
            },
            "selector-of-another-uid": job(selector={"matchLabels": {UID_LABEL: "x"}}),
            "manual-without-selector": job(manualSelector=True),
            "manual": {
                "manualSelector": True,
                "selector": {"matchLabels": {"app": "a"}},
                "template": template(labels={"app": "a", "b": "c"}),
            },
            "manual-not-matching": {
                "manualSelector": True,
                "selector": {
                    "matchLabels": {"z": "1", "app": "a"},
                    "matchExpressions": [{"operator": "Exists", "key": "x"}],
                },
                "template": template(labels={"z": "1", "app": "b"}),
            },
            "manual-invalid-selector": {
                "manualSelector": True,
                "selector": {"matchExpressions": [{"key": "x", "operator": "Like"}]},
                "template": template(),
            },
            "manual-empty-selector": job(manualSelector=True, selector={}),
        }
    ),
    "dots.in-the-name": Write(spec=job()),
    "dots.in-the-name-indexed": Write(spec=indexed()),
    "x" * 62: Write(spec=indexed()),
    "y" * 61: Write(spec=indexed()),
    "own-labels": Write(spec=job(), metadata={"labels": {"mine": "1"}}),
    "label-invalid": Write(spec=job(parallelism=-1), metadata={"labels": {"a b": "c"}}),
    "finalizer": Write(spec=job(), metadata={"finalizers": ["a.io/b"]}),
    "finalizer-invalid": Write(spec=job(), metadata={"finalizers": ["b"]}),
}  # fmt: skip
"""Creations of Jobs by the name of the Job."""

STARTED = {"startTime": "2024-01-02T03:04:05Z"}
LATER = "2024-01-02T04:00:00Z"
SUSPENDED = job(suspend=True)


def condition(name: str, status: str = "True") -> Json:
    return {"type": name, "status": status, "lastTransitionTime": LATER, "lastProbeTime": LATER}


def conditions(*names: str) -> Json:
    return {"conditions": [condition(name) for name in names]}


COMPLETE = {**STARTED, **conditions("SuccessCriteriaMet", "Complete"), "completionTime": LATER}
FAILED = {**STARTED, **conditions("FailureTarget", "Failed")}


def _changed(
    changes: Mapping[str, tuple[Json, Json | list[Json]]], *, status: Json | None = None
) -> dict[str, Write]:
    """Updates of specs: the spec before, and a patch of it."""
    return {
        name: Write(spec=spec, status=status, change={"spec": change})
        for name, (spec, change) in changes.items()
    }


def _in_pod(**fields: Any) -> Json:
    return {"template": {"spec": fields}}


_AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]
        }
    }
}
_NEAR = {
    "requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}
    ]
}
_BIG = {"containers": [POD["containers"][0] | {"resources": {"requests": {"cpu": "2"}}}]}
_OTHER_IMAGE = {"containers": [{"name": "main", "image": "busybox:2"}]}
_FREE: Mapping[str, Json] = {
    "affinity": _in_pod(affinity=_AFFINITY),
    "pod-affinity": _in_pod(affinity={"podAffinity": _NEAR}),
    "empty-affinity": _in_pod(affinity={}),
    "node-selector": _in_pod(nodeSelector={"a": "b"}),
    "tolerations": _in_pod(tolerations=[{"key": "k", "operator": "Exists"}]),
    "gates": _in_pod(schedulingGates=[{"name": "a.io/b"}]),
    "resources": _in_pod(**_BIG),
    "image": _in_pod(**_OTHER_IMAGE),
    "another-container": _in_pod(
        containers=[*_BIG["containers"], {"name": "more", "image": "busybox:1"}]
    ),
    "label": {"template": {"metadata": {"labels": {"a": "b"}}}},
    "annotation": {"template": {"metadata": {"annotations": {"a": "b"}}}},
    "without-name-label": {"template": {"metadata": {"labels": {NAME_LABEL: None}}}},
    "invalid": _in_pod(nodeSelector={"a b": "c"}),
}
"""Changes of a template, some of them allowed while a Job is suspended without pods."""

JOB_UPDATES: Mapping[str, Write] = {
    **{f"running-{name}": Write(spec=job(), change={"spec": c}) for name, c in _FREE.items()},
    **{f"suspended-{name}": Write(spec=SUSPENDED, change={"spec": c}) for name, c in _FREE.items()},
    **{
        f"stopped-{name}": Write(
            spec=SUSPENDED, status=STARTED | conditions("Suspended"), change={"spec": _FREE[name]}
        )
        for name in ("node-selector", "resources", "image", "label")
    },
    **{
        f"stopping-{name}": Write(
            spec=SUSPENDED,
            status=STARTED | conditions("Suspended") | {"active": 1},
            change={"spec": _FREE[name]},
        )
        for name in ("node-selector", "resources")
    },
    "started-node-selector": Write(
        spec=SUSPENDED, status=STARTED, change={"spec": _FREE["node-selector"]}
    ),
    "suspended-affinity-removed": Write(
        spec=job(suspend=True, template=template(affinity=_AFFINITY)),
        change={"spec": _in_pod(affinity=None)},
    ),
    "suspended-pod-affinity-removed": Write(
        spec=job(suspend=True, template=template(affinity={"podAffinity": _NEAR} | _AFFINITY)),
        change={"spec": _in_pod(affinity=None)},
    ),
    "suspended-and-resumed": Write(
        spec=SUSPENDED, change={"spec": {"suspend": False, **_FREE["node-selector"]}}
    ),
    **_changed(
        {
            "parallelism-changed": (job(), {"parallelism": 5}),
            "parallelism-negative": (job(), {"parallelism": -5}),
            "limits-changed": (
                job(),
                {"backoffLimit": 1, "activeDeadlineSeconds": 9, "ttlSecondsAfterFinished": 3,
                 "suspend": True},
            ),
            "completions-changed": (job(), {"completions": 5}),
            "completions-removed": (job(), {"completions": None}),
            "elastic": (indexed(), {"completions": 7, "parallelism": 7}),
            "elastic-not-in-tandem": (indexed(), {"completions": 7}),
            "elastic-without-completions": (indexed(), {"completions": None}),
            "elastic-name-too-long": (indexed(), {"completions": -1, "parallelism": -1}),
            "mode-changed": (indexed(), {"completionMode": "NonIndexed"}),
            "mode-unknown": (job(), {"completionMode": "Random"}),
            "failure-policy-added": (job(), failures(failure_rule())),
            "failure-policy-changed": (
                failures(failure_rule()),
                {"podFailurePolicy": {"rules": [failure_rule(action="Ignore"), {
                    "action": "Count", "onPodConditions": [{"type": "A"}]}]}},
            ),
            "failure-policy-removed": (failures(failure_rule()), {"podFailurePolicy": None}),
            "per-index-changed": (indexed(backoffLimitPerIndex=1), {"backoffLimitPerIndex": 2}),
            "per-index-removed": (indexed(backoffLimitPerIndex=1), {"backoffLimitPerIndex": None}),
            "most-failed-changed": (
                indexed(backoffLimitPerIndex=1, maxFailedIndexes=1), {"maxFailedIndexes": 2}
            ),
            "success-policy-changed": (
                success({"succeededCount": 1}),
                {"successPolicy": {"rules": [{"succeededIndexes": "0"}]}},
            ),
            "success-policy-removed": (success({"succeededCount": 1}), {"successPolicy": None}),
            "managed-by-changed": (job(), {"managedBy": "a.io/b"}),
            "managed-by-removed": (job(managedBy="a.io/b"), {"managedBy": None}),
            "replacement-changed": (job(), {"podReplacementPolicy": "Failed"}),
            "selector-changed": (job(), {"selector": {"matchLabels": {"app": "b"}}}),
            "selector-removed": (job(), {"selector": None}),
            "manual-set": (job(), {"manualSelector": True}),
            "several": (job(), {"completions": 5, "managedBy": "a.io/b", "backoffLimit": -1}),
            "nothing": (job(), {"backoffLimit": 6}),
        }
    ),
    "labels-removed": Write(
        spec=job(), metadata={"labels": {"mine": "1"}}, change={"metadata": {"labels": None}}
    ),
    "label-changed": Write(spec=job(), change={"metadata": {"labels": {"mine": "2"}}}),
    "warned-again": Write(
        spec=TEMPLATES_WITH_WARNINGS["warned-grace"], change={"spec": {"parallelism": 2}}
    ),
    "not-warned-again": Write(
        spec=TEMPLATES_WITH_WARNINGS["warned-grace"],
        change={"metadata": {"labels": {"a": "b"}}},
    ),
    "status-in-an-update": Write(
        spec=job(), change={"spec": {"parallelism": 2}, "status": {"active": 3}}
    ),
    "json-patch": Write(
        spec=job(),
        change=[{"op": "replace", "path": "/spec/completions", "value": 2}],
        content_type=JSON_PATCH,
    ),
    "strategic-merge-patch": Write(
        spec=job(),
        change={"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "x"}]}}}},
        content_type=STRATEGIC,
    ),
    "finished-and-unchanged": Write(
        spec=job(), status=COMPLETE, change={"metadata": {"annotations": {"a": "b"}}}
    ),
}  # fmt: skip
"""Updates of Jobs by the name of the Job."""


def _status(
    changes: Mapping[str, tuple[Json, Json | None, Json]],
) -> dict[str, Write]:
    """Writes of the status: the spec, the status before, and a patch of it."""
    return {
        name: Write(spec=spec, status=status, change={"status": change}, subresource="status")
        for name, (spec, status, change) in changes.items()
    }


_LIMITED = indexed(backoffLimitPerIndex=1)
_ELASTIC = indexed(completions=4, parallelism=4)
_COUNTS = {**STARTED, "succeeded": 3, "failed": 2, "active": 1, "ready": 1}

JOB_STATUS_WRITES: Mapping[str, Write] = {
    **_status(
        {
            "status-started": (job(), None, STARTED | {"active": 1, "ready": 0, "terminating": 0}),
            "status-complete": (job(), STARTED, COMPLETE),
            "status-failed": (job(), STARTED, FAILED),
            "status-negative": (
                job(), None,
                {"active": -1, "succeeded": -2, "failed": -3, "ready": -4, "terminating": -5},
            ),
            "status-decreasing": (job(), _COUNTS, {"succeeded": 2, "failed": 1}),
            "status-decreasing-elastic": (_ELASTIC, _COUNTS, {"succeeded": 2}),
            "status-decreasing-indexed": (indexed(), _COUNTS, {"succeeded": 2}),
            "status-uncounted": (
                job(), STARTED, {"uncountedTerminatedPods": {"succeeded": ["a"], "failed": ["b"]}}
            ),
            "status-uncounted-invalid": (
                job(), STARTED,
                {"uncountedTerminatedPods": {
                    "succeeded": ["a", "a", ""], "failed": ["a", "", "b"]}},
            ),
            "status-uncounted-at-the-end": (
                job(), STARTED, COMPLETE | {"uncountedTerminatedPods": {"succeeded": ["a"]}}
            ),
            "status-complete-and-failed": (
                job(), STARTED,
                conditions("Complete", "Failed", "SuccessCriteriaMet", "FailureTarget")
                | {"completionTime": LATER},
            ),
            "status-complete-and-failing": (
                job(), STARTED, conditions("Complete", "FailureTarget") | {"completionTime": LATER}
            ),
            "status-complete-unannounced": (
                job(), STARTED, conditions("Complete") | {"completionTime": LATER}
            ),
            "status-complete-without-time": (
                job(), STARTED, conditions("Complete", "SuccessCriteriaMet")
            ),
            "status-time-without-complete": (job(), STARTED, {"completionTime": LATER}),
            "status-ends-before-it-starts": (
                job(), STARTED, COMPLETE | {"completionTime": "2023-01-01T00:00:00Z"}
            ),
            "status-failed-unannounced": (job(), STARTED, conditions("Failed")),
            "status-failed-and-met": (
                job(), STARTED, conditions("Failed", "FailureTarget", "SuccessCriteriaMet")
            ),
            "status-failing-and-met": (
                job(), STARTED, conditions("FailureTarget", "SuccessCriteriaMet")
            ),
            "status-finished-with-pods": (
                job(), STARTED, COMPLETE | {"active": 2, "ready": 3, "terminating": 1}
            ),
            "status-finished-never-started": (job(), None, FAILED | {"startTime": None}),
            "status-finished-suspended": (
                job(suspend=True, completions=0), None, COMPLETE | {"startTime": None}
            ),
            "status-more-ready-than-active": (job(), STARTED, {"active": 1, "ready": 2}),
            "status-indexes": (
                _LIMITED, STARTED, {"completedIndexes": "0,2-3", "failedIndexes": "1"}
            ),
            "status-indexes-invalid": (
                _LIMITED, STARTED, {"completedIndexes": "3,1", "failedIndexes": "9"}
            ),
            "status-indexes-overlap": (
                _LIMITED, STARTED, {"completedIndexes": "x,0-2", "failedIndexes": "1-3"}
            ),
            "status-indexes-not-indexed": (
                job(), STARTED, {"completedIndexes": "0", "failedIndexes": "0"}
            ),
            "status-failed-indexes-unlimited": (indexed(), STARTED, {"failedIndexes": ""}),
            "status-complete-then-running": (
                job(), COMPLETE, {"conditions": None, "completionTime": None}
            ),
            "status-failed-then-running": (job(), FAILED, {"conditions": None}),
            "status-failing-then-running": (
                job(), STARTED | conditions("FailureTarget"), {"conditions": None}
            ),
            "status-met-then-running": (
                job(), STARTED | conditions("SuccessCriteriaMet"), {"conditions": None}
            ),
            "status-end-changed": (
                job(), COMPLETE, {"completionTime": "2024-01-03T00:00:00Z"}
            ),
            "status-start-changed": (job(), STARTED, {"startTime": LATER}),
            "status-start-removed": (job(), STARTED, {"startTime": None}),
            "status-start-changed-suspended": (SUSPENDED, STARTED, {"startTime": None}),
            "status-resumed": (
                job(), STARTED | conditions("Suspended"),
                {"startTime": LATER, "conditions": [condition("Suspended", "False")]},
            ),
            "status-success-policy": (
                success({"succeededCount": 1}), STARTED,
                conditions("Complete") | {"completionTime": LATER},
            ),
            "status-unrelated": (job(), COMPLETE, {"ready": 0}),
        }
    ),
    "status-with-spec": Write(
        spec=job(),
        change={"spec": {"parallelism": -3, "completions": 9}, "status": {"active": 1}},
        subresource="status",
    ),
    "status-with-labels": Write(
        spec=job(), change={"metadata": {"labels": {"a b": "c"}}}, subresource="status"
    ),
    "status-of-a-cron-job": Write(
        resource=BATCH_CRONJOBS,
        spec=cron(),
        change={"spec": {"schedule": "x"}, "status": {
            "lastScheduleTime": LATER, "active": [{"kind": "Job", "name": "j"}]}},
        subresource="status",
    ),
}  # fmt: skip
"""Writes of statuses by the name of the object."""

SCHEDULES = {
    "cron-minutes": "61 * * * *",
    "cron-fields": "* * *",
    "cron-letter": "x * * * *",
    "cron-range": "5-1 * * * *",
    "cron-step": "*/0 * * * *",
    "cron-negative": "-1 * * * *",
    "cron-hyphens": "1-2-3 * * * *",
    "cron-slashes": "*/1/2 * * * *",
    "cron-day": "* * 0 * *",
    "cron-month": "* * * 13 *",
    "cron-months": "0 0 1 JAN-mar ?",
    "cron-weekday": "* * * * 8",
    "cron-descriptor": "@fortnightly",
    "cron-every": "@every 1x",
    "cron-every-hour": "@every 1h30m",
    "cron-hourly": "@hourly",
    "cron-zone": "TZ=UTC 0 0 * * *",
    "cron-zone-without-fields": "TZ=UTC",
    "cron-zone-unknown": "CRON_TZ=Nowhere/City 0 0 * * *",
    "cron-blank": " ",
    "cron-spaces": "  0   0 * *  * ",
}

CRON_JOB_WRITES: Mapping[str, Write] = {
    **{
        name: Write(resource=BATCH_CRONJOBS, spec=cron(schedule))
        for name, schedule in SCHEDULES.items()
    },
    **_created(
        {
            "cron": cron(),
            "cron-empty": {},
            "cron-all": cron(
                timeZone="Europe/Berlin", concurrencyPolicy="Forbid", suspend=True,
                startingDeadlineSeconds=0, successfulJobsHistoryLimit=0, failedJobsHistoryLimit=0,
            ),
            "cron-negative-numbers": cron(
                startingDeadlineSeconds=-1, successfulJobsHistoryLimit=-2, failedJobsHistoryLimit=-3
            ),
            "cron-policy": cron(concurrencyPolicy="Never"),
            "cron-policy-empty": cron(concurrencyPolicy=""),
            "cron-time-zone-empty": cron(timeZone=""),
            "cron-time-zone-local": cron(timeZone="Local"),
            "cron-time-zone-lower-local": cron(timeZone="local"),
            "cron-time-zone-unknown": cron(timeZone="Nowhere/City"),
            "cron-time-zone-path": cron(timeZone="../UTC"),
            "cron-time-zone-hyphen": cron(timeZone="-UTC"),
            "cron-time-zone-space": cron(timeZone="Europe/Ber lin"),
            "cron-time-zone-slash": cron(timeZone="/UTC"),
            "cron-time-zone-long": cron(timeZone="Europe/Beeeeeeeeeeeeerlin"),
            "cron-time-zone-and-schedule": cron("TZ=UTC 0 0 * * *", timeZone="UTC"),
            "cron-job-selector": cron(job_fields={"selector": {"matchLabels": {"a": "b"}}}),
            "cron-job-manual": cron(job_fields={"manualSelector": True}),
            "cron-job-invalid": cron(
                job_fields={"parallelism": -1, "backoffLimitPerIndex": 1, "managedBy": "x"}
            ),
            "cron-job-always": cron(job_fields={"template": template(restartPolicy="Always")}),
            "cron-job-policies": cron(
                job_fields=failures({"action": "Ignore", "onPodConditions": [{"type": "A"}]})
            ),
            "cron-job-warned": cron(job_fields=TEMPLATES_WITH_WARNINGS["warned-ports"]),
            "cron-job-indexed-many": cron(
                job_fields=indexed(parallelism=10_001, completions=100_001)
            ),
        },
        BATCH_CRONJOBS,
    ),
    "c" * 52: Write(resource=BATCH_CRONJOBS, spec=cron()),
    "c" * 53: Write(resource=BATCH_CRONJOBS, spec=cron()),
    "cron.with.dots": Write(resource=BATCH_CRONJOBS, spec=cron()),
    **{
        name: Write(resource=BATCH_CRONJOBS, spec=cron(timeZone="UTC"), change={"spec": change})
        for name, change in {
            "cron-changed": {"schedule": "1 * * * *", "suspend": True},
            "cron-changed-schedule": {"schedule": "* *"},
            "cron-changed-to-zone": {"schedule": "TZ=UTC * * * * *"},
            "cron-changed-time-zone": {"timeZone": "Nowhere/City"},
            "cron-changed-policy": {"concurrencyPolicy": "Never"},
            "cron-changed-job": {"jobTemplate": {"spec": {
                "completions": 4, "template": {"spec": {"containers": [
                    {"name": "other", "image": "i"}]}}}}},
            "cron-changed-job-invalid": {"jobTemplate": {"spec": {"completions": -4}}},
            "cron-unchanged": {"suspend": False},
        }.items()
    },
    "cron-status-in-an-update": Write(
        resource=BATCH_CRONJOBS,
        spec=cron(),
        change={"spec": {"suspend": True}, "status": {"lastScheduleTime": LATER}},
    ),
}  # fmt: skip
"""Writes of CronJobs by their name."""
