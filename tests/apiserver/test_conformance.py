"""The same requests to the embedded and to a real API server get the same responses.

Further conversations are in test_conformance_of_kinds.py.
"""

from typing import Any

from support.conversations import Conversations, RecordedConversation
from support.embedded_apiserver import MAPS, MERGE, PODS, config_map, pod

from batholith.model.names import DIR_STORAGE_CLASS, IP_ADDRESSES, SERVICE_CIDRS

Json = dict[str, Any]
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
YAML = "application/yaml"


EXPECTED_DIFFERENCES = {
    "patches_of_all_types": {
        "'/data/none', 'value'": "a JSON patch cannot replace a missing value",
    },
    "other_kinds": {
        f".spec.storageClassName is too much: {DIR_STORAGE_CLASS}": "it has a default class",
    },
}
"""By conversation: substrings of accepted differences, and why; see docs/differences.md."""


CONVERSATIONS = Conversations(EXPECTED_DIFFERENCES)


def plain(name: str = "p", **spec: Any) -> Json:
    """A pod without the token volume that only a real server adds."""
    return pod(name, automountServiceAccountToken=False, **spec)


@CONVERSATIONS.register
async def writes_of_one_object(send: RecordedConversation) -> None:
    created = await send("POST", MAPS, config_map("a"))
    await send("POST", MAPS, config_map("a"))
    await send("GET", f"{MAPS}/a")
    await send("PUT", f"{MAPS}/a", {**created, "data": {"k": "2"}})
    await send("PUT", f"{MAPS}/a", {**created, "data": {"k": "3"}})
    await send("PUT", f"{MAPS}/a", {"metadata": {"name": "a"}, "data": {"k": "4"}})
    await send("PUT", f"{MAPS}/a", {"metadata": {"name": "b"}, "data": {}})
    await send("PUT", f"{MAPS}/none", {"metadata": {"name": "none"}, "data": {}})
    wrong = {"metadata": {"name": "a", "uid": "00000000-0000-0000-0000-000000000000"}}
    await send("PUT", f"{MAPS}/a", wrong)
    await send("DELETE", f"{MAPS}/a")
    await send("DELETE", f"{MAPS}/a")
    await send("GET", f"{MAPS}/a")
    await send("PUT", MAPS, config_map("a"))
    await send("POST", f"{MAPS}/a", config_map("a"))


@CONVERSATIONS.register
async def names_and_metadata(send: RecordedConversation) -> None:
    for name in ("A", "a_b", "-a", "a" * 254, "", "a.b", "1"):
        await send("POST", MAPS, config_map(name))
    await send("POST", MAPS, {"metadata": {"generateName": "gen-"}})
    await send("POST", MAPS, {"metadata": {"generateName": "gen-A"}})
    await send("POST", MAPS, {"metadata": {"name": "x", "generateName": "gen-"}})
    await send("POST", MAPS, {"metadata": {"name": "r", "resourceVersion": "5"}})
    await send("POST", MAPS, {"metadata": {"name": "u", "uid": "mine"}})
    await send("POST", MAPS, {"metadata": {"name": "ns", "namespace": "other"}})
    for labels in ({"a b": "c"}, {"a": "b c"}, {"a": "x" * 64}, {"ex.io/a": "b"}, {"": "b"}):
        await send("POST", MAPS, {"metadata": {"name": "l", "labels": labels}})
    await send("POST", MAPS, {"metadata": {"name": "an", "annotations": {"a b": "c"}}})
    await send("POST", MAPS, {"metadata": {"name": "f", "finalizers": ["plain"]}})
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}
    for change in ({}, {"uid": ""}, {"name": ""}, {"kind": ""}, {"apiVersion": ""}):
        refs = [{**owner, **change}]
        await send("POST", MAPS, {"metadata": {"generateName": "gen-", "ownerReferences": refs}})
    two = [{**owner, "controller": True}, {**owner, "name": "q", "uid": "v", "controller": True}]
    await send("POST", MAPS, {"metadata": {"name": "two", "ownerReferences": two}})
    await send("POST", "/api/v1/namespaces/none/configmaps", config_map("a"))
    await send("GET", "/api/v1/namespaces/none/configmaps")
    await send("GET", "/api/v1/nothings")
    await send("GET", "/apis/none.io/v1/things")


