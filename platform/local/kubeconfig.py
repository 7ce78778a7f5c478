"""The kubeconfig by which kubectl and everything else finds the embedded cluster."""

import base64
from dataclasses import dataclass
from pathlib import Path

import yaml

from ..kube.client.config import OWN_USERS
from .files import write_private

NAME = "batholith"
"""Of the cluster, the context and (with the user's name behind it) the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How one user reaches the cluster."""

    server: str
    """``https://host:port``."""
    ca: bytes
    """PEM."""
    user: str
    token: str


def write(path: Path, access: Access) -> None:
    """Write a kubeconfig with one cluster, one user and one context; mode 0600."""
    user = f"{OWN_USERS}{access.user}"
    cluster = {
        "server": access.server,
        "certificate-authority-data": base64.b64encode(access.ca).decode(),
    }
    context = {"cluster": NAME, "user": user, "namespace": "default"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": cluster}],
        "users": [{"name": user, "user": {"token": access.token}}],
        "contexts": [{"name": NAME, "context": context}],
        "current-context": NAME,
    }
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(path, yaml.safe_dump(document, sort_keys=False).encode())
