"""As test_conformance.py: contents of objects that are refused, warned of or completed."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.api_servers import RealServerFactory
from support.conversations import Conversations, RecordedConversation
from support.embedded_apiserver import MERGE, Server, embedded_server
from support.field_ownership import APPLY

from batholith.local.apiserver.http import yaml_process
from batholith.machinery.x509 import create_ca
from batholith.model.names import (
    CONFIGMAPS,
    CRDS,
    NETWORKPOLICIES,
    NODES,
    PERSISTENTVOLUMES,
    PODS,
    SECRETS,
    SERVICES,
    STORAGECLASSES,
)

Json = dict[str, Any]

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
CLUSTER_ROLES, ROLES = f"{_RBAC}/clusterroles", f"{_RBAC}/namespaces/default/roles"
INGRESSES = "/apis/networking.k8s.io/v1/namespaces/default/ingresses"
VOLUMES = PERSISTENTVOLUMES.path()
CONVERSATIONS = Conversations({})


@CONVERSATIONS.register
async def nulls_in_lists(send: RecordedConversation) -> None:
    """A null in a list is an empty value."""
    container: Json = {"name": "c", "image": "i"}
    specs: tuple[Json, ...] = (
        {"containers": [{**container, "command": ["a", None]}]},
        {"containers": [{**container, "env": [None]}]},
        {"containers": [container, None]},
        {"containers": [container], "tolerations": [None]},
        {"containers": [container], "securityContext": {"supplementalGroups": [None, 5]}},
    )
    for spec in specs:
        body = {"metadata": {"name": "p"}, "spec": {**spec, "automountServiceAccountToken": False}}
        await send("POST", f"{PODS.path('default')}?dryRun=All", body)
    values: tuple[Any, ...] = (
        {"finalizers": [None]},
        {"ownerReferences": [None]},
        [],
        "x",
        {"name": 5},
    )
    for metadata in values:
        named = {"name": "p"} | metadata if isinstance(metadata, dict) else metadata
        await send("POST", f"{CONFIGMAPS.path('default')}?dryRun=All", {"metadata": named})
    rules: Json = {"apiGroups": [None], "resources": ["a"], "verbs": ["get", None]}
    await send("POST", f"{CLUSTER_ROLES}?dryRun=All", _named(rules=[rules]))
    await send("POST", f"{CLUSTER_ROLES}?dryRun=All", _named(rules=[None]))


def _named(annotations: Json | None = None, **fields: Any) -> Json:
    return {"metadata": {"name": "n", "annotations": annotations or {}}, **fields}


@CONVERSATIONS.register
async def rules_of_roles(send: RecordedConversation) -> None:
    rules: tuple[Json, ...] = (
        {},
        {"verbs": ["get"]},
        {"verbs": ["get"], "apiGroups": [""], "resources": ["x"]},
        {"verbs": ["get"], "nonResourceURLs": ["/a"]},
        {"verbs": ["get"], "nonResourceURLs": ["/a"], "resources": ["x"]},
    )
    for rule in rules:
        for path in (ROLES, CLUSTER_ROLES):
            await send("POST", f"{path}?dryRun=All", _named(rules=[rule]))
    lists: tuple[Any, ...] = (None, [], [{}])
    for selectors in lists:
        body = _named(aggregationRule={"clusterRoleSelectors": selectors})
        await send("POST", f"{CLUSTER_ROLES}?dryRun=All", body)


_PAIRS = [create_ca("n", now=datetime.now(UTC), validity=timedelta(days=1)) for _ in range(2)]


@CONVERSATIONS.register
async def contents_of_secrets(send: RecordedConversation) -> None:
    key, other_key = (each.key_pem.decode() for each in _PAIRS)
    certificate = _PAIRS[0].certificate_pem.decode()
    tls, basic = "kubernetes.io/tls", "kubernetes.io/basic-auth"
    json_of = {"kubernetes.io/dockercfg": ".dockercfg"}
    json_of["kubernetes.io/dockerconfigjson"] = ".dockerconfigjson"
    rows: list[tuple[str, Json]] = [
        (tls, {"tls.crt": certificate, "tls.key": key}),
        (tls, {"tls.crt": certificate, "tls.key": other_key}),
        (tls, {"tls.crt": certificate, "tls.key": certificate}),
        (tls, {"tls.crt": certificate, "tls.key": "x"}),
        (tls, {"tls.crt": key, "tls.key": key}),
        (tls, {"tls.crt": key + other_key, "tls.key": key}),
        (tls, {"tls.crt": "", "tls.key": ""}),
        (tls, {"tls.crt": certificate}),
        (basic, {}),
        (basic, {"username": ""}),
        ("kubernetes.io/ssh-auth", {}),
        ("kubernetes.io/ssh-auth", {"ssh-privatekey": ""}),
        *((kind, {key: text}) for kind, key in json_of.items() for text in ("x", "[]", "{}", "")),
        *((kind, {}) for kind in json_of),
    ]
    for kind, texts in rows:
        body = _named(type=kind, stringData=texts)
        await send("POST", f"{SECRETS.path('default')}?dryRun=All", body)


@CONVERSATIONS.register
async def deprecated_fields(send: RecordedConversation) -> None:
    options = {"volume.beta.kubernetes.io/mount-options": "x"}
    classed = {"volume.beta.kubernetes.io/storage-class": "x"}
    volume: Json = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    path: Json = {**volume, "hostPath": {"path": "/x"}}
    zone = {"key": "failure-domain.beta.kubernetes.io/zone", "values": ["a"]}
    topologies = [{"matchLabelExpressions": [zone]}]
    backend = {"defaultBackend": {"service": {"name": "a", "port": {"number": 80}}}}
    rows: tuple[tuple[str, Json], ...] = (
        (VOLUMES, _named(spec=path | {"persistentVolumeReclaimPolicy": "Recycle"})),
        (VOLUMES, _named(classed, spec=path)),
        (VOLUMES, _named(options, spec=path)),
        (VOLUMES, _named(options, spec=volume | {"nfs": {"server": "a", "path": "/b"}})),
        (VOLUMES, _named(spec=volume | {"cephfs": {"monitors": ["a"]}})),
        (VOLUMES, _named(spec=volume | {"storageos": {"volumeName": "x"}})),
        (STORAGECLASSES.path(), _named(provisioner="p", allowedTopologies=topologies)),
        (NODES.path(), _named(spec={"externalID": "x", "podCIDR": "10.0.0.0/24"})),
        (INGRESSES, _named({"kubernetes.io/ingress.class": "x"}, spec=backend)),
    )
    for where, body in rows:
        await send("POST", f"{where}?dryRun=All", body)
    services: tuple[Json, ...] = (
        _named({"service.kubernetes.io/topology-aware-hints": "auto"}, spec={}),
        _named(spec={"trafficDistribution": "PreferClose"}),
        _named(spec={"externalIPs": ["10.0.0.1"], "sessionAffinity": "ClientIP"}),
        _named(spec={"loadBalancerIP": "10.0.0.1"}),
    )
    for service in services:
        service["spec"]["ports"] = [{"port": 80}]
        service["spec"]["clusterIP"] = "None"
        await send("POST", f"{SERVICES.path('default')}?dryRun=All", service)


@CONVERSATIONS.register
async def ranges_of_network_policies(send: RecordedConversation) -> None:
    blocks: tuple[Json, ...] = (
        {"cidr": "10.0.0.1/8"},
        {"cidr": "10.0.0.0/8", "except": ["10.1.0.1/16"]},
        {"cidr": "fd00::1/64"},
    )
    for block in blocks:
        spec = {"podSelector": {}, "ingress": [{"from": [{"ipBlock": block}]}]}
        await send("POST", f"{NETWORKPOLICIES.path('default')}?dryRun=All", _named(spec=spec))


@CONVERSATIONS.register
async def formats_in_schemas(send: RecordedConversation) -> None:
    names = (
        "bsonobjectid", "uri", "uuid3", "uuid-4", "isbn", "creditcard", "ssn", "hexcolor",
        "rgbcolor", "password", "date-time", "k8s-short-name", "k8s-long-name", "int32", "double",
        "int-or-string", "quantity", "UUID",
    )  # fmt: skip
    either = {"x-kubernetes-int-or-string": True, "format": "int-or-string"}
    for name in names:
        for kind in ("string", "integer", "number", "boolean"):
            await send("POST", f"{CRDS.path()}?dryRun=All", _formatted({"type": kind}, name))
    nested = {"type": "string", "not": {"format": "x"}, "anyOf": [{"format": "y"}]}
    for schema in (either, nested, {"type": "array", "items": {"type": "string", "format": "z"}}):
        await send("POST", f"{CRDS.path()}?dryRun=All", _formatted(schema, ""))


def _formatted(schema: Json, name: str) -> Json:
    given = schema | ({"format": name} if name else {})
    properties = {"a": given}
    version = {"name": "v1", "served": True, "storage": True}
    version["schema"] = {"openAPIV3Schema": {"type": "object", "properties": properties}}
    names = {"plural": "as", "singular": "a", "kind": "A", "listKind": "AList"}
    spec = {"group": "a.b", "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": "as.a.b"}, "spec": spec}


@CONVERSATIONS.register
async def values_of_formats(send: RecordedConversation) -> None:
    texts = {
        "bsonobjectid": ("507f1f77bcf86cd799439011", "507f1f77bcf86cd79943901"),
        "uuid3": ("6ba7b810-9dad-31d1-80b4-00c04fd430c8", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
        "uuid4": ("6ba7b810-9dad-41d1-80b4-00c04fd430c8", "6ba7b810-9dad-41d1-00b4-00c04fd430c8"),
        "uuid5": ("6ba7b810-9dad-51d1-80b4-00c04fd430c8", "6ba7b810-9dad-51d1-00b4-00c04fd430c8"),
        "isbn": ("3401013319", "978-4-87311-368-5", "3401013318", "9784873113684"),
        "isbn10": ("3-401-01331-9", "9784873113685", "080442957X"),
        "isbn13": ("9784873113685", "3401013319"),
        "creditcard": ("4111-1111-1111-1111", "4111111111111112", "1234"),
        "ssn": ("111-22-3333", "111223333", "11-22-3333"),
        "hexcolor": ("#fff", "ABCDEF", "#ffff"),
        "rgbcolor": ("rgb(0, 12,255)", "rgb(0,0,256)", "rgb(0,0)"),
        "k8s-short-name": ("a-b", "a.b", "A"),
        "k8s-long-name": ("a.b", "a_b"),
        "date-time": ("2026-01-01T00:00:00Z", "x"),
        "password": ("", "x"),
    }
    properties = {
        f"f{index}": {"type": "string", "format": name} for index, name in enumerate(texts)
    }
    body = _formatted({"type": "object", "properties": properties}, "")
    await send("POST", CRDS.path(), body)
    path = "/apis/a.b/v1/namespaces/default/as"
    await send.wait_status(200, "GET", path)
    for index, values in enumerate(texts.values()):
        for text in values:
            head: Json = {"apiVersion": "a.b/v1", "kind": "A", "a": {f"f{index}": text}}
            await send("POST", f"{path}?dryRun=All", _named(**head))
    await send.server.request("DELETE", f"{CRDS.path()}/as.a.b")


@CONVERSATIONS.register
async def events_with_a_time(send: RecordedConversation) -> None:
    time, long = "2026-01-01T00:00:00.000000Z", "x" * 1025
    about = {"kind": "Pod", "name": "p", "namespace": "default"}
    details = {"reason": "R", "type": "Normal", "reportingInstance": "b", "action": "c"}
    core = {"involvedObject": about, "message": "m", "reportingComponent": "a/b", **details}
    new = {"regarding": about, "note": "m", "reportingController": "a/b", **details}
    changes: tuple[Json, ...] = (
        {}, {"eventTime": None}, {"reportingInstance": ""}, {"reportingInstance": long},
        {"action": ""}, {"action": long}, {"reason": ""}, {"reason": long}, {"series": {}},
        {"series": {"count": 2}}, {"series": {"count": 2, "lastObservedTime": time}},
        {"eventTime": "2026-01-01T00:00:00Z"}, {"eventTime": "2026-01-01T00:00:00.123Z"},
    )  # fmt: skip
    of_core = ({"reportingComponent": "a b"}, {"reportingComponent": ""}, {"message": long})
    of_new = (
        {"reportingController": "a b"}, {"reportingController": ""}, {"note": long},
        {"type": "X"}, {"deprecatedCount": 1}, {"deprecatedSource": {"component": "x"}},
        {"deprecatedFirstTimestamp": "2026-01-01T00:00:00Z"},
    )  # fmt: skip
    for path, body, own in (("/api/v1", core, of_core), ("/apis/events.k8s.io/v1", new, of_new)):
        for change in (*changes, *own):
            event = {**_named(), "eventTime": time, **body, **change}
            await send("POST", f"{path}/namespaces/default/events?dryRun=All", event)


@CONVERSATIONS.register
async def names_in_limit_ranges(send: RecordedConversation) -> None:
    path = "/api/v1/namespaces/default/limitranges?dryRun=All"
    for kind in ("X", "ex.io/x", "Pod", "Container", "PersistentVolumeClaim"):
        for name in ("foo", "ex.io/foo", "cpu", "pods", "storage", "hugepages-2Mi"):
            limit = {"type": kind, "max": {name: "1", "storage": "1"}}
            await send("POST", path, _named(spec={"limits": [limit]}))


@CONVERSATIONS.register
async def reviews(send: RecordedConversation) -> None:
    on_pods = {"verb": "list", "resource": "pods"}
    path = {"path": "/healthz", "verb": "get"}
    requirements = [{"key": "a", "operator": "In", "values": ["b"]}]
    selectors: tuple[Json, ...] = (
        {},
        {"rawSelector": "a=b"},
        {"requirements": requirements},
        {"rawSelector": "a=b", "requirements": requirements},
    )
    specs: list[Json] = [
        {"resourceAttributes": on_pods},
        {"nonResourceAttributes": path},
        {"resourceAttributes": on_pods, "nonResourceAttributes": path},
        *(
            {"resourceAttributes": {**on_pods, key: each}}
            for key in ("fieldSelector", "labelSelector")
            for each in selectors
        ),
    ]
    access = "/apis/authorization.k8s.io/v1"
    kinds = ("subjectaccessreviews", "namespaces/default/localsubjectaccessreviews")
    for kind in (*kinds, "selfsubjectaccessreviews"):
        for spec in specs:
            user = {} if kind.startswith("self") else {"user": "x"}
            await send("POST", f"{access}/{kind}", {"spec": spec | user})
        for metadata in ({"name": "x"}, {"labels": {"a": "b"}}, {"namespace": "default"}):
            attributes = {"resourceAttributes": {**on_pods, "namespace": "default"}}
            body = {"metadata": metadata, "spec": {**attributes, "user": "x"}}
            await send("POST", f"{access}/{kind}", body)
    await send("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {})


@CONVERSATIONS.register
async def token_requests(send: RecordedConversation) -> None:
    bodies: tuple[Json, ...] = (
        {"metadata": {"name": "other"}},
        {"metadata": {"namespace": "other"}},
        *(
            {"spec": {"boundObjectRef": {"kind": kind, "name": "x"} | version}}
            for kind in ("Pod", "Secret", "Node", "Foo")
            for version in ({}, {"apiVersion": "v1"}, {"apiVersion": "a.b/v1"})
        ),
    )
    path = "/api/v1/namespaces/default/serviceaccounts/default/token"
    for body in bodies:
        await send("POST", path, body)
    account = await send.server.get(path.removesuffix("/token"))
    issued = await send.server.request("POST", path, {})
    assert issued.body["metadata"]["uid"] == account["metadata"]["uid"]


@CONVERSATIONS.register
async def statuses_of_pods(send: RecordedConversation) -> None:
    path = PODS.path("default")
    spec = {"containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": False}
    for name, gates in (("plain", []), ("gated", [{"name": "g.x/y"}])):
        body = {"metadata": {"name": name}, "spec": spec | {"schedulingGates": gates}}
        await send("POST", path, body)
    for status in (
        {"podIP": "10.0.0.5"},
        {"podIPs": [{"ip": "10.0.0.6"}]},
        {"podIP": "10.0.0.7"},
        {"podIP": None, "podIPs": [{"ip": "10.0.0.8"}, {"ip": "fd00::8"}]},
        {"qosClass": "Guaranteed"},
        {"hostIPs": [{"ip": "x"}]},
        {"hostIP": "10.0.0.1", "hostIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
        {"hostIPs": [{"ip": "10.0.0.2"}]},
        {"observedGeneration": -1},
    ):
        await send("PATCH", f"{path}/plain/status", {"status": status}, MERGE)
    for name in ("plain", "gated"):
        change = {"spec": {"schedulingGates": [{"name": "g.x/y"}, {"name": "a.b/c"}]}}
        await send("PATCH", f"{path}/{name}?dryRun=All", change, MERGE)
        for metadata in ({}, {"name": "other"}, {"name": name}):
            await send("POST", f"{path}/{name}/eviction?dryRun=All", {"metadata": metadata})
        await send.server.request("DELETE", f"{path}/{name}", {"gracePeriodSeconds": 0})


_SCALARS = (
    "n", "Y", "yes", "No", "off", "true", "1:30", "190:20:30", "1_000", "0o17", "017", "08", "0x1f",
    "0b101", "1e3", "1.e3", "12e03", "1.0", ".5", ".inf", "-.INF", ".NaN", "~", "Null", "''",
    "2026-01-01", "2001-12-14t21:59:43.10-05:00", "1.2.3", "+1", "-0", "-", "=", "<<", "!!str 5",
    "!!int 5", "!!binary YQ==", "_1", "1_0", "x",
)  # fmt: skip


@CONVERSATIONS.register
async def scalars_of_yaml(send: RecordedConversation) -> None:
    head = "kind: ConfigMap\napiVersion: v1\nmetadata:\n  name: q\n"
    path = CONFIGMAPS.path("default")
    for scalar in _SCALARS:
        body = f"{head}  annotations:\n    a: {scalar}\n".encode()
        await send("POST", f"{path}?dryRun=All", body, "application/yaml")
        await send("PATCH", f"{path}/q?dryRun=All&fieldManager=m", body, APPLY)
    for key in ("y", "n", "1", "true", "null", "'y'"):
        body = f"{head}data:\n  {key}: x\n".encode()
        await send("POST", f"{path}?dryRun=All", body, "application/yaml")


@pytest.mark.parametrize("scalar", _SCALARS)
def test_a_text_in_yaml_of_the_server_is_read_as_a_text(scalar: str) -> None:
    document = msgspec.json.encode({scalar: [scalar]})
    assert yaml_process.to_json(yaml_process.from_json(document)) == document


@CONVERSATIONS.register
async def paths_that_do_not_exist(send: RecordedConversation) -> None:
    for method in ("GET", "POST", "PUT", "DELETE"):
        for path in ("/nope", "/apis/foo", "/openapi/v2x", "/logs", "/apis/foo/v1/bars"):
            await send(method, path)
        await send(method, "/apis/apps/v1/foos")
    for path in ("/healthz/ping", "/livez/ping", "/readyz/ping", "/healthz/nope"):
        await send("GET", path)


async def test_both_servers_list_groups_in_the_same_order(
    real: RealServerFactory, tmp_path: Path
) -> None:
    async def listed(server: Server) -> tuple[list[str], list[str]]:
        groups = [each["name"] for each in (await server.get("/apis"))["groups"]]
        return groups, (await server.get("/"))["paths"]

    async with real.start(tmp_path / "real") as one, embedded_server(tmp_path / "ours") as other:
        theirs, ours = await listed(one), await listed(other)
    last = "scheduling.k8s.io"  # so that kubectl takes PodGroups of Volcano
    common = [each for each in ours[0] if each in theirs[0] and each != last]
    assert common == [each for each in theirs[0] if each in common]
    assert "apps" in common
    assert ours[0][-1] == last
    only_here = ("/readyz/store", "/healthz/store", "/livez/store")
    missing = set(ours[1]) - set(theirs[1]) - set(only_here)
    assert {each for each in missing if "metrics.k8s.io" not in each} == set()
    assert {"/api", "/apis/apps/v1", "/healthz"} <= set(ours[1])


test_both_servers_return_the_same = CONVERSATIONS.test()
