"""Requests of kubelets: objects of two nodes, and what the kubelet of the first may do."""

from dataclasses import dataclass
from typing import Any

from support.embedded_apiserver import MERGE, RawResponse, Server

Json = dict[str, Any]
CORE = "/api/v1/namespaces/default"
NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CSI_NODES = "/apis/storage.k8s.io/v1/csinodes"
VOLUMES = "/api/v1/persistentvolumes"
RESTRICTED = "node-restriction.kubernetes.io/gpu"
MIRROR = {"kubernetes.io/config.mirror": "x"}


def kubelet(node: str) -> dict[str, str]:
    """Headers that impersonate the kubelet of *node*."""
    return {"Impersonate-User": f"system:node:{node}", "Impersonate-Group": "system:nodes"}


def pod(name: str, node: str, **spec: Any) -> Json:
    """A pod of a node that gets no token automatically."""
    container = {"name": "c", "image": "x", **spec.pop("container", {})}
    whole = {"containers": [container], "automountServiceAccountToken": False, **spec}
    return {"metadata": {"name": name}, "spec": {"nodeName": node, **whole} if node else whole}


def claim(name: str) -> Json:
    """A claim."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name}, "spec": {**spec, "storageClassName": "none"}}


def volume(name: str, claimed_by: str, secret: str = "") -> Json:
    """A volume that is bound to a claim, and whose node needs a secret."""
    csi: Json = {"driver": "example.com", "volumeHandle": name}
    if secret:
        csi["nodePublishSecretRef"] = {"name": secret, "namespace": "default"}
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "claimRef": {"namespace": "default", "name": claimed_by},
        "csi": csi,
        "storageClassName": "none",
    }
    return {"metadata": {"name": name}, "spec": spec}


def resource_slice(name: str, node: str) -> Json:
    """A ResourceSlice of a node without devices."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {"metadata": {"name": name}, "spec": {"driver": "e.com", "nodeName": node, "pool": pool}}


def lease(name: str) -> Json:
    """The Lease of a node."""
    return {"metadata": {"name": name}, "spec": {"holderIdentity": name}}


async def create_objects(server: Server) -> None:
    """Objects of the nodes ``a`` and ``b``, by the administrator."""
    for node in ("a", "b"):
        await server.create(NODES, {"metadata": {"name": node, "labels": {"mine": node}}})
        for kind, body in (
            ("secrets", {"metadata": {"name": f"s-{node}"}}),
            ("secrets", {"metadata": {"name": f"published-{node}"}}),
            ("configmaps", {"metadata": {"name": f"m-{node}"}}),
            ("serviceaccounts", {"metadata": {"name": f"account-{node}"}}),
            ("persistentvolumeclaims", claim(f"claim-{node}")),
        ):
            await server.create(f"{CORE}/{kind}", body)
        token = {"serviceAccountToken": {"path": "t", "audience": "vault"}}
        volumes = [
            {"name": "s", "secret": {"secretName": f"s-{node}"}},
            {"name": "v", "persistentVolumeClaim": {"claimName": f"claim-{node}"}},
            {"name": "t", "projected": {"sources": [token]}},
        ]
        source = {"configMapRef": {"name": f"m-{node}"}}
        spec = {"volumes": volumes, "container": {"envFrom": [source]}}
        spec["serviceAccountName"] = f"account-{node}"
        await server.create(f"{CORE}/pods", pod(f"pod-{node}", node, **spec))
        await server.create(VOLUMES, volume(f"v-{node}", f"claim-{node}", f"published-{node}"))
        bound = {"spec": {"volumeName": f"v-{node}"}}  # as a controller of volumes would write
        path = f"{CORE}/persistentvolumeclaims/claim-{node}"
        response = await server.request("PATCH", path, bound, content_type=MERGE)
        assert response.status == 200, response.body
        await server.create(SLICES, resource_slice(f"slice-{node}", node))
    await server.create(LEASES, lease("b"))
    await server.create(CSI_NODES, {"metadata": {"name": "b"}, "spec": {"drivers": []}})


@dataclass(frozen=True)
class NodeRequest:
    """A request of the kubelet of node ``a``, and the expected status."""

    status: int
    method: str
    path: str
    body: Json | None = None

    async def send(self, server: Server) -> RawResponse:
        """Send it."""
        form = MERGE if self.method == "PATCH" else "application/json"
        headers = kubelet("a")
        return await server.request(
            self.method, self.path, self.body, content_type=form, headers=headers
        )


def _labels(**labels: str | None) -> Json:
    return {"metadata": {"labels": labels}}