@CONVERSATIONS.register
async def malformed_bodies(send: RecordedConversation) -> None:
    await send("POST", MAPS, b"{bad")
    await send("POST", MAPS, b"")
    await send("POST", MAPS, b"[]")
    await send("POST", MAPS, b"null")
    await send("POST", MAPS, {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "a"}})
    await send("POST", MAPS, {"kind": "ConfigMap", "apiVersion": "v2", "metadata": {"name": "a"}})
    await send("POST", MAPS, {"metadata": {"name": "a"}, "data": {"k": 1}})
    await send("POST", MAPS, {"metadata": {"name": "a"}, "data": []})
    await send("POST", MAPS, {"metadata": {"name": "b"}, "dta": {"k": "1"}})
    await send("POST", f"{MAPS}?fieldValidation=Strict", {"metadata": {"name": "c"}, "dta": {}})
    await send("POST", f"{MAPS}?fieldValidation=Ignore", {"metadata": {"name": "d"}, "dta": {}})
    await send("POST", f"{MAPS}?fieldValidation=Wrong", {"metadata": {"name": "e"}})
    await send("POST", f"{MAPS}?dryRun=All", {"metadata": {"name": "f"}})
    await send("GET", f"{MAPS}/f")
    await send("POST", f"{MAPS}?dryRun=Some", {"metadata": {"name": "f"}})
    await send("POST", MAPS, b'{"metadata":{"name":"dup"},"data":{"a":"1","a":"2"}}')
    await send(
        "POST",
        f"{MAPS}?fieldValidation=Strict",
        b'{"metadata":{"name":"t"},"data":{"a":"1","a":"2"}}',
    )
    await send("POST", MAPS, b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: yes-yaml}\n", YAML)
    await send("POST", MAPS, b"x", "text/csv")
    await send("POST", MAPS, {"metadata": {"name": "k"}, "data": {"a/b": "c"}})
    await send("POST", MAPS, {"metadata": {"name": "k"}, "binaryData": {"a": "no base64!"}})
    await send(
        "POST", MAPS, {"metadata": {"name": "k"}, "data": {"a": ""}, "binaryData": {"a": ""}}
    )


