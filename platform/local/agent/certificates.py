"""Certificates of a node in the cluster of another machine: requests and renewal.

A certificate and its key are in one file, which is replaced at once. A new one is requested with
the current one, before it expires.
"""

import asyncio
import base64
import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from ...kube.client.client import Client
from ...kube.errors import AlreadyExistsError, ApiError, ConnectionLostError
from ...kube.private_files import read_private, write_private
from ...machinery.clock import Clock
from ...machinery.x509 import CertKeyPair, key_pem, new_key, new_request
from ...model import times
from ...model.node_identity import (
    CLIENT_SIGNER,
    CSRS,
    NODES_GROUP,
    SERVING_SIGNER,
    USAGES,
    USER_PREFIX,
)
from .settings import AgentSettings

log = logging.getLogger(__name__)

CLIENT_FILE = "kubelet-client-current.pem"
SERVING_FILE = "kubelet-server-current.pem"
"""Files of a node's certificates, as kubelets call them."""

_RENEW_AT = 2 / 3
"""Part of its validity after which a certificate is renewed."""

_CHECK_INTERVAL = 3600.0
_RETRY_INTERVAL = 60.0
_FIRST_RETRY_INTERVAL = 5.0
_POLL_INTERVAL = 0.2
_APPROVAL_TIMEOUT = 60.0
_MAX_SKEW = timedelta(seconds=30)


