"""Where the API server is and how we prove who we are: kubeconfig files and in-cluster files.

We read the common forms ourselves. Users with ``exec`` or ``auth-provider`` credentials are left
to the official client, which :mod:`.auth` imports only then: it costs time and memory at start.
"""

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from ..errors import ConfigError, UnsafePathError
from ..private_files import read_private

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a cluster mounts the credentials of a pod."""

OWN_USER_PREFIX = "batholith-"
"""How users are named in the kubeconfigs of ``batholith up``: only their owner may read those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """How to reach one API server as one user. Of a file and its data, the data win."""

    server: str
    """``https://host:port`` or ``http://host:port``, perhaps with a path."""
    namespace: str = "default"
    """The namespace that commands mean when they name none."""
    ca_file: str = ""
    ca_data: bytes = b""
    insecure: bool = False
    """Accept any server certificate."""
    tls_server_name: str = ""
    """The name to expect in the server's certificate, when it is not the host of *server*."""
    proxy: str = ""
    cert_file: str = ""
    cert_data: bytes = b""
    key_file: str = ""
    key_data: bytes = field(default=b"", repr=False)
    token: str = field(default="", repr=False)
    token_file: str = ""
    """A file that is read again now and then: tokens in it are replaced before they expire."""
    username: str = ""
    password: str = field(default="", repr=False)
    impersonate: tuple[tuple[str, str], ...] = ()
    """Impersonation headers, in order."""
    plugin: tuple[str, str] | None = None
    """(kubeconfig paths as in ``$KUBECONFIG``, context) when the official client has to fetch the
    credentials."""