@CONVERSATIONS.register
async def patches_of_all_types(send: RecordedConversation) -> None:
    await send("POST", MAPS, config_map("a", tier="x"))
    a = f"{MAPS}/a"
    await send("PATCH", a, {"data": {"k": "w"}}, MERGE)
    await send("PATCH", a, {"data": {"k": None, "l": "1"}}, MERGE)
    await send("PATCH", a, {"data": {"l": "1"}}, MERGE)
    await send("PATCH", a, {"metadata": {"labels": None}}, MERGE)
    await send("PATCH", a, {"metadata": {"name": "b"}}, MERGE)
    await send("PATCH", a, {"metadata": {"namespace": "b"}}, MERGE)
    await send("PATCH", a, {"metadata": {"resourceVersion": "1"}}, MERGE)
    await send("PATCH", a, {"metadata": {"uid": "other"}}, MERGE)
    await send("PATCH", a, {"data": 5}, MERGE)
    wrong: tuple[Any, ...] = (None, "x", [], {"name": None})
    for metadata in wrong:
        await send("PATCH", a, {"metadata": metadata}, MERGE)
        await send("PATCH", a, {"metadata": metadata}, STRATEGIC)
    await send("PATCH", a, [], MERGE)
    await send("PATCH", a, b"{bad", MERGE)
    await send("PATCH", a, {"nothing": 1}, MERGE)
    await send("PATCH", f"{a}?fieldValidation=Strict", {"nothing": 1}, MERGE)
    await send("PATCH", f"{a}?dryRun=All", {"data": {"k": "dry"}}, MERGE)
    await send("GET", a)
    await send("PATCH", f"{MAPS}/none", {"data": {}}, MERGE)
    await send("PATCH", a, {"data": {}}, "application/json")
    add = {"op": "add", "path": "/data/m", "value": "2"}
    test = {"op": "test", "path": "/data/m", "value": "2"}
    await send("PATCH", a, [add], JSON_PATCH)
    await send("PATCH", a, [test, {"op": "remove", "path": "/data/m"}], JSON_PATCH)
    await send("PATCH", a, [test], JSON_PATCH)
    await send("PATCH", a, [{"op": "remove", "path": "/data/m"}], JSON_PATCH)
    await send("PATCH", a, [{"op": "move", "from": "/data/l", "path": "/data/n"}], JSON_PATCH)
    await send("PATCH", a, [{"op": "copy", "from": "/data/n", "path": "/data/o"}], JSON_PATCH)
    await send("PATCH", a, [{"op": "replace", "path": "/data/none", "value": "1"}], JSON_PATCH)
    await send("PATCH", a, [{"op": "wrong", "path": "/data/none", "value": "1"}], JSON_PATCH)
    await send("PATCH", a, {"op": "add"}, JSON_PATCH)
    await send("PATCH", a, [{"op": "replace", "path": "/data", "value": 5}], JSON_PATCH)
    await send("PATCH", a, [{"op": "replace", "path": "/metadata/name", "value": "z"}], JSON_PATCH)
    await send("PATCH", a, {"data": {"$patch": "replace", "only": "1"}}, STRATEGIC)
    await send("PATCH", a, {"metadata": {"finalizers": ["ex.io/one"]}}, STRATEGIC)
    await send("PATCH", a, {"metadata": {"finalizers": ["ex.io/two"]}}, STRATEGIC)
    await send(
        "PATCH", a, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["ex.io/one"]}}, STRATEGIC
    )
    await send("PATCH", a, {"metadata": {"finalizers": None}}, STRATEGIC)


@CONVERSATIONS.register
async def strategic_patches_of_pods(send: RecordedConversation) -> None:
    p = f"{PODS}/p"
    await send("POST", PODS, plain())
    containers = [{"name": "main", "image": "busybox:2"}]
    await send("PATCH", p, {"spec": {"containers": containers}}, STRATEGIC)
    await send("PATCH", p, {"spec": {"containers": containers}}, MERGE)
    await send("PATCH", p, {"spec": {"containers": [{"name": "new", "image": "b"}]}}, STRATEGIC)
    await send("PATCH", p, {"spec": {"nodeName": "n"}}, STRATEGIC)
    await send("PATCH", p, {"spec": {"activeDeadlineSeconds": 5}}, STRATEGIC)
    await send("PATCH", p, {"spec": {"activeDeadlineSeconds": 9}}, STRATEGIC)
    toleration = {"key": "a", "operator": "Exists"}
    await send("PATCH", p, {"spec": {"tolerations": [toleration]}}, MERGE)
    await send("PATCH", p, {"metadata": {"labels": {"a": "b"}}}, STRATEGIC)
    ready = {"type": "Ready", "status": "False", "reason": "No"}
    for condition in (ready, {**ready, "status": "True"}, {"type": "Other", "status": "True"}):
        await send("PATCH", f"{p}/status", {"status": {"conditions": [condition]}}, STRATEGIC)
    deletion = {"$patch": "delete", "type": "Other"}
    await send("PATCH", f"{p}/status", {"status": {"conditions": [deletion]}}, STRATEGIC)
    await send("PATCH", f"{p}/status", {"status": {"phase": "Running"}, "spec": {"x": 1}}, MERGE)
    await send("PATCH", f"{p}/status", {"status": {"phase": "Odd"}}, MERGE)
    await send("PATCH", p, {"status": {"phase": "Failed"}}, MERGE)
    await send("GET", f"{p}/status")


