"""The current context of kubeconfig files: user, namespace and CA of its cluster."""

import base64
import binascii
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .effects import Secret
from .errors import ConfigError
from .exec_plugin import VERSIONS, ExecPlugin, resolve_command

OWN_USER_PREFIX = "batholith-"
"""User names in kubeconfigs of ``batholith up``, which must be private to their owner."""


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


@dataclass(frozen=True, slots=True)
class _Entry:
    body: Mapping[str, Any]
    path: Path

    def text(self, key: str) -> str:
        value = self.body.get(key)
        return "" if value is None else str(value)

    def file(self, key: str) -> Path | None:
        """Return a path; a relative one is resolved against the kubeconfig's directory."""
        value = self.text(key)
        return self.path.parent / Path(value).expanduser() if value else None

    def pem(self, key: str) -> str:
        """Return inline data, or the content of a file."""
        if data := self.text(f"{key}-data"):
            try:
                return base64.b64decode("".join(data.split()), validate=True).decode("ascii")
            except (binascii.Error, ValueError):
                raise ConfigError(f"{self.path}: {key}-data is not base64 of PEM") from None
        file = self.file(key)
        if file is None:
            return ""
        try:
            return file.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not PEM"
            raise ConfigError(f"{self.path}: cannot read {key} {file}: {reason}") from None


def default_paths() -> list[Path]:
    """Return the kubeconfigs of ``$KUBECONFIG``, else ``~/.kube/config``; only existing files."""
    listed = os.environ.get("KUBECONFIG", "")
    if listed:
        paths = [Path(path) for path in listed.split(os.pathsep) if path]
    else:
        # Unlike Path.expanduser this does not fail for a uid without passwd entry, as in pods.
        paths = [Path(os.path.expanduser("~/.kube/config"))]
    return [path for path in paths if path.exists()]


def load_context(paths: Sequence[Path], name: str | None = None) -> KubeContext:
    """Return the context *name*, by default the current one, of the merged files.

    Raises:
        ConfigError: a file cannot be read, or has no such context, or no usable user.
    """
    documents = [(path, _read(path)) for path in paths]
    current = (str(document.get("current-context") or "") for _, document in documents)
    chosen = name or next(filter(None, current), "")
    if not chosen:
        raise ConfigError(f"{paths[0]}: no context given and no current-context set")
    context = _find(documents, "context", chosen)
    cluster = _find(documents, "cluster", context.text("cluster"))
    user_name = context.text("user")
    user = _find(documents, "user", user_name) if user_name else _Entry({}, context.path)
    if user_name.startswith(OWN_USER_PREFIX):
        check_private(user.path)
    if "auth-provider" in user.body:
        raise ConfigError(f"{user.path}: auth-provider is not supported; use an exec plugin")
    return KubeContext(
        path=user.path,
        namespace=context.text("namespace") or "default",
        token=Secret(user.text("token")),
        token_file=user.file("tokenFile"),
        certificate=user.pem("client-certificate"),
        key=Secret(user.pem("client-key")),
        plugin=_plugin(user, cluster),
        ca=cluster.pem("certificate-authority"),
    )


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


def _read(path: Path) -> dict[str, Any]:
    # Only users of kubeconfigs need it.
    import yaml

    try:
        document = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read kubeconfig {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        # The parser's message quotes the text, which may be a token.
        raise ConfigError(f"{path} is not YAML") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is not a kubeconfig: its top level is no mapping")
    return document


def _find(documents: Sequence[tuple[Path, dict[str, Any]]], kind: str, name: str) -> _Entry:
    """Return the first entry of a name, as kubectl merges files."""
    for path, document in documents:
        for entry in _entries(document.get(f"{kind}s")):
            body = entry.get(kind)
            if entry.get("name") == name and isinstance(body, dict):
                return _Entry(body, path)
    files = ", ".join(str(path) for path, _ in documents)
    raise ConfigError(f"{files}: no {kind} named {name!r}")


def _entries(found: object) -> Iterator[dict[str, Any]]:
    if isinstance(found, list):
        yield from (entry for entry in found if isinstance(entry, dict))


def _plugin(user: _Entry, cluster: _Entry) -> ExecPlugin | None:
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
    variables = _entries(spec.get("env"))
    return ExecPlugin(
        command=resolve_command(command, user.path.parent),
        arguments=tuple(str(each) for each in spec.get("args") or ()),
        environment={str(each.get("name")): str(each.get("value")) for each in variables},
        api_version=version,
        cluster=_cluster_info(cluster) if spec.get("provideClusterInfo") else None,
        install_hint=str(spec.get("installHint") or ""),
    )


def _cluster_info(cluster: _Entry) -> dict[str, Any]:
    keys = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
    found = {key: cluster.body[key] for key in keys if key in cluster.body}
    if ca := cluster.pem("certificate-authority"):
        found["certificate-authority-data"] = base64.b64encode(ca.encode()).decode()
    for extension in _entries(cluster.body.get("extensions")):
        if extension.get("name") == "client.authentication.k8s.io/exec":
            found["config"] = extension.get("extension")
    return found
