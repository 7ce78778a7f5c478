"""Kubeconfig of the embedded cluster."""

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ...kube.client.config import UNIX_SOCKET_EXTENSION
from ...kube.private_files import write_private
from ...model.kubeconfig import OWN_USER_PREFIX

CLUSTER_NAME = "batholith"
"""Name of the cluster and the context."""

_dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """Server and credentials of one user."""

    server: str
    """``https://host:port``."""
    ca: bytes
    """PEM."""
    user: str
    token: str = ""
    certificate: Path | None = None
    """File with a client certificate and its key, instead of a token."""
    unix_socket: Path | None = None
    """Unix socket at which the server accepts connections without TLS."""


def write(path: Path, access: ClusterAccess) -> None:
    """Write a kubeconfig with one cluster, one user and one context; mode 0600."""
    user = f"{OWN_USER_PREFIX}{access.user}"
    cluster: dict[str, Any] = {
        "server": access.server,
        "certificate-authority-data": base64.b64encode(access.ca).decode(),
    }
    if access.unix_socket is not None:
        extension = {"path": str(access.unix_socket)}
        cluster["extensions"] = [{"name": UNIX_SOCKET_EXTENSION, "extension": extension}]
    context = {"cluster": CLUSTER_NAME, "user": user, "namespace": "default"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CLUSTER_NAME, "cluster": cluster}],
        "users": [{"name": user, "user": _credentials(access)}],
        "contexts": [{"name": CLUSTER_NAME, "context": context}],
        "current-context": CLUSTER_NAME,
    }
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(path, yaml.dump(document, Dumper=_dumper, sort_keys=False).encode())


def _credentials(access: ClusterAccess) -> dict[str, str]:
    if access.certificate is None:
        return {"token": access.token}
    file = str(access.certificate)
    return {"client-certificate": file, "client-key": file}
