"""As test_conformance.py: conversations about single kinds."""

import base64
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from support.conversations import Conversations, RecordedConversation
from support.embedded_apiserver import MERGE

from batholith.model.names import TEMPLATE_GENERATION

Json = dict[str, Any]

EXPECTED_DIFFERENCES: dict[str, dict[str, str]] = {
    "daemon_sets": {
        f"'{TEMPLATE_GENERATION}': 'odd'": "an error of validation instead of decoding",
        f"'{TEMPLATE_GENERATION}': ''": "likewise",
    },
    "endpoints": {"v1 Endpoints is deprecated": "there is no deprecation warning"},
    "services": {
        ".spec.clusterIP": "addresses of another network",
    },
}
CONVERSATIONS = Conversations(EXPECTED_DIFFERENCES)

_RULE = {"apiGroups": ["a.b"], "apiVersions": ["*"], "resources": ["c"], "operations": ["*"]}
_SERVICE = {"kind": "Service", "name": "s"}
_IDENTIFIER = {"name": "a<b", "selector": {"matchLabels": {"a": "b"}}}
_BY_AVERAGE = {"type": "AverageValue", "averageValue": "1000m"}
_BY_VALUE = {"type": "Value", "value": "5"}
_BY_UTILIZATION = {"type": "Utilization", "averageUtilization": 60}


def _metric(source: str, **fields: Any) -> Json:
    return {"type": source[0].upper() + source[1:], source: fields}


_EVERY_METRIC: Json = {
    "metrics": [
        _metric("resource", name="cpu", target=_BY_UTILIZATION),
        _metric("resource", name="memory", target={"type": "AverageValue", "averageValue": "1Gi"}),
        _metric("containerResource", name="cpu", container="c", target=_BY_UTILIZATION),
        _metric("pods", metric=_IDENTIFIER, target=_BY_AVERAGE),
        _metric("object", metric={"name": "m"}, describedObject=_SERVICE, target=_BY_VALUE),
        _metric("object", metric={"name": "m"}, describedObject=_SERVICE, target=_BY_AVERAGE),
        _metric("external", metric=_IDENTIFIER, target=_BY_VALUE),
    ],
    "behavior": {"scaleDown": {"stabilizationWindowSeconds": 10, "tolerance": "0.5"}},
}
_EVERY_STATUS: Json = {
    "currentReplicas": 1,
    "desiredReplicas": 2,
    "conditions": [{"type": "AbleToScale", "status": "True", "message": "m & n"}],
    "currentMetrics": [
        _metric("resource", name="cpu", current={"averageUtilization": 5}),
        _metric("object", metric={"name": "m"}, describedObject=_SERVICE, current={"value": "3"}),
        _metric("external", metric=_IDENTIFIER, current={"averageValue": "3"}),
    ],
}
"""An autoscaler in ``autoscaling/v2`` with fields that ``v1`` lacks."""


@cache  # signatures are random
def _signing_request(*organizations: str) -> str:
    key = ec.derive_private_key(7, ec.SECP256R1())
    names = [x509.NameAttribute(x509.NameOID.COMMON_NAME, "someone")]
    names += [x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, each) for each in organizations]
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(names))
    pem = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    return base64.b64encode(pem).decode()


@CONVERSATIONS.register
async def certificate_requests(send: RecordedConversation) -> None:
    path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    spec: Json = {
        "request": _signing_request(),
        "signerName": "example.com/signer",
        "usages": ["client auth"],
        "expirationSeconds": 3600,
        "username": "another-user",
        "groups": ["system:masters"],
        "extra": {"a": ["b"]},
    }
    await send("POST", path, {"metadata": {"name": "one"}, "spec": spec})
    await send("GET", path)
    mistakes: tuple[Json, ...] = (
        {"request": base64.b64encode(b"none").decode()},
        {"request": _signing_request("system:masters"),
         "signerName": "kubernetes.io/kube-apiserver-client"},
        {"signerName": "kubernetes.io/legacy-unknown"},
        {"signerName": "plain"},
        {"signerName": "Example.com/signer"},
        {"signerName": "com/signer"},
        {"usages": []},
        {"usages": ["any", "any", "none"]},
        {"expirationSeconds": 599},
    )  # fmt: skip
    for wrong in mistakes:
        await send("POST", path, {"metadata": {"name": "two"}, "spec": {**spec, **wrong}})
    await send("PATCH", f"{path}/one", {"spec": {"usages": ["any"]}}, MERGE)
    approved = {"type": "Approved", "status": "True", "reason": "r", "message": "m"}
    for condition in (
        {"type": "Approved", "status": "False"},
        {"type": "Approved"},
        {"status": "True"},
        {"type": "Odd", "status": "odd"},
        approved,
    ):
        change: Json = {"status": {"conditions": [condition]}}
        await send("PATCH", f"{path}/one/status", change, MERGE)
        await send("PATCH", f"{path}/one/approval", change, MERGE)
    denied = {"type": "Denied", "status": "True"}
    for conditions in ([approved, denied], [approved, approved], [], [{**approved, "reason": "s"}]):
        change = {"status": {"conditions": conditions}}
        await send("PATCH", f"{path}/one/status", change, MERGE)
        await send("PATCH", f"{path}/one/approval", change, MERGE)
    for certificate in (b"none", b""):
        change = {"status": {"certificate": base64.b64encode(certificate).decode()}}
        await send("PATCH", f"{path}/one/status", change, MERGE)
        await send("PATCH", f"{path}/one/approval", change, MERGE)
    current = await send("GET", f"{path}/one/approval")
    await send("PUT", f"{path}/one/approval", current)
    await send("GET", f"{path}/one")
    await send("DELETE", f"{path}/one")


