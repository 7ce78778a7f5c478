"""Address and credentials of the API server: kubeconfig files and in-cluster files.

Common forms are parsed here. Users with ``exec`` or ``auth-provider`` credentials need the official
client, which :mod:`.auth` imports only then: it costs time and memory at start.
"""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...model.kubeconfig import (
    Document,
    Entry,
    KubeconfigError,
    default_paths,
    extension,
    find_context,
    parse,
)
from ..errors import ConfigError, UnsafePathError
from ..private_files import read_private

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet mounts the service account token of a pod."""

UNIX_SOCKET_EXTENSION = "batholith.io/unix-socket"
"""Extension of a kubeconfig's cluster: the ``path`` of a Unix socket to use instead of TLS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Address and credentials of one user; inline data take precedence over files."""

    server: str
    """``https://host:port`` or ``http://host:port``, with an optional path."""
    unix_socket: str = ""
    """Path of a Unix socket to connect to instead, without TLS."""
    namespace: str = "default"
    """Default namespace of commands."""
    ca_file: str = ""
    ca_data: bytes = b""
    insecure: bool = False
    """Accept any server certificate."""
    tls_server_name: str = ""
    """Name to verify in the server's certificate, if it differs from the host of *server*."""
    proxy: str = ""
    cert_file: str = ""
    cert_data: bytes = b""
    key_file: str = ""
    key_data: bytes = field(default=b"", repr=False)
    token: str = field(default="", repr=False)
    token_file: str = ""
    """Token file, reread periodically: tokens are rotated before they expire."""
    username: str = ""
    password: str = field(default="", repr=False)
    impersonate: tuple[tuple[str, str], ...] = ()
    """Impersonation headers, in order."""
    plugin: tuple[str, str] | None = None
    """(kubeconfig paths as in ``$KUBECONFIG``, context) when the official client has to fetch the
    credentials."""

    @property
    def has_certificate(self) -> bool:
        """Whether a TLS client certificate is sent."""
        return bool(self.cert_file or self.cert_data)

    def without_certificate(self) -> "Credentials":
        """Return a copy without the TLS client certificate."""
        return replace(self, cert_file="", cert_data=b"", key_file="", key_data=b"")


def load_credentials(kubeconfig: str | None = None, *, context: str | None = None) -> Credentials:
    """Find credentials: *kubeconfig*, else ``$KUBECONFIG``, ``~/.kube/config``, in-cluster files.

    Args:
        kubeconfig: path of one file.
        context: which of its contexts; by default the current one.

    Raises:
        ConfigError: nothing was found, or what was found cannot be used.
    """
    paths = [Path(kubeconfig)] if kubeconfig else default_paths()
    # Without a name, the file in the home directory may be missing.
    is_named = kubeconfig or os.environ.get("KUBECONFIG", "").strip(os.pathsep)
    if is_named or paths[0].exists():
        try:
            return _from_files(paths, context)
        except KubeconfigError as error:
            raise ConfigError(str(error)) from None
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return in_cluster_credentials()
    raise ConfigError("no kubeconfig given, none in $KUBECONFIG or ~/.kube, and not in a cluster")


def in_cluster_credentials(directory: Path = SERVICE_ACCOUNT_DIR) -> Credentials:
    """Return the credentials of the service account mounted at *directory*.

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


def _from_files(paths: list[Path], name: str | None) -> Credentials:
    unsafe: dict[Path, str] = {}
    documents = [_read(path, unsafe) for path in paths if len(paths) == 1 or path.exists()]
    if not documents:
        raise ConfigError(f"none of the kubeconfig files exists: {', '.join(map(str, paths))}")
    context = find_context(documents, name)
    user = context.user
    if context.must_be_private and user.path in unsafe:
        raise ConfigError(unsafe[user.path])
    found = _with_user_credentials(_cluster_credentials(context.cluster), user)
    if "exec" in user.body or "auth-provider" in user.body:
        files = os.pathsep.join(str(path) for path, _ in documents)
        found = replace(found, plugin=(files, context.name))
    return replace(found, namespace=context.namespace)


def _read(path: Path, unsafe: dict[Path, str]) -> Document:
    """Read a kubeconfig; *unsafe* gets the reason if its permissions are unsafe."""
    try:
        try:
            text = read_private(path)
        except UnsafePathError as error:
            unsafe[path] = str(error)
            text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read kubeconfig {path}: {error.strerror}") from error
    return parse(path, text)


def _cluster_credentials(cluster: Entry) -> Credentials:
    server = cluster.text("server").rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise ConfigError(f"{cluster.path}: server is no http or https address: {server!r}")
    return Credentials(
        server=server,
        unix_socket=str((extension(cluster, UNIX_SOCKET_EXTENSION) or {}).get("path") or ""),
        ca_file=_file(cluster, "certificate-authority"),
        ca_data=cluster.data("certificate-authority-data"),
        insecure=cluster.body.get("insecure-skip-tls-verify") is True,
        tls_server_name=cluster.text("tls-server-name"),
        proxy=cluster.text("proxy-url"),
    )


def _file(entry: Entry, key: str) -> str:
    return str(entry.file(key) or "")


def _has_entry(entry: Entry, key: str) -> bool:
    """Return whether *key* is set, as a file or as data."""
    return bool(entry.text(key) or entry.text(f"{key}-data"))


def _with_user_credentials(found: Credentials, user: Entry) -> Credentials:
    if user.body.get("as-user-extra"):
        # Ignoring it would act with more permissions than requested.
        raise ConfigError(f"{user.path}: as-user-extra is not supported")
    if _has_entry(user, "client-certificate") and not _has_entry(user, "client-key"):
        raise ConfigError(f"{user.path}: client-certificate without client-key")
    acting = [("Impersonate-User", user.text("as")), ("Impersonate-Uid", user.text("as-uid"))]
    acting += [("Impersonate-Group", str(group)) for group in user.body.get("as-groups") or ()]
    return replace(
        found,
        cert_file=_file(user, "client-certificate"),
        cert_data=user.data("client-certificate-data"),
        key_file=_file(user, "client-key"),
        key_data=user.data("client-key-data"),
        token=user.text("token"),
        token_file=_file(user, "tokenFile"),
        username=user.text("username"),
        password=user.text("password"),
        impersonate=tuple((header, value) for header, value in acting if value),
    )
