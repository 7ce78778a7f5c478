"""What the embedded server accepts has an effect, is plain data, or brings a warning.

The tables list every kind and subresource of discovery; those of fields are in
`test_fields_without_effect.py`. Something new fails here until it has a row, and once it is
enforced, its row must change.
"""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
import yaml
from support.embedded_apiserver import (
    DISCOVERY,
    MERGE,
    PODS,
    EmbeddedServer,
    definition,
    embedded_server,
    pod,
)
from support.enforcement_rows import (
    AGENT,
    SCHEDULER,
    SERVER,
    EnforcementRow,
    data,
    enforced,
    warned,
)
from support.kubectl import Kubectl, needs_kubectl
from support.samples import MINIMAL_FIELDS

from batholith.local.apiserver.builtin.unenforced import UNENFORCED_KINDS, warnings_on_write
from batholith.model import crds, names
from batholith.model.names import Resource
from batholith.model.service_network import PodNetwork

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]


_TEMPLATE: Json = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}
_WORKLOAD = {"selector": {"matchLabels": {"a": "b"}}, "template": _TEMPLATE}
_ONCE = {"spec": {**_TEMPLATE["spec"], "restartPolicy": "Never"}}
_AUTHORIZER = f"{SERVER}/authorization/authorizer.py"
_ROLE = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"}
_BINDING = {"roleRef": _ROLE}
_SOURCE = {"source": {"persistentVolumeName": "v"}, "attacher": "a", "nodeName": "n"}
_DEVICE = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}
_CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
_SCALED = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}
_BACKEND = {"service": {"name": "s", "port": {"number": 80}}}
_RULE = {"apiGroups": ["a.b"], "apiVersions": ["*"], "resources": ["c"], "operations": ["*"]}
_POLICY_SPEC = {
    "matchConstraints": {"resourceRules": [_RULE]}, "validations": [{"expression": "true"}],
}  # fmt: skip
ROWS: Mapping[str, EnforcementRow] = {
    "v1/bindings": enforced(f"{SERVER}/verbs/pod_subresources.py"),
    "v1/configmaps": enforced(f"{AGENT}/volumes/projected.py"),
    "v1/endpoints": enforced("local/workloads/endpoint_mirroring.py"),
    "v1/events": data(),
    "v1/limitranges": enforced(
        f"{SERVER}/admission/limit_ranges.py", {"spec": {"limits": [{"type": "Container"}]}}
    ),
    "v1/namespaces": enforced(f"{SERVER}/controllers/namespaces.py"),
    "v1/nodes": enforced(f"{SCHEDULER}/plugins/predicates.py"),
    "v1/persistentvolumeclaims": enforced(f"{SERVER}/controllers/volumes.py", {"spec": _CLAIM}),
    "v1/persistentvolumes": enforced(
        f"{SERVER}/controllers/volumes.py",
        {
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": "/x"},
            }
        },
    ),
    "v1/pods": enforced(f"{AGENT}/pods/pod_worker.py", pod("p")),
    "v1/podtemplates": data({"template": _TEMPLATE}),
    "v1/replicationcontrollers": enforced(
        "local/workloads/replica_sets.py",
        {"spec": {"selector": {"a": "b"}, "template": _TEMPLATE}},
    ),
    "v1/resourcequotas": enforced(
        f"{SERVER}/admission/quotas.py", {"spec": {"hard": {"cpu": "1"}}}
    ),
    "v1/secrets": enforced(f"{AGENT}/volumes/projected.py"),
    "v1/serviceaccounts": enforced(f"{SERVER}/service_accounts/admission.py"),
    "v1/services": enforced("local/proxy/service_proxy.py", {"spec": {"ports": [{"port": 80}]}}),
    "apps/v1/controllerrevisions": data({"revision": 1, "data": {}}),
    "apps/v1/daemonsets": enforced("local/workloads/daemon_sets.py", {"spec": _WORKLOAD}),
    "apps/v1/deployments": enforced("local/workloads/deployments.py", {"spec": _WORKLOAD}),
    "apps/v1/replicasets": enforced("local/workloads/replica_sets.py", {"spec": _WORKLOAD}),
    "apps/v1/statefulsets": enforced(
        "local/workloads/stateful_sets.py", {"spec": {**_WORKLOAD, "serviceName": "s"}}
    ),
    "events.k8s.io/v1/events": data(),
    "autoscaling/v2/horizontalpodautoscalers": enforced(
        "local/workloads/autoscalers.py", {"spec": {"scaleTargetRef": _SCALED, "maxReplicas": 2}}
    ),
    "autoscaling/v1/horizontalpodautoscalers": enforced(
        "local/workloads/autoscalers.py", {"spec": {"scaleTargetRef": _SCALED, "maxReplicas": 2}}
    ),
    "apiregistration.k8s.io/v1/apiservices": enforced(
        f"{SERVER}/aggregation/client.py",
        {"metadata": {"name": "v1.apis.ex.io"}, **MINIMAL_FIELDS["APIService"]},
    ),
    "metrics.k8s.io/v1beta1/nodes": data(reason="computed, and can only be read"),
    "metrics.k8s.io/v1beta1/pods": data(reason="computed, and can only be read"),
    "batch/v1/cronjobs": enforced(
        "cron_ctrl/kubernetes.py",
        {"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": _ONCE}}}},
    ),
    "batch/v1/jobs": enforced("batch_ctrl/controller.py", {"spec": {"template": _ONCE}}),
    "authentication.k8s.io/v1/selfsubjectreviews": enforced(f"{SERVER}/http/auth.py"),
    "authentication.k8s.io/v1/tokenreviews": enforced(f"{SERVER}/http/auth.py"),
    "authorization.k8s.io/v1/localsubjectaccessreviews": enforced(f"{SERVER}/http/auth.py"),
    "authorization.k8s.io/v1/selfsubjectaccessreviews": enforced(f"{SERVER}/http/auth.py"),
    "authorization.k8s.io/v1/selfsubjectrulesreviews": enforced(f"{SERVER}/http/auth.py"),
    "authorization.k8s.io/v1/subjectaccessreviews": enforced(f"{SERVER}/http/auth.py"),
    "certificates.k8s.io/v1/certificatesigningrequests": enforced(
        f"{SERVER}/controllers/certificates.py", MINIMAL_FIELDS["CertificateSigningRequest"]
    ),
    "rbac.authorization.k8s.io/v1/clusterrolebindings": enforced(_AUTHORIZER, _BINDING),
    "rbac.authorization.k8s.io/v1/clusterroles": enforced(_AUTHORIZER),
    "rbac.authorization.k8s.io/v1/rolebindings": enforced(_AUTHORIZER, _BINDING),
    "rbac.authorization.k8s.io/v1/roles": enforced(_AUTHORIZER),
    "networking.k8s.io/v1/ingressclasses": warned({"spec": {"controller": "a.b/c"}}),
    "networking.k8s.io/v1/ingresses": warned({"spec": {"defaultBackend": _BACKEND}}),
    "networking.k8s.io/v1/ipaddresses": enforced(
        f"{SERVER}/verbs/service_addresses.py",
        {
            "metadata": {"name": "192.0.2.1"},
            "spec": {"parentRef": {"group": "a.b", "resource": "c", "name": "d"}},
        },
    ),
    "networking.k8s.io/v1/networkpolicies": warned({"spec": {"podSelector": {}}}),
    "networking.k8s.io/v1/servicecidrs": enforced(f"{SERVER}/controllers/service_addresses.py"),
    "policy/v1/poddisruptionbudgets": enforced(
        f"{SERVER}/controllers/disruptions.py", {"spec": {"minAvailable": 1, "selector": {}}}
    ),
    "storage.k8s.io/v1/csidrivers": warned({"spec": {}}),
    "storage.k8s.io/v1/csinodes": warned({"spec": {"drivers": []}}),
    "storage.k8s.io/v1/csistoragecapacities": warned({"storageClassName": "s"}),
    "storage.k8s.io/v1/storageclasses": enforced(
        f"{SERVER}/controllers/volume_binding.py", {"provisioner": "p"}
    ),
    "storage.k8s.io/v1/volumeattachments": warned({"spec": _SOURCE}),
    "storage.k8s.io/v1/volumeattributesclasses": warned(
        {"driverName": "d", "parameters": {"a": "b"}}
    ),
    "admissionregistration.k8s.io/v1/mutatingadmissionpolicies": enforced(
        f"{SERVER}/admission/mutating_policies.py", MINIMAL_FIELDS["MutatingAdmissionPolicy"]
    ),
    "admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings": enforced(
        f"{SERVER}/admission/mutating_policies.py", {"spec": {"policyName": "p"}}
    ),
    "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations": enforced(
        f"{SERVER}/admission/webhooks.py", {"webhooks": []}
    ),
    "admissionregistration.k8s.io/v1/validatingadmissionpolicies": enforced(
        f"{SERVER}/admission/policies.py", {"spec": _POLICY_SPEC}
    ),
    "admissionregistration.k8s.io/v1/validatingadmissionpolicybindings": enforced(
        f"{SERVER}/admission/policies.py",
        {"spec": {"policyName": "p", "validationActions": ["Deny"]}},
    ),
    "admissionregistration.k8s.io/v1/validatingwebhookconfigurations": enforced(
        f"{SERVER}/admission/webhooks.py", {"webhooks": []}
    ),
    "apiextensions.k8s.io/v1/customresourcedefinitions": enforced(
        f"{SERVER}/controllers/crds.py", definition("bars", "Bar")
    ),
    "scheduling.k8s.io/v1/priorityclasses": enforced(
        f"{SCHEDULER}/plugins/priority.py", {"value": 1}
    ),
    "scheduling.k8s.io/v1alpha2/podgroups": enforced(
        f"{SCHEDULER}/state/gangs/native_gang.py", {"spec": {"schedulingPolicy": {"basic": {}}}}
    ),
    "scheduling.k8s.io/v1alpha2/workloads": data(
        {"spec": {"podGroupTemplates": [{"name": "t", "schedulingPolicy": {"basic": {}}}]}},
        "controllers create PodGroups of it; no scheduler reads it",
    ),
    "coordination.k8s.io/v1/leases": data({"spec": {}}),
    "flowcontrol.apiserver.k8s.io/v1/flowschemas": warned(
        {"spec": {"priorityLevelConfiguration": {"name": "p"}}}
    ),
    "flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations": warned(
        {"spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}}}
    ),
    "node.k8s.io/v1/runtimeclasses": enforced(
        "local/apiserver/admission/runtime_classes.py", {"handler": "h"}
    ),
    "discovery.k8s.io/v1/endpointslices": enforced(
        "local/proxy/backends.py", {"addressType": "IPv4", "endpoints": []}
    ),
    "resource.k8s.io/v1/deviceclasses": enforced(
        f"{SCHEDULER}/state/devices/allocator.py", {"spec": {}}
    ),
    "resource.k8s.io/v1beta2/devicetaintrules": enforced(
        "local/workloads/device_taints.py", {"spec": {"taint": {"key": "k", "effect": "None"}}}
    ),
    "resource.k8s.io/v1/resourceclaims": enforced(
        f"{SCHEDULER}/state/gangs/device_claims.py", {"spec": _DEVICE}
    ),
    "resource.k8s.io/v1/resourceclaimtemplates": enforced(
        "local/workloads/claim_rules.py", {"spec": {"spec": _DEVICE}}
    ),
    "resource.k8s.io/v1/resourceslices": enforced(
        f"{SCHEDULER}/state/devices/available_devices.py",
        {"spec": {"driver": "d", "nodeName": "n", "pool": {"name": "p", "resourceSliceCount": 1}}},
    ),
    "batch.volcano.sh/v1alpha1/cronjobs": enforced(
        "cron_ctrl/volcano.py",
        {"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {}}}},
    ),
    "batch.volcano.sh/v1alpha1/jobs": enforced("job_ctrl/pods.py"),
    "scheduling.volcano.sh/v1beta1/podgroups": enforced(
        f"{SCHEDULER}/state/gangs/gang.py", {"spec": {}}
    ),
    "scheduling.volcano.sh/v1beta1/queues": enforced(
        f"{SCHEDULER}/plugins/proportion.py", {"spec": {}}
    ),
    "flow.volcano.sh/v1alpha1/jobflows": enforced("flow_ctrl/controller.py", {"spec": {}}),
    "flow.volcano.sh/v1alpha1/jobtemplates": enforced("flow_ctrl/controller.py", {"spec": {}}),
    "topology.volcano.sh/v1alpha1/hypernodes": enforced(
        "scheduler/state/topology/domains.py",
        {
            "spec": {
                "tier": 1,
                "members": [{"type": "Node", "selector": {"exactMatch": {"name": "n"}}}],
            }
        },
    ),
    "bus.volcano.sh/v1alpha1/commands": enforced("job_ctrl/controller.py", {"action": "AbortJob"}),
}
"""Kinds served by a new cluster."""

_STATUS = {"get", "patch", "update"}
SUBRESOURCES: Mapping[str, set[str]] = {
    **{f"{path}/status": _STATUS for path in (
        "v1/namespaces", "v1/nodes", "v1/persistentvolumeclaims", "v1/persistentvolumes", "v1/pods",
        "v1/replicationcontrollers", "v1/resourcequotas", "v1/services", "apps/v1/daemonsets",
        "apps/v1/deployments", "apps/v1/replicasets", "apps/v1/statefulsets",
        "autoscaling/v1/horizontalpodautoscalers", "autoscaling/v2/horizontalpodautoscalers",
        "batch/v1/cronjobs", "batch/v1/jobs",
        "certificates.k8s.io/v1/certificatesigningrequests", "networking.k8s.io/v1/ingresses",
        "networking.k8s.io/v1/servicecidrs",
        "policy/v1/poddisruptionbudgets", "storage.k8s.io/v1/volumeattachments",
        "resource.k8s.io/v1beta2/devicetaintrules", "scheduling.k8s.io/v1alpha2/podgroups",
        "admissionregistration.k8s.io/v1/validatingadmissionpolicies",
        "apiextensions.k8s.io/v1/customresourcedefinitions",
        "apiregistration.k8s.io/v1/apiservices", "resource.k8s.io/v1/resourceclaims",
        "batch.volcano.sh/v1alpha1/cronjobs", "batch.volcano.sh/v1alpha1/jobs",
        "flowcontrol.apiserver.k8s.io/v1/flowschemas",
        "flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
        "flow.volcano.sh/v1alpha1/jobflows", "flow.volcano.sh/v1alpha1/jobtemplates",
        "scheduling.volcano.sh/v1beta1/queues", "topology.volcano.sh/v1alpha1/hypernodes",
    )},
    **{f"{path}/scale": _STATUS for path in (
        "v1/replicationcontrollers", "apps/v1/deployments", "apps/v1/replicasets",
        "apps/v1/statefulsets",
    )},
    "certificates.k8s.io/v1/certificatesigningrequests/approval": _STATUS,
    "v1/namespaces/finalize": {"update"},
    "v1/pods/attach": {"create", "get"},
    "v1/pods/binding": {"create"},
    "v1/pods/ephemeralcontainers": _STATUS,
    "v1/pods/eviction": {"create"},
    "v1/pods/exec": {"create", "get"},
    "v1/pods/log": {"get"},
    "v1/pods/portforward": {"create", "get"},
    "v1/pods/resize": _STATUS,
    **{f"v1/{plural}/proxy": {"create", "delete", "get", "patch", "update"} for plural in (
        "nodes", "pods", "services",
    )},
    "v1/serviceaccounts/token": {"create"},
}  # fmt: skip
"""Subresources in discovery, with their verbs."""

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedServer]:
    """One server for all tests: each uses different names."""
    data_dir = tmp_path_factory.mktemp("server")
    async with embedded_server(data_dir, crds=crds.load()) as running:
        yield running