def load_credentials(kubeconfig: str | None = None, *, context: str | None = None) -> Credentials:
    """Find credentials: *kubeconfig*, else ``$KUBECONFIG``, ``~/.kube/config``, in-cluster files.

    Args:
        kubeconfig: path of one file.
        context: which of its contexts; by default the current one.

    Raises:
        ConfigError: nothing was found, or what was found cannot be used.
    """
    if kubeconfig:
        return _from_files([Path(kubeconfig)], context)
    listed = [Path(part) for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    if listed:
        return _from_files(listed, context)
    # Unlike Path.expanduser this takes a user whom nobody knows, as pods may have, for homeless.
    home = Path(os.path.expanduser("~/.kube/config"))
    if home.exists():
        return _from_files([home], context)
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return in_cluster_credentials()
    raise ConfigError("no kubeconfig given, none in $KUBECONFIG or ~/.kube, and not in a cluster")


def in_cluster_credentials(directory: Path = SERVICE_ACCOUNT_DIR) -> Credentials:
    """Credentials of the service account that *folder* holds, as mounted into every pod.

    Raises:
        ConfigError: the environment or the files of a pod are missing.
    """
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError("KUBERNETES_SERVICE_HOST is not set: not inside a cluster")
    token, ca, namespace = directory / "token", directory / "ca.crt", directory / "namespace"
    if not token.exists():
        raise ConfigError(f"{token} is missing: the pod has no service account token")
    return Credentials(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        ca_file=str(ca) if ca.exists() else "",
        token_file=str(token),
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    """A named section of a kubeconfig and the file that it came from."""

    body: Mapping[str, Any]
    path: Path

    def text(self, key: str) -> str:
        value = self.body.get(key)
        return "" if value is None else str(value)

    def file(self, key: str) -> str:
        """A path; a relative one starts at the folder of the kubeconfig."""
        value = self.text(key)
        return str(self.path.parent / Path(value).expanduser()) if value else ""

    def data(self, key: str) -> bytes:
        try:
            return base64.b64decode(self.text(key), validate=False)
        except binascii.Error as error:
            raise ConfigError(f"{self.path}: {key} is not base64") from error


def _from_files(paths: list[Path], context: str | None) -> Credentials:
    """Merge kubeconfig files (the first that names a thing wins) and pick one context."""
    unsafe: dict[Path, str] = {}
    documents = [
        (path, _read_kubeconfig(path, unsafe)) for path in paths if len(paths) == 1 or path.exists()
    ]
    if not documents:
        raise ConfigError(f"none of the kubeconfig files exists: {', '.join(map(str, paths))}")
    current = (str(document.get("current-context") or "") for _, document in documents)
    wanted = context or next(filter(None, current), "")
    if not wanted:
        raise ConfigError(f"{documents[0][0]}: no context given and no current-context set")
    chosen = _find_entry(documents, "context", wanted)
    cluster = _find_entry(documents, "cluster", chosen.text("cluster"))
    user_name = chosen.text("user")
    user = _find_entry(documents, "user", user_name) if user_name else _Entry({}, chosen.path)
    if user_name.startswith(OWN_USER_PREFIX) and user.path in unsafe:
        raise ConfigError(unsafe[user.path])
    found = _with_user_credentials(_cluster_credentials(cluster), user)
    if "exec" in user.body or "auth-provider" in user.body:
        files = os.pathsep.join(str(path) for path, _ in documents)
        found = replace(found, plugin=(files, wanted))
    return replace(found, namespace=chosen.text("namespace") or "default")


def _read_kubeconfig(path: Path, unsafe: dict[Path, str]) -> dict[str, Any]:
    """What a kubeconfig says; *unsafe* learns why one of ours could not be used."""
    try:
        try:
            text = read_private(path)
        except UnsafePathError as error:
            unsafe[path] = str(error)
            text = path.read_bytes()
        document = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"cannot read kubeconfig {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is not a kubeconfig: its top level is no mapping")
    return document


def _find_entry(documents: list[tuple[Path, dict[str, Any]]], kind: str, name: str) -> _Entry:
    """Find the entry *name* in the list ``<kind>s`` of the first document that has it."""
    for path, document in documents:
        for entry in document.get(f"{kind}s") or ():
            if isinstance(entry, dict) and entry.get("name") == name:
                body = entry.get(kind) or {}
                if not isinstance(body, dict):
                    raise ConfigError(f"{path}: {kind} {name!r} is no mapping")
                return _Entry(body, path)
    raise ConfigError(f"{documents[0][0]}: there is no {kind} named {name!r}")


def _cluster_credentials(cluster: _Entry) -> Credentials:
    server = cluster.text("server").rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise ConfigError(f"{cluster.path}: server is no http or https address: {server!r}")
    return Credentials(
        server=server,
        ca_file=cluster.file("certificate-authority"),
        ca_data=cluster.data("certificate-authority-data"),
        insecure=cluster.body.get("insecure-skip-tls-verify") is True,
        tls_server_name=cluster.text("tls-server-name"),
        proxy=cluster.text("proxy-url"),
    )


def _has_entry(entry: _Entry, key: str) -> bool:
    """Whether *key* is there, as a file or as data."""
    return bool(entry.text(key) or entry.text(f"{key}-data"))


def _with_user_credentials(found: Credentials, user: _Entry) -> Credentials:
    if user.body.get("as-user-extra"):
        # Leaving it out would act with more rights than the user asked for.
        raise ConfigError(f"{user.path}: as-user-extra is not supported")
    if _has_entry(user, "client-certificate") and not _has_entry(user, "client-key"):
        raise ConfigError(f"{user.path}: client-certificate without client-key")
    acting = [("Impersonate-User", user.text("as")), ("Impersonate-Uid", user.text("as-uid"))]
    acting += [("Impersonate-Group", str(group)) for group in user.body.get("as-groups") or ()]
    return replace(
        found,
        cert_file=user.file("client-certificate"),
        cert_data=user.data("client-certificate-data"),
        key_file=user.file("client-key"),
        key_data=user.data("client-key-data"),
        token=user.text("token"),
        token_file=user.file("tokenFile"),
        username=user.text("username"),
        password=user.text("password"),
        impersonate=tuple((header, value) for header, value in acting if value),
    )