class CertificateError(Exception):
    """The API server gives no certificate; the text has its reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """For whom certificates are requested."""

    node: str
    address: str
    """IP address of the serving certificate."""


async def request_certificate(
    client: Client, identity: NodeIdentity, signer: str, key: EllipticCurvePrivateKey
) -> bytes:
    """Return a certificate of *key* in PEM.

    The request is named by its content: it is the same one after a restart with that key.

    Raises:
        CertificateError: the request is denied, or not approved in time.
        ApiError, ConnectionLostError: a request failed.
    """
    addresses = (identity.address,) if signer == SERVING_SIGNER else ()
    public = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    content = (public, *map(str.encode, (signer, identity.node, *addresses)))
    digest = hashlib.sha256(b"\0".join(content))
    name = f"node-csr-{digest.hexdigest()[:40]}"
    request = new_request(
        key,
        name=f"{USER_PREFIX}{identity.node}",
        organizations=(NODES_GROUP,),
        addresses=addresses,
    )
    spec = {
        "request": base64.b64encode(request).decode(),
        "signerName": signer,
        "usages": list(USAGES[signer]),
    }
    try:
        created = await client.create(CSRS, {"metadata": {"name": name}, "spec": spec}, view=dict)
    except AlreadyExistsError:
        log.info("waiting for an earlier certificate request", extra={"request": name})
    else:
        _report_skew(created)
    return await wait_issued(client, name, key)


def _report_skew(created: dict[str, Any]) -> None:
    """Warn if the clocks of both machines differ: certificates and leases depend on them."""
    difference = datetime.now(UTC) - times.parse(created["metadata"]["creationTimestamp"])
    if abs(difference) > _MAX_SKEW:
        seconds = round(difference.total_seconds())
        log.warning(
            "the clock of this machine differs from that of the API server: synchronize both",
            extra={"seconds": seconds},
        )


async def wait_issued(client: Client, name: str, key: EllipticCurvePrivateKey) -> bytes:
    """Wait until the request *name* is approved; return the certificate, which fits *key*.

    Raises:
        CertificateError: the request is denied, or not approved in time.
    """
    deadline = time.monotonic() + _APPROVAL_TIMEOUT
    while time.monotonic() < deadline:
        found = await client.get(CSRS, name, view=dict)
        status = found.get("status") or {}
        for condition in status.get("conditions") or ():
            if condition["type"] in ("Denied", "Failed"):
                raise CertificateError(f"the certificate is denied: {condition['message']}")
        if encoded := status.get("certificate"):
            certificate = base64.b64decode(encoded)
            if x509.load_pem_x509_certificate(certificate).public_key() != key.public_key():
                raise CertificateError(f"the certificate of {name} is not for this machine's key")
            return certificate
        await asyncio.sleep(_POLL_INTERVAL)
    raise CertificateError(
        f"the certificate is not approved yet: `kubectl certificate approve {name}` approves it"
    )


def load(path: Path) -> CertKeyPair | None:
    """Return a certificate with its key; ``None`` if there is none, or it is malformed.

    Raises:
        UnsafePathError: other users control the file.
    """
    try:
        content = read_private(path)
        return CertKeyPair.from_pem(content, content)
    except (FileNotFoundError, ValueError):
        return None


def is_valid(pair: CertKeyPair | None, *, now: datetime, hosts: Sequence[str] = ()) -> bool:
    """Return whether a certificate has not expired, and covers *hosts*."""
    if pair is None or now >= pair.certificate.not_valid_after_utc:
        return False
    return not hosts or pair.covers(hosts)


def is_due(pair: CertKeyPair | None, *, now: datetime, hosts: Sequence[str] = ()) -> bool:
    """Return whether a certificate is to be renewed."""
    if pair is None or not is_valid(pair, now=now, hosts=hosts):
        return True
    begin, end = pair.certificate.not_valid_before_utc, pair.certificate.not_valid_after_utc
    return now >= begin + (end - begin) * _RENEW_AT


class NodeCertificates:
    """Keeps the certificates of a node valid."""

    def __init__(
        self, client: Client, directory: Path, identity: NodeIdentity, *, clock: Clock
    ) -> None:
        """*client* authenticates with the certificate in *directory*, and reads a new one."""
        self._client = client
        self._directory = directory
        self._identity = identity
        self._clock = clock

    @classmethod
    def of(cls, client: Client, settings: AgentSettings, *, clock: Clock) -> "NodeCertificates":
        """Return those of an agent, whose serving certificate is next to the client's."""
        if settings.serving is None:
            raise ValueError("the agent serves nothing")
        identity = NodeIdentity(node=settings.node_name, address=settings.node_address)
        return cls(client, settings.serving.certificate.parent, identity, clock=clock)

    async def ensure_serving(self) -> None:
        """Get a serving certificate, unless there is one for the node's address.

        It is requested again while the API server cannot be reached.

        Raises:
            CertificateError: the request is denied.
        """
        while not is_valid(
            load(self._directory / SERVING_FILE),
            now=self._clock.now(),
            hosts=(self._identity.address,),
        ):
            try:
                await self._renew(SERVING_SIGNER)
            except (ApiError, ConnectionLostError) as error:
                log.warning("cannot get certificate, retrying", extra={"error": str(error)})
                await self._clock.sleep(_FIRST_RETRY_INTERVAL)

    async def run(self) -> None:
        """Renew the certificates before they expire, until cancelled."""
        while True:
            renewed = [await self.renew_if_due(each) for each in (CLIENT_SIGNER, SERVING_SIGNER)]
            await self._clock.sleep(_CHECK_INTERVAL if all(renewed) else _RETRY_INTERVAL)

    async def renew_if_due(self, signer: str) -> bool:
        """Renew the certificate of *signer*, if it is time; return whether it was."""
        hosts = (self._identity.address,) if signer == SERVING_SIGNER else ()
        pair = load(self._path(signer))
        if not is_due(pair, now=self._clock.now(), hosts=hosts):
            return True
        try:
            await self._renew(signer)
        except (CertificateError, ApiError, ConnectionLostError) as error:
            log.error("cannot renew certificate", extra={"signer": signer, "error": str(error)})
            return False
        return True

    def _path(self, signer: str) -> Path:
        return self._directory / (CLIENT_FILE if signer == CLIENT_SIGNER else SERVING_FILE)

    async def _renew(self, signer: str) -> None:
        key = new_key()
        certificate = await request_certificate(self._client, self._identity, signer, key)
        write_private(self._path(signer), certificate + key_pem(key))
        log.info("renewed certificate", extra={"signer": signer})