class Kind(NamedTuple):
    """A kind in discovery."""

    group: str
    version: str
    entry: Json

    @property
    def path(self) -> str:
        return "/".join(filter(None, (self.group, self.version, self.entry["resource"])))

    def url(self, name: str = "") -> str:
        plural, namespaced = self.entry["resource"], self.entry["scope"] == "Namespaced"
        kind = self.entry["responseKind"]["kind"]
        resource = Resource(self.group, self.version, plural, kind, namespaced=namespaced)
        return resource.path("default" if namespaced else "", name)


async def discovered(server: EmbeddedServer) -> list[Kind]:
    found = []
    for root in ("/api", "/apis"):
        response = await server.request("GET", root, headers={"Accept": DISCOVERY})
        for group in response.body["items"]:
            for version in group["versions"]:
                name = group["metadata"].get("name", "")
                found += [Kind(name, version["version"], each) for each in version["resources"]]
    return found


# Kinds and their subresources.


async def test_every_kind_and_subresource_has_a_row(server: EmbeddedServer) -> None:
    kinds = await discovered(server)
    assert sorted(kind.path for kind in kinds) == sorted(ROWS)
    subresources = {
        f"{kind.path}/{subresource['subresource']}": set(subresource["verbs"])
        for kind in kinds
        for subresource in kind.entry.get("subresources", ())
    }
    assert subresources == SUBRESOURCES
    assert [path for path, row in ROWS.items() if not row.enforcer_exists] == []
    assert len(UNENFORCED_KINDS) == sum(row.handling == "warned" for row in ROWS.values())