@CONVERSATIONS.register
async def flow_schemas(send: RecordedConversation) -> None:
    path = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"
    url_rule = {"verbs": ["get"], "nonResourceURLs": ["/a", "/b/*"]}
    resource_rule = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": True}
    user = {"kind": "User", "user": {"name": "u"}}
    account = {"kind": "ServiceAccount", "serviceAccount": {"name": "*", "namespace": "n"}}
    rule: Json = {
        "subjects": [user, account],
        "nonResourceRules": [url_rule],
        "resourceRules": [resource_rule],
    }
    spec: Json = {
        "priorityLevelConfiguration": {"name": "none"},
        "distinguisherMethod": {"type": "ByUser"},
        "rules": [rule],
    }
    await send("POST", path, {"metadata": {"name": "a"}, "spec": spec})
    changes: tuple[Json, ...] = (
        {"matchingPrecedence": 9999},
        {"matchingPrecedence": -1},
        {"matchingPrecedence": 10001},
        {"matchingPrecedence": 1},
        {"distinguisherMethod": {"type": "Odd"}},
        {"priorityLevelConfiguration": {"name": ""}},
        {"priorityLevelConfiguration": {"name": "A"}},
    )
    for change in changes:
        body = {"metadata": {"name": "b"}, "spec": {**spec, **change}}
        await send("POST", f"{path}?dryRun=All", body)
    mistakes: tuple[Json, ...] = (
        {"subjects": []},
        {"subjects": [{"kind": "Odd"}, {"kind": "Group"}, {**user, "group": {"name": "g"}}]},
        {"subjects": [{"kind": "User", "user": {"name": ""}}]},
        {"subjects": [{"kind": "ServiceAccount", "serviceAccount": {"name": "A"}}]},
        {"resourceRules": [], "nonResourceRules": []},
        {"nonResourceRules": [{"verbs": [], "nonResourceURLs": []}]},
        {"nonResourceRules": [{"verbs": ["*", "get"], "nonResourceURLs": ["*", "/a"]}]},
        {"nonResourceRules": [{"verbs": ["odd"], "nonResourceURLs": ["a", "/ b", "//", "/*c"]}]},
        {"resourceRules": [{"verbs": ["get"]}]},
        {"resourceRules": [{**resource_rule, "apiGroups": ["*", "a"], "resources": ["*", "b"]}]},
        {"resourceRules": [{**resource_rule, "namespaces": ["*", "c"]}]},
        {"resourceRules": [{**resource_rule, "namespaces": ["C"]}]},
    )
    for wrong in mistakes:
        rules = [{**rule, **wrong}]
        await send("POST", path, {"metadata": {"name": "b"}, "spec": {**spec, "rules": rules}})
    conditions = [{"type": "A", "status": "True"}, {"type": "A", "status": "True"}, {"type": ""}]
    await send("PATCH", f"{path}/a/status", {"status": {"conditions": conditions}}, MERGE)
    for name in ("exempt", "catch-all", "probes"):
        change = {"spec": {"matchingPrecedence": 3}}
        await send("PATCH", f"{path}/{name}?dryRun=All", change, MERGE)