@CONVERSATIONS.register
async def lists_and_selectors(send: RecordedConversation) -> None:
    for name, tier in (("c", "x"), ("a", "x"), ("b", "y"), ("d", "")):
        await send("POST", MAPS, config_map(name, **({"tier": tier} if tier else {})))
    for query in (
        "labelSelector=tier%3Dx",
        "labelSelector=tier%3D%3Dx",
        "labelSelector=tier%21%3Dx",
        "labelSelector=tier",
        "labelSelector=%21tier",
        "labelSelector=tier%20in%20(x,y)",
        "labelSelector=tier%20notin%20(x)",
        "labelSelector=tier%3D",
        "labelSelector=tier%3Dx,tier",
        "labelSelector=%3D%3D",
        "labelSelector=tier%20in%20x",
        "labelSelector=tier%3Ex",
        "labelSelector=tier%3E1",
        "fieldSelector=metadata.name%3Da",
        "fieldSelector=metadata.name%21%3Da",
        "fieldSelector=metadata.namespace%3Ddefault",
        "fieldSelector=data.k%3Dv",
        "fieldSelector=metadata.name",
        "limit=0",
        "limit=-1",
        "limit=x",
        "continue=wrong",
        "resourceVersion=0",
        "resourceVersion=x",
        "resourceVersionMatch=Exact",
        "resourceVersion=0&resourceVersionMatch=Exact",
        "resourceVersion=1&resourceVersionMatch=Odd",
        "resourceVersion=1&limit=1&continue=a",
    ):
        await send("GET", f"{MAPS}?{query}")
    page = await send("GET", f"{MAPS}?limit=2")
    await send("DELETE", f"{MAPS}/c")
    token = page["metadata"]["continue"]
    page = await send("GET", f"{MAPS}?limit=2&continue={token}")
    await send("GET", f"{MAPS}?continue={page['metadata'].get('continue', '')}")
    await send("GET", "/api/v1/configmaps?fieldSelector=metadata.namespace%3Ddefault")
    await send("GET", f"{MAPS}/a?resourceVersion=0")
    await send("DELETE", f"{MAPS}?labelSelector=tier%3Dx")
    await send("GET", f"{MAPS}?labelSelector=tier")


@CONVERSATIONS.register
async def deletes(send: RecordedConversation) -> None:
    created = await send("POST", MAPS, config_map("a"))
    a = f"{MAPS}/a"
    await send("DELETE", a, {"preconditions": {"uid": "other"}})
    await send("DELETE", a, {"preconditions": {"resourceVersion": "1"}})
    await send("DELETE", f"{a}?dryRun=All")
    await send("DELETE", a, {"propagationPolicy": "Odd"})
    await send("DELETE", a, {"propagationPolicy": "Orphan", "orphanDependents": True})
    await send("DELETE", a, {"gracePeriodSeconds": -1})
    await send("DELETE", a, {"kind": "Pod", "apiVersion": "v1"})
    await send("DELETE", a, b"{bad")
    await send("PATCH", a, {"metadata": {"finalizers": ["ex.io/f"]}}, MERGE)
    await send("DELETE", a, {"preconditions": {"uid": created["metadata"]["uid"]}})
    await send("DELETE", a)
    await send("PATCH", a, {"data": {"still": "here"}}, MERGE)
    await send("PATCH", a, {"metadata": {"finalizers": ["ex.io/f", "ex.io/g"]}}, MERGE)
    await send("PATCH", a, {"metadata": {"finalizers": []}}, MERGE)
    await send("GET", a)
    await send("POST", MAPS, config_map("b"))
    await send("DELETE", f"{MAPS}/b?propagationPolicy=Foreground")
    await send("POST", MAPS, config_map("c"))
    await send("DELETE", f"{MAPS}/c?gracePeriodSeconds=5")