async def test_kinds_without_effect_bring_a_warning(server: EmbeddedServer) -> None:
    for kind in await discovered(server):
        row = ROWS[kind.path]
        if not {"list", "create"} <= set(kind.entry["verbs"]):
            continue
        if kind.path in _WRITTEN_BY_COMPONENTS:
            continue
        body = {"metadata": {"name": "row"}, **row.body}
        if kind.path.endswith(
            (
                "volcano.sh/v1alpha1/commands",
                "v1alpha1/cronjobs",
                "queues",
                "podgroups",
                "jobflows",
                "jobtemplates",
                "hypernodes",
            )
        ):
            body |= _head(kind)
        response = await server.request("POST", f"{kind.url()}?dryRun=All", body)
        assert response.status == 201, (kind.path, response.body)
        warnings = [text for text in response.warnings if "stored but not" in text]
        assert len(warnings) == (row.handling == "warned"), (kind.path, response.warnings)
        assert len(response.warnings) == len(warnings), kind.path
        assert all(text.startswith(kind.entry["responseKind"]["kind"]) for text in warnings)


_WRITTEN_BY_COMPONENTS = {
    "v1/events", "events.k8s.io/v1/events", "batch.volcano.sh/v1alpha1/jobs",
    "networking.k8s.io/v1/servicecidrs",
}  # fmt: skip
"""Kinds whose objects need more than a row; other tests create them."""