@CONVERSATIONS.register
async def priority_levels(send: RecordedConversation) -> None:
    path = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations"
    queuing = {"type": "Queue", "queuing": {}}
    limited: Json = {"limitResponse": queuing}
    body = {"metadata": {"name": "l"}, "spec": {"type": "Limited", "limited": limited}}
    await send("POST", path, body)
    await send("PATCH", f"{path}/l", {"spec": {"limited": {"lendablePercent": 50}}}, MERGE)
    for spec in (
        {},
        {"type": "Odd"},
        {"type": "Exempt"},
        {"type": "Limited"},
        {"type": "Limited", "limited": limited, "exempt": {}},
        {"type": "Limited", "limited": {"limitResponse": {"type": "Reject", "queuing": {}}}},
        {"type": "Limited", "limited": {"limitResponse": {"type": "Queue"}}},
        {"type": "Limited", "limited": {"limitResponse": {"type": "Odd"}}},
        {"type": "Limited", "limited": {}},
        {"type": "Limited", "limited": {**limited, "nominalConcurrencyShares": -1}},
        {"type": "Limited", "limited": {**limited, "lendablePercent": 101}},
        {"type": "Limited", "limited": {**limited, "borrowingLimitPercent": -1}},
    ):
        await send("POST", path, {"metadata": {"name": "m"}, "spec": spec})
    for numbers in (
        {"queues": -1, "queueLengthLimit": -1},
        {"queues": 10_000_001},
        {"handSize": -1},
        {"handSize": 65},
        {"handSize": 16},
    ):
        level = {"limitResponse": {"type": "Queue", "queuing": numbers}}
        spec = {"type": "Limited", "limited": level}
        await send("POST", path, {"metadata": {"name": "m"}, "spec": spec})

    for name in ("exempt", "catch-all", "system"):
        for key in ("exempt", "limited"):
            change = {"spec": {key: {"lendablePercent": 3}}}
            await send("PATCH", f"{path}/{name}?dryRun=All", change, MERGE)


