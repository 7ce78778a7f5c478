"""Machines that join an API server of a test: tokens, certificate requests and certificates."""

import base64
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtensionOID, NameOID
from support.embedded_apiserver import RawResponse, Server
from support.polling import wait_until_true

from batholith.machinery.x509 import key_pem, new_key, new_request
from batholith.model.bootstrap_tokens import BootstrapToken
from batholith.model.node_identity import CLIENT_SIGNER, CSRS, NODES_GROUP, USAGES, USER_PREFIX

Json = dict[str, Any]
TOKENS = "/api/v1/namespaces/kube-system/secrets"
SECRETS = "/api/v1/namespaces/default/secrets"
REQUESTS = CSRS.path()


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A certificate request."""

    node: str
    signer: str = CLIENT_SIGNER
    addresses: Sequence[str] = ()
    organizations: Sequence[str] = (NODES_GROUP,)
    key: EllipticCurvePrivateKey = field(default_factory=new_key)

    def body(self, name: str) -> Json:
        pem = new_request(
            self.key,
            name=f"{USER_PREFIX}{self.node}",
            organizations=self.organizations,
            addresses=self.addresses,
        )
        spec = {
            "request": base64.b64encode(pem).decode(),
            "signerName": self.signer,
            "usages": list(USAGES.get(self.signer, ("digital signature", "client auth"))),
        }
        return {"metadata": {"name": name}, "spec": spec}


def malformed_request() -> str:
    """A request whose alternative names are no ASN.1."""
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
            x509.NameAttribute(NameOID.COMMON_NAME, "system:node:x"),
        ]
    )
    names = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, b"\xff")
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    signed = builder.add_extension(names, critical=False).sign(new_key(), hashes.SHA256())
    return base64.b64encode(signed.public_bytes(Encoding.PEM)).decode()


async def create_token(server: Server, *, ttl: timedelta = timedelta(hours=1)) -> BootstrapToken:
    """A token that the administrator has created."""
    token = BootstrapToken.new(expires_at=datetime.now(UTC) + ttl)
    await server.create(TOKENS, token.to_secret())
    return token


async def result_of(server: Server, name: str) -> Json:
    """The status of a request that is signed, denied or failed."""
    found: Json = {}

    async def is_handled() -> bool:
        found.update((await server.get(f"{REQUESTS}/{name}")).get("status") or {})
        kinds = {each["type"] for each in found.get("conditions", ())}
        return "certificate" in found or bool(kinds & {"Denied", "Failed"})

    await wait_until_true(is_handled)
    return found


def kinds(status: Json) -> set[str]:
    """The types of the conditions of a request."""
    return {each["type"] for each in status.get("conditions") or ()}


@dataclass
class CertificateClient:
    """Sends requests to a server with a client certificate."""

    url: str
    session: aiohttp.ClientSession

    async def request(self, method: str, path: str, body: object = None) -> RawResponse:
        async with self.session.request(method, self.url + path, json=body) as response:
            return RawResponse(response.status, await response.json(content_type=None))


@asynccontextmanager
async def certificate_client(
    server: Server, certificate: bytes, key: EllipticCurvePrivateKey, directory: Path
) -> AsyncIterator[CertificateClient]:
    """A client with a certificate in PEM."""
    path = directory / "client.pem"
    path.touch(0o600)
    path.write_bytes(certificate + key_pem(key))
    context = ssl.create_default_context(cadata=server.ca.decode())
    context.load_cert_chain(path)
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield CertificateClient(server.url, session)


async def join_node(
    server: Server, node: str, key: EllipticCurvePrivateKey, *, token: BootstrapToken
) -> bytes:
    """The client certificate of a new node, by a bootstrap token."""
    name = f"join-{node}"
    created = await server.request(
        "POST", REQUESTS, Wanted(node=node, key=key).body(name), token=str(token)
    )
    assert created.status == 201, created.body
    status = await result_of(server, name)
    assert "certificate" in status, status
    return base64.b64decode(status["certificate"])