def _head(kind: Kind) -> Json:
    api = f"{kind.group}/{kind.version}"
    return {"apiVersion": api, "kind": kind.entry["responseKind"]["kind"]}


async def test_every_verb_in_discovery_is_supported(server: EmbeddedServer) -> None:
    for kind in await discovered(server):
        entries = [("", kind.entry["verbs"])]
        entries += [(p["subresource"], p["verbs"]) for p in kind.entry.get("subresources", ())]
        for subresource, verbs in entries:
            for verb in verbs:
                method, url = _request(kind, subresource, verb)
                body: Json | None = None if method in ("GET", "DELETE") else {}
                media = MERGE if method == "PATCH" else "application/json"
                response = await server.request(method, url, body, content_type=media)
                assert response.status not in (405, 501), (method, url, response.body)
                if response.status == 404:
                    assert response.body["details"]["name"] == "none", (method, url, response.body)


def _request(kind: Kind, subresource: str, verb: str) -> tuple[str, str]:
    one = kind.url("none") + (f"/{subresource}" if subresource else "")
    if verb in ("get", "update", "patch", "delete"):
        method = {"get": "GET", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}[verb]
        return method, one if verb == "get" else f"{one}?dryRun=All"
    if verb == "create":
        return "POST", f"{one if subresource else kind.url()}?dryRun=All"
    if verb == "watch":
        # An invalid version ends the watch before it starts.
        return "GET", f"{kind.url()}?watch=1&resourceVersion=x"
    if verb == "deletecollection":
        return "DELETE", f"{kind.url()}?dryRun=All&labelSelector=none"
    assert verb == "list"
    return "GET", kind.url()