READS = tuple(
    NodeRequest(status, "GET", path)
    for status, path in (
        *((200, f"{CORE}/{each}-a") for each in ("secrets/s", "configmaps/m", "pods/pod")),
        *((403, f"{CORE}/{each}-b") for each in ("secrets/s", "configmaps/m", "pods/pod")),
        (200, f"{CORE}/secrets/published-a"),
        (403, f"{CORE}/secrets/published-b"),
        (403, f"{CORE}/secrets/absent"),
        (403, f"{CORE}/secrets"),
        (403, "/api/v1/secrets"),
        (200, f"{CORE}/secrets?fieldSelector=metadata.name%3Ds-a"),
        (403, f"{CORE}/secrets?fieldSelector=metadata.name%3Ds-b"),
        (403, f"{CORE}/secrets?fieldSelector=metadata.name%21%3Ds-a"),
        (200, f"{CORE}/persistentvolumeclaims/claim-a"),
        (403, f"{CORE}/persistentvolumeclaims/claim-b"),
        (403, f"{CORE}/persistentvolumeclaims?fieldSelector=metadata.name%3Dclaim-a"),
        (200, f"{VOLUMES}/v-a"),
        (403, f"{VOLUMES}/v-b"),
        (403, VOLUMES),
        (200, f"{CORE}/serviceaccounts/account-a"),
        (403, f"{CORE}/serviceaccounts/account-b"),
        (200, f"{NODES}/a"),
        (403, f"{NODES}/b"),
        (403, NODES),
        (200, f"{NODES}?fieldSelector=metadata.name%3Da"),
        (200, "/api/v1/pods?fieldSelector=spec.nodeName%3Da"),
        (403, "/api/v1/pods?fieldSelector=spec.nodeName%3Db"),
        (403, "/api/v1/pods?fieldSelector=spec.nodeName%21%3Da"),
        (403, "/api/v1/pods"),
        (200, "/api/v1/services"),
        (403, "/api/v1/namespaces"),
        (403, "/apis/apps/v1/deployments"),
        (403, f"{LEASES}/b"),
        (403, LEASES),
        (200, f"{SLICES}/slice-a"),
        (403, f"{SLICES}/slice-b"),
        (200, f"{SLICES}?fieldSelector=spec.nodeName%3Da"),
        (403, SLICES),
        (403, f"{CSI_NODES}/b"),
    )
)

