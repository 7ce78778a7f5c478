"""The current context of kubeconfig files: user, namespace and CA of its cluster."""

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..model.kubeconfig import (
    Document,
    Entry,
    KubeconfigError,
    entries,
    extension,
    find_context,
    parse,
)
from .effects import Secret
from .errors import ConfigError
from .exec_plugin import VERSIONS, ExecPlugin, resolve_command


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeContext:
    """One context of a kubeconfig."""

    path: Path
    """The file that defines its user."""
    namespace: str = "default"
    token: Secret = field(default_factory=lambda: Secret(""))
    token_file: Path | None = None
    certificate: str = ""
    """PEM of the client certificate; empty for none."""
    key: Secret = field(default_factory=lambda: Secret(""))
    plugin: ExecPlugin | None = None
    ca: str = ""
    """PEM of the CA of the Kubernetes API; empty for none."""


def load_context(paths: Sequence[Path], name: str | None = None) -> KubeContext:
    """Return the context *name*, by default the current one, of the merged files.

    Raises:
        ConfigError: a file cannot be read, or has no such context, or no usable user.
    """
    try:
        context = find_context([_read(path) for path in paths], name)
        user, cluster = context.user, context.cluster
        if context.must_be_private:
            check_private(user.path)
        if "auth-provider" in user.body:
            raise ConfigError(f"{user.path}: auth-provider is not supported; use an exec plugin")
        return KubeContext(
            path=user.path,
            namespace=context.namespace,
            token=Secret(user.text("token")),
            token_file=user.file("tokenFile"),
            certificate=_pem(user, "client-certificate"),
            key=Secret(_pem(user, "client-key")),
            plugin=_plugin(user, cluster),
            ca=_pem(cluster, "certificate-authority"),
        )
    except KubeconfigError as error:
        raise ConfigError(str(error)) from None


def check_private(path: Path) -> None:
    """Check that no other user can write *path*, which determines where a token is sent.

    Raises:
        ConfigError: another user can, or owns it.
    """
    if not hasattr(os, "getuid"):
        return
    try:
        found = path.lstat()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    if found.st_uid != os.getuid() or found.st_mode & 0o022 or path.is_symlink():
        raise ConfigError(f"{path} is not private: another user could have written it")


def _read(path: Path) -> Document:
    try:
        return parse(path, path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read kubeconfig {path}: {error.strerror}") from None


def _pem(entry: Entry, key: str) -> str:
    """Return inline data, or the content of a file; empty if there is neither."""
    try:
        if data := entry.data(f"{key}-data"):
            return data.decode("ascii")
    except UnicodeDecodeError:
        raise ConfigError(f"{entry.path}: {key}-data is not base64 of PEM") from None
    file = entry.file(key)
    if file is None:
        return ""
    try:
        return file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not PEM"
        raise ConfigError(f"{entry.path}: cannot read {key} {file}: {reason}") from None


def _plugin(user: Entry, cluster: Entry) -> ExecPlugin | None:
    spec = user.body.get("exec")
    if not isinstance(spec, dict):
        return None
    version, command = str(spec.get("apiVersion") or ""), str(spec.get("command") or "")
    if version not in VERSIONS:
        raise ConfigError(f"{user.path}: exec.apiVersion must be one of {', '.join(VERSIONS)}")
    if not command:
        raise ConfigError(f"{user.path}: exec.command is missing")
    if spec.get("interactiveMode") == "Always":
        raise ConfigError(f"{user.path}: the credential plugin requires a terminal")
    variables = entries(spec.get("env"))
    return ExecPlugin(
        command=resolve_command(command, user.path.parent),
        arguments=tuple(str(each) for each in spec.get("args") or ()),
        environment={str(each.get("name")): str(each.get("value")) for each in variables},
        api_version=version,
        cluster=_cluster_info(cluster) if spec.get("provideClusterInfo") else None,
        install_hint=str(spec.get("installHint") or ""),
    )


def _cluster_info(cluster: Entry) -> dict[str, Any]:
    keys = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
    found = {key: cluster.body[key] for key in keys if key in cluster.body}
    if ca := _pem(cluster, "certificate-authority"):
        found["certificate-authority-data"] = base64.b64encode(ca.encode()).decode()
    if (config := extension(cluster, "client.authentication.k8s.io/exec")) is not None:
        found["config"] = config
    return found
