"""An object of every built-in kind: a small one, and one with every field that the schema has."""

import base64
import copy
import re
from collections.abc import Mapping
from typing import Any

from batholith.local.apiserver.builtin.kinds import BUILT_IN
from batholith.local.apiserver.kinds import go_types
from batholith.local.apiserver.kinds.info import KindInfo
from batholith.model.names import SERVICE_CIDRS

Json = dict[str, Any]

NAME = "sample"
KINDS = tuple(kind for kind in BUILT_IN if "get" in kind.verbs and kind.resource != SERVICE_CIDRS)
"""The kinds whose objects are kept, and can be created by clients of the embedded server."""

LABELS = {"app": NAME}
_SELECTOR = {"matchLabels": LABELS}
_POD = {"containers": [{"name": "main", "image": "busybox:1"}]}
_TEMPLATE = {"metadata": {"labels": LABELS}, "spec": _POD}
_JOB = {"template": {"spec": {**_POD, "restartPolicy": "Never"}}}
_REFERENCE = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
_INVOLVED_OBJECT = {"kind": "Pod", "namespace": "default", "name": "p"}
_WEBHOOK = {
    "name": "a.ex.io",
    "clientConfig": {"url": "https://ex.io/a"},
    "sideEffects": "None",
    "admissionReviewVersions": ["v1"],
}
_FOOS = {
    "resourceRules": [
        {
            "apiGroups": ["ex.io"],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["foos"],
        }
    ]
}
_REQUEST = """-----BEGIN CERTIFICATE REQUEST-----
MIHIMHECAQAwDzENMAsGA1UEAwwEdXNlcjBZMBMGByqGSM49AgEGCCqGSM49AwEH
A0IABNDtzp6gPIXoM2HNfqeEVCQK6VELOVEsm47eHLPww0ocOUl0Rokxu4iZuthi
qeqw7ybtbzfws7bd6Hem39Zxo9+gADAKBggqhkjOPQQDAgNHADBEAiA9uHfDYcKX
QXjBPJxym6qPtbJEASJbABU/lLBMrbpwWwIgS/Upya7hEpAxNzQNdpAt86N0ukzB
Rd0hRYvUA+Mi7JU=
-----END CERTIFICATE REQUEST-----
"""