WRITES = (
    NodeRequest(403, "POST", NODES, {"metadata": {"name": "c"}}),
    NodeRequest(403, "PATCH", f"{NODES}/b", _labels(x="1")),
    NodeRequest(403, "PATCH", f"{NODES}/b/status", {"status": {"phase": "Running"}}),
    NodeRequest(403, "DELETE", f"{NODES}/a"),
    NodeRequest(200, "PATCH", f"{NODES}/a", _labels(x="1")),
    NodeRequest(200, "PATCH", f"{NODES}/a", _labels(**{"kubernetes.io/hostname": "a"})),
    NodeRequest(200, "PATCH", f"{NODES}/a", _labels(**{"node.kubernetes.io/kind": "a"})),
    NodeRequest(403, "PATCH", f"{NODES}/a", _labels(**{RESTRICTED: "1"})),
    NodeRequest(403, "PATCH", f"{NODES}/a/status", _labels(**{RESTRICTED: "1"})),
    NodeRequest(403, "PATCH", f"{NODES}/a", _labels(**{"x.kubernetes.io/y": "1", "k8s.io/z": "1"})),
    NodeRequest(
        403, "PATCH", f"{NODES}/a", {"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}}
    ),
    NodeRequest(200, "PATCH", f"{NODES}/a/status", {"status": {"capacity": {"cpu": "4"}}}),
    NodeRequest(200, "PATCH", f"{CORE}/pods/pod-a/status", {"status": {"message": "m"}}),
    NodeRequest(403, "PATCH", f"{CORE}/pods/pod-b/status", {"status": {"message": "m"}}),
    NodeRequest(403, "PATCH", f"{CORE}/pods/pod-a", _labels(x="1")),
    NodeRequest(403, "POST", f"{CORE}/pods", pod("plain", "a")),
    NodeRequest(403, "DELETE", f"{CORE}/pods/pod-b"),
    NodeRequest(403, "POST", f"{CORE}/pods/pod-b/eviction", {"metadata": {"name": "pod-b"}}),
    NodeRequest(403, "POST", f"{CORE}/pods/pod-a/binding", {"target": {"name": "a"}}),
    NodeRequest(403, "PATCH", f"{CORE}/secrets/s-a", _labels(x="1")),
    NodeRequest(403, "POST", f"{CORE}/secrets", {"metadata": {"name": "new"}}),
    NodeRequest(201, "POST", LEASES, lease("a")),
    NodeRequest(403, "POST", LEASES, lease("c")),
    NodeRequest(403, "PATCH", f"{LEASES}/b", _labels(x="1")),
    NodeRequest(200, "PATCH", f"{LEASES}/a", _labels(x="1")),
    NodeRequest(403, "POST", LEASES.replace("kube-node-lease", "default"), lease("a")),
    NodeRequest(201, "POST", CSI_NODES, {"metadata": {"name": "a"}, "spec": {"drivers": []}}),
    NodeRequest(403, "POST", CSI_NODES, {"metadata": {"name": "c"}, "spec": {"drivers": []}}),
    NodeRequest(403, "DELETE", f"{CSI_NODES}/b"),
    NodeRequest(201, "POST", SLICES, resource_slice("more-a", "a")),
    NodeRequest(403, "POST", SLICES, resource_slice("more-b", "b")),
    NodeRequest(403, "DELETE", f"{SLICES}/slice-b"),
    NodeRequest(403, "POST", f"{CORE}/serviceaccounts/account-b/token", {"spec": {}}),
    NodeRequest(403, "POST", f"{CORE}/serviceaccounts/account-a/token", {"spec": {}}),
    NodeRequest(200, "DELETE", f"{CORE}/pods/pod-a?gracePeriodSeconds=0"),
    NodeRequest(403, "GET", f"{CORE}/secrets/s-a"),
)
"""In order: the last ones delete the pod, after which its node may read nothing for it."""


def token_request(name: str, uid: str, *audiences: str) -> Json:
    """A TokenRequest that is bound to a pod."""
    bound = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
    return {"spec": {"audiences": list(audiences), "boundObjectRef": bound}}


async def token_requests(server: Server) -> list[NodeRequest]:
    """TokenRequests for the accounts of both nodes."""
    uids = [(await server.get(f"{CORE}/pods/pod-{node}"))["metadata"]["uid"] for node in ("a", "b")]
    own, other = (
        f"{CORE}/serviceaccounts/account-a/token",
        f"{CORE}/serviceaccounts/account-b/token",
    )
    return [
        NodeRequest(201, "POST", own, token_request("pod-a", uids[0], "vault")),
        NodeRequest(403, "POST", own, token_request("pod-a", uids[0], "other")),
        NodeRequest(403, "POST", own, token_request("pod-a", uids[0])),
        NodeRequest(403, "POST", own, token_request("pod-a", uids[0], "vault", "other")),
        NodeRequest(403, "POST", own, token_request("pod-a", "wrong", "vault")),
        NodeRequest(403, "POST", own, token_request("pod-b", uids[1], "vault")),
        NodeRequest(404, "POST", own, token_request("absent", uids[1], "vault")),
        NodeRequest(403, "POST", other, token_request("pod-b", uids[1], "vault")),
    ]


async def mirror_requests(server: Server) -> list[NodeRequest]:
    """Mirror pods, of which a node may create its own."""
    uid = (await server.get(f"{NODES}/a"))["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "a", "uid": uid, "controller": True}
    path = f"{CORE}/pods"

    def mirror(name: str, node: str = "a", *owners: Json, **spec: Any) -> Json:
        body = pod(name, node, **spec)
        body["metadata"] |= {"annotations": MIRROR, "ownerReferences": list(owners)}
        return body

    secret = [{"name": "s", "secret": {"secretName": "s-b"}}]
    return [
        NodeRequest(201, "POST", path, mirror("m-1", "a", owner)),
        NodeRequest(403, "POST", path, mirror("m-2", "b", owner)),
        NodeRequest(403, "POST", path, mirror("m-3", "a")),
        NodeRequest(403, "POST", path, mirror("m-4", "a", owner, {**owner, "kind": "Other"})),
        NodeRequest(403, "POST", path, mirror("m-5", "a", {**owner, "controller": False})),
        NodeRequest(403, "POST", path, mirror("m-6", "a", {**owner, "blockOwnerDeletion": True})),
        NodeRequest(403, "POST", path, mirror("m-7", "a", {**owner, "uid": "wrong"})),
        NodeRequest(403, "POST", path, mirror("m-8", "a", owner, serviceAccountName="account-b")),
        NodeRequest(403, "POST", path, mirror("m-9", "a", owner, volumes=secret)),
    ]