@CONVERSATIONS.register
async def deletion_of_pods(send: RecordedConversation) -> None:
    for name in ("waits", "runs", "over"):
        await send("POST", PODS, plain(name))
    await send("DELETE", f"{PODS}/waits")
    for name in ("runs", "over"):
        binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "n"}}
        await send("POST", f"{PODS}/{name}/binding", binding)
    await send("PATCH", f"{PODS}/over/status", {"status": {"phase": "Failed"}}, MERGE)
    await send("DELETE", f"{PODS}/over")
    runs = f"{PODS}/runs"
    await send("DELETE", f"{runs}?gracePeriodSeconds=-5")
    await send("DELETE", f"{runs}?gracePeriodSeconds=x")
    await send("DELETE", f"{runs}?gracePeriodSeconds=60")
    await send("DELETE", f"{runs}?gracePeriodSeconds=90")
    await send("DELETE", f"{runs}?gracePeriodSeconds=5")
    await send("DELETE", runs)
    await send("PATCH", runs, {"metadata": {"labels": {"a": "b"}}}, MERGE)
    await send("DELETE", f"{runs}?gracePeriodSeconds=0")
    await send("GET", runs)


@CONVERSATIONS.register
async def bindings_and_evictions(send: RecordedConversation) -> None:
    created = await send("POST", PODS, plain())
    path = f"{PODS}/p/binding"
    target = {"kind": "Node", "name": "n"}
    await send("POST", path, {"target": target})
    await send("POST", path, {"metadata": {"name": "q"}, "target": target})
    await send("POST", path, {"metadata": {"name": "p"}, "target": {"name": ""}})
    await send("POST", path, {"metadata": {"name": "p"}, "target": {**target, "kind": "Pod"}})
    await send("POST", path, {"metadata": {"name": "p", "uid": "other"}, "target": target})
    marked = {"name": "p", "uid": created["metadata"]["uid"], "annotations": {"by": "me"}}
    await send("POST", path, {"metadata": marked, "target": target})
    await send("POST", path, {"metadata": {"name": "p"}, "target": target})
    await send("GET", f"{PODS}/p")
    await send("POST", f"{PODS}/none/binding", {"metadata": {"name": "none"}, "target": target})
    await send("POST", PODS, plain("free"))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "free"}}
    await send("POST", f"{PODS}/free/eviction?dryRun=All", eviction)
    await send("POST", f"{PODS}/free/eviction", {**eviction, "metadata": {"name": "x"}})
    await send("POST", f"{PODS}/free/eviction", eviction)
    await send("GET", f"{PODS}/free")
    await send("POST", f"{PODS}/none/eviction", {**eviction, "metadata": {"name": "none"}})
    gated = plain("gated", schedulingGates=[{"name": "ex.io/g"}])
    await send("POST", PODS, gated)
    await send("POST", f"{PODS}/gated/binding", {"metadata": {"name": "gated"}, "target": target})


_NUMBER_TOLERATIONS: tuple[Json, ...] = (
    *({"key": "a", "operator": "Gt", "value": value} for value in (
        "5", "-5", "0", "x", "05", "+5", "-0", "-05", "5.5", "", "9223372036854775807",
        "9223372036854775808", "-9223372036854775808",
    )),
    {"operator": "Lt", "value": "5"}, {"key": "a", "operator": "Lt"},
    {"key": "a", "operator": "Lt", "value": "5", "effect": "Odd"},
)  # fmt: skip