MINIMAL_FIELDS: Mapping[str, Json] = {
    "APIService": {
        "spec": {
            "group": "apis.ex.io",
            "version": "v1",
            "groupPriorityMinimum": 1,
            "versionPriority": 1,
            "service": {"namespace": "default", "name": "none"},
        }
    },
    "Endpoints": {"subsets": [{"addresses": [{"ip": "10.1.2.3"}], "ports": [{"port": 80}]}]},
    "v1/Event": {"involvedObject": _INVOLVED_OBJECT},
    "LimitRange": {"spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}},
    "PersistentVolume": {
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/data"},
        }
    },
    "PersistentVolumeClaim": {
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "none",
        }
    },
    "Pod": {"spec": {**_POD, "automountServiceAccountToken": False}},
    "PodTemplate": {"template": _TEMPLATE},
    "ReplicationController": {"spec": {"selector": LABELS, "template": _TEMPLATE}},
    "ResourceQuota": {"spec": {"hard": {"pods": "9"}}},
    "Service": {"spec": {"ports": [{"port": 80}]}},
    "ControllerRevision": {"revision": 1, "data": {}},
    "DaemonSet": {"spec": {"selector": _SELECTOR, "template": _TEMPLATE}},
    "Deployment": {"spec": {"selector": _SELECTOR, "template": _TEMPLATE}},
    "ReplicaSet": {"spec": {"selector": _SELECTOR, "template": _TEMPLATE}},
    "StatefulSet": {
        "spec": {"serviceName": "s", "selector": _SELECTOR, "template": _TEMPLATE}
    },
    "events.k8s.io/v1/Event": {
        "eventTime": "2026-01-01T00:00:00.000001Z",
        "regarding": _INVOLVED_OBJECT,
        "action": "a",
        "reason": "r",
        "type": "Normal",
        "reportingController": "ex.io/c",
        "reportingInstance": "c-1",
    },
    "HorizontalPodAutoscaler": {
        "spec": {
            "maxReplicas": 2,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
        }
    },
    "CronJob": {"spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": _JOB}}},
    "Job": {"spec": {**_JOB, "suspend": True}},
    "CertificateSigningRequest": {
        "spec": {
            "request": base64.b64encode(_REQUEST.encode()).decode(),
            "signerName": "ex.io/signer",
            "usages": ["client auth"],
        }
    },
    "FlowSchema": {
        "spec": {
            "priorityLevelConfiguration": {"name": "p"},
            "rules": [
                {
                    "subjects": [{"kind": "User", "user": {"name": "u"}}],
                    "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/a/*"]}],
                }
            ],
        }
    },
    "PriorityLevelConfiguration": {
        "spec": {
            "type": "Limited",
            "limited": {"limitResponse": {"type": "Queue", "queuing": {}}},
        }
    },
    "ClusterRoleBinding": {"roleRef": _REFERENCE},
    "RoleBinding": {"roleRef": _REFERENCE},
    "Ingress": {
        "spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}
    },
    "IngressClass": {"spec": {"controller": "ex.io/c"}},
    "NetworkPolicy": {"spec": {"podSelector": {}}},
    "IPAddress": {"spec": {"parentRef": {"group": "ex.io", "resource": "r", "name": "n"}}},
    "scheduling.k8s.io/v1alpha2/PodGroup": {"spec": {"schedulingPolicy": {"basic": {}}}},
    "Workload": {
        "spec": {"podGroupTemplates": [{"name": "t", "schedulingPolicy": {"basic": {}}}]},
    },
    "CSIDriver": {"spec": {}},
    "DeviceClass": {"spec": {}},
    "DeviceTaintRule": {"spec": {"taint": {"key": "k", "effect": "NoSchedule"}}},
    "CSINode": {"spec": {"drivers": [{"name": "ex.io", "nodeID": "n", "topologyKeys": ["a"]}]}},
    "CSIStorageCapacity": {"storageClassName": "c"},
    "StorageClass": {"provisioner": "ex.io/p"},
    "VolumeAttachment": {
        "spec": {"attacher": "ex.io", "nodeName": "n", "source": {"persistentVolumeName": "v"}}
    },
    "VolumeAttributesClass": {"driverName": "ex.io/d", "parameters": {"a": "b"}},
    "MutatingWebhookConfiguration": {"webhooks": [_WEBHOOK]},
    "ValidatingWebhookConfiguration": {"webhooks": [_WEBHOOK]},
    "MutatingAdmissionPolicy": {
        "spec": {
            "matchConstraints": _FOOS,
            "mutations": [
                {
                    "patchType": "ApplyConfiguration",
                    "applyConfiguration": {"expression": "Object{}"},
                }
            ],
            "reinvocationPolicy": "Never",
        }
    },
    "MutatingAdmissionPolicyBinding": {"spec": {"policyName": "none"}},
    "ValidatingAdmissionPolicy": {
        "spec": {"matchConstraints": _FOOS, "validations": [{"expression": "true"}]}
    },
    "ValidatingAdmissionPolicyBinding": {
        "spec": {"policyName": "none", "validationActions": ["Deny"]}
    },
    "CustomResourceDefinition": {
        "spec": {
            "group": "ex.io",
            "scope": "Namespaced",
            "names": {"plural": "samples", "kind": "Sample"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object"}},
                }
            ],
        }
    },
    "PriorityClass": {"value": 5},
    "RuntimeClass": {"handler": "h"},
    "EndpointSlice": {"addressType": "IPv4", "endpoints": [{"addresses": ["10.1.2.3"]}]},
    "ResourceClaim": {
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}
    },
    "ResourceClaimTemplate": {
        "spec": {
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}
        }
    },
    "ResourceSlice": {
        "spec": {
            "driver": "ex.io",
            "nodeName": "n",
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        }
    },
}  # fmt: skip
"""By kind, or by version and kind: fields of the smallest valid objects."""

_NAMES = {
    "APIService": "v1.apis.ex.io",
    "CustomResourceDefinition": "samples.ex.io",
    "CSIDriver": "sample.ex.io",
    "IPAddress": "192.0.2.7",
}


def sample_name(kind: KindInfo) -> str:
    """What the sample of a kind is called."""
    return _NAMES.get(kind.resource.kind, NAME)


def sample_path(kind: KindInfo, *more: str) -> str:
    """Where the samples of a kind are, or one of them."""
    return kind.resource.path("default" if kind.resource.namespaced else "", *more)


def minimal_sample(kind: KindInfo) -> Json:
    """The smallest object of a kind."""
    resource = kind.resource
    version = f"{resource.api_version}/{resource.kind}"
    more = MINIMAL_FIELDS.get(version, MINIMAL_FIELDS.get(resource.kind, {}))
    metadata: Json = {"name": sample_name(kind)}
    if resource.namespaced:
        metadata["namespace"] = "default"
    return {
        "apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **more,
    }  # fmt: skip


_TEXTS = {"date-time": "2026-01-01T00:00:00Z", "byte": "YQ=="}
_SPECIAL: Mapping[str, Any] = {
    "Quantity": "1",
    "IntOrString": 1,
    "Time": "2026-01-01T00:00:00Z",
    "MicroTime": "2026-01-01T00:00:00.000000Z",
    "FieldsV1": {},
    "RawExtension": {"a": 1},
    "JSON": {"a": 1},
    "JSONSchemaProps": {"type": "object"},
    "JSONSchemaPropsOrBool": True,
    "JSONSchemaPropsOrArray": {"type": "object"},
    "JSONSchemaPropsOrStringArray": ["a"],
    "ObjectMeta": {"labels": LABELS, "annotations": {"a": "b"}},
}
_DEPTH = 12