@CONVERSATIONS.register
async def workloads(send: RecordedConversation) -> None:
    template: Json = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    base: Json = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    common: tuple[Json, ...] = (
        {"selector": None},
        {"selector": {}},
        {"selector": {"matchLabels": {"a": "c"}}},
        {"selector": {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}},
        {"selector": {"matchExpressions": [{"key": "a", "operator": "Odd"}]}},
        {"minReadySeconds": -1},
        {"template": {**template, "spec": {**template["spec"], "restartPolicy": "Never"}}},
        {"template": {**template, "spec": {**template["spec"], "activeDeadlineSeconds": 5}}},
    )
    rolling = [
        {"maxUnavailable": a, "maxSurge": b}
        for a, b in ((0, 0), ("0%", 0), (-1, 1), ("101%", 0), (0, "101%"), ("5", 0), (1, 1))
    ]
    own: dict[str, tuple[Json, ...]] = {
        "deployments": (
            {"replicas": -1, "revisionHistoryLimit": -1},
            {"progressDeadlineSeconds": 5, "minReadySeconds": 5},
            {"strategy": {"type": "Odd"}},
            {"strategy": {"type": "Recreate"}},
            {"strategy": {"type": "Recreate", "rollingUpdate": {}}},
            *({"strategy": {"rollingUpdate": each}} for each in rolling),
        ),
        "replicasets": ({"replicas": -1},),
        "statefulsets": (
            {"replicas": -1, "ordinals": {"start": -1}},
            {"podManagementPolicy": "Odd"},
            {"serviceName": "A.b"},
            {"updateStrategy": {"type": "Odd"}},
            {"updateStrategy": {"type": "RollingUpdate"}},
            {"updateStrategy": {"type": "OnDelete"}},
            {"updateStrategy": {"type": "OnDelete", "rollingUpdate": {}}},
            {"updateStrategy": {"rollingUpdate": {"partition": -1}}},
            {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Odd"}},
        ),
        "daemonsets": (
            {"revisionHistoryLimit": -1},
            {"updateStrategy": {"type": "Odd"}},
            {"updateStrategy": {"type": "OnDelete"}},
            *({"updateStrategy": {"rollingUpdate": each}} for each in rolling),
        ),
    }
    for plural, changes in own.items():
        path = f"/apis/apps/v1/namespaces/default/{plural}"
        for change in (*common, *changes):
            body = {"metadata": {"name": "w"}, "spec": {**base, **change}}
            await send("POST", f"{path}?dryRun=All", body)
    await send("POST", "/apis/apps/v1/namespaces/default/statefulsets?dryRun=All",
               {"metadata": {"name": "a.b"}, "spec": base})  # fmt: skip


@CONVERSATIONS.register
async def daemon_sets(send: RecordedConversation) -> None:
    path = "/apis/apps/v1/namespaces/default/daemonsets"
    template: Json = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    spec: Json = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    for name, value in (("a", "9"), ("b", "-3"), ("c", "odd")):
        metadata = {"name": name, "annotations": {TEMPLATE_GENERATION: value}}
        await send("POST", path, {"metadata": metadata, "spec": spec})
    for given in ("77", "", None):
        change: Json = {"metadata": {"annotations": {TEMPLATE_GENERATION: given, "own": "x"}}}
        await send("PATCH", f"{path}/a", change, MERGE)
        change = {"spec": {"template": {"metadata": {"annotations": {"given": str(given)}}}}}
        await send("PATCH", f"{path}/a", change, MERGE)
    await send("PATCH", f"{path}/a", {"metadata": {"annotations": None}}, MERGE)
    await send("PATCH", f"{path}/a", {"spec": {"minReadySeconds": 3}}, MERGE)
    await send("PATCH", f"{path}/a/status", {"status": {"numberReady": 1}}, MERGE)
    await send("GET", f"{path}/a")


@CONVERSATIONS.register
async def services(send: RecordedConversation) -> None:
    path = "/api/v1/namespaces/default/services?dryRun=All"
    http = {"name": "http", "port": 80}
    wrong: tuple[Json, ...] = (
        {"ports": [http, http]},
        {"ports": [http, {**http, "name": "other"}]},
        {"ports": [http, {**http, "port": 81}]},
        {"ports": [http, {"port": 81}]},
        {"ports": [http, {**http, "name": "udp", "protocol": "UDP"}]},
        {"ports": [{**http, "name": "A_b"}]},
        {"ports": [{**http, "port": 0}, {**http, "name": "n", "port": 65536}]},
        {"ports": [{**http, "targetPort": "a--b"}]},
        {"ports": [{**http, "targetPort": 70000}]},
        {"ports": [{**http, "targetPort": "a-very-long-port-name"}]},
        {"ports": [{**http, "protocol": "odd"}]},
        {"ports": [{**http, "appProtocol": "a b"}]},
        {"ports": [{**http, "nodePort": 30001}]},
        {"type": "NodePort", "ports": [
            {**http, "nodePort": 30001}, {"name": "b", "port": 81, "nodePort": 30001}
        ]},
        {"ports": []},
        {"ports": [], "clusterIP": "None"},
        {"type": "NodePort", "clusterIP": "None"},
        {"type": "LoadBalancer", "clusterIP": "None"},
        {"type": "Odd"},
        {"type": "ExternalName"},
        {"type": "ExternalName", "externalName": "a b"},
        {"type": "ExternalName", "externalName": "a.b.", "ipFamilyPolicy": "SingleStack"},
        {"selector": {"a b": "c"}},
        {"sessionAffinity": "Odd"},
        {"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 5}}},
        {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {
            "timeoutSeconds": 86401
        }}},
        {"loadBalancerSourceRanges": ["10.0.0.0/8"]},
        {"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0/33", "a"]},
        {"allocateLoadBalancerNodePorts": True},
        {"loadBalancerClass": "a.b/c"},
        {"type": "LoadBalancer", "loadBalancerClass": "a b"},
        {"externalTrafficPolicy": "Local"},
        {"type": "NodePort", "externalTrafficPolicy": "Odd"},
        {"healthCheckNodePort": 30000},
        {"internalTrafficPolicy": "Odd"},
        {"trafficDistribution": "Odd"},
        {"trafficDistribution": "PreferClose"},
        {"externalIPs": ["a"]},
        {"externalIPs": ["0.0.0.0", "127.0.0.1", "169.254.0.1", "224.0.0.1"]},
    )  # fmt: skip
    for change in wrong:
        body = {"metadata": {"name": "s"}, "spec": {"ports": [http], **change}}
        await send("POST", path, body)