@CONVERSATIONS.register
async def invalid_pods(send: RecordedConversation) -> None:
    specs: tuple[Json, ...] = (
        {"restartPolicy": "Sometimes"}, {"containers": []}, {"containers": [{"name": "a"}]},
        {"containers": [{"image": "a"}]}, {"nodeSelector": {"a b": "c"}},
        {"terminationGracePeriodSeconds": -1}, {"activeDeadlineSeconds": 0},
        {"volumes": [{"name": "v", "image": {"reference": "a"}}]},
        {"volumes": [{"name": "v", "image": {"reference": "a:1"}}]},
        {"volumes": [{"name": "v"}]}, {"volumes": [{"name": "v", "emptyDir": {}}] * 2},
        {"priority": 5}, {"priorityClassName": "none"}, {"hostname": "A"}, {"dnsPolicy": "Odd"},
        {"preemptionPolicy": "Never"}, {"preemptionPolicy": "PreemptLowerPriority"},
        {"schedulerName": ""}, {"tolerations": [{"operator": "Odd"}]},
        *({"tolerations": [each]} for each in _NUMBER_TOLERATIONS),
        {"serviceAccountName": "none"}, {"runtimeClassName": "none"},
        {"initContainers": [{"name": "main", "image": "a"}]},
        {"imagePullSecrets": [{"name": ""}]}, {"overhead": {"cpu": "1"}},
    )  # fmt: skip
    for number, spec in enumerate(specs):
        await send("POST", PODS, plain(f"m{number}", **spec))
    container_fields: tuple[Json, ...] = (
        {"resources": {"requests": {"cpu": "x"}}},
        {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}},
        {"resources": {"requests": {"cpu": "-1"}}},
        {"resources": {"requests": {"odd": "1"}}},
        {"resources": {"requests": {"ex.io/gpu": "1"}}},
        {"ports": [{"containerPort": 0}]},
        {"ports": [{"containerPort": 70000}]},
        {"env": [{"name": ""}]},
        {"env": [{"name": "A", "value": "b", "valueFrom": {}}]},
        {"volumeMounts": [{"name": "none", "mountPath": "/a"}]},
        {"imagePullPolicy": "Odd"},
        {"livenessProbe": {}},
        {"livenessProbe": {"exec": {"command": []}}},
    )
    for difference in container_fields:
        container = {"name": "main", "image": "busybox:1", **difference}
        await send("POST", PODS, plain("m", containers=[container]))


@CONVERSATIONS.register
async def custom_objects(send: RecordedConversation) -> None:
    queues = "/apis/scheduling.volcano.sh/v1beta1/queues"
    kind = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"}
    created = await send("POST", queues, {**kind, "metadata": {"name": "q"}, "spec": {"weight": 1}})
    q = f"{queues}/q"
    await send("PATCH", f"{q}/status", {"status": {"state": "Open"}, "spec": {"weight": 2}}, MERGE)
    await send("PATCH", q, {"status": {"state": "Closed"}, "spec": {"weight": 3}}, MERGE)
    await send("PUT", q, {**created, "spec": {"weight": 4}})
    await send("PUT", q, {**kind, "metadata": {"name": "q"}, "spec": {"weight": 4}})
    await send("PUT", f"{q}/status", {**kind, "metadata": {"name": "q"}, "status": {"running": 1}})
    await send("POST", queues, {**kind, "metadata": {"name": "r"}, "spec": {"weight": "x"}})
    await send("POST", queues, {**kind, "metadata": {"name": "s"}, "spec": {"odd": 1}})
    await send(
        "POST",
        f"{queues}?fieldValidation=Strict",
        {**kind, "metadata": {"name": "t"}, "spec": {"odd": 1}},
    )
    await send("POST", queues, {"metadata": {"name": "u"}, "spec": {}})
    await send("PATCH", q, {"spec": {"weight": 5}}, STRATEGIC)
    await send("PATCH", q, {"spec": {"weight": "x"}}, MERGE)
    await send("PATCH", q, [{"op": "add", "path": "/spec/odd", "value": 1}], JSON_PATCH)
    await send("GET", f"{queues}?labelSelector=a")
    await send("GET", f"{queues}?fieldSelector=metadata.name%3Dq")
    await send("GET", f"{queues}?fieldSelector=spec.weight%3D1")
    await send("GET", f"{q}/none")
    await send("DELETE", q)
    groups = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups"
    group = {**kind, "kind": "PodGroup", "metadata": {"name": "g"}, "spec": {"minMember": 1}}
    await send("POST", groups, group)
    await send("PATCH", f"{groups}/g", {"status": {"phase": "Inqueue"}}, MERGE)
    await send("PATCH", f"{groups}/g/status", {"status": {"phase": "Running"}}, MERGE)
    await send("POST", groups, {**group, "metadata": {"name": "g", "namespace": "other"}})
    await send("DELETE", f"{groups}/g?propagationPolicy=Background")
    await send("GET", "/apis/scheduling.volcano.sh/v1beta1")


