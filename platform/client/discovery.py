"""Where the REST API is, and with which credentials: arguments, environment, kubeconfig, cluster.

A token is only sent to the address that belongs to it: the address in the data directory of
``batholith up`` is used with the kubeconfig of that directory, the Service of the cluster with the
service account of the pod; any other kubeconfig requires a URL.
"""

import ipaddress
import os
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from ..model.kubeconfig import default_paths
from .credentials import CredentialSource, PluginToken, StaticToken, TokenFile
from .effects import Secret
from .errors import ConfigError
from .exec_plugin import PluginCredential
from .kubeconfig import KubeContext, check_private, load_context
from .timing import Timing

URL_VARIABLE = "BATHOLITH_API_URL"
SERVICE_URL = "https://batholith-api.volcano-system.svc"
"""The Service of ``manifests/base/api.yaml`` with TLS (``components/rest-tls``)."""
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the caller of the client has given."""

    url: str | None = None
    token: Secret = field(default_factory=lambda: Secret(""))
    token_file: Path | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    data_dir: Path | None = None
    namespace: str | None = None
    ca_file: Path | None = None
    insecure: bool = False
    """Send tokens over plain HTTP to hosts other than this one."""
    service_account: Path = SERVICE_ACCOUNT


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A usable address with credentials."""

    url: str
    namespace: str
    credentials: CredentialSource
    tls: ssl.SSLContext | None


class _ProcessId(msgspec.Struct, frozen=True):
    pid: int
    start_time: int


class _UpState(msgspec.Struct, frozen=True):
    """The fields of ``up.json`` that are read."""

    supervisor: _ProcessId
    ports: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Credentials, and the address that belongs to them, if any."""

    credentials: Callable[[ssl.SSLContext | None], CredentialSource]
    namespace: str = "default"
    url: str = ""
    ca: str = ""
    certificate: str = ""
    key: Secret = field(default_factory=lambda: Secret(""))


def discover(options: Options, timing: Timing) -> Connection:
    """Return address and credentials.

    Raises:
        ConfigError: there is no address or no credentials, or both must not be combined.
    """
    given = options.url or os.environ.get(URL_VARIABLE, "")
    source = _find_source(options, timing, has_url=bool(given))
    url = given or source.url
    if not url:
        raise ConfigError(
            f"the URL of the REST API is unknown: pass url (--url), or set {URL_VARIABLE}; of a"
            " cluster of `batholith up`, pass its data directory with the token (--data-dir)"
        )
    url = check_url(url, insecure=options.insecure)
    tls = _tls_context(options, source) if url.startswith("https:") else None
    return Connection(
        url=url,
        namespace=options.namespace or source.namespace,
        credentials=source.credentials(tls),
        tls=tls,
    )


def check_url(url: str, *, insecure: bool) -> str:
    """Return *url* without a slash at its end, if a token may be sent there.

    Raises:
        ConfigError: it is no HTTP URL, contains credentials, or is plain HTTP to another host.
    """
    split = urlsplit(url)
    if split.username is not None or split.password is not None:
        raise ConfigError("the URL of the REST API contains credentials; pass a token instead")
    if split.scheme not in ("http", "https") or not split.hostname:
        raise ConfigError(f"the URL of the REST API is not http:// or https://: {url!r}")
    if split.query or split.fragment:
        raise ConfigError(f"the URL of the REST API has a query or fragment: {url!r}")
    if split.scheme == "http" and not insecure and not is_loopback(split.hostname):
        raise ConfigError(
            f"{url} is plain HTTP to another host, which would expose the token: use https, or"
            " pass insecure=True"
        )
    return url.rstrip("/")


def is_loopback(host: str) -> bool:
    """Return whether *host* is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def default_data_dir() -> Path:
    """Return the default data directory of ``batholith up``."""
    home = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not home.is_absolute():  # the XDG specification: ignore relative values
        home = Path(os.path.expanduser("~/.local/share"))
    return home / "batholith"


def _find_source(options: Options, timing: Timing, *, has_url: bool) -> _Source:
    """Return the credentials that are given, else the first that are found."""
    if options.token or options.token_file is not None:
        return _given_token(options)
    if options.kubeconfig is not None or options.context is not None:
        paths = [options.kubeconfig] if options.kubeconfig is not None else _default_paths()
        if not paths:
            raise ConfigError("no kubeconfig in $KUBECONFIG or ~/.kube/config")
        return _from_context(load_context(paths, options.context), timing)
    if options.data_dir is not None:
        return _from_data_dir(options.data_dir, timing)
    paths = _default_paths()
    if paths:
        source = _from_context(load_context(paths), timing)
        if source.url or has_url:
            return source
    if (options.service_account / "token").exists():
        return _from_service_account(options.service_account)
    if not has_url and (default_data_dir() / "up.json").exists():
        return _from_data_dir(default_data_dir(), timing)
    if paths:
        return source
    raise ConfigError(
        "no credentials: start a cluster with `batholith up`, or pass a kubeconfig (--kubeconfig),"
        " or url and token (--url, --token-file)"
    )