@CONVERSATIONS.register
async def endpoints(send: RecordedConversation) -> None:
    path = "/api/v1/namespaces/default/endpoints?dryRun=All"
    good: Json = {"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 80}]}
    changes: tuple[Json, ...] = (
        {},
        {"addresses": []},
        {"addresses": [{"ip": "a"}, {"ip": "0.0.0.0"}, {"ip": "169.254.1.1"}, {"ip": "224.0.0.1"}]},
        {"addresses": [{"ip": "2001:db8::1"}, {"ip": "fe80::1"}, {"ip": "ff02::1"}]},
        {"notReadyAddresses": [{"ip": "192.0.2.2", "hostname": "A", "nodeName": "B b"}]},
        {"ports": [{"port": 0}, {"port": 70000, "name": "a"}]},
        {"ports": [{"port": 80, "name": "A", "protocol": "odd", "appProtocol": "a b"}]},
    )
    for change in changes:
        body = {"metadata": {"name": "e"}, "subsets": [{**good, **change}]}
        await send("POST", path, body)


@CONVERSATIONS.register
async def endpoint_slices(send: RecordedConversation) -> None:
    path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    good: Json = {"addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.1"]}], "ports": []}
    await send("POST", path, {"metadata": {"name": "good"}, **good})
    changes: tuple[Json, ...] = (
        {"addressType": ""},
        {"addressType": "Odd"},
        {"addressType": "IPv6"},
        {"addressType": "FQDN"},
        {"addressType": "FQDN", "endpoints": [{"addresses": ["a.b", "a.b.", "a", "A.b"]}]},
        {"addressType": "IPv6", "endpoints": [{"addresses": ["2001:db8::1", "fe80::1", "::"]}]},
        {"endpoints": [{"addresses": []}]},
        {"endpoints": [{"addresses": ["a", "0.0.0.0", "2001:db8::1"]}]},
        {"endpoints": [{"addresses": ["192.0.2.1"] * 101}]},
        {"endpoints": [{"addresses": ["192.0.2.1"], "nodeName": "A", "hostname": "a.b"}]},
        {"endpoints": [{"addresses": ["192.0.2.1"], "hints": {
            "forZones": [{"name": "a"}, {"name": "a"}]
        }}]},
        {"endpoints": [{"addresses": ["192.0.2.1"], "hints": {
            "forZones": [{"name": str(number)} for number in range(9)]
        }}]},
        {"ports": [{"port": 80}, {"port": 81}]},
        {"ports": [{"name": "A", "protocol": "odd", "appProtocol": "a b"}]},
    )  # fmt: skip
    for change in changes:
        await send("POST", f"{path}?dryRun=All", {"metadata": {"name": "e"}, **good, **change})
    await send("PATCH", f"{path}/good", {"addressType": "IPv6", "endpoints": []}, MERGE)


@CONVERSATIONS.register
async def runtime_classes(send: RecordedConversation) -> None:
    path = "/apis/node.k8s.io/v1/runtimeclasses"
    toleration = {"key": "k", "operator": "Exists", "effect": "NoSchedule"}
    rich = {
        "overhead": {"podFixed": {"cpu": "100m", "memory": "1Mi"}},
        "scheduling": {"nodeSelector": {"a": "b"}, "tolerations": [toleration]},
    }
    await send("POST", path, {"metadata": {"name": "plain"}, "handler": "h"})
    await send("POST", path, {"metadata": {"name": "rich"}, "handler": "h", **rich})
    await send.wait_status(200, "GET", f"{path}/rich")
    pods = "/api/v1/namespaces/default/pods?dryRun=All"
    for spec in (
        {"runtimeClassName": "plain"},
        {"runtimeClassName": "none"},
        {"runtimeClassName": "rich"},
        {"runtimeClassName": "rich", "overhead": {"cpu": "0.1", "memory": "1024Ki"}},
        {"runtimeClassName": "rich", "overhead": {"cpu": "1"}},
        {"runtimeClassName": "rich", "nodeSelector": {"a": "c"}},
        {"runtimeClassName": "rich", "nodeSelector": {"c": "d"}},
        {"runtimeClassName": "plain", "overhead": {"cpu": "1"}},
        {"overhead": {"cpu": "1"}},
    ):
        common = {
            "containers": [{"name": "c", "image": "i"}],
            "automountServiceAccountToken": False,
        }
        await send("POST", pods, {"metadata": {"name": "p"}, "spec": {**common, **spec}})


@CONVERSATIONS.register
async def controller_revisions(send: RecordedConversation) -> None:
    path = "/apis/apps/v1/namespaces/default/controllerrevisions"
    await send("POST", path, {"metadata": {"name": "r"}, "revision": 1, "data": {"a": 1}})
    wrong: tuple[Json, ...] = ({"data": None}, {"data": []}, {"data": "a"}, {"revision": -1})
    for change in wrong:
        body = {"metadata": {"name": "s"}, "revision": 1, "data": {}, **change}
        await send("POST", path, body)
    await send("PATCH", f"{path}/r", {"data": {"a": 2}}, MERGE)
    await send("PATCH", f"{path}/r", {"revision": 2}, MERGE)


