"""Join a machine to the cluster of another one: its first certificate, and what it keeps."""

import asyncio
import base64
import hashlib
import re
import socket
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from ...kube.client.client import Client
from ...kube.client.config import Credentials, load_credentials
from ...kube.errors import ApiError, ConnectionLostError, UnauthorizedError
from ...kube.private_files import read_private, write_private
from ...machinery.x509 import key_pem, new_key, parse_key, public_key_hash
from ...model import bootstrap_tokens
from ...model.bootstrap_tokens import JoinToken
from ...model.names import CONFIGMAPS, NODES
from ...model.node_identity import CLIENT_SIGNER
from ..agent.certificates import (
    CLIENT_FILE,
    CertificateError,
    NodeIdentity,
    is_valid,
    load,
    request_certificate,
)
from . import kubeconfig
from .datadir import DataDir
from .membership import JoinError, Membership

KEY_FILE = "kubelet-client.key"
"""The key of the first certificate, until that is stored: a killed command continues with it."""

KUBECONFIG_FILE = "kubelet.kubeconfig"
_CHECK_TIMEOUT = 5.0
"""Seconds that a start waits for an API server to respond."""

_CA_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\s*", re.DOTALL)


def local_address(server: str) -> str:
    """Return the address with which this machine connects to the API server.

    Raises:
        OSError: there is no route to it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host_of(server), 9))  # sends nothing
        return str(probe.getsockname()[0])


def is_on_this_machine(server: str) -> bool:
    """Return whether the API server has an address of this machine."""
    try:
        return local_address(server) == host_of(server)
    except OSError:  # There is no route to it.
        return False


def claim_service_addresses(server: str) -> socket.socket:
    """Return what reserves the addresses of Services of a cluster on this machine, until closed.

    They are loopback addresses, at which the proxies of two nodes cannot both listen. An abstract
    address of a Unix socket exists once in a network namespace, as they do, for all users and data
    directories, and the kernel frees it with the process.

    Raises:
        JoinError: another node of the cluster has them.
    """
    digest = hashlib.blake2b(server.encode(), digest_size=8).hexdigest()
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(f"\0batholith-services-{digest}")
    except OSError:
        claim.close()
        raise JoinError(
            f"another node of {server} runs on this machine, and its proxy listens on the "
            "addresses of Services: run several nodes on the first machine, or each in its "
            "own network namespace"
        ) from None
    return claim


def host_of(server: str) -> str:
    """Return the address in a URL with a port."""
    return server.rpartition("//")[2].rpartition(":")[0]


def is_current(data: DataDir) -> bool:
    """Return whether the machine has a certificate that has not expired."""
    return is_valid(load(data.pki / CLIENT_FILE), now=datetime.now(UTC))


def join(data: DataDir, token: JoinToken, node: str) -> Membership:
    """Get the first certificate of a node, and store it with the address and CA of the server.

    Raises:
        JoinError: the server cannot be reached, has another CA, or does not accept the node.
        OSError: a file cannot be written.
    """
    server = token.server
    anonymous = Credentials(server=server, insecure=True)
    try:
        ca = asyncio.run(_pinned_ca(anonymous, token.ca_hash))
        with_token = replace(anonymous, insecure=False, ca_data=ca, token=token.token)
        asyncio.run(_get_certificate(data, with_token, node))
    except UnauthorizedError:
        raise JoinError(
            "the API server does not accept the token: it has expired or was deleted; "
            "`batholith token create` on the first machine prints a new one"
        ) from None
    except ConnectionLostError as error:
        raise JoinError(
            f"cannot connect to {server}: {error}; check the address, that the first machine runs "
            "`batholith up --listen` with it, and that no firewall blocks the port"
        ) from None
    except (ApiError, CertificateError) as error:
        raise JoinError(f"{server}: {error}") from None
    write_private(data.pki / "ca.crt", ca)
    membership = Membership(node=node, server=server)
    write_private(data.node_json, msgspec.json.encode(membership))
    (data.pki / KEY_FILE).unlink(missing_ok=True)
    return membership


def check_accepted(data: DataDir, config: Path, membership: Membership) -> None:
    """Check that the API server accepts the certificate of a node, if the server responds.

    Otherwise the machine can start: its pods run on, and the agent waits for the server.

    Raises:
        JoinError: the node was revoked.
    """
    try:
        asyncio.run(_read_node(load_credentials(str(config)), membership.node))
    except UnauthorizedError:
        raise JoinError(
            f"{membership.server} refuses the certificate of node {membership.node}: it was "
            f"revoked with `batholith nodes revoke`. If this machine may join again, delete "
            f"{data.root}, and join with a new token and another --name"
        ) from None
    except (ApiError, ConnectionLostError, TimeoutError):
        return


async def _read_node(credentials: Credentials, node: str) -> None:
    async with Client(credentials, user_agent="batholith-join") as client:
        async with asyncio.timeout(_CHECK_TIMEOUT):
            await client.get(NODES, node, view=dict)


async def _pinned_ca(anonymous: Credentials, wanted: str) -> bytes:
    """Return the CA of the server, whose public key has the hash *wanted*.

    Its connection is not verified, so nothing but an anonymous read is sent on it.
    """
    namespace, name = bootstrap_tokens.CLUSTER_INFO_NAMESPACE, bootstrap_tokens.CLUSTER_INFO
    async with Client(anonymous, user_agent="batholith-join") as client:
        found = await client.get(CONFIGMAPS, name, namespace=namespace, view=dict)
    try:
        info = yaml.safe_load(found["data"][bootstrap_tokens.KUBECONFIG_KEY])
        encoded = info["clusters"][0]["cluster"]["certificate-authority-data"]
        (pem,) = _CA_PEM.findall(base64.b64decode(encoded))
        certificate = x509.load_pem_x509_certificate(pem)
    except (KeyError, IndexError, TypeError, ValueError, yaml.YAMLError) as error:
        raise CertificateError(f"the server has no valid cluster-info: {error}") from None
    if public_key_hash(certificate) != wanted:
        raise CertificateError(
            "the CA of the server is not the one that the token names: it is another server, or "
            "one that intercepts the connection; nothing was sent to it"
        )
    if problem := clock_problem(certificate, datetime.now(UTC)):
        raise CertificateError(problem)
    return bytes(pem)


def clock_problem(ca: x509.Certificate, now: datetime) -> str:
    """Return why the clock of this machine must be wrong; empty if it may be right.

    TLS would fail, and its message names neither the clock nor the certificate.
    """
    first, last = ca.not_valid_before_utc, ca.not_valid_after_utc
    if first <= now <= last:
        return ""
    return (
        f"the CA of the server is valid from {first:%FT%TZ} to {last:%FT%TZ}, and the clock of "
        f"this machine is at {now:%FT%TZ}: set the clock"
    )


async def _get_certificate(data: DataDir, credentials: Credentials, node: str) -> None:
    key = _first_key(data.pki / KEY_FILE)
    try:
        async with Client(credentials, user_agent="batholith-join") as client:
            identity = NodeIdentity(node=node, address="")
            certificate = await request_certificate(client, identity, CLIENT_SIGNER, key)
    except CertificateError:
        (data.pki / KEY_FILE).unlink(missing_ok=True)
        raise
    write_private(data.pki / CLIENT_FILE, certificate + key_pem(key))


def _first_key(path: Path) -> EllipticCurvePrivateKey:
    try:
        return parse_key(read_private(path))
    except (FileNotFoundError, ValueError):
        key = new_key()
        write_private(path, key_pem(key))
        return key


def write_kubeconfig(data: DataDir, membership: Membership) -> Path:
    """Write the kubeconfig of the node's components, and return its path."""
    path = data.pki / KUBECONFIG_FILE
    access = kubeconfig.ClusterAccess(
        server=membership.server,
        ca=(data.pki / "ca.crt").read_bytes(),
        user=membership.node,
        certificate=data.pki / CLIENT_FILE,
    )
    kubeconfig.write(path, access)
    return path
