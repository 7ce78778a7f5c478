"""Arguments of the clients, and what both of them are built from."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from .calls import Session
from .discovery import Connection, Options, discover
from .effects import Secret
from .timing import Retries, Timing


class ClientOptions(TypedDict, total=False):
    """Arguments of :class:`~.client.Client` and :class:`~.async_client.AsyncClient`.

    Without arguments the address and credentials are those of a running ``batholith up`` or of
    the pod; with another kubeconfig, the URL is required (``BATHOLITH_API_URL``).
    """

    token: str | None
    """A bearer token of the cluster."""
    token_file: str | os.PathLike[str] | None
    """A file with a token, read for each request."""
    kubeconfig: str | os.PathLike[str] | None
    """By default ``$KUBECONFIG``, else ``~/.kube/config``."""
    context: str | None
    """Context of the kubeconfig; by default its current one."""
    data_dir: str | os.PathLike[str] | None
    """Data directory of ``batholith up``."""
    namespace: str | None
    """The namespace of operations that do not name one; by default that of the context."""
    ca_file: str | os.PathLike[str] | None
    """Only trust these CAs; by default those of the system and of the cluster."""
    insecure: bool
    """Send the token over plain HTTP to another host. Anyone on the way can read it."""
    timeout: float
    """Seconds for one call with all its attempts; 30 by default."""
    retries: Retries
    """When failed attempts are repeated."""
    timing: Timing
    """Sources of time and jitter, for tests."""
    transport: Any
    """Transport of httpx (``httpx.BaseTransport``, ``httpx.AsyncBaseTransport``), for tests and
    special networks; it replaces TLS settings and proxies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a client is built from."""

    session: Session
    http: dict[str, Any]
    """Arguments of ``httpx.Client`` and ``httpx.AsyncClient``."""


def prepare(url: str | None, options: ClientOptions) -> Prepared:
    """Find address and credentials.

    Raises:
        ConfigError: there are none, or they must not be combined.
    """
    timing = options.get("timing") or Timing()
    found = discover(
        Options(
            url=url,
            token=Secret(options.get("token") or ""),
            token_file=_path(options.get("token_file")),
            kubeconfig=_path(options.get("kubeconfig")),
            context=options.get("context"),
            data_dir=_path(options.get("data_dir")),
            namespace=options.get("namespace"),
            ca_file=_path(options.get("ca_file")),
            insecure=options.get("insecure", False),
        ),
        timing,
    )
    session = Session(
        url=found.url,
        credentials=found.credentials,
        namespace=found.namespace,
        timeout=options.get("timeout", 30.0),
        retries=options.get("retries") or Retries(),
        timing=timing,
    )
    return Prepared(session=session, http=_http_arguments(found, options))


def _http_arguments(found: Connection, options: ClientOptions) -> dict[str, Any]:
    arguments: dict[str, Any] = {"follow_redirects": False}
    if options.get("transport") is not None:
        return arguments | {"transport": options["transport"], "trust_env": False}
    if found.tls is None:
        # A proxy of the environment would read the token.
        return arguments | {"trust_env": False}
    return arguments | {"verify": found.tls}


def _path(given: str | os.PathLike[str] | None) -> Path | None:
    return None if given is None else Path(given).expanduser()


def with_settings(
    session: Session, namespace: str | None, timeout: float | None, retries: Retries | None
) -> Session:
    """Return *session* with those settings that are given."""
    return replace(
        session,
        namespace=session.namespace if namespace is None else namespace,
        timeout=session.timeout if timeout is None else timeout,
        retries=session.retries if retries is None else retries,
    )