async def test_openapi_describes_the_subresources_in_discovery(server: EmbeddedServer) -> None:
    documents = (await server.get("/openapi/v3"))["paths"]
    found = set()
    for root, entry in documents.items():
        group_version = root.removeprefix("apis/").removeprefix("api/")
        for path in (await server.get(entry["serverRelativeURL"]))["paths"]:
            plural, brace, subresource = path.partition("/{name}/")
            if brace:
                found.add(f"{group_version}/{plural.rpartition('/')[2]}/{subresource}")
    assert found == set(SUBRESOURCES)


# Recipients and occasions of warnings.

POLICIES = names.NETWORKPOLICIES.path("default")
POLICY = {"metadata": {"name": "n"}, "spec": {"podSelector": {}}}
WARNINGS = (
    "NetworkPolicy is stored but not enforced by the embedded cluster: pods share the network of "
    "the machine; start it with --pod-network=namespaces"
)


async def test_create_and_every_update_of_the_object_bring_a_warning(
    server: EmbeddedServer,
) -> None:
    created = await server.request("POST", POLICIES, POLICY)
    assert (created.status, created.warnings) == (201, [WARNINGS])
    other = {**created.body, "spec": {"podSelector": {"matchLabels": {"a": "b"}}}}
    put = await server.request("PUT", f"{POLICIES}/n", other)
    assert (put.status, put.warnings) == (200, [WARNINGS])
    patch = {"spec": {"podSelector": {"matchLabels": {"a": "c"}}}}
    patched = await server.request("PATCH", f"{POLICIES}/n", patch, content_type=MERGE)
    assert (patched.status, patched.warnings) == (200, [WARNINGS])