@CONVERSATIONS.register
async def autoscalers_in_both_versions(send: RecordedConversation) -> None:
    old, new = (
        f"/apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers"
        for version in ("v1", "v2")
    )
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    spec = {"scaleTargetRef": target, "maxReplicas": 5}

    async def read_both(name: str) -> None:
        for path in (old, new):
            await send("GET", f"{path}/{name}")

    for name, more in (("a", {"targetCPUUtilizationPercentage": 50}), ("b", {})):
        await send("POST", old, {"metadata": {"name": name}, "spec": {**spec, **more}})
        await read_both(name)
    annotation = "autoscaling.alpha.kubernetes.io/"
    await send("POST", new, {"metadata": {"name": "full"}, "spec": {**spec, **_EVERY_METRIC}})
    await send("PATCH", f"{new}/full/status", {"status": _EVERY_STATUS}, MERGE)
    shown = await send("GET", f"{old}/full")
    await send("PUT", f"{old}/full", {**shown, "spec": {**shown["spec"], "maxReplicas": 7}})
    await read_both("full")
    resource = _metric("resource", name="cpu", current={"averageUtilization": 5, "averageValue": 1})
    await send("PATCH", f"{new}/full/status", {"status": {"currentMetrics": [resource]}}, MERGE)
    # Annotations of the status count in writes of the status alone, and those of the spec likewise.
    conditions = '[{"type":"AbleToScale","status":"False"}]'
    changed = {f"{annotation}conditions": conditions, f"{annotation}metrics": None}
    await send("PATCH", f"{old}/full/status", {"metadata": {"annotations": changed}}, MERGE)
    await read_both("full")
    await send("PATCH", f"{old}/full", {"metadata": {"annotations": changed}}, MERGE)
    await read_both("full")
    for value in ("x", "{}", '[{"type":1}]', '[{"type":"Pods","pods":{"metricName":1}}]', "null"):
        annotations = {f"{annotation}{name}": value for name in ("metrics", "behavior", "x")}
        body = {"metadata": {"name": "c", "annotations": annotations}, "spec": spec}
        await send("POST", f"{old}?dryRun=All", body)
    await send("PATCH", f"{old}/a", {"spec": {"targetCPUUtilizationPercentage": None}}, MERGE)
    await read_both("a")
    await send("GET", f"{old}?limit=1")
    await send("DELETE", f"{old}/a")


@CONVERSATIONS.register
async def invalid_autoscalers(send: RecordedConversation) -> None:
    old, new = (
        f"/apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers?dryRun=All"
        for version in ("v1", "v2")
    )
    web = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    spec: Json = {"scaleTargetRef": web, "maxReplicas": 5}

    async def create(path: str, **changes: Any) -> None:
        await send("POST", path, {"metadata": {"name": "a"}, "spec": {**spec, **changes}})

    for counts in ({"maxReplicas": 0}, {"minReplicas": 6}, {"minReplicas": 0}):
        await create(old, **counts)
        await create(new, **counts)
    await create(old, targetCPUUtilizationPercentage=0)
    for reference in (
        {}, {"kind": "a/b", "name": "."}, {"kind": "A", "name": "a%"},
        {**web, "apiVersion": "v1"}, {**web, "apiVersion": "a/b/c"},
        {"apiVersion": "v1", "kind": "ReplicationController", "name": "r"},
    ):  # fmt: skip
        await create(new, scaleTargetRef=reference)
    negative = {"type": "AverageValue", "averageValue": "-1"}
    for metric in (
        {}, {"type": "Other"}, {"type": "Pods"}, _metric("resource", target=_BY_UTILIZATION),
        _metric("resource", name="cpu", target={"type": "Utilization"}),
        _metric("resource", name="cpu", target={**_BY_UTILIZATION, "averageUtilization": 0}),
        _metric("resource", name="cpu", target={**_BY_UTILIZATION, "averageValue": "1"}),
        _metric("containerResource", name="cpu", target=_BY_UTILIZATION),
        {**_metric("resource", name="cpu", target=_BY_UTILIZATION), "external": {}},
        _metric("pods", metric={"name": "m"}, target=negative),
        _metric("pods", metric={"name": ""}, target=_BY_VALUE),
        _metric("object", metric={"name": "m"}, describedObject={}, target={"type": "x"}),
        _metric("external", metric={"name": "m"}, target={**_BY_VALUE, "averageValue": "1"}),
        _metric("external", metric={"name": "m"}, target={"type": "Value", "value": "0"}),
        _metric("external", metric={"name": "a/%"}, target=_BY_VALUE),
        _metric("external", metric={"name": "m"}, target={"type": "Value"}),
        _metric("containerResource", name="x", container="A_", target=_BY_UTILIZATION),
        _metric("object", metric={"name": "m"}, describedObject={**_SERVICE, "apiVersion": "a/b/c"},
                target=_BY_VALUE),
        {**_metric("pods", metric={}), "object": {}, "resource": {}, "containerResource": {}},
    ):  # fmt: skip
        await create(new, metrics=[metric])
    await create(new, metrics=[])
    good = {"type": "Pods", "value": 1, "periodSeconds": 1}
    wrong: tuple[Json, ...] = (
        {"stabilizationWindowSeconds": -1, "policies": [good]},
        {"stabilizationWindowSeconds": 3601, "policies": [good]},
        {"selectPolicy": "x", "policies": [good]},
        {"policies": [{"type": "x", "value": 0, "periodSeconds": 0}]},
        {"policies": [{**good, "periodSeconds": 1801}]},
        {"policies": []}, {"policies": None}, {"tolerance": "-1"}, {"tolerance": "0"},
    )  # fmt: skip
    for rules in wrong:
        for direction in ("scaleUp", "scaleDown"):
            await create(new, behavior={direction: rules})
    created = new.partition("?")[0]
    about = _metric("object", metric={"name": "m"}, describedObject=_SERVICE, target=_BY_VALUE)
    await send("POST", created, {"metadata": {"name": "a"}, "spec": {**spec, "metrics": [about]}})
    for changes in (
        {"minReplicas": 0}, {"maxReplicas": -1},
        {"scaleTargetRef": {**web, "kind": "ReplicationController", "apiVersion": "v1"}},
        {"scaleTargetRef": {**web, "apiVersion": "v1"}},
        {"scaleTargetRef": {**web, "apiVersion": "v1", "kind": "ReplicationController"}},
        {"scaleTargetRef": {**web, "apiVersion": "v1", "name": "other"}},
    ):  # fmt: skip
        await send("PATCH", f"{created}/a", {"spec": changes}, MERGE)
    for version in (old.partition("?")[0], created):
        for field in ("currentReplicas", "desiredReplicas"):
            await send("PATCH", f"{version}/a/status", {"status": {field: -1}}, MERGE)
    await send("DELETE", f"{created}/a")


