"""As test_conformance.py: conversations about single kinds."""

import base64
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from support.api_servers import RealServerFactory
from support.conversations import Conversation, RecordedConversation, assert_same_responses
from support.embedded_apiserver import MERGE

Json = dict[str, Any]

EXPECTED_DIFFERENCES: dict[str, dict[str, str]] = {
    "certificate_requests": {"warning ": "there are no signers"},
}
CONVERSATIONS: dict[str, Conversation] = {}


def register_conversation(conversation: Conversation) -> Conversation:
    CONVERSATIONS[conversation.__name__] = conversation
    return conversation


@cache  # signatures are random
def _signing_request(*organizations: str) -> str:
    key = ec.derive_private_key(7, ec.SECP256R1())
    names = [x509.NameAttribute(x509.NameOID.COMMON_NAME, "someone")]
    names += [x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, each) for each in organizations]
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(names))
    pem = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    return base64.b64encode(pem).decode()


@register_conversation
async def certificate_requests(send: RecordedConversation) -> None:
    path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    spec: Json = {
        "request": _signing_request(),
        "signerName": "example.com/signer",
        "usages": ["client auth"],
        "expirationSeconds": 3600,
        "username": "somebody-else",
        "groups": ["system:masters"],
        "extra": {"a": ["b"]},
    }
    await send("POST", path, {"metadata": {"name": "one"}, "spec": spec})
    await send("GET", path)
    for wrong in (
        {"request": base64.b64encode(b"none").decode()},
        {"request": _signing_request("system:masters"),
         "signerName": "kubernetes.io/kube-apiserver-client"},
        {"signerName": "kubernetes.io/legacy-unknown"},
        {"signerName": "plain"},
        {"signerName": "Example.com/signer"},
        {"signerName": "com/signer"},
        {"usages": []},
        {"usages": ["any", "any", "none"]},
        {"expirationSeconds": 599},
    ):  # fmt: skip
        await send("POST", path, {"metadata": {"name": "two"}, "spec": {**spec, **wrong}})
    await send("PATCH", f"{path}/one", {"spec": {"usages": ["any"]}}, MERGE)
    approved = {"type": "Approved", "status": "True", "reason": "r", "message": "m"}
    for condition in (
        {"type": "Approved", "status": "False"},
        {"type": "Approved"},
        {"status": "True"},
        {"type": "Odd", "status": "odd"},
        approved,
    ):
        change: Json = {"status": {"conditions": [condition]}}
        await send("PATCH", f"{path}/one/status", change, MERGE)
        await send("PATCH", f"{path}/one/approval", change, MERGE)
    denied = {"type": "Denied", "status": "True"}
    for conditions in ([approved, denied], [approved, approved], [], [{**approved, "reason": "s"}]):
        change = {"status": {"conditions": conditions}}
        await send("PATCH", f"{path}/one/status", change, MERGE)
        await send("PATCH", f"{path}/one/approval", change, MERGE)
    for certificate in (b"none", b""):
        change = {"status": {"certificate": base64.b64encode(certificate).decode()}}
        await send("PATCH", f"{path}/one/status", change, MERGE)
        await send("PATCH", f"{path}/one/approval", change, MERGE)
    current = await send("GET", f"{path}/one/approval")
    await send("PUT", f"{path}/one/approval", current)
    await send("GET", f"{path}/one")
    await send("DELETE", f"{path}/one")


@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS)
async def test_both_servers_return_the_same(
    conversation: Conversation, real: RealServerFactory, tmp_path: Path
) -> None:
    known = EXPECTED_DIFFERENCES.get(conversation.__name__, {})
    await assert_same_responses(conversation, real, tmp_path, known)