@CONVERSATIONS.register
async def watches(send: RecordedConversation) -> None:
    first = await send("POST", MAPS, config_map("a", tier="x"))
    version = first["metadata"]["resourceVersion"]
    await send("POST", MAPS, config_map("b"))
    await send("PATCH", f"{MAPS}/b", {"metadata": {"labels": {"tier": "x"}}}, MERGE)
    await send("PATCH", f"{MAPS}/a", {"metadata": {"labels": {"tier": "y"}}}, MERGE)
    await send("DELETE", f"{MAPS}/b")
    since = f"watch=1&resourceVersion={version}"
    initial = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
    queries = (
        since,
        f"{since}&labelSelector=tier%3Dx",
        f"{since}&fieldSelector=metadata.name%3Db",
        f"{initial}&allowWatchBookmarks=true",
        initial,
        "watch=1&limit=1",
    )
    last = {"metadata": {"name": "b", "labels": {"tier": "x"}}, "data": {"is": "last"}}
    await send.record_watches(
        [f"{MAPS}?{query}" for query in queries], lambda: send("POST", MAPS, last)
    )
    for query in (
        "sendInitialEvents=true&timeoutSeconds=1",
        "resourceVersion=x&timeoutSeconds=1",
        "timeoutSeconds=x",
        "labelSelector=a%3Dnone&timeoutSeconds=1",
        "resourceVersionMatch=Exact&resourceVersion=1&timeoutSeconds=1",
    ):
        await send("GET", f"{MAPS}?watch=1&{query}")
    await send("GET", f"{MAPS}/a?watch=1&timeoutSeconds=1")


@CONVERSATIONS.register
async def other_kinds(send: RecordedConversation) -> None:
    spaces = "/api/v1/namespaces"
    await send("POST", spaces, {"metadata": {"name": "mine", "labels": {"a": "b"}}})
    await send("POST", spaces, {"metadata": {"name": "mi.ne"}})
    await send("DELETE", f"{spaces}/default")
    secrets = "/api/v1/namespaces/default/secrets"
    await send("POST", secrets, {"metadata": {"name": "s"}, "stringData": {"a": "b"}})
    await send("POST", secrets, {"metadata": {"name": "t"}, "data": {"a": "no base64!"}})
    await send("PATCH", f"{secrets}/s", {"type": "other"}, MERGE)
    await send("PATCH", f"{secrets}/s", {"immutable": True}, MERGE)
    await send("PATCH", f"{secrets}/s", {"data": {"a": ""}}, MERGE)
    services = "/api/v1/namespaces/default/services"
    headless = {"clusterIP": "None", "selector": {"a": "b"}}
    await send("POST", services, {"metadata": {"name": "h"}, "spec": headless})
    await send("POST", services, {"metadata": {"name": "p"}, "spec": {"ports": []}})
    await send(
        "POST", services, {"metadata": {"name": "p"}, "spec": {**headless, "ports": [{"port": 0}]}}
    )
    await send("POST", services, {"metadata": {"name": "P"}, "spec": headless})
    await send("PATCH", f"{services}/h", {"spec": {"clusterIP": "10.96.0.99"}}, MERGE)
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    await send("POST", classes, {"metadata": {"name": "high"}, "value": 1000})
    await send("POST", classes, {"metadata": {"name": "too-high"}, "value": 2_000_000_000})
    await send("POST", classes, {"metadata": {"name": "system-mine"}, "value": 1})
    await send("PATCH", f"{classes}/high", {"value": 5}, MERGE)
    await send.wait_status(
        201, "POST", f"{PODS}?dryRun=All", plain("high", priorityClassName="high")
    )
    await send("POST", PODS, plain("high", priorityClassName="high"))
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    await send("POST", leases, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}})
    await send("POST", leases, {"metadata": {"name": "m"}, "spec": {"leaseDurationSeconds": 0}})
    await send("PATCH", f"{leases}/l", {"spec": {"renewTime": "yesterday"}}, MERGE)
    nodes = "/api/v1/nodes"
    await send("POST", nodes, {"metadata": {"name": "n"}})
    await send("PATCH", f"{nodes}/n", {"spec": {"taints": None}}, MERGE)
    await send("PATCH", f"{nodes}/n", {"spec": {"taints": [{"key": "a", "effect": "Odd"}]}}, MERGE)
    await send("PATCH", f"{nodes}/n/status", {"status": {"capacity": {"cpu": "4"}}}, MERGE)
    events = "/apis/events.k8s.io/v1/namespaces/default/events"
    event = {
        "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "note": "it happened",
        "reportingController": "ex.io/c",
        "reportingInstance": "c-1",
        "action": "Bind",
        "reason": "Bound",
        "type": "Normal",
        "eventTime": "2026-01-02T03:04:05.000006Z",
    }
    await send("POST", events, event)
    await send("PATCH", f"{events}/e", {"note": "again"}, MERGE)
    core = "/api/v1/namespaces/default/events"
    await send("PATCH", f"{core}/e", {"message": "again", "count": 2}, MERGE)
    for selector in ("source=ex.io/c", "source=other", "reportingComponent=ex.io/c"):
        await send("GET", f"{core}?fieldSelector={selector}")
    for missing in ("reportingController", "action", "reason", "eventTime", "type"):
        await send("POST", events, {key: value for key, value in event.items() if key != missing})
    claims = "/api/v1/namespaces/default/persistentvolumeclaims"
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await send("POST", claims, {"metadata": {"name": "c"}, "spec": claim})
    await send("POST", claims, {"metadata": {"name": "d"}, "spec": {"accessModes": ["Odd"]}})
    await send("PATCH", f"{claims}/c", {"spec": {"accessModes": ["ReadOnlyMany"]}}, MERGE)