async def test_a_policy_of_pods_with_network_namespaces_brings_no_warning() -> None:
    warnings = warnings_on_write(names.NETWORKPOLICIES, POLICY, None, PodNetwork.NAMESPACES)
    assert warnings == []


async def test_label_status_and_delete_requests_bring_no_warning(server: EmbeddedServer) -> None:
    url = "/apis/apps/v1/namespaces/default/deployments"
    await server.create(url, {"metadata": {"name": "d"}, "spec": _WORKLOAD})
    for path, body in (
        (f"{url}/d", {"metadata": {"labels": {"a": "b"}}}),
        (f"{url}/d/status", {"status": {"replicas": 1}}),
    ):
        response = await server.request("PATCH", path, body, content_type=MERGE)
        assert (response.status, response.warnings) == (200, [])
    response = await server.request("DELETE", f"{url}/d")
    assert (response.status, response.warnings) == (200, [])


async def test_a_rejected_object_is_not_stored_and_gets_the_reason(server: EmbeddedServer) -> None:
    response = await server.request("POST", POLICIES, {**POLICY, "spec": 3})
    assert (response.status, response.warnings) == (400, [])


async def test_our_own_components_are_not_warned(server: EmbeddedServer) -> None:
    token = server.tokens["controllers"]
    policy = {**POLICY, "metadata": {"name": "ours"}}
    created = await server.request("POST", POLICIES, policy, token=token)
    assert (created.status, created.warnings) == (201, [])
    asking = pod("ours", hostPID=True)
    created = await server.request("POST", PODS, asking, token=token)
    assert (created.status, created.warnings) == (201, [])


async def test_an_update_is_warned_of_its_changes_only(server: EmbeddedServer) -> None:
    url = "/api/v1/namespaces/default/services"
    spec = {"clusterIP": "None", "ports": [{"port": 80}]}
    await server.create(url, {"metadata": {"name": "s"}, "spec": spec})
    body: Json = {"spec": {"externalIPs": ["192.0.2.1"]}}
    first = await server.request("PATCH", f"{url}/s", body, content_type=MERGE)
    assert first.warnings == [
        "spec.externalIPs is ignored for headless services",
        "spec.externalIPs has no effect in the embedded cluster: the Service proxy listens on "
        "loopback addresses only",
    ]
    body = {"spec": {"ports": [{"port": 81}]}}
    second = await server.request("PATCH", f"{url}/s", body, content_type=MERGE)
    assert (second.status, second.warnings) == (200, first.warnings[:1])


