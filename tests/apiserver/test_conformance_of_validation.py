"""As test_conformance.py: conversations of requests that are rejected, and what is stored."""

import base64
from pathlib import Path
from typing import Any

from support.api_servers import RealServerFactory
from support.conversations import Conversations, RecordedConversation
from support.embedded_apiserver import MERGE, RawResponse, Server, embedded_server
from support.polling import wait_until_true

from batholith.model import crds
from batholith.model.names import (
    API_SERVICES,
    CRDS,
    PERSISTENTVOLUMECLAIMS,
    PODS,
    SECRETS,
    STATEFULSETS,
)

Json = dict[str, Any]

CONVERSATIONS = Conversations({})

_SERVED_BY = {"namespace": "default", "name": "s"}


@CONVERSATIONS.register
async def api_services(send: RecordedConversation) -> None:
    priorities = {"groupPriorityMinimum": 1, "versionPriority": 1}
    specs: tuple[tuple[str, Json], ...] = (
        ("v1.a.b", {"group": "a.b", "version": "v2"}),
        ("v2.", {"version": "v2"}),
        ("V.A_b", {"group": "A_b", "version": "V"}),
        ("v1.a.b", {"groupPriorityMinimum": 0}),
        ("v1.a.b", {"groupPriorityMinimum": 20001}),
        ("v1.a.b", {"versionPriority": 1001}),
        ("v1.a.b", {"caBundle": "YWJj"}),
        ("v1.a.b", {"insecureSkipTLSVerify": True}),
        ("v1.a.b", {"service": {}}),
        ("v1.a.b", {"service": _SERVED_BY | {"port": 70000}}),
        (
            "v1.a.b",
            {"service": _SERVED_BY, "caBundle": "YWJj", "insecureSkipTLSVerify": True},
        ),
        ("v1.a.b", {"service": _SERVED_BY, "caBundle": "YWJj"}),
        ("v1.a.b", {}),
    )
    path = f"{API_SERVICES.path()}?dryRun=All"
    for name, spec in specs:
        named = {} if spec.keys() & {"group", "version"} else {"group": "a.b", "version": "v1"}
        body = {"metadata": {"name": name}, "spec": {**priorities, **named, **spec}}
        await send("POST", path, body)
    await send("POST", path, {"metadata": {"name": "v1.a.b"}})
    spec = {**priorities, "group": "a.b", "version": "v1"}
    await send("POST", path, {"metadata": {"name": "x", "generateName": "g-"}, "spec": spec})