@CONVERSATIONS.register
async def ip_addresses_and_service_cidrs(send: RecordedConversation) -> None:
    addresses, service_cidrs = IP_ADDRESSES.path(), SERVICE_CIDRS.path()
    parent = {"group": "ex.io", "resource": "r", "namespace": "ns", "name": "n"}
    for name in ("192.0.2.1", "fe80::1", "192.0.2.01", "FE80::2", "::ffff:1.2.3.4", "a", "1.2.3"):
        await send("POST", addresses, {"metadata": {"name": name}, "spec": {"parentRef": parent}})
    wrong: Json
    for wrong in (
        {},
        {"parentRef": {}},
        {"parentRef": {**parent, "group": "Ex"}},
        {"parentRef": {**parent, "resource": "a/b", "name": "..", "namespace": "%"}},
    ):
        await send("POST", addresses, {"metadata": {"name": "192.0.2.9"}, "spec": wrong})
    await send("PATCH", f"{addresses}/fe80::1", {"metadata": {"labels": {"a": "b"}}}, MERGE)
    await send("PATCH", f"{addresses}/fe80::1", {"spec": {"parentRef": {"name": "o"}}}, MERGE)
    await send("DELETE", f"{addresses}/fe80::1")
    for ranges in (
        [],
        ["10.0.0.0/8", "fd00::/64", "11.0.0.0/8"],
        ["10.0.0.0/8", "11.0.0.0/8"],
        ["010.0.0.0/8"],
        ["10.0.0.0/08"],
        ["10.0.0.1/8", "x"],
        ["FD00::/64"],
        ["::ffff:1.2.3.0/120"],
        ["10.0.0.0"],
    ):
        await send("POST", service_cidrs, {"metadata": {"name": "r"}, "spec": {"cidrs": ranges}})
    await send("POST", service_cidrs, {"metadata": {"name": "R"}, "spec": {"cidrs": ["x"]}})
    for ranges in (["10.0.0.0/8"], ["10.0.0.0/8", "fd00::/64"], []):
        await send("PATCH", f"{service_cidrs}/kubernetes", {"spec": {"cidrs": ranges}}, MERGE)


test_both_servers_return_the_same = CONVERSATIONS.test()