@CONVERSATIONS.register
async def found_by_random_requests(send: RecordedConversation) -> None:
    core = "/api/v1/namespaces/default"
    maps, templates = f"{core}/configmaps", f"{core}/podtemplates"
    one = {"metadata": {"name": "one"}}
    for metadata in (
        {"resourceVersion": "1", "labels": {"-": ""}}, {"resourceVersion": "1"},
        {"resourceVersion": "x", "generation": 2}, {"generation": -1},
    ):  # fmt: skip
        await send("POST", maps, {"metadata": {"name": "one", **metadata}})
    for path in (f"{maps}/one", f"{maps}/none"):
        await send("PUT", path, {"metadata": {"labels": {"a": "b"}}})
    await send("PUT", f"{maps}/one", {"metadata": {"name": "one", "resourceVersion": "x"}})
    for metadata in ({"resourceVersion": ""}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}):
        await send("PATCH", f"{maps}/one", {"metadata": metadata}, MERGE)
    for query in (
        "labelSelector=%3D&resourceVersionMatch=Exact",
        "fieldSelector=none%3D&resourceVersionMatch=Exact",
    ):
        await send("GET", f"{maps}?{query}")
    both = {"orphanDependents": True, "propagationPolicy": "Background"}
    await send("DELETE", f"{maps}?labelSelector=%3D", both)
    await send("POST", templates, one)
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    await send("GET", f"{roles}?fieldSelector=metadata.namespace%3Dx")
    await send("POST", roles, {"metadata": {"name": "found", "namespace": "default"}})
    await send("DELETE", f"{roles}/found")
    bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    role = {"kind": "ClusterRole", "name": "view"}
    await send("POST", bindings, {"metadata": {"name": "found"}, "roleRef": role})
    reference = {"roleRef": {**role, "apiGroup": None}}
    await send("PATCH", f"{bindings}/found", reference, MERGE)
    await send("DELETE", f"{bindings}/found")
    sets = "/apis/apps/v1/namespaces/default/replicasets?fieldSelector=status.replicas%3D0"
    await send("GET", sets)
    slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    await send("POST", slices, {"metadata": {"name": "found"}, "addressType": "IPv4"})
    await send("PATCH", f"{slices}/found", {"metadata": {"labels": {"a": "b"}}}, MERGE)
    await send("DELETE", f"{slices}/found")
    nodes = "/apis/storage.k8s.io/v1/csinodes"
    await send("POST", nodes, {"metadata": {"name": "found"}, "spec": {"drivers": []}})
    await send("DELETE", f"{nodes}/found", {"dryRun": ["All"]})
    await send("DELETE", f"{nodes}/found")