@pytest.mark.process
async def test_kubectl_shows_the_warning(server: EmbeddedServer, tmp_path: Path) -> None:
    needs_kubectl()
    kubectl = Kubectl(server, tmp_path)
    done = await kubectl.run("create", "ingress", "small", "--rule=a.example.com/=s:80")
    assert (done.code, done.out) == (0, "ingress.networking.k8s.io/small created\n")
    assert "Warning: Ingress is stored but not served" in done.err


@pytest.mark.process
async def test_many_warnings_are_truncated(server: EmbeddedServer) -> None:
    body: Json = {f"{index:03}" + "x" * 300: 1 for index in range(200)}
    body["metadata"] = {"name": "m"}
    response = await server.request("POST", "/api/v1/namespaces/default/configmaps", body)
    assert response.status == 201
    assert 10 <= len(response.warnings) <= 50
    assert sum(map(len, response.warnings)) <= 4096


# Fields; test_fields_without_effect.py has all of them.


async def test_a_pod_cannot_be_created_with_ephemeral_containers(server: EmbeddedServer) -> None:
    more = [{"name": "e", "image": "i"}]
    response = await server.request("POST", PODS, pod("p", ephemeralContainers=more))
    assert response.status == 422


async def test_a_pod_is_warned_of_each_field_once(server: EmbeddedServer) -> None:
    container = {"image": "busybox:1", "securityContext": {"privileged": True}}
    containers = [{"name": name, **container} for name in ("a", "b")]
    body = pod("privileged", hostPID=True, containers=containers)
    for query in ("?dryRun=All", ""):
        response = await server.request("POST", PODS + query, body)
        assert response.status == 201, response.body
        assert [text.partition(" ")[0] for text in response.warnings] == [
            "spec.hostPID",
            "spec.containers[0].securityContext.privileged",
        ]


async def test_a_job_is_warned_of_the_fields_of_its_pods_once(server: EmbeddedServer) -> None:
    template = {"spec": {**_ONCE["spec"], "hostIPC": True}}
    tasks = [{"name": name, "replicas": 1, "template": template} for name in ("a", "b")]
    body = {
        "apiVersion": names.JOBS.api_version,
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"minAvailable": 1, "tasks": tasks},
    }
    response = await server.request("POST", names.JOBS.path("default"), body)
    assert response.status == 201, response.body
    assert [text.partition(" ")[0] for text in response.warnings] == [
        "spec.tasks[0].template.spec.hostIPC"
    ]


async def resource_of(server: EmbeddedServer, body: Json) -> Resource:
    """The resource of an object, by discovery."""
    group, _, version = body["apiVersion"].rpartition("/")
    found = await server.get(f"/apis/{group}/{version}" if group else f"/api/{version}")
    (served,) = [
        each
        for each in found["resources"]
        if each["kind"] == body["kind"] and "/" not in each["name"]
    ]
    return Resource(group, version, served["name"], body["kind"], namespaced=served["namespaced"])


async def test_our_examples_bring_no_warning(tmp_path: Path) -> None:
    kinds = (*crds.load(), *crds.load_training())
    async with embedded_server(tmp_path, crds=kinds) as server:
        examples = ROOT / "docs" / "examples"
        # These use kinds that only Kubernetes enforces.
        of_kubernetes = set((examples / "kubernetes").iterdir())
        for path in set(examples.glob("**/*.yaml")) - of_kubernetes:
            for body in filter(None, yaml.safe_load_all(path.read_text())):
                resource = await resource_of(server, body)
                url = f"{resource.path('default')}?dryRun=All"
                response = await server.request("POST", url, body)
                assert (response.status, response.warnings) == (201, []), (path, response.body)