def _given_token(options: Options) -> _Source:
    source: CredentialSource = (
        TokenFile(options.token_file)
        if options.token_file is not None
        else StaticToken(options.token.reveal())
    )
    url = "" if options.data_dir is None else _url_of_data_dir(options.data_dir)
    return _Source(credentials=lambda _: source, url=url)


def _default_paths() -> list[Path]:
    return [path for path in default_paths() if path.exists()]


def _from_context(found: KubeContext, timing: Timing) -> _Source:
    directory = found.path.parent
    is_data_dir = found.path.name == "kubeconfig" and (directory / "up.json").exists()
    return _Source(
        credentials=lambda tls: _context_credentials(found, tls, timing),
        namespace=found.namespace,
        url=_url_of_data_dir(directory) if is_data_dir else "",
        ca=found.ca,
        certificate=found.certificate,
        key=found.key,
    )


def _context_credentials(
    found: KubeContext, tls: ssl.SSLContext | None, timing: Timing
) -> CredentialSource:
    if found.token:
        return StaticToken(found.token.reveal())
    if found.token_file is not None:
        return TokenFile(found.token_file)
    if found.plugin is not None:

        def use_certificate(credential: PluginCredential) -> None:
            if tls is not None:
                _load_certificate(tls, credential.certificate, credential.key)

        return PluginToken(found.plugin, timing=timing, use_certificate=use_certificate)
    if not found.certificate:
        raise ConfigError(f"{found.path}: the user has neither token nor certificate")
    if tls is None:
        raise ConfigError(f"{found.path}: a client certificate requires https")
    return StaticToken()


def _from_data_dir(directory: Path, timing: Timing) -> _Source:
    if not directory.exists():
        raise ConfigError(
            f"there is no cluster in {directory}: start one by `batholith up --data-dir`"
        )
    return _from_context(load_context([directory / "kubeconfig"]), timing)


def _from_service_account(directory: Path) -> _Source:
    namespace, ca = directory / "namespace", directory / "ca.crt"
    source = TokenFile(directory / "token")
    return _Source(
        credentials=lambda _: source,
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        url=SERVICE_URL,
        ca=ca.read_text() if ca.exists() else "",
    )


def _url_of_data_dir(directory: Path) -> str:
    """Return the URL of the cluster that runs in a data directory.

    Raises:
        ConfigError: none runs there. Its port could be another program's by now.
    """
    path = directory / "up.json"
    check_private(path)
    try:
        state = msgspec.json.decode(path.read_bytes(), type=_UpState)
        port = state.ports["rest"]
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, KeyError):
        raise ConfigError(f"cannot read the port of the REST API from {path}") from None
    if not _is_running(state.supervisor):
        raise ConfigError(f"the cluster in {directory} is not running: start it by `batholith up`")
    return f"http://127.0.0.1:{port}"


def _is_running(process: _ProcessId) -> bool:
    try:
        stat = Path(f"/proc/{process.pid}/stat").read_bytes()
    except OSError:
        return False
    fields = stat.rpartition(b")")[2].split()
    return fields[0] not in (b"Z", b"X") and int(fields[19]) == process.start_time


def _tls_context(options: Options, source: _Source) -> ssl.SSLContext:
    """Return a context that verifies servers by the system's CAs and that of the cluster."""
    try:
        if options.ca_file is not None:
            context = ssl.create_default_context(cafile=options.ca_file)
        else:
            context = ssl.create_default_context()
            if source.ca:
                context.load_verify_locations(cadata=source.ca)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigError(f"cannot load the CA: {error}") from None
    # Older cluster CAs lack the key usage extension, which newer Pythons demand by default.
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    if source.certificate:
        _load_certificate(context, source.certificate, source.key)
    return context


def _load_certificate(context: ssl.SSLContext, certificate: str, key: Secret) -> None:
    """Load a client certificate; OpenSSL reads it from files, which are private and removed."""
    with tempfile.TemporaryDirectory(prefix="batholith-") as directory:
        chain, private = Path(directory, "cert.pem"), Path(directory, "key.pem")
        chain.write_text(certificate)
        private.touch(mode=0o600)
        private.write_text(key.reveal())
        try:
            context.load_cert_chain(chain, private)
        except (ssl.SSLError, ValueError):
            raise ConfigError("cannot load the client certificate with its key") from None
