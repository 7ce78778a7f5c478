"""How a node identifies itself: its user name and group, and the signers of its certificates."""

from .names import Resource

NODES_GROUP = "system:nodes"
USER_PREFIX = "system:node:"

API_CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client"
"""Signs the certificates of users, which an administrator approves."""

CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING_SIGNER = "kubernetes.io/kubelet-serving"
SIGNERS = (CLIENT_SIGNER, SERVING_SIGNER)
USAGES = {
    CLIENT_SIGNER: ("digital signature", "client auth"),
    SERVING_SIGNER: ("digital signature", "server auth"),
}
"""What the certificates of a signer are used for."""

CSRS = Resource(
    "certificates.k8s.io",
    "v1",
    "certificatesigningrequests",
    "CertificateSigningRequest",
    namespaced=False,
)

REVOKED_NODES, REVOKED_NAMESPACE = "batholith-revoked-nodes", "kube-system"
"""ConfigMap with the names of nodes whose certificates are not accepted any more."""

API_SERVER_CLIENT = "kube-apiserver"
"""Common name of the certificate with which the API server connects to agents."""

FRONT_PROXY_CLIENT = "front-proxy-client"
"""Common name of the certificate with which the API server connects to other API servers."""