@CONVERSATIONS.register
async def found_by_random_requests_of_workloads(send: RecordedConversation) -> None:
    labels = {"a": "b"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    for path, selector in (
        ("/apis/apps/v1/namespaces/default/deployments", {"matchLabels": labels}),
        ("/api/v1/namespaces/default/replicationcontrollers", labels),
    ):
        spec = {"replicas": 0, "selector": selector, "template": pod}
        await send("POST", path, {"metadata": {"name": "w"}, "spec": spec})
        await send("PATCH", f"{path}/w", {"metadata": {"annotations": {"a": "b"}}}, MERGE)
        await send("PATCH", f"{path}/w/scale", {"spec": {"replicas": 1}}, MERGE)
        for replicas in (-1, "x"):
            await send("PATCH", f"{path}/w/scale", {"spec": {"replicas": replicas}}, MERGE)
        await send("PUT", f"{path}/w/scale", {"spec": {"replicas": 1}})
        other = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "w"}}
        await send("PUT", f"{path}/w/scale", other)
        await send("DELETE", f"{path}/w?dryRun=All")
        await send("DELETE", f"{path}/w", {"propagationPolicy": "Background"})
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    rules = {"resourceRules": [_RULE]}
    policy = {"matchConstraints": rules, "validations": [{"expression": "true"}]}
    await send("POST", policies, {"metadata": {"name": "found"}, "spec": policy})
    await send("PATCH", f"{policies}/found/status", {"metadata": {"labels": labels}}, MERGE)
    await send("DELETE", f"{policies}/found")


def _shirts(*versions: tuple[str, list[str]]) -> Json:
    """A definition of a custom kind with selectable fields by version; the first one is stored."""
    properties = {
        "color": {"type": "string"},
        "size": {"type": "integer"},
        "sold": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    }
    spec = {"type": "object", "properties": properties}
    schema = {"type": "object", "properties": {"spec": spec}}
    names = {"plural": "shirts", "kind": "Shirt", "singular": "shirt", "listKind": "ShirtList"}
    shown = [
        {
            "name": name,
            "served": True,
            "storage": name == versions[0][0],
            # kube-apiserver rejects different fields of equal schemas.
            "schema": {"openAPIV3Schema": {**schema, "description": name}},
            "selectableFields": [{"jsonPath": path} for path in paths],
        }
        for name, paths in versions
    ]
    whole = {"group": "sel.io", "scope": "Namespaced", "names": names, "versions": shown}
    return {"metadata": {"name": "shirts.sel.io"}, "spec": whole}


@CONVERSATIONS.register
async def selectable_fields(send: RecordedConversation) -> None:
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    one, two = (f"/apis/sel.io/{version}/namespaces/default/shirts" for version in ("v1", "v2"))
    wrong: tuple[list[str], ...] = (
        [""], ["spec.color"], [".spec.none"], [".metadata.name"], [".spec.tags"], [".spec.tags[0]"],
        [".spec"], [".spec.color", ".spec.color"], [".spec."], [".spec['color']"],
        [f".spec.labels.l{number}" for number in range(9)],
    )  # fmt: skip
    for paths in wrong:
        await send("POST", f"{crds}?dryRun=All", _shirts(("v1", paths)))
    await send("POST", f"{crds}?dryRun=All", _shirts(("v1", [".spec.color"]), ("v2", [".spec.x"])))
    definition = _shirts(("v1", []), ("v2", [".spec.color", ".spec.size", ".spec.sold"]))
    await send.server.create(crds, definition)
    await send.wait_status(200, "GET", f"{two}?fieldSelector=spec.color%3Dred")
    specs: tuple[Json, ...] = ({"color": "red", "size": 5}, {"color": "blue", "sold": True}, {})
    for index, spec in enumerate(specs):
        body = {"apiVersion": "sel.io/v1", "kind": "Shirt", "metadata": {"name": f"s{index}"}}
        await send("POST", one, {**body, "spec": spec})
    for selector in ("color=red", "color!=red", "size=5", "sold=true", "color=", "none=1"):
        where, _, value = selector.partition("=")
        await send("GET", f"{two}?fieldSelector=spec.{where}%3D{value}")
    await send("GET", f"{one}?fieldSelector=spec.color%3Dred")
    # A changed definition applies to the objects that are stored already.
    added = [{"op": "add", "path": "/spec/versions/0/selectableFields",
              "value": [{"jsonPath": ".spec.color"}]}]  # fmt: skip
    await send.server.request(
        "PATCH", f"{crds}/shirts.sel.io", added, content_type="application/json-patch+json"
    )
    await send.wait_status(200, "GET", f"{one}?fieldSelector=spec.color%3Dblue")
    await send("GET", f"{one}?fieldSelector=spec.color%3Dblue")
    await send("DELETE", f"{one}?fieldSelector=spec.color%3Dblue")
    await send("GET", two)
    await send.server.request("DELETE", f"{crds}/shirts.sel.io")


test_both_servers_return_the_same = CONVERSATIONS.test()