_STORAGE = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
_INVALID_CLAIM_SPECS: tuple[Json, ...] = (
    {},
    _STORAGE | {"accessModes": ["Unknown"]},
    _STORAGE | {"accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]},
    _STORAGE | {"volumeMode": "Unknown"},
    _STORAGE | {"storageClassName": "A_"},
)


@CONVERSATIONS.register
async def stateful_set_volumes(send: RecordedConversation) -> None:
    claim = {"metadata": {"name": "data"}, "spec": _STORAGE}
    data, unknown = ({"name": name, "mountPath": "/d"} for name in ("data", "unknown"))
    device = {"name": "data", "devicePath": "/dev/d"}
    directory = {"name": "data", "emptyDir": {}}
    invalid = {"name": "Data_", "emptyDir": {}}
    rows: tuple[tuple[Json, list[Json], list[Json]], ...] = (
        ({"volumeMounts": [data]}, [], [claim]),
        ({"volumeMounts": [data]}, [directory], [claim]),
        ({"volumeMounts": [data, unknown]}, [], [claim]),
        ({"volumeMounts": [data]}, [], []),
        ({"volumeDevices": [device]}, [], [claim]),
        ({"volumeDevices": [device]}, [directory], [claim]),
        ({"volumeDevices": [device]}, [directory], []),
        ({"volumeDevices": [{}]}, [], [claim]),
        ({"volumeDevices": [device, device]}, [], [claim]),
        ({"volumeDevices": [{**device, "devicePath": "../d"}]}, [], [claim]),
        ({"volumeMounts": [data], "volumeDevices": [device]}, [], [claim]),
        ({"volumeMounts": [data], "volumeDevices": [{**device, "devicePath": "/d"}]}, [], [claim]),
        ({}, [invalid], [claim]),
        ({}, [directory, invalid], [claim]),
        ({}, [], [claim, claim]),
        ({}, [], [{**claim, "metadata": {"name": "Data_"}}]),
        ({}, [], [{"spec": _STORAGE}]),
        *(({}, [], [{**claim, "spec": spec}]) for spec in _INVALID_CLAIM_SPECS),
    )
    path = f"{STATEFULSETS.path('default')}?dryRun=All"
    labels = {"app": "db"}
    for fields, volumes, claims in rows:
        container = {"name": "c", "image": "i", **fields}
        pod_spec = {"containers": [container], "volumes": volumes}
        template = {"metadata": {"labels": labels}, "spec": pod_spec}
        spec = {"selector": {"matchLabels": labels}, "serviceName": "db", "template": template}
        body = {"metadata": {"name": "db"}, "spec": {**spec, "volumeClaimTemplates": claims}}
        await send("POST", path, body)


@CONVERSATIONS.register
async def invalid_claims(send: RecordedConversation) -> None:
    for spec in _INVALID_CLAIM_SPECS:
        body = {"metadata": {"name": "c"}, "spec": spec}
        await send("POST", f"{PERSISTENTVOLUMECLAIMS.path('default')}?dryRun=All", body)
        volume = {"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}
        pod_spec = {"containers": [{"name": "c", "image": "i"}], "volumes": [volume]}
        pod = {"metadata": {"name": "p"}, "spec": pod_spec}
        await send("POST", f"{PODS.path('default')}?dryRun=All", pod)


@CONVERSATIONS.register
async def secrets_in_lines(send: RecordedConversation) -> None:
    for text in ("YWJj\nZGVm\n", "YWJjZGVm\r\n", "\n", "YWI", "YWJj YWJj"):
        body = {"metadata": {"name": "s"}, "data": {"a": text}}
        await send("POST", f"{SECRETS.path('default')}?dryRun=All", body)


@CONVERSATIONS.register
async def schemas_of_int_or_string(send: RecordedConversation) -> None:
    either, free = "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"
    embedded = "x-kubernetes-embedded-resource"
    for node in (
        {"type": "string", "pattern": "^a$", either: True},
        {"type": "integer", either: True},
        {either: True, free: True},
        {either: True, embedded: True, free: True},
        {embedded: True, free: True},
        {embedded: True, free: True, "type": "string"},
    ):
        schema = {"type": "object", "properties": {"a": node}}
        version = {"name": "v1", "served": True, "storage": True}
        names = {"plural": "as", "singular": "a", "kind": "A", "listKind": "AList"}
        spec = {
            "group": "a.b",
            "scope": "Namespaced",
            "names": names,
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        }
        body = {"metadata": {"name": "as.a.b"}, "spec": spec}
        await send("POST", f"{CRDS.path()}?dryRun=All", body)


@CONVERSATIONS.register
async def pod_level_resources(send: RecordedConversation) -> None:
    rows: tuple[tuple[Json, tuple[Json, ...]], ...] = (
        ({"limits": {"cpu": "2"}}, ({"requests": {"cpu": "100m"}}, {"requests": {"cpu": "1"}})),
        ({"limits": {"cpu": "2", "memory": "1Gi"}}, ({"limits": {"cpu": "1"}},)),
        ({"requests": {"cpu": "1"}}, ({"limits": {"hugepages-2Mi": "4Mi", "cpu": "1"}},)),
        ({"requests": {"cpu": "1"}}, ({"requests": {"cpu": "600m"}}, {"requests": {"cpu": "1"}})),
        ({"limits": {"cpu": "1"}}, ({"limits": {"cpu": "2"}},)),
        ({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}, ({},)),
        ({"requests": {"cpu": "1"}}, ({},)),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, ({"requests": {"cpu": "100m"}},)),
        ({"requests": {"ephemeral-storage": "1Gi"}}, ({},)),
        ({"limits": {"ex.io/gpu": "1"}}, ({},)),
        ({"limits": {"foo": "1"}}, ({},)),
        ({"limits": {"cpu": "-1"}}, ({},)),
        ({"limits": {"hugepages-2Mi": "3Mi", "cpu": "1"}}, ({},)),
        ({"limits": {"hugepages-2Mi": "2Mi"}}, ({},)),
        ({"requests": {"hugepages-2Mi": "2Mi", "cpu": "1"}}, ({},)),
        (
            {"limits": {"hugepages-2Mi": "2Mi", "cpu": "1"}},
            ({"limits": {"hugepages-2Mi": "4Mi", "cpu": "1"}},),
        ),
        ({"claims": [{"name": "a"}]}, ({},)),
        ({}, ({},)),
    )
    path = "/api/v1/namespaces/default/pods?dryRun=All"
    for resources, containers in rows:
        listed = [
            {"name": f"c{index}", "image": "i", "resources": each}
            for index, each in enumerate(containers)
        ]
        spec = {"containers": listed, "resources": resources, "automountServiceAccountToken": False}
        await send("POST", path, {"metadata": {"name": "p"}, "spec": spec})


_BINDINGS = ("clusterrolebindings", "namespaces/default/rolebindings")
_RBAC = "/apis/rbac.authorization.k8s.io/v1"


@CONVERSATIONS.register
async def grpc_probes(send: RecordedConversation) -> None:
    path = "/api/v1/namespaces/default/pods?dryRun=All"
    for service in ({}, {"service": None}, {"service": ""}, {"service": "s"}):
        probe = {"grpc": {"port": 5000, **service}}
        container = {"name": "c", "image": "i", "livenessProbe": probe, "readinessProbe": probe}
        spec = {"containers": [container], "automountServiceAccountToken": False}
        await send("POST", path, {"metadata": {"name": "p"}, "spec": spec})


@CONVERSATIONS.register
async def role_references(send: RecordedConversation) -> None:
    for group, kind, name in (
        ("rbac.authorization.k8s.io", "Role", "view"),
        ("rbac.authorization.k8s.io", "ClusterRole", "view"),
        ("rbac.authorization.k8s.io", "User", "view"),
        ("rbac.authorization.k8s.io", "", "view"),
        ("apps", "ClusterRole", "view"),
        ("rbac.authorization.k8s.io", "ClusterRole", "a/b"),
    ):
        body = {
            "metadata": {"name": "b"},
            "roleRef": {"apiGroup": group, "kind": kind, "name": name},
            "subjects": list[Json](),
        }
        for path in _BINDINGS:
            await send("POST", f"{_RBAC}/{path}?dryRun=All", body)
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    for subject in (
        {"kind": "User", "name": "jane"},
        {"kind": "User", "name": ""},
        {"kind": "User", "name": "jane", "apiGroup": "apps"},
        {"kind": "Other", "name": "jane"},
        {"kind": "ServiceAccount", "name": "A_b", "namespace": "default"},
        {"kind": "ServiceAccount", "name": "a"},
        {"kind": "ServiceAccount", "name": "a", "namespace": "default", "apiGroup": "apps"},
    ):
        for path in _BINDINGS:
            body = {"metadata": {"name": "b"}, "roleRef": role, "subjects": [subject]}
            await send("POST", f"{_RBAC}/{path}?dryRun=All", body)


@CONVERSATIONS.register
async def volume_attachments(send: RecordedConversation) -> None:
    path = "/apis/storage.k8s.io/v1/volumeattachments"
    source = {"persistentVolumeName": "v"}
    valid = {"attacher": "ex.io", "nodeName": "n", "source": source}
    changes: tuple[Json, ...] = (
        {"attacher": ""},
        {"attacher": "A_b"},
        {"nodeName": ""},
        {"nodeName": "A_b"},
        {"source": {}},
        {"source": {"persistentVolumeName": ""}},
    )
    for change in changes:
        body = {"metadata": {"name": "a"}, "spec": {**valid, **change}}
        await send("POST", f"{path}?dryRun=All", body)
    await send("POST", path, {"metadata": {"name": "a"}, "spec": valid})
    await send("PATCH", f"{path}/a", {"spec": {"nodeName": "m"}}, MERGE)
    await send("DELETE", f"{path}/a")


@CONVERSATIONS.register
async def storage_capacities(send: RecordedConversation) -> None:
    path = "/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities"
    for fields in (
        {"storageClassName": ""},
        {"storageClassName": "A_b"},
        {"storageClassName": "c", "capacity": "-1"},
        {"storageClassName": "c", "maximumVolumeSize": "-1"},
        {"storageClassName": "c", "nodeTopology": {"matchLabels": {"a b": "c"}}},
    ):
        await send("POST", f"{path}?dryRun=All", {"metadata": {"name": "a"}, **fields})
    await send("POST", path, {"metadata": {"name": "a"}, "storageClassName": "c"})
    await send("PATCH", f"{path}/a", {"storageClassName": "d"}, MERGE)
    await send("PATCH", f"{path}/a", {"nodeTopology": {}}, MERGE)
    await send("PATCH", f"{path}/a", {"capacity": "1Gi"}, MERGE)
    await send("DELETE", f"{path}/a")


_NETWORKING = "/apis/networking.k8s.io/v1"


@CONVERSATIONS.register
async def ingress_classes(send: RecordedConversation) -> None:
    path = f"{_NETWORKING}/ingressclasses"
    parameters = {"apiGroup": "ex.io", "kind": "P", "name": "p", "scope": "Cluster"}
    for spec in (
        {},
        {"controller": "plain"},
        {"controller": "ex.io/c" + "c" * 250},
        {"controller": "ex.io/c", "parameters": {**parameters, "apiGroup": "A_b"}},
        {"controller": "ex.io/c", "parameters": {**parameters, "kind": ""}},
        {"controller": "ex.io/c", "parameters": {**parameters, "kind": "a/b"}},
        {"controller": "ex.io/c", "parameters": {**parameters, "name": ""}},
        {"controller": "ex.io/c", "parameters": {**parameters, "name": "a/b"}},
        {"controller": "ex.io/c", "parameters": {**parameters, "namespace": "default"}},
        {"controller": "ex.io/c", "parameters": {**parameters, "scope": "Namespace"}},
        {"controller": "ex.io/c", "parameters": {**parameters, "scope": "Other"}},
        {
            "controller": "ex.io/c",
            "parameters": {**parameters, "scope": "Namespace", "namespace": "A_b"},
        },
    ):
        await send("POST", f"{path}?dryRun=All", {"metadata": {"name": "a"}, "spec": spec})
    await send("POST", path, {"metadata": {"name": "a"}, "spec": {"controller": "ex.io/c"}})
    await send("PATCH", f"{path}/a", {"spec": {"controller": "ex.io/d"}}, MERGE)
    await send("DELETE", f"{path}/a")


@CONVERSATIONS.register
async def ingresses(send: RecordedConversation) -> None:
    path = f"{_NETWORKING}/namespaces/default/ingresses?dryRun=All"
    backend = {"service": {"name": "s", "port": {"number": 80}}}
    route = {"path": "/", "pathType": "Prefix", "backend": backend}

    def routed(**change: Any) -> Json:
        return {"rules": [{"http": {"paths": [{**route, **change}]}}]}

    def served(service: Json) -> Json:
        return {"defaultBackend": {"service": service}}

    specs: tuple[Json, ...] = (
        {},
        {"defaultBackend": {}},
        {"defaultBackend": {**backend, "resource": {"kind": "K", "name": "n"}}},
        {"defaultBackend": {"resource": {"apiGroup": "ex.io", "kind": "", "name": ""}}},
        {"defaultBackend": {"resource": {"apiGroup": "A_b", "kind": "K", "name": "n"}}},
        served({"name": "", "port": {"number": 80}}),
        served({"name": "A_b", "port": {"number": 80}}),
        served({"name": "s"}),
        served({"name": "s", "port": {"number": 70000}}),
        served({"name": "s", "port": {"number": 80, "name": "a"}}),
        served({"name": "s", "port": {"name": "A_b"}}),
        {**served({"name": "s", "port": {"number": 80}}), "ingressClassName": "A_b"},
        routed(),
        routed(path="x"),
        routed(path="/a//b"),
        routed(path="/a/../b"),
        routed(path="/a%2Fb"),
        routed(path=""),
        routed(pathType="Exact", path=""),
        routed(pathType="ImplementationSpecific", path=""),
        routed(pathType="Other"),
        routed(pathType=None),
        routed(backend={}),
        {"rules": [{"http": {"paths": []}}]},
        {"rules": [{"host": "A_b"}]},
        {"rules": [{"host": "*.ex.io"}]},
        {"rules": [{"host": "*.*.ex.io"}]},
        {"rules": [{"host": "1.2.3.4"}]},
        {**routed(), "tls": [{"hosts": ["A_b"], "secretName": "a"}]},
        {**routed(), "tls": [{"hosts": ["*.ex.io"], "secretName": "A_b"}]},
        {**routed(), "tls": [{"hosts": ["*.ex.io"]}]},
    )
    for spec in specs:
        await send("POST", path, {"metadata": {"name": "a"}, "spec": spec})
    metadata = {"name": "a", "annotations": {"kubernetes.io/ingress.class": "c"}}
    await send("POST", path, {"metadata": metadata, "spec": {**routed(), "ingressClassName": "c"}})


@CONVERSATIONS.register
async def claim_templates(send: RecordedConversation) -> None:
    path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
    request = {"name": "r", "exactly": {"deviceClassName": "c"}}
    for template in (
        {"spec": {"devices": {"requests": [{**request, "name": "A_b"}]}}},
        {"metadata": {"labels": {"a b": "c"}}, "spec": {"devices": {"requests": [request]}}},
        {"metadata": {"annotations": {"a b": "c"}}, "spec": {"devices": {"requests": [request]}}},
        {"metadata": {"name": "x"}, "spec": {"devices": {"requests": [request]}}},
        {"metadata": {"finalizers": ["a.b/c"]}, "spec": {"devices": {"requests": [request]}}},
        {},
    ):
        await send("POST", f"{path}?dryRun=All", {"metadata": {"name": "a"}, "spec": template})
    spec = {"spec": {"devices": {"requests": [request]}}}
    await send("POST", path, {"metadata": {"name": "a"}, "spec": spec})
    await send("PATCH", f"{path}/a", {"spec": {"metadata": {"labels": {"a": "b"}}}}, MERGE)
    await send("DELETE", f"{path}/a")


@CONVERSATIONS.register
async def bundles_of_conversions(send: RecordedConversation) -> None:
    path = CRDS.path()
    schema = {"openAPIV3Schema": {"type": "object"}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    names = {"plural": "hats", "singular": "hat", "kind": "Hat", "listKind": "HatList"}
    spec = {"group": "ca.io", "names": names, "scope": "Namespaced", "versions": [version]}

    async def record(name: str, method: str, path: str, body: Json) -> None:
        """Record the status alone: the bundles differ."""
        kind = MERGE if method == "PATCH" else "application/json"
        response = await send.server.request(method, path, body, content_type=kind)
        send.responses.append((name, RawResponse(response.status, {})))

    def conversion(bundle: bytes) -> Json:
        config = {"url": "https://a.b/c", "caBundle": base64.b64encode(bundle).decode()}
        webhook = {"conversionReviewVersions": ["v1"], "clientConfig": config}
        return {"conversion": {"strategy": "Webhook", "webhook": webhook}}

    async def record_established(reason: str) -> None:
        """Record the condition Established once it has a reason."""

        async def found() -> Json | None:
            status = (await send.server.get(f"{path}/hats.ca.io")).get("status") or {}
            for each in status.get("conditions") or ():
                if (each["type"], each["reason"]) == ("Established", reason):
                    return {"status": each["status"], "message": each["message"]}
            return None

        async def has_reason() -> bool:
            return await found() is not None

        await wait_until_true(has_reason)
        send.responses.append((reason, RawResponse(200, await found() or {})))

    body = {"metadata": {"name": "hats.ca.io"}, "spec": spec | conversion(b"invalid")}
    await record("creation with an invalid bundle", "POST", path, body)
    await record_established("InvalidCABundle")
    await record("an unset bundle", "PATCH", f"{path}/hats.ca.io", {"spec": {"conversion": None}})
    await record_established("InitialNamesAccepted")
    await send.wait_status(200, "GET", "/apis/ca.io/v1/hats")
    for name, bundle in (
        ("an invalid bundle", b"invalid"),
        ("an invalid certificate", b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"),
        ("a bundle", send.server.ca),
        ("an invalid bundle after a bundle", b"invalid"),
    ):
        await record(name, "PATCH", f"{path}/hats.ca.io", {"spec": conversion(bundle)})
    await send.server.request("DELETE", f"{path}/hats.ca.io")


@CONVERSATIONS.register
async def revisions_without_data(send: RecordedConversation) -> None:
    path = "/apis/apps/v1/namespaces/default/controllerrevisions?dryRun=All"
    values: tuple[Any, ...] = ("", "a", 1, [], {}, None)
    for data in values:
        await send("POST", path, {"metadata": {"name": "r"}, "revision": 1, "data": data})


async def test_both_servers_have_the_same_apis(real: RealServerFactory, tmp_path: Path) -> None:
    async def listed(server: Server) -> dict[str, Json]:
        found = (await server.get(API_SERVICES.path()))["items"]
        return {each["metadata"]["name"]: _without_times(each) for each in found}

    async with real.start(tmp_path) as one, embedded_server(tmp_path, crds=crds.load()) as other:
        theirs = await listed(one)

        async def has_all() -> bool:
            return not {each for each in theirs if "volcano" in each} - (await listed(other)).keys()

        await wait_until_true(has_all)
        ours = await listed(other)
    assert ours.keys() - theirs.keys() == {"v1beta1.metrics.k8s.io"}
    common = theirs.keys() & ours.keys()
    assert {name: ours[name] for name in common} == {name: theirs[name] for name in common}


def _without_times(obj: Json) -> Json:
    conditions = [
        {key: value for key, value in each.items() if key != "lastTransitionTime"}
        for each in obj["status"]["conditions"]
    ]
    return {"labels": obj["metadata"]["labels"], "spec": obj["spec"], "conditions": conditions}


test_both_servers_return_the_same = CONVERSATIONS.test()
