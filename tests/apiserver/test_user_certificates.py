"""Certificates of users: an administrator approves their request, and they authenticate by it."""

import base64
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from support import joining
from support.embedded_apiserver import EmbeddedServer, embedded_server
from support.joining import REQUESTS, kinds, result_of

from batholith.machinery.x509 import new_key, new_request
from batholith.model.node_identity import API_CLIENT_SIGNER

Json = dict[str, Any]
KEY = new_key()
USAGES = ("digital signature", "client auth")
REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def body(name: str, *, usages: Sequence[str] = USAGES, groups: Sequence[str] = ("team",)) -> Json:
    pem = new_request(KEY, name="ada", organizations=groups)
    spec = {
        "request": base64.b64encode(pem).decode(),
        "signerName": API_CLIENT_SIGNER,
        "usages": list(usages),
        "expirationSeconds": 3600,
    }
    return {"metadata": {"name": name}, "spec": spec}


async def approve(server: EmbeddedServer, request: Json) -> None:
    condition = {"type": "Approved", "status": "True", "reason": "KubectlApprove"}
    request["status"] = {"conditions": [condition]}
    path = f"{REQUESTS}/{request['metadata']['name']}/approval"
    approved = await server.request("PUT", path, request)
    assert approved.status == 200, approved.body


@pytest.mark.parametrize("usages", [USAGES, ("client auth",)])
async def test_a_user_authenticates_by_an_approved_certificate(
    tmp_path: Path, usages: Sequence[str]
) -> None:
    async with embedded_server(tmp_path / "data") as server:
        created = await server.request("POST", REQUESTS, body("ada", usages=usages))
        assert (created.status, created.warnings) == (201, [])
        await approve(server, created.body)
        signed = base64.b64decode((await result_of(server, "ada"))["certificate"])
        found = x509.load_pem_x509_certificate(signed)
        assert found.not_valid_after_utc - found.not_valid_before_utc < timedelta(hours=2)
        async with joining.certificate_client(server, signed, KEY, tmp_path) as client:
            review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
            user = (await client.request("POST", REVIEWS, review)).body["status"]["userInfo"]
            assert user["username"] == "ada"
            assert set(user["groups"]) == {"team", "system:authenticated"}
            assert (await client.request("GET", "/api/v1/pods")).status == 403


async def test_other_certificates_than_those_of_clients_are_not_signed(tmp_path: Path) -> None:
    malformed = body("malformed")
    malformed["spec"]["request"] = joining.malformed_request()
    async with embedded_server(tmp_path) as server:
        for wanted in (
            body("use", usages=("digital signature",)),
            body("other-use", usages=("client auth", "server auth")),
            malformed,
        ):
            await approve(server, await server.create(REQUESTS, wanted))
            status = await result_of(server, wanted["metadata"]["name"])
            assert kinds(status) == {"Approved", "Failed"}


async def test_nobody_becomes_an_administrator_by_a_certificate(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        refused = await server.request("POST", REQUESTS, body("ada", groups=("system:masters",)))
        assert (refused.status, refused.body["reason"]) == (403, "Forbidden")