def full_sample(kind: KindInfo) -> Json:
    """An object of a kind with every field of its schema; few servers let it pass as it is."""
    resource = kind.resource
    component = go_types.component(go_types.name_of(resource.api_version, resource.kind))
    created = _value({"$ref": component}, _DEPTH)
    expected = minimal_sample(kind)
    expected["metadata"] |= {"labels": LABELS, "annotations": {"a": "b"}}
    merged: Json = _merged(created, expected)
    merged["metadata"] = expected["metadata"]
    return merged


def _merged(generated: Any, overrides: Any) -> Any:
    if isinstance(generated, dict) and isinstance(overrides, dict):
        both = {key: _merged(generated.get(key), value) for key, value in overrides.items()}
        return {**generated, **both}
    if isinstance(generated, list) and isinstance(overrides, list):
        return [_merged(generated[0] if generated else None, value) for value in overrides]
    return overrides


def _value(schema: Json, depth: int) -> Any:
    reference = schema.get("$ref") or (schema.get("allOf") or [{}])[0].get("$ref")
    if reference is not None:
        name = str(reference).rpartition("/")[2]
        short = name.rpartition(".")[2]
        return _SPECIAL[short] if short in _SPECIAL else _object(name, depth)
    if "additionalProperties" in schema:
        return {"app": _value(schema["additionalProperties"], depth)}
    if schema.get("type") == "array":
        return [_value(schema["items"], depth)]
    if "enum" in schema:
        return next(each for each in schema["enum"] if each)
    kind = schema.get("type")
    if kind == "string":
        return _TEXTS.get(schema.get("format", ""), NAME)
    return {"integer": 1, "number": 1.5, "boolean": True}.get(str(kind), {})


def _object(name: str, depth: int) -> Json:
    if depth == 0:
        return {}
    properties: Json = go_types.schemas()[name].get("properties", {})
    return {key: _value(each, depth - 1) for key, each in sorted(properties.items())}


_UNSATISFIABLE_FIELDS: Mapping[str, tuple[str, ...]] = {
    "PodGroup": ("spec.podGroupTemplateRef", "spec.priorityClassName", "spec.priority"),
    "CustomResourceDefinition": (
        "spec.versions[0].subresources.scale", "spec.versions[0].selectableFields",
        "spec.versions[0].additionalPrinterColumns",
    ),
    "Ingress": ("spec.defaultBackend.service.port.name",),
    "Pod": (
        "spec.priorityClassName", "spec.priority", "spec.preemptionPolicy",
        "spec.runtimeClassName", "spec.overhead", "spec.serviceAccountName", "spec.serviceAccount",
    ),
    "ResourceClaim": ("spec.devices.requests[0].exactly.adminAccess",),
    "ResourceClaimTemplate": ("spec.spec.devices.requests[0].exactly.adminAccess",),
}  # fmt: skip
"""Placeholders for required references, by kind."""


def accepted_sample(kind: KindInfo) -> Json:
    """The valid object of a kind with most fields."""
    created = copy.deepcopy(full_sample(kind))
    for path in _UNSATISFIABLE_FIELDS.get(kind.resource.kind, ()):
        _remove_field(created, _steps(path), {})
    return created


def remove_invalid_fields(obj: Json, minimum: Json, status: Json) -> bool:
    """Take out of *obj* what a server refused, save what is in *least*; whether anything was."""
    causes = (status.get("details") or {}).get("causes") or ()
    taken = [_remove_field(obj, _steps(each.get("field", "")), minimum) for each in causes]
    return any(taken)


def _steps(path_: str) -> list[str]:
    return re.findall(r"[^.\[\]]+", path_)


def _remove_field(obj: Any, steps: list[str], minimum: Any) -> bool:
    """Remove the deepest existing field along *steps*, or what *least* lacks."""
    owner: Any = None
    last: Any = None
    for step in steps:
        key: Any = int(step) if isinstance(obj, list) and step.isdigit() else step
        if _child(obj, key) is None:
            break
        owner, last, obj, minimum = obj, key, obj[key], _child(minimum, key)
    if minimum is None:
        del owner[last]
        return True
    deleted = [key for key in obj if key not in minimum] if isinstance(obj, dict) else []
    for key in deleted:
        del obj[key]
    return bool(deleted)


def _child(obj: Any, key: Any) -> Any:
    if isinstance(obj, dict):
        return obj.get(key)
    return obj[key] if isinstance(obj, list) and isinstance(key, int) and key < len(obj) else None
