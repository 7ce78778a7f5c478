"""As test_conformance_of_validation.py: kinds of storage, names, statuses, budgets, patches."""

from typing import Any

from support.conversations import Conversations, RecordedConversation
from support.embedded_apiserver import MERGE

Json = dict[str, Any]

_ADDRESSES = {
    ".spec.clusterIP": "the range of Services is another",
    ".nodePort": "it is random",
}
EXPECTED_DIFFERENCES: dict[str, dict[str, str]] = {
    "statuses_of_services": _ADDRESSES,
    "drivers": {".generation": "there are no drivers"},
    "names": {
        "v1 Endpoints is deprecated": "Endpoints are not deprecated",
        "is about": "the suffix is random",
        ".metadata.name": "likewise",
        ".spec.clusterIP": "the range of Services is another",
    },
}
CONVERSATIONS = Conversations(EXPECTED_DIFFERENCES)
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STORAGE = "/apis/storage.k8s.io/v1"

CSI: Json = {"csi": {"driver": "a.b", "volumeHandle": "h"}}


@CONVERSATIONS.register
async def inline_volumes(send: RecordedConversation) -> None:
    path = f"{STORAGE}/volumeattachments?dryRun=All"
    whole: Json = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], **CSI}
    volume_rows: tuple[Json, ...] = (
        {},
        CSI,
        {"accessModes": ["ReadWriteOnce"], **CSI},
        whole,
        {**whole, "capacity": {"storage": "-1"}},
        {**whole, "capacity": {"cpu": "1"}},
        {**whole, "accessModes": ["Never"]},
        {**whole, "accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]},
        {**whole, "volumeMode": "Odd"},
        {**whole, "storageClassName": "A_b"},
        {**whole, "persistentVolumeReclaimPolicy": "Odd"},
        {**whole, "nodeAffinity": {}},
        {**whole, "mountOptions": ["a"]},
        {**whole, "claimRef": {"name": "a"}},
        {**whole, "hostPath": {"path": "/a"}},
        {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1"}, "hostPath": {"path": "/"}},
        {"accessModes": ["ReadWriteOnce"], "nfs": {"server": "a", "path": "/a"}},
        {**whole, "csi": {"driver": "a.b"}},
        {**whole, "csi": {"volumeHandle": "a"}},
        {**whole, "csi": {"driver": "a b", "volumeHandle": "h"}},
    )
    for volume in volume_rows:
        spec = {"attacher": "a.b", "nodeName": "n", "source": {"inlineVolumeSpec": volume}}
        await send("POST", path, {"metadata": {"name": "a"}, "spec": spec})


@CONVERSATIONS.register
async def volumes(send: RecordedConversation) -> None:
    path = "/api/v1/persistentvolumes"
    whole: Json = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    host: Json = {**whole, "hostPath": {"path": "/a"}}
    affinity: Json = {"required": {"nodeSelectorTerms": [{"matchExpressions": []}]}}
    spec_rows: tuple[Json, ...] = (
        {},
        whole,
        host,
        {**host, **CSI},
        {**whole, **CSI},
        {**whole, "csi": {"driver": "a"}},
        {**host, "capacity": {"storage": "0"}},
        {**host, "capacity": {"storage": "-1"}},
        {**host, "capacity": {"cpu": "1"}},
        {**host, "capacity": {"storage": "1", "cpu": "1"}},
        {**host, "accessModes": []},
        {**host, "accessModes": ["Never"]},
        {**host, "accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]},
        {**host, "volumeMode": "Odd"},
        {**host, "storageClassName": "A_b"},
        {**host, "persistentVolumeReclaimPolicy": "Odd"},
        {**host, "persistentVolumeReclaimPolicy": "Recycle"},
        {**host, "nodeAffinity": {}},
        {**host, "nodeAffinity": affinity},
        {**host, "mountOptions": ["a"]},
        {**whole, "hostPath": {"path": ""}},
        {**whole, "hostPath": {"path": "/a/../b"}},
        {**whole, "hostPath": {"path": "/a", "type": "Odd"}},
        {**whole, "hostPath": {"path": "/"}, "persistentVolumeReclaimPolicy": "Recycle"},
        {**whole, "local": {"path": "/a"}},
        {**whole, "local": {"path": ""}, "nodeAffinity": affinity},
        {**whole, "nfs": {"server": "", "path": "a"}},
    )
    for spec in spec_rows:
        await send("POST", f"{path}?dryRun=All", {"metadata": {"name": "a"}, "spec": spec})
    await send("POST", path, {"metadata": {"name": "a"}, "spec": {**host, "storageClassName": "c"}})
    later_spec_rows: tuple[Json, ...] = (
        {"hostPath": {"path": "/b"}},
        {"volumeMode": "Block"},
        {"capacity": {"storage": "0"}},
        {"accessModes": []},
    )
    for spec in later_spec_rows:
        await send("PATCH", f"{path}/a?dryRun=All", {"spec": spec}, MERGE)
    await send.server.request("DELETE", f"{path}/a")
    await send.server.request(
        "PATCH", f"{path}/a", {"metadata": {"finalizers": None}}, content_type=MERGE
    )


@CONVERSATIONS.register
async def statuses_of_attachments(send: RecordedConversation) -> None:
    path = f"{STORAGE}/volumeattachments"
    spec = {"attacher": "a.b", "nodeName": "n", "source": {"persistentVolumeName": "v"}}
    await send("POST", path, {"metadata": {"name": "a"}, "spec": spec})
    status_rows: tuple[Json, ...] = (
        {"attached": True},
        {"attached": True, "attachError": {"message": "a" * 1025}},
        {"attached": False, "detachError": {"message": "a" * 1025, "errorCode": -1}},
        {"attached": False, "attachError": {"errorCode": -1}},
        {"attachmentMetadata": {"a": "b" * 300_000}},
        {"attachmentMetadata": {"": "b"}},
        {"attached": False, "attachError": {"time": "2020-01-01T00:00:00Z"}},
    )
    for status in status_rows:
        await send("PATCH", f"{path}/a/status?dryRun=All", {"status": status}, MERGE)
    await send("PATCH", f"{path}/a/status?dryRun=All", {"spec": {"nodeName": "m"}}, MERGE)
    await send("PATCH", f"{path}/a?dryRun=All", {"status": {"attached": True}}, MERGE)
    await send("PATCH", f"{path}/a?dryRun=All", {"spec": {"nodeName": "m"}}, MERGE)
    await send("DELETE", f"{path}/a")


@CONVERSATIONS.register
async def statuses_of_ingresses(send: RecordedConversation) -> None:
    path = "/apis/networking.k8s.io/v1/namespaces/default/ingresses"
    backend = {"service": {"name": "s", "port": {"number": 80}}}
    await send("POST", path, {"metadata": {"name": "a"}, "spec": {"defaultBackend": backend}})
    entry_rows: tuple[Json, ...] = (
        {"ip": "1.2.3.4"},
        {"ip": "1.2.3.04"},
        {"ip": "::ffff:1.2.3.4"},
        {"ip": "a"},
        {"hostname": "a.b"},
        {"hostname": "A_b"},
        {"hostname": "1.2.3.4"},
        {"hostname": "*.a"},
        {},
        {"ip": "1.2.3.4", "ports": [{"port": 80, "protocol": "TCP"}]},
        {"ip": "1.2.3.4", "ports": [{"port": 0, "protocol": "TCP"}]},
        {"ip": "1.2.3.4", "ports": [{"port": 80, "protocol": "Odd"}]},
        {"ip": "1.2.3.4", "ports": [{"port": 80, "protocol": "TCP", "error": "a b"}]},
        {"ip": "1.2.3.4", "ports": [{"port": 80, "protocol": "TCP", "error": "a/b_c"}]},
    )
    for entry in entry_rows:
        status = {"loadBalancer": {"ingress": [entry]}}
        await send("PATCH", f"{path}/a/status?dryRun=All", {"status": status}, MERGE)
    await send("DELETE", f"{path}/a")


@CONVERSATIONS.register
async def statuses_of_services(send: RecordedConversation) -> None:
    path = "/api/v1/namespaces/default/services"
    for name, kind in (("a", "ClusterIP"), ("b", "LoadBalancer")):
        spec = {"type": kind, "ports": [{"port": 80}]}
        await send("POST", path, {"metadata": {"name": name}, "spec": spec})
        for entry in (
            {"ip": "1.2.3.4"},
            {"ip": "a"},
            {"hostname": "a.b"},
            {"hostname": "A_b"},
            {"hostname": "1.2.3.4"},
            {"ip": "1.2.3.4", "ipMode": "VIP"},
            {"ip": "1.2.3.4", "ipMode": "Odd"},
            {"hostname": "a", "ipMode": "VIP"},
            {"ip": "1.2.3.4", "ports": [{"port": 0, "protocol": "TCP"}]},
        ):
            status = {"loadBalancer": {"ingress": [entry]}}
            await send("PATCH", f"{path}/{name}/status?dryRun=All", {"status": status}, MERGE)
        await send("DELETE", f"{path}/{name}")


@CONVERSATIONS.register
async def data_of_revisions(send: RecordedConversation) -> None:
    path = "/apis/apps/v1/namespaces/default/controllerrevisions"
    body = {"metadata": {"name": "r"}, "revision": 1, "data": {"a": 1}}
    await send("POST", path, body)
    for data in ({"a": 2}, {"b": 1}, {"a": None}, {"a": 1}, {}):
        await send("PATCH", f"{path}/r?dryRun=All", {"data": data}, MERGE)
        await send("PATCH", f"{path}/r?dryRun=All", {"data": data}, STRATEGIC)
        await send("PUT", f"{path}/r?dryRun=All", {**body, "data": data})
        operation = {"op": "replace", "path": "/data", "value": data}
        await send("PATCH", f"{path}/r?dryRun=All", [operation], JSON_PATCH)
    await send("PATCH", f"{path}/r?dryRun=All", {"data": None}, MERGE)
    await send("PATCH", f"{path}/r?dryRun=All", {"data": "a"}, MERGE)
    await send("PATCH", f"{path}/r?dryRun=All", {"revision": 2}, MERGE)
    await send("PATCH", f"{path}/r?dryRun=All", {"revision": -1}, MERGE)
    await send("DELETE", f"{path}/r")


@CONVERSATIONS.register
async def storage_classes(send: RecordedConversation) -> None:
    path = f"{STORAGE}/storageclasses"
    body = {"provisioner": "a.b/c"}
    change_rows: tuple[Json, ...] = (
        {},
        {"provisioner": ""},
        {"provisioner": "A b"},
        {"provisioner": "a" * 64},
        {"parameters": {"": "a"}},
        {"parameters": {"a": "b" * 300_000}},
        {"parameters": {str(number): "" for number in range(513)}},
        {"reclaimPolicy": "Odd"},
        {"reclaimPolicy": "Recycle"},
        {"volumeBindingMode": "Odd"},
        {"mountOptions": [""]},
        {"allowedTopologies": [{}]},
        {"allowedTopologies": [{"matchLabelExpressions": [{"key": "a", "values": []}]}]},
        {"allowedTopologies": [{"matchLabelExpressions": [{"key": "a b", "values": ["a"]}]}]},
        {"allowedTopologies": [{"matchLabelExpressions": [{"key": "a", "values": ["a", "a"]}]}]},
        {"allowedTopologies": 2 * [{"matchLabelExpressions": [{"key": "a", "values": ["a"]}]}]},
        {
            "allowedTopologies": [
                {"matchLabelExpressions": 2 * [{"key": "a", "values": ["a"]}]},
            ]
        },
    )
    for change in change_rows:
        await send("POST", f"{path}?dryRun=All", {"metadata": {"name": "a"}, **body, **change})
    await send("POST", path, {"metadata": {"name": "a"}, **body, "parameters": {"a": "b"}})
    later_change_rows: tuple[Json, ...] = (
        {"provisioner": "c"},
        {"parameters": {"a": "c"}},
        {"reclaimPolicy": "Retain"},
        {"volumeBindingMode": "WaitForFirstConsumer"},
        {"mountOptions": ["a"]},
        {"allowVolumeExpansion": True},
    )
    for change in later_change_rows:
        await send("PATCH", f"{path}/a?dryRun=All", change, MERGE)
    await send("DELETE", f"{path}/a")


@CONVERSATIONS.register
async def drivers(send: RecordedConversation) -> None:
    path = f"{STORAGE}/csidrivers"
    for name, spec in (
        ("a.b", {}),
        ("A_b", {}),
        ("a" * 64, {}),
        ("a.b", {"fsGroupPolicy": "Odd"}),
        ("a.b", {"volumeLifecycleModes": ["Odd"]}),
        ("a.b", {"tokenRequests": [{"audience": "a"}, {"audience": "a"}]}),
        ("a.b", {"tokenRequests": [{"audience": "a", "expirationSeconds": 1}]}),
        ("a.b", {"tokenRequests": [{"audience": "a", "expirationSeconds": 1 << 33}]}),
        ("a.b", {"nodeAllocatableUpdatePeriodSeconds": 1}),
        ("a.b", {"nodeAllocatableUpdatePeriodSeconds": 10}),
        ("a.b", {"attachRequired": None}),
    ):
        await send("POST", f"{path}?dryRun=All", {"metadata": {"name": name}, "spec": spec})
    await send("POST", path, {"metadata": {"name": "a.b"}, "spec": {}})
    spec_rows: tuple[Json, ...] = (
        {"attachRequired": False},
        {"fsGroupPolicy": "None"},
        {"volumeLifecycleModes": ["Ephemeral"]},
        {"podInfoOnMount": True},
        {"storageCapacity": True},
        {"requiresRepublish": True},
        {"seLinuxMount": True},
    )
    for spec in spec_rows:
        await send("PATCH", f"{path}/a.b?dryRun=All", {"spec": spec}, MERGE)
    await send("DELETE", f"{path}/a.b")
    path = f"{STORAGE}/csinodes"
    listed_rows: tuple[list[Json], ...] = (
        [],
        [{"name": "a.b", "nodeID": "n"}],
        [{"name": "", "nodeID": "n"}],
        [{"name": "a.b", "nodeID": ""}],
        [{"name": "a.b", "nodeID": "n" * 257}],
        [{"name": "A b", "nodeID": "n"}],
        2 * [{"name": "a.b", "nodeID": "n"}],
        [{"name": "a.b", "nodeID": "n", "topologyKeys": ["a b"]}],
        [{"name": "a.b", "nodeID": "n", "topologyKeys": ["a", "a"]}],
        [{"name": "a.b", "nodeID": "n", "topologyKeys": [""]}],
        [{"name": "a.b", "nodeID": "n", "allocatable": {"count": -1}}],
    )
    for listed in listed_rows:
        body = {"metadata": {"name": "n"}, "spec": {"drivers": listed}}
        await send("POST", f"{path}?dryRun=All", body)


@CONVERSATIONS.register
async def attribute_classes(send: RecordedConversation) -> None:
    path = f"{STORAGE}/volumeattributesclasses"
    body_rows: tuple[Json, ...] = (
        {"driverName": "a.b", "parameters": {"a": "b"}},
        {"driverName": "a.b"},
        {"driverName": "", "parameters": {"a": "b"}},
        {"driverName": "A b", "parameters": {"a": "b"}},
        {"driverName": "a.b", "parameters": {"": "b"}},
        {"driverName": "a" * 64, "parameters": {"a": "b"}},
    )
    for body in body_rows:
        await send("POST", f"{path}?dryRun=All", {"metadata": {"name": "a"}, **body})
    body = {"driverName": "a.b", "parameters": {"a": "b"}}
    await send("POST", path, {"metadata": {"name": "a"}, **body})
    await send("PATCH", f"{path}/a?dryRun=All", {"driverName": "c"}, MERGE)
    await send("PATCH", f"{path}/a?dryRun=All", {"parameters": {"a": "c"}}, MERGE)
    await send("DELETE", f"{path}/a")


@CONVERSATIONS.register
async def runtime_classes(send: RecordedConversation) -> None:
    path = "/apis/node.k8s.io/v1/runtimeclasses"
    body_rows: tuple[Json, ...] = (
        {"handler": "a"},
        {"handler": ""},
        {"handler": "A_b"},
        {"handler": "a.b"},
        {"handler": "a", "overhead": {"podFixed": {"cpu": "-1"}}},
        {"handler": "a", "overhead": {"podFixed": {"a b": "1"}}},
        {"handler": "a", "overhead": {"podFixed": {"cpu": "1"}}},
        {"handler": "a", "scheduling": {"nodeSelector": {"a b": "c"}}},
        {"handler": "a", "scheduling": {"nodeSelector": {"a": "c d"}}},
        {"handler": "a", "scheduling": {"tolerations": [{"operator": "Odd"}]}},
        {"handler": "a", "scheduling": {"tolerations": [{"key": "a b"}]}},
        {"handler": "a", "scheduling": {"tolerations": 2 * [{"key": "a", "operator": "Exists"}]}},
    )
    for body in body_rows:
        await send("POST", f"{path}?dryRun=All", {"metadata": {"name": "a"}, **body})
    await send("POST", path, {"metadata": {"name": "a"}, "handler": "a"})
    await send("PATCH", f"{path}/a?dryRun=All", {"handler": "b"}, MERGE)
    await send("DELETE", f"{path}/a")


@CONVERSATIONS.register
async def disruption_budgets(send: RecordedConversation) -> None:
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    selector = {"matchLabels": {"a": "b"}}
    spec_rows: tuple[Json, ...] = (
        {},
        {"minAvailable": 1},
        {"minAvailable": 1, "selector": selector},
        {"minAvailable": -1, "selector": selector},
        {"minAvailable": "50%", "selector": selector},
        {"minAvailable": "101%", "selector": selector},
        {"minAvailable": "a", "selector": selector},
        {"maxUnavailable": "-1%", "selector": selector},
        {"maxUnavailable": -1},
        {"maxUnavailable": 1, "minAvailable": 1},
        {"selector": {"matchLabels": {"a b": "c"}}},
        {"selector": {"matchLabels": {"a": "c d"}}},
        {"selector": {"matchExpressions": [{"key": "a", "operator": "Odd"}]}},
        {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
        {"unhealthyPodEvictionPolicy": "Odd"},
        {"unhealthyPodEvictionPolicy": "AlwaysAllow"},
    )
    for spec in spec_rows:
        await send("POST", f"{path}?dryRun=All", {"metadata": {"name": "a"}, "spec": spec})
    await send("POST", path, {"metadata": {"name": "a"}, "spec": {"minAvailable": 1}})
    status_rows: tuple[Json, ...] = (
        {"disruptionsAllowed": -1},
        {"currentHealthy": -1},
        {"desiredHealthy": -1},
        {"expectedPods": -1},
        {"observedGeneration": 7},
    )
    for status in status_rows:
        await send("PATCH", f"{path}/a/status?dryRun=All", {"status": status}, MERGE)
    await send("DELETE", f"{path}/a")


@CONVERSATIONS.register
async def webhook_bundles(send: RecordedConversation) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations?dryRun=All"
    for bundle in ("YWJj", "", "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg=="):
        webhook = {
            "name": "a.b.c",
            "clientConfig": {"url": "https://a.b/c", "caBundle": bundle},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        await send("POST", path, {"metadata": {"name": "a"}, "webhooks": [webhook]})


@CONVERSATIONS.register
async def patches_of_wrong_types(send: RecordedConversation) -> None:
    path = "/apis/apps/v1/namespaces/default/deployments"
    labels = {"a": "b"}
    pods = {"containers": [{"name": "c", "image": "i"}]}
    template = {"metadata": {"labels": labels}, "spec": pods}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    await send.server.create(path, {"metadata": {"name": "wrong"}, "spec": spec})
    contents: tuple[Any, ...] = ("", [], 1, True)
    for content in contents:
        for field in ("spec", "status"):
            for subresource in ("", "/status"):
                await send("PATCH", f"{path}/wrong{subresource}", {field: content}, MERGE)
    await send.server.request("DELETE", f"{path}/wrong")


NAMES = ("A", "a_b", "a.b", "-a", "a" * 64, "a" * 254, "1a", "a/b", "a%b", ".", "a:b", "a b")
COLLECTIONS: dict[str, Json] = {
    "/api/v1/namespaces/default/configmaps": {},
    "/api/v1/namespaces/default/endpoints": {},
    "/api/v1/namespaces/default/limitranges": {"spec": {"limits": []}},
    "/api/v1/namespaces/default/podtemplates": {
        "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    },
    "/api/v1/namespaces/default/secrets": {},
    "/api/v1/namespaces/default/serviceaccounts": {},
    "/api/v1/namespaces/default/services": {"spec": {"ports": [{"port": 80}]}},
    "/api/v1/namespaces": {},
    "/api/v1/nodes": {},
    "/api/v1/persistentvolumes": {
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1"},
            "hostPath": {"path": "/a"},
        }
    },
    "/apis/apps/v1/namespaces/default/controllerrevisions": {"data": {}, "revision": 1},
    "/apis/coordination.k8s.io/v1/namespaces/default/leases": {},
    "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices": {
        "addressType": "IPv4",
        "endpoints": [],
    },
    "/apis/networking.k8s.io/v1/ingressclasses": {"spec": {"controller": "a.b/c"}},
    "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies": {"spec": {"podSelector": {}}},
    "/apis/node.k8s.io/v1/runtimeclasses": {"handler": "a"},
    "/apis/policy/v1/namespaces/default/poddisruptionbudgets": {},
    "/apis/rbac.authorization.k8s.io/v1/clusterroles": {},
    "/apis/scheduling.k8s.io/v1/priorityclasses": {"value": 1},
    "/apis/storage.k8s.io/v1/csidrivers": {"spec": {}},
    "/apis/storage.k8s.io/v1/csinodes": {"spec": {"drivers": []}},
    "/apis/storage.k8s.io/v1/storageclasses": {"provisioner": "a"},
    "/apis/storage.k8s.io/v1/volumeattributesclasses": {
        "driverName": "a",
        "parameters": {"a": "b"},
    },
    "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers": {
        "spec": {"maxReplicas": 1, "scaleTargetRef": {"kind": "a", "name": "b"}}
    },
    "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas": {
        "spec": {"priorityLevelConfiguration": {"name": "exempt"}}
    },
    "/apis/certificates.k8s.io/v1/certificatesigningrequests": {},
}


@CONVERSATIONS.register
async def names(send: RecordedConversation) -> None:
    for path, body in COLLECTIONS.items():
        for name in NAMES:
            await send("POST", f"{path}?dryRun=All", {"metadata": {"name": name}, **body})
        await send("POST", f"{path}?dryRun=All", {"metadata": {"generateName": "A_"}, **body})


test_both_servers_return_the_same = CONVERSATIONS.test()
